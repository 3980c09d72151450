"""Half a minute's part of scripts/soak: some pairs of options, and some disturbed copies.

A failure shows the case, and the command that repeats it: `scripts/soak wild 1 --seed N`.
"""

from __future__ import annotations

import os
import random

import pytest
from conftest import require_sshd

from soak import pairs, wild

WILD_S = float(os.environ.get("PSCP_WILD_S", 20))
PAIRS = 60  # of each run; another part of them in each


def test_what_pairs_of_options_leave_is_what_the_oracle_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_sshd()
    every = len(list(pairs.pairs())) // PAIRS
    code = pairs.run(every, is_loud=False, offset=random.randrange(every))
    assert code == 0, capsys.readouterr().out


def test_no_fault_loses_anything(capsys: pytest.CaptureFixture[str]) -> None:
    require_sshd()
    code = wild.run(WILD_S)
    assert code == 0, capsys.readouterr().out
