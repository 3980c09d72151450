"""metadata.py: modes and times as they arrive, with and without -p, and what is read for them.

Read next: pscp/endpoint/reading/metadata.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.metadata import Policy

modes = st.integers(0, 0o7777)
umasks = st.integers(0, 0o777)
PLAIN = tree.Rules(recursive=True, follow=False, preserve=False, archive=False, filters=())
ARCHIVE = PLAIN._replace(preserve=True, archive=True)
NS = 1_600_000_000_123_456_789


def entry(mode: int = 0o644, mtime_ns: int = NS, **extra: Any) -> tree.Entry:
    return tree.Entry(tree.FILE, 0, "a", 0, mode, mtime_ns, 1, extra)


@given(modes, umasks)
def test_without_p_a_mode_follows_the_umask_and_has_no_special_bits(mode: int, umask: int) -> None:
    arrives = Policy(preserve=False, archive=False, umask=umask).mode(mode)
    assert arrives == mode & 0o777 & ~umask
    assert arrives & 0o7000 == 0 and arrives & umask == 0


@given(modes, umasks, st.booleans())
def test_with_p_a_mode_is_the_source_s(mode: int, umask: int, archive: bool) -> None:
    assert Policy(preserve=True, archive=archive, umask=umask).mode(mode) == mode


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o027])
def test_the_umask_is_found_and_left_as_it_is(umask: int) -> None:
    before = os.umask(umask)
    try:
        assert metadata.current_umask() == umask
    finally:
        assert os.umask(before) == umask


def applied(path: Path, policy: Policy, value: tree.Entry, before: Any = None) -> os.stat_result:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        metadata.apply_to_file(fd, value, policy, before)
    finally:
        os.close(fd)
    return path.stat()


def test_a_new_file(tmp_path: Path) -> None:
    plain = applied(tmp_path / "a", Policy(False, False, 0o027), entry(0o6777))
    assert plain.st_mode & 0o7777 == 0o750
    assert plain.st_mtime_ns != NS
    kept = applied(tmp_path / "b", Policy(True, False, 0o027), entry(0o2757, a=NS + 1))
    assert kept.st_mode & 0o7777 == 0o2757
    assert (kept.st_mtime_ns, kept.st_atime_ns) == (NS, NS + 1)


def test_a_file_that_is_replaced_keeps_its_mode_without_p(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.touch()
    old.chmod(0o4640)
    before = old.stat()
    plain = applied(tmp_path / "a", Policy(False, False, 0o022), entry(0o755), before)
    assert plain.st_mode & 0o7777 == 0o640  # and its setuid is not handed to other bytes
    kept = applied(tmp_path / "b", Policy(True, False, 0o022), entry(0o755), before)
    assert kept.st_mode & 0o7777 == 0o755


def test_a_folder_s_mode_is_set_when_it_is_new_or_with_p(tmp_path: Path) -> None:
    def folder(policy: Policy, is_new: bool) -> int:
        tmp_path.chmod(0o700)
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            metadata.apply_to_folder(fd, entry(0o1777), policy, is_new)
        finally:
            os.close(fd)
        return tmp_path.stat().st_mode & 0o7777

    assert folder(Policy(False, False, 0o022), False) == 0o700
    assert folder(Policy(False, False, 0o022), True) == 0o755
    assert folder(Policy(True, False, 0o022), False) == 0o1777
    assert tmp_path.stat().st_mtime_ns == NS


def test_what_is_read_is_what_the_rules_ask_for(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    status = file.stat()
    full = os.fsencode(file)
    paths = full, (None, full)
    assert metadata.read(*paths, status, PLAIN) == {}
    assert metadata.read(*paths, status, PLAIN._replace(preserve=True)) == {"a": status.st_atime_ns}
    archived: dict[str, Any] = metadata.read(*paths, status, ARCHIVE)
    assert archived["o"][:2] == [status.st_uid, status.st_gid]


def test_attributes_travel_with_an_archive(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    try:
        os.setxattr(one, "user.pscp", b"\0\xffvalue")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    full = os.fsencode(one)
    extra: dict[str, Any] = metadata.read(full, (None, full), one.stat(), ARCHIVE)
    applied(two, Policy(True, True, 0o022), entry(**extra))
    assert os.getxattr(two, "user.pscp") == b"\0\xffvalue"


@pytest.mark.parametrize("extra", [{}, {"o": 1}, {"o": [1]}, {"o": ["x", "y", 1, 2]}, {"a": "x"}])
def test_metadata_of_another_shape_is_passed_over(tmp_path: Path, extra: dict[str, Any]) -> None:
    status = applied(tmp_path / "a", Policy(True, True, 0o022), entry(0o600, **extra))
    assert (status.st_uid, status.st_mtime_ns) == (os.getuid(), NS)
