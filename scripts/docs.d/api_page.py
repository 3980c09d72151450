"""Makes docs/api.md from what a Python program can call: its docstrings, fields and types.

Not here: the other pages, and what is checked (../docs).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType

from keyword_types import LENT_MEANING, meanings

import pscp
from pscp.calls import aio
from pscp.calls.cleaning import Leftover
from pscp.manifests.comparing import Difference
from pscp.measuring import advice
from pscp.options.connection_options import ConnectionOptions
from pscp.options.copy_options import CopyOptions
from pscp.options.options import Options
from pscp.options.zfs_options import ZfsOptions
from pscp.progress.callbacks import FileEvent
from pscp.progress.progress import Reporter
from pscp.stream.stream import Ran
from pscp.zfs.replicate import Replicated
from pscp.zfs.schedule import Sent
from pscp.zfs.settings import Settings

INTRODUCTION = """\
What a program imports is in the module `pscp`; classes that are named without it come in results.
[Errors](errors.md) have a page of their own; longer programs are in [examples](../examples).

The [options](#options) are typed: `pscp.copy("a", "host:b", recursve=True)` is an error for mypy
and in an editor, and a `pscp.UsageError` when it runs. `Place` is a `str`, a `Location`, or a
`pathlib.Path` or the like, which always is a path of this machine; `Source` is one of them or a
sequence of them. `Command` is a list of words, which is executed as it is, or a text for the user's
shell at the far end, `Patterns` a `str` or a sequence of them ([which files](filters.md)).
`Progress` is a function of a `Counters`, `OnFile` of a `FileEvent`, `Say` of
a `str`; `Select` one of a path, a size in bytes, an mtime in ns and an inode, that returns whether
to copy that file; `KbitS` one of nothing, that returns a limit in kbit/s, or None.

What this page names stays as it is within a minor version (0.2.x). What it does not name is not for
programs to call.
"""
EVENTS = """\
## What --progress json prints

For a program in another language: one JSON object a line on standard output, whose `event` is

- `progress`, about once a second: `elapsed_s`, and the fields of Counters but for `started_s` and
  `nouns`;
- `note`: `text`, a failure or a warning as a person would read it;
- `line`: `text`, a line of a dry run;
- `end`, the last: `ok`, and the fields of Result, unless the copy raised an error.

Fields may be added; those that are there keep their meaning as above.

## Logging

A program that has set up `logging` gets records of the loggers below `pscp`: of level WARNING what
the command says to everybody, such as a file that was not copied (in `notes`); INFO what it says
with `-v`; DEBUG why a lane connected again, what ssh wrote, which zfs commands ran, as with `-d`.
A record's `threadName` is the lane. `logging.basicConfig(level=logging.INFO)` shows the first two;
`debug=True` adds ssh's `-v`. Their words may change; they are for people.
"""
CALLS = (
    pscp.copy, pscp.fan_out, pscp.JobTerms, pscp.Moves, pscp.Settled, pscp.verify, pscp.measure,
    pscp.look, pscp.clean, pscp.replicate,
    pscp.parse_location,
)  # fmt: skip
# The classes, with the heading that each group stands under.
CLASSES: dict[str, tuple[type, ...]] = {
    "What a copy is given": (pscp.Location, Reporter),
    "What a copy gives back": (
        pscp.Result, pscp.Failure, pscp.Counters, FileEvent, Ran, pscp.Delivery,
    ),
    "What the others give back": (
        pscp.Verified, Difference, pscp.Look, pscp.Cleaned, Leftover, Replicated, Sent,
        pscp.Measurement, advice.Advice, advice.Setting,
        advice.Point, advice.Moved, advice.Windows, advice.Kernel,
    ),
}  # fmt: skip

_FIELD = re.compile(r"^    (\w+): .*?(?:#\s+(.*))?$", re.MULTILINE)


def api_page() -> str:
    """The page, without the line that says who wrote it."""
    lines = ["# The Python API\n", INTRODUCTION, "## Calls\n"]
    for call in CALLS:
        lines += [*called(call, f"pscp.{call.__name__}", "###")]
    lines += [*session(), *asynchronous(), "## Options\n", *options()]
    for title, kinds in CLASSES.items():
        lines += [f"## {title}\n"]
        for kind in kinds:
            lines += [*class_of_fields(kind)]
    return "\n".join([*lines, EVENTS]).rstrip() + "\n"


def session() -> Iterator[str]:
    yield "## pscp.Session\n"
    yield from called(pscp.Session.__init__, "pscp.Session", "", inspect.getdoc(pscp.Session))
    yield from methods(pscp.Session, "session", "###")


def asynchronous() -> Iterator[str]:
    yield f"## pscp.aio\n\n{as_markdown(inspect.getdoc(aio) or '').partition('Not here')[0]}"
    yield from called(aio.copy, "await pscp.aio.copy", "###")
    yield from called(aio.copying, "pscp.aio.copying", "###")
    yield from called(aio.fan_out, "await pscp.aio.fan_out", "###")
    yield f"### Copying\n\n{as_markdown(inspect.getdoc(aio.Copying) or '')}\n"
    yield f"- `result`: {inspect.getdoc(aio.Copying.result)}\n"
    yield "### pscp.aio.Session\n"
    yield from called(
        aio.Session.__init__, "async with pscp.aio.Session", "", inspect.getdoc(aio.Session)
    )
    for each in ("copy", "run"):
        yield from called(getattr(aio.Session, each), f"await session.{each}", "")
    yield from called(aio.Session.copying, "session.copying", "")


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
    """How it is called, and its docstring."""
    if level:
        yield f"{level} {name}\n"
    yield f"```text\n{signature(call, name)}\n```\n"
    yield f"{as_markdown(text or inspect.getdoc(call) or '')}\n"


def signature(call: Callable[..., object], name: str) -> str:
    found = inspect.signature(call)
    shown = [parameter(each) for each in found.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in found.parameters.values() if each.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = "" if found.return_annotation in (None, "None") else f" -> {found.return_annotation}"
    return f"{name}(\n    " + ",\n    ".join(shown) + f",\n){end}" if shown else f"{name}(){end}"


def parameter(each: inspect.Parameter) -> str:
    stars = "**" if each.kind is inspect.Parameter.VAR_KEYWORD else ""
    default = ""
    if each.default is not inspect.Parameter.empty:
        default = " = ..." if callable(each.default) else f" = {each.default!r}"
    return f"{stars}{each.name}: {each.annotation}{default}"


def options() -> Iterator[str]:
    """The keywords, with the type and the default of each."""
    yield (
        "What the calls above take as `**fields`, and `pscp.Options(...)` as well; what each means "
        "is in [options.md](options.md). A value that makes no sense is refused with a UsageError "
        "before anything is contacted.\n"
    )
    yield from option_list(meanings(CopyOptions, ConnectionOptions), Options())
    lent = LENT_MEANING[0].lower() + LENT_MEANING[1:]
    yield f"`pscp.Session()` takes as `transport` also a client: {lent}\n"
    yield "`pscp.replicate()` takes these as well:\n"
    yield from option_list(meanings(ZfsOptions), Settings())


def option_list(names: Iterable[str], defaults: Options | Settings) -> Iterator[str]:
    types = {each.name: str(each.type) for each in dataclasses.fields(defaults)}
    listed = (f"{name}: {types[name]} = {getattr(defaults, name)!r}" for name in names)
    yield "\n".join(["```text", *listed, "```\n"])


def class_of_fields(kind: type) -> Iterator[str]:
    """A dataclass, or a protocol: its fields with their types and comments, and its methods."""
    public = getattr(pscp, kind.__name__, None) is kind
    name = f"pscp.{kind.__name__}" if public else kind.__name__
    yield f"### {name}\n\n{as_markdown(inspect.getdoc(kind) or '')}\n"
    if dataclasses.is_dataclass(kind):
        yield from field_list(kind)
    for each, value in vars(kind).items():
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
        if each.name in comments and each.init and not each.name.startswith("_"):
            text = comments[each.name]
            yield f"- `{each.name}: {each.type}`" + (f": {text}" if text else "")


def as_markdown(text: str) -> str:
    """A docstring, with Args, Returns and Raises as lists."""
    parts = []
    for part in text.split("\n\n"):
        title, _, rest = part.partition("\n")
        if title not in ("Args:", "Returns:", "Raises:"):
            parts.append(part)
            continue
        joined = re.sub(r"\n {8,}", " ", rest)  # an item goes on
        found = [line.strip() for line in joined.splitlines()]
        items = [re.sub(r"^(\w+):", r"`\1`:", line) for line in found]
        if title == "Returns:":
            parts.append(f"Returns: {' '.join(found)}")
        else:
            parts.append("\n".join([title, "", *(f"- {item}" for item in items)]))
    return "\n\n".join(parts)
