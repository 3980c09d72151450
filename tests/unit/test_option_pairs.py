"""pscp.options.option_pairs: each pair goes, is refused or means something, as it says."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest

from pscp.ground.errors import UsageError
from pscp.options.option_pairs import COMBINED, MEANT, NEEDED, REFUSED, is_given, spelled
from pscp.options.options import Options

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
    with pytest.raises(UsageError) as caught:
        Options(**fields)  # type: ignore[arg-type]
    assert caught.value.message.startswith(spelled(pair[0]))


def test_the_tables_name_each_pair_once_and_options_that_there_are() -> None:
    named = [frozenset(pair[:2]) for pair in (*REFUSED, *MEANT, *NEEDED)]
    assert len(named) == len(set(named))
    known = {field.name for field in dataclasses.fields(Options)} | {"has_plane"}
    for pair in (*REFUSED, *MEANT, *NEEDED):
        assert {name.partition("=")[0] for name in pair[:2]} <= known
    for pair in (*REFUSED, *MEANT):
        assert {pair.one, pair.other} <= set(COMBINED)
    assert all(pair.why for pair in (*REFUSED, *MEANT))
