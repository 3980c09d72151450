"""Types of values for the schemas of files in TOML, as pydantic checks them.

A value becomes what a program takes: times are in seconds, files have whole paths, and what may
be a text or a list of them is a tuple. What is wrong is a ValueError with a text, and where in the
value, if it is not all of it.

Not here: where a mistake is (reading.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, with_config
from typing_extensions import TypedDict  # typing's, for pydantic, from Python 3.12 on

from pscp.ground.errors import UsageError
from pscp.ground.locations import check_path
from pscp.ground.values import parse_seconds
from pscp.options.option_rows import MAX_AGE_S


def after(read: Callable[[Any, str], Any]) -> AfterValidator:
    """Return a validator of what `read` makes of a value, from the folder of the file on."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        try:
            return read(value, info.context["folder"])  # type: ignore[index]  # load() gives it
        except UsageError as error:
            raise ValueError(in_words(error, has_key=True)) from None

    return AfterValidator(validate)


def in_words(error: UsageError, *, has_key: bool = False) -> str:
    """Return what a UsageError says, and its hint; not the option that it begins with where a key
    stands before.
    """
    named = r"^(-\w/)?(--[a-z-]+)?: |^--[a-z-]+ (?=must be |is empty|has a control )"
    text = re.sub(named, "", error.message) if has_key else error.message
    return f"{text}; {error.hint}" if error.hint else text


def whole(path: str, folder: str) -> str:
    """Return the path, from this folder on, with a "~" at its begin expanded. Raises UsageError."""
    found = os.path.expanduser(path)
    if path == "-":
        raise UsageError("there is no standard input: name a file")
    if found.startswith("~"):
        raise UsageError(f"{path!r}: there is no such user here", "a name with a ~ is ./~NAME")
    return os.path.join(folder, found)


def several(one: Any) -> Any:
    """Return the type of a value, or of a list of them: a tuple."""
    listed = Annotated[list[one], Field(min_length=1)]
    made = BeforeValidator(
        lambda value: tuple(value) if isinstance(value, list) else (value,),
        json_schema_input_type=one | listed,
    )
    return Annotated[tuple[one, ...], Field(min_length=1), made]


def _path(text: str, folder: str) -> str:
    check_path(text)
    return text


Word = Annotated[str, after(_path)]
Text = Annotated[Word, Field(min_length=1)]


def _typed(value: Any) -> str:
    """Return a number as it would be typed; a text is typed already."""
    if type(value) not in (str, int):
        raise ValueError("must be a text or a whole number")
    return str(value)


Number = Annotated[Text, BeforeValidator(_typed, json_schema_input_type=str | int)]


def with_unit(parse: Callable[[str], int], most: int) -> Any:
    """Return the type of what may have a unit."""

    def read(text: str, folder: str) -> int:
        if (found := parse(text)) > most:
            raise UsageError(f"{text!r} is too much")
        return found

    return Annotated[Number, after(read)]


Texts = several(Text)
File = Annotated[Text, after(whole)]

Seconds = with_unit(lambda text: parse_seconds(text, ""), MAX_AGE_S)


class Key(NamedTuple):
    """A key that is no option."""

    kind: Any
    meaning: str
    example: object


def types_of(keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return the types of these keys, with what an editor says of each."""
    return {
        name: Annotated[key.kind, Field(description=key.meaning, examples=[key.example])]
        for name, key in keys.items()
    }


def closed(name: str, keys: dict[str, Any]) -> Any:
    """Return the type of a table that has these keys and no others."""
    make: Any = TypedDict
    # 1 is no true here.
    return with_config(ConfigDict(extra="forbid", strict=True))(make(name, keys, total=False))
