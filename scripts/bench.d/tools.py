"""The tools that are compared, and the command line of each for a file or a tree.

Every tool gets the same server, key and known_hosts. A copy goes into a folder that exists and
is empty, so that it always lands at FOLDER/NAME. "aes" rows ask for AES-GCM, which pscp asks
for by itself. PSCP_BEFORE names another pscp, of a checkout before a change: it is measured as
"before".

Not here: timing (timing.py) and what is compared with what (regimes.py). Read next: rounds.py.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from links import Link
from stock import Load

PSCP = str(Path(sys.executable).with_name("pscp"))
PIPE = str(Path(sys.executable).with_name("pscp-pipe"))
AES = "aes128-gcm@openssh.com"
STREAMS = 8
LFTP_PARTS = 8  # the user has to choose; one would be no better than sftp


@dataclass(frozen=True)
class Run:
    """One copy to make."""

    link: Link
    load: Load
    out: Path
    push: bool

    def far(self, path: Path | str) -> str:
        return f"{self.link.server.host}:{path}"

    @property
    def ends(self) -> tuple[str, str]:
        """Source and destination as scp takes them."""
        if self.push:
            return str(self.load.path), self.far(f"{self.out}/")
        return self.far(self.load.path), f"{self.out}/"

    @property
    def ssh(self) -> list[str]:
        return [self.link.ssh, "-F", self.link.config]


@dataclass(frozen=True)
class Command:
    argv: list[str]
    stdin: str = ""


@dataclass(frozen=True)
class Tool:
    name: str
    command: Callable[[Run], Command]
    program: str = ""  # what must be installed; "": the name
    single: bool = True  # moves a file as one stream, so a long path makes it slow
    chatty: bool = False  # waits round trips for each file of a tree
    copies: bool = True  # leaves a copy that can be compared

    @property
    def is_there(self) -> bool:
        return shutil.which(self.program or self.name) is not None


def pscp(*options: str, program: str = PSCP) -> Tool:
    def command(run: Run) -> Command:
        tree = ["-a"] if run.load.is_tree else []
        way = ["-S", run.link.ssh] if run.link.ssh != "ssh" else []
        fixed = [program, "-B", "--stats", "-F", run.link.config]
        return Command([*fixed, *options, *way, *tree, *run.ends])

    name = "pscp" if program == PSCP else "before"
    return Tool(" ".join([name, *options]), command, program, single=False)


def forgetful(tool: Tool) -> Tool:
    """Return the tool as it is where nothing is remembered of the host."""

    def command(run: Run) -> Command:
        forget = 'rm -rf "$XDG_STATE_HOME/pscp/hosts"; exec "$0" "$@"'
        return Command(["sh", "-c", forget, *tool.command(run).argv])

    return replace(tool, name=f"{tool.name}, unknown host", command=command)


def scp(name: str, program: str, *options: str) -> Tool:
    def command(run: Run) -> Command:
        tree = ["-rp"] if run.load.is_tree else []
        way = ["-S", run.link.ssh] if run.link.ssh != "ssh" else []
        return Command([program, "-q", "-F", run.link.config, *options, *way, *tree, *run.ends])

    return Tool(name, command, program, chatty=True)


def sftp(name: str, *options: str) -> Tool:
    def command(run: Run) -> Command:
        verb = ("put" if run.push else "get") + (" -rp" if run.load.is_tree else "")
        argv = ["sftp", "-q", "-F", run.link.config, *options, "-b", "-", run.link.server.host]
        return Command(argv, f"{verb} {run.load.path} {run.out}/\n")

    return Tool(name, command, "sftp", chatty=True)


def rsync(name: str, *options: str) -> Tool:
    def command(run: Run) -> Command:
        return Command(["rsync", "-a", "-e", shlex.join([*run.ssh, *options]), *run.ends])

    return Tool(name, command, "rsync")


def rclone_command(run: Run) -> Command:
    server = run.link.server
    place = str(run.out / run.load.name if run.load.is_tree else run.out)
    source = str(run.load.path)
    ends = [source, f":sftp:{place}"] if run.push else [f":sftp:{source}", place]
    access = {
        "host": run.link.address,
        "port": str(server.port),
        "user": server.user,
        "key-file": str(server.folder / "user_key"),
        "known-hosts-file": str(server.folder / "known_hosts"),
    }
    words = [f"--sftp-{name}={value}" for name, value in access.items()]
    return Command(["rclone", "copy", "--config=", *words, *ends])


def lftp_command(run: Run) -> Command:
    server, name = run.link.server, run.load.name
    program = shlex.join([*run.ssh, "-a", "-x"])
    if run.load.is_tree:
        way = "-R" if run.push else ""
        move = f"mirror {way} --parallel={LFTP_PARTS} {run.load.path} {run.out / name}"
    elif run.push:
        move = f"put {run.load.path} -o {run.out / name}"
    else:
        move = f"pget -n {LFTP_PARTS} {run.load.path} -o {run.out / name}"
    settings = f"set sftp:connect-program '{program}'; set net:max-retries 1"
    return Command(
        ["lftp", "-c", f"{settings}; open -u {server.user}, sftp://{server.host} && {move}"]
    )


def tar_command(run: Run) -> Command:
    pack = shlex.join(["tar", "-cf", "-", "-C", str(run.load.path.parent), run.load.name])
    unpack = shlex.join(["tar", "-xf", "-", "-C", str(run.out)])
    reach = shlex.join([*run.ssh, run.link.server.host])
    far = [pack, f"{reach} {shlex.quote(unpack)}"]
    near = [f"{reach} {shlex.quote(pack)}", unpack]
    return Command(["bash", "-c", "set -o pipefail; " + " | ".join(far if run.push else near)])


def mscp_command(run: Run) -> Command:
    return Command(["mscp", "-q", "-F", run.link.config, *run.ends])


SCP = scp("scp", "scp")
SCP_AES = scp("scp aes", "scp", "-c", AES)
RSYNC = rsync("rsync")
RCLONE = Tool("rclone", rclone_command, chatty=True)
TAR = Tool("tar over ssh", tar_command, "tar")
OTHERS = (
    SCP,
    SCP_AES,
    RSYNC,
    rsync("rsync aes", "-c", AES),
    TAR,
    RCLONE,
    sftp("sftp"),
    Tool("lftp", lftp_command, chatty=True),
    Tool("mscp", mscp_command, single=False, chatty=True),
    scp("hpnscp", "hpnscp"),
    *([pscp(program=os.environ["PSCP_BEFORE"])] if "PSCP_BEFORE" in os.environ else []),
)
SFTP_AES = sftp("sftp aes", "-c", AES)
OVER_SFTP = pscp("--remote", "sftp")
OVER_SFTP_8 = pscp("--remote", "sftp", "-c", "8")
ONE_ASYNCSSH = pscp("--transport", "asyncssh", "-c", "1", "--channels", "1")
QUICK_OTHERS = (SCP, SCP_AES, RSYNC, TAR, RCLONE)
QUICK_FAR = (SCP, RSYNC, TAR)  # where each takes several seconds


@dataclass(frozen=True)
class Iperf:
    """iperf3 moving as many bytes; `streams` is asked when it runs.

    Always with -R, where the client receives: a client that sends ends with megabytes in its
    socket buffers that never arrive (20 of 256 MiB at 100 ms). The lab's links are the same
    both ways. Its server keeps the congestion control that a client named for the tests that
    follow, so that it is always named.
    """

    streams: Callable[[], int] = field(default=lambda: STREAMS)
    congestion: str = "cubic"

    def __call__(self, run: Run) -> Command:
        to = ["-c", run.link.address, "-p", str(run.link.iperf_port)]
        # -n counts all streams together.
        size = ["-P", str(self.streams()), "-n", str(run.load.bytes)]
        return Command(["iperf3", "-R", *to, *size, "-C", self.congestion])


def iperf(name: str, make: Iperf) -> Tool:
    return Tool(name, make, "iperf3", single=False, copies=False)


IPERF = iperf(f"iperf3 -P {STREAMS}", Iperf())
ONE_IPERF = iperf("iperf3", Iperf(lambda: 1))


def two_ssh_command(run: Run) -> Command:
    """The load's file over each of two connections side by side; nothing is written."""
    path = shlex.quote(str(run.load.path))
    reach = shlex.join([*run.ssh, "-c", AES, run.link.server.host])
    if run.push:
        one = f"{reach} 'cat >/dev/null' <{path}"
    else:
        one = f"{reach} {shlex.quote('cat ' + path)} </dev/null >/dev/null"
    return Command(["bash", "-c", f"{one} & {one} && wait $!"])


def pipe_command(run: Run) -> Command:
    way = ["-S", run.link.ssh] if run.link.ssh != "ssh" else []
    fixed = [PIPE, "-B", "-F", run.link.config, *way]
    return stream_command(run, [*fixed], [*fixed, "--from"])


def cat_ssh_command(run: Run) -> Command:
    return stream_command(run, run.ssh, run.ssh)


def stream_command(run: Run, to: list[str], back: list[str]) -> Command:
    """cat at one end, cat at the other, and this between them."""
    host = run.link.server.host
    path, out = shlex.quote(str(run.load.path)), shlex.quote(str(run.out / run.load.name))
    if run.push:
        return Command(["bash", "-c", f"{shlex.join([*to, host])} 'cat >{out}' <{path}"])
    return Command(["bash", "-c", f"{shlex.join([*back, host])} 'cat {path}' </dev/null >{out}"])


PIPE_TOOL = Tool("pscp-pipe", pipe_command, PIPE, single=False)
CAT_SSH = Tool("cat | ssh cat", cat_ssh_command, "ssh")
TWO_SSH = Tool("two bare ssh", two_ssh_command, "ssh", single=False, copies=False)


def pscp_help_command(run: Run) -> Command:
    return Command([PSCP, "--help"])


PSCP_HELP = Tool("pscp --help", pscp_help_command, PSCP, copies=False)
