"""The remote command: one fixed line for any login shell (sh, csh, fish).

It looks for python3 and has it run what follows on standard input: the program's length in 8
digits, then the program, compressed, in parts with a NUL between; the first runs the others. No
path and no user text is in it.

Not here: the program (../connect/bootstrap.py).
"""

from __future__ import annotations

NO_PYTHON_STATUS = 97  # the command's exit status where there is no python3
OLD_PYTHON_STATUS = 98  # and where it is older than 3.6

# Where python3 is not in the PATH of a non-interactive login: FreeBSD, RHEL's own, Homebrew.
_PYTHONS = "python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python " + (
    " ".join(f"python3.{minor}" for minor in range(14, 5, -1)) + " /opt/homebrew/bin/python3"
)


def command() -> str:
    """Return the command line. A BufferedReader of one byte reads not a byte too many."""
    stage = (
        f"import sys;sys.version_info<(3,6) and sys.exit({OLD_PYTHON_STATUS});import io,zlib;"
        "r=io.BufferedReader(io.FileIO(0,closefd=False),1).read;"
        "parts=zlib.decompress(r(int(r(8)))).split(bytes(1));exec(parts[0])"
    )
    return (
        f"exec sh -c 'for p in {_PYTHONS};do command -v $p >/dev/null 2>&1&&"
        f'exec $p -IS -c "{stage}";done;exit {NO_PYTHON_STATUS}\''
    )
