"""Programs that tests write, and file systems that they mount.

Not here: programs with what docs and examples need (e2e/world.py).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from conftest import unavailable

# Of an ssh that is none, which can be asked for its configuration all the same.
ASKED = 'case " $* " in *" -G "*) exec ssh "$@";; esac\n'


def script(path: Path, text: str) -> Path:
    """Make a program of lines of shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def mounted(place: Path, *words: str | Path) -> Iterator[None]:
    """Mount something at a folder, with these words of mount(8)."""
    try:
        subprocess.run(["mount", *words, place], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        unavailable("mounting takes root's powers")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def small_disk(place: Path, options: str) -> Iterator[None]:
    """Give a folder a file system of its own, with these options of tmpfs."""
    with mounted(place, "-t", "tmpfs", "-o", options, "none"):
        yield
