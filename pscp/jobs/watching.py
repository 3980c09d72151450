"""What a run tells while it goes on, and at its end.

Not here: to whom (telling.py), and how (report.py, status.py).
"""

from __future__ import annotations

from pscp.jobs.job import Job
from pscp.jobs.outcome import JobRun
from pscp.progress import Counters, Silent


class Watcher:
    """Is told, and does nothing. Any thread of a run calls says() and goes_on()."""

    def begins(self, job: Job, run: JobRun) -> None:
        """A run has its lock and begins; its outcome is not known yet."""

    def ended(self, job: Job, run: JobRun) -> None:
        """A run has ended, or did not begin since another has the lock."""

    def goes_on(self, job: Job, destination: str, counters: Counters) -> None:
        """Some ten times a second: where the copy to a destination stands."""

    def says(self, job: str, text: str) -> None:
        """What happens, for who asked to be told (-v)."""


class Notes(Silent):
    """Hands the notes of one destination's copies to a watcher."""

    def __init__(self, watcher: Watcher, job: str, destination: str) -> None:
        self._watcher, self._job, self._destination = watcher, job, destination

    def note(self, text: str) -> None:
        self._watcher.says(self._job, f"{self._destination}: {text}")
