"""What a copy replaces is kept (--backup), as is a large file until the new one is complete.

Not here: what is sent of a large file (../core/test_reuse.py), what --delete removes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree

from e2e.ways import Way
from pscp.ground.values import MIB

LARGE_BYTES = MIB
NAMES = ("small", "sub/large", "sub/same", "sub/link")


def fill(folder: Path, what: bytes) -> None:
    """A tree in a version; "same" is the same in all."""
    (folder / "sub").mkdir()
    (folder / "small").write_bytes(what)
    (folder / "sub" / "large").write_bytes(what * (LARGE_BYTES // len(what)))
    (folder / "sub" / "same").write_bytes(b"same")
    os.symlink(what.decode(), folder / "sub" / "link")


def assert_old(folder: Path, suffix: str = "") -> None:
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())
    kept = [name for name in NAMES if name != "sub/same"]
    assert [name for name in found if name.endswith(suffix)] == sorted(n + suffix for n in kept)
    assert (folder / f"small{suffix}").read_bytes() == b"old"
    assert (folder / f"sub/large{suffix}").read_bytes()[:3] == b"old"
    assert os.readlink(folder / f"sub/link{suffix}") == "old"


@pytest.mark.needs_agent(reason="SFTP refuses it")
def test_what_is_replaced_is_kept_beside_it(way: Way) -> None:
    fill(way.destination, b"old")
    fill(way.source, b"newer")
    for _ in range(2):  # the second one replaces nothing
        ran = way.command("-a", "--backup", "--suffix", ".before", names=["."])
        assert ran.code == 0, ran.err
        assert_old(way.destination, ".before")
    for name in NAMES:
        if name != "sub/same":
            os.unlink(way.destination / f"{name}.before")
    assert_same_tree(way.source, way.destination)


@pytest.mark.needs_agent(reason="SFTP refuses it")
def test_what_is_replaced_is_kept_in_a_folder(way: Way) -> None:
    fill(way.destination, b"old")
    fill(way.source, b"newer")
    (way.destination / "sub").chmod(0o750)
    result = way.copy(".", archive=True, backup_dir="kept/monday")  # which says backup as well
    assert result.ok, result.failures
    kept = way.destination / "kept"
    assert_old(kept / "monday")
    # As private as what was there; the metadata of folders is set at the copy's end.
    assert (kept / "monday" / "sub").stat().st_mode & 0o7777 in (0o750, 0o700)
    os.rename(kept, way.destination.parent / "elsewhere")
    assert_same_tree(way.source, way.destination)


@pytest.mark.needs_agent(reason="SFTP refuses it")
def test_a_backup_that_cannot_be_made_keeps_the_file(way: Way) -> None:
    (way.destination / "small").write_bytes(b"old")
    (way.destination / "small~").mkdir()
    (way.source / "small").write_bytes(b"newer")
    result = way.copy("small", backup=True)
    assert [(f.path, f.error) for f in result.failures] == [("small~", "FileError")]
    assert (way.destination / "small").read_bytes() == b"old"
    assert sorted(os.listdir(way.destination)) == ["small", "small~"]


def test_backups_that_cannot_be(push: Way) -> None:
    (push.source / "small").write_bytes(b"new")
    for words in ("--suffix a/b", "--suffix=", "--backup-dir /..", "--backup-dir a/../b"):
        assert push.command("--backup", *words.split(), names=["small"]).code == 2, words
    for words in ("--backup-dir /", "--backup-dir / --suffix .x"):  # there are no backups beside
        refused = push.command(*words.split(), names=["small"])
        assert (refused.code, "--backup-dir: '/' is not a folder" in refused.err) == (2, True)


@pytest.mark.needs_agent(reason="SFTP refuses it")
@pytest.mark.parametrize(
    ("name", "fields"), [("a~", {}), ("old/a", {"backup_dir": "old"}), ("a.1", {"suffix": ".1"})]
)
def test_no_backup_replaces_what_the_same_copy_brings(
    way: Way, name: str, fields: dict[str, Any]
) -> None:
    """Or a file that counts as copied, and that a move removes, would be nowhere."""
    (way.source / name).parent.mkdir(exist_ok=True)
    (way.source / name).write_bytes(b"precious")
    (way.source / "a").write_bytes(bytes(LARGE_BYTES))
    (way.destination / "a").write_bytes(b"old")
    result = way.copy(".", backup=True, remove_source_files=True, **fields)
    assert [failure.path for failure in result.failures] == [name]
    option = "backup_dir" if fields.keys() == {"backup_dir"} else "suffix"
    assert f"({option} chooses" in result.failures[0].message
    assert (way.source / name).read_bytes() == b"precious"
    assert not (way.source / "a").exists()
    assert (way.destination / name).read_bytes() == b"old"
