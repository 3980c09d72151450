#!/usr/bin/env python3
"""For cron: nightly_push.py SOURCE HOST:FOLDER. Silent when all is well, so cron sends no mail.

SOURCE becomes FOLDER/SOURCE every night; FOLDER is made the first time. Whatever went wrong is on
stderr. What a night could not finish, the next one goes on with.
Read next: newest_files.py.
"""

import sys
import time

import pscp

PATIENCE_S = (60, 600)  # pauses before the second and the third attempt


def push(source: str, destination: str) -> None:
    """Raises PscpError when this attempt did not copy everything."""
    if not destination.endswith((":", "/")):
        destination += "/"  # a folder to copy into, whether it is there or not
    pscp.copy(source, destination, archive=True, batch=True)  # batch: never prompt


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    for pause_s in (*PATIENCE_S, None):
        try:
            push(*sys.argv[1:])
            return 0
        except pscp.PscpError as error:
            if pause_s is None or not error.retry:
                is_of_files = isinstance(error, pscp.FilesFailed)  # its hint is for programs
                print(error.message if is_of_files else error.text, file=sys.stderr)
                return error.exit_code
            time.sleep(pause_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
