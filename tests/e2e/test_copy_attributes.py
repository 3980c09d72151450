"""--chmod and --chown: rsync with the same options finds nothing to change.

Not here: what a change of a mode means, and --numeric-ids (../unit/test_attributes.py), -p and -a
alone (test_copy_metadata.py).
"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest
from compare import rsync_finds

from e2e.ways import Way
from pscp.endpoint.reading.paths import is_pscps_own
from pscp.endpoint.there import owners
from pscp.progress.progress import Reporter

EVERY_WAY = True

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def fill(folder: Path) -> None:
    for name, mode in (("d/a", 0o600), ("d/b", 0o755), ("large", 0o640)):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * (200_000 if name == "large" else 3))
        path.chmod(mode)
    (folder / "link").symlink_to("large")


def arrived(way: Way) -> list[Path]:
    found = way.destination.rglob("*")
    return [path for path in found if not is_pscps_own(os.fsencode(path.name))]


@pytest.mark.parametrize("modes", ["D2750,F640", "go=rX,u+s"])
def test_modes_are_changed_on_the_way(way: Way, modes: str) -> None:
    fill(way.source)
    assert way.copy(".", preserve=True).ok  # the second run changes what is there
    for _ in range(2):
        assert way.copy(".", preserve=True, chmod=modes).ok
        assert rsync_finds(way.source, way.destination, "-rLptO", f"--chmod={modes}") == ""


@needs_root
@pytest.mark.parametrize("typed", ["{user}:{group}", "{uid}:{gid}", ":{gid}"])
def test_everything_is_given_to_an_owner(way: Way, typed: str) -> None:
    user, group = pwd.getpwall()[-1], grp.getgrall()[-1]
    ids = {"user": user.pw_name, "uid": user.pw_uid, "group": group.gr_name, "gid": group.gr_gid}
    chown = typed.format(**ids)
    fill(way.source)
    os.chown(way.source / "large", 12345, 54321)
    if way.is_push and way.remote == "sftp" and "user" in typed:
        ran = way.command("-a", f"--chown={chown}", names=["."])
        assert (ran.code, arrived(way)) == (1, [])
        assert "--chown: over SFTP users and groups are known by their numbers only" in ran.err
        return
    assert way.copy(".", archive=True, chown=chown).ok
    if way.remote == "agent":
        assert rsync_finds(way.source, way.destination, "-a", f"--chown={chown}") == ""
    status = (way.destination / "large").stat()
    assert status.st_gid == group.gr_gid
    assert status.st_uid == (12345 if typed.startswith(":") else user.pw_uid)


@pytest.mark.needs_agent("push", reason="SFTP knows no names")
@pytest.mark.parametrize("chown", ["no-such-user", "0:no-such-group"])
def test_an_owner_that_the_destination_does_not_know_ends_the_copy(way: Way, chown: str) -> None:
    fill(way.source)
    ran = way.command("-a", "--chown", chown, names=["."])
    assert (ran.code, arrived(way)) == (1, [])
    name = chown.rpartition(":")[2]
    assert f"called {name}" in ran.err and "--chown: there is no " in ran.err


def test_who_is_not_root_is_told_that_owners_stay(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    reporter = Reporter()
    monkeypatch.setattr(reporter, "note", notes.append)
    fill(way.source)
    own = SimpleNamespace(geteuid=lambda: 1000, getegid=lambda: 1000, getgroups=lambda: [8])
    monkeypatch.setattr(owners, "os", own)  # at this end
    for chown, is_told in (("7:8", True), (":7", True), ("1000:8", False), (":1000", False)):
        notes.clear()
        assert way.copy(".", archive=True, chown=chown, reporter=reporter).ok
        told = [note for note in notes if "is not root" in note]
        assert len(told) == (is_told and not way.is_push), chown
