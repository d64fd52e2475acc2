"""Find the Linux control groups (cgroups) whose limits apply to this process."""

from collections.abc import Iterator
from pathlib import Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """The version (1 or 2) and directory of each group that limits this process.

    A parent's limit also applies to its children, so parents are included. ``root`` is the
    directory that holds ``proc`` and ``sys``. On systems other than Linux there are no groups.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            version, mount = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, mount = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        # Inside a container the path may be that of the host and not exist here. The loop then
        # still reaches the mount point, which is the container's own group.
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(mount):
                yield version, directory
