"""How a part of a job is ended early: by a signal, or because its time is over.

Both come as a stop of the call (../ground/stops.py), which each wait below knows, and not as an
exception in the middle of whatever is being done.

Not here: what becomes of the job then (runner.py).
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator

from pscp.ground import stops
from pscp.ground.errors import Cancelled, PscpError
from pscp.ground.signals import raise_on_signals

NAME = "pscp-run"
_HINT = "the next run goes on from here"
_MOST_S = 1e9  # 30 years: a clock that is asked to wait for much longer overflows
_PATIENCE_S = 15.0  # several copies and a command end in order meanwhile, on a busy machine too


class Stopping:
    """A flag that tells whether a signal has come. For the main thread."""

    def __init__(self) -> None:
        self.signal: PscpError | None = None

    @contextlib.contextmanager
    def stoppable(self, within_s: float | None = None, what: str = "") -> Iterator[None]:
        """Run a block that a signal stops, or the time, of which `what` is the name.

        The block then raises Interrupted, Terminated or Cancelled. Signals are listened to as
        before once it is over, so that what follows, and what that starts, can be ended too.
        """
        stop, box = stops.Stop(), queue.SimpleQueue[PscpError | None]()

        def wait() -> None:
            try:
                error = box.get(timeout=None if within_s is None else min(within_s, _MOST_S))
            except queue.Empty:
                error = Cancelled(f"{what} is over", _HINT)
            if error is not None:
                stop.stop(error)

        def stop_by(error: PscpError) -> bool:
            self.signal = self.signal or error
            box.put(error)  # safe within a signal's handler, as no lock is
            return True

        before = {each: signal.getsignal(each) for each in _SIGNALS}
        thread = threading.Thread(target=wait, name="stopping", daemon=True)
        thread.start()
        try:
            with raise_on_signals(_HINT, stop_by, NAME, _PATIENCE_S), stop.here():
                stop.check()
                yield
        finally:
            box.put(None)
            thread.join()
            for each, action in before.items():
                signal.signal(each, action)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
