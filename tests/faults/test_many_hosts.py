"""Copies to and from several hosts that see one file system, and what is taken for one and is none.

Not here: which hosts a location names (../unit/test_options.py), the page's commands
(../e2e/test_docs.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from conftest import (
    QUICK_LOGINS,
    MakeFar,
    MakeServer,
    Together,
    require_sshd,
    shared,
    unavailable,
)
from e2e.ways import Notes
from many_hosts_world import ApartSshd, Cluster
from programs import script
from servers import why_no_mounts
from servers.private import PrivateServer, SshdServer

import pscp
from faults.conftest import MIB, Breaking, Running, Way, fill, until
from pscp.endpoint.frames import wire
from pscp.ground.processes import descendants


@pytest.fixture(scope="module")
def servers(make_far: MakeFar) -> Iterator[list[PrivateServer]]:
    """Three hosts that share all files."""
    require_sshd()

    def begun() -> PrivateServer:
        started = shared(lambda: SshdServer(QUICK_LOGINS, environment=make_far()))
        return stack.enter_context(started)

    with contextlib.ExitStack() as stack:
        yield [begun() for _ in range(3)]


@pytest.fixture
def hosts(way: Way, servers: list[PrivateServer], tmp_path: Path) -> Way:
    """The way to or from these."""
    return with_hosts(way, tmp_path, *servers)


@pytest.fixture
def apart(make_far: MakeFar, until_end: Any) -> Callable[[str], ApartSshd]:
    """apart(mounts): an sshd that has mounted something by itself."""
    if why := why_no_mounts():
        unavailable(why)

    def make(mounts: str) -> ApartSshd:
        server = ApartSshd(mounts, *QUICK_LOGINS, environment=make_far())
        return until_end.enter_context(server)  # type: ignore[no-any-return]

    return make


def with_hosts(way: Way, folder: Path, *servers: Any) -> Way:
    return dataclasses.replace(way, server=Cluster(folder, *servers))  # type: ignore[arg-type]


def cluster_of(way: Way) -> Cluster:
    cluster: Any = way.server
    assert isinstance(cluster, Cluster)
    return cluster


def copied(way: Way, **fields: Any) -> tuple[pscp.Result, list[str]]:
    """Copy all, and return the result with what people were told."""
    notes = Notes()
    source, destination = way.locations()
    chosen: dict[str, Any] = {
        "config_file": way.server.ssh_config, "batch": True, "recursive": True, "connections": 3,
        "chunk_bytes": MIB, **fields,
    }  # fmt: skip
    result = pscp.copy(source, destination, reporter=notes, raises=False, **chosen)
    return result, notes.texts


def fill_tree(way: Way, small: int = 300, big: int = 24 * MIB) -> int:
    """A large file and small ones; return the bytes of all."""
    fill(way.source / "big", big)
    for number in range(small):
        fill(way.source / f"d{number % 7}" / f"{number}", 500 + number)
    return big + sum(500 + number for number in range(small))


def assert_whole(way: Way) -> None:
    until(lambda: not any(descendants(each.pid) for each in cluster_of(way).servers), "agents end")
    assert_same_tree(way.source, way.destination)
    assert not way.parts() and not way.journals


def at_dm1(way: Way) -> Breaking:
    """Rules for connections to dm1 alone, which are counted from 0 on."""
    breaking = way.breaking()
    text = f'case " $* " in *" dm1 "*) exec {breaking.program} "$@";; esac\nexec ssh "$@"'
    breaking.program = str(script(breaking.folder / "to-dm1", text))
    return breaking


def left_at(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


# --- all is well


@pytest.mark.usefixtures("pull")
def test_lanes_go_to_all_of_them_in_turn_and_no_more_than_asked_for(
    hosts: Way, together: Together
) -> None:
    fill_tree(hosts)
    result, notes = copied(hosts, archive=True, **together(6))
    assert result.ok and result.hosts_left_out == 0 and notes == []
    assert_whole(hosts)
    logins = cluster_of(hosts).logins()
    assert logins == [2, 2, 2]


@pytest.mark.usefixtures("push")  # it has one direction alone
def test_from_hosts_to_hosts(hosts: Way, together: Together) -> None:
    fill_tree(hosts)
    both = f"dm3,dm1:{hosts.source}/."
    result = pscp.copy(
        both, f"dm2,dm3:{hosts.destination}", config_file=hosts.server.ssh_config, batch=True,
        recursive=True, raises=False, **together(3),
    )  # fmt: skip
    assert result.ok
    assert_whole(hosts)
    assert min(cluster_of(hosts).logins()) >= 1


@pytest.mark.usefixtures("push")
def test_a_mirror_is_made_and_a_dry_run_asks_one_host(hosts: Way) -> None:
    fill_tree(hosts, small=20, big=MIB)
    fill(hosts.destination / "d1" / "unwanted", 10)
    result, _ = copied(hosts, archive=True, delete=True, dry_run=True)
    assert result.files_deleted == 1 and (hosts.destination / "d1" / "unwanted").exists()
    assert cluster_of(hosts).logins() == [1, 0, 0]
    result, _ = copied(hosts, archive=True, delete=True)
    assert result.ok and result.files_deleted == 1
    assert_whole(hosts)


@pytest.mark.usefixtures("pull")
def test_a_host_that_has_fewer_digests_takes_part(
    way: Way, servers: list[PrivateServer], make_sshd: MakeServer, tmp_path: Path,
    far_pythons: list[str], together: Together,
) -> None:  # fmt: skip
    """All use what each of them has; to this one the C library of XXH3 is broken."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libxxhash.so.0").touch()
    broken = {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    bare = make_sshd(python=far_pythons[0], environment=broken)
    hosts = with_hosts(way, tmp_path, servers[0], bare)
    fill_tree(hosts)
    result, _ = copied(hosts, **together(2))
    assert result.ok, result.failures
    assert result.connections == 2 and result.connections_lost == 0
    assert_whole(hosts)


@pytest.mark.usefixtures("push")
def test_what_is_one_hosts_alone_is_refused(hosts: Way) -> None:
    for words in ("--plane=tls", "--persist=60s", "--remote=sftp", "--manifest=x.jsonl"):
        ended = hosts.run(words)
        assert ended.code == 2 and "several hosts" in ended.err, ended.err
    assert sum(cluster_of(hosts).logins()) == 0


# --- one file system, or not


def test_a_host_with_other_files_is_refused(
    way: Way, servers: list[PrivateServer], apart: Callable[[str], ApartSshd], tmp_path: Path
) -> None:
    """Nothing is written, and nothing left, at either."""
    fill_tree(way, small=3, big=MIB)
    place = way.destination if way.is_push else way.source
    other = apart(f"mount -t tmpfs none {place}")
    hosts = with_hosts(way, tmp_path, servers[0], other)
    with pytest.raises(pscp.CopyError, match=r"dm2:.*: it (does not see|has other files)"):
        copied(hosts)
    assert left_at(way.destination) == []
    assert not way.journals


@pytest.mark.usefixtures("pull")  # at a destination the check looks for what it makes itself
def test_a_source_in_which_files_are_being_made_is_one(hosts: Way) -> None:
    """What the hosts say of it differs, as nobody asks them at the same time."""
    fill_tree(hosts, small=20, big=MIB)
    is_over, made = threading.Event(), list[Path]()

    def write() -> None:
        while not is_over.wait(0.001):
            made.append(hosts.source / f".{len(made)}")
            made[-1].touch()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        result, _ = copied(hosts)
    finally:
        is_over.set()
        writer.join()
    assert result.ok, result.failures
    assert (hosts.destination / "big").read_bytes() == (hosts.source / "big").read_bytes()


def test_locks_that_are_not_seen_are_refused(
    push: Way, servers: list[PrivateServer], apart: Callable[[str], ApartSshd], tmp_path: Path
) -> None:
    """Two mounts of one folder by sshfs: each has locks, and inode numbers, of its own."""
    if shutil.which("sshfs") is None or not os.path.exists("/dev/fuse"):
        unavailable("no sshfs")
    fill_tree(push, small=3, big=MIB)
    behind, real = servers[0], tmp_path / "real"
    real.mkdir()
    options = "-o dir_cache=no,entry_timeout=0,negative_timeout=0,attr_timeout=0"
    mount = f"sshfs -f -F {behind.ssh_config} {behind.host}:{real} {push.destination} {options}"
    mounts = f"{{ {mount} & until mountpoint -q {push.destination}; do sleep 0.01; done; }}"
    hosts = with_hosts(push, tmp_path, apart(mounts), apart(mounts))
    with pytest.raises(pscp.DestinationError) as raised:
        copied(hosts)
    assert raised.value.message.endswith(": a lock that dm1 holds is not seen")
    assert "mount it so" in raised.value.hint
    assert left_at(real) == []


@pytest.mark.parametrize("what", ["-t tmpfs none", "--bind {}"], ids=["mounted", "bound"])
def test_what_is_mounted_below_is_not_written_to(
    push: Way, what: str, apart: Callable[[str], ApartSshd], tmp_path: Path
) -> None:
    """Each host would have a part of its own there; what is bound is even of the same device."""
    fill(push.source / "sub" / "big", 8 * MIB)
    fill(push.source / "sub" / "small", 100)
    fill(push.source / "good", 3)
    elsewhere = tmp_path / "elsewhere"
    for folder in (elsewhere, push.destination / "sub"):
        folder.mkdir()
    mounts = f"mount {what.format(elsewhere)} {push.destination}/sub"
    hosts = with_hosts(push, tmp_path, apart(mounts), apart(mounts))
    result, _ = copied(hosts)
    assert {each.path for each in result.failures} == {"sub/big", "sub/small"}
    assert (push.destination / "good").exists() and left_at(elsewhere) == []


def test_sources_that_were_made_alike_are_told_apart(
    pull: Way, apart: Callable[[str], ApartSshd], tmp_path: Path
) -> None:
    """Two new file systems: names, inode numbers, sizes and times are the same, the bytes not."""

    def made(text: str) -> ApartSshd:
        file = f"{pull.source}/file"
        fills = f"echo {text} > {file} && touch -d @1000 {file} {pull.source}"
        return apart(f"mount -t tmpfs none {pull.source} && {fills}")

    hosts = with_hosts(pull, tmp_path, made("one"), made("two"))
    with pytest.raises(pscp.CopyError, match="it has other files there"):
        copied(hosts)


@pytest.mark.parametrize(
    ("goes", "type_", "contains"),
    [("from", wire.REPLY, '"made"'), ("to", wire.ASK, "Learn")],
    ids=["while it shows what it makes", "before it is asked anything"],
)
def test_the_first_host_dies_in_the_check(hosts: Way, goes: str, type_: int, contains: str) -> None:
    """Another one shows in its place, once what was made is gone; or it had to wait for a login."""
    if type_ == wire.REPLY and not hosts.is_push:
        pytest.skip("a source is compared, and nothing made there")
    fill_tree(hosts, small=20)
    breaking = at_dm1(hosts).rule("kill", way=goes, type=type_, contains=contains)
    ended = hosts.finish("-c", "3", breaking=breaking)
    assert ended.end["hosts_left_out"] == 1 and "dm1: " in ended.out
    assert_whole(hosts)


def test_the_next_host_is_asked_where_one_cannot_be_logged_in_to_again(hosts: Way) -> None:
    fill_tree(hosts, small=20)
    what = '"Target"' if hosts.is_push else '"Expand"'
    breaking = at_dm1(hosts)
    breaking.rule("kill", connections=None, way="to", type=wire.ASK, contains=what)
    ended = hosts.finish("--login-once", "-c", "3", breaking=breaking)
    assert ended.end["connections_lost"] == 1
    assert_whole(hosts)


@pytest.mark.usefixtures("push")  # a source is compared, and nothing made there
def test_a_run_that_is_killed_while_it_looks_leaves_nothing(hosts: Way) -> None:
    fill_tree(hosts, small=3, big=MIB)
    breaking = at_dm1(hosts).rule("block", way="from", type=wire.REPLY, contains='"made"')
    running = hosts.start(breaking=breaking)
    until(lambda: breaking.blocked, "the first host has made it")
    assert [name.partition(".")[0] for name in left_at(hosts.destination)] == [""]
    running.kill()
    until(lambda: left_at(hosts.destination) == [], "its agent has removed it")


# --- hosts that are down, or go down


@pytest.mark.usefixtures("push")
def test_one_that_is_down_is_left_out(hosts: Way) -> None:
    fill_tree(hosts, small=20)
    cluster_of(hosts).dead("dm1")
    result, notes = copied(hosts)
    assert result.ok and result.hosts_left_out == 1
    [note] = notes
    assert note.startswith("dm1: ") and note.endswith("; left out")
    assert_whole(hosts)


@pytest.mark.usefixtures("push")
def test_all_are_down(hosts: Way) -> None:
    fill_tree(hosts, small=3, big=MIB)
    for name in cluster_of(hosts).names:
        cluster_of(hosts).dead(name)
    with pytest.raises(pscp.Unreachable, match=r"^dm1: ") as raised:
        copied(hosts)
    assert raised.value.exit_code == 3
    assert left_at(hosts.destination) == []


@pytest.mark.parametrize("name", ["dm1", "dm2"])
def test_one_dies_amid_the_copy_and_stays_away(
    hosts: Way, name: str, quick_retries: None, together: Together
) -> None:
    """The first one too, which was asked all that comes before the lanes."""
    size = fill_tree(hosts)
    amid = Amid(lambda: cluster_of(hosts).dead(name))
    amid.holds = lambda: amid.lost == 0
    running = amid.copied(hosts, together)
    assert running.ok and running.connections_lost >= 1
    assert running.bytes_sent + running.bytes_resumed >= size
    about = [text for text in amid.notes.texts if text.startswith(f"{name}: ")]
    assert len(about) <= 1, about
    assert_whole(hosts)


class Amid:
    """Acts amid a copy, in which each host has a lane; it goes on once it `holds` no more."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._has_acted = act, False
        self.holds: Callable[[], bool] = lambda: False
        self.notes, self.lost = Notes(), 0

    def copied(self, way: Way, together: Together) -> pscp.Result:
        source, destination = way.locations()
        result = pscp.copy(
            source, destination, reporter=self.notes, progress=self._progress, raises=False,
            recursive=True, config_file=way.server.ssh_config, batch=True, chunk_bytes=MIB,
            **together(3, self._is_over, 8 * MIB),
        )  # fmt: skip
        assert self._has_acted
        return result

    def _progress(self, now: pscp.Counters) -> None:
        self.lost = now.connections_lost

    def _is_over(self) -> bool:
        if not self._has_acted:
            self._act()
            self._has_acted = True
        return not self.holds()


def test_one_that_comes_back_without_the_files_gives_no_lanes(
    hosts: Way, apart: Callable[[str], ApartSshd], quick_retries: None,
    together: Together,
) -> None:  # fmt: skip
    """Its machine was started anew, and the file system is not mounted yet."""
    fill_tree(hosts)
    place = hosts.destination if hosts.is_push else hosts.source
    empty = apart(f"mount -t tmpfs none {place}")

    def restart() -> None:
        cluster_of(hosts).becomes("dm2", empty)
        for name in ("dm1", "dm3"):  # whose lanes may go to dm2 then
            cluster_of(hosts).cut(name)

    amid = Amid(restart)
    amid.holds = lambda: not any(text.startswith("dm2: ") for text in amid.notes.texts)
    result = amid.copied(hosts, together)  # goes on once a lane has come to dm2
    assert result.ok, result.failures
    assert result.hosts_left_out == 1 and not amid.holds()
    assert_whole(hosts)


@pytest.mark.usefixtures("push")  # a source is there as before
def test_a_lane_that_connects_when_all_has_landed_leaves_no_host_out(hosts: Way) -> None:
    fill(hosts.source / "big", 20 * MIB)
    breaking = hosts.breaking().rule("block", connections=[0, 1, 2], gate="data")
    breaking.rule("block", connections=[3], type=wire.ASK, contains='"Look"', gate="look")
    running = hosts.start("-c", "4", "--chunk-size", "1M", breaking=breaking)
    try:
        until(lambda: breaking.is_blocked(3, "look"), "the fourth lane looks for the fence")
        breaking.go("data")
        until(lambda: hosts.arrived() and not [*hosts.destination.glob(".*")], "the fence is gone")
        breaking.go("look")
        assert running.finished().end["hosts_left_out"] == 0
    finally:
        running.kill()


# --- the same copy, later


def cut_in_the_middle(way: Way) -> None:
    """Runs the copy until some has landed; then kills it."""
    breaking = way.breaking().rule("block", connections=None, type=None, after=4 * MIB)
    running: Running = way.start("-c", "3", "--chunk-size", "1M", breaking=breaking)
    until(lambda: way.journaled_bytes() >= 6 * MIB, "enough has landed")
    running.kill()


@pytest.mark.usefixtures("push")
@pytest.mark.parametrize("names", [("dm3", "dm1", "dm2"), ("dm2",)])
def test_it_goes_on_in_another_order_and_with_fewer(hosts: Way, names: tuple[str, ...]) -> None:
    fill_tree(hosts, small=20)
    cut_in_the_middle(hosts)
    cluster_of(hosts).names = list(names)
    ended = hosts.finish("-c", "3", "--chunk-size", "1M")
    assert ended.end["bytes_resumed"] >= 5 * MIB
    assert_whole(hosts)


def test_hosts_are_killed_at_any_moment(hosts: Way, quick_retries: None) -> None:
    """Whole files or none; then the same command goes on, and sends little twice."""
    size = fill_tree(hosts, small=1000, big=24 * MIB)
    rng = random.Random(7)
    running = hosts.start("-c", "3", "--chunk-size", "1M", "-l", "150M")
    whole = set[str]()

    def look() -> int:
        for name in hosts.arrived().keys() - whole:
            arrived = (hosts.destination / name).read_bytes()
            assert arrived == (hosts.source / name).read_bytes(), name
            whole.add(name)
        return len(whole)

    def has_ended() -> bool:
        return running.process.poll() is not None

    try:
        while not has_ended() and look() < 750:
            cluster_of(hosts).cut(rng.choice(cluster_of(hosts).names))
            next_cut = len(whole) + rng.randrange(100)
            until(lambda most=next_cut: look() > most or has_ended(), "more has landed")  # type: ignore[misc]
    finally:
        running.kill()
    landed = hosts.arrived_bytes() + hosts.journaled_bytes()
    ended = hosts.finish("-c", "3", "--chunk-size", "1M")
    assert ended.end["bytes_sent"] <= size - landed + 8 * MIB
    assert_whole(hosts)
