"""What a copy must leave behind: an oracle for tests that draw copies.

Written from docs/mirrors.md, filters.md, names.md, options.md, coming-from.md and README.md,
and not from the code: nothing of pscp is imported.

Not here: what a case is (cases.py), what is tried (draws.py), rsync's patterns (patterns.py).
Read next: soak/test_oracle.py, which has rsync judge it.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cases import FACTS, OWN, Case, Expected, Verdict
from patterns import change_mode, is_kept
from tree_data import FILE, FOLDER, LINK, SPECIAL, Node, Tree, children, join, real

TAKEN = {"copied", "unchanged", "linked", "metadata"}


def judge(case: Case) -> Verdict:
    """Return what must hold after this copy, if nothing disturbs it."""
    case = _as_spelt(case)
    verdict = Verdict()
    for path, node in case.there.items():  # a folder's time changes with what is in it
        facts = FACTS if node.kind == FILE else FACTS - {"mtime_ns"}
        # What one name of a file is given, all of its names have.
        verdict.there[path] = Expected((node,), frozenset() if node.inode else facts)
    before = dict(verdict.there)
    walk = _Walk(case, verdict)
    walk.run()
    if case.has("delete"):
        walk.mirror()
    verdict.codes = {1} if verdict.fails or verdict.refused else verdict.codes
    if case.has("check"):
        verdict.codes = {1} if walk.differs or verdict.fails or verdict.refused else {0}
    if case.has("check") or case.has("dry_run") or case.has("transfer_test"):
        verdict.there = before
        verdict.codes |= {0} if case.has("transfer_test") else set()
    elif case.has("remove_source_files"):
        walk.remove_sources()
    return verdict


def _as_spelt(case: Case) -> Case:
    """Return the case with the source's spelling of what is at the destination."""
    if case.fold is None:
        return case
    first = case.there if case.first is None else case.first
    options = {name: case.options[name] for name in case.options if name != "existing"}
    walk = _Walk(replace(case, options=options, there={}, first=first), Verdict())
    walk.run()
    names = {*walk.verdict.places, *walk.verdict.fails}
    taken = {*map(case.fold, names)}
    names |= {name for name in walk.left_out if case.fold(name) not in taken}
    return replace(case, there=case.spelt_as(case.there, names))


def permitted(case: Case, source: Tree, there: Tree, ever: Sequence[Tree]) -> Iterator[str]:
    """Say what must not be after a kill or a fault at any moment of this copy.

    `ever` has each version of the source that there was, the first and the last among them.
    """
    whole: dict[bytes, set[tuple[str, bytes]]] = {}
    old_there = {case.key(path): node for path, node in case.there.items()}
    for version in ever:
        case = replace(case, source=version)
        for to, at in judge(case).places.items():
            found = real(version, at) if case.follows else at
            key = case.key(to)
            whole.setdefault(key, set()).add(version[at if found is None else found].what)
            whole[key] |= _believed(case, at)
    olds = _older(case)
    for path, node in there.items():
        before = old_there.get(case.key(path))
        is_old = before is not None and before.what == node.what
        if node.kind == FOLDER or path.endswith(OWN) or is_old or node.what in olds:
            continue
        if node.what not in whole.get(case.key(path), ()):
            yield f"destination {path!r} is neither the old file nor a whole new one"
    left = {case.key(path): node for path, node in there.items()}
    for path in (path for path in case.there if case.key(path) not in left):
        if not case.has("delete") or _stays(case, path):  # of the last version
            yield f"destination {path!r} is gone"
    for path in ever[-1].keys() - source.keys():
        held = (case.key(to) for to, at in judge(case).places.items() if at == path)
        landed = {left[to].what for to in held if to in left}
        if not case.has("remove_source_files") or ever[-1][path].what not in landed:
            yield f"source {path!r} is gone, and is not at the destination"


def _stays(case: Case, path: bytes) -> bool:
    """Has a mirror's source this name, for a thing of the kind that lies there?"""
    places = {case.key(to): at for to, at in judge(case).places.items()}
    at = places.get(case.key(path))
    found = real(case.source, at) if at is not None and case.follows else at
    return found is not None and case.source[found].kind == case.there[path].kind


def _believed(case: Case, at: bytes) -> set[tuple[str, bytes]]:
    """Return what lies at the other names of a file of the source and has its size and time: it is
    linked to that, unread.
    """
    node = case.source[at]
    if not (case.has("archive") and node.inode):
        return set()
    names = (to for to, its in judge(case).places.items() if case.source[its].inode == node.inode)
    keys = set(map(case.key, names))
    old = [node for to, node in case.there.items() if case.key(to) in keys]
    return {o.what for o in old if o.size == node.size and case.is_same_time(node, o)}


def _older(case: Case) -> set[tuple[str, bytes]]:
    """Return what may have any name afterwards: backups, and what is linked, unread."""
    if case.has("backup") or case.has("backup_dir"):
        return {node.what for node in case.there.values()}
    is_linked = bool(case.has("link_dest"))
    nodes = case.there.items() if is_linked else ()
    return {node.what for at, node in nodes if at.startswith(b"yesterday/")}


# --- which entries there are, where they go, and what becomes of them


class _Walk:
    """Goes through the sources, and writes down what becomes of each entry."""

    def __init__(self, case: Case, verdict: Verdict) -> None:
        self.case, self.verdict = case, verdict
        self.left_out: set[bytes] = set()
        self.folders: dict[bytes, bytes] = {}  # that a mirror is of -> their path for patterns
        self.through: set[bytes] = set()  # what was reached through a link
        self.replaced: set[bytes] = set()  # files that make way for folders
        self.blocked: dict[bytes, tuple[bytes, Node, bytes]] = {}  # by what the mirror may delete
        self.is_whole = True  # no source is missing
        self.named: dict[bytes, bytes] = {}  # names of this copy that the destination has by now
        self.differs = False
        self.root = case.to.rstrip(b"/")

    def run(self) -> None:
        case = self.case
        is_into = case.to.endswith(b"/") or len(case.sources) > 1
        if case.listed or case.has("relative"):
            self._make_above(join(self.root, b"x"))
            found = [path for path in case.sources if path.strip(b"/") in case.source]
            for path in () if case.listed else found:  # all folders above sources come first
                self._is_passed_above(b"", path.strip(b"/"))
            for path in case.listed or case.sources:
                base = case.sources[0].removesuffix(b"/.") if case.listed else b""
                self._whole_path(base, path.strip(b"/"), case.is_whole(path))
            return
        first = case.there if case.first is None else case.first
        if posixpath.dirname(self.root) not in first and not case.has("mkpath"):
            self.verdict.fails.add(self.root)
            return
        if is_into:
            self._make_above(join(self.root, b"x"))
        old = first.get(self.root)
        for source in case.sources:
            at, name = posixpath.normpath(source), posixpath.basename(source)
            if at not in case.source and at != b".":
                self.verdict.fails.add(join(self.root, name))
                self.is_whole = False
            elif name == b".":
                self._entry(b"" if at == b"." else at, self.root, b"", True)
            else:
                is_in = is_into or (old is not None and old.kind == FOLDER)
                self._entry(at, join(self.root, name) if is_in else self.root, name, True)

    def _make_above(self, path: bytes) -> None:
        """What is missing above an entry is made."""
        above = posixpath.dirname(path)
        if above != path and above not in self.verdict.there:
            self._make_above(above)
            self.verdict.there[above] = Expected((Node(FOLDER),))

    def _whole_path(self, base: bytes, path: bytes, is_deep: bool) -> None:
        is_there = join(base, path) in self.case.source
        if (is_there or self.case.listed) and self._is_passed_above(base, path):
            return
        if is_there:
            self._entry(join(base, path), join(self.root, path), path, is_deep)
        elif not self.case.comes_with_a_folder(path):
            self.verdict.fails.add(join(self.root, path))

    def _is_passed_above(self, base: bytes, path: bytes) -> bool:
        """Take the folders above a path. Does none come of it, as none does of one of them?"""
        names = path.split(b"/")
        for count in range(1, len(names)):
            above = b"/".join(names[:count])
            if join(base, above) in self.case.source:
                self._entry(join(base, above), join(self.root, above), above, False)
            for passed in (self.left_out, self.verdict.refused, self.verdict.fails):
                if join(self.root, above) in passed:
                    passed.add(join(self.root, path))
                    return True
        return False

    def _entry(
        self, at: bytes, to: bytes, name: bytes, is_deep: bool, above: tuple[bytes, ...] = ()
    ) -> None:
        """Take an entry, and if it is a folder what is in it."""
        case, old = self.case, self.case.there.get(to)
        lead = real(case.source, at) if case.follows else at
        found = None if lead is None else case.source[lead]
        is_folder = found is not None and found.kind == FOLDER
        is_left = case.has("ignore_existing") and not is_folder
        if lead != at or posixpath.dirname(to) in self.through:
            self.through.add(to)
        if name and not is_kept(case.has("filters") or (), name, is_folder):
            self.left_out.add(to)
        elif found is None or lead is None or lead in above:
            self.verdict.fails.add(to)
        elif self._is_passed_over(to, found):
            pass
        elif old and not is_left and case.has("delete") and _is_in_the_way(found, old):
            self.blocked[to] = at, found, name
        elif is_folder and old and is_deep and self._makes_way(to, old):
            self._replace_by_folder(to, old)
            self._entry(at, to, name, is_deep, above)
        elif self._is_refused(found, old, is_deep=is_deep) and not (old and is_left):
            self.verdict.fails.add(to)
        else:
            self.verdict.places[to] = at
            self._take(to, found, old)
            if is_folder and is_deep:
                self.folders[to] = name
            for child in children(case.source, lead) if is_folder and is_deep else ():
                below = (join(lead, child), join(to, child), join(name, child))
                self._entry(*below, True, (*above, lead))

    def _is_passed_over(self, to: bytes, node: Node) -> bool:
        """Is it left out, or refused for its name? Then note it."""
        if self._is_left_out(node):
            self.left_out.add(to)
        elif self._is_taken(to):
            self.verdict.refused.add(to)
        else:
            return False
        return True

    def _is_taken(self, to: bytes) -> bool:
        """Is it the name of another entry there, which came first?"""
        case = self.case
        if case.has("check") or case.has("dry_run") or case.has("transfer_test"):
            return False
        above = posixpath.dirname(to)
        if case.has("existing") and above and above not in case.there:
            return False  # nothing is made in it
        return self.named.setdefault(case.key(to), to) != to

    def _is_left_out(self, node: Node) -> bool:
        if node.kind == SPECIAL:
            is_unmade = self.case.over_sftp if node.data else self.case.to_sftp  # a device, a FIFO
            return is_unmade or not self.case.has("archive")
        return node.kind == FILE and not self.case.asks_for(node)

    def _is_refused(self, node: Node, old: Node | None, *, is_deep: bool) -> bool:
        if node.kind == FOLDER:
            is_flat = is_deep and not self.case.has("recursive")
            return is_flat or (old is not None and old.kind != FOLDER)
        return old is not None and _is_in_the_way(node, old)

    def _makes_way(self, to: bytes, old: Node) -> bool:
        """Does a folder take this file's place? Not a source's own."""
        case = self.case
        above = [at for at in self.folders if to.startswith(at + b"/" if at else b"")]
        is_asked = case.has("delete") and not case.has("ignore_existing")
        return bool(is_asked and old.kind != FOLDER and above)

    def _replace_by_folder(self, to: bytes, old: Node) -> None:
        self.case = replace(self.case, there={p: n for p, n in self.case.there.items() if p != to})
        self.replaced.add(to)  # for --existing something is there
        del self.verdict.there[to]
        self._back_up(to, old, is_sure=True)

    def _take(self, to: bytes, node: Node, old: Node | None) -> None:
        case, verdict = self.case, self.verdict
        has_old = old is not None and (case.has("ignore_existing") or self._is_newer(node, old))
        if has_old if old else case.has("existing") and to not in self.replaced:
            if node.kind != FOLDER:
                verdict.outcomes[to] = {"skipped", "unchanged"}
            elif old:
                verdict.there[to] = Expected((old,))
            return
        self._make_above(to)
        known = self._known(node, old) if old and node.kind != FOLDER else ""
        expected = self._as_copied(to, node, old, known)
        is_aged = old is not None and not case.is_same_time(node, old)
        is_by_time = self._is_timed if node.kind == FILE else case.has("preserve")
        is_like = known == "unchanged" or (known and not (is_by_time and is_aged))
        are_special = old is not None and node.kind == old.kind == SPECIAL
        is_like = is_like or (are_special and not (is_by_time and is_aged))
        self.differs |= old is None or (not is_like and node.kind != FOLDER)
        is_same = (
            known or are_special or is_like or (old is not None and node.kind == old.kind == FOLDER)
        )
        lacks = self._lacks(node, old, expected) if old and is_same else set()
        self.differs |= bool(lacks)
        if is_same and is_aged and case.has("preserve") and node.kind != LINK:
            lacks.add("mtime_ns")
        if node.kind != FOLDER:
            is_sure = bool(lacks) and not node.inode  # else another name may be given it first
            others = set() if lacks or node.inode or case.over_sftp else {"metadata"}
            verdict.outcomes[to] = TAKEN - ({"unchanged"} if is_sure else others)
            is_sure = known == "unchanged" and not self._other_names(node)
            if old and not (is_sure and case.options.get("resume", True)):
                may_be_same = any(each and each.what == old.what for each in expected.nodes)
                self._back_up(to, old, is_sure=not (known or may_be_same))
        verdict.there[to] = expected

    def _lacks(self, node: Node, old: Node, expected: Expected) -> set[str]:
        """Return which facts of what is the same else are another and will be set."""
        if not self.case.has("preserve") or expected.nodes[0] is None:
            return set()
        named, will = expected.facts & {"mode", "owner"}, expected.nodes[0]
        if self.case.over_sftp:  # where -n and --check do not compare owners
            named -= {"owner"}
        return {name for name in named if getattr(will, name) != getattr(old, name)}

    def _is_newer(self, node: Node, old: Node) -> bool:
        """Does --update leave it out?"""
        here, there = (each.mtime_ns // self.case.unit_ns for each in (node, old))
        return bool(self.case.has("update")) and node.kind == old.kind == FILE and there > here

    @property
    def _hashes(self) -> bool:
        return any(map(self.case.has, ("checksum", "strong", "remove_source_files")))

    @property
    def _is_timed(self) -> bool:
        """Do size and time decide?"""
        return bool(self.case.has("preserve")) and not self._hashes

    def _known(self, node: Node, old: Node) -> str:
        """Return "unchanged" if what is there stays unread, "same" if it is equal, else ""."""
        case = self.case
        is_timed = case.has("preserve") and case.is_same_time(node, old)
        is_like = node.kind == old.kind == FILE and node.size == old.size
        if is_like and not self._hashes and (case.has("size_only") or is_timed):
            return "unchanged"
        return "same" if node.what == old.what else ""

    def _as_copied(self, to: bytes, node: Node, old: Node | None, known: str) -> Expected:
        case, keeps = self.case, self.case.has("preserve")
        mode = change_mode(case.has("chmod") or "", node.mode, node.kind == FOLDER, case.umask)
        if not keeps and old is not None and old.kind == node.kind:
            mode = old.mode
        elif not keeps:
            mode = mode & ~case.umask & 0o777 | self._lent(to, node)
        facts = {"mode"} | ({"mtime_ns"} if keeps else set())
        facts |= {"owner"} if case.has("archive") and not case.has("chown") else set()
        if node.kind == LINK or (to == self.root and not old and not keeps):
            facts &= {"owner"}  # a DEST that is made may have any mode
        nodes = [case.timed(node, old if known else None)._replace(mode=mode)]
        believes = case.options.get("resume", True)
        is_doubted = not believes or case.has("manifest")
        if old and known == "unchanged":
            others = self._other_names(node) if case.has("archive") else []
            unread = [nodes[0]._replace(data=each.data) for each in (old, *others)]
            nodes = unread + (nodes if is_doubted or others else [])
        elif case.has("archive") and believes:  # linked to what the quick check believes
            believed = [e for e in self._other_names(node) if self._known(node, e) == "unchanged"]
            nodes += [nodes[0]._replace(data=each.data) for each in believed]
        nodes += [nodes[0]._replace(data=each.data) for each in self._of_yesterday(to, node)]
        return Expected(tuple(nodes), frozenset(facts))

    def _lent(self, to: bytes, node: Node) -> int:
        """Return the setgid bit that a folder is made with, as the one that it is in has it."""
        above = self.verdict.there.get(posixpath.dirname(to)) if node.kind == FOLDER else None
        found = above.nodes[0] if above is not None else None
        return found.mode & stat.S_ISGID if found is not None else 0

    def _of_yesterday(self, to: bytes, node: Node) -> list[Node]:
        """What --link-dest links, unread, as it has the size and time of this."""
        path = join(b"yesterday", to[len(self.root) :].lstrip(b"/"))
        old = self.case.there.get(path) if self.case.has("link_dest") else None
        return [old] if old and self._known(node, old) == "unchanged" else []

    def _other_names(self, node: Node) -> list[Node]:
        """What lies at the other names of a file, which becomes one file again with -a."""
        names = ((to, self.case.source[at].inode) for to, at in self.verdict.places.items())
        same = [to for to, inode in names if node.inode and inode == node.inode]
        return [self.case.there[to] for to in same if to in self.case.there]

    def _back_up(self, to: bytes, old: Node, is_sure: bool) -> None:
        case = self.case
        folder = (case.has("backup_dir") or "").encode()
        if not (folder or case.has("backup")) or old.kind == FOLDER:
            return
        suffix = (case.options.get("suffix") or ("" if folder else "~")).encode()
        below = to[len(self.root) :].lstrip(b"/")
        path = (join(join(self.root, folder), below) if folder else to) + suffix
        if is_sure:
            self._make_above(path)
        nodes = (old,) if is_sure else (old, case.there.get(path))
        self.verdict.there[path] = Expected(nodes, FACTS if is_sure else frozenset())

    # --- what is removed

    def mirror(self) -> None:
        """Delete in each folder of the copy what the source's folder has not."""
        case, verdict = self.case, self.verdict
        verdict.fails |= self.blocked.keys()
        if not self.is_whole:
            return
        gone: list[bytes] = []
        kept = {*verdict.places, *self.left_out, *verdict.fails, *verdict.refused}
        for to, name in self.folders.items():
            for child in children(case.there, to):
                path = join(to, child)
                if path not in kept:
                    self._doom(path, join(name, child), gone)
        freed = [to for to, (_, _, name) in self.blocked.items() if self._doom(to, name, gone)]
        self.differs = self.differs or bool(gone)
        most = case.options.get("max_delete")
        if most is not None and len(gone) > most:
            verdict.codes = {1}
            return
        for path in gone:
            del verdict.there[path]
            verdict.outcomes[path] = {"deleted"}
            self._back_up(path, case.there[path], is_sure=True)
        for to in freed:
            at, found, _ = self.blocked[to]
            verdict.fails.discard(to)
            verdict.places[to] = at
            self._take(to, found, case.there[to])

    def _doom(self, path: bytes, name: bytes, gone: list[bytes]) -> bool:
        """Collect what is deleted of this name; a folder stays with what stays in it."""
        is_folder = self.case.there[path].kind == FOLDER
        backups = (self.case.has("backup_dir") or "").encode()
        if backups and path == join(self.root, backups):
            return False
        if not is_kept(self.case.has("filters") or (), name, is_folder):
            return False
        below = [
            self._doom(join(path, child), join(name, child), gone)
            for child in (children(self.case.there, path) if is_folder else ())
        ]
        if all(below):
            gone.append(path)
        return all(below)

    def remove_sources(self) -> None:
        """Remove what has landed; what was reached through a link may stay."""
        verdict = self.verdict
        for to, outcome in verdict.outcomes.items():
            may_stay = to in self.through
            if outcome <= TAKEN:
                verdict.leaves[verdict.places[to]] = None if may_stay else True
            if may_stay:
                verdict.codes |= {1}


def _is_in_the_way(node: Node, old: Node) -> bool:
    """Is what is there such that nothing but a mirror takes its place, for what is no folder?"""
    is_same = (node.kind, node.data) == (old.kind, old.data)  # a FIFO, or that very device
    return node.kind != FOLDER and (old.kind == FOLDER or (old.kind == SPECIAL and not is_same))
