"""Every program in examples/ runs as it stands, does what it says, and is short.

Read next: examples/copy_folder.py, world.py.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zfs.test_examples as with_zfs
from compare import assert_same_tree
from servers.private import PrivateServer

from e2e.world import ROOT, World, change, make_world, put_program
from pscp.jobs import explain
from pscp.jobs.toml.config import load

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
MAX_LINES = 45
NO_SUCH_HOST = "no-such-host.invalid"  # RFC 2606: never resolves


@pytest.fixture
def world(tmp_path: Path, far_home: Path, sshd: PrivateServer) -> Iterator[World]:
    with make_world(tmp_path, far_home, sshd) as made:
        yield made


def test_there_is_a_test_for_each() -> None:
    tests = " ".join(name for name in (*globals(), *vars(with_zfs)) if name.startswith("test_"))
    assert [name for name in EXAMPLES if name.removesuffix(".py") not in tests] == []


def test_they_are_short() -> None:
    lines = {name: (ROOT / "examples" / name).read_text().count("\n") for name in EXAMPLES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_the_recordings_limit_is_in_the_unit_that_its_comment_names() -> None:
    file = ROOT / "examples" / "recordings.toml"
    limit = r'^limit = \{ "(.+)" = "([0-9]+)M" \} +# Mbit/s'
    [(span, mbit_s)] = re.findall(limit, file.read_text("utf-8"), re.M)
    [job] = load(str(file)).jobs.values()
    assert f"# {span}: --limit={int(mbit_s) * 1000}" in explain.lines(job)  # kbit/s


def test_without_arguments_each_says_how_it_is_used(world: World) -> None:
    for name in EXAMPLES:
        ran = world.example(name)
        assert (ran.code, ran.out) == (2, "")
        assert f"{name} " in ran.err


def test_a_host_that_is_not_there_is_told(world: World) -> None:
    for name, arguments in (
        ("copy_folder.py", ["data", f"{NO_SUCH_HOST}:"]),
        ("several_copies.py", [NO_SUCH_HOST, "backup", "data"]),
        ("newest_files.py", [f"{NO_SUCH_HOST}:*", "fetched"]),
        ("recursive_pull.py", [f"{NO_SUCH_HOST}:tank/a", "vault/a"]),
        ("database_dump.py", ["database", f"{NO_SUCH_HOST}:dump"]),
        ("async_progress.py", ["60", "data", f"{NO_SUCH_HOST}:"]),
    ):
        ran = world.example(name, *arguments)
        assert ran.code == 3, (name, ran)
        assert NO_SUCH_HOST in ran.err and "Traceback" not in ran.err


WITHOUT_PAUSES = """
import runpy, sys, time
sleep = time.sleep  # by which a thread of pscp may wait, too
time.sleep = lambda s: print(f"a pause of {s} s") if s >= 1 else sleep(s)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_nightly_push_tries_a_host_that_is_not_there_again(world: World) -> None:
    program = str(ROOT / "examples" / "nightly_push.py")
    ran = world.run("python3", "-c", WITHOUT_PAUSES, program, "data", f"{NO_SUCH_HOST}:")
    assert ran.code == 3 and NO_SUCH_HOST in ran.err and "Traceback" not in ran.err
    assert ran.out.splitlines()[-2:] == ["a pause of 60 s", "a pause of 600 s"]


NIGHTS: tuple[tuple[str, list[str], list[str], str], ...] = (
    # program, its arguments, what is the same every night: here, there
    ("copy_folder.py", ["data", "host:nightly/"], ["data"], "nightly"),
    ("nightly_push.py", ["data", "host:nightly"], ["data"], "nightly"),
    ("several_copies.py", ["host", "nightly", "a.txt", "data", "x.log"],
     ["a.txt", "data", "x.log"], "nightly"),
    ("database_dump.py", ["good", "host:backup/dump"], [], "backup"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "names", "to"), NIGHTS)
def test_it_gives_the_same_place_every_night(
    world: World, name: str, arguments: list[str], names: list[str], to: str
) -> None:
    """USERS A2: the folder there is made the first night, and nothing is nested or left over."""
    (world.here / "x.log").write_text("a log")
    before = {path.name for path in world.there.iterdir()}
    for night in range(2):
        change(world.here / "data", night)
        ran = world.example(name, *arguments)
        assert ran.code == 0, ran.err
        assert {path.name for path in world.there.iterdir()} == {*before, to}
        found = sorted(path.name for path in (world.there / to).iterdir())
        assert found == (names or ["dump"])
        for each in names:
            assert_same_tree(world.here / each, world.there / to / each)


def test_nightly_push_names_what_failed_and_nothing_for_programs(world: World) -> None:
    ran = world.example("nightly_push.py", "nothing-here", "host:nightly")
    assert ran.code == 1 and "nothing-here" in ran.err and "raises=" not in ran.err


def test_nightly_push_to_the_home_folder(world: World) -> None:
    assert world.example("nightly_push.py", "data", "host:") == (0, "", "")
    assert_same_tree(world.here / "data", world.there / "data", modes=True, times=True)


def test_copy_folder(world: World) -> None:
    ran = world.example("copy_folder.py", "data", "host:backup")
    assert (ran.code, ran.out[:24]) == (0, "3 copied, 0 were there, ")
    assert "200,015 of 200,015 bytes" in ran.err
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)
    again = world.example("copy_folder.py", "data", "host:backup")
    assert again.out.startswith("0 copied, 3 were there")


def test_several_copies(world: World) -> None:
    ran = world.example("several_copies.py", "host", "logs", "a.txt", "data")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "'a.txt': 1 copied, 0 there already",
        "'data': 3 copied, 0 there already",
        "'logs': 1 copied, 0 there already",
    ]
    assert_same_tree(world.here / "data", world.there / "logs" / "data")
    assert (world.here / "day-1.log").read_text() == "day-1.log there"


def test_several_copies_reports_what_was_not_copied(world: World) -> None:
    (world.here / "data" / "gone").symlink_to("nowhere")
    ran = world.example("several_copies.py", "host", "logs", "data")
    assert ran.code == 1
    assert "  UnsupportedFile: 'data/gone': is a dangling link (to nowhere)\n" in ran.err
    assert (world.there / "logs" / "data" / "report.txt").exists()


def test_nightly_push_tells_what_is_missing(world: World) -> None:
    (world.there / "backup" / "data" / "report.txt").mkdir(parents=True)
    ran = world.example("nightly_push.py", "data", "host:backup")
    assert (ran.code, ran.out) == (1, "")
    assert "data/report.txt: is a folder at the destination" in ran.err


def test_newest_files(world: World) -> None:
    def fetched() -> list[str]:
        ran = world.example("newest_files.py", "host:logs/*.gz", "fetched")
        assert ran.code == 0, ran.err
        return ran.out.splitlines()

    assert fetched() == ["day-1.gz", "day-2.gz"]
    assert fetched() == []
    (world.there / "logs" / "day-2.gz").write_text("rotated")
    (world.there / "logs" / "day-3.gz").write_text("new")
    assert fetched() == ["day-2.gz", "day-3.gz"]
    assert (world.here / "fetched" / "day-2.gz").read_text() == "rotated"


def test_database_dump(world: World) -> None:
    dump = world.there / "backup" / "database.dump"
    failed = world.example("database_dump.py", "bad", "host:backup/database.dump")
    assert (failed.code, failed.err) == (1, "pg_dump failed with 1: nothing was stored\n")
    assert [path.name for path in dump.parent.iterdir()] == []
    ran = world.example("database_dump.py", "good", "host:backup/database.dump")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert dump.read_text() == "dumped good\n"


def test_async_progress(world: World) -> None:
    late = world.example("async_progress.py", "0", "data", "host:backup/")
    assert (late.code, late.err) == (1, "not all of it in time; the next run goes on from here\n")
    ran = world.example("async_progress.py", "60", "data", "host:backup/")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("200,015 of 200,015 bytes\n")
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)


def test_a_job_of_slurm(world: World) -> None:
    # Slurm is not needed to see what its job does: the only node is this machine.
    put_program(world.programs / "srun", ["env"])
    put_program(world.programs / "dask", [sys.executable, "-m", "dask"])
    job = str(ROOT / "examples" / "cluster.slurm")
    assert world.run("bash", job).code == 2
    ran = world.run("bash", job, "-a", "data", "host:backup/")
    assert ran.code == 0 and ran.err.count("worker ") == 1, ran.err
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)
    assert list(Path.home().glob(".pscp-slurm-*")) == []
    # Without workers the job ends, and says why.
    put_program(world.programs / "srun", ["sh", "-c", "echo no dask here >&2; exit 2"])
    ran = world.run("bash", job, "-a", "data", "host:backup/")
    assert ran.code == 3 and "no dask here\n" in ran.err, ran.err
    assert list(Path.home().glob(".pscp-slurm-*")) == []


def test_two_sites(world: World) -> None:
    north, south = world.here / "north", world.there / "south"
    for folder in (north / "runs", south / "results"):
        shutil.copytree(world.here / "data", folder)
    (north / "runs" / "still-written").write_text("a beginning")
    for name in ("report.txt", "half-done.tmp", "photos/1.jpg"):
        os.utime(north / "runs" / name, (0, 0))
    text = (ROOT / "examples" / "two_sites.toml").read_text("utf-8")
    for old, new in (
        ("south:/lustre", f"south:{south}"), ("/lustre", str(north)), ("/var/lib", str(world.here)),
        ("tls://scheduler.north.example.org:8786", "local:2"), (".south.example.org", ""),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (world.here / "prometheus/node-exporter").mkdir(parents=True)
    file = world.here.parent / "jobs.toml"  # ssh_config is beside it
    file.write_text(text)
    program = "import sys; from pscp.cli.run import main; sys.exit(main())"
    ran = world.run("python3", "-c", program, "--config", str(file))
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert not (south / "runs" / "still-written").exists()
    assert_same_tree(world.here / "data", south / "runs", modes=True)
    assert_same_tree(south / "results", north / "results", modes=True, times=True)


def test_nightly_push_tries_a_file_that_changed_again(world: World) -> None:
    """A15: what can pass later is tried later."""
    program = (
        "import runpy, sys, time, pscp\n"
        "push = runpy.run_path(sys.argv[1])\n"
        "failed = pscp.Result(failures=(pscp.Failure('a', sys.argv[2], 'why'),))\n"
        "from pscp.calls import api; pscp.copy = lambda *a, **k: api.checked(failed)\n"
        "try: push['push']('a', 'host:')\n"
        "except pscp.CopyError as error: print(error.retry)\n"
    )
    path = str(ROOT / "examples" / "nightly_push.py")
    for kind, retry in (("SourceChanged", "True\n"), ("SystemFailure", "False\n")):
        assert world.run("python3", "-c", program, path, kind).out == retry
