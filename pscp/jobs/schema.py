"""What jobs.toml may say: the keys of its tables, as pydantic checks them.

The options of pscp and pscp-zfs are those of their parsers, by their long names; a table has each
as the words of a command line.

Not here: what a value may be (kinds.py), what goes together, and where a mistake is (config.py).
Read next: kinds.py, config.py.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # typing's, for pydantic, from Python 3.12 on

from pscp.cli import arguments, zfs_arguments
from pscp.jobs import kinds
from pscp.option_bounds import CHOICES
from pscp.options import Options
from pscp.zfs.settings import Settings

PARSERS = {False: arguments.make_parser(), True: zfs_arguments.make_parser()}  # True: of datasets
_ACTIONS = {of: parser._option_string_actions for of, parser in PARSERS.items()}

_SHOWS = "it tries or shows something, and is for the command line"
_TOLD = "what a job did is told by its report, by metrics and the history; pscp-run has -q and -v"
# What makes no sense in a job, with the reason. So does whatever is no field of Options.
REFUSED = {
    **dict.fromkeys(("check", "transfer-test"), _SHOWS),
    **dict.fromkeys(("quiet", "verbose", "itemize", "debug", "progress", "stats"), _TOLD),
    **dict.fromkeys(("log-file", "syslog"), _TOLD),
    "dry-run": "pscp-run --dry-run shows what would be copied",
    "remove-source-files": 'after = "remove" does it, once every destination has the file',
}
# What may differ between the destinations of a job: these groups of options.
_OF_HOSTS = ("how it is sent", "how ssh is run")


class Key(NamedTuple):
    """A key that is no option."""

    kind: Any
    meaning: str
    example: object


SHARED = {
    "destinations": Key(
        kinds.Places, "where it goes, each as a DEST of pscp", ["store1:/vault/", "store2:/vault/"]
    ),
    "limit": Key(
        kinds.Limit,
        "the most to send, as --limit; or a table of it by the time of day (local), with `else` "
        'for the rest, and "none" for no limit',
        {"08:00-20:00": "20M"},
    ),
    "max-duration": Key(kinds.Seconds, "end a run after so long; the next one goes on", "6h"),
    "retry-for": Key(
        kinds.Seconds, "for so long, with growing pauses, try again what may succeed later", "2h"
    ),
    "min-age": Key(kinds.Seconds, "leave files that are younger for the next run", "10min"),
    "settled-for": Key(
        kinds.Seconds, "leave files that were not seen unchanged for so long", "5min"
    ),
    "after": Key(
        kinds.After,
        "what becomes of a source file that every destination has, verified: keep, remove, or "
        "move DIR",
        "remove",
    ),
    "before": Key(
        kinds.Command,
        "run this first, and nothing else if it fails; a text by the shell, a list as it is",
        "mountpoint -q /srv",
    ),
    "after-success": Key(kinds.Command, "run this when all was done", ["touch", "/run/sent"]),
    "after-failure": Key(kinds.Command, "run this when it was not", "logger -p cron.err not sent"),
    "if-running": Key(
        Literal["skip", "wait", "fail"],
        "while another run of the job is under way: skip, wait or fail",
        "skip",
    ),
    "max-hosts": Key(kinds.Hosts, "send to so many destinations at once (all)", 4),
    "report": Key(
        kinds.Reports, "write a report of the run: json, text, html", {"html": "/var/www/sent.html"}
    ),
    "metrics": Key(
        kinds.File,
        "write metrics for node_exporter's textfile collector: its folder, or a file for this job",
        "/var/lib/node_exporter/",
    ),
    "ping": Key(
        kinds.Url,
        "ask this URL at start, success and failure, as healthchecks has it",
        "https://hc-ping.com/UUID",
    ),
    "keep-history": Key(kinds.Seconds, "keep what is known of runs for so long (365d)", "90d"),
}
OWN = {
    "sources": Key(
        kinds.Places,
        "what is copied: files, folders and patterns here, or each a HOST:PATH",
        ["/srv/recordings/*.rec"],
    ),
    "sources-from": Key(kinds.File, "a file that lists sources, one in each line", "list.txt"),
    "sources-command": Key(
        kinds.Command,
        "a command that prints sources, one in each line; a text is run by the shell",
        ["find", "/srv", "-name", "*.rec"],
    ),
    "datasets": Key(kinds.Texts, "ZFS datasets, each as a SOURCE of pscp-zfs", "tank/data"),
    **SHARED,
    "depends-on": Key(kinds.Texts, "jobs to do first, in the same run", "database"),
}
_FOR_FILES = ("min-age", "settled-for", "after")
# Options that name a file, by their names or what stands for their values.
_KINDS = {
    "FILE": kinds.File, "config": kinds.ConfigFile, "program": kinds.Program, "sign": kinds.File,
}  # fmt: skip


class Option(NamedTuple):
    """An option that a job may have."""

    name: str  # without dashes
    action: argparse.Action

    @property
    def repeats(self) -> bool:
        return isinstance(self.action, argparse._AppendAction) or self.name.endswith("clude-from")

    @property
    def kind(self) -> Any:
        if self.action.nargs == 0:
            return bool
        if self.action.dest in CHOICES:
            return Literal[CHOICES[self.action.dest]]
        one = _KINDS.get(self.name) or _KINDS.get(str(self.action.metavar), kinds.Text)
        if self.repeats:
            return kinds.several(one)
        return kinds.Number if self.action.type else one

    def words(self, value: Any, folder: str) -> tuple[str, ...]:
        """Return the option as words of a command line, none of which is its value alone."""
        if isinstance(value, bool):
            return (f"--{self.name}",) if value else ()
        texts = value if isinstance(value, tuple) else (value,)
        found = tuple(f"--{self.name}={text}" for text in texts)
        PARSERS[not is_for(self.name, of_datasets=False)].read(found)
        return found


def every_option() -> dict[str, Option]:
    """Return the options that pscp or pscp-zfs has, by their long names."""
    found = {**_ACTIONS[True], **_ACTIONS[False]}
    names = dict.fromkeys([*_ACTIONS[False], *_ACTIONS[True]])
    return {n[2:]: Option(n[2:], found[n]) for n in names if n.startswith("--")}


def is_for(key: str, *, of_datasets: bool) -> bool:
    """Return whether a key makes sense in a job that has datasets, or in one that has files."""
    if key in OPTIONS:
        return f"--{key}" in _ACTIONS[of_datasets]
    return not (of_datasets and key in _FOR_FILES)


_CHOSEN = {each.name for kind in (Options, Settings) for each in fields(kind)}
OPTIONS = {
    name: option
    for name, option in every_option().items()
    if option.action.dest in _CHOSEN and not {name} & {*REFUSED, *OWN}
}


def _table(name: str, own: dict[str, Key], groups: tuple[str, ...] = ()) -> Any:
    """Return the type of a table with these keys and the options, all or of these groups."""
    keys = {
        key: Annotated[each.kind, Field(description=each.meaning, examples=[each.example])]
        for key, each in own.items()
    }
    for key, option in OPTIONS.items():
        if not groups or option.action.container.title in groups:  # type: ignore[attr-defined]
            words = kinds.after(option.words)
            keys[key] = Annotated[option.kind, words, Field(description=option.action.help)]
    return _closed(name, keys)


def _closed(name: str, keys: dict[str, Any]) -> Any:
    make: Any = TypedDict
    return with_config(kinds.CLOSED)(make(name, keys, total=False))


TABLES = {
    "defaults": _table("Defaults", SHARED),
    "host": _table("Host", {}, _OF_HOSTS),
    "job": _table("Job", OWN),
}
_DESCRIBED = {
    "defaults": (TABLES["defaults"], "for every job that does not say else"),
    "host": (GenericAlias(dict, (str, TABLES["host"])), "for what goes to or from this host"),
    "job": (GenericAlias(dict, (str, TABLES["job"])), "what is copied where, and when"),
}
_SAID = {
    name: Annotated[kind, Field(description=text)] for name, (kind, text) in _DESCRIBED.items()
}
DOCUMENT: TypeAdapter[dict[str, Any]] = TypeAdapter(_closed("jobs.toml", _SAID))
