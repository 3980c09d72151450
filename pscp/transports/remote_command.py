"""The remote command: one fixed line for any login shell (sh, csh, fish).

It looks for python3, says that it has found it (STARTED), and has it run the program on standard
input: its length in 8 digits, then the program, compressed, in parts with a NUL between. The first
part runs the others. The command holds no path and no text of the user's.

Not here: the program (../connect/agent_program.py).
"""

from __future__ import annotations

NO_PYTHON_STATUS = 97  # the command's exit status if there is no python3
OLD_PYTHON_STATUS = 98  # the command's exit status if python3 is older than 3.6
STARTED = b"pscp-agent\n"  # written before python3 runs: the login is over, and standard input read

# The PATH of a non-interactive login may lack FreeBSD's, RHEL's or Homebrew's python3.
PYTHONS = "python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python " + (
    " ".join(f"python3.{minor}" for minor in range(14, 5, -1)) + " /opt/homebrew/bin/python3"
)


def command() -> str:
    """Return the command line. It reads not one byte beyond the program (BufferedReader of 1)."""
    stage = (
        f"import sys;sys.version_info<(3,6) and sys.exit({OLD_PYTHON_STATUS});import io,zlib;"
        "r=io.BufferedReader(io.FileIO(0,closefd=False),1).read;"
        "parts=zlib.decompress(r(int(r(8)))).split(bytes(1));exec(parts[0])"
    )
    return (
        f"exec sh -c 'for p in {PYTHONS};do command -v $p >/dev/null 2>&1&&"
        f'{{ echo {STARTED.decode().strip()};exec $p -IS -c "{stage}";}};done;'
        f"exit {NO_PYTHON_STATUS}'"
    )
