"""What is measured: each regime is a function that says over which link, what, by whom.

Tools that a long path makes slow move less, so that a run takes minutes and not hours; their
rate is compared, not their time.

Not here: what the numbers must be (goals.py). Read next: goals.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from delta import delta, unchanged
from fan import fan_out
from links import Link, loopback, slow_cores, wan
from results import Case
from rounds import Bench, Contestant, compete, new_case
from stock import GIB, MIB, LeftOut, Load
from tools import (
    CAT_SSH,
    IPERF,
    ONE_ASYNCSSH,
    ONE_IPERF,
    OTHERS,
    OVER_SFTP,
    OVER_SFTP_8,
    PIPE_TOOL,
    PSCP,
    PSCP_HELP,
    QUICK_FAR,
    QUICK_OTHERS,
    RCLONE,
    RSYNC,
    SCP,
    SCP_AES,
    SFTP_AES,
    STREAMS,
    TAR,
    TWO_SSH,
    Iperf,
    Tool,
    forgetful,
    iperf,
    pscp,
)
from warm import warm

RATE_MBIT = 1000
SLOW_PERCENT = 8
SLOW_ROUNDS = 2  # of the tools that a long path makes slow
LONG_MS = 50  # from here on a path is long
MB = 1_000_000
FIXED = (1, 2, 4, 8, 16)
AS_MANY = "iperf3, as many streams"
AS_MANY_BBR = "iperf3 bbr, as many streams"
NO_LOSS = f"{IPERF.name}, no loss"
BBR = pscp("--congestion", "bbr")
UNKNOWN = forgetful(pscp())
BOTH_WAYS = (True, False)  # push, pull
TLS = pscp("--plane", "tls")
PLAIN = pscp("--plane", "plain")
ONE_TLS = pscp("-c", "1", "--plane", "tls", "--sndbuf", "64M", "--rcvbuf", "64M")


@dataclass(frozen=True)
class Regime:
    run: Callable[[Bench], None]
    about: str


def loopback_file(bench: Bench) -> None:
    with loopback() as link:
        half = bench.stock.file(bench.sized(GIB, 256 * MIB) // 2)
        load = bench.stock.file(half.bytes * 2)
        two = Contestant(TWO_SSH, replace(half, bytes=load.bytes), bench.runs)
        for push in BOTH_WAYS:
            case = new_case(bench, "loopback", "file", push, load, "MiB/s", TWO_SSH.name)
            rest = [Contestant(tool, load, bench.runs) for tool in others(bench)]
            compete(bench, case, link, [own(bench, load), two, *rest], push)


def wan_file(name: str, rtt_ms: float, *, large: bool = False) -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        with wan(RATE_MBIT, rtt_ms) as link:
            load = bench.stock.file(bench.sized(GIB, 256 * MIB))
            for push in BOTH_WAYS:
                case = new_case(bench, name, "file", push, load, "Mbit/s", IPERF.name, rtt_ms)
                compete(bench, case, link, bulk(bench, load, rtt_ms), push)
            if not large or bench.quick:
                return
            load = bench.stock.file(bench.sized(4 * GIB))
            few = [own(bench, load), Contestant(IPERF, load, bench.runs)]
            for push in BOTH_WAYS:
                case = new_case(bench, name, "large file", push, load, "Mbit/s", IPERF.name, rtt_ms)
                compete(bench, case, link, few, push)

    return run


def wan_loss(bench: Bench) -> None:
    """The same path without loss comes first, as the measure."""
    load = bench.stock.file(bench.sized(512 * MIB, 64 * MIB))
    small = bench.stock.file(min(load.bytes, bench.sized(64 * MIB)))
    without: dict[bool, Case] = {}
    with wan(RATE_MBIT, 50) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "wan-loss", "no loss", push, load, "Mbit/s", IPERF.name, 50)
            without[push] = case
            compete(bench, case, link, [Contestant(IPERF, load, bench.runs)], push)
    with wan(RATE_MBIT, 50, 0.1) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "wan-loss", "file", push, load, "Mbit/s", IPERF.name, 50)
            slow = [Contestant(tool, small, 1) for tool in others(bench, 50)]
            compete(bench, case, link, [*on_loss(bench, load, case), *slow], push)
            case.rows += [replace(row, tool=NO_LOSS) for row in without[push].rows]


def loss(bench: Bench) -> None:
    """A push over a lossy path to a host of which nothing is known."""
    load = bench.stock.file(bench.sized(256 * MIB, 64 * MIB))
    tools = [UNKNOWN, IPERF, *([BBR] if knows_bbr() else [])]
    with wan(RATE_MBIT, 50, 0.1) as link:
        case = new_case(bench, "loss", "file", True, load, "Mbit/s", IPERF.name, 50)
        compete(bench, case, link, [Contestant(tool, load, bench.runs) for tool in tools], True)


def on_loss(bench: Bench, load: Load, case: Case) -> list[Contestant]:
    def as_many(tool: str) -> Callable[[], int]:
        def streams() -> int:
            row = case.row(tool)
            return (row.connections if row else None) or STREAMS

        return streams

    tools = [IPERF, iperf(AS_MANY, Iperf(as_many("pscp")))]
    if knows_bbr():
        tools += [BBR, iperf(AS_MANY_BBR, Iperf(as_many(BBR.name), "bbr"))]
    return [own(bench, load)] + [Contestant(tool, load, bench.runs) for tool in tools]


def knows_bbr() -> bool:
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    words = subprocess.run([PSCP, "--help"], capture_output=True, text=True).stdout
    return "bbr" in offered and "--congestion" in words


def small(bench: Bench) -> None:
    rtt_ms = 50
    with wan(RATE_MBIT, rtt_ms) as link:
        load, few = bench.stock.tree(bench.sized(5000)), bench.stock.tree(bench.sized(200, 20))
        rest = [
            Contestant(tool, few, min(SLOW_ROUNDS, bench.runs))
            if tool.chatty
            else Contestant(tool, load, bench.runs)
            for tool in others(bench, rtt_ms)
        ]
        for push in BOTH_WAYS:
            case = new_case(bench, "small", "tree", push, load, "files/s", IPERF.name, rtt_ms)
            limit = Contestant(IPERF, load, bench.runs)
            compete(bench, case, link, [own(bench, load), limit, *rest], push)


def small_loopback(bench: Bench) -> None:
    with loopback() as link:
        load = bench.stock.tree(bench.sized(20_000, 2000))
        few = bench.stock.tree(min(load.files, 200))  # rclone has each file hashed by a command
        tools = [tool for tool in others(bench) if not bench.quick or not tool.chatty]
        for push in BOTH_WAYS:
            case = new_case(bench, "small-loopback", "tree", push, load, "files/s", "")
            rest = [Contestant(t, few if t is RCLONE else load, bench.runs) for t in tools]
            compete(bench, case, link, [own(bench, load), *rest], push)
        if bench.quick:
            return
        load = bench.stock.tree(bench.sized(200_000))
        for push in BOTH_WAYS:
            case = new_case(bench, "small-loopback", "large tree", push, load, "files/s", "")
            pair = [own(bench, load), Contestant(RSYNC, load, bench.runs)]
            compete(bench, case, link, pair, push)


def mixed_tree(bench: Bench) -> Load:
    big = [bench.sized(20 * MB)] * (2 if bench.quick else 20)
    if not bench.quick:
        big.append(bench.sized(500 * MB))
    return bench.stock.tree(bench.sized(2000, 200), tuple(big))


def mixed(bench: Bench) -> None:
    rtt_ms = 100
    with wan(RATE_MBIT, rtt_ms) as link:
        load = mixed_tree(bench)
        for push in BOTH_WAYS:
            case = new_case(bench, "mixed", "tree", push, load, "Mbit/s", IPERF.name, rtt_ms)
            slow = [Contestant(tool, load, min(SLOW_ROUNDS, bench.runs)) for tool in (RSYNC, TAR)]
            limit = Contestant(IPERF, load, bench.runs)
            compete(bench, case, link, [own(bench, load), limit, *slow], push)


def slowcore(bench: Bench) -> None:
    with slow_cores(SLOW_PERCENT) as link:
        load = bench.stock.file(bench.sized(4 * GIB, 256 * MIB))
        less = bench.stock.file(min(load.bytes, bench.sized(GIB)))
        rounds = min(SLOW_ROUNDS, bench.runs)
        entries = [own(bench, load), Contestant(pscp("-c", "8"), load, bench.runs)]
        entries += [Contestant(pscp("-c", "1"), load, rounds)]
        entries += [Contestant(tool, less, rounds) for tool in (SCP, SCP_AES)]
        for push in BOTH_WAYS:
            case = new_case(bench, "slowcore", "file", push, load, "MiB/s", "")
            compete(bench, case, link, entries, push)


def stream(bench: Bench) -> None:
    with wan(RATE_MBIT, 100) as link:
        load = bench.stock.file(bench.sized(GIB, 256 * MIB))
        less = bench.stock.file(min(load.bytes, bench.sized(256 * MIB, 32 * MIB)))
        tools = [Contestant(PIPE_TOOL, load, bench.runs), Contestant(IPERF, load, bench.runs)]
        tools += [Contestant(CAT_SSH, less, min(SLOW_ROUNDS, bench.runs))]
        for push in BOTH_WAYS:
            case = new_case(bench, "stream", "wan-100", push, load, "Mbit/s", IPERF.name, 100)
            compete(bench, case, link, tools, push)
    with loopback() as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "stream", "loopback", push, load, "MiB/s", "")
            entries = [Contestant(tool, load, bench.runs) for tool in (PIPE_TOOL, pscp(), CAT_SSH)]
            compete(bench, case, link, entries, push)


def sftp(bench: Bench) -> None:
    """Without the agent."""
    load = bench.stock.file(bench.sized(GIB, 256 * MIB))
    tree, few = bench.stock.tree(bench.sized(2000, 200)), bench.stock.tree(bench.sized(100, 20))
    with wan(RATE_MBIT, 100) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "sftp", "wan-100", push, load, "Mbit/s", IPERF.name, 100)
            entries = [Contestant(tool, load, bench.runs) for tool in (OVER_SFTP_8, IPERF)]
            compete(bench, case, link, entries, push)
    with wan(RATE_MBIT, LONG_MS) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "sftp", "tree", push, tree, "files/s", "", LONG_MS)
            entries = [Contestant(OVER_SFTP, tree, bench.runs), Contestant(SCP, few, 1)]
            compete(bench, case, link, entries, push)
    with loopback() as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "sftp", "loopback", push, load, "MiB/s", "")
            entries = [Contestant(tool, load, bench.runs) for tool in (OVER_SFTP, SFTP_AES)]
            compete(bench, case, link, entries, push)


def window(bench: Bench) -> None:
    """One connection whose receive window grows with the path; nothing else bounds it."""
    load = bench.stock.file(bench.sized(GIB, 256 * MIB))
    less = bench.stock.file(min(load.bytes, bench.sized(256 * MIB, 32 * MIB)))
    with wan(RATE_MBIT, 100, buffers=64 * MIB) as link:
        case = new_case(bench, "window", "file", False, load, "Mbit/s", ONE_IPERF.name, 100)
        entries = [Contestant(tool, load, bench.runs) for tool in (ONE_ASYNCSSH, ONE_IPERF)]
        slow = [Contestant(CAT_SSH, less, min(SLOW_ROUNDS, bench.runs))]
        compete(bench, case, link, [*entries, *slow], False)


def plane(bench: Bench) -> None:
    """The direct plane against SSH."""
    planes = (pscp(), TLS, PLAIN)
    for name, rtt_ms, bytes_, tools in (
        ("loopback", 0, GIB, planes),
        ("wan-100", 100, GIB, (*planes, IPERF)),
        ("wan-240", 240, 512 * MIB, (*planes, IPERF)),
    ):
        load = bench.stock.file(bench.sized(bytes_, 64 * MIB))
        with wan(RATE_MBIT, rtt_ms) if rtt_ms else loopback() as link:
            for push in BOTH_WAYS:
                limit = IPERF.name if rtt_ms else pscp().name
                unit = "Mbit/s" if rtt_ms else "MiB/s"
                case = new_case(bench, "plane", name, push, load, unit, limit, rtt_ms)
                entries = [Contestant(tool, load, bench.runs) for tool in tools]
                compete(bench, case, link, entries, push)
    load = bench.stock.file(bench.sized(256 * MIB, 64 * MIB))
    with wan(RATE_MBIT, 50, 0.1) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "plane", "loss", push, load, "Mbit/s", IPERF.name, 50)
            entries = [Contestant(tool, load, bench.runs) for tool in (pscp(), TLS, IPERF)]
            compete(bench, case, link, entries, push)
    load = bench.stock.file(bench.sized(GIB, 256 * MIB))
    with wan(RATE_MBIT, 100, buffers=64 * MIB) as link:
        for push in BOTH_WAYS:
            case = new_case(bench, "plane", "window", push, load, "Mbit/s", ONE_IPERF.name, 100)
            entries = [Contestant(tool, load, bench.runs) for tool in (ONE_TLS, ONE_IPERF)]
            compete(bench, case, link, entries, push)


def tiny(bench: Bench) -> None:
    """Short, so run often: a few milliseconds count here."""
    runs = 5 * bench.runs
    with loopback() as link:
        load = bench.stock.file(4096)
        for push in BOTH_WAYS:
            case = new_case(bench, "tiny", "file", push, load, "runs/s", "")
            tools = (pscp(), SCP, PSCP_HELP) if push else (pscp(), SCP)
            compete(bench, case, link, [Contestant(t, load, runs) for t in tools], push)


def fixed(bench: Bench) -> None:
    """What auto finds, against what a fixed number of connections would have been."""
    size = bench.sized(GIB, 64 * MIB)
    file = partial_file(bench, size)
    for name, rtt_ms, link_of, load_of in (
        ("loopback", 0, loopback, file),
        ("wan-10", 10, lambda: wan(RATE_MBIT, 10), file),
        ("wan-100", 100, lambda: wan(RATE_MBIT, 100), file),
        ("wan-240", 240, lambda: wan(RATE_MBIT, 240), file),
        ("wan-loss", 50, lambda: wan(RATE_MBIT, 50, 0.1), partial_file(bench, size // 4)),
        ("small", 50, lambda: wan(RATE_MBIT, 50), lambda: bench.stock.tree(bench.sized(5000))),
        ("mixed", 100, lambda: wan(RATE_MBIT, 100), lambda: mixed_tree(bench)),
        ("slowcore", 0, lambda: slow_cores(SLOW_PERCENT), file),
    ):
        try:
            against_fixed(bench, name, rtt_ms, link_of, load_of)
        except LeftOut as reason:
            bench.report.left_out[f"fixed {name}"] = str(reason)


def partial_file(bench: Bench, size: int) -> Callable[[], Load]:
    return lambda: bench.stock.file(size)


def against_fixed(
    bench: Bench,
    name: str,
    rtt_ms: float,
    link_of: Callable[[], AbstractContextManager[Link]],
    load_of: Callable[[], Load],
) -> None:
    with link_of() as link:
        load = load_of()
        for push in BOTH_WAYS:
            unit = "files/s" if name == "small" else "MiB/s" if rtt_ms == 0 else "Mbit/s"
            case = new_case(bench, "fixed", name, push, load, unit, "", rtt_ms)
            rest = [
                Contestant(pscp("-c", str(n)), load_for(bench, load, rtt_ms, n), bench.runs)
                for n in FIXED
            ]
            compete(bench, case, link, [own(bench, load), *rest], push)


def load_for(bench: Bench, load: Load, rtt_ms: float, connections: int) -> Load:
    """A quarter of a file where one or two connections would take minutes for all of it."""
    if load.is_tree or rtt_ms < LONG_MS or connections > 2:
        return load
    return bench.stock.file(load.bytes // 4)


def own(bench: Bench, load: Load) -> Contestant:
    return Contestant(pscp(), load, bench.runs)


def others(bench: Bench, rtt_ms: float = 0.0) -> Sequence[Tool]:
    if not bench.quick:
        return OTHERS
    return QUICK_FAR if rtt_ms >= LONG_MS else QUICK_OTHERS


def bulk(bench: Bench, load: Load, rtt_ms: float) -> list[Contestant]:
    """pscp, the limit, and the others; of those, what a long path makes slow moves less."""
    less = bench.stock.file(min(load.bytes, bench.sized(256 * MIB, 32 * MIB)))
    rounds = min(SLOW_ROUNDS, bench.runs)

    def rest() -> Iterator[Contestant]:
        for tool in others(bench, rtt_ms):
            slow = tool.single and rtt_ms >= LONG_MS
            # scp is what a goal speaks of, so it moves the same bytes.
            whole = not slow or tool is SCP
            yield Contestant(tool, load if whole else less, rounds if slow else bench.runs)

    return [own(bench, load), Contestant(IPERF, load, bench.runs), *rest()]


REGIMES = {
    "loopback": Regime(loopback_file, "one file, memory to memory, no delay"),
    "wan-10": Regime(wan_file("wan-10", 10), "one file, 1 Gbit/s, 10 ms"),
    "wan-100": Regime(wan_file("wan-100", 100, large=True), "one file, 1 Gbit/s, 100 ms"),
    "wan-240": Regime(wan_file("wan-240", 240), "one file, 1 Gbit/s, 240 ms"),
    "loss": Regime(loss, "one file to an unknown host, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "wan-loss": Regime(wan_loss, "one file, 1 Gbit/s, 50 ms, 0.1 % loss"),
    "small": Regime(small, "5,000 files of 1 to 8 KiB, 1 Gbit/s, 50 ms"),
    "small-loopback": Regime(small_loopback, "20,000 and 200,000 such files, no delay"),
    "mixed": Regime(mixed, "2,000 small files, 20 of 20 MB, one of 500 MB; 1 Gbit/s, 100 ms"),
    "slowcore": Regime(slowcore, f"one file, each connection on {SLOW_PERCENT} % of a CPU"),
    "stream": Regime(stream, "one file through pscp-pipe; 1 Gbit/s, 100 ms, and no delay"),
    "sftp": Regime(sftp, "without the agent: a file, 2,000 small ones; 100 and 50 ms, no delay"),
    "window": Regime(window, "one asyncssh connection pulls; 1 Gbit/s, 100 ms, large buffers"),
    "plane": Regime(plane, "--plane ssh, tls and plain; no delay, 100 and 240 ms, loss"),
    "delta": Regime(delta, "one file, 1 % of which has changed; 1 Gbit/s, 100 ms"),
    "unchanged": Regime(unchanged, "100,000 files that are there; no delay and 50 ms"),
    "fan-out": Regime(fan_out, "one file to four destinations at once, no delay"),
    "warm": Regime(warm, "connections that are open: 4 KiB, a file, 5,000 files; 100 and 50 ms"),
    "tiny": Regime(tiny, "one file of 4 KiB: what starting costs"),
    "fixed": Regime(fixed, "-c auto against -c 1, 2, 4, 8, 16 on all of these"),
}
QUICK = ("loopback", "wan-100", "small", "tiny")
