#!/usr/bin/env python3
"""Dump a PostgreSQL database into a file on another host: database_dump.py DATABASE HOST:FILE.

The dump has its name there only when pg_dump ended well and all of it arrived.

Read next: docs/streams.md.
"""

import subprocess
import sys

import pscp

# Ended early, it gets a SIGTERM, and leaves nothing.
RECEIVE_SCRIPT = """
trap 'rm -f "$1.new"' EXIT TERM
cat > "$1.new" && mv "$1.new" "$1"
"""
RECEIVE = ["sh", "-c", RECEIVE_SCRIPT, "sh"]


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    database, (host, _, path) = sys.argv[1], sys.argv[2].partition(":")
    try:
        with pscp.Session(host) as session, session.pipe_to([*RECEIVE, path]) as stream:
            # An exception in here ends the command over there before its input does.
            subprocess.run(["pg_dump", "--format=custom", database], stdout=stream, check=True)
    except subprocess.CalledProcessError as error:
        print(f"pg_dump failed with {error.returncode}: nothing was stored", file=sys.stderr)
        return 1
    except pscp.PscpError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
