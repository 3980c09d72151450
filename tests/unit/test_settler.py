"""Who settles small files at a sink: its own thread, or one beside it where the disk is slow."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.paths import Root
from pscp.endpoint.writing import commit, fence, parts


@pytest.fixture
def settler(tmp_path: Path) -> Iterator[commit.Settler]:
    root = Root(str(tmp_path))
    policy = metadata.Policy(False, False, 0o022)
    no_fence = fence.NoFence()
    made = parts.Parts(root, no_fence, "0" * 8, "1" * 8)
    settler = commit.Settler(root, no_fence, made, policy, False)
    yield settler
    settler.close()
    root.close()


def _settled_by(settler: commit.Settler, folder: Path, number: int) -> str:
    """Settle a batch of two small files. Return the name of the thread that did."""
    batch = []
    for name in (f"{number}a", f"{number}b"):
        fd = os.open(folder, os.O_RDWR | os.O_TMPFILE)
        entry = tree.Entry(tree.FILE, 0, name, 0, 0o644, 0, 0, {})
        batch.append(parts.Part(fd, entry, "", parts.NAMELESS))
    found: list[str] = []
    is_done = threading.Event()

    def done(outcome: object) -> None:
        assert outcome == [None, None]
        found.append(threading.current_thread().name)
        is_done.set()

    settler.add(batch, done)
    is_done.wait()
    with settler._changed:
        while settler._unsettled:
            settler._changed.wait()
    return found[0]


def test_one_slow_batch_is_no_slow_disk(
    settler: commit.Settler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.current_thread().name
    for number, quick_s in enumerate((-1.0, -1.0, 60.0, -1.0, -1.0, 60.0)):
        monkeypatch.setattr(commit, "_QUICK_S", quick_s)
        assert _settled_by(settler, tmp_path, number) == here


def test_a_slow_disk_gets_a_thread_and_is_tried_again(
    settler: commit.Settler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.current_thread().name
    monkeypatch.setattr(commit, "_ROUND", 8)
    monkeypatch.setattr(commit, "_QUICK_S", -1.0)
    names = [_settled_by(settler, tmp_path, number) for number in range(9)]
    assert names == [here] * 3 + ["settler"] * 5 + [here]
    monkeypatch.setattr(commit, "_QUICK_S", 60.0)
    assert _settled_by(settler, tmp_path, 9) == here
    monkeypatch.setattr(commit, "_QUICK_S", -1.0)
    assert _settled_by(settler, tmp_path, 10) == here
