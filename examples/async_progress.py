#!/usr/bin/env python3
"""A copy in an asyncio program: async_progress.py SECONDS SOURCE HOST:FOLDER.

Shows how far it is, and gives up after SECONDS; what has landed by then is kept for the next time.
Read next: several_copies.py.
"""

import asyncio
import sys

import pscp


async def push(limit_s: float, source: str, destination: str) -> pscp.Result:
    async with asyncio.timeout(limit_s):  # its end cancels this task, and that ends the copy
        async with pscp.aio.copying(
            source, destination, archive=True, batch=True, raises=False
        ) as copying:
            async for now in copying:
                print(f"{now.bytes_done + now.bytes_resumed:,} of {now.bytes_total:,} bytes")
    return copying.result


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        result = asyncio.run(push(float(sys.argv[1]), *sys.argv[2:]))
    except TimeoutError:
        print("not all of it in time; the next run goes on from here", file=sys.stderr)
        return 1
    except pscp.PscpError as error:
        print(error.text, file=sys.stderr)
        return error.exit_code
    for failure in result.failures:
        print(f"{failure.path!a}: {failure.message}", file=sys.stderr)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
