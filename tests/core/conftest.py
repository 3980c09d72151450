"""Fixtures of the bench: short pauses, and trees to copy.

Not here: the connections (link.py), the check for leaks (../conftest.py).
Read next: trees.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.asked import Asked
from core.link import QUICK, Bench, Fault
from core.trees import Trees


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Pauses take milliseconds, and threads take turns often."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in QUICK:
            patch.setattr(module, name, value)
        yield
    sys.setswitchinterval(before_s)


@pytest.fixture(params=["push", "pull"])
def is_push(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "push")


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """make_bench(FAULT...): a bench, which is closed at the end of the test."""
    made: list[Bench] = []

    def make(*faults: Fault) -> Bench:
        made.append(Bench(*faults))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)
