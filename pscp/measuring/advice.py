"""Derives from a path's figures what it needs: connections, cipher, the kernels' settings.

Pure: figures in, advice out, each with the numbers that lead to it.

- Connections: the fewest that bring 0.95 of the best rate, in both directions.
- Cipher: the fastest; within 5 percent of it, the one that costs both processors least.
- Socket buffers: the bandwidth-delay product (best rate x round trip) has to be in flight. Divided
  by the connections, and doubled, it is what each socket must hold: the kernel counts its own
  bookkeeping against a buffer (Linux gives about half of it to data), and data after a lost packet
  waits there until that was sent again. Only buffers that are smaller are to be changed.

Not here: how the figures are measured (measure.py), their tables (cli/measure_report.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pscp.ground.values import GIB, MIB

CHANNEL_BYTES = 2 * MIB  # OpenSSH's window of a channel (channels.h): a round trip's worth
ENOUGH = 0.95  # of the best
NEAR_A_LIMIT = 0.75
_ROOM = 2  # times what is in flight

Samples = Sequence[tuple[float, int]]  # times, and how many bytes had arrived by then


@dataclass(frozen=True)
class DirectionRate:
    """One direction's rate, and what a GiB costs the ssh here and the sshd there."""

    bytes_per_s: float
    near_cpu_s_per_gib: float | None = None  # None: unknown
    far_cpu_s_per_gib: float | None = None


@dataclass(frozen=True)
class Point:
    """The rates of one cipher over so many connections, in both directions."""

    cipher: str
    connections: int
    push: DirectionRate
    pull: DirectionRate

    def rates(self) -> tuple[float, float]:
        return self.push.bytes_per_s, self.pull.bytes_per_s

    @property
    def total(self) -> float:
        return self.push.bytes_per_s + self.pull.bytes_per_s

    def cpu_s_per_gib(self) -> float:
        """Return the CPU-seconds a GiB of both ends and directions together; unknown is 0."""
        ways = (self.push, self.pull)
        return sum((way.near_cpu_s_per_gib or 0) + (way.far_cpu_s_per_gib or 0) for way in ways)


@dataclass(frozen=True)
class Kernel:
    """An end's operating system, and its settings of TCP."""

    system: str
    settings: dict[str, str]


@dataclass(frozen=True)
class Windows:
    """The rate of one connection with one channel, and the rates that its windows allow."""

    bytes_per_s: float
    channel_bytes: int
    channel_bytes_per_s: float
    buffer_bytes: int | None  # None: unknown
    buffer_bytes_per_s: float | None


@dataclass(frozen=True)
class Setting:
    """A sysctl that is lower than this path needs."""

    end: str  # "here" or "there"
    name: str
    value: str
    now: str


@dataclass(frozen=True)
class Advice:
    """The settings that a path needs, and why."""

    connections: int
    cipher: str
    bdp_bytes: int
    settings: tuple[Setting, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Measurement:
    """A path's figures and the advice that follows from them."""

    host: str
    rtt_s: float  # the median
    rtt_min_s: float
    ciphers: tuple[Point, ...]  # over one connection
    connections: tuple[Point, ...]  # with the best cipher
    windows: Windows
    near: Kernel
    far: Kernel
    advice: Advice
    notes: tuple[str, ...]  # what could not be measured
    seconds: float  # that the measurement took
    saved: bool = False
    planes: tuple[Point, ...] = ()  # with --plane: SSH and that one, over the advised connections


# --- from samples to rates


def rate_between(samples: Samples, from_s: float, to_s: float) -> float:
    """Return the bytes a second between two times: the slope of the line that fits best."""
    times, counts = [], []
    for at_s, count in samples:
        if from_s <= at_s <= to_s:
            times.append(at_s - from_s)
            counts.append(count)
    if times and max(times) - min(times) > 1e-6:
        return max(statistics.linear_regression(times, counts).slope, 0.0)
    before = max((count for at_s, count in samples if at_s < from_s), default=0)
    return max(counts[-1] - before, 0) / (to_s - from_s) if counts else 0.0


def counts_up_to(most: int, step: int = 2) -> list[int]:
    """Return the numbers of connections to try: 1, 2, 4, ... and the most itself."""
    counts = [1]
    while counts[-1] < most:
        counts.append(min(counts[-1] * step, most))
    return counts


def may_gain(points: Sequence[Point]) -> bool:
    """Return whether more connections may help: not if the last two steps brought under 5 %."""
    if len(points) < 3:
        return True
    push, pull = points[-3].rates()
    more_push, more_pull = _most(points[-2:])
    return more_push * ENOUGH > push or more_pull * ENOUGH > pull


# --- what is best


def best_cipher(points: Sequence[Point]) -> Point:
    """Return the fastest cipher over one connection; of those within 5 percent, the cheapest."""
    most = max(point.total for point in points)
    close = [point for point in points if point.total >= ENOUGH * most]
    return min(close, key=Point.cpu_s_per_gib)


def enough_connections(points: Sequence[Point]) -> Point:
    """Return the fewest connections that bring 0.95 of the best rate, in both directions."""
    push_most, pull_most = _most(points)
    enough = (
        point
        for point in sorted(points, key=lambda point: point.connections)
        if point.push.bytes_per_s >= ENOUGH * push_most
        and point.pull.bytes_per_s >= ENOUGH * pull_most
    )
    # With noise the two directions may be best at different points: then the largest sum.
    return next(enough, max(points, key=lambda point: point.total))


def _most(points: Sequence[Point]) -> tuple[float, float]:
    """Return the best rate of a push, and that of a pull."""
    push, pull = zip(*(point.rates() for point in points), strict=True)
    return max(push), max(pull)


def advise(
    rtt_s: float, ciphers: Sequence[Point], lanes: Sequence[Point], near: Kernel, far: Kernel
) -> Advice:
    cipher, best = best_cipher(ciphers), enough_connections(lanes)
    push_bps, pull_bps = best.rates()
    bdp_bytes = math.ceil(max(push_bps, pull_bps) * rtt_s)
    push, pull = (_needed_bytes(rate * rtt_s / best.connections) for rate in (push_bps, pull_bps))
    settings = (
        *settings_to_raise("here", near, send_bytes=push, receive_bytes=pull),
        *settings_to_raise("there", far, send_bytes=pull, receive_bytes=push),
    )
    reasons = (
        *_about_cipher(cipher, ciphers),
        _about_windows(windows_of(lanes[0], rtt_s, near, far)),
        _about_connections(best, lanes),
        *_about_buffers(best, rtt_s, bdp_bytes, settings, near=near, far=far),
    )
    return Advice(best.connections, cipher.cipher, bdp_bytes, settings, reasons)


# --- socket buffers


def settings_to_raise(
    end: str, kernel: Kernel, send_bytes: int, receive_bytes: int
) -> tuple[Setting, ...]:
    """Return the settings of an end that are lower than its sockets need."""
    rules = _RULES.get(kernel.system)
    if rules is None:
        return ()
    wanted = rules(kernel.settings, send_bytes, receive_bytes)
    return tuple(Setting(end, name, value, kernel.settings[name]) for name, value in wanted)


def _linux(now: dict[str, str], send_bytes: int, receive_bytes: int) -> Iterable[tuple[str, str]]:
    """Yield Linux's settings to be raised, with their new values.

    The third number of tcp_wmem and tcp_rmem is the most to which a buffer grows by itself. The
    limits of net.core are for programs that set a size of their own; they are raised as well, so
    that those programs get no less than the others.
    """
    for name, core, needed in (
        ("net.ipv4.tcp_wmem", "net.core.wmem_max", send_bytes),
        ("net.ipv4.tcp_rmem", "net.core.rmem_max", receive_bytes),
    ):
        numbers = now.get(name, "").split()
        if len(numbers) != 3 or not all(map(_is_number, numbers)) or int(numbers[2]) >= needed:
            continue
        yield name, f"{numbers[0]} {numbers[1]} {needed}"
        if _is_number(now.get(core, "")) and int(now[core]) < needed:
            yield core, str(needed)


def _freebsd(now: dict[str, str], send_bytes: int, receive_bytes: int) -> Iterable[tuple[str, str]]:
    """Yield FreeBSD's settings to be raised, with their new values.

    maxsockbuf bounds both; 8/9 of it are for data, the rest for the kernel's mbufs.
    """
    wanted = (
        ("kern.ipc.maxsockbuf", _needed_bytes(max(send_bytes, receive_bytes) * 9 / 8 / _ROOM)),
        ("net.inet.tcp.sendbuf_max", send_bytes),
        ("net.inet.tcp.recvbuf_max", receive_bytes),
    )
    for name, needed in wanted:
        if _is_number(now.get(name, "")) and int(now[name]) < needed:
            yield name, str(needed)


_RULES = {"Linux": _linux, "FreeBSD": _freebsd}


def _needed_bytes(in_flight_bytes: float) -> int:
    """Return the size of a buffer for so much in flight: twice that, in whole MiB."""
    return math.ceil(_ROOM * in_flight_bytes / MIB) * MIB


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def windows_of(one: Point, rtt_s: float, near: Kernel, far: Kernel) -> Windows:
    """Return what the windows of one connection allow, in its faster direction."""
    push, pull = one.rates()
    buffers = buffer_bytes(near, far) if push >= pull else buffer_bytes(far, near)
    of_buffers = None if buffers is None else buffers / rtt_s
    return Windows(max(push, pull), CHANNEL_BYTES, CHANNEL_BYTES / rtt_s, buffers, of_buffers)


def buffer_bytes(sender: Kernel, receiver: Kernel) -> int | None:
    """Return the most that two sockets let a connection have in flight; None if unknown.

    Linux counts data and bookkeeping together, for the receiver half and half.
    """
    found = []
    for kernel, linux, freebsd, share in (
        (sender, "net.ipv4.tcp_wmem", "net.inet.tcp.sendbuf_max", 1),
        (receiver, "net.ipv4.tcp_rmem", "net.inet.tcp.recvbuf_max", 2),
    ):
        if _is_number(largest := kernel.settings.get(linux, "").split(" ")[-1]):
            found.append(int(largest) // share)
        elif _is_number(largest := kernel.settings.get(freebsd, "")):
            found.append(int(largest))
    return min(found, default=None)


# --- the sentences


def mib(bytes_: float) -> str:
    """Return a number of bytes in MiB, to three figures where it is small."""
    number = bytes_ / MIB
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def shown_ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.001 else f"{seconds * 1000:.2f} ms"


def _about_cipher(best: Point, points: Sequence[Point]) -> Iterable[str]:
    if len(points) == 1:
        yield f"{best.cipher} is the only cipher that was measured"
        return
    fastest = max(points, key=lambda point: point.total)
    push, pull = map(mib, best.rates())
    text = f"{best.cipher} pushes {push} and pulls {pull} MiB/s over one connection"
    if fastest is best:
        yield f"{text}, and no cipher more than that"
    else:
        yield f"{text}, within 5 percent of {fastest.cipher}, and costs the processors less"


def _about_windows(found: Windows) -> str:
    text = (
        f"one connection moves {mib(found.bytes_per_s)} MiB/s; in a round trip a channel of "
        f"OpenSSH moves {mib(found.channel_bytes)} MiB, so {mib(found.channel_bytes_per_s)} "
        "MiB/s at most"
    )
    least, holds = found.channel_bytes_per_s, "the channel's window holds"
    if found.buffer_bytes is not None and found.buffer_bytes_per_s is not None:
        text += (
            f", and the sockets' buffers {mib(found.buffer_bytes)} MiB, so "
            f"{mib(found.buffer_bytes_per_s)} MiB/s"
        )
        if found.buffer_bytes_per_s < least:
            least, holds = found.buffer_bytes_per_s, "the sockets' buffers hold"
    if found.bytes_per_s < NEAR_A_LIMIT * least:
        return f"{text}: neither holds it back"
    return f"{text}: {holds} it back, and more connections help"


def _about_connections(best: Point, points: Sequence[Point]) -> str:
    text = " and ".join(
        f"{way} {mib(rate)} MiB/s (the most was {mib(most)})"
        for way, rate, most in zip(("push", "pull"), best.rates(), _most(points), strict=True)
    )
    if best.connections == 1:
        return f"1 connection is enough: {text}"
    return f"{best.connections} connections {text}"


def _about_buffers(
    best: Point,
    rtt_s: float,
    bdp_bytes: int,
    settings: Sequence[Setting],
    *,
    near: Kernel,
    far: Kernel,
) -> Iterable[str]:
    rate = max(best.rates())
    each_bytes = bdp_bytes / best.connections
    product = f"{mib(rate)} MiB/s x {shown_ms(rtt_s)} = {mib(bdp_bytes)} MiB"
    yield (
        f"the bandwidth-delay product is {product}: "
        f"so much is in flight, {mib(each_bytes)} MiB for each connection, and a socket's buffer "
        f"needs twice that, rounded up to whole MiB: {_needed_bytes(each_bytes) // MIB}"
    )
    if not settings:
        yield "no buffer that is known is smaller: nothing has to be changed in either kernel"
    for end, kernel in (("here", near), ("there", far)):
        if kernel.system not in _RULES:
            yield f"{end}: what {kernel.system or 'the kernel'} allows is not known"
    if best.connections > 1 and rate * rtt_s > CHANNEL_BYTES:
        yield (
            f"one connection alone would need buffers of {mib(_needed_bytes(bdp_bytes))} MiB, and "
            f"a channel's window of {mib(bdp_bytes)} MiB, which OpenSSH does not have"
        )


def per_gib(cpu_s: float | None, moved_bytes: int) -> float | None:
    """Return the CPU-seconds a GiB; None if the seconds are unknown, or nothing moved."""
    return cpu_s * GIB / moved_bytes if cpu_s is not None and moved_bytes else None
