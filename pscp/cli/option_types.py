"""Adds options of a kind to a parser: sizes, numbers and times.

Not here: which options there are (arguments.py, copy_arguments.py), how values are read
(../values.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from pscp.values import parse_number, parse_seconds, parse_size


def size(group: argparse._ArgumentGroup, short: str, long: str, dest: str, help: str) -> None:
    names = [name for name in (short, long) if name]
    read: Callable[[str], int] = partial(parse_size, what="/".join(names))
    group.add_argument(*names, metavar="SIZE", dest=dest, type=read, help=help)


def number(
    group: argparse._ArgumentGroup, short: str, long: str, dest: str, *, metavar: str, help: str
) -> None:
    names = [name for name in (short, long) if name]
    read: Callable[[str], int] = partial(parse_number, what="/".join(names))
    group.add_argument(*names, metavar=metavar, dest=dest, type=read, help=help)


def seconds(group: argparse._ArgumentGroup, long: str, dest: str, help: str) -> None:
    read: Callable[[str], int] = partial(parse_seconds, what=long)
    group.add_argument(long, metavar="TIME", dest=dest, type=read, help=help)
