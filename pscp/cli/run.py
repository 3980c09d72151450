"""The command pscp-run: which jobs of which file, and what is to be done with them.

Not here: the file (../jobs/toml/config.py), what is done with its jobs (run_jobs.py).
Read next: ../jobs/toml/config.py.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pscp.cli.run_log import run_command, without_mistakes
from pscp.ground.errors import UsageError
from pscp.ground.libraries import check_installed
from pscp.jobs.toml.job import IF_RUNNING
from pscp.options.arguments import Parser

if TYPE_CHECKING:
    from pscp.jobs.toml.config import Config

USAGE = "pscp-run [options] [JOB...]"
DESCRIPTION = (
    "Run the jobs of a file: what is copied where, with what options, when, and what follows. "
    "JOB is a job's name, or a pattern of names (*, ?); without one, all jobs are run."
)
EPILOG = (
    "The file is that of --config, else $XDG_CONFIG_HOME/pscp/jobs.toml (~/.config if unset), "
    "else /etc/pscp/jobs.toml. It is checked whole before anything is run. Exit codes: 0 all "
    "done, 1 something failed, 2 wrong use, a mistake in the file or a refused login, 3 no "
    "connection, 5 cut, 6 another run of the job is under way, 7 nothing to do, 130 and 143 ended "
    "by a signal."
)
_PACKAGES = ("cronsim", "jinja2", "prometheus_client", "pydantic", "pygal")  # of the extra jobs
FORMS = ("json", "text", "html")  # of a report


def make_parser() -> Parser:
    parser = Parser("pscp-run", USAGE, DESCRIPTION, EPILOG)
    group = parser.add_argument_group("which jobs, and how")
    group.add_argument("--config", metavar="FILE", help="the file of jobs")
    group.add_argument(
        "--if-running",
        metavar="HOW",
        choices=IF_RUNNING,
        help="while another run of a job is under way (what the job says): skip, wait or fail",
    )
    group.add_argument(
        "--report",
        dest="reports",
        metavar=("FORM", "FILE"),
        action="append",
        nargs=2,
        help="write a report of all that was run: json, text or html",
    )
    flag = partial(group.add_argument, action="store_true")
    flag("-v", "--verbose", help="say what is done, and how each destination fares")
    add_what_is_no_run(parser.add_argument_group("instead of running them"))
    return parser


def add_what_is_no_run(group: argparse._ArgumentGroup) -> None:
    alone = group.add_mutually_exclusive_group().add_argument
    for letters, what, help in (
        ((), "list", "list the jobs: what is copied where, and what has to be done before"),
        ((), "explain", "show the lines of pscp, for bash, that a job amounts to"),
        (("-n",), "dry-run", "list what would be copied, and copy nothing"),
        ((), "check", "ask every destination whether it is ready, and copy nothing"),
        ((), "status", "show how the last runs went, and what is behind"),
    ):
        alone(*letters, f"--{what}", dest="what", action="store_const", const=what, help=help)
    flag = partial(group.add_argument, action="store_true")
    flag("--json", help="with --status: as JSON")
    group.add_argument("--html", metavar="FILE", help="with --status: write it as a page")
    flag("-h", "--help", help="show this and exit")
    flag("--version", help="show the version and exit")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    return run_command("pscp-run", make_parser, _act, argv)


def _act(words: list[str]) -> int:
    given, patterns = make_parser().read(words)
    what = given.pop("what", "run")
    if {"json", "html"} & given.keys() and what != "status":
        raise UsageError("--json and --html go with --status")
    if what != "run" and "reports" in given:
        raise UsageError("--report is of jobs that are run")
    for form, _ in given.get("reports", ()):
        if form not in FORMS:
            raise UsageError(f"--report {form}: a report is one of {', '.join(FORMS)}")
    for text in patterns:
        if text.endswith(".toml") and "config" not in given and os.path.isfile(text):
            raise UsageError(f"{text} is no job but a file", f"--config {text} has it read")
    config = read_config(given.get("config"))
    if config is None:
        return UsageError.exit_code
    from pscp.cli.run_jobs import act  # here: read_config() says what it needs

    return act(what, config, chosen(patterns, config.jobs), given)


def read_config(given: str | None) -> Config | None:
    """Read the file of jobs; print its mistakes, a line each, and return None if it has any."""
    check_installed(*_PACKAGES)  # now: some of them are loaded late in the night
    from pscp.jobs.toml.config import find_config, load

    return without_mistakes("pscp-run", load, find_config() if given is None else given)


def chosen(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the names that any pattern matches, all without one. Raises UsageError."""
    known = list(names)
    found = set[str]() if patterns else set(known)
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching:
            close = difflib.get_close_matches(pattern, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"jobs: {', '.join(known)}"
            raise UsageError(f"there is no job {pattern!r}", hint)
        found.update(matching)
    return [name for name in known if name in found]
