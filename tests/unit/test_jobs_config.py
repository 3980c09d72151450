"""jobs.toml: what becomes of a sound one, and how each mistake in another is told.

Not here: texts made at random (test_jobs_fuzz.py), the lines of --explain run
(../e2e/test_run_command.py).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pscp import UsageError
from pscp.jobs.toml import schema
from pscp.jobs.toml.config import load
from pscp.jobs.toml.job import Job, Span
from pscp.options.arguments import make_parser
from pscp.toml.positions import lines_of
from pscp.zfs.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
SOUND = '[job.a]\nsources = "/s"\ndestinations = "h:d"\n'


def test_a_key_may_need_another(tmp_path: Path) -> None:
    """Each key was checked alone, so that one that needs -a was refused also beside it."""
    text = SOUND + 'archive = true\nchown = "0:0"\nlink-dest = "../a"\n'
    assert jobs_of(tmp_path, text)["a"]


def jobs_of(folder: Path, text: str) -> dict[str, Job]:
    file = folder / "jobs.toml"
    file.write_text(text, "utf-8")
    return load(str(file)).jobs


def job_of(folder: Path, text: str) -> Job:
    [job] = jobs_of(folder, text).values()
    return job


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    """The lines that are named, each with what is wrong there."""
    file = folder / "jobs.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        load(str(file))
    found = []
    for line in caught.value.message.split("\n"):
        match = re.fullmatch(rf"{re.escape(str(file))}:([0-9]+): (.+)", line)
        assert match is not None, line
        found.append((int(match[1]), match[2]))
    return found


# --- sound files


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "jobs.md").read_text(), re.M | re.S)
    job = job_of(tmp_path, text)
    assert (job.name, job.sources) == ("recordings", ("/srv/recordings/*.rec",))
    assert job.destinations == ("store1:/vault/", "store2:/vault/")
    assert job.options.config_file == "/etc/pscp/ssh_config"
    assert job.limit == (Span("08:00", "20:00", 20_000),)
    assert (job.min_age_s, job.after, job.options.batch) == (600, "remove", True)


def test_every_key_is_taken(tmp_path: Path) -> None:
    """An example of each, and each option of pscp alone where it may be alone."""
    text = """
        [defaults]
        max-duration = "6h"
        retry-for = 7200
        if-running = "wait"
        [job.a]
        sources-from = "list"
        destinations = ["h1:d", "h2:d"]
        limit = { "22:00-06:00" = "none", "08:00-20:00" = 500, else = "1G" }
        settled-for = "5min"
        after = "move sent"
        before = "a | b"
        after-success = ["c", "d e"]
        after-failure = ["f"]
        max-hosts = 2
        report = { json = "r.json", html = "/r.html" }
        metrics = "m"
        ping = "https://example.org/ping"
        manifest = "{destination}.json"
        sign = "~/key"
        keep-history = "30d"
        depends-on = "b"
        [job.b]
        sources-command = "find /x"
        destinations = "h:d"
        manifest = "list.json"
        manifest-format = "bagit"
        sign = "~/key"
    """
    first, second = jobs_of(tmp_path, text).values()
    assert first.limit == (Span("22:00", "06:00", None), Span("08:00", "20:00", 500))
    assert first.options.limit_kbit_s == 1_000_000
    assert (first.max_duration_s, first.retry_for_s, first.settled_for_s) == (21600, 7200, 300)
    assert first.sources_from == str(tmp_path / "list")
    assert (first.after, first.move_to) == ("move", str(tmp_path / "sent"))
    assert (first.before, first.after_success) == ("a | b", ("c", "d e"))
    assert first.report == (("json", str(tmp_path / "r.json")), ("html", "/r.html"))
    assert first.keep_history_s == 30 * 86400 and first.ping == "https://example.org/ping"
    assert (first.if_running, first.depends_on, first.max_hosts) == ("wait", ("b",), 2)
    assert second.sources_command == ("/bin/sh", "-c", "find /x")
    assert second.options.manifest == str(tmp_path / "list.json")
    assert second.options.sign == str(Path.home() / "key")


def test_every_option_of_pscp_is_a_key_or_refused() -> None:
    longs = {name for action in make_parser()._actions for name in action.option_strings}
    of_other_kinds = {"help", "version", "measure", "save", "clean", "yes", "list-connections"}
    of_other_kinds |= {"fan-out", "force"}  # a job with several destinations is one
    for name in (name[2:] for name in longs if name.startswith("--")):
        known = name in schema.OPTIONS or name in schema.OWN or name in schema.REFUSED
        assert known != (name in {*of_other_kinds, "disconnect"}), name


def test_options_are_those_of_the_command_line(tmp_path: Path) -> None:
    text = SOUND + (
        "archive = true\nno-resume = true\nconnections = 4\nchunk-size = '8M'\nport = '22'\n"
        "bind = ['127.0.0.1', '::1']\nexclude = '*.tmp'\ninclude = ['a', 'b']\nipv4 = true\n"
        "delete = false\nbatch = false\nssh-option = 'A=-oB'\ncpus = 0\n"
    )
    options = job_of(tmp_path, text).options
    assert options.recursive and not options.resume and options.connections == 4
    assert (options.chunk_bytes, options.port, options.address_family) == (8 << 20, 22, 4)
    assert options.bind == ("127.0.0.1", "::1") and options.cpus == (0,)
    assert options.filters == (("exclude", "*.tmp"), ("include", "a"), ("include", "b"))
    assert not options.delete and not options.batch and options.ssh_options == ("A=-oB",)


def test_what_a_job_says_goes_before_its_host_and_that_before_the_defaults(tmp_path: Path) -> None:
    text = """
        defaults = { port = 1, timeout = 10, archive = true, min-age = 60, compress = true }
        [host.h1]
        port = 2
        jump = "j"
        [host.other]
        port = 9
        [job.a]
        sources = "/s"
        destinations = ["u@h1:d", "h2:d", "ssh://h1:77/d"]
        timeout = 20
        compress = false
        [job.z]
        datasets = "tank/a"
        destinations = "h1:pool/b"
        [job.y]
        datasets = "other:tank/a"
        destinations = "pool/b"
    """
    first, second, third = jobs_of(tmp_path, text).values()
    there = first.chosen("u@h1:d").options
    assert (there.port, there.timeout_s, there.jump) == (2, 20, "j")
    assert first.chosen("h2:d").options.port == 1 and first.by_host.keys() == {"h1"}
    assert first.chosen("ssh://h1:77/d").options == there and there.archive
    assert not there.compress and first.min_age_s == 60
    assert second.min_age_s == 0 and not second.options.archive  # they are for files
    assert second.chosen("h1:pool/b").options.port == 2
    assert third.chosen("pool/b").options.port == 9


def test_a_job_of_ipv6_goes_before_a_default_of_ipv4(tmp_path: Path) -> None:
    """They were two mistakes together, though the job's word is the nearer one."""
    texts = ("defaults.ipv4 = true\n[host.h]\nport = 2\n", "[host.h]\nipv4 = true\n")
    for text in texts:
        job = jobs_of(tmp_path, f"{text}{SOUND}ipv6 = true\n")["a"]
        assert job.chosen("h:d").options.address_family == 6
        job = jobs_of(tmp_path, f"{text}{SOUND}ipv6 = false\n")["a"]
        assert job.chosen("h:d").options.address_family == 4


def test_datasets(tmp_path: Path) -> None:
    text = """
        [job.z]
        datasets = ["tank/a", "tank/b/c"]
        destinations = ["h:pool/"]
        recursive = true
        snapshot-name = "n-{time}"
        keep-last = 3
        set = "compression=lz4"
    """
    job = job_of(tmp_path, text)
    assert job.replications("h:pool/") == (("tank/a", "h:pool/a"), ("tank/b/c", "h:pool/c"))
    assert job.settings == Settings(
        recursive=True, snapshot_name="n-{time}", keep_last=3, set_properties=("compression=lz4",)
    )
    assert not job.options.recursive


def test_paths_begin_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir("/")
    text = """
        [job.a]
        sources = ["x/*.rec", "./a:b", "~/y", "/z"]
        destinations = "h:relative/"
        identity = ["key", "~/.ssh/key"]
        config = "none"
        program = "ssh"
        backup = true
        backup-dir = "old"
        [job.pull]
        sources = "h:relative"
        destinations = "in"
        program = "bin/ssh"
        [job.whole]
        relative = true
        sources = ["d/e", "/f"]
        destinations = "h:"
    """
    first, pull, whole = jobs_of(tmp_path, text).values()
    here = str(tmp_path)
    assert first.sources == (f"{here}/x/*.rec", f"{here}/./a:b", "/home/me/y", "/z")
    assert first.destinations == ("h:relative/",)
    assert first.options.identities == (f"{here}/key", "/home/me/.ssh/key")
    assert (first.options.config_file, first.options.program) == ("none", "ssh")
    assert first.options.backup_dir == "old"
    assert (pull.sources, pull.destinations) == (("h:relative",), (f"{here}/in",))
    assert pull.options.program == f"{here}/bin/ssh"
    assert whole.sources == (f"{here}/./d/e", "/f")


def test_patterns_come_from_files_at_their_places(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# no\n*.a\n+ *.b\n")
    job = job_of(tmp_path, SOUND + "include = 'x'\nexclude-from = 'list'\nexclude = '*'\n")
    assert job.options.filters == (
        ("include", "x"), ("exclude", "*.a"), ("include", "*.b"), ("exclude", "*"),
    )  # fmt: skip


# --- mistakes


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "there is no job"),
        ("[jobs.a]\n", 1, "did you mean job?"),
        ("[job]\na = 5\n", 2, "job.a: must be a table"),
        ("job = 5\n", 1, "job: must be a table"),
        ("\n[job.'a b']\nsources='/s'\ndestinations='h:'\n", 2, "'a b': a job's name"),
        ("[job.a]\nx = \n", 2, "Invalid value"),
        ("[job.a]\n[job.b]\n[job.a]\n", 3, "twice"),
        ("[job.a]\n\n\nx", 4, "Expected '='"),
        (SOUND + "x = 1" + "0" * 5000, 1, "digits"),
        (SOUND + "port = 0x1" + "0" * 5000, 4, "digits"),
        (SOUND + "desinations = 'h:'", 4, "no 'job.a.desinations'; did you mean destinations?"),
        (SOUND + "min_age = 5", 4, "did you mean min-age?"),
        (SOUND + "host.x = 5", 4, "there is no 'job.a.host'"),
        (SOUND + "check = true", 4, "check makes no sense in a job: it shows"),
        (SOUND + "list-connections = true", 4, "it is for the command line"),
        (SOUND + "remove-source-files = true", 4, 'after = "remove" does it'),
        ("[defaults]\nsources = '/s'\n" + SOUND, 2, "it belongs to a job"),
        ("[host.h]\narchive = true\n" + SOUND, 2, "it belongs to a job"),
        ("[host.h]\nmin-age = 5\n" + SOUND, 2, "it belongs to a job"),
        (SOUND + "archive = 'yes'", 4, "job.a.archive: must be true or false"),
        (SOUND + "connections = true", 4, "must be a text or a whole number"),
        (SOUND + "connections = 1000", 4, "1 to 256, not 1000"),
        (SOUND + "jump = 5", 4, "jump: must be a text"),
        ("[job.a]\nsources='/s'\ndestinations='h:{date}/'", 3, "{date} is for the names of"),
        (SOUND + "archive = true\nlink-dest = ['../a', '../{run}']", 5, "{run} is for the names"),
        (SOUND + "backup-dir = '../{job}'", 4, "{job} is for the names of"),
        (SOUND + "after = 'move /sent/{date}'", 4, "{date} is for the names of"),
        (SOUND + "identity = [\n'a',\n5,\n]", 6, "identity: must be a text"),
        (SOUND + "identity = '-'", 4, "there is no standard input"),
        (SOUND + "identity = '~nobody-at-all/x'", 4, "no such user"),
        (SOUND + "exclude-from = 'none'", 4, "No such file"),
        (SOUND + "ipv4 = true\nipv6 = true", 4, "contradict"),
        (SOUND + "cluster = 'local'", 4, "cluster: 'local' is not a cluster"),
        (SOUND + "min-age = '1y'", 4, "min-age: '1y' is not a time"),
        (SOUND + "min-age = true", 4, "or a whole number"),
        (SOUND + "keep-history = '999999999d'", 4, "too much"),
        (SOUND + "max-hosts = 0", 4, "must be greater than or equal to 1"),
        (SOUND + "limit = 'fast'", 4, "limit: 'fast' is not a rate"),
        (SOUND + "limit = {'08:00' = 1}", 4, "'08:00' must be a time of day"),
        (SOUND + "limit = {'08:00-24:01' = 1}", 4, "must be a time of day"),
        (SOUND + "limit = {'08:00-08:00' = 1}", 4, "ends when it begins"),
        (SOUND + "[job.a.limit]\n'22:00-06:00' = 1\n'05:59-07:00' = 1", 6, "overlap"),
        (SOUND + "limit.'00:00-24:00' = 1\nlimit.'12:00-13:00' = 1", 5, "overlap"),
        (SOUND + "after = 'delete'", 4, '"keep", "remove" or "move DIR"'),
        (SOUND + "after = 'move '", 4, '"keep", "remove" or "move DIR"'),
        (SOUND + "before = []", 4, "before: is empty"),
        (SOUND + "before = ['a', 5]", 4, "before: must be a text"),
        (SOUND + "if-running = 'kill'", 4, "if-running: must be 'skip', 'wait' or 'fail'"),
        (SOUND + "ping = 'ftp://x/'", 4, "URL scheme should be"),
        (SOUND + "ping = 'http://x:0x/'", 4, "must be a valid URL"),
        (SOUND + "report = 'x'", 4, 'report: must be a table, such as { html = "x" }'),
        (SOUND + "report = 'x.json'", 4, 'must be a table, such as { json = "x.json" }'),
        (SOUND + "report = 5", 4, "report: must be a table"),
        (SOUND + "report = { pdf = 'x' }", 4, "report: 'pdf' must be 'json', 'text' or 'html'"),
        (SOUND + "report = { html = 5 }", 4, "report: must be a text"),
        (SOUND + "chown = '0:0'", 4, "chown needs archive"),
        (SOUND + 'link-dest = "a\\u0000b"', 4, "NUL"),  # and it is not called empty as well
        (SOUND + "link-dest = '../a'", 4, "link-dest needs recursive or archive"),
        (SOUND + "sign = 'k'", 4, "sign says nothing without manifest"),
        (SOUND.replace('"h:d"', '["h:d", "i:d"]') + "manifest = 'm'", 4, "put {destination} into"),
        (SOUND.replace('"h:d"', '["h:d", "h:/d"]') + "manifest = '{destination}'", 4, "of its own"),
        (SOUND + "depends-on = 'b'", 4, "there is no job 'b'"),
        (SOUND + "depends-on = ['a']", 4, "depends-on goes in a circle: a needs a"),
        (SOUND + "datasets = 'tank/a'", 4, "sources and datasets do not go together"),
        (SOUND + "raw = true", 4, "raw is for datasets"),
        (SOUND + "after = 'remove'\narchive = true\ndelete = true", 6, "one of delete and after"),
        (SOUND + "after = 'remove'\nverify = 'none'", 5, "after does not go with verify none"),
        (SOUND + "min-age = 90\nmax-age = 60", 5, "min-age is more than max-age"),
        ("[job.a]\ndestinations = 'h:'\n", 1, "has nothing to copy"),
        ("[job.a]\nsources = '/s'\n", 1, "has no destinations"),
        ("[job.a]\nsources = []\ndestinations = 'h:'", 2, "sources: is empty"),
        ("[job.a]\nsources = '/s'\ndestinations = ['h:', '']", 3, "destinations: is empty"),
        ("[job.a]\nsources = '/s'\ndestinations = '/d'", 3, "both on this machine"),
        ("[job.a]\nsources = '/s'\ndestinations = ['h:a',\n'-x:b']", 4, "cannot start with"),
        ("[job.a]\nsources = '/s'\ndestinations = ['h:a',\n'h:a']", 4, "is named twice"),
        (
            "[job.a]\nsources='/s'\narchive = true\ndelete = true\ndestinations = ['h:a', 'h:a/b']",
            5, "h:a/b lies in h:a",
        ),
        (
            "[job.a]\nsources='/s'\nbackup-dir = '../old'\ndestinations = ['h:a', 'h:b']",
            4, "backup-dir: the backups of h:a and those of h:b would be in one folder",
        ),
        ("[job.a]\nsources = ['h:a', 'i:b']\ndestinations = '/d'", 3, "different hosts"),
        (
            "[job.a]\nsources = 'h:a'\ndestinations = '/d'\nafter = 'move /sent'", 4,
            "for sources on this machine; after = \"remove\" removes them there",
        ),
        (
            "[job.a]\nsources = 'h:a'\ndestinations = ['/d', '/e']\nafter = 'remove'", 4,
            "needs one destination, on this machine; copy them here with it, and on from here",
        ),
        (
            "[job.a]\nsources = 'h:a'\ndestinations = 'i:b'\nafter = 'remove'", 4,
            "needs one destination, on this machine",
        ),
        (SOUND + "relative = true\nafter = 'move /sent'", 4, "relative does not go with a folder"),
        ("[job.a]\nsources='../x'\nrelative = true\ndestinations = 'h:'", 3, 'takes no ".."'),
        (SOUND + "after = 'move /'", 4, "/, where /s is to be moved, has it already"),
        ("[job.a]\nsources='/*'\ndestinations='h:'\nafter = 'move /'", 4, "has it already"),
        ("[job.a]\nsources='/usr'\ndestinations='h:'\nafter='move /usr/x'", 4, "in that source"),
        ("[job.a]\nsources=['/s', '/s/x']\ndestinations='h:'\nafter='remove'", 4, "in another"),
        ("[job.a]\nsources-from='l'\ndestinations='/d'\nafter='move /sent'", 4, "on this machine"),
        ("[job.a]\nsources-from = 'l'\ndestinations = '/d'\ndirect = true", 4, "host to host"),
        (SOUND + "direct = true", 4, "direct is for a copy from host to host"),
        ("[host.h]\ndirect = true\n" + SOUND, 2, "host.h: direct is for a copy from host to host"),
        ("[job.a]\nsources='h:a'\ndestinations='i:b'\ncluster = 'local:2'", 4, "this machine"),
        ("[job.a]\nsources='h:a'\ndestinations='i:b'\ndirect=true\nremote='sftp'", 4, "the agent"),
        ("[job.a]\nsources=['/s', '/t']\ndestinations='h:'\nfiles-from='l'", 4, "one SOURCE"),
        (SOUND + "backup = true\nremote = 'sftp'", 4, "backup needs the agent; leave out remote"),
        ("[job.a]\nsources = \"/a\\u0000\"\ndestinations = 'h:'", 2, "NUL"),
        ("[job.a]\ndatasets = '/x'\ndestinations = 'h:b'", 3, "no name of a dataset"),
        ("[job.a]\ndatasets = ['t/a', 'u/a']\ndestinations = 'h:b/'", 3, "would become h:b/a"),
        ("[job.a]\ndatasets = ['t/a', 'u/b']\ndestinations = 'h:b'", 3, "would become h:b"),
        ("[job.a]\ndatasets = 't'\ndestinations = 'h:b'\nafter = 'remove'", 4, "for files"),
        ("[job.a]\ndatasets = 't'\ndestinations = 'h:b'\nprune = 'dest'", 4, "goes with keep-last"),
        ("[job.a]\ndatasets = 't'\ndestinations = 'h:b'\narchive = true", 4, "for files"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    found = mistakes(tmp_path, text)
    assert [where for where, what in found if said in what] == [line], found
    assert len(found) == 1 or "sources" in text, found


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = """\
[defaults]
identiy = "x"
port = 70000

[job.a]
sources = "/s"
destinations = ["h:a"]
delete = true
max-delete = 5
"connections" = "many"

[job.b]
sources = "/s"
destinations = ["h:b", '-h:c']
depends-on = ["c", "d"]

[job.c]
sources = [
    "/s",   # a comment with " in it
    '''
/t''',
    5,
]
destinations = "h:c"
depends-on = "b"
"""
    found = mistakes(tmp_path, text)
    assert [line for line, _ in found] == [2, 3, 8, 10, 14, 15, 15, 22], found
    assert "defaults.port: must be 1 to 65535, not 70000" in [what for _, what in found]


def test_no_file_is_written_twice(tmp_path: Path) -> None:
    other = SOUND.replace("job.a", "job.b")
    for key in ("manifest", "metrics"):
        [(line, said)] = mistakes(tmp_path, f"defaults.{key} = 'm'\n{SOUND}{other}")
        assert (line, said.endswith(f"m is written by the {key} of job.a as well")) == (5, True)
    jobs_of(tmp_path, f"defaults.manifest = '{{run}}'\n{SOUND}{other}")
    [(line, said)] = mistakes(tmp_path, SOUND + "report.text = 'm'\nreport.json = './m'\n")
    assert (line, said.endswith("the report of job.a as well")) == (4, True)
    [(_, said)] = mistakes(tmp_path, f"defaults.report.text = 'm'\n{SOUND}{other}")
    assert "the report of job.a as well; {job} in its name" in said
    (tmp_path / "folder").mkdir()
    for folder in ("folder", "none/"):
        jobs_of(tmp_path, f"defaults.metrics = '{folder}'\n{SOUND}{other}")


@pytest.mark.parametrize(
    ("typed", "name"),
    [("folder", "folder/a.txt"), ("none/", "none/a.txt"), ("x-{job}.log", "x-a.log")],
)
def test_jobs_share_a_report_by_a_folder_or_by_their_names(
    tmp_path: Path, typed: str, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    other = SOUND.replace("job.a", "job.b")
    jobs = jobs_of(tmp_path, f"defaults.report = {{ text = '{typed}' }}\n{SOUND}{other}")
    second = name.replace("a.txt", "b.txt").replace("-a", "-b")
    assert [job.report for job in jobs.values()] == [
        (("text", str(tmp_path / each)),) for each in (name, second)
    ]


def test_a_host_that_no_job_knows_is_a_mistake(tmp_path: Path) -> None:
    text = f"{SOUND}[host.h]\nport = 2\n[host.H]\nport = 3\n"
    [(line, said)] = mistakes(tmp_path, text)
    assert (line, said) == (6, "host.H: no job sends anything there, or from there")
    [unknown, also] = mistakes(tmp_path, text.replace("[host.h]", "deleet = true\n[host.h]"))
    assert unknown == (4, "there is no 'job.a.deleet'; did you mean delete?") and also == (7, said)
    listed = SOUND.replace("sources", "sources-from")  # which may name it
    assert jobs_of(tmp_path, f"{listed}[host.H]\nport = 3\n")["a"].by_host.keys() == {"H"}


def test_a_name_stands_for_several_hosts(tmp_path: Path) -> None:
    group = '[host.lustre]\nhosts = ["dm1", "dm2"]\nport = 2\n[host.dm1]\nport = 3\n'
    text = SOUND.replace('"h:d"', '["ann@lustre:/in/", "dm1:d", "dm1,dm3:d"]')
    job = jobs_of(tmp_path, text + group)["a"]
    assert job.destinations == ("ann@dm1,ann@dm2:/in/", "dm1:d", "dm1,dm3:d")
    assert [job.chosen(each).options.port for each in job.destinations] == [2, 3, None]
    of_source = text.replace("/s", "lustre:/s").replace(', "dm1:d", "dm1,dm3:d"', "")
    assert jobs_of(tmp_path, of_source + group.partition("[host.dm1]")[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SOUND.replace("h:d", "a,b:d") + 'after = "remove"\n', "after does not go with several"),
        (SOUND.replace("h:d", "a,b:d") + 'plane = "tls"\n', "plane does not go with several"),
        (SOUND.replace("h:d", "a,b:p/d").replace("sources", "datasets"), "a dataset is at one"),
        (SOUND + '[host.h]\nhosts = ["a", "-b"]\n', "cannot start"),
        (SOUND + '[host.h]\nhosts = ["a", "a"]\n', "named twice"),
        (SOUND + '[host.h]\nhosts = ["a,b"]\n', "not a host alone"),
        (
            SOUND.replace("h:d", "a,b:d")
            + '[host.h]\nhosts = ["a", "b"]\n[host.i]\nhosts = ["a", "b"]\n',
            "host.i: host.h is of the same",
        ),
        (SOUND + '[host.h]\nport = 3\n[host.i]\nhosts = ["h"]\n', "host.i: host.h is of the same"),
    ],
)
def test_several_hosts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    assert any(said in each for _, each in mistakes(tmp_path, text)), mistakes(tmp_path, text)


@pytest.mark.parametrize("where", ["[job.a]", "[defaults]", "[host.h]"])
def test_a_cluster_is_for_one_destination(tmp_path: Path, where: str) -> None:
    cluster = f'{where}\ncluster = "local:2"\n'
    text = f"{SOUND}{cluster.removeprefix('[job.a]')}"
    assert jobs_of(tmp_path, text)["a"].chosen("h:d").options.cluster == "local:2"
    several = text.replace('"h:d"', '["h:d", "i:d"]')
    [(_, said)] = mistakes(tmp_path, several)
    assert said == "job.a: cluster does not go with several destinations: make a job for each"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    for content, said in (
        (b"[job.a]\n\xff", f"{file}:2: is not UTF-8"),
        (b"x = " + b"[" * 100_000, f"{file}:1: is nested too deep"),
    ):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=re.escape(said)):
            load(str(file))
    for path, said in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=f"{re.escape(str(path))}: {said}"):
            load(str(path))
    with pytest.raises(UsageError, match="null byte"):
        load("a\0b")


def test_many_mistakes_and_what_lies_very_deep(tmp_path: Path) -> None:
    unknown = "".join(f"a{number} = 1\n" for number in range(2_000))
    assert len(mistakes(tmp_path, SOUND + unknown)) == 100
    deep = "x." * 1_000 + "x = 1"
    [(line, _)] = mistakes(tmp_path, SOUND + deep)
    assert line == 4


def test_lines_of_windows_and_a_mark_at_the_begin(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_bytes(b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode() + b"port = 0\r\n")
    with pytest.raises(UsageError, match=r"jobs\.toml:4: job\.a\.port: must"):
        load(str(file))


def test_the_line_of_each_value() -> None:
    text = '''\
a."b c".'d' = 1 # x = "
[t]
list = [ # [
  "]", """
"
""", { x = [1,
  2] }, [[]],
]
date = 1979-05-27 07:32:00
"\\u00e9\\"" = """a"""""
[[many]]
k = 1
[t.u]
v = 'x'
[t . "w"]
'''
    lines = lines_of(text)
    document = tomllib.loads(text)
    assert {place: line for place, line in lines.items() if place[:1] == ("t",)} == {
        ("t",): 2, ("t", "list"): 3, ("t", "list", 0): 4, ("t", "list", 1): 4, ("t", "list", 2): 4,
        ("t", "list", 2, "x"): 4, ("t", "list", 2, "x", 0): 4, ("t", "list", 2, "x", 1): 4,
        ("t", "list", 3): 4, ("t", "list", 3, 0): 4, ("t", "date"): 9, ("t", 'é"'): 10,
        ("t", "u"): 13, ("t", "u", "v"): 14, ("t", "w"): 15,
    }  # fmt: skip
    assert lines["a", "b c", "d"] == lines["a",] == 1
    assert document["t"]['é"'] == 'a""'
    assert lines_of("x = [\n1\n\t, 2\n]\ny = 3\n")["y",] == 5


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--size-only does not go with --remove-source-files", "size-only does not go with after"),
        ("with -B no password is asked for", "with batch no password is asked for"),
        ("is a folder (use -r)", "is a folder (use recursive)"),
        ("or keep links as links with -a", "or keep links as links with archive"),
        (
            "-r copies folders, -a with everything",
            "recursive copies folders, archive with everything",
        ),
        ("leave out --min-age and --limit", "leave out min-age and limit"),
        ("--check and -n are for the command line", "--check and -n are for the command line"),
        ("try: ssh HOST -p 22 true", "try: ssh HOST -p 22 true"),
    ],
)
def test_a_message_names_keys_of_the_file(typed: str, told: str) -> None:
    assert schema.as_keys(typed) == told


def test_the_letters_of_a_far_program_stay() -> None:
    assert schema.as_keys("zfs: must specify -F --delete", letters=False).endswith("-F delete")
