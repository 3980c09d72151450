"""pscp.transfer.walk.decide: the table is whole, each row is needed, and it keeps what is promised.

Not here: one file's cases by name (test_quick_check.py), what is done (e2e/test_quick_check.py).
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import tree
from pscp.ground.errors import UsageError
from pscp.options.options import Options
from pscp.transfer.walk import decide
from pscp.transfer.walk.decide import ROWS, Action, Fact, State, Terms, There

KINDS = (tree.FILE, tree.LINK, tree.HARDLINK, tree.FOLDER, tree.FIFO)
FLAGS = (
    "existing", "ignore_existing", "update", "dry_run", "check", "size_only", "checksum", "strong",
    "preserve", "archive", "remove_source_files",
)  # fmt: skip
SECOND_NS = 10**9
HAS_FILE = (State.SAME, State.SIZE, State.OTHER)


def every_case() -> itertools.product[tuple[str, State, frozenset[Fact]]]:
    facts = [
        frozenset(some)
        for count in range(len(Fact) + 1)
        for some in itertools.combinations(Fact, count)
    ]
    return itertools.product(KINDS, State, facts)


def test_each_row_decides_something_and_nothing_falls_through() -> None:
    deciding = set()
    for kind, state, facts in every_case():
        fitting = [row for row in ROWS if decide._fits(row, kind, state, facts)]
        assert fitting, (kind, state, facts)
        deciding.add(ROWS.index(fitting[0]))
        assert decide._decided(kind, state, facts) is fitting[0].action
    assert deciding == set(range(len(ROWS)))


def test_what_holds_whatever_the_facts_are() -> None:
    for kind, state, facts in every_case():
        action = decide._decided(kind, state, facts)
        is_there = state is not State.NOTHING
        # N11: a hard link is never sent itself; it has no content of its own.
        if kind == tree.HARDLINK:
            assert action is not Action.SEND
            assert action is not Action.HASH or Fact.LISTS in facts  # where nothing is sent
        if Fact.IGNORE_EXISTING in facts and is_there and kind != tree.FOLDER:
            assert action is Action.SKIP
        if Fact.EXISTING in facts and not is_there:
            assert action is Action.SKIP
        is_in_the_way = state in (State.FOLDER, State.SPECIAL)
        if is_in_the_way and kind != tree.FOLDER:
            stays = Action.REPLACE if Fact.MIRRORS in facts else Action.REFUSE
            assert action in (stays, Action.SKIP)
        if kind == tree.FOLDER and is_there:
            may_replace = Fact.MIRRORS in facts and Fact.IGNORE_EXISTING not in facts
            is_sent = state is State.FOLDER or may_replace
            assert action is (Action.SEND if is_sent else Action.REFUSE)
        if Fact.NEWER in facts and kind == tree.FILE and state in HAS_FILE:
            assert action is Action.SKIP
        if action is Action.UNCHANGED:
            assert state is State.SAME


numbers = st.integers(0, 3)
entries = st.builds(
    lambda kind, size, mtime_s, target: tree.Entry(
        kind, 0, "x", size, 0o644, mtime_s * SECOND_NS, 1, {"to": target, "in": 0}
    ),
    st.sampled_from(KINDS), numbers, numbers, st.sampled_from(["a", "b"]),
)  # fmt: skip
theres = st.builds(
    lambda kind, size, mtime_s, left, target: There(
        kind, size, mtime_s * SECOND_NS, left, 0o644, (), target
    ),
    st.sampled_from(["", tree.FILE, tree.LINK, tree.FOLDER, "other"]), numbers, numbers,
    st.sampled_from([[], ["0123abcd"]]), st.sampled_from(["a", "b"]),
)  # fmt: skip


@st.composite
def options(draw: st.DrawFn) -> Options:
    flags = dict.fromkeys(draw(st.sets(st.sampled_from(FLAGS))), True)
    try:
        return Options(recursive=True, resume=draw(st.booleans()), **flags)  # type: ignore[arg-type]
    except UsageError:
        return Options()


@given(entries, theres, options(), st.booleans())
def test_what_the_docs_promise(
    entry: tree.Entry, there: There, given: Options, has_part: bool
) -> None:
    action = decide.decide(entry, there, Terms.of(given), has_part=has_part)
    is_file = entry.kind == tree.FILE == there.kind
    if given.remove_source_files and is_file and not given.size_only:
        assert action is not Action.UNCHANGED  # what was not read is not removed at its source
    if given.strong and is_file and not given.size_only:
        assert action is not Action.UNCHANGED
    if not given.resume and not given.dry_run and entry.kind != tree.FIFO:
        assert action is not Action.UNCHANGED and action is not Action.HASH
    if given.update and is_file and there.mtime_ns > entry.mtime_ns:
        assert action is Action.SKIP
    if there.kind == "" and not given.existing:
        wanted = Action.LINK if entry.kind == tree.HARDLINK else Action.SEND
        assert action is wanted is decide.decide(entry, None, Terms.of(given))


@pytest.mark.parametrize("name", ["update", "existing", "ignore_existing", "dry_run"])
def test_a_hard_link_is_looked_up_where_an_option_asks_what_is_there(name: str) -> None:
    link = tree.Entry(tree.HARDLINK, 0, "x", 1, 0o644, 1, 1, {"in": 0, "to": "a"})
    assert decide.must_look(link, False, Options(**{name: True}))  # type: ignore[arg-type]
    assert not decide.must_look(link, True, Options(**{name: True}))  # type: ignore[arg-type]
    assert not decide.must_look(link, False, Options())
