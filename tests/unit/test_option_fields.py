"""The tables of options: what each row says, keywords for type checkers, what goes together."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pydoc
import re
from itertools import combinations
from pathlib import Path
from typing import Any, ForwardRef

import pytest

import pscp
from pscp.ground.errors import UsageError
from pscp.options import option_fields
from pscp.options.connection_options import ConnectionOptions
from pscp.options.keywords import as_typed
from pscp.options.option_fields import OptionFields, ReplicateFields, SessionFields
from pscp.options.option_pairs import (
    COMBINED,
    NEEDED,
    NOT_OF_A_CLUSTER,
    REFUSED,
    check_several_hosts,
    is_given,
    spelled,
)
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
    several = {
        n: re.sub(r"(?:str \| )?Sequence\[(.*)\]", r"tuple[\1, ...]", k) for n, k in found.items()
    }
    return {name: re.sub(r"Literal\[.*?\]", "str", kind) for name, kind in several.items()}


def classes_of_stub() -> dict[str, ast.ClassDef]:
    text = Path(inspect.getfile(option_fields)).with_suffix(".pyi").read_text("utf-8")
    return {each.name: each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)}


def stub_of(name: str) -> dict[str, str]:
    """The fields of a class in the stub, with those of its bases."""
    classes = classes_of_stub()
    if name not in classes:
        return {}
    found = stub_of(ast.unparse(classes[name].bases[0]))
    fields = (each for each in classes[name].body if isinstance(each, ast.AnnAssign))
    return found | {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}


@pytest.mark.parametrize("fields", [OptionFields, SessionFields, ReplicateFields])
def test_a_type_checker_sees_what_a_program_sees(fields: Any) -> None:
    assert stub_of(fields.__name__) == types_of(fields)


def test_h2_no_base_has_a_keyword_that_is_a_method_of_dicts() -> None:
    """There pyright sees the method, and refuses `update=True`."""
    for each in classes_of_stub().values():
        assert not stub_of(ast.unparse(each.bases[0])).keys() & set(dir(dict))
    assert "update" in stub_of("OptionFields")


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


@pytest.mark.parametrize(
    "call",
    [
        pscp.Options, pscp.copy, pscp.fan_out, pscp.verify, pscp.replicate, pscp.Session,
        pscp.aio.copy, pscp.aio.copying, pscp.aio.fan_out, pscp.aio.Session,
    ],
)  # fmt: skip
def test_help_lists_each_keyword_once(call: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(call)).partition("Keywords:\n")[2]
    lines = re.findall(r"^[ |]+(\w+)=\S.*?: \S.*\.$", shown, re.MULTILINE)
    of_call: dict[Any, list[Any]] = {
        pscp.replicate: [Settings, Options], pscp.verify: [ConnectionOptions]
    }  # fmt: skip
    tables = of_call.get(call, [Options])
    names = dict.fromkeys(name for table in tables for name, *_ in rows_of(table))
    assert lines == [name for name in names if name != "progress"]  # in the API a function


# --- pairs


SAMPLES: dict[str, dict[str, object]] = {
    "filters": {"filters": (("exclude", "*.tmp"),)},
    "files_from": {"files_from": "list"},
    "min_size_bytes": {"min_size_bytes": 1},
    "max_size_bytes": {"max_size_bytes": 10},
    "min_age_s": {"min_age_s": 1},
    "max_age_s": {"max_age_s": 10},
    "max_delete": {"max_delete": 3},
    "backup_dir": {"backup_dir": "old"},
    "suffix": {"suffix": ".old"},
    "link_dest": {"link_dest": ("../yesterday",)},
    "chmod": {"chmod": "go-w"},
    "chown": {"chown": "0:0"},
    "has_plane": {"plane": "tls"},
    "manifest": {"manifest": "data.jsonl"},
    "resume=False": {"resume": False},
    "verify=none": {"verify": "none"},
    "remote=sftp": {"remote": "sftp"},
    "manifest_format": {"manifest_format": "jsonl"},
    "sign": {"sign": "key"},
}
REFUSED_NAMES = {frozenset(pair[:2]) for pair in REFUSED}


def sample(*names: str) -> dict[str, object]:
    """Return keywords that give these options, and what they need."""
    given: dict[str, object] = {}
    for name in names:
        given |= SAMPLES.get(name, {name: True})
        given |= sample(*(pair.other for pair in NEEDED if pair.one == name))
    if {"delete", "backup"} <= given.keys():
        given |= SAMPLES["backup_dir"]
    return given


def implied(*names: str) -> set[str]:
    """Return the options that are given with these: what they need, and what --check sets."""
    needed = {pair.other for pair in NEEDED if pair.one in names}
    return {*names, *needed, *(["dry_run"] if "check" in names else [])}


def is_refused(*names: str) -> bool:
    given = implied(*names)
    return any(frozenset(pair) in REFUSED_NAMES for pair in combinations(given, 2))


@pytest.mark.parametrize("one", COMBINED)
def test_a_pair_is_refused_where_the_table_says_so(one: str) -> None:
    for other in COMBINED[COMBINED.index(one) + 1 :]:
        fields = sample(one, other)
        if is_refused(one, other):
            with pytest.raises(UsageError, match="does not go with"):
                Options(**fields)  # type: ignore[arg-type]
            continue
        options = Options(**fields)  # type: ignore[arg-type]
        # -t leaves -s out: what it reads back has not landed.
        assert all(is_given(options, name) for name in (one, other)) or one == "strong"


@pytest.mark.parametrize("pair", NEEDED, ids=lambda pair: f"{pair.one}+{pair.other}")
def test_what_is_needed_is_asked_for(pair: tuple[str, str]) -> None:
    fields = {**SAMPLES.get(pair[0], {pair[0]: True})}
    with as_typed(), pytest.raises(UsageError) as caught:
        Options(**fields)  # type: ignore[arg-type]
    assert caught.value.message.startswith(spelled(pair[0]))


def test_what_is_not_wanted_is_not_refused() -> None:
    """And a file may be called as what says so."""
    check_several_hosts(Options(cluster="local:2", persist="no"))
    several: tuple[dict[str, Any], ...] = {"persist": "1m"}, {"manifest": "no", "recursive": True}
    for more in several:
        with pytest.raises(UsageError, match="does not go with several hosts"):
            check_several_hosts(Options(**more))


def test_the_tables_name_each_pair_once_and_options_that_there_are() -> None:
    pairs = *REFUSED, *NEEDED, *NOT_OF_A_CLUSTER
    named = [frozenset(pair[:2]) for pair in pairs]
    assert len(named) == len(set(named))
    known = {field.name for field in dataclasses.fields(Options)} | {"has_plane"}
    for pair in pairs:
        assert {name.partition("=")[0] for name in pair[:2]} <= known
    for pair in REFUSED:
        assert {pair.one, pair.other} <= set(COMBINED)
    assert all(pair.why for pair in (*REFUSED, *NOT_OF_A_CLUSTER))
