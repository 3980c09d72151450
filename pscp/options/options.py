"""The options of a copy, checked and frozen.

An Options is sound: whatever is wrong is refused with a UsageError while it is made, so nothing
below this module checks it again.

Not here: each single option (copy_options.py, connection_options.py), which of them go together
(option_pairs.py), locations (../ground/locations.py), how values are read (../ground/values.py),
how a command line is read (arguments.py), what errors call an option (keywords.py), and anything
that opens a file or a connection.
Read next: copy_options.py.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pscp.ground.errors import UnknownOption, UsageError
from pscp.ground.locations import check_path
from pscp.ground.values import check_range, check_tuple, show_size
from pscp.options import option_pairs
from pscp.options import option_rows as bounds
from pscp.options.connection_options import ConnectionOptions
from pscp.options.copy_options import CopyOptions
from pscp.options.habits import NOT_IN_PLACE
from pscp.options.keywords import in_keywords
from pscp.options.option_rows import COPYING, check_row, rows_of, with_keywords

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

_IMPLIED = {
    "archive": "preserve", "check": "dry_run", "backup_dir": "backup", "itemize": "verbose",
}  # fmt: skip
MAX_LINK_DEST = 20  # as rsync
UNCOMPRESSED = "Compression=no"  # an ssh_option that pscp-zfs adds, and nobody types
MAX_FILTER_BYTES = 512 * 1024  # of their regular expressions: half of what a frame may hold


@with_keywords(CopyOptions, ConnectionOptions)
@dataclass(frozen=True)
class Options(ConnectionOptions, CopyOptions):
    """The options of a copy; every field has a default."""

    if TYPE_CHECKING:  # lists will do for tuples, and choices are Literal types

        def __init__(self, **fields: Unpack[OptionFields]) -> None: ...

    def __post_init__(self) -> None:
        with in_keywords():
            self._complete()

    def _complete(self) -> None:
        """Set what other options imply, and check them all."""
        if self.archive and self.files_from is None:  # what is in a listed folder comes with -r
            object.__setattr__(self, "recursive", True)
        for name, implied in _IMPLIED.items():
            if getattr(self, name):
                object.__setattr__(self, implied, True)
        if self.transfer_test:
            object.__setattr__(self, "strong", False)  # nothing lands that could be read back
        for name, default, row in ROWS.values():
            check_row(self, name, default, row)
        _check_together(self)
        _check_attributes(self)
        _check_filters(self)

    @property
    def follows_links(self) -> bool:
        """Return whether what a symlink leads to is copied in its place."""
        return self.copy_links or not self.archive

    @property
    def has_whole_paths(self) -> bool:
        """Return whether each source keeps its whole path; in a list each path does anyway."""
        return self.relative and self.files_from is None

    @property
    def has_plane(self) -> bool:
        """Return whether the lanes are to go over TCP directly, instead of over SSH."""
        return self.plane in ("tls", "plain")

    def address(self, number: int) -> str:
        """Return the address to connect from (--bind), of connections counted from 0; "": any."""
        return self.bind[number % len(self.bind)] if self.bind else ""

    def cpu(self, number: int) -> int | None:
        """Return the processor of this connection's process (--cpus); None: the kernel decides."""
        return self.cpus[number % len(self.cpus)] if self.cpus else None

    @property
    def backups(self) -> tuple[str, ...]:
        """The suffix and the folder of what is replaced; () where that is not kept."""
        suffix = self.suffix if self.suffix is not None else "" if self.backup_dir else "~"
        return (suffix, (self.backup_dir or "").rstrip("/")) if self.backup else ()

    @property
    def needs_agent(self) -> str:
        """Return the option, if any, for which a push has to find an agent at the far end."""
        return "--backup" if self.backup else "--link-dest" if self.link_dest else ""

    def with_agent(self, what: str) -> Options:
        """Return these options, with an agent to be used. Raises UsageError for remote="sftp"."""
        if self.remote == "sftp":
            raise UsageError(f"{what} needs the agent", "leave out --remote sftp")
        return replace(self, remote="agent")

    def with_absolute_paths(self) -> Options:
        """Return these options with absolute paths of what ssh reads, for another folder."""
        config = self.config_file
        identities = (
            os.path.abspath(path) if os.path.exists(path) else path for path in self.identities
        )
        return replace(
            self,
            program=os.path.abspath(self.program) if "/" in self.program else self.program,
            config_file=config if config in (None, "none") else os.path.abspath(str(config)),
            identities=tuple(identities),
        )


_init = Options.__init__


@functools.wraps(_init)
def _checked_init(self: Options, *given: object, **fields: object) -> None:
    check_names(fields, Options.__dataclass_fields__)  # else Python says what __init__() got
    _init(self, *given, **fields)  # type: ignore[arg-type]


Options.__init__ = _checked_init  # type: ignore[method-assign]
ROWS = {row[0]: row for row in rows_of(Options)}  # with the name and the default of each
CHOICES = {name: row.among for name, _, row in ROWS.values() if row.among}


# What rsync or subprocess has, and what to do here.
_OF_OTHERS = {
    "timeout": "run() alone has one; timeout_s is for the connection",
    "input": "Session.pipe_to() writes to a command",
    "capture_output": "run() returns what a command wrote anyway",
    "inplace": f"leave it out: {NOT_IN_PLACE}",
}


def with_fields(
    options: Options, given: Mapping[str, object], call: Callable[..., object] | None = None
) -> Options:
    """Return the options with these fields replaced. Raises UnknownOption for an unknown one.

    `call` is the function that they were given to.
    """
    check_names(given, Options.__dataclass_fields__, call)
    if not isinstance(options, Options):
        raise UsageError(f"options must be pscp.Options, not {options!r}", "or give keywords")
    return replace(options, **given)  # type: ignore[arg-type]  # __post_init__ checks them


def check_names(
    given: Iterable[str], known: Iterable[str], call: Callable[..., object] | None = None
) -> None:
    """Raise UnknownOption for a keyword that there is not, with the one that was meant, perhaps:
    of these, or of the parameters of `call`.
    """
    names = set(known)
    for name in given:
        if name not in names:
            import difflib  # here: it takes long to load, for a slip of the finger
            import inspect

            own = inspect.signature(call).parameters if call is not None else ()
            close = difflib.get_close_matches(name, sorted({*names, *own} - {"fields", "self"}), 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            hint = "help(pscp.Options) and docs/api.md list them"
            if name in _OF_OTHERS:
                meant, hint = "", _OF_OTHERS[name]
            raise UnknownOption(f"no such option: {name}{meant}", hint)


def check_concern(call: str, given: Iterable[str], *taken: str) -> None:
    """Raise UsageError for a keyword that is for copies alone, and not among those taken."""
    names = {name for name, *_ in rows_of(CopyOptions)}
    names |= {name for name, _, row in rows_of(ConnectionOptions) if row.commands[:1] == COPYING}
    of_copies = names.difference(taken)
    for name in given:
        if name in of_copies:
            hint = "leave it out"
            if name == "check" and call == "a command":  # as subprocess.run() has it
                hint = "run() returns the exit status, and raises nothing for one that is not 0"
            raise UsageError(f"{name} is for copies, and says nothing to {call}", hint)


def _check_together(options: Options) -> None:
    """Refuse options that do not go together, and bounds that no file keeps."""
    chunk_bytes = bounds.CHUNK_BYTES if options.chunk_bytes is None else options.chunk_bytes
    least_bytes = min(options.block_bytes, bounds.MIN_CHUNK_BYTES)
    check_range("--chunk-size", chunk_bytes, least_bytes, bounds.MAX_CHUNK_BYTES, show_size)
    for message, hint in option_pairs.problems(options):
        raise UsageError(message, hint)
    for what, unit in (("size", "bytes"), ("age", "s")):
        least, most = (getattr(options, f"{end}_{what}_{unit}") for end in ("min", "max"))
        if least is not None and most is not None and least > most:
            raise UsageError(f"--min-{what} is more than --max-{what}: no file could be both")
    if options.backup:
        suffix, folder = options.backups
        _check_backups(suffix, folder or options.backup_dir or "")
        if options.delete and not options.backup_dir:
            raise UsageError(
                "--delete with --backup needs --backup-dir",
                "such as --backup-dir ../old: what is deleted is kept there as well",
            )
    if len(options.link_dest) > MAX_LINK_DEST:
        raise UsageError(f"--link-dest: at most {MAX_LINK_DEST} folders, as with rsync")


def _check_backups(suffix: str, folder: str) -> None:
    if "/" in suffix or not (suffix or folder):
        raise UsageError(f"--suffix: {suffix!r} is not the end of a name")
    below = (
        folder.removeprefix("/") if folder.startswith("/") else re.sub("^([.][.]/)+", "", folder)
    )
    if {"", ".", ".."} & set(below.split("/") if folder else ()):
        raise UsageError(
            f"--backup-dir: {folder!r} is not a folder in DEST or beside it",
            'such as "old" or "../old/monday"',
        )


def _check_attributes(options: Options) -> None:
    if options.chmod is None and options.chown is None:
        return
    from pscp.options import attributes  # here: few copies need it

    if options.chmod is not None:
        attributes.parse_modes(options.chmod, 0)
    if options.chown is not None:
        attributes.parse_owner(options.chown)


def _check_filters(options: Options) -> None:
    if not options.filters:
        return
    from pscp.options.filters import regexes  # here: few copies have filters

    for each in check_tuple("filters", options.filters):
        if not (
            isinstance(each, tuple | list)
            and len(each) == 2
            and all(isinstance(text, str) for text in each)
        ):
            shown = '("exclude", "*.tmp")'
            hint = 'copy(..., exclude="*.tmp") is shorter'
            raise UsageError(f"filters: {each!r} is no pair such as {shown}", hint)
        kind, pattern = each
        if kind not in ("exclude", "include"):
            raise UsageError(f"filters: each is to exclude or include, not to {kind!r}")
        if not pattern:
            raise UsageError(f"--{kind} is empty")
        check_path(pattern)
    if len(json.dumps(regexes(options.filters))) > MAX_FILTER_BYTES:
        raise UsageError("the patterns to exclude and include are too many for one copy")
