"""Jobs with a manifest: one for each destination, signed, that pscp-verify agrees with.

Not here: manifests themselves (test_manifests.py), jobs without (test_jobs.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.test_jobs import Place, place
from pscp.cli import verify
from pscp.jobs.reports.outcome import Outcome

__all__ = ["place"]


def verified(place: Place, manifest: Path, number: int, *words: str) -> int:
    root = place.destination(number)
    return verify.main(["-F", place.server.ssh_config, "-B", *words, str(manifest), root])


def test_each_destination_has_a_signed_manifest_of_its_own(place: Place, key: Path) -> None:
    place.fill("a", "b", "c\nd")
    form = f"{place.home}/sent/{{date}}/{{destination}}-{{run}}.jsonl"
    job = place.job(ends=2, options={"manifest": form, "sign": str(key)}, after="remove")
    run = place.run_one(job)
    assert run.outcome == Outcome.DONE and os.listdir(place.home / "here") == []
    manifests = sorted((place.home / "sent").glob(f"????-??-??/*-{run.run}.jsonl"))
    assert len(manifests) == 2 and "one-" in manifests[0].name and "two-" in manifests[1].name
    signers = "--allowed-signers", str(place.home / "allowed"), "--signer", "ada@example.org"
    for number, manifest in enumerate(manifests):
        assert verified(place, manifest, number, *signers) == 0
        assert {"a", "b", "c\\nd"} == {
            name for name in ("a", "b", "c\\nd") if f'"path":"{name}"' in manifest.read_text()
        }
    with open(place.there(1) / "b", "r+b") as file:
        file.write(b"other")
    assert [verified(place, each, number) for number, each in enumerate(manifests)] == [0, 1]
    place.fill("later")
    assert place.run_one(job).outcome == Outcome.DONE
    assert len(list((place.home / "sent").glob("*/*.jsonl"))) == 4


def test_no_copy_is_made_whose_manifest_has_no_place(place: Place) -> None:
    place.fill("a")
    (place.home / "sent").touch()
    run = place.run_one(
        place.job(options={"manifest": f"{place.home}/sent/m.jsonl"}, after="remove")
    )
    assert run.outcome == Outcome.FAILED and place.arrived() == set()
    assert "/sent/m.jsonl: " in run.destinations[0].message
    assert os.listdir(place.home / "here") == ["a"]


def test_a_manifest_that_cannot_be_written_in_the_end_fails_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(fd: int) -> None:
        raise OSError(28, "No space left on device")

    place.fill("a")
    monkeypatch.setattr("pscp.manifests.making.os.fsync", no_room)
    run = place.run_one(place.job(options={"manifest": f"{place.home}/m.jsonl"}))
    assert run.outcome == Outcome.FAILED and place.arrived() == {"a"}
    assert "manifest cannot be written: No space left" in run.destinations[0].message
    assert not (place.home / "m.jsonl").exists()
