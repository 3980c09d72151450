"""What is kept of each target, and changes of it drawn at random: none does what it should not.

Real fuzzing is `scripts/fuzz` (fuzzing.py).

Not here: what each target checks (readers.py, ends.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from fuzz import ends, mutations, scratch
from fuzz.targets import TARGETS, corpus

SEED = int(os.environ.get("PSCP_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
MUTATIONS = 300  # of a target whose inputs take little


@pytest.fixture(autouse=True)
def _in_scratch() -> Iterator[None]:
    with scratch.made(), ends.quick():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept(name: str) -> None:
    kept = corpus(name)
    assert kept
    for data in kept:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_changes_of_it(name: str) -> None:
    """PSCP_FUZZ_SEED draws the same ones again."""
    target, kept, rng = TARGETS[name], corpus(name), random.Random(f"{SEED} {name}")
    for number in range(int(MUTATIONS * target.share)):
        data = mutations.mutated(rng.choice(kept), rng, target.most_bytes, kept)
        try:
            target.run(data)
        except BaseException as error:
            error.add_note(f"PSCP_FUZZ_SEED={SEED}, change {number} of {name}: {data!r:.2000}")
            raise
