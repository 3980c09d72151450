"""failures.py: what went wrong survives the wire, and a far end cannot put anything else there.

Read next: pscp/endpoint/frames/failures.py.
"""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading import files
from pscp.ground.errors import FileError, SystemFailure
from pscp.transfer.terms.results import as_error

kinds = st.sampled_from(sorted(failures.KINDS))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def travelled(data: failures.Data) -> failures.Data:
    return failures.parse_failure(json.loads(wire.to_json(data)))


@given(kinds, st.text(st.characters(), max_size=300), st.text(max_size=300), st.integers(0, 200))
def test_a_failure_survives_the_wire(kind: str, path: str, message: str, number: int) -> None:
    data = failures.data(kind, path, message, number)
    # As the standard library reads its own output: a pair of surrogates is one character.
    assert travelled(data) == json.loads(json.dumps(data))


@given(
    anything
    | st.fixed_dictionaries(
        {},
        optional={
            "kind": kinds | anything, "path": anything, "message": anything, "errno": anything,
        },
    )
)  # fmt: skip
@example({"kind": []})
@example({"kind": {}})
def test_anything_else_is_a_wire_error_or_of_the_right_types(value: object) -> None:
    try:
        data = failures.parse_failure(value)
    except wire.WireError:
        return
    assert data["kind"] in failures.KINDS
    assert isinstance(data["path"], str) and len(data["path"]) <= 8192
    assert isinstance(data["message"], str) and len(data["message"]) <= 1024
    assert isinstance(data["errno"], int)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENAMETOOLONG])
def test_an_errno_keeps_its_meaning(number: int) -> None:
    data = travelled(failures.from_exception(OSError(number, "x", "/secret"), "a/b"))
    assert data == failures.data("system", "a/b", os.strerror(number), number)
    error = as_error(data)
    assert isinstance(error, SystemFailure)
    assert (error.path, error.errno) == ("a/b", number)


def test_each_exception_has_its_kind() -> None:
    refusal = failures.Refusal(failures.UNSAFE, "its own", "no")
    assert failures.from_exception(refusal, "other") == failures.data("unsafe", "its own", "no")
    assert failures.from_exception(files.FileChanged(), "p")["kind"] == failures.CHANGED
    assert failures.from_exception(OSError("no number"), "p")["message"] == "no number"


def test_a_bug_is_raised_and_not_reported() -> None:
    with pytest.raises(ZeroDivisionError):
        failures.from_exception(ZeroDivisionError(), "p")


@pytest.mark.parametrize("kind", sorted(failures.KINDS))
def test_each_kind_is_an_error_that_a_user_sees(kind: str) -> None:
    error = as_error(failures.data(kind, "a/b", "why"))
    assert isinstance(error, FileError)
    assert (error.path, error.message) == ("a/b", "why")


def test_places_are_those_of_what_failed() -> None:
    no = failures.data("unsafe", "p", "m")
    assert failures.places([None, no, None, no]) == [(1, no), (3, no)]
