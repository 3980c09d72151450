"""The tools that are compared, and the command line of each for a file or a tree.

Every tool gets the same server, key and known_hosts. A copy goes into a folder that exists and
is empty, so that it always lands at FOLDER/NAME. "aes" rows ask for AES-GCM, which pscp asks
for by itself.

Not here: what is compared with what (regimes.py). Read next: rounds.py.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from links import Link
from results import Case
from stock import Load

PSCP = str(Path(sys.executable).with_name("pscp"))
PIPE = str(Path(sys.executable).with_name("pscp-pipe"))
AES = "aes128-gcm@openssh.com"
STREAMS = 8
LFTP_PARTS = 8  # the user has to choose; one would be no better than sftp
DESTINATIONS = 4  # of a fan-out
PARAMIKO_PUT = """
import sys, paramiko
host, port, user, key, source, to = sys.argv[1:]
transport = paramiko.Transport((host, int(port)))
transport.connect(username=user, pkey=paramiko.Ed25519Key.from_private_key_file(key))
paramiko.SFTPClient.from_transport(transport).put(source, to)
transport.close()
"""
FORGET = 'rm -rf "$XDG_STATE_HOME/pscp/hosts"; exec "$0" "$@"'


@dataclass(frozen=True)
class Run:
    """One copy to make."""

    link: Link
    load: Load
    out: Path
    push: bool
    case: Case  # with the runs before this one

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
        return [self.link.ssh, "-F", self.link.server.ssh_config]

    @property
    def way(self) -> list[str]:
        """How to reach the server, for what starts ssh by itself."""
        program = ["-S", self.link.ssh] if self.link.ssh != "ssh" else []
        return ["-F", self.link.server.ssh_config, *program]


@dataclass(frozen=True)
class Tool:
    name: str
    command: Callable[[Run], list[str]]
    program: str = ""  # what must be installed; "": the name
    single: bool = True  # moves a file as one stream, so a long path makes it slow
    chatty: bool = False  # waits round trips for each file of a tree
    copies: bool = True  # leaves a copy that can be compared; if not, its rate is the limit

    @property
    def is_there(self) -> bool:
        return shutil.which(self.program or self.name) is not None


def pscp(*options: str) -> Tool:
    def command(run: Run) -> list[str]:
        tree = ["-a"] if run.load.is_tree else []
        return [PSCP, "-B", "--stats", *options, *run.way, *tree, *run.ends]

    return Tool(" ".join(["pscp", *options]), command, PSCP, single=False)


def before(tool: Tool, program: str) -> Tool:
    """The same with another pscp, of a checkout before a change."""

    def command(run: Run) -> list[str]:
        return [program if word == PSCP else word for word in tool.command(run)]

    name = tool.name.replace("pscp", "before", 1)
    return replace(tool, name=name, command=command, program=program)


def pscp_to_four(*options: str) -> Tool:
    one = pscp(*options, "--fan-out")

    def command(run: Run) -> list[str]:
        more = [run.far(f"{run.out}/{number}/") for number in range(2, DESTINATIONS + 1)]
        return [*one.command(run), *more]

    return replace(one, name=" ".join(["pscp --fan-out", *options]), command=command)


def scp(name: str, program: str, *options: str) -> Tool:
    def command(run: Run) -> list[str]:
        tree = ["-rp"] if run.load.is_tree else []
        return [program, "-q", *options, *run.way, *tree, *run.ends]

    return Tool(name, command, program, chatty=True)


def sftp(name: str, *options: str) -> Tool:
    def command(run: Run) -> list[str]:
        verb = ("put" if run.push else "get") + (" -rp" if run.load.is_tree else "")
        argv = ["sftp", "-q", *options, *run.way, "-b", "-", run.link.server.host]
        batch = f"{verb} {run.load.path} {run.out}/"
        return ["bash", "-c", 'exec "$@" <<<"$0"', batch, *argv]

    return Tool(name, command, "sftp", chatty=True)


def rsync(name: str, *ssh_options: str, own: tuple[str, ...] = ()) -> Tool:
    def command(run: Run) -> list[str]:
        return ["rsync", "-a", *own, "-e", shlex.join([*run.ssh, *ssh_options]), *run.ends]

    return Tool(name, command, "rsync")


def rclone_command(run: Run) -> list[str]:
    server = run.link.server
    place = str(run.out / run.load.name if run.load.is_tree else run.out)
    source = str(run.load.path)
    ends = [source, f":sftp:{place}"] if run.push else [f":sftp:{source}", place]
    access = {
        "host": run.link.address,
        "port": server.port,
        "user": server.user,
        "key-file": server.folder / "user_key",
        "known-hosts-file": server.folder / "known_hosts",
    }
    words = [f"--sftp-{name}={value}" for name, value in access.items()]
    return ["rclone", "copy", "--config=", *words, *ends]


def lftp_command(run: Run) -> list[str]:
    server, source, out = run.link.server, run.load.path, run.out / run.load.name
    program = shlex.join([*run.ssh, "-a", "-x"])
    if run.load.is_tree:
        move = f"mirror {'-R' if run.push else ''} --parallel={LFTP_PARTS} {source} {out}"
    else:
        move = f"{'put' if run.push else f'pget -n {LFTP_PARTS}'} {source} -o {out}"
    settings = f"set sftp:connect-program '{program}'; set net:max-retries 1"
    return ["lftp", "-c", f"{settings}; open -u {server.user}, sftp://{server.host} && {move}"]


def paramiko_command(run: Run) -> list[str]:
    server = run.link.server
    words = [run.link.address, server.port, server.user, server.folder / "user_key"]
    paths = [run.load.path, run.out / run.load.name]
    return [sys.executable, "-c", PARAMIKO_PUT, *map(str, words + paths)]


def tar_command(run: Run) -> list[str]:
    pack = shlex.join(["tar", "-cf", "-", "-C", str(run.load.path.parent), run.load.name])
    unpack = shlex.join(["tar", "-xf", "-", "-C", str(run.out)])
    reach = shlex.join([*run.ssh, run.link.server.host])
    far = f"{pack} | {reach} {shlex.quote(unpack)}"
    near = f"{reach} {shlex.quote(pack)} | {unpack}"
    return ["bash", "-c", f"set -o pipefail; {far if run.push else near}"]


def two_ssh_command(run: Run) -> list[str]:
    """The load's file over each of two connections side by side; nothing is written."""
    path = shlex.quote(str(run.load.path))
    reach = shlex.join([*run.ssh, "-c", AES, run.link.server.host])
    if run.push:
        one = f"{reach} 'cat >/dev/null' <{path}"
    else:
        one = f"{reach} {shlex.quote('cat ' + path)} </dev/null >/dev/null"
    return ["bash", "-c", f"{one} & {one} && wait $!"]


def cat(run: Run, to: list[str], back: list[str]) -> list[str]:
    """cat at one end, cat at the other, and this between them."""
    host = run.link.server.host
    path, out = shlex.quote(str(run.load.path)), shlex.quote(str(run.out / run.load.name))
    if run.push:
        return ["bash", "-c", f"{shlex.join([*to, host])} 'cat >{out}' <{path}"]
    return ["bash", "-c", f"{shlex.join([*back, host])} 'cat {path}' </dev/null >{out}"]


def pipe_command(run: Run) -> list[str]:
    pipe = [PIPE, "-B", *run.way]
    return cat(run, pipe, [*pipe, "--from"])


def iperf(name: str, streams: int, *, as_many_as: str = "", congestion: str = "cubic") -> Tool:
    """iperf3 moving as many bytes, over so many streams or as many as that tool had just now.

    Always with -R, where the client receives: a client that sends ends with megabytes in its
    socket buffers that never arrive (20 of 256 MiB at 100 ms). The lab's links are the same
    both ways. Its server keeps the congestion control that a client named for the tests that
    follow, so that it is always named.
    """

    def command(run: Run) -> list[str]:
        other = run.case.row(as_many_as)
        count = (other.connections if other else None) or streams
        to = ["-c", run.link.address, "-p", str(run.link.iperf_port)]
        # -n counts all streams together.
        size = ["-P", str(count), "-n", str(run.load.bytes)]
        return ["iperf3", "-R", *to, *size, "-C", congestion]

    return Tool(name, command, "iperf3", copies=False)


OWN = pscp()
FIXED = (1, 2, 4, 8, 16)  # numbers of connections
OWN_FIXED = [pscp("-c", str(count)) for count in FIXED]
OWN_1, OWN_8 = OWN_FIXED[0], OWN_FIXED[3]
UNKNOWN = replace(  # where nothing is remembered of the host
    OWN, name="pscp, unknown host", command=lambda run: ["sh", "-c", FORGET, *OWN.command(run)]
)
BBR = pscp("--congestion", "bbr")
TLS, PLAIN = pscp("--plane", "tls"), pscp("--plane", "plain")
ONE_TLS = pscp("-c", "1", "--plane", "tls", "--sndbuf", "64M", "--rcvbuf", "64M")
OVER_SFTP, OVER_SFTP_8 = pscp("--remote", "sftp"), pscp("--remote", "sftp", "-c", "8")
ONE_ASYNCSSH = pscp("--transport", "asyncssh", "-c", "1", "--channels", "1")
WHOLE = pscp("--no-resume")
WARM = pscp("--persist", "10m")
FOUR, FOUR_PLAIN = pscp_to_four(), pscp_to_four("--plane", "plain")
LOGIN = Tool("ssh true", lambda run: [*run.ssh, run.link.server.host, "true"], "ssh", copies=False)
PSCP_HELP = Tool("pscp --help", lambda run: [PSCP, "--help"], PSCP, copies=False)
PIPE_TOOL = Tool("pscp-pipe", pipe_command, PIPE)

SCP, SCP_AES = scp("scp", "scp"), scp("scp aes", "scp", "-c", AES)
SFTP_AES = sftp("sftp aes", "-c", AES)
RSYNC, RSYNC_IN_PLACE = rsync("rsync"), rsync("rsync --inplace", own=("--inplace",))
RSYNC_HX = rsync("rsync -HX", own=("-HX",))  # what -a of pscp has and -a of rsync has not
RCLONE = Tool("rclone", rclone_command, chatty=True)
TAR = Tool("tar over ssh", tar_command, "tar")
CAT_SSH = Tool("cat | ssh cat", lambda run: cat(run, run.ssh, run.ssh), "ssh")
LFTP = Tool("lftp", lftp_command, chatty=True)
# How those push who know nothing of pscp: to sshd, and to pscp-serve.
SCP_O, SFTP, SFTP_256 = scp("scp -O", "scp", "-O"), sftp("sftp"), sftp("sftp -R 256", "-R", "256")
PARAMIKO = Tool("paramiko", paramiko_command, sys.executable)
UPLOADERS = (SCP_O, SFTP, SFTP_256, RCLONE, LFTP, PARAMIKO)
OTHERS = (
    SCP,
    SCP_AES,
    RSYNC,
    rsync("rsync aes", "-c", AES),
    TAR,
    RCLONE,
    SFTP,
    LFTP,
    Tool("mscp", lambda run: ["mscp", "-q", *run.way, *run.ends], single=False, chatty=True),
    scp("hpnscp", "hpnscp"),
)
QUICK_OTHERS = (SCP, SCP_AES, RSYNC, TAR, RCLONE)
QUICK_FAR = (SCP, RSYNC, TAR)  # where each takes several seconds

TWO_SSH = Tool("two bare ssh", two_ssh_command, "ssh", copies=False)
IPERF, ONE_IPERF = iperf(f"iperf3 -P {STREAMS}", STREAMS), iperf("iperf3", 1)
AS_MANY = iperf("iperf3, as many streams", STREAMS, as_many_as=OWN.name)
AS_MANY_BBR = iperf("iperf3 bbr, as many streams", STREAMS, as_many_as=BBR.name, congestion="bbr")
