"""transfer/terms/journal.py: whatever end a run came to, its journal loads and says what was so.

Not here: copies that go on (../core/test_clones.py, ../core/test_earlier_versions.py).
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Identity
from pscp.ground.errors import CopyRunning
from pscp.ground.state import folder as state_folder
from pscp.transfer.terms.journal import (
    UNKNOWN,
    ZEROS,
    FileNotes,
    Journal,
    PartUse,
    decide_part_use,
    rest_of,
    token_of,
)

ONE = Identity(1000, 1_700_000_000_000_000_001, 12)
TWO = Identity(2000, 1_700_000_000_000_000_002, 13)
PATHS = ("a", "dir/two\nlines", "not \udcff UTF-8")

chunks = st.lists(
    st.tuples(st.sampled_from(PATHS), st.integers(0, 9).map(lambda n: n * 100)), max_size=12
)


@contextmanager
def state(folder: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A state folder of its own; the journal's path in it."""
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder or made))
        yield Path(state_folder()) / "key.journal"


def run(landing: list[tuple[str, int]], digest: str, keep: bool = True) -> None:
    """A run in which these chunks of 100 bytes land; then it is killed."""
    journal = Journal("key", keep)
    numbers = {path: journal.file(path, ONE, "sha256", "zeros") for path in PATHS}
    for path, offset in landing:
        journal.chunk(numbers[path], offset, 100, digest)
    assert journal._fd is not None
    os.close(journal._fd)


def read() -> dict[str, dict[tuple[int, int], str]]:
    """What a later run is told of each file."""
    journal = Journal("key")
    found = {path: journal.landed(path, ONE) for path in PATHS}
    journal.close(complete=False)
    return {path: landed.digests for path, landed in found.items() if landed is not None}


def expected(landing: list[tuple[str, int]], digest: str) -> dict[str, dict[tuple[int, int], str]]:
    return {
        path: {(offset, 100): digest for where, offset in landing if where == path}
        for path in PATHS
    }


@given(chunks, chunks)
def test_two_runs_add_up(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    with state():
        run(first, "d1")
        run(second, "d2")
        before, after = expected(first, "d1"), expected(second, "d2")
        assert read() == {path: {**before[path], **after[path]} for path in PATHS}


@given(chunks, chunks, st.integers(0, 10_000))
def test_a_journal_cut_at_any_byte(
    first: list[tuple[str, int]], second: list[tuple[str, int]], at: int
) -> None:
    """It invents nothing and forgets no line that is whole; the next run is recorded whole."""
    with state() as path:
        run(first, "d1")
        whole = path.read_bytes()
        at %= len(whole) + 1
        path.write_bytes(whole[:at])
        found, all_of_it = read(), expected(first, "d1")
        for name, digests in found.items():
            assert digests.items() <= all_of_it[name].items()
        kept = sum(1 for line in whole[:at].split(b"\n")[:-1] if line.startswith(b'["chunk"'))
        known = {(name, offset) for name, offset in first[:kept]}
        assert {(name, o) for name, digests in found.items() for o, _ in digests} >= known
        path.write_bytes(whole[:at])
        run(second, "d2")
        found, wanted = read(), expected(second, "d2")
        for name in PATHS:
            assert wanted[name].items() <= found[name].items()
            assert found[name].items() - wanted[name].items() <= all_of_it[name].items()


@pytest.mark.parametrize(
    "line",
    ["null", "[]", "[1]", '{"a":1}', '"chunk"', "\0\0\0", "[" * 100_000, '["done",1]', '["file",1]',
     '["chunk",7,0,1,"d"]', '["chunk",[],0,1,"d"]', '["file",1e999,"a",1,1,1,"x"]',
     '["file",1,[],1,1,1,"x"]'],
)  # fmt: skip
def test_a_line_of_another_shape_is_passed_over(line: str) -> None:
    with state() as path:
        path.parent.mkdir(parents=True)
        path.write_text(line + "\n")
        run([("a", 0)], "d1")
        assert read() == expected([("a", 0)], "d1")


def test_another_identity_or_algorithm_is_another_file() -> None:
    with state():
        run([("a", 0)], "d1")
        journal = Journal("key")
        others = [journal.knows_another(*file) for file in (("a", TWO), ("a", ONE), ("b", ONE))]
        assert others == [True, False, False]
        assert journal.landed("a", TWO) is None
        assert journal.landed("b", ONE) is None
        number = journal.file("a", ONE, "blake2b", "zeros")
        journal.chunk(number, 100, 100, "d2")
        journal.close(complete=False)
        again = Journal("key")
        landed = again.landed("a", ONE)
        again.close(complete=False)
        assert landed is not None
        assert (landed.algorithm, landed.digests) == ("blake2b", {(100, 100): "d2"})


def test_a_file_that_is_done_is_not_known_any_more() -> None:
    with state():
        journal = Journal("key")
        number = journal.file("a", ONE, "sha256", "zeros")
        other = journal.file("b", TWO, "sha256", "zeros")
        journal.chunk(number, 0, 100, "d")
        journal.chunk(other, 0, 100, "d")
        journal.done(number)
        journal.close(complete=False)
        again = Journal("key")
        assert again.landed("a", ONE) is None
        assert again.landed("b", TWO) is not None
        again.close(complete=False)


def test_the_same_copy_cannot_run_twice_at_once() -> None:
    with state():
        journal = Journal("key")
        with pytest.raises(CopyRunning, match=r"the same copy is already running$"):
            Journal("key")
        Journal("another").close(complete=True)
        journal.close(complete=False)
        Journal("key").close(complete=True)


def test_b1_a_process_forked_meanwhile_holds_no_journal() -> None:
    with state():
        journal = Journal("key")
        journal.file("a", ONE, "sha256", "zeros")
        reads, writes = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(writes)
            os.read(reads, 1)  # until its parent has what it wants
            os._exit(0)
        os.close(reads)
        try:
            journal.close(complete=False)
            Journal("key").close(complete=True)
        finally:
            os.close(writes)
            os.waitpid(pid, 0)


def test_a_complete_copy_leaves_no_journal_and_an_incomplete_one_does() -> None:
    with state() as path:
        run([("a", 0)], "d1")
        Journal("key").close(complete=False)
        assert path.exists()
        Journal("key").close(complete=True)
        assert not path.exists()


def test_a_copy_that_began_nothing_leaves_no_journal() -> None:
    with state() as path:
        Journal("key").close(complete=False)
        assert not path.exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_journal_that_can_be_neither_removed_nor_shortened_is_no_failure(
    complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the model of whole copies: a copy that was complete ended with a traceback."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with state() as path:
        journal = Journal("key")
        journal.run("0123")
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", fails)
            patch.setattr(os, "ftruncate", fails)
            journal.close(complete)
        assert path.exists()
        Journal("key").close(True)  # the lock was let go of


def test_a_journal_is_for_its_owner_alone() -> None:
    with state() as path:
        journal = Journal("key")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        journal.close(complete=True)


def test_what_is_no_file_is_no_journal() -> None:
    """Reading a FIFO would never end."""
    with state() as path:
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
        with pytest.raises(OSError, match="no regular file"):
            Journal("key")


@pytest.mark.parametrize(
    "extent",
    [[900, 101], [1000, 1], [-100, 100], [0, 0], [0, -5], [0, 1 << 70], [0.0, 100]],
    ids=str,
)
def test_an_extent_outside_of_the_file_is_no_extent(extent: list[int]) -> None:
    """D6: a wrong number in it sent an agent to its end, or failed the file as changed."""
    with state() as path:
        path.parent.mkdir(parents=True)
        told = [
            ["file", 1, "a", *ONE, "sha256"],
            ["chunk", 1, *extent, "d"],
            ["chunk", 1, 200, 1, "e"],
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
        assert read() == {"a": {(200, 1): "e"}}


def test_a_relative_state_folder_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert Path(state_folder()) == Path.home() / ".local" / "state" / "pscp"


@given(st.lists(st.text(st.characters()), max_size=3), st.lists(st.text(), max_size=3))
def test_a_token_tells_one_copy_from_another(first: list[str], second: list[str]) -> None:
    token = token_of(*first)
    assert token == token_of(*first) and len(token) == 8 and int(token, 16) >= 0
    assert (token == token_of(*second)) is (first == second)


# --- the one condition under which a part of an earlier run goes on


DENSE = tree.Entry(tree.FILE, 0, "a", 100, 0o644, 1, 1, {})
SPARSE = DENSE._replace(extra={"sparse": 1})
ANEW, COMPARED, NOTED_COMPARED, AS_NOTED = PartUse
SMALL = Identity(100, 1, 1)


def landed(**runs: str) -> FileNotes:
    return FileNotes("sha256", runs=runs)


@pytest.mark.parametrize(
    ("noted", "of_dense", "of_sparse"),
    [
        (None, COMPARED, ANEW),
        (landed(), COMPARED, ANEW),
        (landed(another=ZEROS), COMPARED, ANEW),
        (landed(run=UNKNOWN), AS_NOTED, ANEW),
        (landed(run="of a later version"), AS_NOTED, ANEW),
        (landed(run=ZEROS), AS_NOTED, AS_NOTED),
    ],
)
@pytest.mark.parametrize("is_anothers", [False, True])
@pytest.mark.parametrize("resume", [False, True])
def test_n1_what_is_in_holes_is_noted_and_never_inferred(
    noted: FileNotes | None, of_dense: PartUse, of_sparse: PartUse, is_anothers: bool, resume: bool
) -> None:
    for entry, expected in ((DENSE, of_dense), (SPARSE, of_sparse)):
        how = decide_part_use(
            entry, "run", noted, is_anothers=is_anothers, resume=resume, by_time=True
        )
        assert how is (expected if resume and not is_anothers else ANEW)


def test_p10_the_journal_is_not_asked_where_times_do_not_decide() -> None:
    for entry, noted in ((DENSE, UNKNOWN), (SPARSE, ZEROS)):
        how = decide_part_use(
            entry, "run", landed(run=noted), is_anothers=False, resume=True, by_time=False
        )
        assert how is NOTED_COMPARED


def test_the_journal_is_not_believed_of_a_source_whose_time_was_set_back() -> None:
    """As disk images in files are, by programs that write into them."""
    entry = DENSE._replace(extra={"ct": 5})
    for ctime_ns, expected in ((5, AS_NOTED), (4, NOTED_COMPARED), (0, NOTED_COMPARED)):
        noted = FileNotes("sha256", runs={"run": UNKNOWN}, ctime_ns=ctime_ns)
        how = decide_part_use(entry, "run", noted, is_anothers=False, resume=True, by_time=True)
        assert how is expected


def test_only_the_part_of_a_file_with_holes_is_zeros_beside_its_chunks() -> None:
    assert (rest_of(SPARSE), rest_of(DENSE)) == (ZEROS, UNKNOWN)


def noted(number: int, *run: str) -> str:
    """The line of a journal for a file that a run copied."""
    return json.dumps(["file", number, "a", *SMALL, "sha256", *run])


@pytest.mark.parametrize(
    ("lines", "runs"),
    [
        # The line that says that the run began may be lost, as on a full disk.
        (['["run","first"]', noted(1, "second", ZEROS)], {"second": ZEROS}),
        (['["run","first"]', noted(1)], {}),  # of an earlier version: it tells of no run
        # What a run noted first stands: a later line may be about a part that it did not make anew.
        ([noted(1, "run", UNKNOWN), noted(2, "run", ZEROS)], {"run": UNKNOWN}),
    ],
)
def test_n1_what_a_journal_knows_of_the_runs_that_copied_a_file(
    lines: list[str], runs: dict[str, str]
) -> None:
    with state() as path:
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        journal = Journal("key")
        found = journal.landed("a", SMALL)
        journal.close(complete=False)
        assert found is not None and found.runs == runs
