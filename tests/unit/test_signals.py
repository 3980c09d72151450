"""Signals that end a copy: what is begun meanwhile can be ended as well."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

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
