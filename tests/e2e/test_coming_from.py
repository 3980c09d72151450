"""Each line of docs/coming-from.md is typed: what the other program leaves, pscp leaves as well.

Both begin with the same: a source, a destination with an older copy of it and more, and yesterday's
copy; afterwards all three are compared, and whether the command failed. A line that is in no table
below is run as well, and nothing but what OFTEN has may differ.

Not here: what the options mean one by one (the modules beside this one).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import QUICK_LOGINS, MakeFar, shared, unavailable
from servers.private import SshdServer, find_sftp_server
from tree_data import FILE, FOLDER, LINK, SPECIAL, Made, Node, may_make_devices, plant, scan

import pscp
from e2e.kept_command import connected, goes_over, run_over
from e2e.ways import PSCP, run
from e2e.world import ROOT, put_program
from pscp.cli import copy as cli
from pscp.ground.errors import UsageError


class Row(NamedTuple):
    program: str
    theirs: str
    ours: str
    difference: str


def rows() -> Iterator[Row]:
    program = ""
    for line in (ROOT / "docs" / "coming-from.md").read_text().splitlines():
        if line.startswith("## "):
            program = line.removeprefix("## ")
        elif line.startswith("| `"):
            theirs, ours, difference = line[1:-1].split("|")
            yield Row(program, theirs.strip(" `"), ours.strip(" `"), difference.strip())


ROWS = list(rows())

DAY_NS = 86_400 * 10**9
BEGUN_NS = time.time_ns()  # what has a later time got it from the system's clock
OLD_NS, NEW_NS = 1_600_000_000_500_000_000, BEGUN_NS - 2 * DAY_NS
TOP = Made(FOLDER, mode=0o755, mtime_ns=OLD_NS)


def file(mark: int, size: int, mode: int = 0o644, mtime_ns: int = OLD_NS) -> Made:
    return Made(FILE, mark, size, mode, mtime_ns)


SPECIALS = {"fifo": Made(SPECIAL, mode=0o644, mtime_ns=OLD_NS)}
if may_make_devices():
    SPECIALS["device"] = Made(SPECIAL, 3, mode=0o640, mtime_ns=OLD_NS)

# --- what differs

CANNOT_RUN = {"mscp": "Debian has no package of it; scp is run, and leaves what mscp would"}


def each(text: str) -> set[str]:
    """Return each difference: "mode: a, b; more: c" as {"mode: a", "mode: b", "more: c"}."""
    parts = (part.partition(": ") for part in text.split("; ") if part)
    return {f"{what}: {name}" for what, _, names in parts for name in names.split(", ")}


NO_FILES = ", ".join(SPECIALS)
# What differs with every line of a program, as the page says above its table or in its first line.
OFTEN = {
    "scp": each("mtime_ns: same"),
    "mscp": each("mtime_ns: same"),
    "rsync": each("hard links: one name = other name"),
    "rclone": each(
        "mtime_ns: ., a folder; mode: a folder, changed, object.o, program; owner: program; "
        f"more: empty, {NO_FILES}, link, link to folder; hard links: one name = other name"
    ),
}
ALSO = {  # besides, where a line says so
    "scp -r3": "mtime_ns: ., a folder, empty",
    "rsync -a --compare-dest=DIR": "more: holes; hard links: holes = yesterday/holes",
    "rsync -a": "content: now folder; fewer: now folder/in",
    "rsync -aC": "more: object.o",
    "rsync -am": "more: empty",
    "rsync -a --no-perms": "mode: changed",
    "rsync -a --delete --max-delete=2": "more: gone folder, gone folder/file",
    "rsync -a --backup --suffix=.old": "mtime_ns: ., a folder, empty",
    "rsync -a --remove-source-files": "content: seems same",
    "rclone move src sftp:dst": "content: seems same; "
    "fewer: src/link, src/link to folder, " + ", ".join(f"src/{name}" for name in SPECIALS),
    "rclone sync --max-delete 3 src sftp:dst": "more: gone, gone.o, gone folder, gone folder/file; "
    "fails: pscp",
}
FOLLOWED = "more: link, link to folder, link to folder/\\xff name"
ONLY = {  # in place of what often differs
    "scp -rpCBqvT4": "content: seems same",
    "rsync -avn": "",
    "rsync -a 1/d 2/d dst/": "",
    "rsync -rv": f"content: seems same; {FOLLOWED}",
    "rsync -rt": f"mode: changed; {FOLLOWED}",
    "rsync -aHAXLRx --partial --progress --stats": "",
    "rsync -au --existing --min-size=1K --max-size=1G --chmod=F644": "",
    "rsync -a --include='other*' --exclude='o*'": "",
    "rsync --files-from=FILE -0": "",
    "rclone check src sftp:dst": "",
    "rclone --dry-run": "",
    "rclone --min-age 1h --max-age 7d --update --log-file FILE": "mtime_ns: .; mode: program; "
    f"owner: program; more: a folder, empty, {NO_FILES}, link, link to folder",
    "mscp -pC -P 2222 -i key -F config -J jump": "content: seems same",
}

# --- what is there before

SOURCE = {
    b"": TOP,
    b"changed": file(1, 3000, 0o640),
    b"same": file(1, 700),
    b"seems same": file(1, 500),
    b"older": file(1, 400),
    b"program": file(1, 5000, 0o755, NEW_NS),
    b"object.o": file(1, 800, 0o600),
    b"a folder": Made(FOLDER, mode=0o750, mtime_ns=OLD_NS),
    b"a folder/\xff name": file(1, 50),
    b"empty": Made(FOLDER, mode=0o700, mtime_ns=OLD_NS),
    b"one name": file(1, 100),
    b"other name": Made(FILE, same_as=b"src/one name"),
    b"link": Made(LINK, target=b"changed", mtime_ns=OLD_NS),
    b"link to folder": Made(LINK, target=b"a folder", mtime_ns=OLD_NS),
    b"holes": file(2, 400_000),
    **{name.encode(): made for name, made in SPECIALS.items()},
}
BEFORE = {
    b"": TOP,
    b"changed": file(3, 2000, 0o600, OLD_NS - DAY_NS),
    b"same": SOURCE[b"same"],
    b"seems same": file(3, 500),
    b"older": file(3, 300, mtime_ns=NEW_NS),
    b"gone": file(1, 10),
    b"gone.o": file(1, 20),
    b"gone folder": TOP,
    b"gone folder/file": file(1, 30),
}
# Where rsync's answer is wanted: what is of another kind at the destination.
SOURCE_CLASHES = {b"now file": file(1, 60), b"now folder": TOP, b"now folder/in": file(1, 70)}
CLASHES = {
    b"now file": TOP,
    b"now file/in": file(1, 80),
    b"now folder": Made(LINK, target=b"same", mtime_ns=OLD_NS),
}
YESTERDAY = {b"": TOP, b"program": SOURCE[b"program"], b"holes": SOURCE[b"holes"]}
TWINS = {"1/d": {b"": TOP, b"same": SOURCE[b"same"]}, "2/d": {b"": TOP}}
SCP_FAILS_AT = {b"link to folder", *map(str.encode, SPECIALS)}


def make_world(root: Path, is_into: bool, has_clashes: bool) -> None:
    inside = "dst/src" if is_into else "dst"
    source, before = (
        (SOURCE | SOURCE_CLASHES, BEFORE | CLASHES) if has_clashes else (SOURCE, BEFORE)
    )
    tree = {}
    folders = {"src": source, inside: before, "yesterday": YESTERDAY, **TWINS}
    for folder, nodes in folders.items():
        for name, made in nodes.items():
            if not (is_into and name in SCP_FAILS_AT):
                tree[os.path.join(folder.encode(), name).rstrip(b"/")] = made
    (root / inside).mkdir(parents=True)
    plant(os.fsencode(root), tree)
    if os.geteuid() == 0:
        os.chown(root / "src" / "program", 12345, 23456)


# --- what is typed


class Left(NamedTuple):
    """What a command leaves: whether it failed, and all that lies there."""

    failed: bool
    tree: dict[bytes, Node]


class Typed:
    """The commands of a line, with real names in the place of those on the page."""

    def __init__(self, server: SshdServer, folder: Path, session: pscp.Session) -> None:
        self._server, self._folder, self._session = server, folder, session
        self._ran: dict[tuple[str, ...], Left] = {}
        self._named = {
            "2222": server.port, "key": server.folder / "user_key", "config": server.ssh_config,
            "jump": server.host, "program": folder / "ssh", "server": find_sftp_server(),
            "FILE": folder / "names", "DIR": "../yesterday",
            "host:dst/": f"{server.host}:ROOT/dst/", "sftp:dst": "sftp:ROOT/dst",
        }  # fmt: skip
        (folder / "names").write_bytes(b"changed\0a folder\0")
        put_program(folder / "sudo", ["env"])
        for name in ("ssh", "scp"):  # also what the far end runs, to get to another
            put_program(folder / name, [shutil.which(name) or name, "-F", server.ssh_config])

    def _words(self, text: str) -> list[str]:
        for name, value in self._named.items():
            text = re.sub(rf"(?<![\w-]){name}(?![\w-])", str(value), text)
        return shlex.split(text)

    def _places(self, row: Row, source: str) -> list[str]:
        """Return source and destination of a line that names none."""
        host = f"{self._server.host}:ROOT/"
        between = host if row.theirs in ("-r3", "-rR") else ""
        return [between + source, host + ("new" if "--mkpath" in row.theirs else "dst")]

    def theirs(self, row: Row) -> Left:
        words = self._words(row.theirs)
        if row.program == "rsync":
            places = [] if row.theirs.endswith("dst/") else self._places(row, "src/")
            return self._left(row, "rsync", *words, *places)
        if row.program == "rclone":
            copy = ["copy", *words, "src", "sftp:ROOT/dst"]
            return self._left(row, "rclone", *(copy if words[0].startswith("-") else words))
        if row.program in CANNOT_RUN:
            words = ["-rp" if "-p" in row.theirs else "-r"]
        argv = ["scp", "-F", self._server.ssh_config, *words, *self._places(row, "src")]
        return self._left(row, *(["true"] if row.theirs == "-D" else argv))

    def ours(self, row: Row) -> Left:
        words = self._words(row.ours)
        if "host:" not in row.ours:
            words += self._places(row, "src" if is_into(row) else "src/.")
        return self._left(row, *PSCP, "-F", self._server.ssh_config, "-B", "-c", "1", *words)

    def _left(self, row: Row, *argv: str) -> Left:
        """Run a command that has not run yet in a world of its own."""
        is_mirror = "--delete" in row.theirs and "max" not in row.theirs
        has_clashes = row.theirs == "-a" or is_mirror
        key = (f"{has_clashes}", *argv)
        if key not in self._ran:
            its = {
                "type": "sftp", "host": "127.0.0.1", "port": self._server.port,
                "user": self._server.user, "key_file": self._server.folder / "user_key",
            }  # fmt: skip
            sftp = {f"RCLONE_CONFIG_SFTP_{key.upper()}": f"{its[key]}" for key in its}
            path = f"{self._folder}:{os.environ['PATH']}"
            root = Path(tempfile.mkdtemp(dir=self._folder))
            make_world(root, is_into(row), has_clashes)
            words = [word.replace("ROOT", str(root)) for word in argv]
            if (code := self._over_session(words, root)) is None:
                env = {**os.environ, "PATH": path, "RCLONE_CONFIG": "/dev/null", **sftp}
                code = run(words, cwd=root, env=env).code
            self._ran[key] = Left(code != 0, scan(os.fsencode(root)))
            shutil.rmtree(root)
        return self._ran[key]

    def _over_session(self, argv: list[str], root: Path) -> int | None:
        """Run pscp's command over connections that are open already, if it can be; its code."""
        words = argv[len(PSCP) :]
        if tuple(argv[: len(PSCP)]) != PSCP:
            return None
        with contextlib.chdir(root):
            return run_over(self._session, words)[0] if goes_over(self._session, words) else None


def is_into(row: Row) -> bool:
    """Does `src` become `dst/src`?"""
    return row.program in ("scp", "mscp")


@pytest.fixture(scope="module")
def typed(make_far: MakeFar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    for program in ("scp", "rsync", "rclone"):
        if shutil.which(program) is None:
            unavailable(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("typed")
    far = make_far()
    far["PATH"] = f"{folder}:{far['PATH']}"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(shared(lambda: SshdServer(QUICK_LOGINS, environment=far)))
        session = stack.enter_context(shared(lambda: connected(server, folder)))
        yield Typed(server, folder, session)


# --- the comparison


def differences(theirs_left: Left, ours_left: Left, unit_ns: int) -> set[str]:
    """Return what differs, as each() does."""
    theirs, ours = theirs_left.tree, ours_left.tree
    found = set()
    if theirs_left.failed != ours_left.failed:
        found.add(f"fails: {'pscp' if ours_left.failed else 'the other'}")
    for name in {*theirs, *ours}:
        if name not in theirs or name not in ours:
            found.add(f"{'fewer' if name in theirs else 'more'}: {shown(name)}")
        elif theirs[name].what != ours[name].what:
            found.add(f"content: {shown(name)}")
        else:
            pairs = facts(theirs[name], unit_ns) ^ facts(ours[name], unit_ns)
            found |= {f"{what}: {shown(name)}" for what, _ in pairs}
    unlike = linked(theirs) ^ linked(ours)
    return found | {f"hard links: {' = '.join(map(shown, sorted(names)))}" for names in unlike}


def facts(node: Node, unit_ns: int) -> set[tuple[str, object]]:
    mtime_ns = min(node.mtime_ns, BEGUN_NS) // unit_ns
    mode = None if node.kind == LINK else node.mode
    return {("mode", mode), ("owner", node.owner), ("mtime_ns", mtime_ns)}


def linked(tree: dict[bytes, Node]) -> set[frozenset[bytes]]:
    """Return the sets of names that are of one file each."""
    names = defaultdict(set)
    for name, node in tree.items():
        if node.inode:
            names[node.inode].add(name)
    return {frozenset(each) for each in names.values()}


def shown(name: bytes) -> str:
    return re.sub("^(dst/src|dst|new)(/|$)", "", name.decode(errors="backslashreplace")) or "."


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.program} {row.theirs}")
def test_both_leave_the_same(row: Row, typed: Typed) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(typed.theirs, row)
        ours = typed.ours(row)
        theirs = running.result()
    unit_ns = 1 if row.program == "rsync" else 10**9  # the others keep whole seconds
    name = f"{row.program} {row.theirs}"
    wanted = each(ONLY[name]) if name in ONLY else OFTEN[row.program] | each(ALSO.get(name, ""))
    if os.geteuid() != 0:
        wanted = {fact for fact in wanted if not fact.startswith("owner")}
    assert differences(theirs, ours, unit_ns) == wanted
    assert not (ALSO | ONLY).get(name) or row.difference not in ("", "the same")


def test_what_may_differ_is_on_the_page() -> None:
    assert {*ALSO, *ONLY} <= {f"{row.program} {row.theirs}" for row in ROWS}
    assert {*OFTEN} == {row.program for row in ROWS}
    assert len(ROWS) > 55


# --- what pscp says to the first column, and means by it


def parsed(text: str) -> Any:
    """The options of these words, but for -r, which some programs take for granted."""
    words = shlex.split(text)
    if not any(":" in word and not word.startswith("-") for word in words):
        words += ["src/x", "host:dst"]
    command = cli.parse(words)
    assert isinstance(command, cli.Command)
    return dataclasses.replace(command.options, recursive=command.options.archive)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.program} {row.theirs}")
def test_it_is_meant_or_said_as_the_page_has_it(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch()
    ours = parsed(row.ours)
    if row.difference.startswith("the same"):
        theirs = f"-a {row.theirs}" if row.program == "rclone" else row.theirs
        assert parsed(theirs) == ours
    if said := re.search('says "(.*?)"', row.difference):
        with pytest.raises(UsageError) as refused:
            parsed(row.theirs)
        assert said[1] in f"{refused.value.message} {refused.value.hint}"
