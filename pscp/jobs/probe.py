"""What --check asks of either end, as a program: Python 3.6, and nothing else.

    python3 -IS -c PROGRAM PATH

prints a JSON object: the version, the time, and of the folder that PATH is or would be in its room,
and whether it can be written in. Nothing is changed.

Not here: who asks (check.py).
"""

import json
import os
import sys
import time


def look(path: str) -> "dict[str, object]":
    folder = os.path.realpath(os.path.expanduser(path) or ".")
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    room = os.statvfs(folder)
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],  # noqa: UP031
        "time_s": time.time(),
        "folder": os.fsencode(folder).decode("utf-8", "backslashreplace"),
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "has_names_left": room.f_favail > 0 or room.f_files == 0,  # 0: it does not count them
        "is_writable": os.access(folder, os.W_OK | os.X_OK),
    }


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1])))
