"""One source to several destinations: what lands, what is read, what is told, what is refused.

Not here: destinations that fail (../faults/test_fan_out.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from fan_out_world import MIB, Hosts
from servers.private import PrivateServer

import pscp
from e2e.terminal import terminal
from e2e.ways import PSCP, Ran, run
from pscp.options.option_rows import CHUNK_BYTES

BIG_BYTES = 9 * MIB + 1


@pytest.fixture
def hosts(tmp_path: Path, sshd: PrivateServer) -> Hosts:
    return Hosts(tmp_path, sshd)


def fan_out(hosts: Hosts, *to: str, **more: Any) -> tuple[pscp.Delivery, ...]:
    fields = {"recursive": True, "connections": 1, "batch": True, "raises": False, **more}
    config = str(hosts.ssh_config)
    return pscp.fan_out(f"{hosts.source}/.", to, config_file=config, **fields)


def typed(hosts: Hosts, *words: str) -> Ran:
    return run([*PSCP, "-F", str(hosts.ssh_config), "-B", "-c", "1", *words])


def test_h4_what_failed_is_raised_once_all_have_ended(hosts: Hosts) -> None:
    hosts.fill("file", 3)
    to = [hosts.dead("dead"), hosts.good("a")]
    with pytest.raises(pscp.FanOutFailed) as raised:
        fan_out(hosts, *to, raises=True)
    error = raised.value
    assert error.message.startswith(f"{to[0]}: ")
    assert error.message.endswith("; 1 of 2 destinations failed")
    assert error.exit_code == 3 and error.retry
    assert [each.ok for each in error.result] == [False, True]
    assert (hosts.at("a") / "file").read_bytes() == (hosts.source / "file").read_bytes()
    (hosts.source / "gone").symlink_to("nowhere")
    with pytest.raises(pscp.FanOutFailed, match="gone: is a dangling link") as raised:
        fan_out(hosts, to[1], raises=True)
    assert raised.value.exit_code == 1 and not raised.value.retry
    assert "exclude" in raised.value.hint and "--" not in raised.value.hint


def test_a_tree_to_three_is_read_once(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    (hosts.source / "folder").mkdir()
    hosts.fill("folder/small", 5000)
    names = ("a", "b", "c")
    found = fan_out(hosts, *map(hosts.good, names))
    assert [each.destination.partition(":")[0] for each in found] == [*names]
    assert all(each.ok and each.error is None and each.exit_code == 0 for each in found)
    for name in names:
        assert_same_tree(hosts.source, hosts.at(name))
    assert sum(each.bytes_read for each in found) == BIG_BYTES  # chunks; a pack is read by each
    # All have the same chunks, however fast they are.
    chunks = {each.result.chunks_verified for each in found if each.result}
    assert chunks == {-(-BIG_BYTES // CHUNK_BYTES) + 1}  # and the small file
    assert all(each.cpu_s > 0 and each.seconds > 0 for each in found)


def test_over_the_direct_plane(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    found = fan_out(hosts, hosts.good("a"), hosts.good("b"), chunk_bytes=MIB, plane="tls")
    assert all(each.result and each.result.plane == "tls" for each in found)
    for name in ("a", "b"):
        assert_same_tree(hosts.source, hosts.at(name))


def test_files_that_are_there_are_hashed_once_at_this_end(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    to = [hosts.good("a"), hosts.good("b")]
    fan_out(hosts, *to)
    again = fan_out(hosts, *to, strong=True)
    assert [each.result and each.result.files_resumed for each in again] == [1, 1]
    assert sum(each.bytes_read for each in again) == BIG_BYTES
    digests = {each.result and each.result.digests["big"] for each in again}
    assert len(digests) == 1


def test_functions_of_the_program_learn_the_destination(hosts: Hosts) -> None:
    hosts.fill("file", 1000)
    to = [hosts.good("a"), hosts.good("b")]
    files, seen = list[tuple[str, str]](), set[str]()
    fan_out(
        hosts,
        *to,
        on_file=lambda destination, event: files.append((destination, event.path)),
        progress=lambda destination, counters: seen.add(destination),
    )
    assert sorted(files) == [(each, "file") for each in to]
    assert seen == {*to}


def test_a_file_is_removed_only_once_all_have_it(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    hosts.fill("small", 1000)
    a, b, dead = hosts.good("a"), hosts.good("b"), hosts.dead("dead")
    fan_out(hosts, a, b, dead, remove_source_files=True)
    assert sorted(each.name for each in hosts.source.iterdir()) == ["big", "small"]
    (hosts.at("b") / "small").unlink()
    (hosts.at("b") / "small").mkdir()  # nothing can have this name there
    found = fan_out(hosts, a, b, remove_source_files=True)
    assert [each.ok for each in found] == [True, False]
    assert [each.name for each in hosts.source.iterdir()] == ["small"]


def test_a_log_names_what_is_deleted_at_each_destination(hosts: Hosts) -> None:
    hosts.fill("file", 1000)
    log, to = hosts.folder / "log", [hosts.good("a"), hosts.good("b")]
    for each in "ab":
        (hosts.at(each) / "old").touch()
    words = ("--fan-out", "-rq", "--delete", "--log-file", str(log), f"{hosts.source}/.", *to)
    assert typed(hosts, *words).code == 0
    lines = {line.partition("]: ")[2] for line in log.read_text().splitlines()}
    assert {f"deleted {each}:{hosts.at(each)}/old" for each in "ab"} <= lines
    log.unlink()
    words = ("--fan-out", "-rq", "--remove-source-files", *words[3:])
    assert typed(hosts, *words).code == 0
    lines = {line.partition("]: ")[2] for line in log.read_text().splitlines()}
    assert f"removed {hosts.source}/file" in lines


def test_two_names_of_one_folder_remove_nothing(hosts: Hosts) -> None:
    """Which the first copy makes, so that the second finds it there."""
    hosts.fill("small", 1000)
    hosts.good("a")
    hosts.good("b")
    to = [f"{name}:{hosts.at('a')}/new" for name in "ab"]
    first, second = fan_out(hosts, *to, max_hosts=1, remove_source_files=True)
    assert first.ok and second.result is not None
    assert "are names of one place" in second.result.failures[0].message
    assert_same_tree(hosts.source, hosts.at("a") / "new")


def test_sources_and_destinations_may_be_any_iterables(hosts: Hosts) -> None:
    """Each is read once, though there are several copies."""
    for name in ("one", "two"):
        hosts.fill(name, 3)
    to = [hosts.good("a"), hosts.good("b")]
    fields: Any = {"config_file": str(hosts.ssh_config), "connections": 1, "batch": True}
    assert len(pscp.fan_out(hosts.source.glob("*"), (each for each in to), **fields)) == 2
    for name in ("a", "b"):
        assert sorted(each.name for each in hosts.at(name).iterdir()) == ["one", "two"]


def test_the_terms_of_a_job_hold_for_all(hosts: Hosts) -> None:
    for name in ("kept", "left"):
        hosts.fill(name, 200_000)
    asked = threading.Event()

    def kbit_s() -> None:
        asked.set()

    terms = pscp.JobTerms(
        select=lambda path, size, mtime_ns, inode: path.endswith("kept"), kbit_s=kbit_s
    )
    names = ("a", "b")
    assert all(each.ok for each in fan_out(hosts, *map(hosts.good, names), terms=terms))
    for name in names:
        assert [each.name for each in hosts.at(name).iterdir()] == ["kept"]
    assert asked.is_set()


def test_a_task_that_is_cancelled_ends_all(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    to = [hosts.good("a"), hosts.still("b", MIB)]
    fields: Any = {"config_file": str(hosts.ssh_config), "connections": 1, "batch": True}

    async def cancelled() -> None:
        task = asyncio.create_task(pscp.aio.fan_out(hosts.source / "big", to, **fields))
        await asyncio.to_thread(hosts.wait_until_stands, "b")
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    hosts.go("b")

    async def again() -> tuple[pscp.Delivery, ...]:
        return await pscp.aio.fan_out(hosts.source / "big", to, **fields)

    assert all(each.ok for each in asyncio.run(again()))


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(hosts: Hosts) -> None:
    hosts.fill("file", 1)
    a, b = hosts.dead("a"), hosts.dead("b")
    for to, more, words in (
        ([], {}, "no destination"),
        ([a, a], {}, "twice"),
        ([a, a.removesuffix("/")], {}, "twice"),
        ([a, "here"], {}, "is HOST:PATH"),
        ([a, b], {"max_hosts": 0}, "max_hosts must be 1 or more"),
        ([a, b], {"files_from": "-"}, "read once"),
        ([a, b], {"direct": True}, "from host to host"),
    ):
        with pytest.raises(pscp.UsageError, match=words):
            fan_out(hosts, *to, **more)
    with pytest.raises(pscp.UsageError, match="on this machine"):
        pscp.fan_out("host:file", [a, b])
    with pytest.raises(pscp.UsageError, match="twice"):
        pscp.fan_out(hosts.source, [pscp.Location("there", "there", host) for host in "ab"])
    with pytest.raises(pscp.UsageError, match="here: a destination of a fan-out is HOST:PATH"):
        pscp.fan_out(hosts.source, "here")  # one text is one destination


# --- the command line


def test_the_command_tells_each_destination_and_what_it_cost(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    to = [hosts.good("a"), hosts.good("b")]
    ran = typed(hosts, "--fan-out", f"{hosts.source}/big", *to)
    assert (ran.code, ran.out) == (0, "")
    first, second, last = ran.err.splitlines()
    assert f"to a:{hosts.at('a')}/, 1 file" in first and "s of CPU" not in first
    assert f"to b:{hosts.at('b')}/, 1 file" in second
    assert re.fullmatch(r"2 of 2 destinations complete in [\d.]+ m?s", last)
    *_, last = typed(hosts, "--fan-out", "--stats", f"{hosts.source}/big", *to).err.splitlines()
    assert "CPU here: " in last and "9.4 MB read" in last
    assert typed(hosts, "--fan-out", "-q", f"{hosts.source}/big", *to) == Ran(0, "", "")


@pytest.mark.parametrize("word", ["-n", "--check", "-t"])
def test_what_would_be_is_told_of_each_destination(hosts: Hosts, word: str) -> None:
    hosts.fill("file", 100)
    to = [hosts.good("a"), hosts.good("b")]
    ran = typed(hosts, "--fan-out", word, f"{hosts.source}/file", *to)
    lines = ran.err.splitlines()
    assert [line.startswith(f"{each}: ") for line, each in zip(lines, to, strict=False)] == [
        True, True,
    ], ran  # fmt: skip


def test_what_gets_other_metadata_alone_is_named(hosts: Hosts) -> None:
    hosts.fill("file", 100)
    to = [hosts.good("a"), hosts.good("b")]
    words = ("--fan-out", "-av", f"{hosts.source}/file", *to)
    assert typed(hosts, *words).code == 0
    (hosts.source / "file").chmod(0o604)
    ran = typed(hosts, *words)
    assert sorted(ran.out.splitlines()) == [f"{each}: file" for each in to], ran


@pytest.mark.parametrize("word", ["-vv", "-qvv"])
def test_json_names_the_destination_of_each_event(hosts: Hosts, word: str) -> None:
    hosts.fill("big", BIG_BYTES)
    words = ("--fan-out", "--max-hosts", "1", "--progress", "json", word)
    to = [hosts.good("a"), hosts.good("b")]
    ran = typed(hosts, *words, f"{hosts.source}/big", *to)
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert {each["destination"] for each in events} == {*to}
    assert {each["event"] for each in events} == {"progress", "note", "file", "end"}
    ends = [each for each in events if each["event"] == "end"]
    assert [(each["destination"], each["ok"]) for each in ends] == [(each, True) for each in to]
    assert sum(each["bytes_read"] for each in ends) == BIG_BYTES


def test_a_terminal_shows_all_of_them(hosts: Hosts) -> None:
    hosts.fill("big", BIG_BYTES)
    still, good, dead = hosts.still("still", MIB), hosts.good("good"), hosts.dead("dead")
    words = ("-F", str(hosts.ssh_config), "-B", "-c", "1", "--fan-out", "--max-hosts", "2")
    with terminal(*PSCP, *words, f"{hosts.source}/big", still, dead, good) as screen:
        screen.wait_for(r"good:\S+ .*done")
        assert "still:" in screen.shown and "failed" in screen.shown  # the dead one
        hosts.go("still")
        assert screen.end() == 3
    assert "dead:" in screen.shown.partition("2 of 3 destinations complete")[0]


@pytest.mark.parametrize("folder", ["old", "../old"])
def test_destinations_at_one_host_may_have_a_folder_for_backups_each(
    hosts: Hosts, folder: str
) -> None:
    hosts.fill("file", 3)
    at = hosts.good("a")
    places = {name: hosts.at("a") / name for name in ("one", "below/two")}
    for name, place in places.items():
        place.mkdir(parents=True)
        (place / "file").write_text(f"of {name}")
    to = (f"{at}{name}" for name in places)
    ran = typed(hosts, "-a", "--fan-out", "--backup-dir", folder, f"{hosts.source}/.", *to)
    assert ran.code == 0, ran.err
    for name, place in places.items():
        assert (place / folder / "file").read_text() == f"of {name}"


@pytest.mark.parametrize("max_hosts", [1, 2])
@pytest.mark.parametrize("is_inner_first", [True, False])
def test_a_mirror_in_another_under_two_names_of_one_host(
    hosts: Hosts, max_hosts: int, is_inner_first: bool
) -> None:
    """What the one had delivered, the mirror of the other deleted: with exit 0."""
    hosts.fill("file", 3)
    to = [hosts.good("a"), hosts.good("b").replace("at-b", "at-a") + "inner/"]
    to = to[::-1] if is_inner_first else to
    found = fan_out(hosts, *to, delete=True, mkpath=True, max_hosts=max_hosts)
    [error] = [each.error for each in found if each.error is not None]
    assert type(error) is pscp.DestinationError
    assert (
        error.message
        == f"b:{hosts.at('a')}/inner/ lies in a:{hosts.at('a')}/, which becomes a mirror"
    )
    [there] = [each for each in found if each.error is None]
    folder = hosts.at("a") / "inner" if "inner" in there.destination else hosts.at("a")
    assert (folder / "file").exists()
    assert not list(hosts.at("a").rglob(".*"))  # nor a fence of the other


def test_a_folder_for_backups_that_two_names_of_one_host_share(hosts: Hosts) -> None:
    """The backup of the one replaced that of the other: with exit 0."""
    data = hosts.fill("file", 3)
    at = hosts.good("a"), hosts.good("b").replace("at-b", "at-a")
    to = [f"{place}{name}/" for place, name in zip(at, ("one", "two"), strict=True)]
    for name in ("one", "two"):
        (hosts.at("a") / name).mkdir()
        (hosts.at("a") / name / "file").write_text(f"of {name}")
    found = fan_out(hosts, *to, backup_dir="../old")
    [(failed, error)] = [(each.destination, each.error) for each in found if each.error is not None]
    assert "would be in one folder" in error.message and error.exit_code == 1
    names = ["two", "one"] if failed == to[0] else ["one", "two"]
    assert (hosts.at("a") / "old" / "file").read_text() == f"of {names[0]}"
    assert (hosts.at("a") / names[0] / "file").read_bytes() == data
    assert (hosts.at("a") / names[1] / "file").read_text() == f"of {names[1]}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fan-out", "file"], "a destination is missing"),
        (["--fan-out", "a:x", "b:y"], "a source on this machine is missing"),
        (
            ["--fan-out", "file", "a:x", "other"],
            "other: a destination is HOST:PATH, and a source stands before",
        ),
        (["--fan-out", "file", "a:x", "a:x"], "a:x is named twice"),
        (["--fan-out", "file", "a,b:x", "b:x/"], "b:x/ is named twice"),
        # T4: what the one had delivered, the mirror of the other deleted.
        (["--fan-out", "-a", "--delete", ".", "a:x/", "a:x/y/"], "a:x/y/ lies in a:x/"),
        (["--fan-out", "-a", "--delete", ".", "a:y", "a:"], "a:y lies in a:"),
        # The backups of the one replaced those of the other, or what had come there.
        (
            ["--fan-out", "-a", "--backup-dir", "../b", ".", "a:x", "a:y/"],
            "--backup-dir: the backups of a:x and those of a:y/ would be in one folder",
        ),
        (["--fan-out", "--backup-dir", "/b/c", "file", "a:x", "a:/y"], "the backups of a:x and th"),
        (
            ["--fan-out", "-a", "--backup-dir", "../b", ".", "a:x/y", "a:x"],
            "the backups of a:x/y and what comes to a:x would",
        ),
        (
            ["--fan-out", "-a", "--backup-dir", "../b", ".", "a:x/y", "a:x/b/z"],
            "the backups of a:x/y and those of a:x/b/z would",
        ),
        (["--max-hosts", "2", "file", "a:x"], "--max-hosts goes with --fan-out"),
        (["--fan-out", "--cluster", "local:2", "file", "a:x"], "--cluster does not go with a fan"),
        (["--fan-out", "--measure", "a"], "--max-hosts goes with --fan-out, and that with a copy"),
        (["--fan-out", "--max-hosts", "0", "file", "a:x"], "1 or more, not 0"),
        (["--fan-out", "/", "a:x"], "/ is a folder: use -r"),
    ],
)
def test_a_command_that_makes_no_sense(hosts: Hosts, words: list[str], said: str) -> None:
    ran = typed(hosts, *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err and "Traceback" not in ran.err
