"""What is measured: each regime is a function that says over which link, what, by whom.

Tools that a long path makes slow move less, so that a run takes minutes and not hours; their
rate is compared, not their time.

Not here: what the numbers must be (goals.py). Read next: goals.py.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import tools
from links import SLOW_PERCENT, Link, loopback, slow_cores, wan
from rounds import Bench, Contest
from serving import HpnServer, served, served_by_hpn, servers
from stars import ALL_LINKS, ALONE, CLUSTERED, star
from stock import GIB, MIB, Load
from tools import CAT_SSH, IPERF, OWN, PSCP, RSYNC, SCP, WARM, Tool, rsync

LONG_MS = 50  # from here on a path is long
MB = 1_000_000
NO_LOSS = f"{IPERF.name}, no loss"
KEPT_RSYNC = "rsync, ControlMaster"
TINY = "tiny file"  # the kind of case
WARM_DELAYS_MS = (100, 50)
NEAR_HOSTS = (1, 2, 4)  # of a cluster, to three far ones
WINDOWED = (tools.SCP_O, tools.SFTP, tools.SFTP_256, tools.PARAMIKO)  # held by a window alone


class Regime(NamedTuple):
    contests: Callable[[Bench], Iterator[Contest]]
    about: str


def others(bench: Bench, *, is_long: bool) -> Sequence[Tool]:
    if not bench.quick:
        return tools.OTHERS
    return tools.QUICK_FAR if is_long else tools.QUICK_OTHERS


def less_than(bench: Bench, load: Load) -> Load:
    """For what a long path makes slow."""
    return bench.stock.file(min(load.bytes, bench.sized(256 * MIB, 32 * MIB)))


def loopback_file(bench: Bench) -> Iterator[Contest]:
    half = bench.stock.file(bench.sized(GIB, 256 * MIB) // 2)
    load = bench.stock.file(half.bytes * 2)
    entries = bench.entries(load, OWN)
    entries += bench.entries(replace(half, bytes=load.bytes), tools.TWO_SSH)
    entries += bench.entries(load, *others(bench, is_long=False))
    yield Contest("file", loopback(), entries)


def wan_file(rtt_ms: float) -> Callable[[Bench], Iterator[Contest]]:
    is_long = rtt_ms >= LONG_MS

    def contests(bench: Bench) -> Iterator[Contest]:
        load = bench.file(GIB, 256 * MIB)
        less = less_than(bench, load)
        entries = bench.entries(load, OWN, IPERF)
        for tool in others(bench, is_long=is_long):
            if not is_long or not tool.single:
                entries += bench.entries(load, tool)
            else:  # scp is what a goal speaks of, so it moves the same bytes
                entries += bench.slow(load if tool is SCP else less, tool)
        yield Contest("file", wan(rtt_ms), entries)

    return contests


def wan_100(bench: Bench) -> Iterator[Contest]:
    yield from wan_file(100)(bench)
    if not bench.quick:
        yield Contest("large file", wan(100), bench.entries(bench.file(4 * GIB), OWN, IPERF))


def wan_loss(bench: Bench) -> Iterator[Contest]:
    """The same path without loss comes first, as the measure."""
    load = bench.file(512 * MIB, 64 * MIB)
    small = bench.stock.file(min(load.bytes, bench.sized(64 * MIB)))
    yield Contest("no loss", wan(50), bench.entries(load, IPERF))
    bbr = [tools.BBR, tools.AS_MANY_BBR] if knows_bbr() else []
    entries = bench.entries(load, OWN, IPERF, tools.AS_MANY, *bbr)
    entries += bench.entries(small, *others(bench, is_long=True), rounds=1)
    yield Contest("file", wan(50, 0.1), entries)
    *_, no_push, no_pull, push, pull = bench.report.cases
    push.rows += [replace(row, tool=NO_LOSS) for row in no_push.rows]
    pull.rows += [replace(row, tool=NO_LOSS) for row in no_pull.rows]


def loss(bench: Bench) -> Iterator[Contest]:
    """A push over a lossy path to a host of which nothing is known, and a pull that is no longer
    than what a few lanes have in flight.
    """
    those = [tools.UNKNOWN, IPERF, *([tools.BBR] if knows_bbr() else [])]
    load = bench.file(256 * MIB, 64 * MIB)
    yield Contest("file", wan(50, 0.1), bench.entries(load, *those), ways=(True,))
    entries = bench.entries(bench.file(40 * MIB), tools.UNKNOWN, IPERF)
    yield Contest("40 MiB, 100 ms, 0.3 %", wan(100, 0.3), entries, ways=(False,))


def knows_bbr() -> bool:
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    return "bbr" in offered.split()


def first(bench: Bench) -> Iterator[Contest]:
    """What the logins cost: to a host of which nothing is known, and to one that is known."""
    load = bench.file(512 * MIB, 64 * MIB)
    for rtt_ms in (100, 240):
        own = (tools.UNKNOWN, OWN, tools.TLS, IPERF)
        entries = bench.entries(load, *own) + bench.entries(bench.stock.file(4096), tools.LOGIN)
        yield Contest(f"wan-{rtt_ms}", wan(rtt_ms), entries)


def paths(bench: Bench) -> Iterator[Contest]:
    """Three paths that nothing was tuned on."""
    for kind, path, size in (
        ("20 ms, 300 Mbit/s, 0.01 % loss", wan(20, 0.01, rate_mbit=300), 256 * MIB),
        ("2 ms, 10 Gbit/s", wan(2, rate_mbit=10_000), GIB),
        ("600 ms, 50 Mbit/s", wan(600, rate_mbit=50), 64 * MIB),
    ):
        load = bench.file(size, size // 8)
        yield Contest(kind, path, bench.entries(load, OWN, IPERF))


def small(bench: Bench) -> Iterator[Contest]:
    load, few = bench.tree(5000), bench.tree(200, 20)
    entries = bench.entries(load, OWN, IPERF)
    for tool in others(bench, is_long=True):
        entries += bench.slow(few, tool) if tool.chatty else bench.entries(load, tool)
    yield Contest("tree", wan(50), entries)


def small_loopback(bench: Bench) -> Iterator[Contest]:
    load = bench.tree(20_000, 2000)
    few = bench.stock.tree(min(load.files, 200))  # rclone has each file hashed by a command
    entries = bench.entries(load, OWN)
    for tool in others(bench, is_long=False):
        if not bench.quick or not tool.chatty:
            entries += bench.entries(few if tool is tools.RCLONE else load, tool)
    yield Contest("tree", loopback(), entries)
    if not bench.quick:
        yield Contest("large tree", loopback(), bench.entries(bench.tree(200_000), OWN, RSYNC))


def mixed_tree(bench: Bench) -> Load:
    big = [bench.sized(20 * MB)] * (2 if bench.quick else 20)
    if not bench.quick:
        big.append(bench.sized(500 * MB))
    return bench.stock.tree(bench.sized(2000, 200), tuple(big))


def mixed(bench: Bench) -> Iterator[Contest]:
    load = mixed_tree(bench)
    entries = bench.entries(load, OWN, IPERF) + bench.slow(load, RSYNC, tools.TAR)
    yield Contest("tree", wan(100), entries, "Mbit/s")


def slowcore(bench: Bench) -> Iterator[Contest]:
    load = bench.file(4 * GIB, 256 * MIB)
    less = bench.stock.file(min(load.bytes, bench.sized(GIB)))
    entries = bench.entries(load, OWN, tools.OWN_8)
    entries += bench.slow(load, tools.OWN_1) + bench.slow(less, SCP, tools.SCP_AES)
    yield Contest("file", slow_cores(), entries)


def stream(bench: Bench) -> Iterator[Contest]:
    load = bench.file(GIB, 256 * MIB)
    slow = bench.slow(less_than(bench, load), CAT_SSH)
    yield Contest("wan-100", wan(100), bench.entries(load, tools.PIPE_TOOL, IPERF) + slow)
    yield Contest("loopback", loopback(), bench.entries(load, tools.PIPE_TOOL, OWN, CAT_SSH))


def sftp(bench: Bench) -> Iterator[Contest]:
    load, tree, few = bench.file(GIB, 256 * MIB), bench.tree(2000, 200), bench.tree(100, 20)
    trees = bench.entries(tree, tools.OVER_SFTP) + bench.entries(few, SCP, rounds=1)
    yield Contest("wan-100", wan(100), bench.entries(load, tools.OVER_SFTP_8, IPERF))
    yield Contest("tree", wan(50), trees)
    yield Contest("loopback", loopback(), bench.entries(load, tools.OVER_SFTP, tools.SFTP_AES))


def window(bench: Bench) -> Iterator[Contest]:
    """One connection whose receive window grows with the path; nothing else bounds it."""
    load = bench.file(GIB, 256 * MIB)
    entries = bench.entries(load, tools.ONE_ASYNCSSH, tools.ONE_TLS, tools.ONE_IPERF)
    entries += bench.slow(less_than(bench, load), CAT_SSH)
    yield Contest("file", wan(100, buffers=64 * MIB), entries, ways=(False,))


def serve(bench: Bench) -> Iterator[Contest]:
    """Stock clients push to sshd and to pscp-serve; sockets have room for more than a window."""
    far, near = bench.file(512 * MIB, 128 * MIB), bench.file(GIB, 256 * MIB)
    for kind, path, load in (
        ("wan-100", wan(100, buffers=64 * MIB), far), ("loopback", loopback(), near)
    ):  # fmt: skip
        entries = []
        for tool in tools.UPLOADERS:
            less = load if tool in WINDOWED or kind == "loopback" else less_than(bench, load)
            hpn = (served_by_hpn(tool),) if HpnServer.find() else ()
            entries += bench.entries(less, tool, served(tool), *hpn)
        yield Contest(kind, servers(path, bench.stock.folder), entries, ways=(True,))


def plane(bench: Bench) -> Iterator[Contest]:
    """The direct plane against SSH."""
    planes, file = (OWN, tools.TLS, tools.PLAIN), bench.file(GIB, 64 * MIB)
    half, quarter = bench.file(512 * MIB, 64 * MIB), bench.file(256 * MIB, 64 * MIB)
    yield Contest("loopback", loopback(), bench.entries(file, *planes))
    yield Contest("wan-100", wan(100), bench.entries(file, *planes, IPERF))
    yield Contest("wan-240", wan(240), bench.entries(half, *planes, IPERF))
    yield Contest("loss", wan(50, 0.1), bench.entries(quarter, OWN, tools.TLS, IPERF))


def delta(bench: Bench) -> Iterator[Contest]:
    """A large file of which the destination has an earlier version, as of a machine's image."""
    load = bench.stock.changed_file(bench.sized(2 * GIB, 256 * MIB))
    entries = bench.entries(load, OWN, tools.RSYNC_IN_PLACE, tools.WHOLE)
    yield Contest("file", wan(100), entries)


def unchanged(bench: Bench) -> Iterator[Contest]:
    """A tree that is there, as on a night on which nothing has changed."""
    load = bench.tree(100_000, 10_000)
    those = (OWN, RSYNC, tools.RSYNC_HX)
    entries = bench.entries(replace(load, before=load.path), *those)
    yield Contest("0 ms", loopback(), entries)
    yield Contest("50 ms", wan(50), entries)


def fan_out(bench: Bench) -> Iterator[Contest]:
    """What counts is CPU at this end: pscp's own, and that of the programs below it.

    They encrypt for each destination. --plane plain has no such programs.
    """
    load = bench.file(GIB, 256 * MIB)
    entries = bench.entries(load, OWN, tools.FOUR, tools.PLAIN, tools.FOUR_PLAIN)
    yield Contest("file", loopback(), entries, ways=(True,))


def warm(bench: Bench) -> Iterator[Contest]:
    """pscp keeps its own connections (--persist); rsync's ssh uses a live ControlMaster."""
    control = f"-oControlPath={bench.state}/s"
    far_ms, near_ms = WARM_DELAYS_MS
    tiny = bench.entries(bench.stock.file(4096), OWN, WARM, rounds=5 * bench.runs)
    file = bench.entries(bench.file(GIB, 256 * MIB), OWN, WARM, IPERF)
    tree = bench.entries(bench.tree(5000), OWN, WARM, RSYNC, rsync(KEPT_RSYNC, control))
    yield Contest(TINY, kept(bench, far_ms, control), tiny, "runs/s")
    yield Contest("file", kept(bench, far_ms, control), file)
    yield Contest(TINY, kept(bench, near_ms, control), tiny, "runs/s")
    yield Contest("tree", kept(bench, near_ms, control), tree)


@contextlib.contextmanager
def kept(bench: Bench, rtt_ms: float, control: str) -> Iterator[Link]:
    """A link whose connections stay open, and of which ssh has one open already."""
    with wan(rtt_ms) as link:
        ssh = [*link.near, link.ssh, "-F", link.server.ssh_config, control]
        subprocess.run([*ssh, "-M", "-f", "-N", link.server.host], check=True)
        try:
            yield replace(link, keeps=True)
        finally:
            subprocess.run([*ssh, "-O", "exit", link.server.host], capture_output=True)
            subprocess.run([PSCP, "-q", "--disconnect", link.server.host], env=bench.env)


def cluster(bench: Bench) -> Iterator[Contest]:
    """Hosts that see the same files, each with a link of its own, against all of their links.

    Two processors carry a third of the rate that the first rows ask for.
    """
    loads = (
        (200, bench.file(2 * GIB, 256 * MIB)),
        (60, bench.file(615 * MIB, 77 * MIB)),
        (10, bench.tree(20_000, 2000)),
    )
    for rate_mbit, load in loads:
        for near_hosts in NEAR_HOSTS:
            alone = [ALONE] if near_hosts == 1 else []
            entries = bench.slow(load, *alone, CLUSTERED, ALL_LINKS)
            where = f"{near_hosts} x {rate_mbit} Mbit/s"
            yield Contest(where, star(near_hosts, rate_mbit), entries)


def tiny(bench: Bench) -> Iterator[Contest]:
    """Short, so run often: a few milliseconds count here."""
    load = bench.stock.file(4096)
    those = [OWN, SCP, tools.PSCP_HELP]
    entries = bench.entries(load, *those, rounds=5 * bench.runs)
    yield Contest("file", loopback(), entries, "runs/s")


def fixed(bench: Bench) -> Iterator[Contest]:
    """What auto finds, against what a fixed number of connections would have been."""
    file = bench.file(GIB, 64 * MIB)
    yield against_fixed(bench, "loopback", loopback(), file)
    yield against_fixed(bench, "wan-10", wan(10), file)
    yield against_fixed(bench, "wan-100", wan(100), file, is_slow=True)
    yield against_fixed(bench, "wan-240", wan(240), file, is_slow=True)
    quarter = bench.stock.file(file.bytes // 4)
    yield against_fixed(bench, "wan-loss", wan(50, 0.1), quarter, is_slow=True)
    yield against_fixed(bench, "small", wan(50), bench.tree(5000))
    yield against_fixed(bench, "mixed", wan(100), mixed_tree(bench))._replace(unit="Mbit/s")
    yield against_fixed(bench, "slowcore", slow_cores(), file)


def against_fixed(
    bench: Bench, kind: str, path: AbstractContextManager[Link], load: Load, is_slow: bool = False
) -> Contest:
    """On a slow path one or two connections move a quarter: all of it would take minutes."""
    few = bench.stock.file(load.bytes // 4) if is_slow else load
    entries = bench.entries(load, OWN)
    entries += bench.entries(few, *tools.OWN_FIXED[:2]) + bench.entries(load, *tools.OWN_FIXED[2:])
    return Contest(kind, path, entries)


REGIMES = {
    "loopback": Regime(loopback_file, "one file, memory to memory, no delay"),
    "wan-10": Regime(wan_file(10), "one file, 1 Gbit/s, 10 ms"),
    "wan-100": Regime(wan_100, "one file, 1 Gbit/s, 100 ms"),
    "wan-240": Regime(wan_file(240), "one file, 1 Gbit/s, 240 ms"),
    "loss": Regime(loss, "one file to an unknown host, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "wan-loss": Regime(wan_loss, "one file, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "first": Regime(
        first, "one file to a host that is unknown, or known; 1 Gbit/s, 100 and 240 ms"
    ),
    "paths": Regime(paths, "one file over a slow, a fast and a satellite's link"),
    "small": Regime(small, "5,000 files of 1 to 8 KiB, 1 Gbit/s, 50 ms"),
    "small-loopback": Regime(small_loopback, "20,000 and 200,000 such files, no delay"),
    "mixed": Regime(mixed, "2,000 small files, 20 of 20 MB, one of 500 MB; 1 Gbit/s, 100 ms"),
    "slowcore": Regime(slowcore, f"one file, each connection on {SLOW_PERCENT} % of a CPU"),
    "stream": Regime(stream, "one file through pscp-pipe; 1 Gbit/s, 100 ms, and no delay"),
    "sftp": Regime(sftp, "without the agent: a file, 2,000 small ones; 100 and 50 ms, no delay"),
    "window": Regime(window, "one connection pulls; 1 Gbit/s, 100 ms, large buffers"),
    "serve": Regime(
        serve, "stock clients push to sshd, hpnsshd and pscp-serve; 1 Gbit/s, 100 ms, no delay"
    ),
    "plane": Regime(plane, "--plane ssh, tls and plain; no delay, 100 and 240 ms, loss"),
    "delta": Regime(delta, "one file, 1 % of which has changed; 1 Gbit/s, 100 ms"),
    "unchanged": Regime(unchanged, "100,000 files that are there; no delay and 50 ms"),
    "fan-out": Regime(fan_out, "one file to four destinations at once, no delay"),
    "warm": Regime(warm, "connections that are open: 4 KiB, a file, 5,000 files; 100 and 50 ms"),
    "cluster": Regime(
        cluster, "a file and 20,000 small ones over 1, 2 and 4 hosts with --cluster; 50 ms"
    ),
    "tiny": Regime(tiny, "one file of 4 KiB: what starting costs"),
    "fixed": Regime(fixed, "-c auto against -c 1, 2, 4, 8, 16 on all of these"),
}
QUICK = ("loopback", "wan-100", "small", "tiny")
