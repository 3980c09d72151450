"""What examples/ has for every night, and docs/cron.md: run as cron and systemd run it.

The files are taken as they are; but what they name below /etc, /srv and /var/lib lies below a
folder of the test, their hosts are one sshd with a home for each of them, and hours are seconds.
That sshd lets the key in as docs/cron.md has it, with "restrict".

Not here: the programs in examples/ (test_examples.py), pscp-run itself (test_jobs.py).
"""

from __future__ import annotations

import configparser
import dataclasses
import http.server
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from conftest import MakeServer, unavailable, until
from servers.private import ADDRESS, PrivateServer

from e2e.conftest import ShellThat
from e2e.test_docs import script
from e2e.ways import Ran, run
from e2e.world import ROOT, put_program
from pscp.jobs.reports.outcome import Outcome
from pscp.jobs.toml.config import load

EXAMPLES = ROOT / "examples"
PAGE = "cron.md"
RUN = script.run_in("tests/e2e/test_nightly.py")
PSCP_RUN = (sys.executable, "-c", "import sys; from pscp.cli.run import main; sys.exit(main())")
HOSTS = ("upstream", "store1", "store2", *(f"site{number:02}" for number in range(1, 21)))
# For the line of a crontab, crontab(5); and for a service, systemd.exec(5).
OF_CRON = {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
OF_SYSTEMD = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}


class Monitor(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__((ADDRESS, 0), Pings)
        self.paths: list[str] = []


class Pings(http.server.BaseHTTPRequestHandler):
    server: Monitor

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclasses.dataclass
class Machine:
    """A machine with the examples on it, and the homes at its hosts."""

    root: Path  # what /etc, /srv and /var/lib lie in
    homes: Path
    programs: Path  # what is in /usr/local/bin
    server: PrivateServer
    monitor: Monitor

    @property
    def home(self) -> Path:
        return self.root / "var/lib/pscp"

    @property
    def reports(self) -> Path:
        return self.root / "srv/reports"

    @property
    def etc(self) -> Path:
        return self.root / "etc/pscp"

    def put(self, name: str, to: str, *changes: tuple[str, str]) -> None:
        """Installs an example; what is changed in it must be there."""
        text = self.moved((EXAMPLES / name).read_text())
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (self.root / to).write_text(text)

    def moved(self, text: str) -> str:
        text = re.sub(r"(?<![\w./])/(?=(etc|srv|var/lib)/)", f"{self.root}/", text)
        text = text.replace("/usr/local/bin", str(self.programs))
        return text.replace("https://hc-ping.com", f"http://{ADDRESS}:{self.monitor.server_port}")

    def reach(self, hosts: Sequence[str]) -> None:
        """Has ssh reach these hosts; nothing listens where the others are."""
        with_site = "".join(
            f"Host {name}\n    Port {self.server.port if name in hosts else 1}\n"
            f"    SetEnv SITE={name}\n" for name in HOSTS
        )  # fmt: skip
        common = f"Host *\n    HostName {ADDRESS}\n    User {self.server.user}\n"
        self.put("ssh_config", "etc/pscp/ssh_config")
        config = self.etc / "ssh_config"
        config.write_text(f"{with_site}{common}{config.read_text()}")

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> Ran:
        its = {"HOME": str(self.home), "LOGNAME": "pscp", "USER": "pscp", **environment}
        return run(argv, env=its, cwd=self.home)

    def cron(self, number: int, text: str = "") -> Ran:
        """Does what cron does with a line of this crontab, or of the example."""
        text = self.moved(text or (EXAMPLES / "crontab").read_text())
        commands = re.findall(r"^[*\d](?:\S*[ \t]+){5}(.+)$", text, re.MULTILINE)
        assigned = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        return self.run(["/bin/sh", "-c", commands[number]], {**OF_CRON, **assigned})

    def shell(self, text: str) -> Ran:
        path = f"{self.programs}:{OF_CRON['PATH']}"
        return self.run(["bash", "-euc", f"cd {ROOT}\n{self.moved(text)}"], {"PATH": path})

    def told(self) -> str:
        files = (self.root / "var/lib/prometheus/node-exporter").glob("*.prom")
        return "".join(path.read_text() for path in files)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    with Monitor() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def machine(
    tmp_path: Path, make_sshd: MakeServer, shell_that: ShellThat, monitor: Monitor
) -> Machine:
    homes, root, programs = (tmp_path / name for name in ("homes", "root", "programs"))
    shell = shell_that(f'cd "{homes}/$SITE" || exit 1; export HOME="$PWD"')
    server = make_sshd(["AcceptEnv SITE", "MaxStartups 100"], shell=shell)  # of twenty servers
    for folder in (
        *(homes / name for name in HOSTS), programs,
        *(root / name for name in (
            "etc/pscp", "etc/systemd/system", "srv/recordings", "srv/mirror", "srv/reports",
            "var/lib/pscp", "var/lib/prometheus/node-exporter",
        )),
    ):  # fmt: skip
        folder.mkdir(parents=True)
    put_program(programs / "pscp-run", PSCP_RUN)
    put_program(programs / "mountpoint", ["sh", "-c", '[ "$1" = -q ] && [ -d "$2" ]', "mountpoint"])
    made = Machine(root, homes, programs, server, monitor)
    authorized = server.folder / "authorized_keys"
    authorized.write_text(f'restrict,from="{ADDRESS}" {authorized.read_text()}')
    key = (server.folder / "host_key.pub").read_text()
    (made.etc / "known_hosts").write_text(f"[{ADDRESS}]:{server.port} {key}")
    shutil.copy(server.folder / "user_key", made.etc / "id_ed25519")
    made.reach(HOSTS)
    (made.home / ".config").mkdir()  # pscp-run looks there before it looks into the real /etc
    (made.home / ".config/pscp").symlink_to(made.etc)
    return made


# --- recordings, from cron and from systemd

AT_ONCE = (('settled-for = "5min"\n', ""), ('retry-for = "2h"', "retry-for = 0"))
IN_SECONDS = (('settled-for = "5min"', 'settled-for = "1s"'), ('retry-for = "2h"', "retry-for = 0"))
SUCCESS = "pscp_job_last_success_timestamp_seconds"


def record(machine: Machine) -> dict[str, bytes]:
    """Makes two recordings that are finished, and one that grows; returns the finished ones."""
    folder = machine.root / "srv/recordings"
    made = {"-one 1.rec": os.urandom(200_000), "two\n.rec": b"two"}
    for name, content in {**made, "growing.rec": b"grows"}.items():
        (folder / name).write_bytes(content)
    for name in made:
        os.utime(folder / name, (1e9, 1e9))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_recordings_from_cron(machine: Machine) -> None:
    finished = record(machine)
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *IN_SECONDS)
    ran = machine.cron(0)
    assert (ran.code, ran.out, ran.err) == (7, "", ""), "nothing was seen unchanged yet"
    assert len(contents(machine.root / "srv/recordings")) == 3
    runs = [ran]

    def is_done() -> bool:
        runs.append(machine.cron(0))
        return runs[-1].code == 0

    until(is_done)
    assert {(each.out, each.err) for each in runs} == {("", "")}  # or cron would send mail
    for store in ("store1", "store2"):
        assert contents(machine.homes / store / "recordings") == finished
    assert list(contents(machine.root / "srv/recordings")) == ["growing.rec"]
    assert f'{SUCCESS}{{destination="store2:recordings/",job="recordings"}}' in machine.told()
    assert "recordings" in (machine.reports / "recordings.html").read_text()
    assert machine.monitor.paths == ["/UUID/start", "/UUID"] * len(runs)
    morning = machine.cron(1)
    assert (morning.code, morning.out, morning.err) == (0, "", "")
    assert "recordings" in (machine.reports / "status.html").read_text()


def test_cron_sends_mail_where_a_store_is_away(machine: Machine) -> None:
    finished = record(machine)
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *AT_ONCE)
    machine.reach([name for name in HOSTS if name != "store2"])
    ran = machine.cron(0)
    assert (ran.code, ran.out) == (3, "") and "store2:recordings/" in ran.err
    assert "Traceback" not in ran.err
    assert contents(machine.homes / "store1/recordings") == finished
    assert len(contents(machine.root / "srv/recordings")) == 3, "it is not at both places"
    assert machine.monitor.paths == ["/UUID/start", "/UUID/3"]
    morning = machine.cron(1)
    assert morning.code == 1 and "store2:recordings/" in morning.out
    machine.reach(HOSTS)
    ran = machine.cron(0)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert contents(machine.homes / "store2/recordings") == finished
    assert list(contents(machine.root / "srv/recordings")) == ["growing.rec"]


def test_a_disk_that_is_not_mounted_is_told(machine: Machine) -> None:
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *IN_SECONDS)
    put_program(machine.programs / "mountpoint", ["false"])
    ran = machine.cron(0)
    assert ran.code == 1 and "before (mountpoint): exit status 1" in ran.err
    assert list(machine.homes.glob("store*/*")) == []


def unit(name: str, machine: Machine | None = None) -> Any:
    """Returns an example as systemd reads it: a key that is given twice must not be."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    text = (EXAMPLES / name).read_text()
    parser.read_string(machine.moved(text) if machine else text)
    return parser


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def test_recordings_from_systemd(machine: Machine) -> None:
    """But for what only systemd itself can do: an account, and a sandbox around it."""
    finished = record(machine)
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *AT_ONCE)
    service = unit("pscp-run.service", machine)["Service"]
    name, _, key = service["LoadCredential"].partition(":")
    credentials = machine.root / "credentials"
    credentials.mkdir()
    Path(key).rename(credentials / name)
    variable, _, value = service["Environment"].partition("=")
    environment = {
        **OF_SYSTEMD,
        "PATH": f"{machine.programs}:{OF_SYSTEMD['PATH']}",
        "NOTIFY_SOCKET": str(machine.root / "notify"),
        "WATCHDOG_USEC": str(15 * 60 * 1_000_000),
        "CREDENTIALS_DIRECTORY": str(credentials),
        variable: value.replace("%S", str(machine.root / "var/lib")),
    }
    before = files_below(machine.root)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(machine.root / "notify"))
        codes = [machine.run(shlex.split(service["ExecStart"]), environment).code for _ in "12"]
        assert codes == [0, int(service["SuccessExitStatus"])]
        assert [manager.recv(99, socket.MSG_DONTWAIT) for _ in codes] == [b"READY=1"] * 2
        with pytest.raises(BlockingIOError):
            manager.recv(99, socket.MSG_DONTWAIT)
    after = shlex.split(service["ExecStopPost"].removeprefix("-"))
    assert machine.run(after, environment).code == 0
    assert "store2:recordings/" in (machine.reports / "status.html").read_text()
    assert contents(machine.homes / "store2/recordings") == finished
    writable = [Path(each.removeprefix("-")) for each in service["ReadWritePaths"].split()]
    writable.append(machine.root / "var/lib" / service["StateDirectory"])
    assert Path(environment["HOME"]) == writable[-1]
    made = files_below(machine.root) - before - {machine.root / "notify"}
    assert made
    for path in made:
        assert any(path.is_relative_to(each) for each in writable), path


def test_the_units_are_sound(tmp_path: Path) -> None:
    timer, service = unit("pscp-run.timer"), unit("pscp-run.service")
    assert service["Service"]["Type"] == "notify"  # which pscp-run speaks
    assert service["Service"]["WatchdogSec"] == "15min"  # more than attempts.MAX_PAUSE_S
    assert (service["Service"]["SuccessExitStatus"], service["Service"]["Restart"]) == ("7", "no")
    if shutil.which("systemd-analyze") is None:
        unavailable("systemd-analyze is not installed")
    for name in ("pscp-run.service", "pscp-run.timer"):
        text = (EXAMPLES / name).read_text().replace("/usr/local/bin/pscp-run", "/bin/true")
        (tmp_path / name).write_text(text)
    for argv in (
        ["verify", "--man=no", *(str(path) for path in tmp_path.glob("pscp-run.*"))],
        ["security", "--offline=true", "--threshold=20", str(tmp_path / "pscp-run.service")],
        ["calendar", timer["Timer"]["OnCalendar"]],
    ):
        done = subprocess.run(
            ["systemd-analyze", "--no-pager", *argv], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert argv[0] != "verify" or done.stderr == ""


# --- the mirror


def publish(folder: Path) -> None:
    (folder / "dists").mkdir(parents=True)
    (folder / "dists/Release").write_text("of today")
    (folder / "pool").mkdir()
    (folder / "pool/a_2.deb").write_bytes(os.urandom(100_000))
    (folder / "latest").symlink_to("pool/a_2.deb")


def mirror(machine: Machine) -> Ran:
    machine.put("mirror.toml", "etc/pscp/jobs.toml", ('retry-for = "1h"', "retry-for = 0"))
    return machine.cron(0)


def test_a_mirror_for_twenty_sites(machine: Machine) -> None:
    upstream = machine.homes / "upstream/mirror"
    publish(upstream)
    for site in ("site01", "site20"):  # others have it for the first time
        (machine.homes / site / "mirror").mkdir()
        (machine.homes / site / "mirror/a_1.deb").write_text("of yesterday")
    ran = mirror(machine)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    for place in (machine.root / "srv/mirror", *machine.homes.glob("site*/mirror")):
        assert_same_tree(upstream, place, modes=True, times=True)
    assert len(list(machine.homes.glob("site*/mirror"))) == 20
    assert machine.told().count(f"\n{SUCCESS}{{") == 21
    assert (machine.reports / "sites.html").exists() and (machine.reports / "sites.json").exists()


def test_half_a_mirror_is_pushed_to_no_site(machine: Machine) -> None:
    publish(machine.root / "srv/mirror")
    machine.reach([name for name in HOSTS if name != "upstream"])
    ran = mirror(machine)
    assert ran.code == 1 and "sites: failed" in ran.err and "fetch" in ran.err
    assert list(machine.homes.glob("site*/*")) == []


# --- docs/cron.md


@pytest.mark.parametrize("block", RUN, ids=[block.name for block in RUN])
def test_a_block_does_what_it_says(block: Any, machine: Machine) -> None:
    finished = record(machine)
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *AT_ONCE)
    put_program(machine.programs / "sudo", ["env"])
    # What would change this machine is noted.
    for name in ("groupadd", "useradd", "chown", "chgrp", "systemctl"):
        note = f'echo "$0 $*" >> {machine.root}/noted'
        put_program(machine.programs / name, ["sh", "-c", note, name])
    globals()[f"check_{block.name}"](machine, block.text, finished)


def check_cron_account(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    assert machine.shell(text).code == 0
    noted = (machine.root / "noted").read_text().splitlines()
    assert [line.split()[0] for line in noted] == ["useradd", "chown"]
    assert "--groups recordings" in noted[0] and f"--home-dir {machine.home}" in noted[0]


def check_cron_group(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    for path in machine.etc.glob("[!k]*"):
        path.unlink()
    assert machine.shell(text).code == 0
    for example, name in (("recordings.toml", "jobs.toml"), ("ssh_config", "ssh_config")):
        assert (machine.etc / name).read_bytes() == (EXAMPLES / example).read_bytes()
    assert (machine.etc / "id_ed25519").stat().st_mode & 0o777 == 0o600
    key = (machine.etc / "id_ed25519.pub").read_text()
    with open(machine.server.folder / "authorized_keys", "w") as authorized:
        authorized.write(f'restrict,from="{ADDRESS}" {key}')
    machine.put("recordings.toml", "etc/pscp/jobs.toml", *AT_ONCE)
    machine.reach(HOSTS)
    assert machine.cron(0).code == 0


def check_cron_first(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    checks, lists, runs = text.splitlines(keepends=True)
    ran = machine.shell(checks)
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["job", "ok", "ok"]
    ran = machine.shell(lists)
    assert ran.code == 0 and ran.out.count("one 1.rec") == 2
    assert not list(machine.homes.glob("store*/*"))
    ran = machine.shell(runs)
    assert ran.code == 0 and "store2:recordings/: done" in ran.err
    assert contents(machine.homes / "store2/recordings") == finished


def check_cron_line(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    example = (EXAMPLES / "crontab").read_text()
    assert all(f"{line}\n" in example for line in text.splitlines())
    ran = machine.cron(0, text)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert contents(machine.homes / "store2/recordings") == finished


def check_cron_systemd(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    assert machine.shell(text).code == 0
    units = machine.root / "etc/systemd/system"
    assert sorted(path.name for path in units.iterdir()) == ["pscp-run.service", "pscp-run.timer"]
    noted = (machine.root / "noted").read_text().splitlines()
    assert noted == ["systemctl daemon-reload", "systemctl enable --now pscp-run.timer"]
    assert unit("pscp-run.timer")["Install"]["WantedBy"] == "timers.target"


def check_cron_as_service(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    given = f'echo "$*" >> {machine.root}/noted; while [ "$1" != -- ]; do shift; done; shift'
    script = f'{given}; CREDENTIALS_DIRECTORY={machine.etc} exec "$@"'
    put_program(machine.programs / "systemd-run", ["sh", "-c", script, "systemd-run"])
    ran = machine.shell(f"{text.strip()} || :")  # nothing was run yet: --status exits with 1
    said = [line.split()[0] for line in ran.out.splitlines()]
    assert ran.code == 0 and said[:3] == ["job", "ok", "ok"] and ran.out.count("never run") == 2
    assert ran.out.count("one 1.rec") == 2 and not list(machine.homes.glob("store*/*"))
    service = unit("pscp-run.service", machine)["Service"]
    [given, *_] = (machine.root / "noted").read_text().splitlines()
    for setting in re.findall(r"-p (\S+)", given):
        key, _, value = setting.partition("=")
        assert service[key] == value, "as the service has it"


def check_cron_morning(machine: Machine, text: str, finished: dict[str, bytes]) -> None:
    ran = machine.shell(text)
    assert ran.code == 1 and ran.out.count("never run") == 2
    assert machine.cron(0).code == 0
    ran = machine.shell(text)
    assert ran.code == 0 and ran.out.count("recordings  store") == 2
    assert "store2:recordings/" in (machine.reports / "status.html").read_text()
    shown = (ROOT / "docs" / PAGE).read_text()
    metrics = set(re.findall(r"\bpscp_job_\w+", shown))
    assert metrics and all(f"\n{name}{{" in machine.told() for name in metrics)


def test_the_table_of_exit_codes_has_each() -> None:
    shown = (ROOT / "docs" / PAGE).read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d) \|", shown, re.MULTILINE)]
    assert sorted(codes) == sorted(each.exit_code for each in Outcome)


def test_the_jobs_that_pages_show_are_sound(tmp_path: Path) -> None:
    found = 0
    for page in script.pages():
        if page.name == "serve.md":  # its files are pscp-serve's: tests/serve/test_serve_docs.py
            continue
        for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.M | re.S):
            (tmp_path / "jobs.toml").write_text(text)
            assert load(str(tmp_path / "jobs.toml")).jobs, page
            found += 1
    assert found
