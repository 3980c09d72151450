"""Which congestion control lanes get, over simulated paths, and sockets that other processes lend.

Not here: how many lanes there are (test_autotune.py), --congestion (test_socket_options.py).
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.transfer.congestion import Choice
from pscp.transfer.copy import path_rtt_s
from pscp.transfer.lane_sockets import LaneSockets
from pscp.transports import live_socket
from pscp.transports.live_socket import Sending, borrow

LOOK_S, RTT_S = 0.25, 0.05
Model = Callable[[str], tuple[float, int, float]]  # rate, segments resent a look, queue in trips

LOSSY: Model = {"": (1.2e6, 1, 0.1), "bbr": (14e6, 5, 0.1)}.__getitem__
CLEAN: Model = {"": (14e6, 0, 0.1), "bbr": (14e6, 0, 0.1)}.__getitem__
FULL: Model = {"": (1.2e6, 2, 0.6), "bbr": (1.2e6, 9, 0.8)}.__getitem__  # eight on a slow path
SHALLOW: Model = {"": (1.2e6, 2, 0.05), "bbr": (1.3e6, 9, 0.1)}.__getitem__  # with a short queue
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


def test_one_lane_alone_can_get_it() -> None:
    assert followed(LOSSY, 40, lanes=1)[1][-1] == "bbr"


@pytest.mark.parametrize("model", [CLEAN, FULL, WINDOW])
def test_no_other_path_gets_it(model: Model) -> None:
    """What a full queue drops says that the path is full; a full window is the bound itself."""
    assert followed(model, 200) == ([], [""] * 200)


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
        lanes = {}
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
    sockets = LaneSockets()
    sockets.update([child], "")
    assert len(sockets) == 1 and observer.congestion() == own
    sockets.update([child], other)
    assert observer.congestion() == other
    sockets.update([child], "")
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
    sockets.update([0, process.pid], "bbr")
    assert len(sockets) == 0 and sockets.sendings() == {}
    sockets.close()


@pytest.mark.parametrize(
    ("measured_s", "kernel_s", "path_s"),
    [
        (0.1, 0.05, 0.05),  # processors were busy
        (0.05, 0.06, 0.05),
        (0.1, 0.0001, 0.1),  # through a tunnel whose near end is on this machine
        (0.1, None, 0.1),  # through a proxy
        (0.001, 0.0001, 0.001),  # so short that it decides nothing
    ],
)
def test_the_round_trip_of_a_path(
    monkeypatch: pytest.MonkeyPatch, measured_s: float, kernel_s: float | None, path_s: float
) -> None:
    lent = SimpleNamespace(sending=lambda: Sending(0, 0, 0.2, kernel_s or 0.0), close=lambda: None)
    monkeypatch.setattr(live_socket, "borrow", lambda pid: lent if kernel_s else None)
    far: Any = SimpleNamespace(rtt_s=measured_s, channel=SimpleNamespace(pid=7))
    assert path_rtt_s(far) == path_s
