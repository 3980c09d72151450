#!/usr/bin/env python3
"""A tree of datasets, pulled: recursive_pull.py HOST:POOL/DATASET POOL/DATASET [PATTERN...].

What matches a PATTERN is left out. Shows how far it is, then what came of each dataset.
Read next: docs/zfs.md.
"""

import sys

import pscp


def show(now: pscp.Counters) -> None:
    print(f"\r{now.bytes_done / 1e6:,.1f} MB", end="", file=sys.stderr, flush=True)


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, dest, *patterns = sys.argv[1:]
    try:
        result = pscp.replicate(
            source, dest, recursive=True, exclude=patterns, parallel=4, progress=show, raises=False
        )
    except pscp.PscpError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code
    print(file=sys.stderr)
    for sent in sorted(result.datasets, key=lambda sent: sent.dest):
        since = f"since {sent.base}" if sent.base else "in full" if sent.streams else "as it was"
        print(f"{sent.dest}@{sent.snapshot}: {since}, {sent.bytes} bytes")
    for failure in result.failures:
        told = filter(None, (f"{failure.path}: {failure.message}", failure.hint))
        print(*told, sep="\n", file=sys.stderr)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
