"""pscp-run as it is called: its file, what it lists and explains, and what that does.

Not here: what may stand in the file (../unit/test_jobs_config.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.private import PrivateServer

from e2e.ways import Ran
from e2e.world import World, make_world, put_program

PSCP_RUN = (sys.executable, "-c", "import sys; from pscp.cli.run import main; sys.exit(main())")
OLD_S = 1_000_000_000  # 2001
NAMES = ("one.rec", "two words.rec", "it's; $(touch ran) #3.rec", "-r.rec")


@pytest.fixture
def world(tmp_path: Path, far_home: Path, sshd: PrivateServer) -> Iterator[World]:
    with make_world(tmp_path, far_home, sshd) as made:
        put_program(made.programs / "pscp-run", PSCP_RUN)
        records = made.here / "records [1]"
        records.mkdir()
        for name in NAMES:
            (records / name).write_text(name)
            os.utime(records / name, (OLD_S, OLD_S))
        for folder in ("one", "two words"):
            (made.there / folder).mkdir()
        yield made


def told(world: World, text: str, *words: str) -> Ran:
    (world.here / "jobs.toml").write_text(text)
    return world.run(*PSCP_RUN, "--config", "jobs.toml", *words)


def run_lines(world: World, text: str) -> Ran:
    explained = told(world, text, "--explain")
    assert (explained.code, explained.err) == (0, "")
    ran = world.run("bash", "-u", "-c", explained.out)
    assert not (world.here / "ran").exists(), "a name was run"
    return ran


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_lines_of_explain_do_what_a_job_says(world: World) -> None:
    text = """
        [job.records]
        sources = ["records [[]1]/*.rec", "a.txt"]
        destinations = ["host:one/", "host:two words/"]
        preserve = true
        min-age = "1h"
        retry-for = "1min"
        max-duration = "5min"
        limit = { "08:00-20:00" = "none" }
        after = "remove"
    """
    (world.here / "records [1]" / "young.rec").write_text("young")
    ran = run_lines(world, text)
    assert ran.code == 0, ran.err
    for folder in ("one", "two words"):
        assert names_in(world.there / folder) == sorted(NAMES)
        assert (world.there / folder / NAMES[0]).stat().st_mtime == OLD_S
    assert names_in(world.here / "records [1]") == ["young.rec"]


def test_what_is_not_at_every_destination_is_not_removed(world: World) -> None:
    text = """
        [job.records]
        sources = "records [[]1]/one.rec"
        destinations = ["nowhere.invalid:one/", "host:one/"]
        after = "remove"
    """
    ran = run_lines(world, text)
    assert ran.code == 3 and names_in(world.there / "one") == []
    assert len(names_in(world.here / "records [1]")) == len(NAMES)


def test_a_job_that_moves_its_sources(world: World) -> None:
    text = """
        [job.records]
        sources = "records [[]1]/*"
        destinations = "host:one"
        after = "move sent away"
    """
    ran = run_lines(world, text)
    assert ran.code == 0, ran.err
    assert names_in(world.there / "one") == names_in(world.here / "sent away") == sorted(NAMES)


def test_what_is_there_already_is_not_replaced_by_a_move(world: World) -> None:
    sent, source = world.here / "sent", world.here / "records [1]" / "one.rec"
    sent.mkdir()
    (sent / "one.rec").write_text("of yesterday")
    text = '[job.a]\nsources = "records [[]1]/*"\ndestinations = "host:one"\nafter = "move sent"\n'
    run_lines(world, text)
    assert (sent / "one.rec").read_text() == "of yesterday" and source.read_text() == "one.rec"
    assert names_in(sent) == sorted(NAMES)


def test_what_is_not_copied_is_not_moved(world: World) -> None:
    text = """
        [job.a]
        sources = "records [[]1]/*"
        destinations = "host:one"
        exclude = "two*"
        after = "move sent"
    """
    ran = run_lines(world, text)
    assert ran.code == 0 and names_in(world.there / "one") == sorted({*NAMES} - {"two words.rec"})
    assert names_in(world.here / "records [1]") == sorted(NAMES), "or it is lost to the next run"
    assert (
        f"is moved to {world.here}/sent, and replaces nothing" in told(world, text, "--explain").out
    )


def test_half_a_list_is_none(world: World) -> None:
    job = '[job.{}]\nsources-command = "{}"\ndestinations = "host:{}/"\n'
    lists = (("a", "echo a.txt", "one"), ("b", "echo a.txt; exit 3", "two words"))
    ran = run_lines(world, "".join(job.format(*each) for each in lists))
    assert ran.code != 0 and names_in(world.there / "one") == ["a.txt"]
    assert names_in(world.there / "two words") == []


def nightly(world: World) -> str:
    """Return the job of docs/cron.md with a folder for each night, for this world's ends."""
    page = (Path(__file__).parents[2] / "docs" / "cron.md").read_text()
    blocks: list[str] = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    [text] = blocks
    for name, its in (("/srv/data", "records [[]1]"), ("store1", "host"), ("/vault", "~/one")):
        text = text.replace(name, its)
    # Nights come in less than a second here; on one day they do all the same.
    return text.replace("host:~/", "host:").replace("%S", "%S%N")


def test_a_folder_for_each_night_as_the_docs_have_it(world: World) -> None:
    for linked in (0, len(NAMES)):
        ran = told(world, nightly(world), "--report", "text", "/dev/stdout")
        assert (ran.code, ran.err) == (0, "")
        assert (f"{linked} linked" in ran.out) == bool(linked), ran.out
    *nights, latest = names_in(world.there / "one")
    assert len(nights) == 2 and latest == "latest"
    assert os.readlink(world.there / "one" / "latest") == nights[1]
    one, other = (world.there / "one" / night / "records [1]" / NAMES[0] for night in nights)
    assert one.samefile(other)


def test_a_night_of_the_docs_that_was_cut_leaves_nothing_that_the_source_has_no_more(
    world: World,
) -> None:
    cut = re.sub(r"after-success = .*", 'after-success = "false"', nightly(world))
    assert told(world, cut).code == 1
    assert names_in(world.there / "one" / "new" / "records [1]") == sorted(NAMES)
    (world.here / "records [1]" / NAMES[0]).unlink()
    ran = told(world, nightly(world))
    assert (ran.code, ran.err) == (0, "")
    latest = world.there / "one" / "latest" / "records [1]"
    assert names_in(latest) == sorted(NAMES[1:])


@pytest.mark.parametrize(
    "key",
    [
        'sources-from = "list"',
        'sources-command = "cat list"',
        'sources-command = ["sed", "", "list"]',
    ],
)
def test_lists_of_sources(world: World, key: str) -> None:
    folder = world.here / "records [1]"
    (world.here / "list").write_text("".join(f"{folder.name}/{name}\n" for name in NAMES))
    text = f'[job.a]\n{key}\ndestinations = ["host:one/", "host:two words/"]\n'
    lines = told(world, text, "--explain").out
    for script in ("pscp-run --config ../jobs.toml", lines):  # from another folder
        ran = world.run("bash", "-c", f"cd '{folder}'\n{script}")
        assert ran.code == 0, ran.err
        for far in ("one", "two words"):
            assert names_in(world.there / far) == sorted(NAMES)
            for name in NAMES:
                (world.there / far / name).unlink()


@pytest.mark.parametrize(
    ("before", "source", "made"),
    [
        ("true", "a.txt", ["after success"]),
        ("false", "a.txt", ["failed"]),
        ("true", "none", ["failed"]),
    ],
)
def test_what_comes_before_and_after(
    world: World, before: str, source: str, made: list[str]
) -> None:
    marks = world.here / "marks"
    marks.mkdir()
    text = f"""
        [job.a]
        sources = "{source}"
        destinations = "host:one/"
        before = "{before} && true"
        after-success = ["touch", "{marks}/after success"]
        after-failure = "touch '{marks}'/failed"
    """
    run_lines(world, text)
    assert names_in(marks) == made
    assert names_in(world.there / "one") == (["a.txt"] if made == ["after success"] else [])


def test_a_dry_run_names_keys_and_is_of_pscp_run(world: World) -> None:
    text = """
        [job.records]
        sources = ["records [[]1]", "gone"]
        destinations = "host:"
    """
    ran = told(world, text, "--dry-run")
    assert ran.code != 0 and "use recursive" in ran.err and "archive with everything" in ran.err
    assert all(line.startswith(("pscp-run: ", " ")) for line in ran.err.splitlines()), ran.err


def test_the_jobs_are_listed(world: World) -> None:
    text = """
        [job.records]
        sources = ["records/*.rec", "/b"]
        destinations = ["store1:", "store2:x"]
        [job.tank]
        datasets = "tank/a"
        destinations = "store1:pool/a"
        depends-on = "records"
    """
    ran = told(world, text, "--list")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["job", "sources", "destinations", "depends", "on"],
        ["records", f"{world.here}/records/*.rec,", "/b", "store1:,", "store2:x"],
        ["tank", "tank/a", "store1:pool/a", "records"],
    ]
    chosen = told(world, text, "--list", "t*").out.splitlines()
    assert [line.split()[0] for line in chosen] == ["job", "tank"]
    explained = told(world, text, "--explain", "tank")
    assert explained.out == "# after: records\npscp-zfs --batch tank/a store1:pool/a\n"


def test_who_reads_no_further_is_no_error(world: World) -> None:
    (world.here / "jobs.toml").write_text(
        '[job.a]\nsources = "a.txt"\ndestinations = "host:one/"\n'
    )
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as nobody:
        argv = [*PSCP_RUN, "--config", "jobs.toml", "--explain"]  # a process that is not forked
        done = subprocess.run(
            argv, cwd=world.here, stdout=nobody, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_wrong_use_is_told_in_a_line(world: World) -> None:
    text = '[job.records]\nsources = "a.txt"\ndestinations = "host:one/"\n'
    for words, said in (
        (("record",), "pscp-run: there is no job 'record'\n          did you mean records?\n"),
        (("x*",), "pscp-run: there is no job 'x*'\n          jobs: records\n"),
        (("--list", "-n"), "pscp-run: -n/--dry-run: not allowed with argument --list\n"),
        (("--json",), "pscp-run: --json and --html go with --status\n"),
        (("--if-running", "x"), "pscp-run: --if-running: invalid choice"),
        (("--report", "pdf", "x"), "pscp-run: --report pdf: a report is one of json, text, html\n"),
        (("--report", "text", "x", "--list"), "pscp-run: --report is of jobs that are run\n"),
    ):
        ran = told(world, text, *words)
        assert (ran.code, ran.out) == (2, "") and ran.err.startswith(said), ran.err
    ran = world.run("pscp-run", "--check", "jobs.toml")
    said = "pscp-run: jobs.toml is no job but a file\n          --config jobs.toml has it read\n"
    assert (ran.code, ran.err) == (2, said)
    ran = told(world, f"{text}port = 'x'\nconfi = 'y'\n", "--list")
    file = "jobs.toml"
    assert (ran.code, ran.out, ran.err.splitlines()) == (
        2, "", [
            f"{file}:4: job.records.port: 'x' is not a whole number",
            f"{file}:5: there is no 'job.records.confi'; did you mean config?",
            "pscp-run: nothing was run",
        ],
    )  # fmt: skip
    assert names_in(world.there / "one") == []


def test_where_the_file_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(world.here))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    ran = world.run("pscp-run", "--list")
    assert ran.code == 2 and f"neither {world.here}/.config/pscp/jobs.toml nor /etc" in ran.err
    for name in (".config", "xdg"):
        folder = world.here / name / "pscp"
        folder.mkdir(parents=True)
        (folder / "jobs.toml").write_text(f'[job.{name[-3:]}]\nsources = "h:x"\ndestinations="/"\n')
    assert "fig  h:x" in world.run("pscp-run", "--list").out
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.here / "xdg"))
    assert "xdg  h:x" in world.run("pscp-run", "--list").out


@pytest.mark.parametrize("package", ["pydantic", "jinja2"])
def test_without_a_package_it_says_what_to_install(world: World, package: str) -> None:
    folder = world.here / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys; sys.modules['{package}'] = None")
    ran = world.shell(f"PYTHONPATH={folder} pscp-run --list")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"pscp-run: the Python package {package} is not installed\n"
        f"          {sys.executable} -m pip install {package}\n"
    )
    assert world.shell(f"PYTHONPATH={folder} pscp-run --help; pscp --version").code == 0


def test_a_dry_run_lists_and_copies_nothing(world: World) -> None:
    text = """
        [job.a]
        sources = ["records [[]1]/*.rec", "none*"]
        destinations = ["host:one/", "host:two words/"]
        [job.b]
        sources = "nothing*"
        destinations = "host:one/"
    """
    ran = told(world, text, "--dry-run")
    listed = sorted(f"host:{to}/: {name}" for to in ("one", "two words") for name in NAMES)
    assert (ran.code, sorted(ran.out.splitlines())) == (0, listed), ran.err
    gone = text.replace("job.a", "job.c").replace("job.b", "job.d")
    gone = gone.replace("records [[]1]", "gone")
    ran = told(world, gone + text, "--dry-run")  # what one job lacks ends no other's list
    assert (ran.code, sorted(ran.out.splitlines())) == (1, listed), ran.err
    assert ran.err.count(f"{world.here}/gone: No such file or directory") == 1
    assert names_in(world.there / "one") == names_in(world.there / "two words") == []


def test_a_dry_run_ends_as_the_run_and_leaves_out_what_that_would(world: World) -> None:
    """What depends on a job that would fail was listed; a refused login was 3."""
    text = """
        [job.first]
        sources = "gone"
        destinations = "host:one/"
        [job.second]
        sources = "a.txt"
        destinations = "host:one/"
        depends-on = "first"
    """
    refused = 'ssh-option = "PreferredAuthentications=none"'
    no_host = 'destinations = "no-such-host.invalid:"'
    for given, code, would in (
        (text, 1, "fail"),
        (text.replace("gone", f'a.txt"\n{refused}\n#"'), 2, "be misconfigured"),
        (text.replace('destinations = "host:one/"', no_host, 1), 1, "fail"),
    ):
        ran = told(world, given, "--dry-run", "second")
        assert (ran.code, ran.out) == (code, ""), ran.err
        what = f"would not be run: first, which it depends on, would {would}\n"
        assert f"pscp-run: second: {what}" in ran.err
        ran = told(world, given, "second")
        assert ran.code == code and "not run: first, which it depends on, " in ran.err


def test_a_dry_run_knows_what_would_wait_and_what_would_be_removed(world: World) -> None:
    text = """
        [job.a]
        sources = "records [[]1]/*.rec"
        destinations = ["host:one/", "host:two words/"]
        settled-for = "1d"
    """
    path = f"{world.here}/records [1]/"
    first, *_ = sorted(NAMES)
    for _ in range(2):  # it keeps nothing of what it has seen
        ran = told(world, text, "--dry-run")
        assert (ran.code, ran.out) == (7, ""), ran.err
        assert f"pscp-run: a: 4 files would wait for the next run: {path}{first}, " in ran.err
        assert ran.err.rstrip().endswith(", and 1 more")
    assert told(world, text).code == 7
    (world.here / "records [1]" / "new.rec").write_text("new")
    removes = text.replace("settled-for", "min-age") + 'after = "remove"\n'
    ran = told(world, removes, "--dry-run")
    listed = sorted(f"host:{to}/: {name}" for to in ("one", "two words") for name in NAMES)
    assert (ran.code, sorted(ran.out.splitlines())) == (0, listed), ran.err
    assert f"pscp-run: a: 1 file would wait for the next run: {path}new.rec\n" in ran.err
    what = "would be removed at the source, once every destination has them"
    assert ran.err.count(f"pscp-run: a: 4 files {what}: {path}") == 1
    one = told(world, removes.replace("*.rec", f"{first}"), "--dry-run")
    assert f"1 file {what.replace('them', 'it')}: {path}{first}\n" in one.err
    moves = removes.replace("remove", "move sent")
    ran = told(world, moves, "--dry-run")
    assert f"4 files would be moved to {world.here}/sent, once every " in ran.err
    assert "removed" not in ran.err
    assert len(names_in(world.here / "records [1]")) == 5 and not (world.here / "sent").exists()


def test_a_report_to_stdout(world: World) -> None:
    text = '[job.a]\nsources = "none*"\ndestinations = "host:one/"\n'
    ran = told(world, text, "--report", "json", "-")
    assert json.loads(ran.out)["exit_code"] == 7 and not (world.here / "-").exists()


def test_a_dry_run_writes_no_manifest(world: World) -> None:
    text = '[job.a]\nsources = "a.txt"\ndestinations = "host:one/"\nmanifest = "m"\n'
    ran = told(world, text, "--dry-run")
    assert (ran.code, ran.out, (world.here / "m").exists()) == (0, "a.txt\n", False), ran.err
    ran = run_lines(world, text)
    assert ran.code == 0 and "a.txt" in (world.here / "m").read_text(), ran.err


def test_a_pattern_that_matches_one_file_makes_a_folder(world: World) -> None:
    text = '[job.a]\nsources = "a.tx*"\ndestinations = "host:new"\n'
    ran = told(world, text, "--dry-run")
    assert (ran.code, ran.out.splitlines()) == (0, ["new/a.txt"]), ran.err
    assert run_lines(world, text).code == 0 and names_in(world.there / "new") == ["a.txt"]


def test_reports_are_of_all_that_was_run(world: World) -> None:
    job = 'sources = "none*"\ndestinations = "host:one/"\n'
    reports = ("--report", "json", "r.json", "--report", "text", "r.txt")
    ran = told(world, f"[job.a]\n{job}[job.b]\n{job}", *reports)
    assert ran.code == 7, ran.err
    runs = json.loads((world.here / "r.json").read_text())["runs"]
    assert [run["job"] for run in runs] == ["a", "b"]
    assert (world.here / "r.txt").read_text().count("exit code 7") == 2
    (world.here / "log").write_text("before\n")
    run = "pscp-run --config jobs.toml --report json"
    world.run("sh", "-c", f"{run} /dev/stdout >>log; {run} /dev/stderr 2>&1 | cat >piped")
    piped, logged = ((world.here / name).read_text() for name in ("piped", "log"))
    assert len(json.loads(piped)["runs"]) == 2
    assert logged.startswith("before\n{") and len(json.loads(logged[7:])["runs"]) == 2


def test_what_to_run_next_is_named_for_any_folder(world: World) -> None:
    text = '[job.down]\nsources = "a.txt"\ndestinations = "no-such-host.invalid:"\n'
    ran = told(world, text, "--report", "html", "page.html", "--report", "text", "all.txt")
    said = f"pscp-run --config {world.here}/jobs.toml --check down tells what does not answer"
    assert ran.code == 3 and said in ran.err, ran.err
    assert said in (world.here / "page.html").read_text()
    assert said in (world.here / "all.txt").read_text()
