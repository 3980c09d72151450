#!/usr/bin/env python3
"""Copy a folder and show how far it is: copy_folder.py SOURCE DEST, either of them HOST:PATH.

DEST/, with the slash, is a folder to copy into, so that the same line gives the same place again.
Read next: several_copies.py.
"""

import sys

import pscp


def show(now: pscp.Counters) -> None:
    """Called about ten times a second, and once at the end."""
    there = now.bytes_done + now.bytes_resumed
    more = "" if now.plan_complete else " or more"  # the walk finds files while others are copied
    print(f"\r{there:,} of {now.bytes_total:,}{more} bytes", end=" ", file=sys.stderr, flush=True)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, destination = sys.argv[1:]
    try:
        result = pscp.copy(
            source, destination, recursive=True, preserve=True, progress=show, raises=False
        )
    except pscp.PscpError as error:  # nothing could be copied; a result says what single files met
        print(f"\n{error.text}", file=sys.stderr)
        return error.exit_code
    print(file=sys.stderr)
    for failure in result.failures:
        print(f"not copied: {failure.path!a}: {failure.message}", file=sys.stderr)
    there = result.files_resumed + result.files_unchanged
    print(f"{result.files} copied, {there} were there, {result.seconds:.1f} s")
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
