"""Manifests: what a copy lists, what pscp-verify finds out and repairs, months later.

Not here: damaged manifests (../unit/test_manifests.py), docs/manifests.md (test_docs.py).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from programs import script
from servers.private import ADDRESS

import pscp
from e2e.conftest import Kept
from e2e.kept_command import verifies_over, verify_over
from e2e.ways import VERIFY, Ran, Way, files_of, make, run
from pscp.endpoint.reading.paths import is_pscps_own
from pscp.ground.counters import LiveCounters
from pscp.ground.state import replacing
from pscp.ground.values import MIB
from pscp.manifests import signing

CHUNK_BYTES = 4 * MIB
AWKWARD = (
    "new\nline", "back\\slash", "-dash", "a b ", "\udcff\udcfe bytes", "100%", "cr\rname", "é",
)  # fmt: skip


@pytest.fixture(params=["push", "pull", "sftp"])
def side(request: pytest.FixtureRequest, push: Way, kept: Kept) -> Way:
    """Where the files land: at the far end, here, or at a far end without an agent."""
    remote = "sftp" if request.param == "sftp" else "agent"
    return dataclasses.replace(
        push,
        is_push=request.param != "pull",
        remote=remote,
        of_commands=kept("auto", remote, "auto"),
    )


def fill(way: Way) -> Path:
    """Some files, whose copy is data/ at the destination, and which are data/ at the source."""
    data = way.source / "data"
    (data / "sub" / "empty").mkdir(parents=True)
    (data / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 1))
    (data / "exact").write_bytes(os.urandom(CHUNK_BYTES))
    (data / "none").touch()
    for number in range(30):
        (data / "sub" / f"small {number}").write_bytes(os.urandom(number * 97 + 1))
    for name in AWKWARD:
        (data / name).write_bytes(os.fsencode(name) * 3)
    os.utime(data / "none", ns=(1, 1_000_000_000_123_456_789))
    return data


def made(way: Way, *words: str, name: str = "m.jsonl") -> Path:
    """Copies data/ with a manifest beside the folders; what it says goes to nobody."""
    manifest = way.source.parent / name
    ran = way.command("-r", "--manifest", str(manifest), *words, names=["data"])
    assert ran.code == 0, ran.err
    return manifest


def verified(way: Way, manifest: Path, *words: str, root: Path | None = None) -> Ran:
    fixed = ("-F", way.server.ssh_config, "-B", "-c", "1", "--remote", way.remote)
    where = f"{way.sent_to}{root or way.destination}"
    its = [*fixed, *words, "--", str(manifest), where]
    if way.of_commands and verifies_over(way.of_commands, its):
        return Ran(*verify_over(way.of_commands, its))
    return run([*way.prefix, *VERIFY, *its])


def records(manifest: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert lines[0]["format"] == "pscp-manifest" and "whole" in lines[-1]
    return {name_of(each): each for each in lines[1:-1]}


def name_of(record: dict[str, Any]) -> str:
    coded = record.get("path_base64")
    return record["path"] if coded is None else os.fsdecode(base64.b64decode(coded))


@pytest.fixture
def manifest(push: Way) -> Path:
    """Of a copy that was pushed."""
    fill(push)
    return made(push, "-p")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def flip(path: Path, offset: int) -> None:
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- what a copy lists


def test_a_manifest_lists_each_file_with_its_digests(side: Way) -> None:
    data = fill(side)
    found = records(manifest := made(side, "-p"))
    files = {f"data/{p.relative_to(data)}": p for p in data.rglob("*") if p.is_file()}
    assert found.keys() == files.keys()
    for name, path in files.items():
        body, landed = path.read_bytes(), side.destination / name
        assert (found[name]["size"], found[name]["sha256"]) == (len(body), sha(body)), name
        there_ns = landed.stat().st_mtime_ns
        assert found[name]["mtime_ns"] in (there_ns, there_ns // 10**9 * 10**9)
        cut = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
        assert found[name].get("chunks", []) == (list(map(sha, cut)) if len(cut) > 1 else [])
    ran = verified(side, manifest, "--strict", "--times")
    assert (ran.code, ran.out) == (0, ""), ran
    assert "41 files below" in ran.err and "as listed" in ran.err and "not signed" in ran.err
    assert verified(side, manifest, "-q") == Ran(0, "", "")
    for name, said in (("nowhere", "there is no such folder"), ("data/exact", "is a file, not a")):
        ran = verified(side, manifest, root=side.destination / name)
        assert ran.code == 1 and said in ran.err


def test_what_is_hashed_for_a_manifest_is_counted_and_told(side: Way) -> None:
    data = fill(side)
    size_bytes = sum((data / name).stat().st_size for name in files_of(data))
    words = ["-r", "--manifest", str(side.source.parent / "m"), "--progress", "json", "--verify"]
    ran = side.command(*words, "read-back" if side.remote == "sftp" else "auto", names=["data"])
    assert ran.code == 0, ran
    events = [json.loads(line) for line in ran.out.splitlines()]
    *_, last, end = events
    assert (last["bytes_hashed"], last["bytes_to_hash"]) == (size_bytes, size_bytes)
    assert (last["files_hashed"], last["files_to_hash"]) == (41, 41)
    assert end["manifest_seconds"] > 0
    notes = [each["text"] for each in events if each["event"] == "note"]
    told = [text for text in notes if "back over SFTP for the manifest" in text]
    assert bool(told) == (side.remote == "sftp"), notes
    assert all(text.startswith("reads 12.6 MB back over SFTP for the manifest") for text in told)


def test_what_is_read_back_goes_over_the_lanes_of_the_copy(push: Way) -> None:
    """Over SFTP the path is the limit; an agent's CPUs are, which hash there."""
    fill(push)
    sources, to = push.locations(["data"], "")
    ends: Any = {"config_file": push.server.ssh_config, "batch": True, "remote": "sftp"}
    seen: list[pscp.Counters] = []
    with pscp.Session(push.server.host, **ends, verify="read-back", connections=6) as session:
        session.copy(sources, to, recursive=True)
        manifest = push.source.parent / "m.jsonl"
        session.copy(
            sources, to, recursive=True, manifest=manifest, connections=None, progress=seen.append
        )  # fmt: skip
    assert seen[-1].files_hashed == seen[-1].files_to_hash == 41
    assert seen[-1].lanes_wanted == 6


def test_what_was_there_already_is_listed_too(push: Way, manifest: Path) -> None:
    first = records(manifest)
    assert records(made(push, "-p")) == first  # by size and time
    assert records(made(push)) == first  # by content
    (push.source / "data" / "exact").chmod(0o600)
    os.utime(push.source / "data" / "none", (1, 1))
    assert records(made(push, "-p")).keys() == first.keys()  # and given other metadata


def links(data: Path) -> dict[str, str]:
    """Links and a FIFO beside the files; where each link leads."""
    found = {
        "link": "none",
        "nowhere": "../../gone",
        "\udcff link": "\udcfe/x",
        "to a folder": "sub",
    }
    for name, target in found.items():
        (data / name).symlink_to(target)
    os.link(data / "none", data / "other name")
    return found


def test_what_was_just_copied_is_as_listed_links_and_all(side: Way) -> None:
    """D1: each link "is not in the manifest", on every tree that has one."""
    targets = links(data := fill(side))
    if side.remote == "agent":
        os.mkfifo(data / "fifo")
        if os.geteuid() == 0:
            os.mknod(data / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    found = records(manifest := made(side, "-a"))
    for name, target in targets.items():
        row = found[f"data/{name}"]
        coded = row.get("target_base64", "")
        assert row["kind"] == "link" and "sha256" not in row
        assert row.get("target", os.fsdecode(base64.b64decode(coded))) == target
    assert found.get("data/fifo", {"kind": "fifo"})["kind"] == "fifo"
    assert verified(side, manifest, "--strict", "--times", "-q") == Ran(0, "", "")
    assert records(made(side, "-a")).keys() == found.keys()  # unchanged
    if (null := side.destination / "data" / "null").exists():
        null.unlink()
        os.mknod(null, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        ran = verified(side, manifest, "-q")
        assert (ran.code, ran.out) == (1, "data/null: is c 1:5, not c 1:3\n")


def test_the_last_event_says_whether_all_is_as_listed(side: Way) -> None:
    """It said of every verification that it was not."""
    fill(side)
    manifest = made(side, "-r")
    for is_so in (True, False):
        ran = verified(side, manifest, "--progress", "json")
        end = json.loads(ran.out.splitlines()[-1])
        assert (end["event"], end["ok"], ran.code) == ("end", is_so, 0 if is_so else 1)
        next(path for path in side.destination.rglob("*") if path.is_file()).unlink()


def test_a_link_that_leads_elsewhere_is_told_and_repaired(side: Way) -> None:
    targets = links(data := fill(side))
    manifest = made(side, "-a")
    there = side.destination / "data"
    for name, target in {"link": "exact", "to a folder": "/"}.items():
        (there / name).unlink()
        (there / name).symlink_to(target)
    (there / "nowhere").unlink()
    (there / "\udcff link").unlink()
    (there / "\udcff link").write_text("a file")
    (there / "none").unlink()
    (there / "none").symlink_to("link")
    (there / "stranger").symlink_to("link")
    ran = verified(side, manifest, "--json", "--strict")
    found = {each["path"]: each for each in json.loads(ran.out)["differences"]}
    assert {path: each["what"] for path, each in found.items()} == {
        "data/link": "target", "data/to a folder": "target", "data/nowhere": "missing",
        "data/\udcff link": "missing", "data/none": "missing", "data/stranger": "not listed",
    }  # fmt: skip
    assert found["data/link"]["message"] == "leads to exact, not to none"
    assert found["data/\udcff link"]["message"] == "is a file there, not a link"
    (data / "link").unlink()
    (data / "link").symlink_to("large")  # SOURCE has another one as well
    source = str(data.parent)
    repair = ("--repair", source if side.is_push else f"{side.server.host}:{source}")
    ran = verified(side, manifest, *repair)
    assert ran.code == 1 and "data/link: leads to exact, not to none" in ran.out
    assert "data/link: is a link to large at the source, not as it is listed" in ran.err
    assert "data/link: repaired" not in ran.out and "data/none: repaired" in ran.out
    del targets["link"]
    assert {name: os.readlink(there / name) for name in targets} == targets
    assert (there / "none").is_file() and os.readlink(there / "link") == "exact"


@pytest.mark.parametrize("name", ["SHA256SUMS", "old.jsonl"])
def test_what_lists_files_alone_says_so_of_links(push: Way, name: str) -> None:
    links(fill(push))
    manifest = made(push, "-a", name=name)
    if name == "old.jsonl":  # as an earlier version wrote it
        first, *rows, last = manifest.read_text().splitlines()
        kept = [row for row in rows if '"kind"' not in row]
        last = last.replace(f'"files":{len(rows)}', f'"files":{len(kept)}')
        first = first.replace('"version":2', '"version":1')
        manifest.write_text("\n".join([first, *kept, last, ""]))
    ran = verified(push, manifest, "--strict")
    assert (ran.code, ran.out) == (0, "")
    assert "lists files alone: 4 links and special files below" in ran.err
    (push.destination / "stranger").touch()
    ran = verified(push, manifest, "--strict")
    assert (ran.code, ran.out) == (1, "stranger: is not in the manifest\n")
    assert ran.err.splitlines()[-1].startswith("0 of ") and "not as listed, 1 beside" in ran.err


def test_a_folder_that_may_not_be_read_is_no_stranger(powerless: Way) -> None:
    make(powerless.source, "data/sub/file", "data/other")
    manifest = made(powerless)
    for folder in ("data/sub", "data/strange"):
        (powerless.destination / folder).mkdir(exist_ok=True)
        (powerless.destination / folder).chmod(0)
    ran = verified(powerless, manifest, "--strict")
    for folder in ("data/sub", "data/strange"):
        (powerless.destination / folder).chmod(0o755)
    assert ran.code == 1 and sorted(ran.out.splitlines()) == [
        "data/strange/: could not be read: Permission denied",
        "data/sub/: could not be read: Permission denied",
        "data/sub/file: could not be looked at: Permission denied",
    ]
    last = ran.err.splitlines()[-1]
    assert last.startswith("1 of 2 files below ") and "2 folders that could not be read" in last


def test_where_every_file_is_missing_the_root_may_be_wrong(push: Way) -> None:
    fill(push)
    manifest = made(push)
    ran = verified(push, manifest, root=push.destination / "data")
    assert ran.code == 1 and "ROOT is what DEST was, or the folder above it if" in ran.err
    (push.destination / "data" / "none").unlink()
    ran = verified(push, manifest)
    assert ran.code == 1 and "ROOT is what DEST was" not in ran.err


def test_a_tree_of_a_whole_path_needs_no_current_folder(
    push: Way, manifest: Path, tmp_path: Path
) -> None:
    (gone := tmp_path / "gone").mkdir()
    removed = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone)]
    python, *argv = VERIFY
    ran = run([*removed, python, "-P", *argv, str(manifest), str(push.destination)])
    assert ran.code == 0, ran


def test_the_manifest_itself_may_lie_below_the_root(push: Way, key: Path) -> None:
    make(push.source, "data/small")
    way = dataclasses.replace(push, is_push=False)
    manifest = push.destination / "SHA256SUMS"
    words = ("-r", "--manifest", str(manifest), "--sign", str(key))
    assert way.command(*words, names=["data"]).code == 0
    assert verified(way, manifest, "--strict", "-q") == Ran(0, "", "")


def test_what_is_another_thing_by_now_is_told(push: Way) -> None:
    data = fill(push)
    (data / "link").symlink_to("none")

    def replace(event: pscp.FileEvent) -> None:
        landed = push.destination / event.path
        if landed.name in ("exact", "none"):
            landed.unlink()
            landed.mkdir() if landed.name == "exact" else landed.symlink_to("large")

    manifest = push.source.parent / "m.jsonl"
    ends, config = push.locations(["data"], ""), push.server.ssh_config
    result = pscp.copy(
        *ends, archive=True, strong=True, manifest=manifest, on_file=replace,
        config_file=config, batch=True, connections=1, raises=False,
    )  # fmt: skip
    assert {each.path for each in result.failures} == {"data/exact", "data/none"}
    assert json.loads(manifest.read_text().splitlines()[-1])["whole"] is False


def test_a_copy_with_failures_lists_what_is_good(push: Way) -> None:
    fill(push)
    (push.destination / "data" / "exact").mkdir(parents=True)  # in the way
    manifest = push.source.parent / "m.jsonl"
    assert push.command("-r", "--manifest", str(manifest), names=["data"]).code == 1
    last = json.loads(manifest.read_text().splitlines()[-1])
    assert (last["whole"], last["failed"]) == (False, 1)
    assert "data/exact" not in records(manifest) and "data/large" in records(manifest)
    ran = verified(push, manifest)
    assert ran.code == 0 and "not whole" in ran.err


def test_a_copy_that_cannot_go_on_leaves_the_earlier_manifest(push: Way, manifest: Path) -> None:
    before = manifest.read_bytes()
    ran = push.command("--manifest", str(manifest), names=["data/none"], to="no/such/folder/x")
    assert ran.code == 1 and manifest.read_bytes() == before
    assert not list(manifest.parent.glob(".*.pscp-part"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--manifest", "/no/such/folder/m"), "is no folder that can be written"),
        (("--manifest", "/tmp"), "is no file that can be replaced"),
        (("--manifest", "/dev/null"), "is no file that can be replaced"),
        (("--manifest", "m" * 256), "File name too long"),
        (("--manifest", "/tmp/m", "--verify", "none"), "--manifest does not go with --verify none"),
        (("--sign", "/x"), "--sign says nothing without --manifest"),
        (("--manifest", "/tmp/m", "--sign", "/no/such/key"), "--sign /no/such/key: No such file"),
        (("--manifest", "/tmp/m", "-n"), "-n does not go with --manifest"),
        (("--manifest", "/tmp/m", "--manifest-format", "md5"), "jsonl, sha256sum, bagit"),
    ],
)
def test_what_cannot_be_is_refused_before_anything(
    push: Way, words: tuple[str, ...], message: str
) -> None:
    make(push.source, "data/small")
    ran = push.command("-r", *words, names=["data"])
    assert ran.code == 2 and message in ran.err
    assert not list(push.destination.iterdir())


def test_a_link_is_never_replaced(push: Way) -> None:
    """/dev/stdout is one, to a file where the output goes to a file."""
    make(push.source, "data/small")
    link = push.source.parent / "link"
    link.with_name("target").write_text("as it was")
    link.symlink_to("target")
    ran = push.command("-r", "--manifest", str(link), names=["data"])
    assert ran.code == 2 and "is no file that can be replaced" in ran.err
    assert link.is_symlink() and link.read_text() == "as it was"


def test_sha256sum_reads_its_own_form(push: Way) -> None:
    fill(push)
    manifest = made(push, name="SHA256SUMS")
    check = subprocess.run(
        ["sha256sum", "--strict", "--quiet", "-c", manifest], cwd=push.destination, check=False
    )
    assert check.returncode == 0
    assert verified(push, manifest).code == 0
    flip(push.destination / "data" / "large", 5)
    ran = verified(push, manifest)
    assert (ran.code, ran.out) == (1, "data/large: has another content\n")


def test_a_bag(push: Way) -> None:
    data = fill(push)
    for path in data.iterdir():  # names in a bag are UTF-8
        if "\udcff" in path.name:
            path.unlink()
    bag = push.destination / "bag"
    (bag / "data").mkdir(parents=True)
    manifest = bag / "manifest-sha256.txt"
    sources, to = push.locations([f"data/{p.name}" for p in data.iterdir()], "bag/data/")
    ran = push.typed("-r", "--manifest", str(manifest), "--", *sources, to)
    assert ran.code == 0, ran.err
    (bag / "bagit.txt").write_text("BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n")
    listed = {line.split("  ", 1)[1] for line in manifest.read_text().splitlines()}
    assert {"data/new%0Aline", "data/100%25", "data/cr%0Dname", "data/back\\slash"} <= listed
    assert verified(push, manifest, root=bag).code == 0
    (bag / "data" / "new\nline").write_text("other")
    ran = verified(push, manifest, root=bag)
    assert ran.code == 1 and ran.out.startswith("data/new\\x0aline: ")


def test_a_name_that_a_bag_cannot_hold_fails_that_file(push: Way) -> None:
    fill(push)
    manifest = push.source.parent / "manifest-sha256.txt"
    ran = push.command("-r", "--manifest", str(manifest), names=["data"])
    assert ran.code == 1 and "is not UTF-8, as names in a bag have to be" in ran.err
    assert (push.destination / "data" / AWKWARD[4]).exists()


@pytest.mark.parametrize("how", ["check", "strong", "manifest"])
def test_a_large_file_is_known_while_it_is_hashed(
    push: Way, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("large", 9_000_000), ("less", 300_000)):
        (push.source / name).write_bytes(b"x" * size)
    assert push.copy("large", "less", preserve=True).ok
    seen = list[tuple[str, str]]()

    def begin(self: LiveCounters, number: int, path: str, size_bytes: int, **how: bool) -> None:
        seen.append((path, "hashed" if how.get("is_hashed") else "sent"))
        begun(self, number, path, size_bytes, **how)

    def end(self: LiveCounters, number: int) -> None:
        if number in self.large:
            seen.append((self.large[number].path, "over"))
        ended(self, number)

    begun, ended = LiveCounters.begin_file, LiveCounters.end_file
    monkeypatch.setattr(LiveCounters, "begin_file", begin)
    monkeypatch.setattr(LiveCounters, "end_file", end)
    given: dict[str, dict[str, Any]] = {
        "check": {"check": True, "checksum": True},
        "strong": {"strong": True, "checksum": True},
        "manifest": {"manifest": str(tmp_path / "m")},
    }
    assert push.copy("large", "less", preserve=True, **given[how]).ok
    for name in ("large", "less"):
        is_named = name == "large" or how != "manifest"
        its = [what for path, what in seen if path == name]
        assert its == ["hashed", "over"] * is_named


# --- what pscp-verify finds


def test_each_way_of_being_different(side: Way) -> None:
    fill(side)
    manifest = made(side, "-p")
    there = side.destination / "data"
    flip(there / "large", CHUNK_BYTES + 7)
    flip(there / "sub" / "small 3", 0)
    (there / "none").write_text("x")
    (there / "exact").unlink()
    (there / "-dash").unlink()
    (there / "-dash").symlink_to("none")
    os.utime(there / "é", ns=(1, 10**18))
    (there / "stranger").touch()
    ran = verified(side, manifest, "--json", "--strict", "--times")
    found = {each["path"]: each for each in json.loads(ran.out)["differences"]}
    assert ran.code == 1
    assert {path: each["what"] for path, each in found.items()} == {
        "data/large": "content", "data/sub/small 3": "content", "data/none": "size",
        "data/exact": "missing", "data/-dash": "missing", "data/é": "time",
        "data/stranger": "not listed",
    }  # fmt: skip
    assert found["data/large"]["chunks"] == [1]
    ran = verified(side, manifest)
    assert ran.code == 1 and "data/é" not in ran.out and "stranger" not in ran.out
    assert "data/large: has another content in chunk 1 of 3" in ran.out
    assert "5 of 41 files" in ran.err


def test_a_special_file_is_not_opened(push: Way, manifest: Path) -> None:
    there = push.destination / "data" / "exact"
    there.unlink()
    os.mkfifo(there)
    ran = verified(push, manifest)
    assert (ran.code, ran.out) == (1, "data/exact: is a FIFO there, not a file\n")


def test_what_cannot_be_read_is_told(powerless: Way) -> None:
    way = powerless
    fill(way)
    manifest = made(way)
    (way.destination / "data" / "large").chmod(0)
    (way.destination / "data" / "sub").chmod(0)
    try:
        ran = verified(way, manifest, "--json")
    finally:
        (way.destination / "data" / "sub").chmod(0o700)
    found = json.loads(ran.out)["differences"]
    assert ran.code == 1 and len(found) == 31
    assert {each["what"] for each in found} == {"unreadable"}
    assert all("ermission denied" in each["message"] for each in found)


def test_nothing_outside_of_the_root_is_read(side: Way) -> None:
    """A folder on the way that is a link now leads nowhere, whatever it leads to."""
    fill(side)
    manifest = made(side)
    sub = side.destination / "data" / "sub"
    sub.rename(side.destination.parent / "elsewhere")
    sub.symlink_to(side.destination.parent / "elsewhere")
    ran = verified(side, manifest, "--json")
    found = json.loads(ran.out)["differences"]
    assert ran.code == 1 and len(found) == 30
    assert {each["path"].rpartition("/")[0] for each in found} == {"data/sub"}


def test_the_python_api(push: Way) -> None:
    fill(push)
    manifest = push.source.parent / "m.jsonl"
    sources, to = push.locations(["data"], "")
    ends: Any = {"config_file": push.server.ssh_config, "batch": True, "connections": 1}
    result = pscp.copy(sources, to, recursive=True, manifest=manifest, **ends)
    assert result.ok and result.root == os.path.realpath(push.destination)
    found = pscp.verify(manifest, to, **ends)
    assert found.ok and (found.files, found.signer) == (41, "")
    flip(push.destination / "data" / "exact", 0)
    found = pscp.verify(manifest, to, **ends)
    assert [(each.path, each.what) for each in found.differences] == [("data/exact", "content")]
    with pytest.raises(pscp.BadManifest):
        pscp.verify(push.source / "data" / "exact", to, **ends)


# --- a bit, and bytes


def test_a_far_end_sends_only_its_answers(push: Way, tmp_path: Path) -> None:
    data = push.source / "data"
    data.mkdir()
    (data / "large").write_bytes(bytes(1024) * 64 * 1024)
    manifest = made(push)
    counted = tmp_path / "counted"
    counted.mkdir()
    counts = f'tee {counted}/to-$$ | ssh "$@" | tee {counted}/from-$$'
    program = script(tmp_path / "ssh-that-counts", counts)
    ran = verified(push, manifest, "-S", str(program))
    assert ran.code == 0, ran.err
    sent = {path.name.split("-")[0]: 0 for path in counted.iterdir()}
    for path in counted.iterdir():
        sent[path.name.split("-")[0]] += path.stat().st_size
    # 64 MiB have 16 chunks; an agent is 32 KiB a lane, and says what it is in one.
    assert sent["from"] < 16 * 1024 and sent["to"] < 128 * 1024


# --- repairs


def test_a_repair_sends_what_differs(push: Way, manifest: Path) -> None:
    data, there = push.source / "data", push.destination / "data"
    flip(there / "large", 3)
    flip(there / "sub" / "small 3", 0)
    (there / "exact").unlink()
    (there / AWKWARD[0]).unlink()
    ran = verified(push, manifest, "--repair", str(push.source), "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["ok"], found["differences"]) == (0, True, []), ran
    assert sorted(found["repaired"]) == [
        "data/exact", "data/large", f"data/{AWKWARD[0]}", "data/sub/small 3",
    ]  # fmt: skip
    assert (there / "large").read_bytes() == (data / "large").read_bytes()
    assert verified(push, manifest, "--times", "--strict").code == 0


def test_a_repair_from_a_far_end(push: Way) -> None:
    pull = dataclasses.replace(push, is_push=False)
    fill(pull)
    manifest = made(pull, "-p")
    flip(pull.destination / "data" / "large", 9 * 1024)
    ran = verified(pull, manifest, "--repair", f"{pull.server.host}:{pull.source}")
    assert ran.code == 0, ran
    assert "data/large: repaired" in ran.out


def test_a_repair_that_cannot_be_leaves_the_answer(push: Way, manifest: Path) -> None:
    """It took hours to find out what differs; a source that is away does not hide it."""
    (push.destination / "data" / "exact").unlink()
    ran = verified(push, manifest, "--repair", str(push.source / "nowhere"))
    assert (ran.code, ran.out) == (1, "data/exact: missing\n"), ran
    here = dataclasses.replace(push, is_push=False)
    ran = verified(here, manifest, "--repair", f"ssh://{ADDRESS}:1/x")
    assert (ran.code, ran.out) == (1, "data/exact: missing\n"), ran
    assert f"pscp-verify: the repair has failed: ssh: connect to host {ADDRESS}" in ran.err


def test_a_source_with_other_bytes_is_refused(side: Way) -> None:
    data = fill(side)
    (data / "new" / "deep").mkdir(parents=True)
    (data / "new" / "deep" / "small").write_text("right")
    (data / "new" / "large").write_bytes(os.urandom(CHUNK_BYTES))
    manifest = made(side, "-p")
    there = side.destination / "data"
    shutil.rmtree(there / "new")
    flip(data / "new" / "deep" / "small", 0)
    flip(data / "new" / "large", 0)
    names = ("large", "sub/small 3", "exact")
    for name in names:
        flip(there / name, 0)
        flip(data / name, 1)
    (there / "none").write_text("x")
    before = {name: (there / name).read_bytes() for name in names}
    ran = verified(side, manifest, "--repair", f"{side.sent_from}{side.source}")
    assert ran.code == 1
    for name in names:
        assert (there / name).read_bytes() == before[name]
        assert f"data/{name}: {side.sent_from}{side.source} has other bytes" in ran.err
    assert "data/none: repaired" in ran.out and (there / "none").read_bytes() == b""
    assert not [path for path in there.rglob(".*")]
    assert not (there / "new").exists()  # no folder is left for what was refused


def test_a_folder_of_the_source_repairs_no_file(push: Way, manifest: Path) -> None:
    """Nor does it come in its place, where it would stand in the way of a good repair."""
    data, there = push.source / "data", push.destination / "data" / "exact"
    there.unlink()
    (data / "exact").rename(data / "good")
    (data / "exact").mkdir()
    words = ("--repair", f"{push.sent_from}{push.source}")
    ran = verified(push, manifest, *words)
    assert ran.code == 1 and "data/exact: is a folder at the source, not as" in ran.err, ran
    assert "data/exact: missing" in ran.out and not os.path.lexists(there)
    (data / "exact").rmdir()
    (data / "good").rename(data / "exact")
    assert verified(push, manifest, *words).code == 0


# --- signatures


def test_a_signature_is_verified_and_told(push: Way, key: Path) -> None:
    make(push.source, "data/small")
    manifest = made(push, "--sign", str(key))
    ran = verified(push, manifest)
    assert ran.code == 0 and "signed by key ED25519 SHA256:" in ran.err
    allowed = ("--allowed-signers", str(key.parent / "allowed"))
    for words in (allowed, (*allowed, "--signer", "ada@example.org")):
        ran = verified(push, manifest, *words)
        assert ran.code == 0 and "signed by ada@example.org, key ED25519 SHA256:" in ran.err


def test_what_is_not_signed_rightly_is_refused_before_anything_is_read(
    push: Way, key: Path
) -> None:
    fill(push)
    manifest = made(push, "--sign", str(key))
    here = key.parent
    nowhere = push.destination / "nowhere"  # reading it would fail with 1

    def refused(*words: str) -> str:
        ran = verified(push, manifest, *words, root=nowhere)
        assert ran.code == 2, ran
        return ran.err

    assert "does not list the key" in refused("--allowed-signers", str(here / "others"))
    allowed = ("--allowed-signers", str(here / "allowed"))
    assert "its signature is not right" in refused(*allowed, "--signer", "bob@example.org")
    assert "nothing: No such file" in refused("--allowed-signers", str(here / "nothing"))
    manifest.write_bytes(manifest.read_bytes().replace(b'"size":1,', b'"size":2,', 1))
    last = manifest.read_text().splitlines()[-1]
    total = json.loads(last)["bytes"]
    manifest.write_text(manifest.read_text().replace(f'"bytes":{total}', f'"bytes":{total + 1}'))
    assert "its signature is not right" in refused()
    assert "its signature is not right" in refused(*allowed)
    Path(f"{manifest}.sig").write_text("nonsense")
    assert "its signature is not right" in refused()
    Path(f"{manifest}.sig").unlink()
    assert "is not signed" in refused(*allowed)


def test_a_program_that_does_not_end_is_ended(
    push: Way, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(push.source, "data/small")
    manifest = made(push, "--sign", str(key))
    script(key.parent / "ssh-keygen", "exec sleep 100")
    monkeypatch.setenv("PATH", f"{key.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(signing, "_PATIENCE_S", 0.1)
    with pytest.raises(pscp.errors.BadManifest, match="ssh-keygen did not end"):
        pscp.verify(manifest, push.destination)


def test_a_manifest_never_stands_beside_an_earlier_ones_signature(push: Way, key: Path) -> None:
    make(push.source, "data/small")
    manifest = made(push, "--sign", str(key))
    made(push)
    assert not Path(f"{manifest}.sig").exists()
    assert verified(push, manifest).code == 0


def test_a_key_that_cannot_be_used_leaves_the_manifest(push: Way, tmp_path: Path) -> None:
    make(push.source, "data/small")
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    manifest = push.source.parent / "m.jsonl"
    ran = push.command("-r", "--manifest", str(manifest), "--sign", str(key), names=["data"])
    assert ran.code == 1 and f"{manifest} was written, but not signed: " in ran.err
    assert "ssh-keygen -Y sign -n pscp-manifest" in ran.err
    assert verified(push, manifest).code == 0


def test_no_room_for_a_signature(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(signing, "replacing", full)
    with pytest.raises(pscp.CopyError, match="was written, but not signed: No space"):
        signing.sign(str(key), str(key.parent / "allowed"), batch=True)


def test_no_room_for_a_manifest(push: Way, manifest: Path) -> None:
    before = manifest.read_bytes()
    small = dataclasses.replace(push, prefix=("prlimit", "--fsize=3000"))
    ran = small.command("-r", "--manifest", str(manifest), names=["data"])
    assert ran.code == 1 and f"{manifest}: the manifest cannot be written: " in ran.err
    assert manifest.read_bytes() == before
    assert not list(manifest.parent.glob(".*.pscp-part"))


def test_between_two_hosts(push: Way) -> None:
    make(push.source, "data/small")
    manifest, host = push.source.parent / "m.jsonl", push.server.host
    ends = f"{host}:{push.source}/data", f"{host}:{push.destination}"
    ran = push.typed("-r", "--manifest", str(manifest), "--", *ends)
    assert ran.code == 0, ran.err
    assert verified(push, manifest, "--strict").code == 0


def test_no_file_is_copied_to_where_the_manifest_will_be(push: Way) -> None:
    """T2: the manifest took its place, and with --remove-source-files nobody had it any more."""
    (push.source / "SUMS").write_text("the only ones")
    (push.source / "data").write_text("data")
    way = dataclasses.replace(push, is_push=False)
    words = ("-a", "--remove-source-files", "--manifest", str(push.destination / "SUMS"))
    ran = way.command(*words, names=["."])
    assert ran.code == 1 and "SUMS: is where the manifest will be" in ran.err
    assert os.listdir(push.source) == ["SUMS"]
    assert (push.source / "SUMS").read_text() == "the only ones"


def test_a_manifest_that_is_being_written_is_no_file_of_the_user(tmp_path: Path) -> None:
    """U6: a kill left it there, where no walk and no --clean knew it for ours."""
    with replacing(str(tmp_path / "m.jsonl")):
        [name] = os.listdir(tmp_path)
        assert is_pscps_own(os.fsencode(name))
    assert os.listdir(tmp_path) == ["m.jsonl"]
