"""The schema of jobs.toml: its keys and the types of their values, as pydantic checks them.

The options are those of the parsers of pscp and pscp-zfs, by their long names; each becomes the
words of a command line.

Not here: the types that other files have as well (../../toml/values.py), what does not go together
(one_job.py), where a mistake is (config.py).
Read next: config.py.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    HttpUrl,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from pscp.ground.errors import UsageError
from pscp.ground.locations import parse_host, parse_location
from pscp.ground.values import parse_kbit_s
from pscp.jobs.toml.job import IF_RUNNING, Span
from pscp.options import arguments, zfs_arguments
from pscp.options.habits import NOT_IN_PLACE
from pscp.options.keywords import as_typed, renamed
from pscp.options.option_rows import MAX_CONNECTIONS, MAX_LIMIT_KBIT_S
from pscp.options.options import CHOICES, Options
from pscp.toml.values import (
    File,
    Key,
    Number,
    Seconds,
    Text,
    Texts,
    Word,
    after,
    closed,
    in_words,
    several,
    types_of,
    whole,
    with_unit,
)
from pscp.zfs.settings import Settings

_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"


def named_in(error: UsageError) -> list[str]:
    """Return the keys of the options that a UsageError names."""
    words = re.findall(r"--[a-z0-9-]+|(?<!\S)-[a-zA-Z]\b", error.message)
    return [_KEYS.get(word, word.lstrip("-")) for word in words]


def _fixed(text: str, folder: str) -> str:
    """Check that a folder has no {date} or the like: what one run began, the next has to find."""
    if found := re.search(r"\{[a-z]+\}", text):
        what = f"{found[0]} is for the names of manifest and report"
        raise UsageError(what, "docs/cron.md shows how to have a folder for each night")
    return text


def _place(text: str, folder: str) -> str:
    """Check a location, and return it as it was typed."""
    if not parse_location(text).is_remote:
        whole(text, folder)
    return text


def _host(text: str, folder: str) -> str:
    return parse_host(text).prefix[:-1]


def _each_once(texts: tuple[str, ...], folder: str) -> tuple[str, ...]:
    for number, text in enumerate(texts):
        if text in texts[:number]:
            raise ValueError(f"{text} is named twice", number)
    return texts


def _command(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Return a text, or words, of which all but the first may be empty."""
    words = read(value)
    if not words[0]:
        raise ValueError("is empty", 0)
    return words if isinstance(value, list) else words[0]


def _limit(rates: dict[str, int], folder: str) -> tuple[tuple[Span, ...], int | None]:
    """Return the rates by the time of day, and that of the rest; None, as a rate 0, is no limit."""
    spans = dict[str, Span]()
    for text in (each for each in rates if each != "else"):
        begins, ends = text.split("-")
        if begins == ends:
            raise ValueError(f"{text} ends when it begins; a whole day is 00:00-24:00", text)
        span = Span(begins, ends, rates[text] or None)
        for name, other in spans.items():
            if span.covers(other.begins) or other.covers(span.begins):
                raise ValueError(f"{name} and {text} overlap", text)
        spans[text] = span
    return tuple(spans.values()), rates.get("else") or None


def _after(text: str, folder: str) -> tuple[str, str | None]:
    """Return the word, and the folder of "move"."""
    word, _, moved_to = text.partition(" ")
    if word == "move" and moved_to.strip():
        return word, whole(_fixed(moved_to.strip(), folder), folder)
    if text not in ("keep", "remove"):
        raise UsageError('must be "keep", "remove" or "move DIR"')
    return text, None


def _reports(value: Any) -> Any:
    """Return the value; a file alone is a mistake that is told with the table that was meant, and
    another form is named.
    """
    if isinstance(value, str):
        form = {"json": "json", "txt": "text"}.get(value.rpartition(".")[2], "html")
        raise ValueError(f'must be a table, such as {{ {form} = "{value}" }}')
    for form in value if isinstance(value, dict) else ():
        if form not in ("json", "text", "html"):
            raise ValueError(f"{form!r} must be 'json', 'text' or 'html', whose value is a file")
    return value


# An ssh_config, of which "none" is none; a program, which $PATH has if it is a name alone.
ConfigFile = Annotated[Text, after(lambda text, at: text if text == "none" else whole(text, at))]
Program = Annotated[Text, after(lambda text, at: whole(text, at) if "/" in text else text)]
Folder = Annotated[Text, after(_fixed)]
Places: Any = Annotated[several(Annotated[Text, after(_place)]), after(_each_once)]
Destinations: Any = Annotated[several(Annotated[Folder, after(_place)]), after(_each_once)]
Command: Any = Annotated[several(Word), WrapValidator(_command)]
Reports = Annotated[
    dict[Literal["json", "text", "html"], File],
    BeforeValidator(_reports),
    AfterValidator(lambda value: (*value.items(),)),
]
Url = Annotated[HttpUrl, AfterValidator(str)]
Hosts = Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)]
_Rate: Any = with_unit(lambda text: 0 if text == "none" else parse_kbit_s(text), MAX_LIMIT_KBIT_S)
_Rates: Any = dict[Annotated[str, Field(pattern=f"^({_TIME}-({_TIME}|24:00)|else)$")], _Rate]
Limit = Annotated[
    _Rates,
    BeforeValidator(
        lambda value: value if isinstance(value, dict) else {"else": value},
        json_schema_input_type=_Rate | _Rates,
    ),
    after(_limit),
]
_AFTER = {"type": "string", "pattern": "^(keep|remove|move .+)$"}
After = Annotated[Text, after(_after), WithJsonSchema(_AFTER)]

# --- the keys

PARSERS = {False: arguments.make_parser(), True: zfs_arguments.make_parser()}  # True: of datasets
_ACTIONS = {of: parser._option_string_actions for of, parser in PARSERS.items()}

_TOLD = "what a job did is told by its report, its metrics and the history; pscp-run has -v"
# What makes no sense in a job, with the reason. So does whatever is no field of Options.
REFUSED = {
    "check": "it shows something, and is for the command line",
    "transfer-test": "it tries something, and is for the command line",
    "dry-run": "pscp-run --dry-run shows what would be copied",
    "remove-source-files": 'after = "remove" does it, once every destination has the file',
    "inplace": NOT_IN_PLACE,
    **dict.fromkeys(("quiet", "verbose", "itemize", "debug", "progress", "stats"), _TOLD),
    **dict.fromkeys(("log-file", "syslog"), _TOLD),
}
_OF_HOSTS = ("how it is sent", "how ssh is run")  # options that may differ between destinations
_OF_FILES = ("min-age", "settled-for", "after")  # not of datasets; so are some options


SHARED = {
    "destinations": Key(
        Destinations, "where it goes, each a DEST of pscp", ["a:/vault/", "b:/vault/"]
    ),
    "limit": Key(
        Limit,
        'the most to send, as --limit, or "none"; or a table of it by the time of day (local), '
        "with `else` for the rest",
        {"08:00-20:00": "20M"},
    ),
    "max-duration": Key(Seconds, "end a run after so long; the next one goes on", "6h"),
    "retry-for": Key(Seconds, "try again what may succeed later, for so long", "2h"),
    "min-age": Key(Seconds, "leave files that are younger for the next run", "10min"),
    "settled-for": Key(Seconds, "leave files that were not seen unchanged for so long", "5min"),
    "after": Key(After, "once every destination has a file: keep, remove or move DIR", "remove"),
    "before": Key(Command, "run this first, and nothing else if it fails", "mountpoint -q /srv"),
    "after-success": Key(Command, "run this when all was done", ["touch", "/run/sent"]),
    "after-failure": Key(Command, "run this when it was not", "logger -p cron.err not sent"),
    "if-running": Key(
        Literal[IF_RUNNING], "while another run of the job is under way: skip, wait, fail", "skip"
    ),
    "max-hosts": Key(Hosts, "send to so many destinations at once (all)", 4),
    "report": Key(
        Reports,
        "write a report of the run: json, text, html; to a folder, or a file, with {job} in it",
        {"html": "/srv/reports/"},
    ),
    "metrics": Key(File, "write metrics: node_exporter's textfile folder, or a file", "metrics/"),
    "ping": Key(Url, "ask this at start, success and failure", "https://hc-ping.com/UUID"),
    "keep-history": Key(Seconds, "keep what is known of runs for so long (365d)", "90d"),
}
OWN = {
    "sources": Key(Places, "files, folders and patterns here, or each a HOST:PATH", "/srv/*.rec"),
    "sources-from": Key(File, "a file that lists sources, one in each line", "list.txt"),
    "sources-command": Key(Command, "a command that prints them", ["find", "/srv", "-type", "f"]),
    "datasets": Key(Texts, "ZFS datasets, each as a SOURCE of pscp-zfs", "tank/data"),
    **SHARED,
    "depends-on": Key(Texts, "jobs to do first, in the same run", "database"),
}
_Group: Any = Annotated[several(Annotated[Text, after(_host)]), after(_each_once)]
OF_HOST = {
    "hosts": Key(_Group, "NAME stands for these hosts, which see one file system", ["dm1", "dm2"])
}
# Options that name a file, by their names or what stands for their values.
_KINDS = {
    "FILE": File, "config": ConfigFile, "program": Program, "sign": File,
    "link-dest": Folder, "backup-dir": Folder,
}  # fmt: skip


class Option(NamedTuple):
    """An option that a job may have."""

    name: str  # without dashes
    action: argparse.Action

    @property
    def repeats(self) -> bool:
        return isinstance(self.action, argparse._AppendAction)

    @property
    def kind(self) -> Any:
        if self.action.nargs == 0:
            return bool
        if self.action.dest in CHOICES:
            return Literal[CHOICES[self.action.dest]]
        one = _KINDS.get(self.name) or _KINDS.get(str(self.action.metavar), Text)
        if self.repeats:
            return several(one)
        return Number if self.action.type else one

    def words(self, value: Any, folder: str) -> tuple[str, ...]:
        """Return the option as words of a command line, none of which is its value alone."""
        if isinstance(value, bool):
            return (f"--{self.name}",) if value else ()
        texts = value if isinstance(value, tuple) else (value,)
        found = tuple(f"--{self.name}={text}" for text in texts)
        given, _ = PARSERS[f"--{self.name}" not in _ACTIONS[False]].read(found)
        given.pop("filters", None)  # files of patterns are read as the whole job has it
        try:
            with as_typed():
                (Options if self.action.dest in _OF_OPTIONS else Settings)(**given)
        except UsageError as error:
            if {*named_in(error)} <= {self.name}:  # else it is a matter of others as well
                raise UsageError(as_keys(in_words(error, has_key=True))) from None
        return found


def is_for(key: str, *, of_datasets: bool) -> bool:
    """Return whether a key makes sense in a job that has datasets, or in one that has files."""
    if key in OPTIONS:
        return f"--{key}" in _ACTIONS[of_datasets]
    return not (of_datasets and key in _OF_FILES)


_OF_OPTIONS = {each.name for each in fields(Options)}
_CHOSEN = {*_OF_OPTIONS, *(each.name for each in fields(Settings))}
# Those of pscp, and then those that pscp-zfs alone has.
_BOTH = _ACTIONS[False] | _ACTIONS[True] | _ACTIONS[False]
EVERY = {name[2:]: Option(name[2:], _BOTH[name]) for name in _BOTH if name.startswith("--")}
OPTIONS = {
    name: option
    for name, option in EVERY.items()
    if option.action.dest in _CHOSEN and name not in REFUSED and name not in OWN
}


def as_keys(text: str, *, letters: bool = True) -> str:
    """Return a message in which options of the command line are called by their keys.

    Without `letters` those of one letter stay: a far program may have said them.
    """

    def called(word: str, value: str | None) -> str | None:
        behind = f" {value}" if value else ""
        key = _KEYS.get(word)
        return key and key + behind

    return renamed(text, called, letters=letters)


# What each word of the command lines is called here.
_KEYS = {
    word: key
    for key, each in EVERY.items()
    if key in OPTIONS or key in OWN
    for word in each.action.option_strings
} | {"--remove-source-files": "after"}


def _table(name: str, own: dict[str, Key], groups: tuple[str, ...] = ()) -> Any:
    """Return the type of a table with these keys and the options, all or of these groups."""
    keys = types_of(own)
    for key, option in OPTIONS.items():
        if not groups or option.action.container.title in groups:  # type: ignore[attr-defined]
            words = after(option.words)
            keys[key] = Annotated[option.kind, words, Field(description=option.action.help)]
    return closed(name, keys)


TABLES = {
    "defaults": _table("Defaults", SHARED),
    "host": _table("Host", OF_HOST, _OF_HOSTS),
    "job": _table("Job", OWN),
}
_NAMED = {name: GenericAlias(dict, (str, TABLES[name])) for name in ("host", "job")}
DOCUMENT: TypeAdapter[dict[str, Any]] = TypeAdapter(closed("jobs.toml", {**TABLES, **_NAMED}))
