"""The kinds of values in jobs.toml: how each is read, and its schema for editors.

A reader returns what a job takes: times in seconds, files with whole paths. It raises Wrong, in
the words that the user sees behind the key.

Not here: which key has which kind (schema.py), what goes together (config.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pscp.errors import UsageError
from pscp.jobs.job import Span
from pscp.jobs.positions import Place
from pscp.locations import check_path, parse_location
from pscp.option_bounds import MAX_AGE_S, MAX_CONNECTIONS, MAX_LIMIT_KBIT_S
from pscp.values import parse_kbit_s, parse_seconds

IF_RUNNING_WORDS = ("skip", "wait", "fail")
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_NUMBER = {"type": ["string", "integer"]}

_DAY_MIN = 24 * 60
_MAX_DIGITS = 18
_SPAN = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})", re.ASCII)
_SPAN_KEYS = r"^([0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]|else)$"
_OPTION_BEFORE = r"^(-\w/)?(--[a-z-]+)?: "


class Wrong(ValueError):
    """A value that cannot be; `place` leads to the part of it that is wrong."""

    def __init__(self, text: str, *place: str | int) -> None:
        super().__init__(text)
        self.place: Place = place


class Kind(NamedTuple):
    """How a value is read, from the folder of the file on, and its JSON Schema."""

    read: Callable[[Any, str], Any]
    schema: dict[str, Any]


class Limited(NamedTuple):
    """The most to send, by the time of day and for the rest of it."""

    spans: tuple[Span, ...]
    words: tuple[str, ...]  # pscp's option, for the rest


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Make a Wrong of a UsageError, without the option that it begins with."""
    try:
        yield
    except UsageError as error:
        raise Wrong(in_words(error)) from None


def in_words(error: UsageError) -> str:
    text = re.sub(_OPTION_BEFORE, "", error.message)
    return f"{text}; {error.hint}" if error.hint not in ("", UsageError.hint) else text


def shown(value: object) -> str:
    """Return what the value is, for "must be a text, not ..."."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**_MAX_DIGITS:
        return "a huge number"  # which str() might refuse
    if isinstance(value, str):
        return f"the text {value!r}"
    return (
        "a list"
        if isinstance(value, list)
        else "a table"
        if isinstance(value, dict)
        else str(value)
    )


def read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {shown(value)}")
    return value


def read_text(value: object) -> str:
    if not isinstance(value, str):
        raise Wrong(f"must be a text, not {shown(value)}")
    if not value:
        raise Wrong("is empty")
    with told():
        check_path(value)
    return value


def read_texts(value: object, read: Callable[[object], str] = read_text) -> tuple[str, ...]:
    if isinstance(value, str):
        return (read_text(value),)
    if not isinstance(value, list):
        raise Wrong(f"must be a text or a list of texts, not {shown(value)}")
    if not value:
        raise Wrong("is empty")
    found = []
    for place, each in enumerate(value):
        try:
            found.append(read(each))
        except Wrong as error:
            raise Wrong(str(error), place) from None
    return tuple(found)


def read_places(value: object, folder: str) -> tuple[str, ...]:
    """Return locations as they are typed, each once."""
    found = read_texts(value)
    for place, text in enumerate(found):
        try:
            if text in found[:place]:
                raise Wrong(f"{text} is named twice")
            with told():
                if not parse_location(text).is_remote:
                    whole(text, folder)
        except Wrong as error:
            raise Wrong(str(error), place) from None
    return found


def read_command(value: object) -> str | tuple[str, ...]:
    """Return a text, or words, of which all but the first may be empty."""
    if not isinstance(value, list):
        return read_text(value)
    if value[:1] == [""]:
        raise Wrong("is empty", 0)
    return read_texts(value, lambda each: read_text(each) if each != "" else "")


def whole(path: str, folder: str) -> str:
    """Return the path, from this folder on, with a "~" at its begin expanded. Raises Wrong."""
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise Wrong(f"{path!r}: there is no such user here; a name that begins with ~ is ./~NAME")
    return os.path.join(folder, found)


def read_number(value: object) -> str:
    """Return a number as it would be typed; a text is typed already."""
    if isinstance(value, str):
        return read_text(value)
    if type(value) is not int or abs(value) >= 10**_MAX_DIGITS:
        raise Wrong(f"must be a text or a whole number, not {shown(value)}")
    return str(value)


def read_seconds(value: object) -> int:
    with told():
        found = parse_seconds(read_number(value), "")
    if found > MAX_AGE_S:
        raise Wrong(f"{value!r} is too long")
    return found


def read_hosts(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_CONNECTIONS:
        raise Wrong(f"must be a whole number from 1 to {MAX_CONNECTIONS}, not {shown(value)}")
    return value


def read_if_running(value: object) -> str:
    if value not in IF_RUNNING_WORDS:
        raise Wrong(f"must be one of {', '.join(IF_RUNNING_WORDS)}, not {shown(value)}")
    return str(value)


def read_after(value: object, base: str) -> tuple[str, str | None]:
    word, _, folder = read_text(value).partition(" ")
    if word == "move" and folder.strip():
        return word, whole(folder.strip(), base)
    if value not in ("keep", "remove"):
        raise Wrong(f'must be "keep", "remove" or "move DIR", not {shown(value)}')
    return str(value), None


def read_report(value: object, folder: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise Wrong(f'must be a table such as {{ html = "FILE" }}, not {shown(value)}')
    for form, file in value.items():
        if form not in ("json", "text", "html"):
            raise Wrong(f"{form!r} is none of json, text and html", form)
        if not isinstance(file, str) or not file:
            raise Wrong(f"{form} must name a file", form)
    return tuple((form, whole(read_text(file), folder)) for form, file in value.items())


def read_url(value: object) -> str:
    text = read_text(value)
    is_url = re.fullmatch(r"https?://[!-~]+", text) is not None
    with contextlib.suppress(ValueError):
        if is_url and urlsplit(text).hostname and urlsplit(text).port != 0:
            return text
    raise Wrong(f"{text!r} is no URL that begins with http:// or https://")


def read_limit(value: object) -> Limited:
    if not isinstance(value, dict):
        return Limited((), (f"--limit={_kbit_s(value)}",))
    spans: dict[str, Span] = {}
    rest: tuple[str, ...] = ()
    for text, rate in value.items():
        try:
            kbit_s = None if rate == "none" else _kbit_s(rate)
            if text == "else":
                rest = () if kbit_s is None else (f"--limit={kbit_s}",)
            else:
                spans[text] = _apart(text, _span(text, kbit_s), spans)
        except Wrong as error:
            raise Wrong(str(error), text) from None
    return Limited(tuple(spans.values()), rest)


def _kbit_s(value: object) -> int:
    with told():
        found = parse_kbit_s(read_number(value))
    if found > MAX_LIMIT_KBIT_S:
        raise Wrong(f"{value!r} is too much")
    return found


def _span(text: str, kbit_s: int | None) -> Span:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise Wrong(f'{text!r} is no time of day, such as "08:00-20:00", nor "else"')
    hour, minute, last_hour, last_minute = (int(each) for each in match.groups())
    span = Span(hour * 60 + minute, last_hour * 60 + last_minute, kbit_s)
    if max(minute, last_minute) > 59 or span.begins_min >= _DAY_MIN or span.ends_min > _DAY_MIN:
        raise Wrong(f"{text!r}: a day has 00:00 to 24:00")
    if span.begins_min == span.ends_min:
        raise Wrong(f"{text} ends when it begins; a whole day is 00:00-24:00")
    return span


def _apart(text: str, span: Span, others: dict[str, Span]) -> Span:
    """Return the span, if it shares no minute with others. Raises Wrong."""
    for other, earlier in others.items():
        if _minutes(span) & _minutes(earlier):
            raise Wrong(f"{other} and {text} overlap")
    return span


def _minutes(span: Span) -> set[int]:
    """Return the minutes of the day that it has; one that ends before it begins has a midnight."""
    length = (span.ends_min - span.begins_min) % _DAY_MIN or _DAY_MIN
    return {(span.begins_min + passed) % _DAY_MIN for passed in range(length)}


def _table(**kind: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, **kind}


_LIMITS = _table(patternProperties={_SPAN_KEYS: _NUMBER})
_REPORTS = _table(properties=dict.fromkeys(("json", "text", "html"), _TEXT))

TEXT = Kind(lambda value, _: read_text(value), _TEXT)
TEXTS = Kind(lambda value, _: read_texts(value), _TEXTS)
PLACES = Kind(read_places, _TEXTS)
NUMBER = Kind(lambda value, _: read_number(value), _NUMBER)
FLAG = Kind(lambda value, _: read_flag(value), {"type": "boolean"})
FILE = Kind(lambda value, folder: whole(read_text(value), folder), _TEXT)
COMMAND = Kind(lambda value, _: read_command(value), _TEXTS)
SECONDS = Kind(lambda value, _: read_seconds(value), _NUMBER)
HOSTS = Kind(lambda value, _: read_hosts(value), {"type": "integer", "minimum": 1})
IF_RUNNING = Kind(lambda value, _: read_if_running(value), {"enum": [*IF_RUNNING_WORDS]})
AFTER = Kind(read_after, {"type": "string", "pattern": "^(keep|remove|move .+)$"})
REPORT = Kind(read_report, _REPORTS)
URL = Kind(lambda value, _: read_url(value), _TEXT)
LIMIT = Kind(lambda value, _: read_limit(value), {"anyOf": [_NUMBER, _LIMITS]})
