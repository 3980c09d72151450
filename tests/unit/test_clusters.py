"""Which clusters there are, and which are refused.

Not here: a batch queue's jobs (test_batch.py), a copy over a cluster (../faults/test_cluster.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from dask_client import DaskClient

import pscp
from pscp.cli.copy import parse
from pscp.cluster import clusters, here, mover
from pscp.cluster.executor import NotThere, look
from pscp.cluster.tasks import outcome_of
from pscp.endpoint.writing import seen
from pscp.options.arguments import version
from pscp.options.keywords import as_typed


def client_of(address: str) -> Any:
    return SimpleNamespace(
        scheduler_info=lambda: {"address": address}, submit=None, status="running"
    )


@pytest.mark.parametrize(
    "name",
    [
        "nonsense", "local", "local:0", "local:x", "slurm", "slurm:-1", "cloud:3", "", ":2",
        "http://head:8786", "tcp://", "tcp://head", "tcp://head:8786/x",
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(pscp.UsageError) as raised:
        pscp.Options(cluster=name, dry_run=True)
    assert "local:N" in raised.value.hint


def test_who_types_a_command_is_told_nothing_of_a_programs_main() -> None:
    failing = patch("distributed.LocalCluster", side_effect=RuntimeError)
    with failing, patch("pscp.cluster.clusters.resource_tracker"):  # a process that would stay
        with pytest.raises(pscp.Unreachable, match="cannot be started") as raised:
            pscp.copy("a", "nowhere.invalid:", cluster="local:1")
        assert '__name__ == "__main__"' in raised.value.hint
        with as_typed(), pytest.raises(pscp.Unreachable, match="cannot be started") as raised:
            pscp.copy("a", "nowhere.invalid:", cluster="local:1")
        assert raised.value.hint == "one was ended as it began, or failed"


@contextlib.contextmanager
def program(says: bytes | None) -> Iterator[str]:
    """Yield the address of a program that says this to who connects; None: it hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        if says is not None:
                            connection.sendall(says)
                            connection.recv(1 << 16)
                            while connection.recv(1 << 16):
                                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


NOTHING = "nothing for 0 s"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", NOTHING),  # as an HTTP server, or a scheduler that was stopped
        (b"SSH-2.0-OpenSSH_9.9\r\n", "another program"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program"),
        (None, "is closed|reset"),  # as one with TLS
    ],
)
def test_another_program_than_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, says: bytes | None, why: str
) -> None:
    # Half of it is for the answer, which a busy machine has late.
    monkeypatch.setattr(clusters, "_START_S", 0.3 if why == NOTHING else 20.0)
    with (
        program(says) as address,
        pytest.raises(pscp.Unreachable) as raised,
        clusters.opened(address, insecure=False),
    ):
        pass
    assert raised.value.message.startswith(f"{address}: no Dask scheduler answers: ")
    assert re.search(why, raised.value.message)
    assert "tls://" in raised.value.hint


@pytest.mark.parametrize(
    ("address", "why"),
    [("tcp://127.0.0.1:1", "Connection refused"), ("tcp://nobody.invalid:8786", "")],
)
def test_a_scheduler_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    monkeypatch.setattr(clusters, "_START_S", 3.0)  # for half of which Dask tries again
    with (
        pytest.raises(pscp.Unreachable, match=f"no Dask scheduler answers: {why}") as raised,
        clusters.opened(address, insecure=False),
    ):
        pass
    assert "ssh" not in raised.value.text


def test_why_a_scheduler_is_not_there_is_found_out_though_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(address: str, **more: object) -> None:
        raise OSError("timed out") from TimeoutError()

    monkeypatch.setattr("distributed.comm.connect", connect)
    with (
        pytest.raises(pscp.Unreachable, match="no Dask scheduler answers: Connection refused"),
        clusters.opened("tcp://127.0.0.1:1", insecure=False),
    ):
        pass


def test_tls_without_certificates() -> None:
    with (
        pytest.raises(pscp.UsageError, match="no certificates") as raised,
        clusters.opened("tls://127.0.0.1:1", insecure=False),
    ):
        pass
    assert "distributed.comm.tls" in raised.value.hint


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        ("tls://10.1.2.3:8786", True), ("tcp://127.0.0.1:8786", True), ("tcp://[::1]:8786", True),
        ("inproc://10.1.2.3/5/1", True), ("tcp://10.1.2.3:8786", False),
        ("tcp://head.site:8786", False), ("ws://10.1.2.3:8786", False),
    ],
)  # fmt: skip
def test_without_tls_only_loopback_is_taken(address: str, is_good: bool) -> None:
    refused = contextlib.nullcontext() if is_good else pytest.raises(pscp.UsageError, match="TLS")
    with refused, clusters.opened(client_of(address), insecure=False):
        pass
    with clusters.opened(client_of(address), insecure=True):
        pass


def test_a_client_that_is_closed() -> None:
    closed: Any = SimpleNamespace(status="closed")
    with (
        pytest.raises(pscp.UsageError, match="Client is closed"),
        clusters.opened(closed, insecure=False),
    ):
        pass


def test_without_the_package_nobody_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None)
    with pytest.raises(pscp.UsageError, match="distributed is not installed") as raised:
        pscp.copy(__file__, "nobody.invalid:", cluster="local:2")
    assert raised.value.hint.endswith("-m pip install distributed")


# --- workers that hash


def in_another_folder(call: Callable[..., object], *args: object) -> object:
    """Return what a call returns in a worker, whose working folder is not this one's."""
    with contextlib.chdir("/"):
        return call(*args)


class Hashing(DaskClient):
    """A client whose one worker is this process, and ends so."""

    def __init__(self, end: str = "finished") -> None:
        super().__init__(["inproc://here/1"])
        self.end, self.keys = end, list[str]()

    def submit(
        self, call: Callable[..., object], *args: object, key: str, pure: bool,
        workers: list[str] | None, allow_other_workers: bool,
    ) -> Any:  # fmt: skip
        assert allow_other_workers is (workers is not None)
        self.keys.append(key)
        given = Mock(status=self.end, exception=lambda: ValueError("no such thing"))
        given.result = lambda: in_another_folder(call, *args)
        given.add_done_callback = lambda act: act(given)
        return given

    def cancel(self, futures: list[Any], *, force: bool) -> None:
        assert futures == []

    async def run(self, call: Callable[..., object], *args: object, **more: Any) -> Any:
        return await super().run(partial(in_another_folder, call), *args, **more)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A folder with a file, and beside it a manifest of them."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("text")
    digest = hashlib.sha256(b"text").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  file\n")
    return folder


def test_workers_hash_a_tree(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Hashing()
    assert pscp.verify(listed.with_name("SHA256SUMS"), listed, cluster=client).ok
    monkeypatch.chdir(listed.parent)
    assert pscp.verify("SHA256SUMS", listed.name, cluster=client).ok
    assert client.keys and all(key.startswith("hashing folder-") for key in client.keys)
    (listed / "file").write_text("txet")
    found = pscp.verify(listed.with_name("SHA256SUMS"), listed, cluster=client)
    assert [each.what for each in found.differences] == ["content"]


@pytest.mark.parametrize(
    ("end", "kind", "said"),
    [
        ("error", pscp.CopyError, "worker of the cluster failed: ValueError"),
        ("cancelled", pscp.ConnectionLost, "scheduler is lost"),
    ],
)
def test_workers_that_fail_to_hash(listed: Path, end: str, kind: Any, said: str) -> None:
    client: Any = Hashing(end)
    with pytest.raises(kind, match=said):
        pscp.verify(listed.with_name("SHA256SUMS"), listed, cluster=client)


def test_a_worker_that_came_late_and_sees_another_tree(listed: Path) -> None:
    own = mover.ask_here(seen.Sources([str(listed)]))
    for there, place, said in (
        (version(), mover.ask_here(seen.Sources(["/"])), "does not see"),
        ("0.0", own, "and not 0.0"),
    ):
        with pytest.raises(pscp.CopyError, match=said) as raised:
            look(there, str(listed), place, pickle.dumps(os.getpid))
        assert raised.value.hint and isinstance(raised.value, NotThere)
    assert look(version(), str(listed), own, pickle.dumps(os.getpid)) == os.getpid()


def test_what_a_worker_says_whose_tree_goes_meanwhile_is_not_believed(listed: Path) -> None:
    own = mover.ask_here(seen.Sources([str(listed)]))
    away = pickle.dumps(partial(os.rename, listed, f"{listed}-away"))
    with pytest.raises(NotThere, match="does not see"):
        look(version(), str(listed), own, away)


class Several(Hashing):
    """A client of several workers, each of which makes every so manieth call. The blind ones have
    an empty folder where the tree is.
    """

    def __init__(self, workers: list[str], blind: list[str]) -> None:
        super().__init__()
        self.workers, self.blind = workers, blind
        self.asked: list[str] = []

    def submit(self, call: Callable[..., object], *args: Any, **more: Any) -> Any:
        from_these = more["workers"] or self.workers
        address = from_these[len(self.asked) % len(from_these)]
        self.asked.append(address)
        there, root, place, data = args
        if address in self.blind:
            place = mover.ask_here(seen.Sources(["/"]))
        try:
            with patch.object(here, "address", lambda: address):
                found = in_another_folder(call, there, root, place, data)
                self.end, result = "finished", found
        except pscp.CopyError as error:
            self.end, self.error = "error", pickle.loads(pickle.dumps(error))
        given = Mock(status=self.end, exception=lambda: self.error, result=lambda: result)
        given.add_done_callback = lambda act: act(given)
        return given


def test_another_worker_hashes_what_one_does_not_see(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = Several(["a", "b", "c"], ["a", "c"])
    found = pscp.verify(listed.with_name("SHA256SUMS"), listed, cluster=client)
    assert found.ok and not found.differences
    assert client.asked.count("a") == 1 and client.asked.count("b") >= 2


def test_no_worker_sees_the_tree_and_no_file_counts_as_missing(listed: Path) -> None:
    client: Any = Several(["a", "b"], ["a", "b"])
    with pytest.raises(pscp.CopyError, match=f"it does not see {listed}$") as raised:
        pscp.verify(listed.with_name("SHA256SUMS"), listed, cluster=client)
    assert "docs/cluster.md" in raised.value.hint and client.asked == ["a", "b"]


def test_a_worker_that_came_late_and_has_another_version() -> None:
    problem = outcome_of(mover.move("0.0", b"", b"")).problem
    assert problem is not None and problem.hint == "install the same version on all of them"
    assert problem.message == f"{here.name()} has pscp {version()}, and not 0.0"


# --- what it does not go with


@pytest.mark.parametrize(
    "words",
    ["--clean host:", "--measure host", "--list-connections", "--disconnect host"],
)
def test_it_is_for_copies(words: str) -> None:
    first = words.partition(" ")[0]
    with pytest.raises(pscp.UsageError, match=f"--cluster does not go with {first}: it is for"):
        parse(["--cluster", "local:2", *words.split()])


def test_programs_are_told_that_it_is_for_copies() -> None:
    for call in (pscp.clean, pscp.look, pscp.measure):
        with pytest.raises(pscp.UsageError, match="cluster is for copies"):
            call("host.invalid:", cluster="local:2")
    with (
        pscp.Session("host.invalid") as session,
        pytest.raises(pscp.UsageError, match="cluster is for copies"),
    ):
        session.run("true", cluster="local:2")


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(pscp.UsageError, match="cluster does not go with direct"):
        pscp.copy("a:x", "b:y", cluster="local:2", direct=True)
    with pytest.raises(pscp.UsageError, match="to or from this machine"):
        pscp.copy("a.invalid:x", "b.invalid:y", cluster="local:2")
