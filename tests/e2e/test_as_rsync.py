"""Tree to tree, with rsync as the judge: after a copy `rsync -naHX` finds nothing left to do.

And with the same options rsync would have left the same names at the destination, so neither too
much nor too little was deleted. Where one side has a folder and the other a file, pscp fails and
rsync does not, so a name is always of the same kind here.

Not here: the cases one by one (test_mirror.py, test_copy_metadata.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import unavailable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from servers.private import PrivateServer

from e2e.conftest import Kept
from e2e.ways import COMMAND_S, Way
from pscp.options.option_fields import OptionFields

FOLDERS = ("d", "d 2", "-d")
FILES = ("f", "f*", "\u00e4\n", os.fsdecode(b"\xff"), ".f", "F~")
TIME_NS = 1_500_000_000_123_456_789


class Node(NamedTuple):
    """A file or a link of a tree; `mark` chooses its contents, or where it leads."""

    mark: int
    mode: int
    later_s: int
    attribute: bytes


class Tree(NamedTuple):
    folders: dict[str, int]  # their modes, by path
    nodes: dict[str, Node]
    links: set[str]  # those of the nodes that are symbolic links
    hard_links: list[tuple[str, str]]  # (the file, another name)


@st.composite
def trees(draw: st.DrawFn, attributes: bool) -> Tree:
    modes = st.sampled_from([0o755, 0o700, 0o2775])
    top = draw(st.dictionaries(st.sampled_from(FOLDERS), modes))
    below = [f"{above}/{name}" for above in top for name in FOLDERS[:2]]
    folders = top | draw(st.dictionaries(st.sampled_from(below), modes) if below else st.just({}))
    places = [f"{folder}/{name}".lstrip("/") for folder in ("", *folders) for name in FILES]
    node = st.builds(
        Node,
        st.integers(0, 2),
        st.sampled_from([0o644, 0o600, 0o4755]),
        st.integers(-1, 1),
        st.sampled_from([b"", b"", b"v"]) if attributes else st.just(b""),
    )
    nodes = draw(st.dictionaries(st.sampled_from(places), node, max_size=12))
    links = draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else set()
    files, free = sorted(nodes.keys() - links), sorted(set(places) - nodes.keys())
    if not (files and free and attributes):
        return Tree(folders, nodes, links, [])
    pairs = st.tuples(st.sampled_from(files), st.sampled_from(free))
    hard_links = draw(st.lists(pairs, max_size=2, unique_by=lambda pair: pair[1]))
    return Tree(folders, nodes, links, hard_links)


def make(root: Path, tree: Tree) -> None:
    for folder in sorted(tree.folders):
        (root / folder).mkdir()
    for name, node in tree.nodes.items():
        path = root / name
        if name in tree.links:
            path.symlink_to(("f", "nowhere", "/dev/null")[node.mark])
        else:
            path.write_bytes(b"x" * 40 + bytes([node.mark]))
            path.chmod(node.mode)
            if node.attribute:
                os.setxattr(path, "user.test", node.attribute)
        time_ns = TIME_NS + node.later_s * 10**9
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
    for name, other in tree.hard_links:
        os.link(root / name, root / other)
    for folder, mode in sorted(tree.folders.items(), reverse=True):
        (root / folder).chmod(mode)
        os.utime(root / folder, ns=(TIME_NS, TIME_NS))


class Asked(NamedTuple):
    delete: bool
    how: str  # with which files are compared
    excluded: list[str]

    def fields(self) -> OptionFields:
        filters = tuple(("exclude", name) for name in self.excluded)
        update, checksum = self.how == "--update", self.how == "--checksum"
        asked: OptionFields = {"delete": self.delete, "update": update, "checksum": checksum}
        return {"archive": True, "filters": filters, **asked}

    def may_stay(self, line: str) -> bool:
        """With --update metadata does; -n may list a folder that is not empty."""
        is_folder = line.startswith("*deleting") and line.endswith("/")
        return (self.how == "--update" and line[0] == ".") or (is_folder and bool(self.excluded))

    def words(self) -> list[str]:
        """The same for rsync. Without --checksum both take the same size and time for the same."""
        how = [self.how] if self.how else []
        delete = ["--delete"] if self.delete else []
        patterns = [name.replace("*", "\\*") for name in self.excluded]
        return [*how, *delete, *(f"--exclude={pattern}" for pattern in patterns)]


PLAIN_NAMES = sorted({*FOLDERS, *FILES} - {"f*"})
asked = st.builds(
    Asked,
    st.booleans(),
    st.sampled_from(["", "--update", "--checksum"]),
    st.lists(st.sampled_from(PLAIN_NAMES), max_size=2),
)


def rsync(*words: str | Path) -> list[str]:
    """Returns the changes that it has made, or would make with -n."""
    done = subprocess.run(
        ["rsync", "-aHX", "--itemize-changes", *words], capture_output=True, timeout=COMMAND_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = os.fsdecode(done.stdout).splitlines()
    return [line for line in lines if not line.startswith("cannot delete non-empty directory")]


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("is_push", [True, False], ids=["push", "pull"])
def test_rsync_finds_nothing_left_to_do(
    is_push: bool, sshd: PrivateServer, kept: Kept, tmp_path: Path
) -> None:
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    session = kept("openssh", "agent", "auto")

    @settings(
        max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(trees(attributes=True), trees(attributes=False), asked)
    def judge(at_source: Tree, before: Tree, asked: Asked) -> None:
        if asked.how == "--update":  # what it leaves out, it leaves out with all its names
            at_source = at_source._replace(hard_links=[])
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            source, destination, judged = (Path(home) / name for name in ("s", "d", "j"))
            for folder, tree in ((source, at_source), (destination, before), (judged, before)):
                folder.mkdir()
                make(folder, tree)
            way = Way(is_push, sshd, source, destination, session)
            result = way.copy(".", **asked.fields())
            assert result.ok, result.failures
            left = rsync("-n", *asked.words(), f"{source}/", f"{destination}/")
            assert [line for line in left if not asked.may_stay(line)] == []
            rsync(*asked.words(), f"{source}/", f"{judged}/")
            assert names(destination) == names(judged)

    judge()
