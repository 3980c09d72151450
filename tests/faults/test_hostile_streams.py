"""A far end that lies about the command of a stream: there is a clear end, and no exit code of 0.

Not here: copies (test_hostile.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.test_hostile import Victim
from pscp.cli import pipe as pipecli

pytestmark = pytest.mark.timeout(60)


Piped = Callable[..., tuple[int, str]]


@pytest.fixture
def piped(own_home: Path, capfd: pytest.CaptureFixture[str]) -> Piped:
    victim = Victim(own_home, capfd)

    def pipe(answer: dict[str, Any], *words: str) -> tuple[int, str]:
        """Exit code and words of a stream whose command is said to have said, or ended as, this."""
        scenario = f"Output:{json.dumps(answer)}"
        victim.words(scenario)
        argv = ["-BS", str(own_home / "ssh"), "-c", "1", *words, "far", "true"]
        code = victim.main(scenario, argv, pipecli.main)
        return code, capfd.readouterr().err

    return pipe


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 256}, {"status": -1}, {"status": 1 << 70}, {"status": True}, {"status": "0"},
        {"status": 0.0}, {"said": [["\ud800", 3]]}, {"said": [["x", -5]]},
        {"said": [["x", 1 << 70]]}, {"said": [["x", 2]]}, {"said": [["x", 1]] * 3},
        {"said": 5}, {"status": []},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_cannot_be(piped: Piped, answer: dict[str, Any]) -> None:
    """D4: an exit status of 256 became an exit code of 0; others were a traceback."""
    for words in (["--producer", "true"], ["--from"]):
        code, said = piped(answer, *words)
        assert code == pipecli.OWN_FAILURE
        assert said.startswith("pscp-pipe: an answer of another shape: "), said
        assert said.count("\n") <= 2 and "Traceback" not in said


@pytest.mark.parametrize("status", [0, 1, 137, 255])
def test_an_exit_status_is_passed_on(piped: Piped, status: int) -> None:
    """What is not of another shape: else the tests above could pass for no reason."""
    code, said = piped({"status": status}, "--producer", "true")
    assert (code, said) == (status, "")
