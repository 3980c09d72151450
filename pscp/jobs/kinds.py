"""What a value in jobs.toml may be: types for pydantic, which checks values and makes their schema.

A value becomes what a job takes: times are in seconds, files have whole paths, and what may be a
text or a list of them is a tuple. What is wrong is a ValueError with a text, and where in the
value, if it is not all of it.

Not here: which key has which type (schema.py), what does not go together (one_job.py).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    with_config,
)
from typing_extensions import TypedDict  # typing's, for pydantic, from Python 3.12 on

from pscp.errors import UsageError
from pscp.jobs.job import Span
from pscp.locations import check_path, parse_location
from pscp.option_bounds import MAX_AGE_S, MAX_CONNECTIONS, MAX_LIMIT_KBIT_S
from pscp.values import parse_kbit_s, parse_seconds

CLOSED = ConfigDict(extra="forbid", strict=True)  # a table with just these keys; 1 is no true
_TIME = "([01][0-9]|2[0-3]):([0-5][0-9])"
_SPAN = f"{_TIME}-({_TIME}|24:00)"
_DAY_MIN = 24 * 60
_MOST = 10**18  # of a number; str() might refuse a larger one


class Limited(NamedTuple):
    """The most to send, by the time of day and for the rest of it; None: no limit."""

    spans: tuple[Span, ...]
    rest_kbit_s: int | None


def after(read: Callable[[Any, str], Any]) -> AfterValidator:
    """Return a validator of what `read` makes of a value, from the folder of the file on."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        try:
            return read(value, info.context["folder"])  # type: ignore[index]  # load() gives it
        except UsageError as error:
            raise ValueError(in_words(error)) from None

    return AfterValidator(validate)


def in_words(error: UsageError) -> str:
    """Return what a UsageError says, without the option that it begins with, and its hint."""
    text = re.sub(r"^(-\w/)?(--[a-z-]+)?: ", "", error.message)
    return f"{text}; {error.hint}" if error.hint not in ("", UsageError.hint) else text


def whole(path: str, folder: str) -> str:
    """Return the path, from this folder on, with a "~" at its begin expanded. Raises UsageError."""
    if path == "-":
        raise UsageError("there is no standard input: name a file")
    found = os.path.expanduser(path)
    if found.startswith("~"):
        hint = "a name that begins with ~ is ./~NAME"
        raise UsageError(f"{path!r}: there is no such user here", hint)
    return os.path.join(folder, found)


def several(one: Any) -> Any:
    """Return the type of a value, or of a list of them: a tuple."""
    typed = one | Annotated[list[one], Field(min_length=1)]
    return Annotated[tuple[one, ...], BeforeValidator(_listed, json_schema_input_type=typed)]


def _listed(value: Any) -> tuple[Any, ...]:
    if value == []:
        raise ValueError("is empty")
    return tuple(value) if isinstance(value, list) else (value,)


def _path(text: str, folder: str) -> str:
    check_path(text)
    return text


def _place(text: str, folder: str) -> str:
    """Check a location, and return it as it was typed."""
    if not parse_location(text).is_remote:
        whole(text, folder)
    return text


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


def _typed(value: Any) -> Any:
    """Return a number as it would be typed; a text is typed already."""
    if isinstance(value, str):
        return value
    if type(value) is not int or abs(value) >= _MOST:
        raise ValueError("must be a text or a whole number, of 18 digits at most")
    return str(value)


def _seconds(text: str, folder: str) -> int:
    if (found := parse_seconds(text, "")) > MAX_AGE_S:
        raise UsageError(f"{text!r} is too long")
    return found


def _rate(text: str, folder: str) -> int | None:
    if text == "none":
        return None
    if (found := parse_kbit_s(text)) > MAX_LIMIT_KBIT_S:
        raise UsageError(f"{text!r} is too much")
    return found


def _limited(given: dict[str, int | None], folder: str) -> Limited:
    spans = {text: _span(text, kbit_s) for text, kbit_s in given.items() if text != "else"}
    for one, other in itertools.combinations(spans, 2):
        if _minutes(spans[one]) & _minutes(spans[other]):
            raise ValueError(f"{one} and {other} overlap", other)
    return Limited(tuple(spans.values()), given.get("else"))


def _span(text: str, kbit_s: int | None) -> Span:
    if not re.fullmatch(_SPAN, text):
        raise ValueError(f'{text!r} is no time of day, such as "08:00-20:00", nor "else"', text)
    hour, minute, last_hour, last_minute = map(int, re.split("[:-]", text))
    span = Span(hour * 60 + minute, last_hour * 60 + last_minute, kbit_s)
    if span.begins_min == span.ends_min:
        raise ValueError(f"{text} ends when it begins; a whole day is 00:00-24:00", text)
    return span


def _minutes(span: Span) -> set[int]:
    """Return the minutes of the day that it has; one that ends before it begins has a midnight."""
    length = (span.ends_min - span.begins_min) % _DAY_MIN or _DAY_MIN
    return {(span.begins_min + passed) % _DAY_MIN for passed in range(length)}


def _after(text: str, folder: str) -> tuple[str, str | None]:
    word, _, moved_to = text.partition(" ")
    if word == "move" and moved_to.strip():
        return word, whole(moved_to.strip(), folder)
    if text not in ("keep", "remove"):
        raise UsageError(f'must be "keep", "remove" or "move DIR", not {text!r}')
    return text, None


_Word = Annotated[str, after(_path)]
Text = Annotated[_Word, Field(min_length=1)]
Texts = several(Text)
File = Annotated[Text, after(whole)]
# An ssh_config, of which "none" is none; a program, which $PATH has if it is a name alone.
ConfigFile = Annotated[Text, after(lambda text, at: text if text == "none" else whole(text, at))]
Program = Annotated[Text, after(lambda text, at: whole(text, at) if "/" in text else text)]
Places: Any = Annotated[several(Annotated[Text, after(_place)]), after(_each_once)]
Command: Any = Annotated[several(_Word), WrapValidator(_command)]
Number = Annotated[Text, BeforeValidator(_typed, json_schema_input_type=str | int)]
Seconds = Annotated[Number, after(_seconds)]
Hosts = Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)]
Url = Annotated[HttpUrl, AfterValidator(str)]
After = Annotated[
    Text, after(_after), WithJsonSchema({"type": "string", "pattern": "^(keep|remove|move .+)$"})
]
_Rate = Annotated[Number, after(_rate)]
_Rates = dict[Annotated[str, Field(pattern=f"^({_SPAN}|else)$")], _Rate]
Limit = Annotated[
    dict[str, _Rate],
    BeforeValidator(
        lambda value: value if isinstance(value, dict) else {"else": value},
        json_schema_input_type=_Rate | _Rates,
    ),
    after(_limited),
]


@with_config(CLOSED)
class Reports(TypedDict, total=False):
    """A file for each form of a report."""

    json: File
    text: File
    html: File
