"""Half a minute's part of scripts/soak: some pairs of options, and some disturbed copies.

The seed is printed; `scripts/soak wild 1 --seed N` repeats the case that failed.
"""

from __future__ import annotations

import os
import random

from conftest import require_sshd

from soak import pairs, wild

WILD_S = float(os.environ.get("PSCP_WILD_S", 20))
PAIRS = 60  # of each run; another part of them in each


def test_what_pairs_of_options_leave_is_what_the_oracle_says() -> None:
    require_sshd()
    every = len(list(pairs.pairs())) // PAIRS
    assert pairs.run(every, is_loud=False, offset=random.randrange(every)) == 0


def test_no_fault_loses_anything() -> None:
    require_sshd()
    assert wild.run(WILD_S) == 0
