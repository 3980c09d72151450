"""The command pscp-zfs: argv becomes Settings and Options, an outcome words and an exit code.

Not here: the options' letters and help (../options/zfs_arguments.py), what a replication does
(zfs/replicate.py).
Read next: zfs/replicate.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from pscp.cli.closing import conclude, not_done, rows
from pscp.cli.copy import OtherCommand
from pscp.cli.run_log import run_command, shown_run
from pscp.ground.errors import StreamCut, UsageError
from pscp.ground.locations import Location
from pscp.options.keywords import as_typed
from pscp.options.options import Options
from pscp.options.zfs_arguments import USAGE, make_parser
from pscp.progress.progress import NO_CIPHER, count, format_bytes, format_duration
from pscp.zfs.names import check_ends, parse_place
from pscp.zfs.replicate import Replicated, replicate
from pscp.zfs.settings import Settings

_ITSELF = OtherCommand(name="pscp-zfs")
_HINT = StreamCut.hint  # there may be no resume tokens
_HAS_SNAPSHOT = re.compile(r"[@#][^/]*$")  # or a bookmark; USER@HOST: has a dataset behind it
_SETTINGS = {each.name for each in fields(Settings)}


class Command(NamedTuple):
    """A command line that makes sense."""

    source: Location
    dest: Location
    settings: Settings
    options: Options


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    return run_command("pscp-zfs", make_parser, lambda words: run(parse(words), words), argv)


def parse(argv: Sequence[str]) -> Command:
    """Read a command line, or raise UsageError; contacts nothing."""
    values, texts = make_parser().read(argv)
    settings = {name: value for name, value in values.items() if name in _SETTINGS}
    options = {name: value for name, value in values.items() if name not in _SETTINGS}
    if len(texts) != 2:
        config_file = values.get("config_file", "")
        raise UsageError("one SOURCE and one DEST are needed", _as_meant(texts, config_file))
    source, dest = (parse_place(text) for text in texts)
    check_ends(source, dest)
    with as_typed():
        return Command(source, dest, Settings(**settings), Options(**options))


def _as_meant(texts: Sequence[str], config_file: str) -> str:
    """Return what to type in place of what zfs send and zfs receive take; else the usage."""
    if len(texts) == 1 and config_file and not os.path.exists(config_file):
        return "-F FILE is an ssh_config here; what zfs receive -F does is --force-rollback"
    if len(texts) > 2 and any(_HAS_SNAPSHOT.search(text) for text in texts):
        return (
            "leave the snapshot out: the newest that both ends have begins the increment by itself "
            "(-i here: without those in between)"
        )
    return f"usage: {USAGE}"


def run(command: Command, words: Sequence[str], by: OtherCommand = _ITSELF) -> int:
    options = command.options
    with shown_run(by.name, words, options, _HINT) as (shown, kept):
        reporter = by.reporter(shown)
        ends, settings = (command.source, command.dest), command.settings
        result = replicate(
            *ends, options=options, settings=settings, reporter=reporter, raises=False
        )
        reporter.stop(None)
        conclude(summary(result, command), rows(table(result)), options, kept)
    return 0 if result.ok else 1


def summary(result: Replicated, command: Command) -> str:
    """Return, for example: 3 datasets, 5 streams, 1.2 GB in 10.4 s (115.4 MB/s), 1 resumed."""
    if command.options.dry_run:
        foreseen = _foreseen(result, command.settings)
        return ", ".join([f"nothing was changed (dry run); {foreseen}", *not_done(result)])
    rate = format_bytes(result.bytes / result.seconds if result.seconds > 0 else 0)
    pruned = sum(len(each.pruned) for each in result.datasets)
    resumed = sum(each.resumed for each in result.datasets)
    return ", ".join(
        [
            count(result.files, "dataset"),
            count(sum(each.streams for each in result.datasets), "stream"),
            f"{format_bytes(result.bytes)} in {format_duration(result.seconds)} ({rate}/s)",
            *([f"{resumed} resumed"] if resumed else []),
            *([f"{count(pruned, 'snapshot')} pruned"] if pruned else []),
            *not_done(result),
            *([NO_CIPHER] if command.options.plane == "plain" else []),
        ]
    )


def _foreseen(result: Replicated, settings: Settings) -> str:
    """Return the bytes that a dry run foresees; zfs tells no size of what is no snapshot yet."""
    known = f"it would have been {format_bytes(result.bytes)}"
    if not result.unknown_sizes:
        return known
    unknown = "not known yet" if settings.snapshot_name else "not known"
    if not result.bytes:
        return f"the size is {unknown}"
    return f"{known}, and {count(result.unknown_sizes, 'stream')} of a size {unknown}"


def table(result: Replicated) -> dict[str, object]:
    """Return what --stats shows."""
    pruned = sum(len(each.pruned) for each in result.datasets)
    return {
        "datasets": result.files,
        "datasets unchanged": sum(not each.streams for each in result.datasets),
        "datasets resumed": sum(each.resumed for each in result.datasets),
        "datasets left out": result.files_left_out,
        "streams": sum(each.streams for each in result.datasets),
        "bytes": result.bytes,
        "snapshot taken": result.snapshot or "none",
        "snapshots pruned": pruned,
        "seconds": f"{result.seconds:.3f}",
        "failures": len(result.failures),
    }
