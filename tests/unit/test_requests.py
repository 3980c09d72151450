"""requests.py: every record survives its JSON, and nothing else than a record comes out of JSON.

Read next: pscp/endpoint/asking/requests.py.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pscp.connect import agent_program
from pscp.endpoint.asking import answers, requests
from pscp.endpoint.asking.requests import Pieces, Words
from pscp.endpoint.frames import wire
from pscp.endpoint.frames.wire import to_json
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving import onward
from pscp.endpoint.there import counting, hardlinks, kernel, leftovers, lookup, reuse
from pscp.endpoint.writing import seen, tries
from pscp.sftp import end as sftp_end
from pscp.transfer.negotiation import in_pieces

for _name in ("end", *agent_program.COPY_MODULES):  # each adds its requests
    importlib.import_module(f"pscp.endpoint.{agent_program.path_of(_name).replace('/', '.')}")
KINDS = list(requests.KINDS.values())
ONWARD = [onward.Dial, onward.Tell, onward.PassChunk, onward.PassPack]

numbers = st.integers(0, (1 << 64) - 1)
names = st.text(st.characters())  # with lone surrogates, as undecodable names have them
pieces = st.lists(st.tuples(numbers, numbers), max_size=3)
known = st.builds(
    source.SourceFile, numbers, names, numbers, st.integers(-(1 << 63), 1 << 63), numbers
)
entry = st.builds(
    tree.Entry, st.just(tree.FILE), st.integers(0, 9), names, st.integers(0, wire.MAX_OFFSET),
    st.integers(0, 0o7777), st.integers(-(1 << 63), 1 << 63), numbers,
    st.fixed_dictionaries({}, optional={"sparse": st.just(1)}),
)  # fmt: skip
filters = st.lists(st.tuples(names, names), max_size=2)
rules = st.builds(tree.Rules, *[st.booleans()] * 4, filters, st.booleans())


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    special: dict[Any, st.SearchStrategy[Any]] = {
        str: names, bool: st.booleans(), int: numbers, Words: names | st.lists(names, max_size=3),
        tree.Entry: entry, source.SourceFile: known, tree.Rules: rules, Pieces: pieces,
    }  # fmt: skip
    if type_ in special:
        return special[type_]
    origin = getattr(type_, "__origin__", None)
    inner: tuple[Any, ...] = getattr(type_, "__args__", ())
    if origin is list:
        return st.lists(values_of(inner[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values_of, inner))
    if origin is dict:
        return st.dictionaries(names, st.none() | names, max_size=2)
    if inner and type(None) in inner:
        return st.none() | values_of(inner[0])
    if type_ is counting.Bounds:
        return st.builds(counting.Bounds, *[st.none() | numbers] * 4)
    assert type_ is source.Top, type_
    return st.builds(source.Top, names, names, st.booleans())


def records(kind: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, *[values_of(hints[name]) for name in hints])


def as_lists(value: Any) -> Any:
    """What is left of tuples and records in JSON."""
    if isinstance(value, (list, tuple)):
        return [as_lists(each) for each in value]
    return value


def travelled(request: requests.Request) -> Any:
    return requests.from_json(json.loads(requests.to_json(request)))


@settings(max_examples=5)
@given(st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    request = data.draw(records(kind))
    arrived = travelled(request)
    assert type(arrived) is kind
    assert as_lists(arrived) == as_lists(request)


def test_records_inside_a_record_arrive_as_records() -> None:
    file = source.SourceFile(0, "dir/x", 5, -1, 7)
    assert travelled(requests.Extents(file, 3)).file.path == "dir/x"
    top, walk = source.Top("x", "/x", True), tree.Rules(True, False, True, False, [])
    begin = requests.BeginSource([top], walk, "sha256", 1, False, False)
    assert travelled(begin).tops[0].is_folder
    assert travelled(begin).rules.recursive


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=100)
@given(st.sampled_from(KINDS), st.data())
def test_a_record_with_any_field_changed_is_a_record_or_a_wire_error(
    kind: type, data: st.DataObject
) -> None:
    value = json.loads(requests.to_json(data.draw(records(kind))))
    value[data.draw(st.sampled_from(sorted(value)))] = data.draw(anything)
    with contextlib.suppress(wire.WireError):
        assert type(requests.from_json(value)) in KINDS
    del value[data.draw(st.sampled_from(sorted(value)))]
    with pytest.raises(wire.WireError):
        requests.from_json(value)


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [
        (lookup.Lookup(["x"]), "paths", "x"), (lookup.Lookup(["x"]), "paths", [5]),
        (requests.Revoke(1), "lane", True), (requests.Revoke(1), "lane", -1),
        (requests.Revoke(1), "lane", 1 << 64), (requests.Revoke(1), "lane", 1.0),
        (requests.Walk(None, True, 1), "restart", 1), (requests.Walk(None, True, 1), "after", [1]),
        (leftovers.Clean("x", False), "path", 5), (lookup.Inherit, "entry", ["file"]),
        (lookup.ExtentsThere("x", 0), "offset", None),
        (lookup.DigestsThere([], "sha256"), "files", [[True, "x", [[0]]]]),
        (lookup.DigestsThere([], "sha256"), "files", [[1, "x", []]]),
        (requests.Ping(), "more", 1), (requests.Ping(), "ask", "Nothing"),
        (requests.Ping(), "ask", ["Ping"]),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_a_wire_error(request_: Any, field: str, value: Any) -> None:
    if isinstance(request_, type):
        made = {"ask": request_.__name__, "entry": [], "nonce": "0"}
    else:
        made = json.loads(requests.to_json(request_))
    made[field] = value
    with pytest.raises(wire.WireError):
        requests.from_json(made)


def test_the_file_that_a_request_is_about() -> None:
    one = tree.Entry(tree.FILE, 0, "dir/x", 1, 0o644, 0, 1, {})
    assert requests.path_of(requests.Make(one)) == "dir/x"
    assert requests.path_of(reuse.Reuse(one, [], [], "sha256")) == "dir/x"
    assert requests.path_of(requests.Discard("y", [])) == "y"
    assert requests.path_of(leftovers.Clean(None, False)) == ""
    assert requests.path_of(lookup.Lookup(["a", "b"])) == ""


def test_either_end_answers_every_request() -> None:
    apart = {requests.Pack, requests.OpenPlane}  # by a frame of its own kind, and by the process
    assert {*answers.ANSWERS} | apart == set(KINDS)
    agents_alone = {requests.OpenPlane, requests.Cpu, kernel.Kernel, reuse.Reuse}
    agents_alone |= {hardlinks.LinkFolders, hardlinks.LinkSame, requests.Learn}
    agents_alone |= {*ONWARD, seen.Nearest, seen.Show, seen.Look, seen.Sources, tries.BeginTry}
    without_sftp = agents_alone | {*requests.OF_STREAM}
    assert sftp_end.ANSWERS.keys() | {requests.Pack} == set(KINDS) - without_sftp


@given(st.lists(st.tuples(st.sampled_from(["a", "é", "\n", "\udcff"]), st.integers(1, 255))))
def test_any_number_of_names_goes_in_pieces(made: list[tuple[str, int]]) -> None:
    """Each piece has room for its names, whatever they are; all are there once, in their order."""
    names = [f"{text * times}{number}" for number, (text, times) in enumerate(made)] * 40
    pieces = [names[piece] for piece in in_pieces(names)]
    assert [name for piece in pieces for name in piece] == names
    for piece in pieces:
        assert piece
        assert len(to_json([piece, piece, [False] * len(piece)])) < 1 << 20
