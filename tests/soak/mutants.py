"""Takes mends out of a copy of pscp, one at a time, and runs the model until it finds that.

Not here: which they are (../model/mutants.py), the model (../model/whole.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
FIRST_SEED = 1
NONE = Mutant("none", "__init__.py", "", "", "pscp as it is")
LIMIT_S = float(os.environ.get("PSCP_MODEL_S", 600))
_RUN = "import soak.model; soak.model.run({seconds}, {seed}, {most}, True, {focus!r})"


def run(examples: int = 300, only: str | None = None, directed: bool = False) -> int:
    """Print a line for each mutant; returns 1 if one was not found.

    With `directed` all examples are of the focus that its finding has (../model/drawn.py).
    """
    missed = 0
    for mutant in MUTANTS if directed else (NONE, *MUTANTS):
        if only is None or mutant.finding == only:
            focus = mutant.finding if directed and not mutant.test else ""
            count, why = found(mutant, examples, focus)
            missed += bool(why) if mutant is NONE else not (why or mutant.is_race)
            result = f"found after {count}" if why else f"NOT found in {count}"
            result += " (test_model.py does)" if mutant.is_race and not why else ""
            print(f"{mutant.finding:12} {mutant.note:58} {result:22} {why[:90]}", flush=True)
    return 1 if missed else 0


def found(mutant: Mutant, examples: int, focus: str) -> tuple[int, str]:
    """Return how many examples were tried, and what was wrong in the last; "": nothing."""
    with tempfile.TemporaryDirectory() as home:
        package = Path(home) / "pscp"
        shutil.copytree(ROOT / "pscp", package, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in ((mutant.file, mutant.old, mutant.new), mutant.also):
            if old:
                text = (package / file).read_text()
                assert text.count(old) == 1, f"{file} has no such place: {old}"
                (package / file).write_text(text.replace(old, new))
        if mutant.test:
            return 1, _by_test(home, mutant.test)
        paths = [home, *(str(ROOT / each) for each in ("tests", "tests/model"))]
        program = _RUN.format(seconds=LIMIT_S, seed=FIRST_SEED, most=examples, focus=focus)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=home, capture_output=True, text=True, errors="backslashreplace", check=False,
        )  # fmt: skip
    counts = re.search(r"^(\d+) examples", done.stdout, re.MULTILINE)
    assert counts, done.stdout + done.stderr
    wrong = re.search(r"^    (run \d.*|the run .*)$", done.stdout, re.MULTILINE)
    bug = "BUG of the model" if "BUG" in done.stdout else ""
    return int(counts[1]), wrong[1] if wrong else bug


def _by_test(home: str, test: str) -> str:
    """Run a test with the package in this folder; return what failed, "" if nothing did."""
    words = ["-m", "pytest", "-qx", "-p", "no:cacheprovider", "--timeout=60"]
    env = {**os.environ, "PYTHONPATH": home}
    done = subprocess.run(
        [sys.executable, *words, f"{ROOT}/tests/{test}"],
        env=env, cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    failed = re.search("^FAILED (.*)$", done.stdout, re.MULTILINE)
    assert failed or not done.returncode, done.stdout + done.stderr
    return failed[1] if failed else ""
