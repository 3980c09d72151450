"""The demonstration of scripts/run: a large file and a tree go to a private SSH server and back.

The server is one of those that the tests use, made with asyncssh; all that it and the copies write
lies in a folder for temporary files, which is removed. Of tests/ it takes what needs no test
runner: scripts/run has installed none.

Not here: the server (../../tests/servers/private.py). Read next: ../../examples.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from servers.private import EmbeddedServer

from pscp import Location, Options, PscpError, copy
from pscp.ground.signals import raise_on_signals
from pscp.ground.terminal_text import print_line, write_line
from pscp.progress.display import make_reporter
from pscp.progress.progress import count, format_bytes, format_duration

MIB = 1024 * 1024
CONNECTIONS = 4
FILE_BYTES = 256 * MIB
TREE_FILES = 200
NAMES = ("big.bin", "tree")


def main() -> int:
    """Copy up and back with the bar, compare, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="pscp-demo-") as name:
        os.environ["TMPDIR"] = tempfile.tempdir = name
        work = Path(name)
        os.environ["XDG_STATE_HOME"] = str(work / "state")
        with EmbeddedServer() as server:
            show_all(work, server)
    return 0


def show_all(work: Path, server: EmbeddedServer) -> None:
    """Show both ways. Raises PscpError where not every file arrives whole."""
    source, far, back = work / "source", work / "far", work / "back"
    for folder in (source, far, back):
        folder.mkdir()
    print_line(f"making a file of {FILE_BYTES // MIB} MiB and a small tree, of random bytes")
    make_files(source)
    print_line(f"copying to a private SSH server on this machine ({server.kind}) and back")
    options = Options(
        recursive=True, connections=CONNECTIONS, config_file=server.ssh_config, batch=True
    )
    there = [Location(server.host, str(far / name), server.host) for name in ("", *NAMES)]
    show("up", [str(source / name) for name in NAMES], there[0], options)
    show("back", there[1:], str(back), options)
    if subprocess.run(["diff", "-r", source, back], stdout=subprocess.DEVNULL).returncode:
        raise PscpError("what came back differs from the source")
    print_line("compared byte for byte with the source: the same")


def make_files(folder: Path) -> None:
    """Write files of random bytes, so that neither compression nor holes make the copy easy."""
    needed = 3 * FILE_BYTES + 32 * MIB  # here, at the far end, and back
    if shutil.disk_usage(folder).free < needed:
        raise PscpError(f"{folder}: not enough space, {format_bytes(needed)} needed: set TMPDIR")
    with open(folder / "big.bin", "wb") as big:
        for _ in range(FILE_BYTES // MIB):
            big.write(os.urandom(MIB))
    for number in range(TREE_FILES):
        parent = folder / "tree" / f"folder-{number % 8}"
        parent.mkdir(parents=True, exist_ok=True)
        (parent / f"file-{number}").write_bytes(os.urandom(number * number))


def show(
    way: str, sources: Sequence[str | Location], destination: str | Location, options: Options
) -> None:
    """Copy with the bar, and print what was done. Raises PscpError unless every file arrived."""
    reporter = make_reporter(options, sys.stderr.isatty())
    result = copy(sources, destination, options=options, reporter=reporter, raises=False)
    for failure in result.failures:
        raise PscpError(f"{failure.path}: {failure.message}")
    rate = format_bytes(result.bytes / max(result.seconds, 0.001))
    print_line(
        f"{way}, {count(result.connections, 'connection')}: {count(result.files, 'file')}, "
        f"{format_bytes(result.bytes)} in {format_duration(result.seconds)} ({rate}/s); "
        f"{count(result.chunks_verified, 'chunk')}, every one verified"
    )


if __name__ == "__main__":
    try:
        with raise_on_signals("nothing is kept of the demonstration", name="demo"):
            sys.exit(main())
    except PscpError as error:
        write_line(sys.stderr, f"demo: {error.message}")
        sys.exit(error.exit_code or 1)
