"""Makes docs/api.md from what a Python program can call: its docstrings, fields and types.

Not here: the other pages, and what is checked (../docs).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType

import pscp
from pscp.manifests.comparing import Difference
from pscp.progress.callbacks import FileEvent
from pscp.stream.stream import Ran
from pscp.zfs.replicate import Replicated
from pscp.zfs.schedule import ReplicatedDataset

INTRODUCTION = """\
What a program imports is in the module `pscp`; classes that are named without it come in results.
[Errors](errors.md) have a page of their own; longer programs are in [examples](../examples). What
this page names stays as it is within a minor version (0.2.x); what it does not name is not for
programs to call.

`**fields` are [options](options.md), typed: `pscp.copy("a", "host:b", recursve=True)` is an error
for mypy and in an editor, and a `pscp.UsageError` when it runs, before anything is contacted.
`pscp.Options(...)` takes the same, and `options` such an object, whose values `fields` replace. A
place is a `str`, a `Location`, or a `pathlib.Path` or the like, which always is a path of this
machine; sources are one or a sequence of them, `exclude` and `include` a pattern or a sequence
([which files](filters.md)). `progress` is a function of a `Counters`, `on_file` of a `FileEvent`,
`say` and `note` of a `str`. A command is a list of words, which is executed as it is, or a text for
the user's shell at the far end. `reporter` is a `Reporter`
([progress.py](../pscp/progress/progress.py)). `help(pscp.copy)` has each argument. A field of a
result is a number, a text or a flag where no type is said.

An exception of a function that a call is given, or of a signal handler, ends the call tidily and is
raised by it; what had landed is kept, and the same call goes on from there. A file
that was not copied is in the result's `failures`. Also raised are `UsageError`, before anything is
contacted; `ConnectError`, where there is no usable far end; `CopyError`, where the copy as a whole
cannot go on; `ProtocolError`, where the far end misbehaves.
"""
ASYNCIO = """\
## pscp.aio

`copy()`, `fan_out()` and `Session` as above, to be awaited, and `copying()`, a copy whose progress
is read while it runs:

```python run=asyncio
import asyncio, pscp


async def main():
    async with (
        asyncio.timeout(3600),
        pscp.aio.copying("data", "host:backup/", recursive=True) as copying,
    ):
        async for now in copying:
            print(now.bytes_done, "bytes")
    print(copying.result.files, "files")


asyncio.run(main())
```

It yields snapshots of Counters, about ten a second, the last one when the copy is over; who comes
late gets the latest only. The block's end waits for the copy, and raises its error; an exception in
the block ends it. Each call runs in a thread of its own, and functions that it is given are called
in other threads than the event loop's. Where its task is cancelled the call is ended as by
Session.cancel(), and CancelledError goes on only when it has ended.

`async with pscp.aio.Session(host, options=None, **fields) as session` has `session.copying(...)`,
`await session.copy(...)` and `await session.run(...)`; tasks may call it at once. With `transport`
an asyncssh.SSHClientConnection of this very event loop, everything goes over that connection,
which stays open.
"""
EVENTS = """\
It has more fields, and its parts are records: [advice.py](../pscp/measuring/advice.py).

## What --progress json prints

For a program in another language: one JSON object a line on standard output, whose `event` is

- `progress`, about once a second: `elapsed_s`, and the fields of Counters;
- `note`: `text`, a failure or a warning as a person would read it;
- `line`: `text`, a line of a dry run;
- `end`, the last: `ok`, and the fields of Result, unless the copy raised an error.

Fields may be added; those that are there keep their meaning as above.

## Logging

A program that has set up `logging` gets records of the loggers below `pscp`: WARNING what the
command says to everybody; INFO what it says with `-v`; DEBUG what it says with `-d` (`debug=True`
adds ssh's `-v`). A record's `threadName` is the lane. Their words may change; they are for people.
"""
CALLS = (
    pscp.copy, pscp.fan_out, pscp.JobTerms, pscp.Moves, pscp.Settled, pscp.verify, pscp.measure,
    pscp.look, pscp.clean, pscp.replicate,
    pscp.parse_location,
)  # fmt: skip
# Of which the page says more than the first paragraph of the docstring.
WITH_MORE: tuple[object, ...] = (
    pscp.fan_out, pscp.Settled, pscp.clean,
    pscp.Session.cancel, pscp.Session.pipe_to, pscp.Session.pipe_from, pscp.Session.run,
)  # fmt: skip
WITH_ARGUMENTS: tuple[object, ...] = (pscp.JobTerms, pscp.Moves)  # what no other page explains
# The classes, with the heading that each group stands under.
CLASSES: dict[str, tuple[type, ...]] = {
    "What a copy is given": (pscp.Location,),
    "What a copy gives back": (
        pscp.Result, pscp.Failure, pscp.Counters, FileEvent, Ran, pscp.Delivery,
    ),
    "What the others give back": (
        pscp.Verified, Difference, pscp.Look, pscp.Cleaned, Replicated, ReplicatedDataset,
        pscp.Measurement,
    ),
}  # fmt: skip

# Fields and methods that are not for programs, or mean what they mean in a Result.
INNER: dict[type, tuple[str, ...]] = {
    pscp.Counters: (
        "started_s", "nouns", "large", "lanes_moved", "add", "begin_file", "left_bytes",
        "sending_bytes", "bytes_resumed", "bytes_sent", "files_resumed", "files_unchanged",
        "files_linked", "files_skipped", "files_deleted", "chunks_verified", "chunks_resent",
        "verified", "connections_lost",
    ),
    pscp.Location: ("literal_path", "prefix"),
    pscp.Measurement: ("rtt_min_s", "seconds", "saved", "host", "near", "far", "windows"),
}  # fmt: skip
SAID: dict[type, str] = {
    pscp.Counters: " What it has in common with Result means the same, of now."
}

PLAIN = ("int", "float", "str", "bool")  # what the name says as well

_FIELD = re.compile(r"^    (\w+): .*?(?:#\s+(.*))?$", re.MULTILINE)


def api_page() -> str:
    """The page, without the line that says who wrote it."""
    lines = ["# The Python API\n", INTRODUCTION, "## Calls\n"]
    for call in CALLS:
        lines += [*called(call, f"pscp.{call.__name__}", "###")]
    lines += [*session(), ASYNCIO]
    for title, kinds in CLASSES.items():
        lines += [f"## {title}\n"]
        for kind in kinds:
            lines += [*class_of_fields(kind)]
    return "\n".join([*lines, EVENTS]).rstrip() + "\n"


def session() -> Iterator[str]:
    yield "## pscp.Session\n"
    yield from called(pscp.Session.__init__, "pscp.Session", "", inspect.getdoc(pscp.Session))
    yield from methods(pscp.Session, "session", "###")


def methods(kind: type, name: str, level: str) -> Iterator[str]:
    """The class's own public methods and properties that a docstring speaks of."""
    for each, value in vars(kind).items():
        if each.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, FunctionType):
            yield from called(value, f"{name}.{each}", level)
        elif isinstance(value, property):
            yield f"{level} {name}.{each}\n"
            yield f"{as_markdown(inspect.getdoc(value) or '')}\n"


def called(
    call: Callable[..., object], name: str, level: str, text: str | None = None
) -> Iterator[str]:
    """How it is called, and its docstring; of most calls without the arguments one by one."""
    if level:
        yield f"{level} {name}\n"
    yield f"```text\n{signature(call, name)}\n```\n"
    said = text or inspect.getdoc(call) or ""
    if not text and call not in WITH_ARGUMENTS:
        said = "\n\n".join(said.split("\n\n")[: 2 if call in WITH_MORE else 1])
    yield f"{as_markdown(said)}\n"


def signature(call: Callable[..., object], name: str) -> str:
    """How it is called; the types are in the page's introduction and in what an editor shows."""
    found = inspect.signature(call)
    shown = [parameter(each) for each in found.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in found.parameters.values() if each.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = "" if found.return_annotation in (None, "None") else f" -> {found.return_annotation}"
    return textwrap.fill(f"{name}({', '.join(shown)}){end}", 96, subsequent_indent="    ")


def parameter(each: inspect.Parameter) -> str:
    stars = "**" if each.kind is inspect.Parameter.VAR_KEYWORD else ""
    default = ""
    if each.default is not inspect.Parameter.empty:
        default = "=..." if callable(each.default) else f"={each.default!r}"
    return f"{stars}{each.name}{default}"


def class_of_fields(kind: type) -> Iterator[str]:
    """A dataclass, or a protocol: its fields with their types and comments, and its methods."""
    public = getattr(pscp, kind.__name__, None) is kind
    name = f"pscp.{kind.__name__}" if public else kind.__name__
    yield f"### {name}\n\n{as_markdown(inspect.getdoc(kind) or '')}{SAID.get(kind, '')}\n"
    if dataclasses.is_dataclass(kind):
        yield from field_list(kind)
    for each, value in vars(kind).items():
        if each in INNER.get(kind, ()):
            continue
        if isinstance(value, FunctionType | property) and not each.startswith("_"):
            text = inspect.getdoc(value)
            sign = "()" if isinstance(value, FunctionType) else ""
            if text:
                yield f"- `{each}{sign}`: {' '.join(text.split())}"
    yield ""


def field_list(kind: type) -> Iterator[str]:
    base = kind.__base__
    if base is not None and dataclasses.is_dataclass(base):
        yield f"- and the fields of {base.__name__}"
    comments = dict(_FIELD.findall(inspect.getsource(kind)))
    for each in dataclasses.fields(kind):
        is_inner = each.name in INNER.get(kind, ()) or each.name.startswith("_")
        if each.name in comments and each.init and not is_inner:
            text = comments[each.name]
            type_ = "" if each.type in PLAIN else f": {each.type}"
            yield f"- `{each.name}{type_}`" + (f": {text}" if text else "")


def as_markdown(text: str) -> str:
    """A docstring, with its Args as a list."""
    parts = []
    for part in text.split("\n\n"):
        title, _, rest = part.partition("\n")
        if title == "Args:":
            joined = re.sub(r"\n {8,}", " ", rest)  # an item goes on
            items = [re.sub(r"^(\w+):", r"`\1`:", line.strip()) for line in joined.splitlines()]
            part = "\n".join(f"- {item}" for item in items)
        parts.append(part)
    return "\n\n".join(parts)
