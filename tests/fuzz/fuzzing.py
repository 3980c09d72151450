"""Fuzzing for a while: `scripts/fuzz [TARGET] [SECONDS]`; without a TARGET each in turn.

With atheris, the fuzzer that is guided by what of pscp an input runs, where it is installed; else
with changes drawn at random from the corpus. `scripts/fuzz --seeds` writes anew what the corpus has
of pscp's binary formats. An input that fails is written to build/fuzz/TARGET/, and named.

Not here: the inputs of each test run (test_corpus.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]
FOUND = HERE.parent.parent / "build" / "fuzz"
SECONDS = 600


def main(words: list[str]) -> int:
    if words == ["--seeds"]:
        return write_seeds()
    if words[:1] == ["--guided"]:
        return guided(words[1], float(words[2]))
    from fuzz.targets import TARGETS

    names = [word for word in words if not word.isdigit()]
    seconds = next((float(word) for word in words if word.isdigit()), SECONDS)
    if unknown := set(names) - set(TARGETS):
        print(f"fuzz: no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
        return 2
    has_atheris = importlib.util.find_spec("atheris") is not None
    if not has_atheris:
        print("fuzz: without atheris (pip install atheris), so not guided by coverage")
    failed = 0
    for name in names or TARGETS:
        if has_atheris:  # which ends its process
            argv = [sys.executable, __file__, "--guided", name, str(seconds)]
            failed |= subprocess.run(argv, check=False).returncode
        else:
            failed |= drawn(name, seconds)
    return int(bool(failed))


def write_seeds() -> int:
    from fuzz import scratch
    from fuzz.targets import CORPUS, TARGETS

    with scratch.made():
        for name, target in TARGETS.items():
            folder = CORPUS / name
            folder.mkdir(parents=True, exist_ok=True)
            for place, seed in enumerate(target.seeds()):
                (folder / f"seed-{place:02}").write_bytes(seed)
    return 0


def keep(name: str, data: bytes) -> Path:
    """Write down an input that fails."""
    path = FOUND / name / f"crash-{hashlib.sha256(data).hexdigest()[:16]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def drawn(name: str, seconds: float) -> int:
    """Fuzz with changes of the corpus drawn at random."""
    from fuzz import mutations, scratch
    from fuzz.targets import TARGETS, corpus

    target, seed = TARGETS[name], int.from_bytes(os.urandom(4), "big")
    rng, known, count, until_s = random.Random(seed), corpus(name), 0, time.monotonic() + seconds
    with scratch.made():
        while time.monotonic() < until_s:
            data = mutations.mutated(rng.choice(known), rng, target.most_bytes, known)
            try:
                target.run(data)
            except BaseException:
                traceback.print_exc()
                print(f"fuzz: {name} fails with {keep(name, data)}")
                return 1
            count += 1
    print(f"fuzz: {name}: {count} inputs in {seconds:.0f} s, seed {seed}: nothing found")
    return 0


def guided(name: str, seconds: float) -> int:
    """Fuzz with atheris, in a process of its own."""
    import atheris

    with atheris.instrument_imports(include=["pscp"], enable_loader_override=False):
        from fuzz import mutations, scratch
        from fuzz.targets import CORPUS, TARGETS, corpus

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, resource.RLIM_INFINITY))
    target, known = TARGETS[name], corpus(name)
    found = FOUND / name
    new = found / "new"  # inputs that run what none before did
    new.mkdir(parents=True, exist_ok=True)

    def change(data: bytes, most_bytes: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, most_bytes))
        return mutations.mutated(data, rng, most_bytes, known)

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            keep(name, data)
            raise

    with scratch.made():
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={seconds:.0f}", f"-max_len={target.most_bytes}",
             "-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=1",
             f"-artifact_prefix={found}/", str(new), str(CORPUS / name)],
            run, custom_mutator=change,
        )  # fmt: skip
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
