#!/usr/bin/env python3
"""Fetch what is newer there than here: newest_files.py 'HOST:logs/*.gz' FOLDER

The pattern is matched at the far end, so quote it. Prints what came, one name a line.
Read next: ../docs/options.md.
"""

import sys
from pathlib import Path

import pscp


def mtimes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    pattern, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    before = mtimes(folder)
    try:
        # update leaves out what is as new here; preserve keeps the times that it goes by
        result = pscp.copy(pattern, f"{folder}/", update=True, preserve=True, raises=False)
    except pscp.PscpError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code
    for failure in result.failures:
        print(f"not copied: {failure.path!a}: {failure.message}", file=sys.stderr)
    for name, mtime_ns in sorted(mtimes(folder).items()):
        if before.get(name) != mtime_ns:
            print(ascii(name)[1:-1])
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
