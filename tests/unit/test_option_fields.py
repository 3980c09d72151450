"""pscp.option_fields: the keywords that type checkers know are those that there are."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import pydoc
import re
from typing import Any, ForwardRef, is_typeddict

import pscp
from pscp import option_fields
from pscp.option_fields import OptionFields, ReplicateFields, SessionFields
from pscp.options import Options
from pscp.zfs.settings import Settings


def types_of(fields: Any) -> dict[str, str]:
    """The text of each field's type, of a TypedDict or a dataclass."""
    if not is_typeddict(fields):
        return {each.name: str(each.type) for each in dataclasses.fields(fields)}
    shown = {}
    for name, kind in fields.__annotations__.items():
        assert isinstance(kind, ForwardRef)
        shown[name] = kind.__forward_arg__.replace(" | os.PathLike[str]", "")  # made a text
    return shown


def without(types: dict[str, str], *names: str) -> dict[str, str]:
    return {name: kind for name, kind in types.items() if name not in names}


def test_the_keywords_are_the_fields_of_options() -> None:
    """But for `progress`, the style of the command line: in the API that is a function."""
    assert types_of(OptionFields) == without(types_of(Options), "progress")


def test_a_session_takes_a_connection_as_its_transport() -> None:
    ours, others = types_of(SessionFields), types_of(OptionFields)
    assert ours.pop("transport").split(" | ")[0] == others.pop("transport")
    assert ours == others


def test_a_replication_takes_the_fields_of_settings_as_well() -> None:
    assert types_of(ReplicateFields) == types_of(OptionFields) | types_of(Settings)


def test_every_keyword_says_what_it_means() -> None:
    lines = inspect.getsource(option_fields).splitlines()
    for line, below in itertools.pairwise(lines):
        if re.match(r"    \w+: ", line):
            assert re.fullmatch(r'    """.*\."""', below), line


def test_help_leads_to_the_keywords() -> None:
    assert "help(pscp.Options)" in (inspect.getdoc(pscp.copy) or "")
    shown = pydoc.plain(pydoc.render_doc(pscp.Options))
    assert [name for name in types_of(Options) if f"{name}: " not in shown] == []
