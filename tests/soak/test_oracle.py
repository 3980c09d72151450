"""The oracle (../oracle.py) is judged by rsync, where it and pscp are meant to agree.

Read next: ../oracle.py.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import draws
import oracle
import pytest
from cases import Case, check_clean
from conftest import unavailable
from patterns import matches
from tree_data import FOLDER, LINK, Made, plant, scan

DOCS = Path(__file__).parents[2] / "docs"
CASES = 60
WORDS = {
    "update": "-u", "existing": "--existing", "ignore_existing": "--ignore-existing",
    "size_only": "--size-only", "checksum": "--checksum", "delete": "--delete-after",
    "min_size_bytes": "--min-size={}", "max_size_bytes": "--max-size={}", "chmod": "--chmod={}",
    "remove_source_files": "--remove-source-files", "relative": "-R", "dry_run": "-n",
    "copy_links": "-L",
}  # fmt: skip


def drawn(rng: random.Random) -> dict[str, Any]:
    while True:
        names = rng.sample(sorted(WORDS), rng.randrange(4))
        given = {name: rng.choice(draws.SAMPLES[name]) for name in names}
        given |= {"recursive": True, "archive": True}
        if rng.random() < 0.5:
            given["filters"] = rng.choice(draws.SAMPLES["filters"])
        if not draws.refusal(given):
            return given


def rsync(given: dict[str, Any], sources: list[str], to: str, cwd: Path) -> int:
    words = [WORDS[name].format(value) for name, value in given.items() if name in WORDS]
    words += [f"--{kind}={pattern}" for kind, pattern in given.get("filters", ())]
    argv = ["rsync", "-aH", "--modify-window=-1", *words, "--", *sources, to]  # as ours: to the ns
    done = subprocess.run(argv, cwd=cwd, capture_output=True, check=False, timeout=200)
    return min(done.returncode, 1)  # 23 is what 1 is here


@pytest.mark.parametrize("seed", range(CASES))
def test_rsync_leaves_what_the_oracle_says(seed: int, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    rng = random.Random(seed)
    given, tree = drawn(rng), draws.source(rng, has_oddities=False)
    # Of -u rsync leaves out links; and what it leaves out it does with all names of a file.
    if {"update", "existing", "ignore_existing", "max_size_bytes", "min_size_bytes"} & {*given}:
        tree = {path: made for path, made in tree.items() if not made.same_as and made.kind != LINK}
    before = draws.before(rng, tree, rng.choice(draws.HISTORIES), has_clashes=False)
    if "copy_links" in given:  # rsync puts a folder where a link was
        before = {path: made for path, made in before.items() if made.kind != LINK}
    source, there = tmp_path / "s", tmp_path / "d"
    for folder, made in ((source, tree), (there, before)):
        folder.mkdir()
        plant(os.fsencode(folder), made)
    sources = [b"t/d"] if given.get("relative") and b"t/d" in tree else [b"t"]
    if "delete" in given:  # which rsync does also where a link leads nowhere
        given.pop("copy_links", None)
    case = Case(given, scan(os.fsencode(source)), sources, scan(os.fsencode(there)))
    verdict = oracle.judge(case)
    code = rsync(given, [os.fsdecode(each) for each in sources], str(there), source)
    after = scan(os.fsencode(source)), scan(os.fsencode(there))
    assert list(verdict.complaints(case, *after, code)) == [], given


def test_a_pattern_is_for_what_the_docs_say() -> None:
    rows = re.findall(
        r"^\| `(.*)` \| `(src/.*)` \| (yes|no) \|$", (DOCS / "filters.md").read_text(), re.M
    )
    assert len(rows) > 12
    for pattern, path, left_out in rows:
        parts = path.encode().split(b"/")
        ways = [b"/".join(parts[: count + 1]) for count in range(len(parts))]
        is_out = any(matches(pattern.encode(), way, way != path.encode()) for way in ways)
        assert is_out == (left_out == "yes"), (pattern, path)


def planted(root: Path, tree: dict[bytes, Made]) -> dict[bytes, Any]:
    root.mkdir()
    plant(os.fsencode(root), tree)
    return scan(os.fsencode(root))


def test_what_no_cut_may_leave_is_told(tmp_path: Path) -> None:
    tree = {b"t": Made(FOLDER, mode=0o755), b"t/f": Made("file", 1, 40)}
    source = planted(tmp_path / "s", tree)
    there = planted(tmp_path / "d", {**tree, b"t/f": Made("file", 9, 40)})
    case = Case({"archive": True}, source, [b"t"], there)
    assert list(oracle.permitted(case, source, there, [source])) == []
    assert list(oracle.permitted(case, source, {**there, b"t/f": source[b"t/f"]}, [source])) == []
    half = there | {b"t/f": source[b"t/f"]._replace(data=b"half")}
    assert list(oracle.permitted(case, source, half, [source]))
    gone = {path: node for path, node in there.items() if path != b"t/f"}
    assert list(oracle.permitted(case, source, gone, [source]))
    moving = Case({"archive": True, "remove_source_files": True}, source, [b"t"], there)
    left = {path: node for path, node in source.items() if path != b"t/f"}
    assert list(oracle.permitted(moving, left, there, [source]))
    landed = there | {b"t/f": source[b"t/f"]}
    assert list(oracle.permitted(moving, left, landed, [source])) == []


def test_what_is_left_of_pscps_own_is_told() -> None:
    assert list(check_clean([b"t/.big.XY.token.pscp-part", b"t/big"]))
