"""README and docs are true: what they show is run as it stands, what they list is what there is.

A block that is marked `run=NAME` is run in a world of its own, then check_NAME() looks at what
came of it; those of ZFS are run by ../zfs and ../openzfs.
`scripts/docs --check` refuses a block without a mark or without such a function.

Not here: the examples (test_examples.py). Read next: world.py, scripts/docs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import test_house
from compare import assert_same_tree
from servers.private import PrivateServer

import pscp
from e2e.ways import Ran, below
from e2e.world import ROOT, World, make_world
from pscp.endpoint.frames import failures, wire
from pscp.options import arguments

SCRIPT = ROOT / "scripts" / "docs"


def load_script() -> ModuleType:
    """scripts/docs has no suffix, so that it is called as its neighbours are."""
    loader = importlib.machinery.SourceFileLoader("scripts_docs", str(SCRIPT))
    spec = importlib.util.spec_from_loader("scripts_docs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripts_docs"] = module  # dataclasses and NamedTuple look there
    loader.exec_module(module)
    return module


script = load_script()
RUN = script.run_in("tests/e2e/test_docs.py")


@pytest.fixture
def world(tmp_path: Path, far_home: Path, sshd: PrivateServer) -> Iterator[World]:
    with make_world(tmp_path, far_home, sshd) as made:
        yield made


# --- what the blocks do


@pytest.mark.parametrize("block", RUN, ids=[f"{block.page}:{block.name}" for block in RUN])
def test_a_block_does_what_it_says(block: script.Block, world: World) -> None:  # type: ignore[name-defined]
    ran = world.block(block.language, block.text)
    assert ran.code == 0, ran.err
    globals()[f"check_{block.name}"](world, ran)


def check_everyday(world: World, ran: Ran) -> None:
    here, there = world.here, world.there
    for copied in (there / "big.iso", there / "backup" / "big.iso"):
        assert copied.read_bytes() == (here / "big.iso").read_bytes()
    assert_same_tree(here / "data", there / "backup" / "data")
    assert_same_tree(here / "data", there / "archive", modes=True, times=True)
    assert sorted(path.name for path in there.iterdir()) == [
        "archive", "backup", "big.iso", "clean", "copied", "logs",
    ]  # fmt: skip
    assert_same_tree(there / "logs", there / "copied" / "logs")
    for name in ("day-1.log", "day-1.gz", "day-2.gz"):
        assert (here / name).read_text() == f"{name} there"
    assert (there / "clean" / "data" / "report.txt").exists()
    assert not list((there / "clean").rglob("*.tmp"))
    assert_no_part(there)
    last = json.loads(ran.out.splitlines()[-1])
    assert (last["event"], last["ok"]) == ("end", True)


def check_several(world: World, ran: Ran) -> None:
    for name in ("backup", "archive"):
        assert_same_tree(world.here / "data", world.there / name / "data", modes=True, times=True)
    assert "2 of 2 destinations complete" in ran.err


def check_fan_out(world: World, ran: Ran) -> None:
    check_several(world, ran)
    for name in ("one", "two", "three"):
        assert_same_tree(world.here / "data", world.there / name / "data")
        assert (world.there / name / "big.iso").stat().st_size == (
            world.here / "big.iso"
        ).stat().st_size


def check_many_hosts(world: World, ran: Ran) -> None:
    here, there = world.here, world.there
    assert (there / "backup" / "big.iso").read_bytes() == (here / "big.iso").read_bytes()
    assert_same_tree(here / "data", there / "backup" / "data", modes=True, times=True)
    assert_same_tree(there / "logs", here / "copied" / "logs", modes=True, times=True)
    assert_same_tree(there / "logs", there / "archive" / "logs", modes=True, times=True)


def check_cluster(world: World, ran: Ran) -> None:
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)
    assert "worker " in ran.err


def check_fan_out_python(world: World, ran: Ran) -> None:
    lines = ["host:backup/ complete", "host:archive/ complete"]
    assert ran.out.splitlines() == lines
    for name in ("backup", "archive"):
        assert_same_tree(world.here / "data", world.there / name / "data")


def check_filters(world: World, ran: Ran) -> None:
    for folder, kept in (
        ("a", ["data", "data/report.txt"]),
        ("b", ["data", "data/photos", "data/photos/1.jpg"]),
        ("c", ["data", "data/photos", "data/photos/1.jpg", "data/report.txt"]),
        ("d", ["data", "data/half-done.tmp", "data/photos", "data/report.txt"]),
    ):
        assert sorted(below(world.there / folder)) == kept, folder


def check_filters_python(world: World, ran: Ran) -> None:
    assert sorted(below(world.there / "e")) == ["data", "data/half-done.tmp", "data/report.txt"]


def check_sockets(world: World, ran: Ran) -> None:
    for copied in (world.there / "big.iso", world.there / "backup" / "big.iso"):
        assert copied.read_bytes() == (world.here / "big.iso").read_bytes()


def check_persist(world: World, ran: Ran) -> None:
    for name in ("a.txt", "b.txt"):
        assert (world.there / "backup" / name).read_text() == name
    assert re.match(
        r"host: ssh is process \d+, open for .+, ends 10m after its last use\n", ran.out
    )
    assert re.search(r"^\d+ connections? to host ended$", ran.err, re.MULTILINE)


def check_cron(world: World, ran: Ran) -> None:
    assert (ran.out, ran.err) == ("", "")  # or cron would send mail
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)


def check_manifests(world: World, ran: Ran) -> None:
    assert len((world.here / "data.jsonl").read_text().splitlines()) == 5
    assert ran.err.count("3 files below host:backup as listed") == 2


def check_manifest_repair(world: World, ran: Ran) -> None:
    assert "data/report.txt: repaired" in ran.out
    assert_same_tree(world.here / "data", world.there / "backup" / "data", modes=True, times=True)


def check_manifest_signed(world: World, ran: Ran) -> None:
    assert "signed by nightly@example.org, key ED25519 SHA256:" in ran.err
    assert 'Good "pscp-manifest" signature for nightly@example.org' in ran.out


def check_manifest_forms(world: World, ran: Ran) -> None:
    assert "logs/day-1.log: OK" in ran.out and "3 files below bag as listed" in ran.err
    listed = (world.here / "bag" / "manifest-sha256.txt").read_text()
    assert re.search(r"^[0-9a-f]{64}  data/logs/day-1.log$", listed, re.MULTILINE)


def check_manifest_python(world: World, ran: Ran) -> None:
    assert ran.out == "" and (world.here / "data.jsonl").exists()


def check_mirror(world: World, ran: Ran) -> None:
    there = world.there / "backup" / "data"
    lines = ran.out.splitlines()
    assert "data/report.txt" in lines and not any("half-done" in line for line in lines)
    assert sorted(path.name for path in there.iterdir()) == ["photos", "report.txt"]
    moved = world.there / "clean" / "data"
    assert (moved / "half-done.tmp").exists() and (moved / "photos" / "1.jpg").exists()
    left = (world.here / "data").rglob("*")
    assert [path.name for path in left] == ["photos"]


def check_snapshots(world: World, ran: Ran) -> None:
    monday, tuesday = (world.there / "backup" / day / "data" for day in ("monday", "tuesday"))
    assert_same_tree(world.here / "data", tuesday, modes=True, times=True)
    assert os.path.samefile(monday / "report.txt", tuesday / "report.txt")


def check_moves(world: World, ran: Ran) -> None:
    sent = {"data", "data/report.txt", "data/half-done.tmp", "data/photos", "data/photos/1.jpg"}
    for folder in (world.here / "sent", world.there / "vault", world.there / "clean"):
        assert below(folder) == sent
    assert below(world.here / "data") == {"photos"}


def check_mirror_cron(world: World, ran: Ran) -> None:
    check_cron(world, ran)
    (world.here / "data" / "report.txt").unlink()
    [block] = [block for block in RUN if block.name == "mirror_cron"]
    check_cron(world, world.block(block.language, block.text))


def check_python(world: World, ran: Ran) -> None:
    assert "3 files, 3 chunks verified" in ran.out
    assert_same_tree(world.here / "data", world.there / "backup" / "data")
    for name in ("a.txt", "b.txt"):
        assert (world.there / "backup" / name).read_text() == name
    assert (world.here / "day-2.gz").exists()


def check_asyncio(world: World, ran: Ran) -> None:
    assert ran.out.endswith(" bytes\n3 files\n")
    assert_same_tree(world.here / "data", world.there / "backup" / "data")


def check_pipes(world: World, ran: Ran) -> None:
    assert_same_tree(world.here / "data", world.there / "backup" / "data")
    assert b"day-1.gz there" in (world.here / "logs.tar").read_bytes()


def check_streams(world: World, ran: Ran) -> None:
    assert_same_tree(world.here / "data", world.there / "backup" / "data")
    listed = subprocess.run(
        ["tar", "tf", world.there / "backup" / "data.tar"], capture_output=True, check=True
    )
    assert b"data/report.txt" in listed.stdout
    assert (world.there / "backup" / "a.copy").read_text() == "a.txt"


def check_streams_python(world: World, ran: Ran) -> None:
    assert ran.out == "a report\n0\n"
    assert (world.there / "backup" / "data" / "report.txt").exists()


def assert_no_part(folder: Path) -> None:
    assert not [path for path in folder.rglob("*") if path.name.endswith(".pscp-part")]


# --- what the pages say


def test_the_readme_s_first_screen_installs_copies_and_copies_every_night() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    screen = "\n".join(text.splitlines()[:40])
    assert all(
        word in screen
        for word in ("at once", "pipx install", "pscp -r data host:", "cron", "pscp -aBq")
    )
    for command in ("scripts/run", "scripts/test", "scripts/release"):
        assert f"`{command}`" in text and os.access(ROOT / command, os.X_OK)


def test_what_is_not_run_is_only_set_up_and_the_self_test() -> None:
    lines = [line for b in script.blocks() if not b.name for line in b.text.splitlines()]
    python = r"(/usr/bin/)?python3 -m (venv|pip install)"
    allowed = rf"(scripts/(run|test|docs|release)|pipx install|{python})\b"
    assert [line for line in lines if not re.match(allowed, line)] == []


def test_nothing_is_stale_or_broken() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def first_cells(page: str, heading: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [cell.strip("` ") for cell in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)]


def test_the_protocol_lists_every_frame_and_kind_of_failure() -> None:
    assert set(wire.NAMES.values()) <= set(first_cells("protocol.md", "The frame"))
    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    assert all(f"`{kind}`" in text for kind in failures.KINDS)


def drawings(page: str, heading: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return section.partition("```text\n")[2].partition("```")[0].splitlines()


def test_the_rooms_are_drawn_as_the_ladder_has_them() -> None:
    drawn = [re.split(r" {3,}", line)[0].split() for line in drawings("design.md", "The rooms")]
    assert drawn == [[room or "pscp" for room in rung] for rung in test_house.LADDER]


def test_the_way_of_a_chunk_is_drawn_as_the_modules_lead() -> None:
    drawn = [line.split()[0] for line in drawings("design.md", "A chunk's way")]
    assert [file for file in drawn if file in test_house.WAY_OF_A_CHUNK] == [
        *test_house.WAY_OF_A_CHUNK
    ]
    assert [file for file in drawn if not (ROOT / "pscp" / file).exists()] == []


def test_the_decisions_are_numbered_records() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text("utf-8")
    records = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    numbers = [record.partition(". ")[0] for record in records]
    assert numbers == [str(number + 1) for number in range(len(records))]
    for record in records:
        assert re.search(r"^Where: \S", record, re.MULTILINE), record.partition("\n")[0]
        for file in re.findall(r"`([\w/]+(?:\.py|/))`", record):
            found = [ROOT / file, ROOT / "pscp" / file]
            assert any(path.exists() for path in found), file


def test_the_page_of_the_benchmark_is_as_the_script_writes_it() -> None:
    """From what was measured, which is kept beside it."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from plots import draw; from results import load\n"
        "from tables import for_docs\n"
        "report = load(Path(sys.argv[2]))\n"
        "print('\\n'.join(for_docs(report, list(dict(draw(report))))))\n"
    )
    measured = ROOT / "docs" / "benchmarks.json"
    argv = [sys.executable, "-c", program, str(ROOT / "scripts" / "bench.d"), str(measured)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "benchmarks.md").read_text("utf-8") == done.stdout


def test_options_in_the_tables_for_users_are_pscps() -> None:
    known = set(arguments.make_parser()._option_string_actions)
    for page in ("coming-from.md", "troubleshooting.md"):
        rows = re.findall(r"^\| .+ \|$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
        cells = [row.rpartition(" | ")[2] for row in rows[1:]]
        named = {option for cell in cells for option in re.findall(r"`[^`]*`", cell)}
        options = {
            word
            for text in named
            for word in re.findall(r"(?<!\S)--?[a-z][\w-]*", text[1:-1], re.I)
        }
        assert options - {"-m"} <= known, page
        assert len(options) > 5


def test_a_word_of_the_glossary_has_one_row() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    single = [word for row in words for word in row.split(", ")]
    assert len(single) == len(set(single)) > 20


def test_module_and_class_names_in_the_pages_are_real() -> None:
    for page in script.pages():
        for file in re.findall(r"`([\w/]+\.py)`", page.read_text("utf-8")):
            found = [ROOT / file, ROOT / "pscp" / file, ROOT / "pscp" / "endpoint" / file]
            assert any(path.exists() for path in found), f"{page}: {file}"
        for name in re.findall(r"`pscp\.(\w+)", page.read_text("utf-8")):
            assert name in dir(pscp), f"{page}: {name}"


# --- that scripts/docs notices


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pages, as copies that a test may spoil, and what they lead to."""
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "LICENSE"):
        shutil.copy(path, tmp_path / path.name)
    for name in ("docs", "share"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("examples", "pscp", "scripts", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "old", "new", "complaint"),
    [
        ("docs/options.md", "", "more\n", "docs/options.md: stale"),
        ("share/zsh/site-functions/_pscp", "", "more\n", "share/zsh/site-functions/_pscp: stale"),
        ("README.md", "", "[x](docs/nothing.md)\n", "the link to docs/nothing.md leads nowhere"),
        ("README.md", "", "[x](docs/design.md#no-such)\n", "there is no such heading"),
        ("README.md", "", "```sh\nls\n```\n", "marked neither run=NAME nor norun"),
        ("README.md", "run=cron", "norun", "test_docs.py: check_cron() is for no block"),
        ("docs/design.md", "", "```python run=what\n1\n```\n", "run by no check_what()"),
    ],
)
def test_the_script_notices(elsewhere: Path, page: str, old: str, new: str, complaint: str) -> None:
    text = (elsewhere / page).read_text()
    (elsewhere / page).write_text(text.replace(old, new) if old else text + new)
    [found] = script.problems()
    assert complaint in found
