"""Signals that end a copy: what is begun meanwhile can be ended as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.ground.errors import Terminated
from pscp.ground.signals import raise_on_signals


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {
        kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for kind, action in before.items():
        signal.signal(kind, action)


def test_a_program_started_after_the_signal_can_be_ended() -> None:
    """As an ssh that logs in while the copy is ending; the second signal changes nothing."""
    with pytest.raises(Terminated), raise_on_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            child = subprocess.Popen(["sleep", "1000"])
            child.terminate()
            status = child.wait()
    assert status == -signal.SIGTERM


def test_a_thread_that_is_being_started_is_not_forgotten() -> None:
    """start() forgets it at an Exception, though it runs, and then it ends with a traceback."""
    starting: Any = SimpleNamespace(f_code=threading.Thread.start.__code__)
    with pytest.raises(Terminated), raise_on_signals():
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        with pytest.raises(KeyboardInterrupt):
            handler(signal.SIGTERM, starting)
        raise KeyboardInterrupt


class Dying:
    """What weak references are made to."""


def test_an_exception_that_python_ignores_comes_again() -> None:
    """In a weak reference's callback, such as each import has, it was lost, with a traceback."""
    dying, said = Dying(), list[object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", said.append)
        with pytest.raises(Terminated), raise_on_signals(patience_s=60):
            reference = weakref.ref(dying, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del dying
            threading.Event().wait(20)
    assert reference() is None
    assert not said
