"""Commands of processes that end with the one that starts them, even if that is killed."""

import sys

# Option 1 of prctl is PR_SET_PDEATHSIG.
_CODE = """
import ctypes, signal, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, signal.SIGKILL)
{}
sys.exit(main())
"""


def child_command(imports_main: str) -> tuple[str, ...]:
    """The command that runs the ``main`` that this line of Python imports."""
    return (sys.executable, "-c", _CODE.format(imports_main))
