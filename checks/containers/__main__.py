"""Builds the images and uses them as their users do: ``make container-check``.

It needs Docker, or Podman on a Linux machine as root.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from checks.containers import compose, engine, images, kubernetes, service
from checks.containers.engine import Engine, EngineError

ITEMS: dict[str, Callable[[Engine], str]] = {
    "content": images.content,
    "hardened": service.hardened,
    "cpu-quota": service.cpu_quota,
    "memory-limit": service.memory_limit,
    "health": service.health,
    "sigterm": service.stop,
    "sigkill": service.kill,
    "ipv6": service.ipv6,
    "hub": service.hub,
    "export": service.export,
    "compose": compose.compose,
    "replicas": compose.replicas,
    "kubernetes": kubernetes.play,
}


def main() -> int:
    """Run the items; the exit code is 1 if one fails, and with --required if none can run."""
    parser = argparse.ArgumentParser(prog="container-check", description=__doc__)
    parser.add_argument("--only", action="append", choices=ITEMS, help="may be repeated")
    parser.add_argument(
        "--gpu", action="store_true", help="also build the image for GPUs, and start it without one"
    )
    parser.add_argument("--required", action="store_true", help="fail where no container can run")
    options = parser.parse_args()
    with engine.found() as found:
        if isinstance(found, str):
            return _not_run(found, options.required)
        try:
            base = images.base_image(found)
            found.run("run", "--rm", *engine.HARDENED, base, "true")
        except EngineError as error:
            return _not_run(str(error), options.required)
        targets = ("cpu", "export", *(("gpu",) if options.gpu else ()))
        builds = {f"build {name}": partial(images.build, base, name) for name in targets}
        builds["build tools"] = partial(images.build_tools, base)
        failed = sum(not _done(name, build, found) for name, build in builds.items())
        if not failed:
            failed = sum(not _done(name, ITEMS[name], found) for name in options.only or ITEMS)
            gpu = service.gpu if options.gpu else lambda _: "not run: 2.9 GB; --gpu runs it"
            failed += not _done("gpu", gpu, found)
    return int(failed > 0)


def _not_run(reason: str, required: bool) -> int:
    print(f"container-check: not run: {' '.join(reason.split())}")
    return int(required)


def _done(name: str, item: Callable[[Engine], str], found: Engine) -> bool:
    """Run an item and print its line; whether it succeeded."""
    started = time.perf_counter()
    try:
        result, succeeded = item(found), True
    except (AssertionError, EngineError, OSError) as error:
        result, succeeded = f"FAILED: {error}", False
    seconds = time.perf_counter() - started
    print(f"container-check: {name} ({seconds:.0f} s): {result}", flush=True)
    return succeeded


if __name__ == "__main__":
    sys.exit(main())
