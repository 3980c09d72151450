"""What the user asked for: the options of a copy, checked and frozen.

An Options is sound: whatever is wrong is refused with a UsageError while it is made, so nothing
below this module checks it again.

Not here: their bounds (option_bounds.py), which of them go together (option_pairs.py), locations
(locations.py), how values are read (values.py), the letters of the command line
(cli/arguments.py), and anything that opens a file or a connection.
Read next: progress.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pscp import option_bounds as bounds
from pscp import option_pairs
from pscp.errors import UsageError
from pscp.locations import MAX_PORT, check_path
from pscp.values import (
    MAX_SIZE_BYTES,
    MIB,
    check_address,
    check_argument,
    check_range,
    check_tuple,
    show_size,
)


@dataclass(frozen=True)
class Options:
    """What the user asked for; every field has a default."""

    # what is copied
    recursive: bool = False
    preserve: bool = False  # times and modes
    archive: bool = False  # sets the two above; links, xattrs, and owner when root
    copy_links: bool = False  # with archive: what links lead to, as without it
    one_file_system: bool = False
    relative: bool = False
    dry_run: bool = False
    check: bool = False  # sets dry_run
    strict_names: bool = True
    # which files
    filters: tuple[tuple[str, str], ...] = ()  # ("exclude" | "include", pattern), first wins
    files_from: str | None = None  # a file, "-" for standard input
    from0: bool = False  # a NUL ends its lines
    min_size_bytes: int | None = None
    max_size_bytes: int | None = None
    min_age_s: int | None = None
    max_age_s: int | None = None
    # what happens at the destination
    update: bool = False
    existing: bool = False
    ignore_existing: bool = False
    size_only: bool = False
    checksum: bool = False
    mkpath: bool = False
    delete: bool = False
    max_delete: int | None = None
    remove_source_files: bool = False
    backup: bool = False
    backup_dir: str | None = None
    suffix: str | None = None  # None: "~", or "" with backup_dir
    link_dest: tuple[str, ...] = ()  # relative to the destination
    chmod: str | None = None
    chown: str | None = None
    numeric_ids: bool = False
    # how it is verified and resumed
    strong: bool = False
    transfer_test: bool = False
    resume: bool = True
    verify: str = "auto"  # without an agent; one of VERIFIES
    manifest: str | None = None  # a file here that lists what is good at the destination
    manifest_format: str | None = None  # one of MANIFEST_FORMATS; None: by the file's name
    sign: str | None = None  # an SSH key for the manifest
    # how it is sent
    remote: str = "auto"  # one of REMOTES: what is at the far end
    connections: int | None = None  # None is auto
    channels: int | None = None  # of each connection; None is auto
    block_bytes: int = MIB
    chunk_bytes: int | None = None  # None: CHUNK_BYTES, and less toward the end
    limit_kbit_s: int | None = None
    window_bytes: int = 256 * MIB  # of a stream, at the end where it is put in order
    congestion: str | None = None  # control of it: what the kernel calls an algorithm
    rcvbuf_bytes: int | None = None  # of each connection's socket; None: the kernel decides
    sndbuf_bytes: int | None = None
    bind: tuple[str, ...] = ()  # addresses of this machine, for the connections in turn
    cpus: tuple[int, ...] = ()  # processors for the ssh processes, in turn
    direct: bool = False  # from host to host: the data does not go through this machine
    plane: str = "auto"  # one of PLANES: what carries the lanes
    plane_ports: tuple[int, int] = (0, 0)  # the far end listens on one of these; (0, 0): on any
    # how ssh is run
    transport: str = "auto"  # one of TRANSPORTS
    program: str = "ssh"
    port: int | None = None
    identities: tuple[str, ...] = ()
    config_file: str | None = None
    jump: str | None = None
    ssh_options: tuple[str, ...] = ()
    timeout_s: int | None = None  # for the host to answer; None: ssh_config's, else TIMEOUT_S
    retry_for_s: int | None = None  # an outage is ridden out so long; None: a minute or so
    address_family: int | None = None  # 4 | 6
    cipher: str | None = None
    compress: bool = False
    batch: bool = False
    password_file: str | None = None  # None: $PSCP_PASSWORD_FILE, if that is set
    login_once: bool = False
    persist: str | None = None  # how long connections outlive a copy (ssh_config, ControlPersist)
    # what is shown
    verbose: bool = False
    itemize: bool = False  # sets verbose
    debug: bool = False
    quiet: bool = False
    progress: str = "auto"  # one of PROGRESS_STYLES
    stats: bool = False
    log_file: str | None = None
    syslog: bool = False

    def __post_init__(self) -> None:
        if self.archive:
            object.__setattr__(self, "recursive", True)
            object.__setattr__(self, "preserve", True)
        if self.check:
            object.__setattr__(self, "dry_run", True)
        if self.itemize:
            object.__setattr__(self, "verbose", True)
        if self.transfer_test:
            object.__setattr__(self, "strong", False)  # nothing lands that could be read back
        _take_paths(self)
        _check_flags(self)
        _check_numbers(self)
        _check_sizes(self)
        _check_choices(self)
        _check_pairs(self)
        _check_texts(self)
        _check_attributes(self)
        _check_filters(self)

    @property
    def follows_links(self) -> bool:
        """Whether what a symlink leads to is copied in its place."""
        return self.copy_links or not self.archive

    @property
    def has_whole_paths(self) -> bool:
        """Whether each source keeps its whole path; in a list each path does anyway."""
        return self.relative and self.files_from is None

    @property
    def has_plane(self) -> bool:
        """Whether the lanes are to go over TCP directly, instead of over SSH."""
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

    def with_agent(self, what: str) -> Options:
        """Return these options, with an agent to be used. Raises UsageError for remote="sftp"."""
        if self.remote == "sftp":
            raise UsageError(f"{what} needs the agent", "leave out --remote sftp")
        return replace(self, remote="agent")


def with_fields(options: Options, given: Mapping[str, object]) -> Options:
    """Return the options with these fields replaced. Raises UsageError for an unknown one."""
    check_names(given, Options.__dataclass_fields__)
    return replace(options, **given)  # type: ignore[arg-type]  # __post_init__ checks them


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for a keyword that there is not, with the one that was meant, perhaps."""
    names = set(known)
    for name in given:
        if name not in names:
            import difflib  # here: it takes long to load, for a slip of the finger

            close = difflib.get_close_matches(name, sorted(names), 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            hint = "help(pscp.Options) and docs/api.md list them"
            if name == "inplace":
                meant, hint = "", "leave it out: of a large file only what differs is sent anyway"
            raise UsageError(f"no such option: {name}{meant}", hint)


def _take_paths(options: Options) -> None:
    """Make texts of the pathlib.Path and the like that name files."""
    files = ("program", "config_file", "password_file", "files_from", "log_file")
    for name in (*files, "manifest", "sign"):
        if isinstance(getattr(options, name), os.PathLike):
            object.__setattr__(options, name, os.fspath(getattr(options, name)))
    for name in ("identities", "link_dest"):
        if isinstance(given := getattr(options, name), tuple | list):
            found = (os.fspath(e) if isinstance(e, os.PathLike) else e for e in given)
            object.__setattr__(options, name, tuple(found))


def _check_flags(options: Options) -> None:
    """Refuse values such as "no", which would count as True."""
    for name, field in options.__dataclass_fields__.items():
        if field.type == "bool" and not isinstance(getattr(options, name), bool):
            raise UsageError(f"{name} must be True or False, not {getattr(options, name)!r}")


def _check_numbers(options: Options) -> None:
    for what, number, most in (
        ("the number of connections", options.connections, bounds.MAX_CONNECTIONS),
        ("the number of channels", options.channels, bounds.MAX_CHANNELS),
        ("the limit in kbit/s", options.limit_kbit_s, bounds.MAX_LIMIT_KBIT_S),
        ("the port", options.port, MAX_PORT),
        ("the timeout in seconds", options.timeout_s, bounds.MAX_SECONDS),
        ("the time of retries in seconds", options.retry_for_s, bounds.MAX_SECONDS),
        ("the size of --min-size", options.min_size_bytes, MAX_SIZE_BYTES),
        ("the size of --max-size", options.max_size_bytes, MAX_SIZE_BYTES),
        ("the time of --min-age in seconds", options.min_age_s, bounds.MAX_AGE_S),
        ("the time of --max-age in seconds", options.max_age_s, bounds.MAX_AGE_S),
    ):
        if number is not None:
            check_range(what, number, 1, most)
    if options.max_delete is not None:
        check_range("the number of --max-delete", options.max_delete, 0, bounds.MAX_DELETE)
    for cpu in check_tuple("cpus", options.cpus):
        check_range("a processor's number", cpu, 0, bounds.MAX_CPU)
    for port in check_tuple("plane_ports", options.plane_ports):
        check_range("a port of the direct plane", port, 0, MAX_PORT)
    if options.address_family not in (None, 4, 6):
        raise UsageError(f"the address family must be 4 or 6, not {options.address_family!r}")


def _check_sizes(options: Options) -> None:
    block_bytes = options.block_bytes
    check_range(
        "the block size", block_bytes, bounds.MIN_BLOCK_BYTES, bounds.MAX_BLOCK_BYTES, show_size
    )
    chunk_bytes = bounds.CHUNK_BYTES if options.chunk_bytes is None else options.chunk_bytes
    least_bytes = min(block_bytes, bounds.MIN_CHUNK_BYTES)
    check_range("the chunk size", chunk_bytes, least_bytes, bounds.MAX_CHUNK_BYTES, show_size)
    check_range(
        "the window",
        options.window_bytes,
        bounds.MIN_WINDOW_BYTES,
        bounds.MAX_WINDOW_BYTES,
        show_size,
    )
    for what, size_bytes in (
        ("the receive buffer", options.rcvbuf_bytes),
        ("the send buffer", options.sndbuf_bytes),
    ):
        if size_bytes is not None:
            check_range(
                what, size_bytes, bounds.MIN_BUFFER_BYTES, bounds.MAX_BUFFER_BYTES, show_size
            )


def _check_choices(options: Options) -> None:
    for what, value, allowed in (
        ("the transport", options.transport, bounds.TRANSPORTS),
        ("the progress", options.progress, bounds.PROGRESS_STYLES),
        ("the remote", options.remote, bounds.REMOTES),
        ("what verifies", options.verify, bounds.VERIFIES),
        ("the plane", options.plane, bounds.PLANES),
        ("the manifest's format", options.manifest_format, (None, *bounds.MANIFEST_FORMATS)),
    ):
        if value not in allowed:
            names = ", ".join(filter(None, allowed))
            raise UsageError(f"{what} must be one of {names}, not {value!r}")


def _check_pairs(options: Options) -> None:
    """Refuse options that do not go together, and bounds that no file keeps."""
    for message, hint in option_pairs.problems(options):
        raise UsageError(message, hint)
    for what, unit in (("size", "bytes"), ("age", "s")):
        least, most = (getattr(options, f"{end}_{what}_{unit}") for end in ("min", "max"))
        if least is not None and most is not None and least > most:
            raise UsageError(f"--min-{what} is more than --max-{what}: no file could be both")
    if options.backup:
        _check_backups(*options.backups)
    for folder in check_tuple("link_dest", options.link_dest):
        check_argument("a folder of --link-dest", folder)
    if len(options.link_dest) > bounds.MAX_LINK_DEST:
        raise UsageError(f"--link-dest: at most {bounds.MAX_LINK_DEST} folders, as with rsync")


def _check_backups(suffix: str, folder: str) -> None:
    check_argument("the suffix of backups", "x" + suffix)
    if "/" in suffix or not (suffix or folder):
        raise UsageError(f"--suffix: {suffix!r} is not the end of a name")
    if folder.startswith("/") or {"", ".", ".."} & set(folder.split("/") if folder else ()):
        raise UsageError(
            f"--backup-dir: {folder!r} is not a folder below DEST", 'such as "old" or "old/monday"'
        )


def _check_texts(options: Options) -> None:
    """Check what becomes an argument of ssh, or an option of a socket."""
    check_argument("the ssh program", options.program)
    for what, value in (
        ("the ssh_config file", options.config_file),
        ("the jump", options.jump),
        ("the password file", options.password_file),
        ("the file of --files-from", options.files_from),
        ("the folder of --backup-dir", options.backup_dir),
        ("the modes of --chmod", options.chmod),
        ("the owner of --chown", options.chown),
        ("the file of --log-file", options.log_file),
        ("the file of --manifest", options.manifest),
        ("the key of --sign", options.sign),
    ):
        if value is not None:
            check_argument(what, value)
    if options.jump is not None and options.jump.startswith("-"):
        raise UsageError(f'{options.jump}: a jump host cannot start with "-"')
    for what, values in (("identities", options.identities), ("ssh options", options.ssh_options)):
        for value in check_tuple(what, values):
            check_argument(f"one of the {what}", value)
    for address in check_tuple("bind", options.bind):
        check_address(address)
    _check_names(options)


def _check_names(options: Options) -> None:
    """Check texts of which only some make sense."""
    for what, value in (
        ("cipher", options.cipher),
        ("congestion", options.congestion),
        ("time of --persist", options.persist),
    ):
        if value is not None and not isinstance(value, str):
            raise UsageError(f"the {what} must be a text, not {value!r}")
    if options.cipher is not None and not re.fullmatch(bounds.CIPHERS, options.cipher):
        raise UsageError(f"{options.cipher!r} is not a cipher", "ssh -Q cipher lists them")
    if options.persist is not None and not re.fullmatch(bounds.PERSIST, options.persist):
        raise UsageError(
            f"--persist: {options.persist!r} is not a time", "such as 90, 10m, 1h30m, yes or no"
        )
    if options.congestion is not None and not re.fullmatch(bounds.CONGESTION, options.congestion):
        raise UsageError(f"{options.congestion!r} is not a congestion control")


def _check_attributes(options: Options) -> None:
    if options.chmod is None and options.chown is None:
        return
    from pscp import attributes  # here: few copies need it

    if options.chmod is not None:
        attributes.parse_modes(options.chmod, 0)
    if options.chown is not None:
        attributes.parse_owner(options.chown)


def _check_filters(options: Options) -> None:
    if not options.filters:
        return
    from pscp.filters import regexes  # here: few copies have filters

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
            raise UsageError(f"a filter must be exclude or include, not {kind!r}")
        if not pattern:
            raise UsageError(f"the pattern to {kind} is empty")
        check_path(pattern)
    if len(json.dumps(regexes(options.filters))) > bounds.MAX_FILTER_BYTES:
        raise UsageError("the patterns to exclude and include are too many for one copy")
