"""What scripts/soak runs: python -m soak pairs | wild | sessions | model | mutants | table."""

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
    sessions = kinds.add_parser("sessions")
    sessions.add_argument("seconds", type=float)
    sessions.add_argument("--seed", type=int)
    model = kinds.add_parser("model")
    model.add_argument("seconds", type=float)
    model.add_argument("--seed", type=int)
    model.add_argument("--most", type=int, default=0)
    mutants = kinds.add_parser("mutants")
    mutants.add_argument("examples", type=int, nargs="?", default=400)
    mutants.add_argument("--only")
    mutants.add_argument("--directed", action="store_true")
    table = kinds.add_parser("table")
    table.add_argument("seconds", type=float, nargs="?", default=120.0)
    given = vars(parser.parse_args())
    code: int = importlib.import_module(f"soak.{given.pop('kind')}").run(**given)
    return code


if __name__ == "__main__":
    sys.exit(main())
