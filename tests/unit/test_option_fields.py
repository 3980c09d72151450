"""The tables of options: what each row says, and that type checkers know the same keywords."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pydoc
import re
from pathlib import Path
from typing import Any, ForwardRef

import pytest

import pscp
from pscp.options import option_fields
from pscp.options.option_fields import OptionFields, ReplicateFields, SessionFields
from pscp.options.option_rows import rows_of
from pscp.options.options import Options
from pscp.zfs.settings import Settings


def types_of(fields: Any) -> dict[str, str]:
    """The text of each field's type, of a TypedDict or a dataclass."""
    if dataclasses.is_dataclass(fields):
        return {each.name: str(each.type) for each in dataclasses.fields(fields)}
    shown = {}
    for name, kind in fields.__annotations__.items():
        assert isinstance(kind, ForwardRef)
        shown[name] = kind.__forward_arg__
    return shown


def as_text(types: dict[str, str]) -> dict[str, str]:
    """The types of what an Options has: of paths texts, of several a tuple, of choices texts."""
    found = {name: kind.replace(" | os.PathLike[str]", "") for name, kind in types.items()}
    several = {n: re.sub(r"Sequence\[(.*)\]", r"tuple[\1, ...]", k) for n, k in found.items()}
    return {name: re.sub(r"Literal\[.*?\]", "str", kind) for name, kind in several.items()}


def stub_of(name: str) -> dict[str, str]:
    """The fields of a class in the stub, with those of its bases."""
    text = Path(inspect.getfile(option_fields)).with_suffix(".pyi").read_text("utf-8")
    classes = {each.name: each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)}
    if name not in classes:
        return {}
    found = stub_of(ast.unparse(classes[name].bases[0]))
    fields = (each for each in classes[name].body if isinstance(each, ast.AnnAssign))
    return found | {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}


@pytest.mark.parametrize("fields", [OptionFields, SessionFields, ReplicateFields])
def test_a_type_checker_sees_what_a_program_sees(fields: Any) -> None:
    assert stub_of(fields.__name__) == types_of(fields)


def test_the_keywords_are_the_fields_of_options() -> None:
    """But for `progress`, the style of the command line: in the API that is a function."""
    known = types_of(Options)
    del known["progress"]
    assert as_text(types_of(OptionFields)) == known


def test_a_session_takes_a_connection_as_its_transport() -> None:
    ours, others = types_of(SessionFields), types_of(OptionFields)
    assert ours.pop("transport").split(" | ")[0] == others.pop("transport")
    assert ours == others


def test_a_replication_takes_the_fields_of_settings_as_well() -> None:
    both = as_text(types_of(OptionFields)) | types_of(Settings)
    assert as_text(types_of(ReplicateFields)) == both


@pytest.mark.parametrize("table", [Options, Settings])
def test_every_option_has_words_and_says_what_its_keyword_means(table: Any) -> None:
    rows = {name: row for name, _, row in rows_of(table)}
    assert rows.keys() == types_of(table).keys()
    for name, row in rows.items():
        assert row.doc[0] in '`"(4' or row.doc[0].isupper(), name
        assert row.doc.endswith("."), name
        assert all(flag.names[-1].startswith("--") for flag in row.flags), name


def test_help_leads_to_the_keywords() -> None:
    assert "help(pscp.Options)" in (inspect.getdoc(pscp.copy) or "")
    shown = pydoc.plain(pydoc.render_doc(pscp.Options))
    assert [name for name in types_of(Options) if f"{name}: " not in shown] == []
