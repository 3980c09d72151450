"""The one condition under which a part of an earlier run goes on, and what the journal notes.

Not here: copies that go on (../core/test_clones.py, ../core/test_earlier_versions.py).
"""

from __future__ import annotations

import pytest

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Identity
from pscp.transfer.terms.journal import (
    UNKNOWN,
    ZEROS,
    FileNotes,
    Journal,
    PartUse,
    decide_part_use,
    rest_of,
)

DENSE = tree.Entry(tree.FILE, 0, "a", 100, 0o644, 1, 1, {})
SPARSE = DENSE._replace(extra={"sparse": 1})
ANEW, COMPARED, NOTED_COMPARED, AS_NOTED = PartUse
ONE = Identity(100, 1, 1)


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


def test_only_the_part_of_a_file_with_holes_is_zeros_beside_its_chunks() -> None:
    assert (rest_of(SPARSE), rest_of(DENSE)) == (ZEROS, UNKNOWN)


def written(monkeypatch: pytest.MonkeyPatch, tmp_path: object, *lines: str) -> dict[str, str]:
    """What a journal of these lines knows of the runs that copied the file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal = Journal("key")
    journal.close(complete=False)
    with open(journal._path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    again = Journal("key")
    found = again.landed("a", ONE)
    again.close(complete=False)
    assert found is not None
    return found.runs


def test_n1_a_line_is_of_the_run_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """The line that says that the run began may be lost, as on a full disk."""
    line = '["file",1,"a",100,1,1,"sha256","second","zeros"]'
    assert written(monkeypatch, tmp_path, '["run","first"]', line) == {"second": "zeros"}


def test_n1_a_line_of_an_earlier_version_tells_of_no_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    line = '["file",1,"a",100,1,1,"sha256"]'
    assert written(monkeypatch, tmp_path, '["run","first"]', line) == {}


def test_n1_what_a_run_noted_first_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """A later line of it may be about a part that it did not make anew."""
    first, second = (
        f'["file",{number},"a",100,1,1,"sha256","run","{rest}"]'
        for number, rest in ((1, "unknown"), (2, "zeros"))
    )
    assert written(monkeypatch, tmp_path, first, second) == {"run": "unknown"}
