"""What scripts/soak runs: python -m soak pairs | wild SECONDS | table."""

from __future__ import annotations

import argparse
import importlib
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak")
    kinds = parser.add_subparsers(dest="kind", required=True)
    pairs = kinds.add_parser("pairs")
    pairs.add_argument("--every", type=int, default=1)
    pairs.add_argument("--only", type=int)
    wild = kinds.add_parser("wild")
    wild.add_argument("seconds", type=float)
    wild.add_argument("--seed", type=int)
    table = kinds.add_parser("table")
    table.add_argument("seconds", type=float, nargs="?", default=120.0)
    given = vars(parser.parse_args())
    code: int = importlib.import_module(f"soak.{given.pop('kind')}").run(**given)
    return code


if __name__ == "__main__":
    sys.exit(main())
