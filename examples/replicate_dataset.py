#!/usr/bin/env python3
"""For cron: replicate_dataset.py POOL/DATASET HOST:POOL/DATASET. Takes a snapshot and sends it.

The last 14 of the snapshots that it took are kept. Silent when all is well; what is cut short, the
next run goes on with. Read next: recursive_pull.py.
"""

import sys

import pscp


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        result = pscp.replicate(
            *sys.argv[1:], snapshot_name="daily-{time}", keep_last=14, batch=True, raises=False
        )
    except pscp.PscpError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code
    for failure in result.failures:
        told = filter(None, (f"{failure.path}: {failure.message}", failure.hint))
        print(*told, sep="\n", file=sys.stderr)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
