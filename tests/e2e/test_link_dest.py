"""--link-dest: what is unchanged since yesterday is yesterday's file, which nothing changes later.

Not here: what is killed meanwhile (../faults/test_link_dest_cut_short.py).
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from compare import assert_same_tree, tree_digest
from conftest import unavailable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from servers.private import PrivateServer

import pscp
from e2e.conftest import Kept
from e2e.test_as_rsync import Node, Tree, make, names, rsync, trees
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


def linked(way: Way, before: str = "1", after: str = "2") -> set[str]:
    """The names that are one file in both."""
    found = set()
    for path in (way.destination / after).rglob("*"):
        name = path.relative_to(way.destination / after)
        old = way.destination / before / name
        is_in_both = not path.is_dir() and os.path.lexists(old)
        if is_in_both and os.path.samestat(path.lstat(), old.lstat()):
            found.add(str(name))
    return found


ALL = {"a", "b", "sub/c", "sub/deep/d", "sub/-\n", "private/e", "large", "sub/link"}


@pytest.mark.parametrize("how", ["listed", "looked up", "by hash"])
def test_what_is_unchanged_is_one_file(way: Way, how: str) -> None:
    fields: dict[str, Any] = {"looked up": {"delete": True}, "by hash": {"checksum": True}}.get(
        how, {}
    )
    fill(way)
    night(way, 1)
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


def test_what_a_copy_would_give_another_mode_time_or_attribute_is_copied(way: Way) -> None:
    fill(way)
    night(way, 1)
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
def test_what_changes_today_is_yesterdays_no_more(way: Way, what: str) -> None:
    fill(way)
    night(way, 1)
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


def test_a_large_file_that_changed_in_part(way: Way) -> None:
    fill(way)
    night(way, 1)
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


def test_folders_in_turn(way: Way) -> None:
    fill(way)
    night(way, 1)
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


def test_no_such_folder_and_another_file_system(way: Way, other_disk: Path) -> None:
    fill(way)
    night(way, 1)
    far = other_disk / "1"
    shutil.copytree(way.destination / "1", far, symlinks=True)
    words = ("-a", "--link-dest=../gone", f"--link-dest={far}")
    ended = way.command(*words, names=["."], to="2/")
    assert ended.code == 0, ended.err
    assert "pscp: --link-dest ../gone: No such file or directory, so" in ended.err
    assert f"pscp: --link-dest {far}: Invalid cross-device link, so" in ended.err
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


def test_nothing_leads_outside(way: Way) -> None:
    fill(way)
    night(way, 1)
    outside = way.destination / "outside"
    (way.destination / "1/sub").rename(outside)
    (way.destination / "1/sub").symlink_to(outside)
    (way.destination / "1/a").rename(outside / "a")
    (way.destination / "1/a").symlink_to(outside / "a")
    night(way, 2)
    assert linked(way) == {"b", "private/e", "large"}
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)


@pytest.mark.parametrize("code", [errno.EMLINK, errno.EXDEV, errno.EPERM])
@pytest.mark.parametrize("delete", [False, True], ids=["listed", "looked up"])
def test_what_cannot_be_linked_is_copied(
    push: Way, code: int, delete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = dataclasses.replace(push, is_push=False)  # so that the sink is at this end
    fill(way)
    night(way, 1)

    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    real = os.link

    def link_new(source: Any, *more: Any, **how: Any) -> None:
        if os.fsdecode(source) in {Path(name).name for name in ALL}:
            link()
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


def test_a_dry_run_tells(way: Way) -> None:
    fill(way)
    night(way, 1)
    put(way.source / "b", b"changed")
    ended = way.command("-an", "--link-dest=../1", names=["."], to="2/")
    assert "it would have been 1 file, 7 B, and 7 linked" in ended.err
    assert not (way.destination / "2").exists()
    ended = way.command("-an", "-vv", "--link-dest=../1", names=["."], to="2/")
    told = {line for line in ended.out.splitlines() if line.startswith("linked")}
    assert told == {f"linked    2/{name}".replace("\n", "\\x0a") for name in ALL - {"b"}}


def test_the_closing_line_and_each_file(way: Way) -> None:
    fill(way)
    night(way, 1)
    put(way.source / "b", b"changed")
    ended = way.command("-a", "--link-dest=../1", "-vv", names=["."], to="2/")
    assert "1 file, 1 chunk verified, 7 linked" in ended.err
    assert "linked    sub/deep/d" in ended.out
    assert "new       b" in ended.out


@pytest.mark.parametrize("option", ["existing", "ignore_existing", "update"])
def test_what_is_left_out_is_not_linked(way: Way, option: str) -> None:
    fill(way)
    night(way, 1)
    put(way.destination / "2/a", b"newer")
    os.utime(way.destination / "2/a")
    result = night(way, 2, **{option: True})
    assert linked(way) == ({"a"} if option == "existing" else ALL - {"a"})
    assert ((way.destination / "2/a").read_bytes() == b"newer") == (option != "existing")
    assert result.files_skipped >= (option != "existing")


def test_moved_files_are_hashed_first(way: Way) -> None:
    fill(way)
    night(way, 1)
    put(way.destination / "1/b", b"B")  # of the same size and time: yesterday's is damaged
    result = night(way, 2, remove_source_files=True)
    assert linked(way) == ALL - {"b"}
    assert (way.destination / "2/b").read_bytes() == b"b"
    assert result.chunks_verified == 7
    assert not [path for path in way.source.rglob("*") if not path.is_dir()]


def test_deleted_there(way: Way) -> None:
    fill(way)
    night(way, 1)
    put(way.destination / "2/extra")
    (way.source / "a").unlink()
    result = night(way, 2, delete=True)
    assert result.files_deleted == 1
    assert_same_tree(way.source, way.destination / "2", modes=True, times=True)
    assert (way.destination / "1/a").exists()


def test_backup_keeps_what_a_link_replaces(way: Way) -> None:
    fill(way)
    night(way, 1)
    put(way.destination / "2/a", b"mine")
    night(way, 2, backup=True)
    assert linked(way) == ALL
    assert (way.destination / "2/a~").read_bytes() == b"mine"


# --- rsync as the judge


class Change(NamedTuple):
    """How a file or link of yesterday differs from today's."""

    what: str
    by: int


def yesterday_of(tree: Tree, changes: dict[str, Change]) -> Tree:
    nodes = dict(tree.nodes)
    for name, (what, by) in changes.items():
        if what == "gone":
            nodes.pop(name, None)
        elif name in nodes and not (name in tree.links and what == "attribute"):
            node = nodes[name]
            nodes[name] = {
                "mark": node._replace(mark=(node.mark + by) % 3),
                "mode": node._replace(mode=0o640),
                "later_s": node._replace(later_s=node.later_s + by),
                "attribute": node._replace(attribute=b"w" * (by - 1)),
            }[what]
    hard_links = [(a, b) for a, b in tree.hard_links if a in nodes]
    return Tree(tree.folders, nodes, tree.links & nodes.keys(), hard_links)


kinds = st.sampled_from(["gone", "mark", "mode", "later_s", "attribute"])
changes = st.builds(Change, kinds, st.integers(1, 2))


@st.composite
def two_nights(draw: st.DrawFn) -> tuple[Tree, Tree]:
    today = draw(trees(attributes=True))
    some = st.sampled_from(sorted(today.nodes)) if today.nodes else st.nothing()
    chosen = draw(st.dictionaries(some, changes, max_size=5)) if today.nodes else {}
    return today, yesterday_of(today, chosen)


def inodes(root: Path) -> dict[str, int]:
    paths = (path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(root)): path.lstat().st_ino for path in paths}


@pytest.mark.parametrize("is_push", [True, False], ids=["push", "pull"])
def test_rsync_links_the_same_files(
    is_push: bool, sshd: PrivateServer, kept: Kept, tmp_path: Path
) -> None:
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    session = kept("openssh", "agent", "auto")

    @settings(
        max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(two_nights(), st.booleans())
    def judge(nights: tuple[Tree, Tree], checksum: bool) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            source, before, ours, theirs = (Path(home) / name for name in ("s", "y", "d", "j"))
            for folder, tree in zip((source, before), nights, strict=True):
                folder.mkdir()
                make(folder, tree)
            (Path(home) / "d").mkdir()
            way = Way(is_push, sshd, source, ours, session)
            result = way.copy(".", archive=True, checksum=checksum, link_dest=("../y",))
            assert result.ok, result.failures
            words = ["--checksum"] if checksum else []
            rsync(*words, f"--link-dest={before}", f"{source}/", f"{theirs}/")
            old = inodes(before)
            kept_by = [
                {name for name, inode in inodes(root).items() if inode == old.get(name)}
                for root in (ours, theirs)
            ]
            assert kept_by[0] == kept_by[1]
            assert names(ours) == names(theirs)
            assert rsync("-n", "--checksum", f"{theirs}/", f"{ours}/") == []

    judge()


def test_the_judge_sees_a_change() -> None:
    """Guards the strategy: a change of each kind makes another tree."""
    node = Node(0, 0o644, 0, b"v")
    tree = Tree({}, {"f": node}, set(), [])
    for what in ("gone", "mark", "mode", "later_s", "attribute"):
        assert yesterday_of(tree, {"f": Change(what, 1)}) != tree
