"""pscp.ground.stops: a call that is to end waits for nothing any more, and raises why it ends."""

from __future__ import annotations

import threading

import pytest

from pscp.ground import stops


class Ended(Exception):
    """What a call is stopped with."""


def test_what_is_waited_for_is_ended_and_the_reason_raised() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    with pytest.raises(Ended), stop.here(), stops.ended_by(ended.append):
        stop.stop(Ended())
        stop.stop(KeyError())  # only the first one counts
        raise OSError("what was waited for has ended")
    assert [type(error) for error in ended] == [Ended]


def test_what_is_waited_for_later_is_ended_at_once() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    stop.stop(Ended())
    with pytest.raises(Ended), stop.here(), stops.ended_by(ended.append):
        assert len(ended) == 1
    with pytest.raises(Ended), stop.here():
        stops.pause(1000)
    lock = threading.Lock()
    with lock, pytest.raises(Ended), stop.here():
        stops.acquire(lock)


def test_what_is_over_is_not_ended() -> None:
    stop, ended = stops.Stop(), list[BaseException]()
    with stop.here(), stops.ended_by(ended.append):
        pass
    stop.stop(Ended())
    assert not ended


def test_a_pause_is_cut_short_from_another_thread() -> None:
    stop = stops.Stop()
    threading.Thread(target=stop.stop, args=(Ended(),)).start()
    with pytest.raises(Ended), stop.here():
        stops.pause(1000)


def test_who_is_in_no_call_is_not_ended() -> None:
    stop = stops.Stop()
    stop.stop(Ended())
    with stop.here():
        pass
    lock = threading.Lock()
    with stops.ended_by(lambda error: pytest.fail("ended")):
        stops.pause(0)
        stops.acquire(lock)
    assert stops.current() is None and lock.locked()
