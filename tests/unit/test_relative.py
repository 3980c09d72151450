"""relative.py: where a source lands with -R, and which far sources are refused.

Read next: pscp/transfer/terms/relative.py.
"""

from __future__ import annotations

import pytest

from pscp.endpoint.reading.source import Top
from pscp.ground.errors import ProtocolError
from pscp.transfer.terms.relative import name_of


def landed(typed: str, path: str, *, is_strict: bool = True) -> str:
    stripped = path.rstrip("/")
    name = "" if stripped.endswith("/.") else stripped.rpartition("/")[2]
    return name_of(typed, Top(name, path, True), is_pattern=True, is_strict=is_strict)


@pytest.mark.parametrize(
    ("typed", "path", "name"),
    [
        ("/a/b", "/a/b", "a/b"),
        ("a/b/", "a/b/", "a/b"),
        ("a//./b/.", "a//./b/.", "b"),
        ("/a/./b/./c", "/a/./b/./c", "b/c"),
        ("~/a/b", "/home/user/a/b", "a/b"),
        ("~/a/./b", "/home/user/a/./b", "b"),
        ("/a*/[xy]", "/ab/x", "ab/x"),
        (r"/a\ b/\*", "/a b/*", "a b/*"),
        ("/a/[x]", "/a/[x]", "a/[x]"),  # a name that exists
        ("/.", "/.", ""),
    ],
)
def test_a_place_is_what_was_typed(typed: str, path: str, name: str) -> None:
    assert landed(typed, path) == name


@pytest.mark.parametrize(
    ("typed", "path"),
    [("/a/b", "/c/b"), ("/a*/b", "/c/b"), ("/a/b", "b"), ("/a/*", "/a/../b/x")],
)
def test_a_far_end_names_no_other_folder(typed: str, path: str) -> None:
    with pytest.raises(ProtocolError):
        landed(typed, path)


def test_with_loose_names_only_what_leads_elsewhere_is_refused() -> None:
    assert landed("/a/b", "/c/b", is_strict=False) == "c/b"
    with pytest.raises(ProtocolError):
        landed("/a/b", "/../b", is_strict=False)
