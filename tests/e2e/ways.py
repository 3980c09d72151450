"""One direction of a copy, so that a test of it runs as push and as pull.

Not here: the fixtures that make one (conftest.py) and the comparison of trees (../compare.py).
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import forked
from servers.private import PrivateServer

import pscp
from e2e.kept_command import goes_over, run_over
from pscp.calls.api import Progress
from pscp.options.option_fields import OptionFields
from pscp.progress.progress import Reporter

COMMAND_S = 200.0  # a command that hangs fails its test, rather than the whole run
PSCP = (sys.executable, "-c", "import sys; from pscp.cli.copy import main; sys.exit(main())")
ZFS = (sys.executable, "-c", "import sys; from pscp.cli.zfs import main; sys.exit(main())")
VERIFY = (sys.executable, "-c", "import sys; from pscp.cli.verify import main; sys.exit(main())")
PIPE = (sys.executable, "-c", "import sys; from pscp.cli.pipe import main; sys.exit(main())")


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(argv: Sequence[str], **popen: Any) -> Ran:
    """Run a command to its end, without a terminal."""
    popen = {"stdin": subprocess.DEVNULL, "timeout": COMMAND_S, **popen}
    done = forked.run(argv, capture_output=True, **popen)
    return Ran(done.returncode, *(os.fsdecode(said) for said in (done.stdout, done.stderr)))


def make(folder: Path, *names: str) -> None:
    """Make files that say their name; one that ends with a slash is a folder."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text(name)


def below(folder: Path) -> set[str]:
    """Return the names of all that is below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def files_of(folder: Path) -> set[str]:
    """Return the names of all that is below a folder and is none itself."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)) for path in found}


class Notes(Reporter):
    """Keeps what a person would be shown."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@dataclasses.dataclass(frozen=True)
class Way:
    """Push or pull: what lies in `source` goes to `destination`. Both are empty folders here."""

    is_push: bool
    server: PrivateServer
    source: Path
    destination: Path
    session: pscp.Session | None = None  # with connections that are open already
    of_commands: pscp.Session | None = None  # over which commands go, where they can
    prefix: tuple[str, ...] = ()  # what the command is run by
    umask: int = -1  # of the command
    remote: Any = "agent"  # or sftp
    transport: Any = "auto"
    plane: Any = "auto"

    @property
    def own(self) -> Way:
        """The same way over connections of its own, which end with each copy."""
        return dataclasses.replace(self, session=None, of_commands=None)

    @property
    def sent_from(self) -> str:
        """What goes before a source's path; far names are typed, near ones need nothing."""
        return "" if self.is_push else f"{self.server.host}:"

    @property
    def sent_to(self) -> str:
        return f"{self.server.host}:" if self.is_push else ""

    @property
    def arrived(self) -> set[str]:
        """The names of all that lies at the destination."""
        return below(self.destination)

    @property
    def files(self) -> list[str]:
        """The names of what lies at the destination, without the folders."""
        return sorted(files_of(self.destination))

    def locations(self, names: Sequence[str], to: str) -> tuple[list[str], str]:
        """Names below `source` and `destination` as locations; absolute ones stay as they are."""
        sources = [self.sent_from + os.path.join(self.source, name) for name in names]
        return sources, self.sent_to + os.path.join(self.destination, to)

    def copy(
        self, *names: str, to: str = "", options: pscp.Options | None = None,
        reporter: Reporter | None = None, progress: Progress | None = None,
        terms: pscp.JobTerms | None = None, **fields: Unpack[OptionFields],
    ) -> pscp.Result:  # fmt: skip
        """Through the API, with -r unless said otherwise.

        Tests share the session that is open already, so none may have it open, and keep, more
        connections: `own` has one of its own for each copy.
        """
        fields = {"recursive": True, "remote": self.remote, "plane": self.plane, **fields}
        sources, destination = self.locations(names, to)
        if self.session is not None:
            assert options is None, "a session has options of its own"
            assert not fields.keys() & {"connections", "channels"}, "it would keep what it opens"
            return self.session.copy(
                sources, destination, reporter=reporter, progress=progress, terms=terms,
                raises=False, **fields,
            )  # fmt: skip
        fields = {
            "connections": 1, "batch": True, "transport": self.transport,
            "config_file": self.server.ssh_config, **fields,
        }  # fmt: skip
        return pscp.copy(
            sources, destination, options=options, reporter=reporter, progress=progress,
            terms=terms, raises=False, **fields,
        )  # fmt: skip

    def command(self, *words: str, names: Sequence[str], to: str = "") -> Ran:
        """Through the command line, over one connection unless `words` say otherwise.

        One that is open already is used where it can be (kept_command.py); not with `own`.
        """
        sources, destination = self.locations(names, to)
        return self.typed(*words, "--", *sources, destination)

    def argv(self, *words: str) -> list[str]:
        fixed = ["-F", self.server.ssh_config, "-B", "-c", "1", "--transport", self.transport]
        return [*self.prefix, *PSCP, *fixed, "--remote", self.remote, "--plane", self.plane, *words]

    def typed(self, *words: str, cwd: Path | None = None) -> Ran:
        """The command with exactly these words, but for how the server is reached."""
        argv = self.argv(*words)
        session, its = self.of_commands, argv[len(PSCP) :]
        is_usual = (cwd, self.prefix, self.umask) == (None, (), -1)
        if session is not None and is_usual and goes_over(session, its):
            return Ran(*run_over(session, its))
        return run(argv, cwd=cwd, umask=self.umask)
