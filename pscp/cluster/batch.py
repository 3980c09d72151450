"""A batch queue's jobs as a cluster's workers, by dask-jobqueue: submitted for one copy, cancelled
at its end.

The key for TLS, made for this copy alone, and what the jobs write are in a folder in the user's
home, which all nodes see as a rule.

Not here: clusters that run already, or here (clusters.py).
Read next: dispatcher.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pscp.ground.errors import RETRY_FOR, RUN_AGAIN, ConnectionLost, Unreachable, UsageError
from pscp.ground.libraries import check_installed
from pscp.ground.signals import last_act
from pscp.ground.terminal_text import printable
from pscp.progress.progress_words import some_of

if TYPE_CHECKING:
    from types import ModuleType

    from distributed import Security

_LOOPBACK = "127.0.0.1:0"  # for a dashboard, which asks nobody for a password
_LOST_S = 60.0  # in which a queue may have begun a job again whose worker was lost
_OVER = ".over-"  # begins the names of files by which jobs say that they end
_NAMED_MOST = 3  # jobs in a message
_READ_MOST = 1 << 20  # characters of what a job wrote
_MISTAKES = ("No module named", "rror:", "not found", "")  # the most telling first
_CONFIGURE = "set it in ~/.config/dask: docs/cluster.md#jobs-of-a-queue"


class Jobs:
    """The jobs of one copy in a batch queue.

    Dask's thread adds them, until all are submitted; then the dispatcher's alone looks after them.
    """

    def __init__(self, kind: str, folder: str) -> None:
        self._kind, self._folder = kind, folder
        self.cancel_command = ""
        self.ids: dict[str, str] = {}  # by the names of their workers
        self.refusals: list[str] = []
        self._had_worker: set[str] = set()  # names, of those that did
        self._last_seen_s: float | None = None  # when there was a worker

    def check_submitted(self) -> None:
        """Look what became of the submission. Raises Unreachable where no job was taken."""
        if self.refusals and not self.ids:
            what = f"--cluster {self._kind}: no job could be submitted: {self.refusals[0]}"
            where = f"jobqueue.{self._kind} in ~/.config/dask has what a job asks for"
            raise Unreachable(what, where + RETRY_FOR)

    @property
    def refused(self) -> str:
        """Return which jobs the queue has refused, for people; empty: none."""
        if not self.refusals:
            return ""
        all_jobs = len(self.ids) + len(self.refusals)
        return f"{self._kind} takes {len(self.ids)} of {all_jobs} jobs: {self.refusals[0]}"

    @property
    def waiting(self) -> str:
        """Return what a copy without workers waits for, for people."""
        said = self._last_words()
        what = f"one wrote: {said}; all is" if said else "what these write is"
        return f"for {self._named}; {what} in {self._folder}"

    @property
    def _named(self) -> str:
        ids = sorted(self.ids.values(), key=lambda each: (len(each), each))
        word = "jobs" if len(ids) > 1 else "job"
        return f"{self._kind}'s {word} {some_of(ids, _NAMED_MOST)}"

    def _last_words(self) -> str:
        """Return the last line that a job wrote, of those that name a mistake if there are any."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            files = [each for each in os.scandir(self._folder) if each.name[0] != "."]
            for each in sorted(files, key=lambda each: each.stat().st_mtime):
                with open(each.path, errors="replace") as file:
                    lines += filter(str.strip, file.read(_READ_MOST).splitlines())
        for what in _MISTAKES:
            found = [line.strip() for line in lines if what in line]
            if found:
                return printable(found[-1])
        return ""

    def see(self, workers: Sequence[str], now_s: float) -> None:
        """Note the names of the workers that are there. Raises ConnectionLost once all jobs are
        over, since nobody submits more.
        """
        for name in workers:  # of a job with several processes they have a number added
            self._had_worker.update({name, name.rpartition("-")[0]} & self.ids.keys())
        if workers:
            self._last_seen_s = now_s
        elif (
            self._last_seen_s is None or now_s - self._last_seen_s > _LOST_S
        ) and self._are_over():
            said = self._last_words()
            one = f"; one wrote: {said}" if said else ""
            why = "had no worker"
            if self._last_seen_s is not None:
                why = f"have none any more: their time may be up (jobqueue.{self._kind}.walltime)"
            raise ConnectionLost(f"{self._named} {why}{one}", RUN_AGAIN)

    def _are_over(self) -> bool:
        """Return whether each job has said that it ends, or has had a worker, and there is none."""
        ended: list[str] = []
        with contextlib.suppress(OSError):
            ended = [each for each in os.listdir(self._folder) if each.startswith(_OVER)]
        return len(ended) >= len(self.ids) or self._had_worker == self.ids.keys()

    def cancel_at_once(self) -> None:
        """Have them cancelled by a process that nobody waits for, and remove their folder."""
        if self.ids:
            words = [*shlex.split(self.cancel_command), *self.ids.values()]
            null = subprocess.DEVNULL
            subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def submitted(kind: str, number: int, *, has_tls: bool) -> Iterator[tuple[Any, Jobs]]:
    """Yield a cluster of so many jobs, which are cancelled afterwards.

    Raises UsageError where its configuration lacks something, Unreachable where the queue takes
    none of them.
    """
    packages = ["dask_jobqueue", *(["cryptography"] if has_tls else [])]
    check_installed(*packages, before=f"--cluster {kind}: ")
    with _folder(kind) as folder:
        jobs = Jobs(kind, folder)
        made = _made(jobs, kind, folder, has_tls=has_tls)
        with last_act(jobs.cancel_at_once):
            try:
                made.scale(jobs=number)
                made.sync(_all_started, made)
                jobs.check_submitted()
                yield made, jobs
            except BaseException:  # close() has each job cancelled by itself, and may be ended
                jobs.cancel_at_once()
                raise
            finally:
                with contextlib.suppress(OSError, TimeoutError):
                    made.close()


async def _all_started(made: Any) -> None:
    await made


@contextlib.contextmanager
def _folder(kind: str) -> Iterator[str]:
    """Yield a new folder for the user alone. Raises UsageError."""
    above = _configured(kind, "shared-temp-directory", "~")
    above = os.path.expanduser(os.path.expandvars(above))
    try:
        folder = TemporaryDirectory(prefix=".pscp-jobs-", dir=above, ignore_cleanup_errors=True)
    except OSError as error:
        what = f"--cluster {kind}: {above}: {error.strerror}"
        raise UsageError(what, f"jobqueue.{kind}.shared-temp-directory names another") from None
    with folder as path:
        yield path


def _configured(kind: str, name: str, default: Any = None) -> Any:
    import dask.config

    return dask.config.get(f"jobqueue.{kind}.{name}", None) or default


def _made(jobs: Jobs, kind: str, folder: str, *, has_tls: bool) -> Any:
    """Return a cluster of dask-jobqueue that has no jobs yet. Raises UsageError."""
    name = {"htcondor": "HTCondor"}.get(kind, kind.upper())
    cluster = getattr(_dask_jobqueue(), f"{name}Cluster")
    lacking = [each for each in ("cores", "memory") if not _configured(kind, each)]
    if lacking:
        what = f"--cluster {kind}: nothing sets jobqueue.{kind}.{lacking[0]}, of a job"
        raise UsageError(what, _CONFIGURE)
    # One thread does two tasks at a time, each with several connections.
    words = ["--nthreads", "1", "--no-dashboard"]
    scheduler_options = {"dashboard_address": _LOOPBACK}
    before = _configured(kind, "job-script-prologue") or _configured(kind, "env-extra", [])
    if kind != "htcondor":  # which has no script, and other quotes
        over = shlex.quote(os.path.join(folder, _OVER))
        at_end = shlex.quote(f"mktemp {over}XXXXXX >/dev/null 2>&1")
        before = [*before, f"trap {at_end} EXIT"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cluster(
                job_cls=_job_class(cluster.job_cls, jobs),
                processes=_configured(kind, "processes", 1),
                job_script_prologue=before,
                worker_extra_args=words + _configured(kind, "worker-extra-args", []),
                log_directory=_configured(kind, "log-directory", folder),
                security=_security(folder) if has_tls else None,
                scheduler_options=scheduler_options | _configured(kind, "scheduler-options", {}),
                silence_logs=logging.CRITICAL,
            )
    except (ValueError, RuntimeError) as error:  # it lacks something, or cannot listen
        what = " ".join(str(error).split())
        raise UsageError(f"--cluster {kind}: {what}", _CONFIGURE) from None


def _job_class(base: type[Any], jobs: Jobs) -> type[Any]:
    """Return a class of jobs that are noted when they are submitted, or refused."""
    from distributed.core import Status

    jobs.cancel_command = str(base.cancel_command)

    class Noted(base):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
                jobs.ids[str(self.name)] = str(self.job_id)
            except (OSError, RuntimeError, ValueError) as error:
                self.status = Status.running  # Dask would write a traceback, and wait
                jobs.refusals.append(_why(error))

    return Noted


def _why(error: Exception) -> str:
    """Return why a job was not submitted."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    text = str(error)  # for a command's, with what it wrote
    lines = text.rpartition("stderr:\n")[2].split("\n")
    return printable("; ".join(each.strip() for each in lines if each.strip()) or text)


def _security(folder: str) -> Security:
    """Return the certificates that are set up here for Dask, else a new one, in this folder."""
    from distributed import Security

    found = Security(require_encryption=True)
    if found.tls_scheduler_cert:
        return found
    made = Security.temporary()
    paths = {}
    for what, text in (("cert", made.tls_worker_cert), ("key", made.tls_worker_key)):
        paths[what] = os.path.join(folder, f".{what}.pem")
        with open(os.open(paths[what], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    own = {
        f"tls_{role}_{what}": path
        for role in ("scheduler", "worker", "client")
        for what, path in paths.items()
    }
    return Security(require_encryption=True, tls_ca_file=paths["cert"], **own)


def _dask_jobqueue() -> ModuleType:
    """Import it, but leave the program's SIGINT as it is: it would exit with 0 at a Ctrl-C."""
    here, real = threading.get_ident(), signal.signal

    def not_from_here(number: int, action: Any) -> Any:
        return signal.getsignal(number) if threading.get_ident() == here else real(number, action)

    signal.signal = not_from_here  # type: ignore[assignment]
    try:
        import dask_jobqueue
    finally:
        signal.signal = real
    module: ModuleType = dask_jobqueue
    return module
