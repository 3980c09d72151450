"""What jobs.toml may say: its keys as pydantic models, which also make the schema for editors.

The options of pscp and pscp-zfs are those of their parsers, by their long names; a model has each
as the words of a command line.

Not here: how a value is read (kinds.py), what goes together, and where a mistake is (config.py).
Read next: kinds.py, config.py.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)

from pscp.cli import arguments, zfs_arguments
from pscp.jobs import kinds
from pscp.option_bounds import CHOICES
from pscp.options import Options
from pscp.zfs.settings import Settings

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

    kind: kinds.Kind
    meaning: str
    example: object


_SHARED = {
    "destinations": Key(
        kinds.PLACES, "where it goes, each as a DEST of pscp", ["store1:/vault/", "store2:/vault/"]
    ),
    "limit": Key(
        kinds.LIMIT,
        "the most to send, as --limit; or a table of it by the time of day (local), with `else` "
        'for the rest, and "none" for no limit',
        {"08:00-20:00": "20M"},
    ),
    "max-duration": Key(kinds.SECONDS, "end a run after so long; the next one goes on", "6h"),
    "retry-for": Key(
        kinds.SECONDS, "for so long, with growing pauses, try again what may succeed later", "2h"
    ),
    "min-age": Key(kinds.SECONDS, "leave files that are younger for the next run", "10min"),
    "settled-for": Key(
        kinds.SECONDS, "leave files that were not seen unchanged for so long", "5min"
    ),
    "after": Key(
        kinds.AFTER,
        "what becomes of a source file that every destination has, verified: keep, remove, or "
        "move DIR",
        "remove",
    ),
    "before": Key(
        kinds.COMMAND,
        "run this first, and nothing else if it fails; a text by the shell, a list as it is",
        "mountpoint -q /srv",
    ),
    "after-success": Key(kinds.COMMAND, "run this when all was done", ["touch", "/run/sent"]),
    "after-failure": Key(kinds.COMMAND, "run this when it was not", "logger -p cron.err not sent"),
    "if-running": Key(
        kinds.IF_RUNNING, "while another run of the job is under way: skip, wait or fail", "skip"
    ),
    "max-hosts": Key(kinds.HOSTS, "send to so many destinations at once (all)", 4),
    "report": Key(
        kinds.REPORT, "write a report of the run: json, text, html", {"html": "/var/www/sent.html"}
    ),
    "metrics": Key(
        kinds.FILE, "write metrics for node_exporter's textfile collector", "/run/pscp.prom"
    ),
    "ping": Key(
        kinds.URL,
        "ask this URL at start, success and failure, as healthchecks has it",
        "https://hc-ping.com/UUID",
    ),
    "manifest": Key(kinds.FILE, "write a manifest of what was copied", "/srv/sent.manifest"),
    "sign": Key(kinds.FILE, "sign the manifest with this SSH key", "~/.ssh/id_ed25519"),
    "keep-history": Key(kinds.SECONDS, "keep what is known of runs for so long (365d)", "90d"),
}
OWN = {
    "sources": Key(
        kinds.PLACES,
        "what is copied: files, folders and patterns here, or each a HOST:PATH",
        ["/srv/recordings/*.rec"],
    ),
    "sources-from": Key(kinds.FILE, "a file that lists sources, one in each line", "list.txt"),
    "sources-command": Key(
        kinds.COMMAND,
        "a command that prints sources, one in each line; a text is run by the shell",
        ["find", "/srv", "-name", "*.rec"],
    ),
    "datasets": Key(kinds.TEXTS, "ZFS datasets, each as a SOURCE of pscp-zfs", "tank/data"),
    **_SHARED,
    "depends-on": Key(kinds.TEXTS, "jobs to do first, in the same run", "database"),
}


@dataclass(frozen=True)
class Option:
    """An option that a job may have."""

    name: str  # without dashes
    action: argparse.Action
    group: str
    of_files: bool  # pscp has it
    of_datasets: bool  # pscp-zfs has it

    @property
    def repeats(self) -> bool:
        return isinstance(self.action, argparse._AppendAction) or self.name.endswith("clude-from")

    @property
    def kind(self) -> kinds.Kind:
        if self.action.nargs == 0:
            return kinds.FLAG
        if self.repeats:
            return kinds.TEXTS
        return kinds.NUMBER if self.action.type else kinds.TEXT

    @property
    def schema(self) -> dict[str, Any]:
        choices = CHOICES.get(self.action.dest)
        return {"enum": list(choices)} if choices else self.kind.schema

    def words(self, value: object, folder: str) -> tuple[str, ...]:
        """Return the option as words of a command line, none of which is its value alone."""
        given = self.kind.read(value, folder)
        if isinstance(given, bool):
            return (f"--{self.name}",) if given else ()
        texts = (given,) if isinstance(given, str) else given
        found = tuple(f"--{self.name}={self._whole(text, folder)}" for text in texts)
        for word in found:
            with kinds.told():
                parser(not self.of_files).read([word])
        return found

    def _whole(self, text: str, folder: str) -> str:
        """Return a file with its whole path, and any other value as it is."""
        is_file = self.action.metavar == "FILE" and (self.name, text) != ("config", "none")
        if is_file and text == "-":
            raise kinds.Wrong("there is no standard input: name a file")
        is_program = self.action.metavar == "PROGRAM" and "/" in text
        return kinds.whole(text, folder) if is_file or is_program else text


@functools.cache
def parser(is_for_datasets: bool) -> arguments.Parser:
    return zfs_arguments.make_parser() if is_for_datasets else arguments.make_parser()


def every_option() -> Iterator[tuple[str, str, argparse.Action]]:
    """Yield the long name, the group and the action of each option that pscp or pscp-zfs has."""
    for is_for_datasets in (False, True):
        for group in parser(is_for_datasets)._action_groups:
            for action in group._group_actions:
                for name in action.option_strings:
                    if name.startswith("--"):
                        yield name[2:], str(group.title), action


def _options() -> dict[str, Option]:
    """Return the options of a job by their names; none has the name of another key."""
    chosen = {each.name for kind in (Options, Settings) for each in fields(kind)}
    found: dict[str, Option] = {}
    for name, group, action in every_option():
        if action.dest in chosen and name not in REFUSED and name not in OWN:
            has = [f"--{name}" in parser(zfs)._option_string_actions for zfs in (False, True)]
            found.setdefault(name, Option(name, action, group, *has))
    return found


OPTIONS = _options()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _model(name: str, keys: Mapping[str, Key], options: Iterable[Option]) -> Any:
    """Return the model of a table; each of its fields is the key with an "_" behind it."""
    given: dict[str, Any] = {}
    for key, own in keys.items():
        given[f"{key}_"] = _field(key, own.kind.schema, own.kind.read, own.meaning, own.example)
    for option in options:
        text = str(option.action.help)
        given[f"{option.name}_"] = _field(option.name, option.schema, option.words, text)
    return create_model(name, __base__=_Table, **given)


def _field(key: str, schema: Any, read: Any, meaning: str, *examples: Any) -> tuple[Any, Any]:
    def validate(value: Any, info: ValidationInfo) -> Any:
        return read(value, info.context["folder"])  # type: ignore[index]  # load() gives one

    kind = Annotated[Any, PlainValidator(validate), WithJsonSchema(schema)]
    return kind, Field(
        default_factory=lambda: None,  # with a default the schema would say that null is one
        alias=key,
        description=meaning,
        examples=[*examples] or None,
    )


Defaults = _model("Defaults", _SHARED, OPTIONS.values())
Host = _model("Host", {}, [each for each in OPTIONS.values() if each.group in _OF_HOSTS])
Job = _model("Job", OWN, OPTIONS.values())
_TABLES: dict[str, Any] = {
    "defaults": (Defaults, Field(Defaults(), description="for every job that does not say else")),
    "host": (
        GenericAlias(dict, (str, Host)),
        Field({}, description="for what is copied to or from this host"),
    ),
    "job": (
        GenericAlias(dict, (str, Job)),
        Field({}, description="what is copied where, and when"),
    ),
}
Document = create_model("jobs.toml", __base__=_Table, **_TABLES)
