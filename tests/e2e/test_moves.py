"""Copies that move together: a file leaves its source only once every destination holds it.

Not here: one copy that moves (test_moving.py), other terms of a job (test_job_terms.py).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare import tree_digest

import pscp
from e2e.ways import Way, files_of, make
from pscp.endpoint.frames import system
from pscp.ground.values import MIB
from pscp.transfer.terms.moves import Moves


@dataclasses.dataclass(frozen=True)
class Night:
    """Copies of the same sources to several destinations, `one` and `two` unless said otherwise."""

    push: Way
    terms: pscp.JobTerms

    def copy(self, to: str, *names: str, **fields: Any) -> pscp.Result:
        return self.push.copy(*(names or ["t"]), to=f"{to}/", terms=self.terms, **fields)

    def cut_short(self, to: str) -> None:
        asked = iter(range(10))

        def kbit_s() -> int:
            if next(asked):
                raise ValueError("cut short")
            return 10**6

        terms = dataclasses.replace(self.terms, kbit_s=kbit_s)
        with pytest.raises(ValueError, match="cut short"):
            dataclasses.replace(self, terms=terms).copy(to, resume=False)

    def there(self, to: str) -> set[str]:
        return files_of(self.push.destination / to)


Begin = Callable[..., Night]


@pytest.fixture
def begin(push: Way) -> Iterator[Begin]:
    """begin(FOLDER, TO...): a run of a job, with what it knows."""
    with pscp.Session(
        push.server.host, config_file=push.server.ssh_config, batch=True, connections=1, mkpath=True
    ) as session:
        way = dataclasses.replace(push, session=session)

        def make_night(folder: Path | None = None, *to: str) -> Night:
            places = [push.locations([], f"{each}/")[1] for each in to or ("one", "two")]
            return Night(way, pscp.JobTerms(moves=pscp.Moves(places, folder)))

        yield make_night


# --- when a file leaves


def test_the_last_copy_removes_what_all_have(push: Way, begin: Begin) -> None:
    make(push.source, "t/a", "t/sub/b", "t/empty/")
    (push.source / "t" / "large").write_bytes(os.urandom(MIB))
    before = tree_digest(push.source)
    night = begin(None, "one", "two", "three")
    for to in ("two", "one"):
        assert night.copy(to).ok
        assert files_of(push.source) == {"t/a", "t/sub/b", "t/large"}
    assert night.copy("three").ok
    assert files_of(push.source) == set() and (push.source / "t" / "empty").is_dir()
    for to in ("one", "two", "three"):
        assert tree_digest(push.destination / to) == before


def test_what_one_destination_lacks_stays(push: Way, begin: Begin) -> None:
    make(push.source, "t/good", "t/taken", "t/too")
    make(push.destination, "one/t/taken/", "two/t/too/")
    night = begin()
    assert [failure.path for failure in night.copy("one").failures] == ["t/taken"]
    assert [failure.path for failure in night.copy("two").failures] == ["t/too"]
    assert files_of(push.source) == {"t/taken", "t/too"}


def test_copies_at_once(push: Way, begin: Begin) -> None:
    make(push.source, *(f"t/{number}" for number in range(300)))
    before = tree_digest(push.source)
    night = begin()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert all(result.ok for result in threads.map(night.copy, ["one", "two"]))
    assert files_of(push.source) == set()
    assert tree_digest(push.destination / "one") == before
    assert tree_digest(push.destination / "two") == before


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_destination_that_fails_as_a_whole(
    push: Way, begin: Begin, order: tuple[str, str]
) -> None:
    """Then the next run completes what this one could not, also what one has had since then."""
    make(push.source, "t/a", "t/b")
    night = begin()
    for to in order:
        if to == "one":
            assert night.copy(to).ok
        else:
            night.cut_short(to)
    assert files_of(push.source) == {"t/a", "t/b"}
    night = begin()
    assert night.copy("one").files_resumed == 2 and night.copy("two").ok
    assert files_of(push.source) == set()


def test_a_copy_that_is_tried_again_counts_once(push: Way, begin: Begin) -> None:
    make(push.source, "t/a")
    night = begin()
    assert night.copy("one").ok and night.copy("one").ok
    assert files_of(push.source) == {"t/a"}
    assert night.copy("two").ok
    assert files_of(push.source) == set()


def test_while_a_destination_is_tried_again_nothing_is_removed(push: Way, begin: Begin) -> None:
    """What it held may be replaced meanwhile."""
    make(push.source, "t/a")
    night = begin()
    assert night.copy("one").ok
    night.cut_short("one")
    assert night.copy("two").ok
    assert files_of(push.source) == {"t/a"}


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_changed_between_two_copies_stays_and_is_told(
    push: Way, begin: Begin, is_replaced: bool
) -> None:
    """It stayed without a word: what the first one has is not what there is."""
    make(push.source, "t/a", "t/b")
    night = begin()
    assert night.copy("one").ok
    if is_replaced:
        (push.source / "t" / "b").rename(push.source / "older")
        shutil.copy2(push.source / "older", push.source / "t" / "b")
    else:
        (push.source / "t" / "b").write_text("more than before")
    [failure] = night.copy("two").failures
    assert (failure.path, failure.error) == ("t/b", "SourceChanged")
    assert failure.message == "changed before all destinations had it: they have different versions"
    assert files_of(push.source / "t") == {"b"}
    night = begin()
    assert night.copy("one").ok and night.copy("two").ok
    assert files_of(push.source / "t") == set()


def test_a_file_that_changes_before_the_last_look_stays(
    push: Way, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(push.source, "t/a", "t/b")
    night = begin()
    assert night.copy("one").ok
    finish = Moves.finish

    def then_change(moves: Moves, *given: Any) -> bool:
        (push.source / "t" / "b").write_text("of today")
        return finish(moves, *given)

    monkeypatch.setattr(Moves, "finish", then_change)
    result = night.copy("two")
    assert [(each.path, each.error) for each in result.failures] == [("t/b", "SourceChanged")]
    assert files_of(push.source) == {"t/b"}


def test_what_was_there_counts_where_it_was_hashed(push: Way, begin: Begin) -> None:
    """Its size and its time do not tell that it is the same."""
    make(push.source, "t/same", "t/other")
    shutil.copytree(push.source / "t", push.destination / "one" / "t")
    (push.destination / "one" / "t" / "other").write_text("TOTHER!")
    for folder in (push.source, push.destination / "one"):
        for name in ("same", "other"):
            os.utime(folder / "t" / name, (10**9, 10**9))
    night = begin()
    result = night.copy("one", preserve=True)
    assert (result.files, result.files_resumed, result.files_unchanged) == (1, 1, 0)
    assert night.copy("two").ok
    assert files_of(push.source) == set()
    assert (push.destination / "one" / "t" / "other").read_text() == "t/other"


def test_a_copy_to_the_source_itself_removes_nothing(push: Way, begin: Begin) -> None:
    make(push.source, "t/a")
    (push.destination / "two").symlink_to(push.source)
    night = begin()
    assert night.copy("one").ok
    assert not night.copy("two").ok
    assert files_of(push.source) == {"t/a"}


def test_two_names_of_one_destination_remove_nothing(push: Way, begin: Begin) -> None:
    """Who names two wants two copies. So it is with two names of one host."""
    make(push.source, "t/a")
    (push.destination / "one").mkdir()
    (push.destination / "two").symlink_to(push.destination / "one")
    night = begin()
    assert night.copy("one").ok
    [failure] = night.copy("two").failures
    assert "are names of one place" in failure.message
    assert files_of(push.source) == night.there("one") == {"t/a"}


def test_links_and_hard_links(push: Way, begin: Begin) -> None:
    """Also where a run was cut after they had landed."""
    make(push.source, "t/a")
    (push.source / "t" / "b").hardlink_to(push.source / "t" / "a")
    (push.source / "t" / "link").symlink_to("a")
    assert push.copy("t", to="one/", archive=True, mkpath=True).ok
    night = begin()
    assert night.copy("one", archive=True).ok and night.copy("two", archive=True).ok
    assert files_of(push.source) == set()
    assert night.there("one") == night.there("two") == {"t/a", "t/b", "t/link"}


def test_a_dry_run_moves_nothing(push: Way, begin: Begin) -> None:
    make(push.source, "t/a")
    night = begin(push.source / "done", "one")
    assert night.copy("one", dry_run=True).ok
    assert files_of(push.source) == {"t/a"} and not (push.source / "done").exists()


# --- into a folder


def test_moved_into_a_folder(push: Way, begin: Begin, tmp_path: Path) -> None:
    make(push.source, "t/a", "t/sub/b", "alone")
    (push.source / "t" / "sub").chmod(0o750)
    name = os.fsdecode(b"- \xff\n")
    (push.source / "t" / name).write_bytes(b"x")
    (push.source / "t" / "link").symlink_to("a")
    inode = (push.source / "t" / "a").stat().st_ino
    night = begin(tmp_path / "new" / "done")
    for to in ("one", "two"):
        assert night.copy(to, "t", "alone", archive=True).ok
    names = {"t/a", "t/sub/b", f"t/{name}", "t/link", "alone"}
    assert files_of(push.source) == set()
    assert files_of(tmp_path / "new" / "done") == night.there("one") == night.there("two") == names
    assert (tmp_path / "new" / "done" / "t" / "a").stat().st_ino == inode
    assert (tmp_path / "new" / "done" / "t" / "sub").stat().st_mode & 0o7777 == 0o750


def test_the_contents_of_a_folder_into_one_beside_it(push: Way, begin: Begin) -> None:
    make(push.source, "t/sub/b")
    assert begin(push.source / "done", "one").copy("one", "t/.").ok
    assert files_of(push.source) == {"done/sub/b"}


@pytest.mark.parametrize("has_renameat2", [True, False])
def test_nothing_in_the_folder_is_replaced(
    push: Way, begin: Begin, monkeypatch: pytest.MonkeyPatch, has_renameat2: bool
) -> None:
    if not has_renameat2:
        monkeypatch.setattr(system, "libc_function", lambda name: None)
    make(push.source, "t/a", "t/b", "t/sub/c", "t/through/d", "done/t/a", "done/t/sub", "beside/")
    (push.source / "done" / "t" / "through").symlink_to(push.source / "beside")
    (push.source / "done" / "t" / "a").write_text("of yesterday")
    result = begin(push.source / "done", "one").copy("one")
    assert {each.path for each in result.failures} == {"t/a", "t/sub/c", "t/through/d"}
    told = {each.path: (each.message.partition(": ")[2], each.hint) for each in result.failures}
    name_taken = "the folder to move it to has another file of this name; rename or remove that one"
    assert told["t/a"] == (name_taken, "")
    assert files_of(push.source) == {
        "t/a", "t/sub/c", "t/through/d", "done/t/a", "done/t/b", "done/t/sub", "done/t/through"
    }  # fmt: skip
    assert (push.source / "done" / "t" / "a").read_text() == "of yesterday"


def test_a_run_that_was_killed_between_two_names(push: Way, begin: Begin) -> None:
    """Where a rename that replaces nothing takes two calls."""
    make(push.source, "t/a", "done/t/")
    (push.source / "done" / "t" / "a").hardlink_to(push.source / "t" / "a")
    assert begin(push.source / "done", "one").copy("one").ok
    assert files_of(push.source) == {"done/t/a"}


def test_a_folder_in_the_source_is_refused(push: Way, begin: Begin) -> None:
    """The next run would copy, and move, what is there once more."""
    make(push.source, "t/sub/a")
    (push.source / "link").symlink_to(push.source / "t")
    for folder in ("t/done", "t", "t/sub/done", "link/done") * 2:  # then it is there
        with pytest.raises(pscp.UsageError, match="is in that source"):
            begin(push.source / folder, "one").copy("one")
        (push.source / folder).mkdir(exist_ok=True)
    assert files_of(push.source) == {"t/sub/a", "link"} and not (push.destination / "one").exists()


def test_a_folder_that_has_the_source_is_refused(push: Way, begin: Begin) -> None:
    make(push.source, "t/a", "alone")
    for name in ("t", "alone"):
        with pytest.raises(pscp.UsageError, match="has it already"):
            begin(push.source, "one").copy("one", name)
    assert files_of(push.source) == {"t/a", "alone"} and not (push.destination / "one").exists()


def test_another_file_system_is_refused(push: Way, begin: Begin, other_disk: Path) -> None:
    """Before anything is copied, also where only one of the sources is on it."""
    make(push.source, "t/a")
    make(other_disk, "b/c", "d")
    for names in (["t", f"{other_disk}/b"], ["t", f"{other_disk}/d"]):
        with pytest.raises(pscp.UsageError, match="is on another file system"):
            begin(push.source / "done", "one").copy("one", *names)
    with pytest.raises(pscp.UsageError, match="is on another file system"):
        begin(other_disk / "not" / "yet", "one").copy("one")
    assert not (push.destination / "one").exists() and files_of(other_disk) == {"b/c", "d"}
    assert begin(None, "one").copy("one", "t", f"{other_disk}/b").ok  # to remove goes anywhere
    assert files_of(push.source) == set() and files_of(other_disk) == {"d"}


# --- what makes no sense


def test_a_source_within_another_is_refused(push: Way, begin: Begin) -> None:
    """It might leave by one of its names before it has landed under the other one."""
    make(push.source, "t/sub/a", "t-b")
    (push.source / "link").symlink_to(push.source / "t" / "sub")
    for names in (["t/.", "t/sub/a"], ["t/.", "link"]):
        with pytest.raises(pscp.UsageError, match="is in another source"):
            begin(None, "one").copy("one", *names)
    assert (
        files_of(push.source) == {"t/sub/a", "t-b", "link"}
        and not (push.destination / "one").exists()
    )
    assert begin(None, "one").copy("one", "t", "t-b").ok


def test_terms_that_clash(push: Way, begin: Begin) -> None:
    make(push.source, "t/a")
    night = begin(push.source / "done", "one")
    for fields in ({"delete": True}, {"verify": "none"}, {"relative": True}):
        with pytest.raises(pscp.UsageError):
            night.copy("one", **fields)
    with pytest.raises(pscp.UsageError, match="none of the destinations"):
        night.copy("two")
    pull = dataclasses.replace(push, is_push=False)
    to = str(push.destination / "one") + "/"
    with pytest.raises(pscp.UsageError, match="for sources here"):
        pull.copy("t", to="one/", terms=pscp.JobTerms(moves=pscp.Moves(to)), mkpath=True)
    assert files_of(push.source) == {"t/a"}
    for places, folder in (([], None), (["h:a", "h:a"], None), (["h:a"], "")):
        with pytest.raises(pscp.UsageError):
            pscp.Moves(places, folder)


# --- over SFTP, where no answer tells one place from another


@pytest.mark.parametrize("second", ["agent", "sftp"])
@pytest.mark.parametrize("at_once", [True, False])
def test_two_names_of_one_destination_over_sftp(
    push: Way, begin: Begin, second: str, at_once: bool
) -> None:
    make(push.source, "t/a", "t/b")
    (push.destination / "one").mkdir()
    (push.destination / "two").symlink_to(push.destination / "one")
    night, ways = begin(), {"one": "sftp", "two": second}
    found = copy_to_both(night, ways, at_once=at_once)
    [failure] = [each for result in found for each in result.failures]
    why = "are names of one place" if at_once else "cannot be told whether"
    assert why in failure.message and "no source was removed" in failure.message
    assert files_of(push.source) == night.there("one") == {"t/a", "t/b"}


@pytest.mark.parametrize("second", ["agent", "sftp"])
@pytest.mark.parametrize("at_once", [True, False])
def test_two_destinations_over_sftp(push: Way, begin: Begin, second: str, at_once: bool) -> None:
    """What one has and the other has not tells them apart: a fence, or a file that has landed."""
    make(push.source, "t/a", "t/b")
    make(push.destination, "one/t/a", "two/t/a")
    night, ways = begin(), {"one": "sftp", "two": second}
    assert all(result.ok for result in copy_to_both(night, ways, at_once=at_once))
    assert files_of(push.source) == set()
    assert night.there("one") == night.there("two") == {"t/a", "t/b"}


def test_two_destinations_over_sftp_that_have_all(push: Way, begin: Begin) -> None:
    """One after the other, nothing shows that they are two; at the same time their fences do."""
    make(push.source, "t/a")
    make(push.destination, "one/t/a", "two/t/a")
    first, second = copy_to_both(begin(), {"one": "sftp", "two": "sftp"}, at_once=False)
    assert first.ok and "cannot be told whether" in second.failures[0].message
    assert files_of(push.source) == {"t/a"}
    ways = {"one": "sftp", "two": "sftp"}
    assert all(result.ok for result in copy_to_both(begin(), ways, at_once=True))
    assert files_of(push.source) == set()


def copy_to_both(night: Night, ways: dict[str, str], *, at_once: bool) -> list[pscp.Result]:
    """Copy to both, one after the other, or to the second while the first one is under way."""
    (first, how), (second, how_second) = ways.items()
    if not at_once:
        return [night.copy(first, remote=how), night.copy(second, remote=how_second)]
    inner: list[concurrent.futures.Future[pscp.Result]] = []

    def select(*_: object) -> bool:
        if not inner:  # in the first one's walk, which waits for it
            inner.append(threads.submit(night.copy, second, remote=how_second))
            inner[0].result()
        return True

    outer = dataclasses.replace(night, terms=dataclasses.replace(night.terms, select=select))
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        return [outer.copy(first, remote=how), inner[0].result()]
