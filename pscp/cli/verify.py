"""The command pscp-verify: argv becomes a call of verify(), what differs words and an exit code.

Not here: what is compared and repaired (../calls/verifying.py), the options of connections
(../options/arguments.py).
Read next: ../calls/verifying.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from pscp.calls.verifying import WANTED, Verified, VerifyTerms, verify
from pscp.cli.closing import conclude, is_told, rows
from pscp.cli.run_log import run_command, shown_run
from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, parse_location
from pscp.ground.terminal_text import print_line, printable, write_line
from pscp.options.arguments import Parser, with_tables
from pscp.options.keywords import as_typed
from pscp.options.options import Options
from pscp.progress.progress import count, format_bytes, format_duration

USAGE = "pscp-verify [options] MANIFEST [HOST:]ROOT"
DESCRIPTION = (
    "Read the files below ROOT again, where they lie, over several SSH connections at once, and "
    "list what differs from MANIFEST, a file here, or - for standard input, that pscp "
    "--manifest or sha256sum has written."
)
EPILOG = (
    "A signature MANIFEST.sig is verified before anything is read. Exit codes: 0 all is as listed, "
    "1 something differs, or the answer could not be written, 2 wrong use, or a manifest or a "
    "signature that is not right, 3 no connection, 4 broken protocol, 130 and 143 ended by a "
    "signal."
)


class Command(NamedTuple):
    """A command line that makes sense."""

    manifest: str
    root: Location
    wanted: dict[str, Any]  # keywords of verify()
    options: Options
    json: bool


class VerifyArguments:
    """The options of pscp-verify that are no keywords of verify()."""

    json: bool = WANTED.flag("--json", "write what differs as one JSON object on stdout")


def make_parser() -> Parser:
    return with_tables(
        Parser("pscp-verify", USAGE, DESCRIPTION, EPILOG), VerifyTerms, VerifyArguments
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    return run_command("pscp-verify", make_parser, lambda words: run(parse(words), words), argv)


def parse(argv: Sequence[str]) -> Command:
    """Read a command line, or raise UsageError; opens and contacts nothing."""
    values, texts = make_parser().read(argv, '; a path that starts with "-" goes after --')
    as_json = values.pop("json", False)
    wanted = {
        each.name: values.pop(each.name) for each in fields(VerifyTerms) if each.name in values
    }
    if len(texts) != 2:
        raise UsageError("one MANIFEST and one ROOT are needed", f"usage: {USAGE}")
    if "signer" in wanted and "allowed_signers" not in wanted:
        raise UsageError("--signer says nothing without --allowed-signers")
    manifest = "/dev/stdin" if texts[0] == "-" else texts[0]
    with as_typed():
        return Command(manifest, parse_location(texts[1]), wanted, Options(**values), as_json)


def run(command: Command, words: Sequence[str]) -> int:
    options = command.options
    hint = "nothing was changed, but what was repaired already"
    with shown_run("pscp-verify", words, options, hint) as (reporter, kept):
        ends, wanted = (command.manifest, command.root), command.wanted
        found = verify(*ends, options, reporter=reporter, **wanted)
        reporter.stop(None)
        show(found, command)
        conclude(summary(found, command), _table(found), options, kept)
    return 0 if found.ok else 1


def show(found: Verified, command: Command) -> None:
    """Write what differs on stdout, and on stderr whether the manifest is not whole."""
    options = command.options
    if command.json:
        print_line(json.dumps({**asdict(found), "ok": found.ok}))
    elif options.progress != "json":
        for each in found.differences:
            print_line(f"{each.path}: {each.message}")
        for path in found.repaired if not options.quiet else ():
            print_line(f"{path}: repaired")
    missing = sum(each.what == "missing" for each in found.differences)
    if is_told(options) and 0 < found.files == missing:
        where = "ROOT is what DEST was, or the folder above it if the copy gave it its name"
        if all(d.path.startswith("data/") for d in found.differences if d.what == "missing"):
            where += "; of a bag it is what has the folder data"
        text = f"every file is missing below {command.root.text}: {where}"
        write_line(sys.stderr, f"pscp-verify: {text}")
    if is_told(options) and not found.is_whole:
        write_line(
            sys.stderr,
            f"pscp-verify: {command.manifest} is not whole: when it was made, some files had "
            "failed, and are not in it",
        )


def _table(found: Verified) -> list[str]:
    left_out = ("differences", "repaired", "signer", "is_whole")
    shown = (each.name for each in fields(found) if each.name not in left_out)
    return rows({name: getattr(found, name) for name in shown})


def summary(found: Verified, command: Command) -> str:
    """Return, for example: all 12 files below host:b are as listed, 2.4 GB in 3.1 s, not signed."""
    root = command.root.text
    rate = f"{format_bytes(found.bytes)} in {format_duration(found.seconds)}"
    if found.ok:
        outcome = f"{count(found.files, 'file')} below {root} as listed"
    else:
        strangers = sum(each.what == "not listed" for each in found.differences)
        closed = sum(each.path.endswith("/") for each in found.differences)
        differing = f"{found.differing - strangers - closed} of {count(found.files, 'file')}"
        outcome = f"{differing} below {root} not as listed"
        outcome += f", {strangers} beside them" if strangers else ""
        outcome += f", {count(closed, 'folder')} that could not be read" if closed else ""
    repaired = f", {len(found.repaired)} repaired" if found.repaired else ""
    signed = f"signed by {printable(found.signer)}" if found.signer else "not signed"
    return f"{outcome}{repaired}, {rate}, {signed}"
