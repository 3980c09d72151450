"""A far end that lies, when it is pulled from: it writes nowhere else, and there is a clear end.

What the scenarios do is in hostile_agent.py. After each of them: nothing beside the destination
has changed, no traceback, one of the documented exit codes, and no part is left. They run in
threads of this process; one of each kind, and those that end it, are the ssh of a lane.

Not here: each field of an entry (../unit/test_entries.py), frames that no state takes, and what is
none (../unit/test_session.py, ../unit/test_wire.py, ../core/test_lane.py, ../core/test_damage.py).
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compare import tree_digest
from programs import ASKED, script

from faults.conftest import HERE, MIB, PATIENCE_S, PEAK, PROGRAM, Ended
from faults.hostile_agent import EVIL, LARGE
from faults.hostile_channel import HostileChannel
from pscp.cli import copy
from pscp.connect import openers
from pscp.transfer import logins
from pscp.transports import openssh

pytestmark = pytest.mark.timeout(60)


def hints(ended: Ended) -> int:
    return int(ended.err.splitlines()[-1].startswith("      "))


class Victim:
    """Who pulls: a destination, and beside it what nobody may touch."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.destination, self.beside = home / "destination", home / "beside"
        self._home, self._capfd = home, capfd
        self.beside.mkdir()
        (self.beside / "secret").write_text("secret")
        (self.beside / "folder").mkdir()
        os.environ["VICTIM"] = str(self.beside)

    def words(self, scenario: str, *words: str, name: str = "tree") -> list[str]:
        program = self._home / "ssh"
        agent = [sys.executable, "-I", str(HERE / "hostile_agent.py"), scenario]
        script(program, f"{ASKED}exec {shlex.join(agent)}")
        words = ("-c", "2", *words) if "-r" in words or "-a" in words else ("-rc", "2", *words)
        return ["-BS", str(program), "--remote", "agent", "--progress", "json", *words, "--",
                f"far:{name}", str(self.destination)]  # fmt: skip

    def pull(
        self, scenario: str, *words: str, name: str = "tree", is_process: bool = False
    ) -> Ended:
        """In this process, so that a traceback is this test's own."""
        before = self.outside()
        argv = self.words(scenario, *words, name=name)
        code = copy.main(argv) if is_process else self.main(scenario, argv)
        ended = Ended(code, *self._capfd.readouterr())
        self.check(ended, before)
        return ended

    def main(
        self, scenario: str, argv: list[str], command: Callable[[list[str]], int] = copy.main
    ) -> int:
        """Run the command with this scenario at the end of each channel, in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(openers, "open_channel", lambda *_, **fields: HostileChannel(scenario))
            return command(argv)

    def check(self, ended: Ended, before: dict[bytes, Any]) -> None:
        assert self.outside() == before
        assert ended.code in (0, 1, 3, 4)
        assert "Traceback" not in ended.err
        assert ended.code in (0, 1) or "pscp: " in ended.err.splitlines()[-1 - hints(ended)]
        assert not any(c in ended.err + ended.out for c in "\x1b\x07\r\u202e\x9b")
        assert ended.code == 4 or not list(self.destination.rglob("*.pscp-part"))

    def outside(self) -> dict[bytes, Any]:
        """All but the destination, and what is the program's own."""
        own = (b"destination", b"state", b"tmp", b"ssh")
        found = tree_digest(self._home, modes=True)
        return {name: facts for name, facts in found.items() if name.split(b"/")[0] not in own}

    def there(self) -> set[str]:
        root = self.destination
        found = (path for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
        names = {str(path.relative_to(root)) for path in found}
        return {name for name in names if not name.endswith((".pscp-part", ".pscp-run"))}


@pytest.fixture
def victim(own_home: Path, capfd: pytest.CaptureFixture[str]) -> Victim:
    return Victim(own_home, capfd)


GOOD = {"tree/good", "tree/large good"}


@pytest.mark.parametrize("is_process", [False, True], ids=["thread", "process"])
def test_an_honest_one_is_copied(victim: Victim, is_process: bool) -> None:
    """Or nothing of what follows would mean anything."""
    assert victim.pull("Honest", is_process=is_process).code == 0
    assert victim.there() == GOOD
    assert (victim.destination / "tree" / "good").read_bytes() == EVIL
    assert (victim.destination / "tree" / "large good").stat().st_size == LARGE
    assert victim.pull("Honest", "--no-resume").code == 0


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("Names", 1), ("DeepHello", 4), ("Chunks:longer", 4), ("Frames:" + "00" * 28, 4)],
)  # fmt: skip
def test_of_each_kind_one_is_a_process(victim: Victim, scenario: str, code: int) -> None:
    ended = victim.pull(scenario, "-a", is_process=True)
    assert ended.code == code
    assert victim.there() <= GOOD


# --- names


def there_already(victim: Victim) -> None:
    """Then each name is looked for first, and files that are there are compared."""
    (victim.destination / "tree").mkdir()
    (victim.destination / "tree" / "good").write_bytes(EVIL)


@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
@pytest.mark.parametrize(("scenario", "words"), [("Names", "-r"), ("NamesOfLinks", "-a")])
def test_names_that_lead_elsewhere(victim: Victim, scenario: str, words: str, again: bool) -> None:
    if again:
        there_already(victim)
    ended = victim.pull(scenario, words)
    assert ended.code == 1
    assert victim.there() == GOOD
    errors = {failure["error"] for failure in ended.end["failures"]}
    assert "UnsafeName" in errors and errors <= {"UnsafeName", "SystemFailure", "FileError"}


@pytest.mark.parametrize(("listing", "code"), [("names", 1), ("bomb", 4), ("noise", 4)])
def test_listings_of_a_folder_that_is_there(victim: Victim, listing: str, code: int) -> None:
    (victim.destination / "tree").mkdir()
    ended = victim.pull(f"Listings:{listing}", "-a")
    assert ended.code == code
    assert victim.there() == ({"tree/good"} if listing == "names" else set())
    if listing == "names":
        assert {failure["error"] for failure in ended.end["failures"]} == {"UnsafeName"}


@pytest.mark.parametrize("scenario", ["ThroughALink", "LateLink"])
def test_links_of_its_own_making_are_not_followed(victim: Victim, scenario: str) -> None:
    ended = victim.pull(scenario, "-a")
    assert ended.code == 1
    assert victim.there() >= GOOD


@pytest.mark.parametrize("words", ["-r", "-a"])
@pytest.mark.parametrize("scenario", ["ThroughTheUsersLink", "HardLinks"])
def test_links_that_the_user_has_there_are_not_followed(
    victim: Victim, scenario: str, words: str
) -> None:
    (victim.destination / "tree").mkdir()
    (victim.destination / "tree" / "users").symlink_to(victim.beside)
    ended = victim.pull(scenario, words)
    assert ended.code == 1
    assert victim.there() >= {*GOOD, "tree/users"}
    assert (victim.destination / "tree" / "users").is_symlink()
    assert (victim.beside / "secret").stat().st_nlink == 1


def test_links_that_were_not_asked_for(victim: Victim) -> None:
    assert victim.pull("UnaskedLinks", "-r").code == 1
    assert victim.there() == GOOD


def test_a_folder_where_a_file_was_asked_for(victim: Victim) -> None:
    """`pscp far:tree .` without -r: a folder of that name that is here is not written into."""
    (victim.destination / "tree").mkdir()
    scenario = "AFolderForAFile"
    words = [w for w in victim.words(scenario) if w not in ("-rc", "2")]
    before = victim.outside()
    assert victim.main(scenario, words) == 1
    assert victim.outside() == before and victim.there() == set()


@pytest.mark.parametrize("name", [".", "", "~", "tree/."])
@pytest.mark.parametrize("is_folder", [None, True, False])
def test_b6_no_name_is_for_the_far_end_to_choose(
    victim: Victim, is_folder: bool | None, name: str
) -> None:
    """Without -r only a file of one name can come, and a folder's contents have none."""
    top = json.dumps([["x", "/there", is_folder]])
    scenario = "Unasked" if is_folder is None else f"Tops:{top}"
    words = [w for w in victim.words(scenario, name=name) if w not in ("-rc", "2")]
    before = victim.outside()
    assert victim.main(scenario, words) in (1, 4)
    assert victim.outside() == before and victim.there() == set()


@pytest.mark.parametrize("words", ["-r", "-a"])
def test_b6_what_is_excluded_does_not_come(victim: Victim, words: str) -> None:
    ended = victim.pull("Excluded", words, "--exclude", ".ssh", "--exclude", "*.o")
    assert ended.code == 1
    assert victim.there() == GOOD
    assert not (victim.destination / "tree" / ".ssh").exists()
    assert {failure["error"] for failure in ended.end["failures"]} == {"UnsafeName"}


@pytest.mark.parametrize("words", ["-r", "-rp"])
def test_modes(victim: Victim, words: str) -> None:
    (victim.destination / "tree" / "old").mkdir(parents=True, mode=0o700)
    (victim.destination / "tree" / "before").write_text("before")
    (victim.destination / "tree" / "before").chmod(0o600)
    assert victim.pull("Modes", words.replace("p", ""), *(["-p"] if "p" in words else [])).code == 0
    modes = {
        name: stat.S_IMODE((victim.destination / "tree" / name).stat().st_mode)
        for name in ("small", "large", "before", "sub", "old")
    }
    if "p" in words:
        assert modes["small"] == 0o6777
        return
    assert not any(mode & 0o7000 for mode in modes.values())
    assert not any(mode & 0o022 for mode in modes.values())  # the umask
    assert (modes["before"], modes["old"]) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("name", "tops"),
    [("tree", ["other"]), ("tree", [".."]), ("tree", ["tree", "tree"]), ("tree", ["\ud800"]),
     ("*", [".bashrc"]), ("*", ["a/b"]), ("*", ["tree", ".."]), (".", [""]), (".", ["tree"]),
     ("~", ["."]), ("~", [5])],
    ids=ascii,
)  # fmt: skip
def test_other_sources_than_were_asked_for(victim: Victim, name: str, tops: list[Any]) -> None:
    told = json.dumps([[top, "/there", False] for top in tops])
    assert victim.pull(f"Tops:{told}", name=name).code in (1, 4)
    assert victim.there() <= ({"tree"} if name == "tree" else set())


def test_another_name_where_the_user_wants_it(victim: Victim) -> None:
    assert victim.pull('Tops:[["other", "/there", false]]', "-T").code == 0
    assert victim.there() == {"other"}


def test_very_many_sources(victim: Victim) -> None:
    assert victim.pull("ManyTops", name="*").code == 0


# --- what it says


@pytest.mark.parametrize(
    "entry",
    [
        ["file", 0, "tree/e", -1, 0, 0, 0, {}], None, ["error", 0, "tree/e", 0, 0, 0, 0, {}],
        ["error", 0, "tree/e", 0, 0, 0, 0, {"kind": []}], ["link", 0, "tree/e", 0, 0, 0, 0, {}],
        ["link", 0, "tree/e", 0, 0, 0, 0, {"to": 5}],
        ["link", 0, "tree/e", 0, 0, 0, 0, {"to": "a\0b"}],
    ],
    ids=lambda entry: json.dumps(entry)[:60],
)  # fmt: skip
def test_entries_of_another_shape(victim: Victim, entry: Any) -> None:
    assert victim.pull("Entries:" + json.dumps(entry), "-a").code == 4
    assert "tree/e" not in victim.there()


@pytest.mark.parametrize(
    "entry",
    [
        ["file", 0, "tree/e", (1 << 63) - 1, 0, 0, 0, {}],
        ["file", 0, "tree/e", (1 << 63) - 1, 0, 0, 0, {"sparse": 1}],
        ["file", 0, "tree/e", 1 << 61, 0, 0, 0, {"sparse": 1}],
        ["file", 7, "tree/e", 5, 0, 0, 0, {}], ["file", 1 << 65, "tree/e", 5, 0, 0, 0, {}],
        ["link", 0, "tree/e", 0, 0, 0, 0, {"to": "x" * 5000}],
    ],
    ids=lambda entry: json.dumps(entry)[:60],
)  # fmt: skip
def test_entries_that_cannot_be(victim: Victim, entry: Any) -> None:
    """One file's failure: the others are copied. No file system here takes such sizes."""
    now, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, most))
    try:
        assert victim.pull("Entries:" + json.dumps(entry), "-a").code == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (now, most))
    assert victim.there() == GOOD


SHAPES: list[Any] = [
    None, 5, "x", [], {}, [[]], [[[]]], [None], [None, None], [5, True], [["x"], True], [[5], True],
    [[{}], True], [[], False, 5], {"0": 1}, [[[1, 2]], False], [[["x", "y"]], True], [1e999, True],
    [[[1e999, 1]], True], [[[0, -1]], True], [[[0, 1 << 70]], True], [[], {}],
]  # fmt: skip


@pytest.mark.parametrize("question", ["expand", "walk", "extents"])
def test_answers_of_another_shape(victim: Victim, question: str) -> None:
    """Those of other questions are in ../core/test_coordinator.py and test_lane.py."""
    for shape, failed in [(each, False) for each in SHAPES] + [(None, True), ({}, True)]:
        told = json.dumps([question, shape, failed])
        ended = victim.pull(f"Answers:{told}", "--no-resume")
        assert ended.code in (0, 1, 4), (shape, failed, ended)
        sparse = victim.destination / "tree" / "sparse"
        assert not sparse.exists() or question == "extents"


def hello(hashes: Any) -> str:
    return "Answers:" + json.dumps(["hello", {"hashes": hashes}, False])


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        (hello({}), 4), (hello({"sha256": 1 << 2000}), 4), (hello([["sha256", 5]]), 4),
        ("RoundTrip:nan", 0), ("RoundTrip:-inf", 0), ("DeepHello", 4), ("DeepAnswer:walk", 4),
        ("OneByOne", 0), ("Counted:[1e999, 5]", 4), ("Counted:{}", 4), ("Counted:[5, -7]", 0),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_answers_that_are_strange_deep_or_very_small(
    victim: Victim, scenario: str, code: int
) -> None:
    """D3: a round trip is measured here, so what an agent says of it means nothing."""
    ended = victim.pull(scenario)
    assert ended.code == code, ended.err
    assert code or victim.there() == GOOD


@pytest.mark.parametrize("scenario", ["SamePathTwice", "AFileAndAFolder"])
def test_one_path_for_several_things(victim: Victim, scenario: str) -> None:
    """Some of them may fail; what is there is one of those that were sent."""
    victim.pull(scenario)
    assert victim.there() >= GOOD
    for path in victim.destination.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert data == (EVIL * (len(data) // len(EVIL) + 1))[: len(data)]
            assert len(data) in (len(EVIL), LARGE)


@pytest.mark.parametrize("words", ["-a", "-r"])
def test_attributes_owners_and_times(victim: Victim, words: str) -> None:
    assert victim.pull("Attributes", words).code == 1
    assert victim.there() >= GOOD
    for path in victim.destination.rglob("*"):
        assert path.lstat().st_uid == os.getuid() or words == "-a"


@pytest.mark.parametrize(
    ("scenario", "style"),
    [("Failures", "none"), ("Failures", "json"), ("EscapesInNames", "plain"), ("Banner", "plain")],
)
def test_escapes_are_spelled_out(victim: Victim, scenario: str, style: str) -> None:
    """That none is in what was said is checked for every scenario."""
    ended = victim.pull(scenario, "--progress", style)
    assert ended.code == (0 if scenario == "Banner" else 1)
    assert "\\x1b" in ended.err or "\\u001b" in ended.out


@pytest.mark.parametrize("status", ["\1", "\x61", "\x7f"], ids=ascii)
def test_what_it_says_at_its_end(victim: Victim, status: str) -> None:
    ended = victim.pull(f"SaysAndEnds:{status}", "--progress", "none", is_process=True)
    assert ended.code in (3, 4)


# --- chunks and packs


@pytest.mark.parametrize(
    "scenario",
    ["UnaskedData", "UnaskedAck", "Packs:fewer_rows", "Packs:more_rows", "Packs:no_rows",
     "Packs:more_bytes", "Chunks:before", "Chunks:longer", "Chunks:of_another", "Chunks:empty",
     "Chunks:too_little", "Chunks:failure_of_another_shape"],
)  # fmt: skip
def test_what_was_not_asked_for(victim: Victim, scenario: str) -> None:
    assert victim.pull(scenario).code == 4
    bad = "tree/large good" if "Chunks" in scenario else "tree/good"
    assert victim.there() <= (GOOD if "Unasked" in scenario else GOOD - {bad})


@pytest.mark.parametrize(
    "scenario",
    ["Chunks:wrong_digest", "Chunks:short_digest_frame", "Packs:digests_of_another_shape"],
)
def test_digests_that_are_wrong(victim: Victim, scenario: str) -> None:
    ended = victim.pull(scenario)
    bad, good = ("large good", "good") if "Chunks" in scenario else ("good", "large good")
    assert ended.code == 1
    [failure] = ended.end["failures"]
    assert (failure["path"], failure["error"]) == (f"tree/{bad}", "VerifyError")
    assert victim.there() == {f"tree/{good}"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("scenario", ["EndlessBanner", "EndlessTalk"])
def test_who_talks_without_end_is_not_listened_to(
    victim: Victim, scenario: str, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_ATTEMPTS_ALONE", 2)
    monkeypatch.setattr(openssh, "_END_S", 0.2)
    ended = victim.pull(scenario, "--progress", "none", is_process=True)
    assert ended.code in (1, 3, 4)
    assert len(ended.err) < 2000


# --- without an end


def peak_kib(victim: Victim, words: list[str]) -> tuple[int, int]:
    """Exit code and peak memory of a pull in a process of its own."""
    peak = victim.beside.parent / "tmp" / "peak"
    argv = [sys.executable, "-c", PROGRAM, *words]
    environment = {**os.environ, PEAK: str(peak)}
    done = subprocess.run(
        argv, env=environment, timeout=2 * PATIENCE_S, capture_output=True, check=False
    )
    try:
        return done.returncode, int(peak.read_text())
    finally:
        peak.unlink(missing_ok=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("scenario", "word", "name", "code"),
    [
        ("EndlessOwners", "-a", "tree/.", 0), ("EndlessFailures", "-q", "tree", 1),
        ("EndlessExtents", "-q", "tree", 1),
    ],
)  # fmt: skip
def test_d2_what_has_no_end_takes_no_memory(
    victim: Victim, scenario: str, word: str, name: str, code: int
) -> None:
    words = victim.words(scenario, word, "--progress", "none", name=name)
    found, kib = peak_kib(victim, words)
    assert found == code
    assert kib * 1024 < 120 * MIB
    assert len(victim.there()) == 3000 or scenario != "EndlessOwners"
