"""What --check asks about folders, as a program for either end: Python 3.6, and nothing else.

    python3 -IS -c PROGRAM PATH...

prints a JSON object: the version, the time, and for each path the folder that is or would be above
what is written there, its room, and why nothing can be written in it ("" if it can). It leaves
nothing behind: what it tries is a file without a name.

Not here: who asks (check.py).
"""

import errno
import json
import os
import sys
import time


def find_folder(path: str) -> str:
    """Return the path if it is a folder, else the nearest one above that is."""
    path = os.path.realpath(os.path.expanduser(path) or ".")
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def why_not_writable(folder: str) -> str:
    try:
        if hasattr(os, "O_TMPFILE"):
            try:
                os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
                return ""
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        return "" if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        return error.strerror or str(error)


def look(path: str) -> "dict[str, object]":
    folder = find_folder(path)
    room = os.statvfs(folder)
    return {
        "folder": folder,
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "free_files": room.f_favail if room.f_files else None,
        "why_not_writable": why_not_writable(folder),
    }


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "python": "%d.%d.%d" % sys.version_info[:3],  # noqa: UP031
                "folders": [look(path) for path in sys.argv[1:]],
                "time_s": time.time(),
            }
        )
    )
