"""The commands as their man pages and completions see them: parsers, words, values of options.

Not here: the pages (manuals.py), the completions (completions.py).
Read next: manuals.py, completions.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from pscp.cli import pipe, run, verify
from pscp.jobs.toml.job import IF_RUNNING
from pscp.options import arguments, zfs_arguments
from pscp.options.options import CHOICES
from pscp.options.zfs_options import PRUNABLE

# What the value of an option may be, by the name of its field.
VALUES = {**CHOICES, "if_running": IF_RUNNING, "prune": PRUNABLE, "reports": run.FORMS}
# What else it is, by its metavar (or its field, where the metavar says little): files, hosts,
# programs, ciphers. Others are for the user to know.
KINDS = {"FILE": "file", "KEY": "file", "HOST": "host", "PROGRAM": "program", "cipher": "cipher"}


@dataclass(frozen=True)
class Command:
    """One command of the package."""

    name: str
    summary: str  # as apropos(1) lists it
    parser: argparse.ArgumentParser
    usages: tuple[str, ...]
    # What its arguments are: "places" (files and HOST:), "hosts", "datasets" (and HOST:), "jobs" or
    # "folders" (and hosts).
    arguments: str
    example: str  # the name of the block in README.md that shows it, or nothing


@dataclass(frozen=True)
class Option:
    """An option, as a shell completes it."""

    shorts: tuple[str, ...]
    longs: tuple[str, ...]
    help: str
    takes_value: bool
    metavar: str
    values: tuple[str, ...]
    kind: str  # one of those in KINDS, or empty
    repeats: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.shorts, *self.longs)


def commands() -> list[Command]:
    return [
        Command(
            "pscp", "copy files over several SSH connections at once", arguments.make_parser(),
            usages("pscp", arguments.USAGE), "places", "everyday",
        ),
        Command(
            "pscp-pipe", "send a stream to a command over several SSH connections",
            pipe.make_parser(), usages("pscp-pipe", pipe.USAGE), "hosts", "pipes",
        ),
        Command(
            "pscp-run", "run the copies that a file lists: pushes that nobody watches",
            run.make_parser(), usages("pscp-run", run.USAGE), "jobs", "",
        ),
        Command(
            "pscp-verify", "compare files with a manifest, and repair them",
            verify.make_parser(), usages("pscp-verify", verify.USAGE), "places", "",
        ),
        Command(
            "pscp-zfs", "replicate ZFS datasets over several SSH connections",
            zfs_arguments.make_parser(), usages("pscp-zfs", zfs_arguments.USAGE), "datasets",
            "zfs_readme",
        ),
    ]  # fmt: skip


def usages(name: str, usage: str) -> tuple[str, ...]:
    """The ways to call it, each with the command's name: USAGE joins them by ", or "."""
    ways = usage.split(", or ")
    return tuple(way if way.startswith(name) else f"{name} {way}" for way in ways)


def groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """The groups of options, each with its title; what is not shown in --help is left out."""
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        if shown:
            yield str(group.title), shown


def options(parser: argparse.ArgumentParser) -> list[Option]:
    actions = [each for _, group in groups(parser) for each in group if each.option_strings]
    return [as_option(each) for each in actions]


def value_of(action: argparse.Action) -> str:
    """What stands for the option's value, or values; empty for a flag."""
    if action.nargs == 0:
        return ""
    named = action.metavar or action.dest.upper()
    return " ".join(named) if isinstance(named, tuple) else named


def as_option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    metavar = value_of(action)
    return Option(
        shorts=tuple(name for name in action.option_strings if not name.startswith("--")),
        longs=tuple(name for name in action.option_strings if name.startswith("--")),
        help=str(action.help),
        takes_value=takes_value,
        metavar=metavar,
        values=tuple(VALUES.get(action.dest, ())) if takes_value else (),
        kind=KINDS.get(action.dest) or KINDS.get(metavar, ""),
        repeats=type(action).__name__ in ("_AppendAction", "_ExtendAction"),
    )
