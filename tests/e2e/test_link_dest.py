"""--link-dest: what is unchanged since yesterday is yesterday's file, which nothing changes later.

Not here: what is killed meanwhile (../faults/test_link_dest_cut_short.py).
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree, tree_digest
from conftest import unavailable

import pscp
from e2e.ways import Way

pytestmark = pytest.mark.needs_agent(reason="--link-dest is refused over SFTP")

MIB = 1024 * 1024
OLD_NS = 1_500_000_000_123_456_789


def put(path: Path, data: bytes = b"", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data or path.name.encode())
    path.chmod(mode)
    os.utime(path, ns=(OLD_NS, OLD_NS))


def fill(way: Way) -> None:
    for name in ("a", "b", "sub/c", "sub/deep/d", "sub/-\n", "private/e"):
        put(way.source / name)
    put(way.source / "large", b"x" * MIB)
    (way.source / "sub/link").symlink_to("nowhere")


def night(way: Way, number: int, **fields: Any) -> Any:
    """The copy of a night, with the one before as --link-dest."""
    if number > 1:
        fields = {"link_dest": (f"../{number - 1}",), **fields}
    result = way.copy(".", to=f"{number}/", **{"archive": True, **fields})
    assert result.ok, result.failures
    return result


@pytest.fixture
def first_night(way: Way) -> None:
    fill(way)
    night(way, 1)


def linked(way: Way, before: str = "1", after: str = "2") -> set[str]:
    found = set()
    for path in (way.destination / after).rglob("*"):
        name = path.relative_to(way.destination / after)
        old = way.destination / before / name
        is_in_both = not path.is_dir() and os.path.lexists(old)
        if is_in_both and os.path.samestat(path.lstat(), old.lstat()):
            found.add(str(name))
    return found


ALL = {"a", "b", "sub/c", "sub/deep/d", "sub/-\n", "private/e", "large", "sub/link"}


@pytest.mark.parametrize("fields", [{}, {"delete": True}, {"checksum": True}], ids=str)
def test_what_is_unchanged_is_one_file(way: Way, first_night: None, fields: dict[str, Any]) -> None:
    put(way.source / "b", b"changed")
    put(way.source / "new")
    before = tree_digest(way.destination / "1", modes=True, times=True)
    result = night(way, 2, **fields)
    assert linked(way) == ALL - {"b"}
    assert (result.files_linked, result.files, result.files_unchanged) == (7, 2, 0)
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)
    assert tree_digest(way.destination / "1", modes=True, times=True) == before
    again = night(way, 2, **fields)
    assert again.files == 0
    third = night(way, 3, **fields)
    assert third.files_linked == 9
    assert (way.destination / "3/a").stat().st_nlink == 3


def test_what_a_copy_would_give_another_mode_time_or_attribute_is_copied(
    way: Way, first_night: None
) -> None:
    before = tree_digest(way.destination / "1", modes=True, times=True)
    (way.source / "a").chmod(0o600)
    os.utime(way.source / "sub/c", ns=(OLD_NS + 1, OLD_NS + 1))
    os.setxattr(way.source / "b", "user.new", b"1")
    os.setxattr(way.destination / "1/private/e", "user.more", b"1")
    result = night(way, 2)
    assert linked(way) == ALL - {"a", "b", "sub/c", "private/e"}
    assert result.files == 4
    assert os.getxattr(way.destination / "2/b", "user.new") == b"1"
    assert os.listxattr(way.destination / "2/private/e") == []
    assert tree_digest(way.destination / "1", modes=True, times=True) == before


@pytest.mark.parametrize("at", ["source", "1"])
def test_a_link_with_other_attributes_is_not_linked(way: Way, first_night: None, at: str) -> None:
    links = {"source": way.source, "1": way.destination / "1", "2": way.destination / "2"}
    try:
        os.setxattr(links[at] / "sub/link", "trusted.new", b"1", follow_symlinks=False)
    except (AttributeError, OSError) as error:
        unavailable(f"no attributes of links: {error}")
    night(way, 2)
    assert linked(way) == ALL - {"sub/link"}
    found = [os.listxattr(each / "sub/link", follow_symlinks=False) for each in links.values()]
    given = {"source": ("source", "2"), "1": ("1",)}[at]
    assert found == [["trusted.new"] * (each in given) for each in links]


def test_by_hash_where_times_are_not_kept(way: Way) -> None:
    fill(way)
    way.copy(".", to="1/")
    put(way.source / "b", b"B")  # as long
    result = way.copy(".", to="2/", link_dest=("../1",))
    assert linked(way) == ALL - {"b", "sub/link"}
    assert (result.files_linked, result.chunks_verified) == (6, 7)
    assert (way.destination / "2/b").read_bytes() == b"B"


def test_a_file_of_several_names(way: Way) -> None:
    fill(way)
    os.link(way.source / "a", way.source / "sub/a too")
    night(way, 1)
    result = night(way, 2)
    assert (result.files_linked, result.files) == (8, 1)  # the other name is made in the end
    assert linked(way) == ALL | {"sub/a too"}
    assert_same_tree(way.source, way.destination / "2", hard_links=True)
    again = night(way, 2)
    assert (again.files, again.files_unchanged) == (0, 9)


# --- yesterday's is never changed


@pytest.mark.parametrize("what", ["mode", "time", "attribute", "--chmod", "hashed"])
def test_what_changes_today_is_yesterdays_no_more(way: Way, first_night: None, what: str) -> None:
    night(way, 2)
    before = tree_digest(way.destination / "1", modes=True, times=True)
    fields: dict[str, Any] = {}
    for name in ("a", "large"):
        path = way.source / name
        if what == "mode":
            path.chmod(0o600)
        elif what == "attribute":
            os.setxattr(path, "user.new", b"1")
        elif what == "--chmod":
            fields = {"chmod": "F600"}
        else:
            os.utime(path, ns=(OLD_NS + 10**9, OLD_NS + 10**9))
            fields = {"checksum": what == "hashed"}
    result = way.copy(".", to="2/", archive=True, **fields)  # without --link-dest
    assert result.ok, result.failures
    changed = ALL - {"sub/link"} if what == "--chmod" else {"a", "large"}
    assert linked(way) == ALL - changed
    if what != "--chmod":
        assert_same_tree(way.source, way.destination / "2", modes=True, times=True)
    for name in ("a", "large"):
        assert (way.destination / "2" / name).stat().st_nlink == 1
        assert ("user.new" in os.listxattr(way.destination / "2" / name)) == (what == "attribute")
    assert os.listxattr(way.destination / "1/a") == []
    assert tree_digest(way.destination / "1", modes=True, times=True) == before


def test_a_large_file_that_changed_in_part(way: Way, first_night: None) -> None:
    night(way, 2)
    put(way.source / "large", b"x" * (MIB - 1) + b"y")
    os.utime(way.source / "large")
    assert way.copy(".", to="2/", archive=True).ok
    assert (way.destination / "1/large").read_bytes() == b"x" * MIB
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


@pytest.mark.parametrize("how", ["replaced", "written to"])
@pytest.mark.parametrize("delete", [False, True], ids=["listed", "looked up"])
def test_what_becomes_another_file_once_it_was_compared_is_not_linked(
    push: Way, delete: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = dataclasses.replace(push, is_push=False)  # so that the sink is at this end
    fill(pull)
    night(pull, 1)
    link = os.link

    def then_another(name: Any, *given: Any, **fields: Any) -> None:
        if how == "replaced" and name == b"a":  # the first of its folder
            put(pull.destination / "1/new", b"of another night")
            (pull.destination / "1/new").rename(pull.destination / "1/b")
        elif how == "written to" and name == b"b":
            (pull.destination / "1/b").write_bytes(b"B")
        link(name, *given, **fields)

    monkeypatch.setattr(os, "link", then_another)
    night(pull, 2, delete=delete)
    assert linked(pull) == ALL - {"b"}
    assert_same_tree(pull.source, pull.destination / "2", modes=True, times=True)


# --- which folders


def test_folders_in_turn(way: Way, first_night: None) -> None:
    (way.destination / "1/a").unlink()
    put(way.destination / "0/a")
    put(way.destination / "0/sub/c", b"longer")
    (way.destination / "latest").symlink_to("1")
    night(way, 2, link_dest=("../0", str(way.destination / "latest")))
    assert linked(way) == ALL - {"a"}
    assert linked(way, "0") == {"a"}


def test_a_source_with_a_name_of_its_own(way: Way) -> None:
    put(way.source / "data/sub/f")
    for number in (1, 2):
        link_dest = ("../1",) if number == 2 else ()
        result = way.copy("data", to=str(number), archive=True, mkpath=True, link_dest=link_dest)
        if number == 1:  # scp's rule: DEST becomes the copy
            (way.destination / "1").rename(way.destination / "0")
            (way.destination / "1").mkdir()
            (way.destination / "0").rename(way.destination / "1/data")
    assert result.files_linked == 1
    assert linked(way) == {"data/sub/f"}


def test_no_such_folder_and_another_file_system(
    way: Way, first_night: None, other_disk: Path
) -> None:
    far = other_disk / "1"
    shutil.copytree(way.destination / "1", far, symlinks=True)
    words = ("-a", "--link-dest=../gone", f"--link-dest={far}")
    ended = way.command(*words, names=["."], to="2/")
    assert ended.code == 0, ended.err
    assert "pscp: --link-dest ../gone: No such file or directory, so" in ended.err
    assert f"pscp: --link-dest {far}: Invalid cross-device link, so" in ended.err
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


def test_nothing_leads_outside(way: Way, first_night: None) -> None:
    outside = way.destination / "outside"
    (way.destination / "1/sub").rename(outside)
    (way.destination / "1/sub").symlink_to(outside)
    (way.destination / "1/a").rename(outside / "a")
    (way.destination / "1/a").symlink_to(outside / "a")
    night(way, 2)
    assert linked(way) == {"b", "private/e", "large"}
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


@pytest.mark.parametrize(
    ("code", "delete"), [(errno.EMLINK, False), (errno.EXDEV, True), (errno.EPERM, False)]
)
def test_what_cannot_be_linked_is_copied(
    push: Way, code: int, delete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = dataclasses.replace(push, is_push=False)  # so that the sink is at this end
    fill(way)
    night(way, 1)
    real = os.link

    def link_new(source: Any, *more: Any, **how: Any) -> None:
        if os.fsdecode(source) in {Path(name).name for name in ALL}:
            raise OSError(code, os.strerror(code))
        real(source, *more, **how)

    monkeypatch.setattr(os, "link", link_new)
    result = night(way, 2, delete=delete)
    assert (result.files, result.files_linked) == (8, 0)
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


def test_host_to_host(way: Way) -> None:
    fill(way)
    host, config_file = way.server.host, way.server.ssh_config
    for number, link_dest in ((1, ()), (2, ("../1",))):
        result = pscp.copy(
            f"{host}:{way.source}/.", f"{host}:{way.destination}/{number}/", archive=True,
            link_dest=link_dest, config_file=config_file, batch=True, connections=1,
        )  # fmt: skip
        assert result.ok, result.failures
    assert linked(way) == ALL
    assert result.files_linked == 8


# --- with other options


def test_what_is_told(way: Way, first_night: None) -> None:
    put(way.source / "b", b"changed")
    ended = way.command("-an", "--link-dest=../1", names=["."], to="2/")
    assert "it would have been 1 file, 7 B, and 7 linked" in ended.err
    ended = way.command("-an", "-vv", "--link-dest=../1", names=["."], to="2/")
    linked = {f"linked    2/{name}".replace("\n", "\\x0a") for name in ALL - {"b"}}
    assert {line for line in ended.out.splitlines() if line.startswith("linked")} == linked
    assert not (way.destination / "2").exists()
    ended = way.command("-a", "--link-dest=../1", "-vv", names=["."], to="2/")
    assert "1 file, 1 chunk verified, 7 linked" in ended.err
    assert "linked    sub/deep/d" in ended.out and "new       b" in ended.out


@pytest.mark.parametrize("option", ["existing", "ignore_existing", "update"])
def test_what_is_left_out_is_not_linked(way: Way, first_night: None, option: str) -> None:
    put(way.destination / "2/a", b"newer")
    os.utime(way.destination / "2/a")
    result = night(way, 2, **{option: True})
    assert linked(way) == ({"a"} if option == "existing" else ALL - {"a"})
    assert ((way.destination / "2/a").read_bytes() == b"newer") == (option != "existing")
    assert result.files_skipped >= (option != "existing")


def test_moved_files_are_hashed_first(way: Way, first_night: None) -> None:
    put(way.destination / "1/b", b"B")  # of the same size and time: yesterday's is damaged
    result = night(way, 2, remove_source_files=True)
    assert linked(way) == ALL - {"b"}
    assert (way.destination / "2/b").read_bytes() == b"b"
    assert result.chunks_verified == 7
    assert not [path for path in way.source.rglob("*") if not path.is_dir()]


# --- rsync as the judge


def rsync(*words: str) -> str:
    """Return the changes that it has made, or would make with -n."""
    argv = ["rsync", "-aHX", "--itemize-changes", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True).stdout


@pytest.mark.parametrize("checksum", [False, True], ids=["", "checksum"])
def test_rsync_links_the_same_files(way: Way, checksum: bool) -> None:
    """Of files, links and names of one file, each with anything that may have changed."""
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    fill(way)
    changes = ("none", "gone", "content", "mode", "time", "attribute", "leads")
    for change in changes:
        put(way.source / f"{change} file")
        os.link(way.source / f"{change} file", way.source / "sub" / f"{change} name")
        (way.source / f"{change} link").symlink_to("a")
    night(way, 1)
    yesterday = way.destination / "1"
    for name in ("gone file", "gone link", "sub/gone name"):
        (yesterday / name).unlink()
    (way.source / "mode file").chmod(0o640)
    os.setxattr(way.source / "attribute file", "user.new", b"1")
    put(way.source / "content file", b"CONTENT FILE")  # as long, and as old
    for name in ("time file", "time link"):
        os.utime(way.source / name, ns=(OLD_NS, OLD_NS + 10**9), follow_symlinks=False)
    (way.source / "leads link").unlink()
    (way.source / "leads link").symlink_to("b")
    night(way, 2, checksum=checksum)
    words = ["--checksum"] if checksum else []
    rsync(*words, f"--link-dest={yesterday}", f"{way.source}/", f"{way.destination}/theirs/")
    assert linked(way) == linked(way, after="theirs") >= ALL
    assert rsync("-n", "--checksum", f"{way.destination}/theirs/", f"{way.destination}/2/") == ""
