"""A copy as data: what it was given, what lay at both ends before it, and what is expected.

Options are named as their keywords in docs/options.md.

Not here: trees (tree_data.py), what must come of a copy (oracle.py), which are tried (draws.py).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tree_data import FOLDER, Node, Tree, join

OWN = (b".pscp-part", b".pscp-run", b".pscp-mark")  # what names of pscp's own end in
FACTS = frozenset({"mode", "mtime_ns", "owner"})


@dataclass(frozen=True)
class Case:
    """A copy: what it was given, and what lay at both ends before it."""

    options: Mapping[str, Any]
    source: Tree
    sources: Sequence[bytes]  # as spelt, below the source's root: b"t", b"t/.", b"t/file"
    there: Tree
    to: bytes = b""  # as spelt, below the destination's root
    listed: Sequence[bytes] = ()  # the lines of --files-from
    now_ns: int = 0
    umask: int = 0o022
    first: Tree | None = None  # what lay there before the first run, if this is not the first
    over_sftp: bool = False  # times are whole seconds; a pull makes no hard links; no devices
    to_sftp: bool = False  # the destination is behind SFTP, which makes no FIFOs
    # Makes alike what the destination takes for one path; None: only what is one.
    fold: Callable[[bytes], bytes] | None = None

    def has(self, name: str) -> Any:
        """Return the option's value, if it is given or implied."""
        return self.options.get(name) or (
            name in ("recursive", "preserve") and self.options.get("archive")
        )

    def key(self, path: bytes) -> bytes:
        """Return what all spellings of a path have in common that are one at the destination."""
        return path if self.fold is None else self.fold(path)

    def spelt_as(self, there: Tree, names: Collection[bytes]) -> Tree:
        """Return what is at the destination under each of these names that it takes for its own."""
        if self.fold is None:
            return there
        spellings: dict[bytes, list[bytes]] = {}
        for name in names:
            spellings.setdefault(self.fold(name), []).append(name)
        found: dict[bytes, Node] = {}
        ways: dict[bytes, list[bytes]] = {b"": [b""]}
        for path in sorted(there):
            above, _, name = path.rpartition(b"/")
            plain = [join(each, name) for each in ways.get(above, [above])]
            ways[path] = spellings.get(self.fold(path), plain) if path else [b""]
            found |= dict.fromkeys(ways[path], there[path])
        return found

    def is_whole(self, path: bytes) -> bool:
        """Is a folder that was named so, in a list or with -R, copied with all that is in it?"""
        says_r = self.options.get("recursive") or path.endswith(b"/")
        is_alone = self.listed and self.has("archive") and not says_r
        return bool(self.has("recursive") and not is_alone)

    def comes_with_a_folder(self, path: bytes) -> bool:
        """Is it in a listed folder that is copied with all that is in it?"""
        folders = [posixpath.normpath(b"/" + each) for each in self.listed if self.is_whole(each)]
        return any((b"/" + path).startswith(each.rstrip(b"/") + b"/") for each in folders)

    def asks_for(self, node: Node) -> bool:
        """Is a file of this size and age to be copied?"""
        age_s = (self.now_ns - node.mtime_ns) / 10**9
        for what, value in (("size_bytes", node.size), ("age_s", age_s)):
            least, most = self.options.get(f"min_{what}"), self.options.get(f"max_{what}")
            if (least is not None and value < least) or (most is not None and value > most):
                return False
        return True

    @property
    def follows(self) -> bool:
        """Is what a symlink leads to copied in its place?"""
        return bool(not self.has("archive") or self.has("copy_links"))

    @property
    def unit_ns(self) -> int:
        """How exactly times are kept."""
        return 10**9 if self.over_sftp else 1

    def is_same_time(self, node: Node, old: Node) -> bool:
        """Has what is there the source's time, as far as it could be kept there?"""
        return node.mtime_ns // self.unit_ns == old.mtime_ns // self.unit_ns

    def timed(self, node: Node, old: Node | None) -> Node:
        """Return the node with the time of what is there, if that is the same."""
        is_same = old is not None and self.is_same_time(node, old)
        return node._replace(mtime_ns=old.mtime_ns) if old and is_same else node


class Expected(NamedTuple):
    """What may have a name afterwards (None: nothing), and which of its facts count."""

    nodes: tuple[Node | None, ...]
    facts: frozenset[str] = frozenset()

    def difference(self, found: Node | None, unit_ns: int) -> str:
        """Say how what is there differs; "" if it does not."""
        for node in self.nodes:
            if node is None or found is None:
                if node is found:
                    return ""
            elif node.what == found.what:
                pairs = ((name, getattr(node, name), getattr(found, name)) for name in self.facts)
                unlike = [each for each in pairs if not _are_like(*each, unit_ns)]
                return "; ".join(f"{name} {got!r}, not {must!r}" for name, must, got in unlike)
        shown = [node and (node.kind, node.data[:8], node.size) for node in (*self.nodes, found)]
        return f"{shown[-1]}, not {' or '.join(map(str, shown[:-1]))}"


def _are_like(name: str, must: object, got: object, unit_ns: int) -> bool:
    if name == "mtime_ns" and isinstance(must, int) and isinstance(got, int):
        return must // unit_ns == got // unit_ns
    return must == got


@dataclass
class Verdict:
    """What must hold after a copy that nothing disturbed."""

    codes: set[int] = field(default_factory=lambda: {0})
    there: dict[bytes, Expected] = field(default_factory=dict)
    leaves: dict[bytes, bool | None] = field(default_factory=dict)  # the source; None: it may
    outcomes: dict[bytes, set[str]] = field(default_factory=dict)  # of files and links
    fails: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)  # whose names are others' there
    places: dict[bytes, bytes] = field(default_factory=dict)  # destination -> source, all entries

    def complaints(self, case: Case, source: Tree, there: Tree, code: int) -> Iterator[str]:
        """Say what is not as it must be; nothing where all is right."""
        there = case.spelt_as(there, self.there.keys())
        if code not in self.codes:
            yield f"exit code {code}, not one of {sorted(self.codes)}; {sorted(self.fails)}"
        lists = any(map(case.has, ("check", "dry_run", "transfer_test")))
        # Of runs that were cut, until one ends well that copies.
        own = {path for path in there if (code or lists) and path.endswith(OWN)}
        for path in sorted({*self.there, *there} - self.fails - own - self._above_perhaps(there)):
            expected = self.there.get(path, Expected((None,)))
            if why := expected.difference(there.get(path), case.unit_ns):
                yield f"destination {path!r}: {why}"
        for path, node in case.source.items():
            leaves = self.leaves.get(path, False)
            if leaves is not None and (path in source) == leaves:
                yield f"source {path!r} was {'left' if leaves else 'removed'}"
            elif path in source and source[path].what != node.what:
                yield f"source {path!r} was changed"
        yield from (f"source {path!r} is new" for path in source.keys() - case.source.keys())
        has_names = case.has("archive") and not case.has("copy_links") and not case.over_sftp
        if has_names and not (case.has("check") or case.has("dry_run")):
            yield from self._unlinked(case, there)
        if code == 0 and not lists:
            yield from check_clean({*there, *source})

    def _above_perhaps(self, there: Tree) -> set[bytes]:
        """Folders that are there, though nothing is expected of them, above what may be there."""
        perhaps = tuple(path for path, each in self.there.items() if None in each.nodes)
        new = (path for path in there.keys() - self.there.keys() if there[path].kind == FOLDER)
        return {path for path in new if any(each.startswith(path + b"/") for each in perhaps)}

    def _unlinked(self, case: Case, there: Tree) -> Iterator[str]:
        """Names of one file that are not those of one file afterwards, though all were taken."""
        seen: dict[int, bytes] = {}
        for path, at in sorted(self.places.items()):
            inode = case.source[at].inode
            if inode and path in there and "skipped" not in self.outcomes.get(path, ()):
                first = seen.setdefault(inode, path)
                if path != first and not 0 != there[first].inode == there[path].inode:
                    yield f"destination {path!r} is no hard link to {first!r}"


def check_clean(paths: Collection[bytes]) -> Iterator[str]:
    """Say what of pscp's own is left: nothing may be after exit code 0."""
    yield from (f"left behind: {path!r}" for path in paths if path.endswith(OWN))
