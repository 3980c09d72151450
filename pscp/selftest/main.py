"""pscp-test: copies awkward files up and down, compares every byte, and prints the outcome.

`pscp-test DIR` works with a private SSH server on loopback, `pscp-test DIR HOST` with a real
host; either way in folders of its own, which it removes. `python -m pscp.selftest.main --demo` is
the demonstration that scripts/run shows.

The sizes of its files lie around those where the copy does something else: nothing, a block, a
chunk. The names are those that a shell, a terminal, an option parser or a decoder trips over.

Not here: the server (servers.py), and the tests of the project, which check far more, links, modes
and times among it (tests/). Read next: servers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from pscp.calls import api
from pscp.ground.errors import (
    ConnectError,
    CopyError,
    DestinationError,
    Interrupted,
    PscpError,
    Terminated,
    UsageError,
)
from pscp.ground.locations import Location, parse_location
from pscp.ground.signals import last_act, raise_on_signals
from pscp.ground.terminal_text import print_line, write_line, write_text
from pscp.ground.values import no_such_option
from pscp.options.option_rows import CHUNK_BYTES
from pscp.options.options import Options
from pscp.progress.display import make_reporter
from pscp.progress.progress import count, format_bytes, format_duration
from pscp.selftest.servers import PrivateServer, start_private_server

MIB = 1024 * 1024
CONNECTIONS = (1, 2, 20)
SSH_S = 60.0  # for a mkdir or rm at HOST, with a password to be typed
DEMO_CONNECTIONS = 4
DEMO_FILE_BYTES = 256 * MIB
DEMO_TREE_FILES = 200
_MIB = 1024 * 1024
SPARSE_BYTES = 24 * _MIB
NAMES = (
    b"a space",
    b" at both ends ",
    b"two\nlines",
    b"'single' \"double\" `back`",
    b"$HOME; exit 1 & true | cat > x",
    b"-x",
    b"--help",
    b"a:b",
    b"glob [a-z]*?{1,2}",
    b"~",
    b".hidden",
    b"back\\slash",
    "\u00fcn\u00efc\u00f6d\u00e9 \u2603".encode(),
    b"not UTF-8 \xff\xfe\x80",
    b"\x1b[31m",
    b"n" * 255,
)


def make_awkward_files(folder: Path) -> Iterator[str]:
    """Fill `folder`; yield a line for each name that this file system does not take."""
    block, chunk = Options().block_bytes, CHUNK_BYTES
    made_up = random.Random(folder.name)  # noqa: S311 - the same bytes each time
    (folder / "folder" / "in a folder").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    for size in (0, 1, block - 1, block, block + 1, chunk - 1, chunk, chunk + 1, 3 * chunk + 4321):
        (folder / f"{size} bytes").write_bytes(made_up.randbytes(size))
    with open(folder / "sparse", "wb") as sparse:
        for offset in (chunk + 1, SPARSE_BYTES // 2):
            sparse.seek(offset)
            sparse.write(made_up.randbytes(block))
        sparse.truncate(SPARSE_BYTES)
    for parent in (folder, folder / "folder" / "in a folder"):
        for name in NAMES:
            try:
                (parent / os.fsdecode(name)).write_bytes(name)
            except OSError as error:
                yield f"left out: {os.fsdecode(name)}: {error.strerror}"


def differences(left: bytes, right: bytes) -> list[str]:
    """Return what is not the same in two trees of files and folders, a line each."""
    if os.path.isdir(left) and os.path.isdir(right):
        names = {*os.listdir(left), *os.listdir(right)}
        pairs = ((os.path.join(left, name), os.path.join(right, name)) for name in sorted(names))
        return [line for pair in pairs for line in differences(*pair)]
    shown = os.fsdecode(right)
    if not os.path.lexists(right):
        return [f"{shown}: missing"]
    if not os.path.lexists(left):
        return [f"{shown}: not in the source"]
    if os.path.isfile(left) and os.path.isfile(right):
        return [] if same_bytes(left, right) else [f"{shown}: its content differs"]
    return [f"{shown}: not the same kind of file"]


def same_bytes(left: bytes, right: bytes) -> bool:
    with open(left, "rb") as a, open(right, "rb") as b:
        while block := a.read(_MIB):
            if block != b.read(_MIB):
                return False
        return not b.read(1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command pscp-test; returns its exit code."""
    with contextlib.suppress(SystemExit):  # argparse's, once it has answered --help or --version
        return guarded("pscp-test", lambda: self_test(parse(argv)))
    return 0


def guarded(program: str, job: Callable[[], int]) -> int:
    """Run `job` so that its with-blocks clean up on any end, and print an error in one line."""
    try:
        with raise_on_signals("nothing is kept of a test", name=program):
            return job()
    except PscpError as error:
        # Nothing is kept here, so the advice on how to go on would mislead.
        ended = isinstance(error, (Interrupted, Terminated))
        hint = f" ({error.hint})" if error.hint and not ended else ""
        write_line(sys.stderr, f"{program}: {error.message}{hint}")
        return error.exit_code if ended or isinstance(error, UsageError) else 1


class OneLineParser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: object = None) -> None:
        write_text(message, sys.stdout)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            text = message.split(": ", 1)[1].split(" ")[0]
            raise no_such_option(text, self._option_string_actions, "pscp-test --help shows them")
        raise UsageError(message, "pscp-test --help shows the usage")


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="pscp-test",
        description="Copies files of awkward sizes and names up and down with 1, 2 and 20 "
        "connections and compares them. Ends with ALL TESTS PASSED, or says what failed.",
    )
    shown = f"pscp-test {metadata.version('pscp')}"
    parser.add_argument("--version", action="version", version=shown, help="show the version")
    parser.add_argument("DIR", help="an existing folder to work in; needs about 200 MB")
    parser.add_argument("HOST", nargs="?", help="as for ssh; default: a private server, here")
    parser.add_argument(
        "--embedded", action="store_true", help="the private server is asyncssh's, even with sshd"
    )
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = make_parser().parse_args(argv)
    if not os.path.isdir(arguments.DIR):
        raise UsageError(f"{arguments.DIR}: no such folder", "DIR must exist")
    if arguments.HOST is not None:
        colon = "" if "://" in arguments.HOST else ":"
        arguments.HOST = parse_location(arguments.HOST + colon)
        if not arguments.HOST.host or arguments.HOST.path:
            raise UsageError("HOST is the name of a host alone", "pscp-test --help shows the usage")
    return arguments


def say(text: str) -> None:
    print_line(text)


def self_test(arguments: argparse.Namespace) -> int:
    with private_folder(arguments.DIR) as work, far_end(arguments, work) as far:
        source = work / "source"
        for line in make_awkward_files(source):
            say(line)
        steps = [run_step(far, work, n, up) for n in CONNECTIONS for up in (True, False)]
    if all(steps):
        say("ALL TESTS PASSED")
        return 0
    say(f"{steps.count(False)} of {len(steps)} TESTS FAILED")
    return 1


@dataclasses.dataclass(frozen=True)
class Far:
    """Where uploads go."""

    folder: Location
    config_file: str | None
    is_here: bool  # a private server: its files can be compared in place

    def at(self, name: str) -> Location:
        """Return the place of this name in the folder."""
        return dataclasses.replace(self.folder, path=f"{self.folder.path}/{name}")


@contextlib.contextmanager
def private_folder(parent: str | None) -> Iterator[Path]:
    """Make a folder, and have copies keep their state in it; remove both afterwards."""
    with new_folder(parent) as work:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(work / "state")
        try:
            yield work
        finally:
            if before is None:
                del os.environ["XDG_STATE_HOME"]
            else:
                os.environ["XDG_STATE_HOME"] = before


@contextlib.contextmanager
def new_folder(parent: str | None) -> Iterator[Path]:
    """Make a folder and remove it; its name is known before, so that no signal leaves it behind."""
    name = f"pscp-test-{secrets.token_hex(6)}"
    path = Path(parent or tempfile.gettempdir()).resolve() / name
    with last_act(lambda: shutil.rmtree(path, ignore_errors=True)):
        try:
            path.mkdir(mode=0o700)
            yield path
        except OSError as error:
            if path.exists():
                raise
            raise UsageError(f"{parent}: {error.strerror}", "DIR must be writable") from None
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def private_server(kind: str) -> Iterator[PrivateServer]:
    """Start a server whose files are in a new folder for temporary files."""
    with new_folder(None) as folder:
        before, tempfile.tempdir = tempfile.tempdir, str(folder)
        try:
            with start_private_server(kind) as server:
                yield server
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def far_end(arguments: argparse.Namespace, work: Path) -> Iterator[Far]:
    """Have a folder to copy to at HOST, or on a private server here; remove it afterwards."""
    if arguments.HOST is None:
        with private_server("embedded" if arguments.embedded else "auto") as server:
            say(f"private SSH server on loopback: {server.kind}")
            yield far_here(server, work)
        return
    # Of [a-z0-9-] only: this is the one name that goes through a shell at HOST.
    name = f"pscp-test-{secrets.token_hex(8)}"
    run_at(arguments.HOST, f"mkdir -m 700 {name}")
    try:
        yield Far(dataclasses.replace(arguments.HOST, path=name), None, is_here=False)
    finally:
        run_at(arguments.HOST, f"rm -rf {name}")


def far_here(server: PrivateServer, work: Path) -> Far:
    folder = work / "far"
    folder.mkdir()
    return Far(Location(server.host, str(folder), server.host), server.ssh_config, is_here=True)


def run_at(host: Location, command: str) -> None:
    """Have the user's shell at the host run a command. Raises ConnectError."""
    port = ["-p", str(host.port)] if host.port else []
    argv = ["ssh", *port, "--", host.login, command]
    try:
        done = subprocess.run(argv, stderr=subprocess.PIPE, timeout=SSH_S, check=False)
    except FileNotFoundError:
        raise ConnectError("ssh is not installed") from None
    except subprocess.TimeoutExpired:
        raise ConnectError(f"{host.login}: no answer to: {command}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise ConnectError(f"{host.login}: {command}: {said[-1]}")


def run_step(far: Far, work: Path, connections: int, is_upload: bool) -> bool:
    """Copy everything once and compare; print a line, and more if that failed."""
    name = str(connections)
    source, back, up = work / "source", work / f"back-{name}", far.at(name)
    ends = (source, up) if is_upload else (up, back)
    problems = try_copy(far, connections, *ends)
    if not is_upload:
        problems += differences(os.fsencode(source), os.fsencode(back))
    elif far.is_here:
        problems += differences(os.fsencode(source), os.fsencode(up.path))
    files = [path for path in source.rglob("*") if path.is_file()]
    size = format_bytes(sum(path.stat().st_size for path in files))
    title = f"{'upload' if is_upload else 'download'}, {count(connections, 'connection')}"
    say(f"{title}: {len(files)} files, {size}: {'FAILED' if problems else 'ok'}")
    for problem in problems:
        say(f"  {problem}")
    if not is_upload:
        shutil.rmtree(back, ignore_errors=True)
    return not problems


def try_copy(
    far: Far, connections: int, source: Path | Location, destination: Path | Location
) -> list[str]:
    """Copy, and return what went wrong."""
    ends = (str(end) if isinstance(end, Path) else end for end in (source, destination))
    options = Options(
        recursive=True, connections=connections, config_file=far.config_file, batch=far.is_here
    )
    try:
        result = api.copy(*ends, options=options)
    except (Interrupted, Terminated):
        raise
    except PscpError as error:
        return [error.message]
    return [f"{failure.path}: {failure.message}" for failure in result.failures]


def demo() -> int:
    """Copy a large file and a tree with the bar; return an exit code."""
    with private_folder(None) as work, private_server("embedded") as server:
        far, source, back = far_here(server, work), work / "source", work / "back"
        back.mkdir()
        say(f"making a file of {DEMO_FILE_BYTES // MIB} MiB and a small tree, of random bytes")
        make_demo_files(source)
        say(f"copying to a private SSH server on this machine ({server.kind}) and back")
        names = ("big.bin", "tree")
        show("up", far, [str(source / name) for name in names], far.folder)
        show("back", far, [far.at(name) for name in names], str(back))
        problems = differences(os.fsencode(source), os.fsencode(back))
        for line in problems or ["compared byte for byte with the source: the same"]:
            say(line)
    return 1 if problems else 0


def make_demo_files(folder: Path) -> None:
    """Write files of random bytes, so that neither compression nor holes make the copy easy."""
    needed = 3 * DEMO_FILE_BYTES + 32 * MIB  # here, at the far end, and back
    if shutil.disk_usage(folder.parent).free < needed:
        message = f"{folder.parent}: not enough space, {format_bytes(needed)} needed"
        raise DestinationError(message, "set TMPDIR to a folder with more")
    folder.mkdir()
    with open(folder / "big.bin", "wb") as big:
        for _ in range(DEMO_FILE_BYTES // MIB):
            big.write(os.urandom(MIB))
    for number in range(DEMO_TREE_FILES):
        parent = folder / "tree" / f"folder-{number % 8}"
        parent.mkdir(parents=True, exist_ok=True)
        (parent / f"file-{number}").write_bytes(os.urandom(number * number))


def show(
    way: str, far: Far, sources: Sequence[str | Location], destination: str | Location
) -> None:
    """Copy with the bar and print what was done. Raises PscpError unless every file arrived."""
    options = Options(
        recursive=True, connections=DEMO_CONNECTIONS, config_file=far.config_file, batch=True
    )
    reporter = make_reporter(options, sys.stderr.isatty())
    result = api.copy(sources, destination, options=options, reporter=reporter)
    for failure in result.failures:
        raise CopyError(f"{failure.path}: {failure.message}", failure.hint)
    rate = format_bytes(result.bytes / max(result.seconds, 0.001))
    say(
        f"{way}, {count(result.connections, 'connection')}: {count(result.files, 'file')}, "
        f"{format_bytes(result.bytes)} in {format_duration(result.seconds)} ({rate}/s); "
        f"{count(result.chunks_verified, 'chunk')}, every one verified"
    )


if __name__ == "__main__":
    sys.exit(guarded("demo", demo) if sys.argv[1:] == ["--demo"] else main())
