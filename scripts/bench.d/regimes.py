"""What is measured: each regime is a function that says over which link, what, by whom.

Tools that a long path makes slow move less, so that a run takes minutes and not hours; their
rate is compared, not their time.

Not here: what the numbers must be (goals.py). Read next: goals.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import tools
from links import SLOW_PERCENT, Link, loopback, slow_cores, wan
from rounds import BOTH_WAYS, Bench, Contestant, compete
from stock import GIB, MIB, LeftOut, Load
from tools import CAT_SSH, IPERF, OWN, PSCP, RSYNC, SCP, WARM, Tool, rsync

LONG_MS = 50  # from here on a path is long
MB = 1_000_000
NO_LOSS = f"{IPERF.name}, no loss"
KEPT_RSYNC = "rsync, ControlMaster"
TINY = "tiny file"  # the kind of case
WARM_DELAYS_MS = (100, 50)


class Regime(NamedTuple):
    run: Callable[[Bench], None]
    about: str


def others(bench: Bench, link: Link) -> Sequence[Tool]:
    if not bench.quick:
        return tools.OTHERS
    return tools.QUICK_FAR if link.rtt_ms >= LONG_MS else tools.QUICK_OTHERS


def less_than(bench: Bench, load: Load) -> Load:
    """For what a long path makes slow."""
    return bench.stock.file(min(load.bytes, bench.sized(256 * MIB, 32 * MIB)))


def loopback_file(bench: Bench) -> None:
    with loopback() as link:
        half = bench.stock.file(bench.sized(GIB, 256 * MIB) // 2)
        load = bench.stock.file(half.bytes * 2)
        two = bench.entries(replace(half, bytes=load.bytes), tools.TWO_SSH)
        rest = bench.entries(load, *others(bench, link))
        compete(bench, link, "file", [*bench.entries(load, OWN), *two, *rest])


def wan_file(rtt_ms: float, *, large: bool = False) -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        with wan(rtt_ms) as link:
            load = bench.file(GIB, 256 * MIB)
            less = less_than(bench, load)
            entries = bench.entries(load, OWN, IPERF)
            for tool in others(bench, link):
                if rtt_ms < LONG_MS or not tool.single:
                    entries += bench.entries(load, tool)
                else:  # scp is what a goal speaks of, so it moves the same bytes
                    entries += bench.slow(load if tool is SCP else less, tool)
            compete(bench, link, "file", entries)
            if large and not bench.quick:
                compete(
                    bench,
                    link,
                    "large file",
                    bench.entries(bench.file(4 * GIB), OWN, IPERF),
                )

    return run


def wan_loss(bench: Bench) -> None:
    """The same path without loss comes first, as the measure."""
    load = bench.file(512 * MIB, 64 * MIB)
    small = bench.stock.file(min(load.bytes, bench.sized(64 * MIB)))
    with wan(50) as link:
        without = compete(bench, link, "no loss", bench.entries(load, IPERF))
    with wan(50, 0.1) as link:
        bbr = [tools.BBR, tools.AS_MANY_BBR] if knows_bbr() else []
        entries = bench.entries(load, OWN, IPERF, tools.AS_MANY, *bbr)
        entries += bench.entries(small, *others(bench, link), rounds=1)
        for case, limit in zip(compete(bench, link, "file", entries), without, strict=True):
            case.rows += [replace(row, tool=NO_LOSS) for row in limit.rows]


def loss(bench: Bench) -> None:
    """A push over a lossy path to a host of which nothing is known."""
    with wan(50, 0.1) as link:
        those = [tools.UNKNOWN, IPERF, *([tools.BBR] if knows_bbr() else [])]
        load = bench.file(256 * MIB, 64 * MIB)
        compete(bench, link, "file", bench.entries(load, *those), ways=(True,))


def knows_bbr() -> bool:
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    return "bbr" in offered.split()


def small(bench: Bench) -> None:
    with wan(50) as link:
        load, few = bench.tree(5000), bench.tree(200, 20)
        entries = bench.entries(load, OWN, IPERF)
        for tool in others(bench, link):
            entries += bench.slow(few, tool) if tool.chatty else bench.entries(load, tool)
        compete(bench, link, "tree", entries)


def small_loopback(bench: Bench) -> None:
    with loopback() as link:
        load = bench.tree(20_000, 2000)
        few = bench.stock.tree(min(load.files, 200))  # rclone has each file hashed by a command
        entries = bench.entries(load, OWN)
        for tool in others(bench, link):
            if not bench.quick or not tool.chatty:
                entries += bench.entries(few if tool is tools.RCLONE else load, tool)
        compete(bench, link, "tree", entries)
        if not bench.quick:
            compete(
                bench,
                link,
                "large tree",
                bench.entries(bench.tree(200_000), OWN, RSYNC),
            )


def mixed_tree(bench: Bench) -> Load:
    big = [bench.sized(20 * MB)] * (2 if bench.quick else 20)
    if not bench.quick:
        big.append(bench.sized(500 * MB))
    return bench.stock.tree(bench.sized(2000, 200), tuple(big))


def mixed(bench: Bench) -> None:
    with wan(100) as link:
        load = mixed_tree(bench)
        entries = [
            *bench.entries(load, OWN, IPERF),
            *bench.slow(load, RSYNC, tools.TAR),
        ]
        compete(bench, link, "tree", entries, unit="Mbit/s")


def slowcore(bench: Bench) -> None:
    with slow_cores() as link:
        load = bench.file(4 * GIB, 256 * MIB)
        less = bench.stock.file(min(load.bytes, bench.sized(GIB)))
        entries = bench.entries(load, OWN, tools.OWN_8)
        entries += [*bench.slow(load, tools.OWN_1), *bench.slow(less, SCP, tools.SCP_AES)]
        compete(bench, link, "file", entries)


def stream(bench: Bench) -> None:
    load = bench.file(GIB, 256 * MIB)
    with wan(100) as link:
        slow = bench.slow(less_than(bench, load), CAT_SSH)
        compete(bench, link, "wan-100", [*bench.entries(load, tools.PIPE_TOOL, IPERF), *slow])
    with loopback() as link:
        compete(bench, link, "loopback", bench.entries(load, tools.PIPE_TOOL, OWN, CAT_SSH))


def sftp(bench: Bench) -> None:
    load, tree, few = bench.file(GIB, 256 * MIB), bench.tree(2000, 200), bench.tree(100, 20)
    with wan(100) as link:
        compete(bench, link, "wan-100", bench.entries(load, tools.OVER_SFTP_8, IPERF))
    with wan(50) as link:
        entries = [*bench.entries(tree, tools.OVER_SFTP), *bench.entries(few, SCP, rounds=1)]
        compete(bench, link, "tree", entries)
    with loopback() as link:
        compete(bench, link, "loopback", bench.entries(load, tools.OVER_SFTP, tools.SFTP_AES))


def window(bench: Bench) -> None:
    """One connection whose receive window grows with the path; nothing else bounds it."""
    load = bench.file(GIB, 256 * MIB)
    with wan(100, buffers=64 * MIB) as link:
        entries = bench.entries(load, tools.ONE_ASYNCSSH, tools.ONE_TLS, tools.ONE_IPERF)
        entries += bench.slow(less_than(bench, load), CAT_SSH)
        compete(bench, link, "file", entries, ways=(False,))


def plane(bench: Bench) -> None:
    """The direct plane against SSH."""
    for name, path, size, those in (
        ("loopback", loopback(), GIB, (OWN, tools.TLS, tools.PLAIN)),
        ("wan-100", wan(100), GIB, (OWN, tools.TLS, tools.PLAIN, IPERF)),
        ("wan-240", wan(240), 512 * MIB, (OWN, tools.TLS, tools.PLAIN, IPERF)),
        ("loss", wan(50, 0.1), 256 * MIB, (OWN, tools.TLS, IPERF)),
    ):
        load = bench.file(size, 64 * MIB)
        with path as link:
            compete(bench, link, name, bench.entries(load, *those))


def delta(bench: Bench) -> None:
    """A large file of which the destination has an earlier version, as of a machine's image."""
    load = bench.stock.changed_file(bench.sized(2 * GIB, 256 * MIB))
    with wan(100) as link:
        compete(bench, link, "file", bench.entries(load, OWN, tools.RSYNC_IN_PLACE, tools.WHOLE))


def unchanged(bench: Bench) -> None:
    """A tree that is there, as on a night on which nothing has changed."""
    load = bench.tree(100_000, 10_000)
    load = replace(load, before=load.path)
    for kind, path in (("0 ms", loopback()), ("50 ms", wan(50))):
        with path as link:
            compete(bench, link, kind, bench.entries(load, OWN, RSYNC))


def fan_out(bench: Bench) -> None:
    """What counts is CPU at this end: pscp's own, and that of the programs below it.

    They encrypt for each destination. --plane plain has no such programs.
    """
    load = bench.file(GIB, 256 * MIB)
    with loopback() as link:
        entries = bench.entries(load, OWN, tools.FOUR, tools.PLAIN, tools.FOUR_PLAIN)
        compete(bench, link, "file", entries, ways=(True,))


def warm(bench: Bench) -> None:
    """pscp keeps its own connections (--persist); rsync's ssh uses a live ControlMaster."""
    far_ms, near_ms = WARM_DELAYS_MS
    tiny = bench.entries(bench.stock.file(4096), OWN, WARM, rounds=5 * bench.runs)
    with kept(bench, far_ms) as (link, _):
        file = bench.entries(bench.file(GIB, 256 * MIB), OWN, WARM, IPERF)
        compete_warm(bench, link, TINY, tiny, "runs/s")
        compete_warm(bench, link, "file", file)
    with kept(bench, near_ms) as (link, kept_rsync):
        tree = bench.entries(bench.tree(5000), OWN, WARM, RSYNC, kept_rsync)
        compete_warm(bench, link, TINY, tiny, "runs/s")
        compete_warm(bench, link, "tree", tree)


def compete_warm(
    bench: Bench, link: Link, kind: str, entries: Sequence[Contestant], unit: str = ""
) -> None:
    for push in BOTH_WAYS:
        # The first logs in, and the second knows what the first has learned.
        first = bench.entries(entries[0].load, WARM, rounds=2)
        compete(bench, link, kind, first, ways=(push,))
        bench.report.cases.pop()
        [case] = compete(bench, link, kind, entries, unit=unit, ways=(push,))
        case.title += f", {link.rtt_ms:g} ms"


@contextlib.contextmanager
def kept(bench: Bench, rtt_ms: float) -> Iterator[tuple[Link, Tool]]:
    """Yield a link whose connections stay open, and rsync over an ssh that is open already."""
    with wan(rtt_ms) as link, tempfile.TemporaryDirectory(prefix="pk") as folder:
        path = f"-oControlPath={folder}/s"
        ssh = [*link.near, link.ssh, "-F", link.server.ssh_config, path]
        subprocess.run([*ssh, "-M", "-f", "-N", link.server.host], check=True)
        try:
            yield replace(link, keeps=True), rsync(KEPT_RSYNC, path)
        finally:
            subprocess.run([*ssh, "-O", "exit", link.server.host], capture_output=True)
            subprocess.run([PSCP, "-q", "--disconnect", link.server.host], env=bench.env)


def tiny(bench: Bench) -> None:
    """Short, so run often: a few milliseconds count here."""
    load = bench.stock.file(4096)
    with loopback() as link:
        entries = bench.entries(load, OWN, SCP, tools.PSCP_HELP, rounds=5 * bench.runs)
        compete(bench, link, "file", entries, unit="runs/s")


def fixed(bench: Bench) -> None:
    """What auto finds, against what a fixed number of connections would have been."""
    size = bench.sized(GIB, 64 * MIB)

    def file() -> Load:
        return bench.stock.file(size)

    for name, path, load_of in (
        ("loopback", loopback(), file),
        ("wan-10", wan(10), file),
        ("wan-100", wan(100), file),
        ("wan-240", wan(240), file),
        ("wan-loss", wan(50, 0.1), lambda: bench.stock.file(size // 4)),
        ("small", wan(50), lambda: bench.tree(5000)),
        ("mixed", wan(100), lambda: mixed_tree(bench)),
        ("slowcore", slow_cores(), file),
    ):
        try:
            with path as link:
                against_fixed(bench, link, name, load_of())
        except LeftOut as reason:
            bench.report.left_out[f"fixed {name}"] = str(reason)


def against_fixed(bench: Bench, link: Link, name: str, load: Load) -> None:
    entries = bench.entries(load, OWN)
    for count, tool in zip(tools.FIXED, tools.OWN_FIXED, strict=True):
        # All of a file would take one or two connections minutes on a long path.
        is_slow = not load.is_tree and link.rtt_ms >= LONG_MS and count <= 2
        part = bench.stock.file(load.bytes // 4) if is_slow else load
        entries += bench.entries(part, tool)
    compete(bench, link, name, entries, unit="Mbit/s" if name == "mixed" else "")


REGIMES = {
    "loopback": Regime(loopback_file, "one file, memory to memory, no delay"),
    "wan-10": Regime(wan_file(10), "one file, 1 Gbit/s, 10 ms"),
    "wan-100": Regime(wan_file(100, large=True), "one file, 1 Gbit/s, 100 ms"),
    "wan-240": Regime(wan_file(240), "one file, 1 Gbit/s, 240 ms"),
    "loss": Regime(loss, "one file to an unknown host, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "wan-loss": Regime(wan_loss, "one file, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "small": Regime(small, "5,000 files of 1 to 8 KiB, 1 Gbit/s, 50 ms"),
    "small-loopback": Regime(small_loopback, "20,000 and 200,000 such files, no delay"),
    "mixed": Regime(mixed, "2,000 small files, 20 of 20 MB, one of 500 MB; 1 Gbit/s, 100 ms"),
    "slowcore": Regime(slowcore, f"one file, each connection on {SLOW_PERCENT} % of a CPU"),
    "stream": Regime(stream, "one file through pscp-pipe; 1 Gbit/s, 100 ms, and no delay"),
    "sftp": Regime(sftp, "without the agent: a file, 2,000 small ones; 100 and 50 ms, no delay"),
    "window": Regime(window, "one connection pulls; 1 Gbit/s, 100 ms, large buffers"),
    "plane": Regime(plane, "--plane ssh, tls and plain; no delay, 100 and 240 ms, loss"),
    "delta": Regime(delta, "one file, 1 % of which has changed; 1 Gbit/s, 100 ms"),
    "unchanged": Regime(unchanged, "100,000 files that are there; no delay and 50 ms"),
    "fan-out": Regime(fan_out, "one file to four destinations at once, no delay"),
    "warm": Regime(warm, "connections that are open: 4 KiB, a file, 5,000 files; 100 and 50 ms"),
    "tiny": Regime(tiny, "one file of 4 KiB: what starting costs"),
    "fixed": Regime(fixed, "-c auto against -c 1, 2, 4, 8, 16 on all of these"),
}
QUICK = ("loopback", "wan-100", "small", "tiny")
