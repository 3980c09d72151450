#!/usr/bin/env python3
"""Several copies over the same connections: several_copies.py HOST FOLDER NAME...

Sends each NAME to FOLDER at HOST, then fetches FOLDER/*.log. Logs in once, not once a copy.
Read next: nightly_push.py.
"""

import sys

import pscp


def report(what: str, result: pscp.Result) -> bool:
    print(f"{what!a}: {result.files} copied, {result.files_resumed} there already")
    for failure in result.failures:
        print(f"  {failure.error}: {failure.path!a}: {failure.message}", file=sys.stderr)
        if failure.hint:
            print(f"    {failure.hint}", file=sys.stderr)
    return result.ok


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    host, folder, *names = sys.argv[1:]
    good = []
    try:
        with pscp.Session(host, connections=2, recursive=True) as session:
            for name in names:
                good.append(report(name, session.copy(name, f"{host}:{folder}/", raises=False)))
            good.append(report("logs", session.copy(f"{host}:{folder}/*.log", ".", raises=False)))
    except pscp.PscpError as error:  # what stops a copy as a whole, such as a lost network
        print(error.text, file=sys.stderr)
        return error.exit_code
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
