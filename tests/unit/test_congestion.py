"""Which congestion control lanes get, over simulated paths, and sockets that other processes lend.

Not here: how many lanes there are (test_autotune.py), --congestion (test_socket_options.py).
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.endpoint.asking import requests
from pscp.endpoint.plane import congestion, direct, link
from pscp.endpoint.plane.congestion import Choice, Follower, LiveSocket, Sending
from pscp.transfer.autoscaler import LaneSockets
from pscp.transfer.pools import path_rtt_s
from pscp.transports import socket_options
from pscp.transports.direct import PlainChannel
from pscp.transports.socket_options import borrow, of_channel

LOOK_S, RTT_S = 0.25, 0.05
Model = Callable[[str], tuple[float, int, float]]  # rate, segments resent a look, queue in trips

LOSSY: Model = {"": (1.2e6, 1, 0.1), "bbr": (14e6, 5, 0.1)}.__getitem__
CLEAN: Model = {"": (14e6, 0, 0.1), "bbr": (14e6, 0, 0.1)}.__getitem__
FULL: Model = {"": (1.2e6, 2, 0.6), "bbr": (1.2e6, 9, 0.8)}.__getitem__  # eight on a slow path
SHALLOW: Model = {"": (1.2e6, 2, 0.05), "bbr": (1.3e6, 9, 0.1)}.__getitem__  # with a short queue
ANSWERING: Model = {"": (1_000.0, 1, 0.1)}.__getitem__
WINDOW: Model = {"": (30e6, 1, 0.1), "bbr": (40e6, 1, 0.1)}.__getitem__  # 40 MB/s is all of it


def followed(model: Model, looks: int, lanes: int = 8) -> tuple[list[str], list[str]]:
    """Show a choice so many looks. Return what it said, and which control it wanted each time."""
    choice = Choice()
    acked, resent = 0.0, 0
    said, names = [], []
    for look in range(looks):
        rate, lost, queue = model(choice.name)
        acked, resent = acked + rate * LOOK_S, resent + lost
        sending = Sending(int(acked), resent, RTT_S * (1 + queue), RTT_S)
        sentence = choice.look(look * LOOK_S, dict.fromkeys(range(lanes), sending))
        said += [sentence] if sentence else []
        names.append(choice.name)
    return said, names


def test_a_lossy_path_gets_bbr_within_the_first_second() -> None:
    said, names = followed(LOSSY, 40)
    assert names[int(1 / LOOK_S)] == "bbr" and names[-1] == "bbr"
    assert said == [
        "lanes move 1.2 MB/s each and lose packets, though no queue is full: trying bbr",
        "lanes move 14.0 MB/s each with bbr, and 1.2 MB/s without: going on with it",
    ]


def test_where_it_gains_nothing_it_is_let_go_and_tried_ever_more_seldom() -> None:
    said, names = followed(SHALLOW, 400)
    assert said[1] == "lanes move 1.3 MB/s each with bbr, and 1.2 MB/s without: going on without"
    begins = [at for at in range(1, 400) if names[at] and not names[at - 1]]
    pauses = [after - before for before, after in itertools.pairwise(begins)]
    assert len(pauses) >= 3
    assert all(later > 1.3 * earlier for earlier, later in itertools.pairwise(pauses))
    assert names.count("bbr") < 100


def test_lanes_that_come_meanwhile_do_not_count_as_gain() -> None:
    choice, names = Choice(), []
    for look in range(20):
        lanes: dict[object, Sending] = {}
        for number in range(8):
            at_work_s = LOOK_S * max(0, look if number < 2 else look - 6)
            lanes[number] = Sending(30_000 + int(1.2e6 * at_work_s), look, RTT_S, RTT_S)
        choice.look(look * LOOK_S, lanes)
        names.append(choice.name)
    assert "" in names[names.index("bbr") :]


def test_no_lane_at_all() -> None:
    choice = Choice()
    for look in range(40):
        assert choice.look(look * LOOK_S, {}) is None
    assert choice.name == ""


# --- sockets that other processes lend

HOLDS = "import socket; s = socket.create_connection(({!r}, {})); print(flush=True); input()"


def channel_of(pid: int) -> Any:
    return SimpleNamespace(pid=pid)


needs_linux = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lends sockets")


@pytest.fixture
def child() -> Iterator[int]:
    """The id of a process with a connected TCP socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = HOLDS.format(*server.getsockname())
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        peer, _ = server.accept()
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()
        peer.close()


@needs_linux
def test_a_child_lends_its_socket(child: int) -> None:
    lent = borrow(child)
    assert lent is not None
    sending = lent.sending()
    assert sending is not None and sending.resent == 0
    assert 0 < sending.min_rtt_s <= 1 and 0 < sending.rtt_s <= 1
    assert not lent.set_congestion("no-such-control")
    lent.close()


@needs_linux
def test_its_congestion_control_is_changed_and_changed_back(child: int) -> None:
    observer = borrow(child)
    assert observer is not None
    own, other = observer.congestion(), "reno"
    sockets, channel = LaneSockets(), channel_of(child)
    sockets.update([channel], "")
    assert len(sockets) == 1 and observer.congestion() == own
    sockets.update([channel], other)
    assert observer.congestion() == other
    sockets.update([channel], "")
    assert observer.congestion() == own
    assert list(sockets.sendings()) == [child]
    sockets.update([], other)
    assert len(sockets) == 0
    observer.close()


@needs_linux
def test_a_process_that_has_no_socket_or_is_gone_lends_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert borrow(process.pid) is None
        process.communicate()
    assert borrow(process.pid) is None
    sockets = LaneSockets()
    sockets.update([channel_of(process.pid)], "bbr")
    assert len(sockets) == 0 and sockets.sendings() == {}
    sockets.close()


@needs_linux
def test_a_lane_without_a_cipher_has_its_socket_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    channel, sockets = PlainChannel(near), LaneSockets()
    own = LiveSocket(near).congestion()
    sockets.update([channel], "reno")
    assert list(sockets.sendings()) == [channel] and LiveSocket(near).congestion() == "reno"
    sockets.update([channel], "")
    assert LiveSocket(near).congestion() == own
    channel.close()
    assert of_channel(channel) is None
    sockets.update([], "")
    assert len(sockets) == 0
    peer.close()


@needs_linux
def test_a_lane_that_is_no_tcp_socket() -> None:
    """ssh's descriptors before its process is known, and those of tests."""
    reading, writing = os.pipe()
    here, there = socket.socketpair()
    for fd in (reading, here.fileno()):
        before = set(os.listdir("/proc/self/fd"))
        lane: Any = SimpleNamespace(pid=0, read_fd=fd)
        assert of_channel(lane) is None
        assert set(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)
    here.close()
    there.close()


# --- a lane's own process at the far end


class Lane:
    """A lane's socket over a simulated path. It refuses the controls that are not `allowed`."""

    def __init__(self, model: Model, allowed: tuple[str, ...] = ("bbr", "cubic")) -> None:
        self.model, self.allowed = model, allowed
        self.name, self.acked, self.resent = "cubic", 0.0, 0
        self.rtt_s = RTT_S
        self.names: list[str] = []  # that were set

    def congestion(self) -> str:
        return self.name

    def set_congestion(self, name: str) -> bool:
        if name in self.allowed:
            self.name = name
            self.names.append(name)
        return name in self.allowed

    def sending(self) -> Sending | None:
        rate, lost, queue = self.model("" if self.name == "cubic" else self.name)
        self.acked, self.resent = self.acked + rate * LOOK_S, self.resent + lost
        return Sending(int(self.acked), self.resent, self.rtt_s * (1 + queue), self.rtt_s)


def looks(lane: Any, most: int = 400) -> int:
    """Have a follower look at a lane, and return how often it did until all was decided."""
    follower = Follower(lane)
    for look in range(most):
        if not follower.look(look * LOOK_S):
            return look + 1
    return most


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (LOSSY, ["bbr"]),
        (CLEAN, []),
        (FULL, []),
        (WINDOW, []),
        (SHALLOW, ["bbr", "cubic", "bbr"]),
        (ANSWERING, []),
    ],
)
def test_which_controls_a_lane_gets(model: Model, names: list[str]) -> None:
    lane = Lane(model)
    assert looks(lane) == 400
    assert lane.names[:3] == names and len(lane.names) < 20


def test_nothing_is_followed_where_nothing_can_be_gained() -> None:
    near = Lane(LOSSY)
    near.rtt_s = 0.001
    refused = Lane(LOSSY, allowed=())
    has_it = Lane(LOSSY)
    has_it.name = "bbr"
    unknown = SimpleNamespace(congestion=lambda: "cubic", sending=lambda: None)
    assert looks(near) == looks(has_it) == looks(unknown) == 1
    assert looks(refused) < 40 and refused.names == []


@pytest.mark.parametrize(("asked", "is_followed"), [("", True), ("reno", False)])
def test_a_lane_at_the_far_end_is_followed_unless_a_control_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, is_followed: bool
) -> None:
    followed_sockets: list[LiveSocket] = []
    monkeypatch.setattr(congestion, "follow", followed_sockets.append)
    request = requests.OpenPlane("", "plain", 0, [0, 0], [], "", "", asked, [0, 0])
    served: list[link.Link] = []
    here, there = socket.socketpair()
    with here, there:
        direct.Lanes(request, served.append)._begin(here, True)
    assert len(served) == 1 and bool(followed_sockets) == is_followed


@pytest.mark.parametrize(
    ("measured_s", "kernel_s", "path_s"),
    [
        (0.1, 0.05, 0.05),  # processors were busy
        (0.05, 0.06, 0.05),
        (0.1, 0.0001, 0.1),  # through a tunnel whose near end is on this machine
        (0.1, None, 0.1),  # through a proxy
        (math.inf, 0.1, 0.1),  # no request has measured it
        (0.001, 0.0001, 0.001),  # so short that it decides nothing
    ],
)
def test_the_round_trip_of_a_path(
    monkeypatch: pytest.MonkeyPatch, measured_s: float, kernel_s: float | None, path_s: float
) -> None:
    lent = SimpleNamespace(sending=lambda: Sending(0, 0, 0.2, kernel_s or 0.0), close=lambda: None)
    monkeypatch.setattr(socket_options, "borrow", lambda pid: lent if kernel_s else None)
    far: Any = SimpleNamespace(rtt_s=measured_s, channel=SimpleNamespace(pid=7))
    assert path_rtt_s(far) == path_s
