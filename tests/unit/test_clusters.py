"""Which clusters there are, and which are refused.

Not here: a copy over one (../faults/test_cluster.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import pscp
from pscp.cluster import clusters


def client_of(address: str) -> Any:
    return SimpleNamespace(scheduler_info=lambda: {"address": address}, submit=None)


@pytest.mark.parametrize(
    "name", ["nonsense", "local", "local:0", "local:x", "slurm", "slurm:-1", "cloud:3", "", ":2"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(pscp.UsageError) as raised, clusters.opened(name, insecure=False):
        pass
    assert "local:N" in raised.value.message


def test_a_scheduler_that_is_not_there() -> None:
    """In a process of its own: Dask leaves a thread behind."""
    code = (
        "import pscp; from pscp.cluster import clusters; clusters._START_S = 0.1\n"
        "try: clusters.opened('tcp://127.0.0.1:1', insecure=False).__enter__()\n"
        "except pscp.Unreachable as error: print(error, error.hint)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("tcp://127.0.0.1:1: no Dask scheduler answers")
    assert "ssh" not in ran.stdout


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
    with clusters.opened(client_of(address), insecure=True) as cluster:
        assert cluster.lanes == 0


def test_without_the_package_nobody_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None)
    with pytest.raises(pscp.UsageError, match="distributed is not installed") as raised:
        pscp.copy(__file__, "nobody.invalid:", cluster="local:2")
    assert raised.value.hint.endswith("-m pip install distributed")


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(pscp.UsageError, match="cluster does not go with direct"):
        pscp.copy("a:x", "b:y", cluster="local:2", direct=True)
    with pytest.raises(pscp.UsageError, match="to or from this machine"):
        pscp.copy("a.invalid:x", "b.invalid:y", cluster="local:2")
