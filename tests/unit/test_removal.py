"""What has to be synced and known before anything goes, and that nothing else removes or renames.

Not here: copies whose calls fail (../core/test_removal.py).
"""

from __future__ import annotations

import ast
import contextlib
import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import pscp
from pscp.endpoint.asking import entries, requests
from pscp.endpoint.reading import tree
from pscp.endpoint.serving import end
from pscp.endpoint.there import hardlinks
from pscp.endpoint.writing.removal import COMPARED, DIGEST, Durable, is_safe_to_remove, sync_folder

PACKAGE = Path(pscp.__file__).parent
CALLS = {"unlink", "rmdir", "removedirs", "rmtree", "rename", "renames"}  # of whatever it may be
# These are methods of lists, texts and records too: of the system, or a client that speaks SFTP
# (whose rename() removes what is in the way where the server's does not replace it).
ALSO, OWNERS = {"remove", "replace"}, {"os", "shutil", "client", "_client"}

# Every call in the package that removes or renames: where, which, how often, and what it is that
# goes. A new one belongs into removal.py, or here with its reason.
NAMES_OF_A_PERSON = {
    "endpoint/writing/removal.py remove_user_name": "the one removal, after is_safe_to_remove()",
    "sftp/mirror.py let_go": "the same over SFTP",
}
REPLACES = {
    "endpoint/writing/commit.py replace": "a durable part takes the name; what had it is kept",
    "endpoint/writing/backup.py _link": "the backup's name; without links the file itself gets it",
    "sftp/protocol/paths.py _make_way": "a mirror's folder takes the name",
    "sftp/sink.py _rename": "a synced part takes the name",
    "sftp/sink.py _make_file": "the part goes",
    "sftp/sink.py _name": "a synced part takes the name; or goes, where the file is there",
    "sftp/sink.py _make_link": "a link's part takes the name; or the part goes",
    "sftp/destination.py _hard_link": "a link's part takes the name; what is left of it goes",
    "endpoint/streams/stream_process.py close_input": "a synced stream's part takes the name",
    "serve/folder.py rename": "a synced upload takes its name, or its client renames it",
}
OF_A_CLIENT = {  # who asks for it over SFTP, and may
    "serve/files.py remove": "a file",
    "serve/files.py rmdir": "an empty folder",
}
MADE_JUST_NOW = {
    "endpoint/there/linkdest.py is_made": "a link to a file that changed since it was compared",
    "endpoint/reading/paths.py rmdir": "the same",
    "sftp/protocol/paths.py rmdir": "the same over SFTP",
    "endpoint/writing/sink.py finish_folder": "a folder of this copy, in which nothing landed",
    "sftp/destination.py folders": "the same over SFTP",
}
PSCPS_OWN = {
    "serve/server/worker.py run": "a socket that an earlier server has left",
    "endpoint/writing/parts.py unlink_private": "a part",
    "endpoint/writing/fence.py remove": "a fence",
    "endpoint/there/leftovers.py _take": "a part or fence, for --clean",
    "endpoint/plane/link.py nameless": "a temporary file, which loses its name at once",
    "endpoint/there/lookup.py inherit": "an earlier run's part becomes this one's",
    "endpoint/there/mirror.py _remove_parts": "parts of this copy in a folder that goes",
    "endpoint/there/moving.py mark": "the mark beside a source",
    "endpoint/reading/paths.py unlink_in": "a marker, a fence",
    "endpoint/writing/sink.py sweep": "parts",
    "endpoint/writing/sink.py _folds": "a file that it has just made, of a part's name",
    "sftp/destination.py folds": "the same over SFTP",
    "endpoint/writing/parts.py remove": "a part",
    "endpoint/writing/parts.py _as_made_here": "a file made to see how files are made there",
    "endpoint/writing/sink.py put": "a part",
    "endpoint/writing/seen.py _remove": "a file of its own, to see what hosts share",
    "endpoint/writing/seen.py _remove_dead": "such a file of a run that was killed",
    "endpoint/streams/stream_process.py _drop": "a stream's part",
    "endpoint/streams/stream_server.py remove": "a socket and its folder",
    "endpoint/streams/stream_server.py __init__": "a socket's folder",
    "sftp/destination.py discard": "parts",
    "sftp/destination.py _sweep": "parts",
    "sftp/protocol/paths.py unmark": "a marker",
    "sftp/fence.py claim": "a fence",
    "sftp/fence.py release": "a fence",
    "sftp/fence.py _fill": "a fence",
    "sftp/leftovers.py _judge": "a part or fence, for --clean",
    "sftp/mirror.py _has_removed_parts": "parts of this copy in a folder that goes",
    "sftp/moving.py mark": "the mark beside a source",
    "sftp/sink.py _open_part": "a part",
    "sftp/sink.py finish": "a part",
    "sftp/sink.py _is_finished": "a part",
    "serve/landing.py discard": "the part of an upload",
}
HERE = {  # the coordinator's own files on this machine
    "cluster/batch.py": "the folder of a queue's jobs, which it has made for them",
    "connect/persistent.py": "sockets and records of connections that are kept",
    "connect/logins/prompt_server.py": "a socket",
    "connect/openers.py": "a socket",
    "jobs/reports/history.py": "a history that is damaged is put aside",
    "manifests/making.py": "the signature of a manifest that is written anew",
    "ground/state.py": "pscp's state, and a file that was asked for, written beside it first",
    "transfer/terms/journal.py": "a journal",
    "transports/control_sockets.py": "sockets",
    "transports/libraries/mux_server.py": "a socket",
}


class Finder(ast.NodeVisitor):
    """Collects the innermost functions in which something is removed or renamed."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._within: list[str] = [""]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if node.attr in CALLS or (node.attr in ALSO and name in OWNERS):
            self.found.add(self._within[-1])
        self.generic_visit(node)


def removing(file: Path) -> set[str]:
    finder, text = Finder(), file.read_text("utf-8")
    if any(f".{name}" in text for name in CALLS | ALSO):
        finder.visit(ast.parse(text))
    return finder.found


def test_nothing_else_removes_or_renames() -> None:
    allowed = {*NAMES_OF_A_PERSON, *REPLACES, *OF_A_CLIENT, *MADE_JUST_NOW, *PSCPS_OWN}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        found |= {file} & {*HERE} if file in HERE and removing(path) else set()
        found |= set() if file in HERE else {f"{file} {name}" for name in removing(path)}
    assert found == allowed | {*HERE}


@pytest.mark.parametrize("proof", [DIGEST, COMPARED])
def test_what_is_verified_synced_and_elsewhere_may_go(proof: str) -> None:
    assert is_safe_to_remove(Durable(proof, is_synced=True, is_elsewhere=True))


def test_anything_less_keeps_it() -> None:
    good = Durable(DIGEST, is_synced=True, is_elsewhere=True)
    for proof, lacks in itertools.product(("", DIGEST, "size"), [["is_synced"], ["is_elsewhere"]]):
        assert not is_safe_to_remove(good._replace(proof=proof, **dict.fromkeys(lacks, False)))
    assert not is_safe_to_remove(good._replace(proof=""))


@pytest.mark.parametrize(
    ("name", "is_passed"),
    [("EINVAL", True), ("ENOTSUP", True), ("EBADF", True), ("EROFS", True),
     ("EIO", False), ("ENOSPC", False), ("EDQUOT", False), ("ESTALE", False), ("EACCES", False)],
)  # fmt: skip
def test_only_that_folders_cannot_be_synced_is_let_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, is_passed: bool
) -> None:
    """N4: every error was."""

    def fsync(fd: int) -> None:
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(os, "fsync", fsync)
    if is_passed:
        sync_folder(0)
    else:
        with pytest.raises(OSError, match=name):
            sync_folder(0)


# --- folders that the sink syncs


class Synced:
    """What each folder held when it was synced last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[int, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        self._fsync(fd)
        with contextlib.suppress(NotADirectoryError):
            self.names[os.fstat(fd).st_ino] = set(os.listdir(fd))

    def assert_all_of(self, root: Path) -> None:
        """Every name below the root has been synced as part of its folder."""
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            assert set(os.listdir(folder)) <= self.names.get(folder.stat().st_ino, set()), folder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(monkeypatch)


def sinking(root: Path, made: str = "") -> end.End:
    here = end.End(0o022)
    here.begin(requests.BeginSink(
        root=str(root), token="0" * 8, nonce="", earlier=[], hash="sha256", strong=False,
        preserve=True, archive=True, test=False, server={}, lane=1, made=made,
    ))  # fmt: skip
    return here


def entry(kind: str, path: str, **extra: Any) -> tree.Entry:
    return entries.entry([kind, 0, path, 0, 0o755, 0, 0, extra])


def packed(here: end.End, entries: list[tree.Entry]) -> None:
    outcomes: list[Any] = []
    here.file_sink().pack(entries, [[0, ""]] * len(entries), memoryview(b""), outcomes.append)
    assert outcomes == [[None] * len(entries)]


def asked(here: end.End, request: requests.Request, answer: object = None) -> None:
    answers: list[Any] = []
    here.answer(request, lambda *answer: answers.append(answer))
    assert answers == [(answer or [], False)]


def test_a_new_top_folder(tmp_path: Path, synced: Synced) -> None:
    """D7: its own name is in the root, where no file lies."""
    here = sinking(tmp_path)
    folders = [entry(tree.FOLDER, path, new=1) for path in ("top", "top/a", "top/a/b")]
    packed(here, folders)
    asked(here, requests.Folders(folders[::-1]))
    here.close()
    assert (tmp_path / "top" / "a" / "b").is_dir()
    synced.assert_all_of(tmp_path)


def test_links_that_lie_alone_in_their_folder(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "file").write_bytes(b"")
    here = sinking(tmp_path)
    packed(here, [entry(tree.LINK, "link", to="anywhere")])
    assert "link" in synced.names[tmp_path.stat().st_ino]
    asked(here, hardlinks.HardLinks([entry(tree.HARDLINK, "another", to="file")]), ([], [], []))
    here.close()
    synced.assert_all_of(tmp_path)


def test_a_marker_that_a_lane_removed_whose_answer_was_lost(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "new").mkdir()
    here = sinking(tmp_path, made="new")
    here.answer(requests.Unmark(), lambda *_: None)
    here.close()
    assert (tmp_path / "new").stat().st_ino in synced.names
