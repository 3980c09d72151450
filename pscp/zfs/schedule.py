"""Has datasets replicated, several at once: a parent before those below it, and what a clone began
with before the clone. A failure stops only the datasets that wait for the one that failed.

Not here: one dataset (dataset_job.py), what follows when some were received (afterwards.py).
Read next: dataset_job.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from pscp.ground import errors
from pscp.zfs.afterwards import Afterwards, Sent
from pscp.zfs.dataset_job import Job, Received
from pscp.zfs.inventory import Dataset
from pscp.zfs.names import moved, parent
from pscp.zfs.plan import Plan, awaited

# So many were received before they are looked for together. Until then their snapshots are held.
_GROUP = 32


class Schedule:
    """The datasets of one replication, and where each stands. For one thread."""

    def __init__(
        self,
        job: Job,
        names: list[str],
        sources: Mapping[str, Dataset],
        dests: Mapping[str, Dataset],
        *,
        top: str,
        sent: Callable[[Sent], object],
        failed: Callable[[errors.DatasetError], object],
    ) -> None:
        """`sent` and `failed` are told of each dataset's outcome."""
        self._job, self._sources, self._dests = job, sources, dests
        self._before = awaited(names, sources)
        self._dest_of = {name: moved(name, top, job.dest_top) for name in names}
        self._sent, self._record_failure = sent, failed
        self._afterwards = Afterwards(job)
        self._pool = ThreadPoolExecutor(job.speech.settings.parallel, "zfs")
        self._waiting = list(self._before)
        self._running: dict[Future[Received], str] = {}
        self._received: list[Received] = []
        self._failed: list[str] = []
        self._given_up = 0  # of those that failed, the first of the list

    def run(self) -> None:
        """Replicate all. Raises ConnectError and the like, which end the whole replication."""
        try:
            self._job.holds.expect(self._plans())
            while self._waiting or self._running:
                self._begin()
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    self._settle(future, self._running.pop(future))
                if len(self._received) >= _GROUP:
                    self._finish()
            self._finish()
        except errors.PscpError:
            self._end()
            self._let_go()
            raise
        finally:
            self._end()

    def _plans(self) -> dict[str, Plan]:
        plans = {}
        for name in self._before:
            dest = self._dest_of[name]
            try:
                plans[name] = self._job.plan(self._sources[name], dest, self._dests.get(dest))
            except errors.DatasetError:
                continue  # it is reported when its turn comes
        return plans

    def _begin(self) -> None:
        """Begin every dataset that waits for no other, and give up those that wait in vain."""
        for name in list(self._waiting):
            before, dest = self._before[name], self._dest_of[name]
            if before & {*self._running.values(), *self._waiting}:
                continue
            self._waiting.remove(name)
            lacking = before & set(self._failed) if dest not in self._dests else set()
            if lacking:
                what = "its parent" if parent(name) in lacking else "what it is a clone of"
                self._fail(name, errors.DatasetError(dest, f"{what} was not replicated"))
            else:
                args = (self._sources[name], dest, self._dests.get(dest))
                self._running[self._pool.submit(self._job.replicate, *args)] = name

    def _settle(self, future: Future[Received], name: str) -> None:
        try:
            self._received.append(future.result())
        except errors.DatasetError as error:
            self._fail(name, error)

    def _fail(self, name: str, error: errors.DatasetError) -> None:
        self._failed.append(name)
        self._record_failure(error)

    def _finish(self) -> None:
        """Have what follows done for those that came to their end since the last time."""
        received, self._received = self._received, []
        sent, wrong = self._afterwards.settle(received)
        for each in sent:
            self._sent(each)
        for error in wrong:
            self._record_failure(error)
        new, self._given_up = self._failed[self._given_up :], len(self._failed)
        if new:
            self._afterwards.give_up([(self._sources[name], self._dest_of[name]) for name in new])

    def _end(self) -> None:
        """End what still runs, and begin nothing again."""
        self._job.ending.set()
        if self._running:
            self._job.link.close()
        self._pool.shutdown(cancel_futures=True)

    def _let_go(self) -> None:
        """Release what is held at this end, as far as no cut stream goes on with it."""
        if self._job.is_push:
            self._afterwards.release([self._sources[name] for name in self._before])
