"""The types of the keywords that the Python API takes, for type checkers and editors.

OptionFields are the fields of Options, but for `progress`: in the API that is a function. A test
holds them equal. The text below each field is what docs/api.md shows. No program loads this module.

Not here: the defaults and bounds of the fields (options.py, zfs/settings.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import os

    import asyncssh
    import paramiko


class _CommonFields(TypedDict, total=False):
    # what is copied
    recursive: bool
    """Copy folders with what is in them."""
    preserve: bool
    """Keep times and modes."""
    archive: bool
    """`recursive` and `preserve`, and keep links, extended attributes, and owners when root."""
    copy_links: bool
    """With `archive`, copy what symlinks lead to instead of the links."""
    one_file_system: bool
    """Do not go into other file systems."""
    relative: bool
    """Keep the whole path of each source below the destination; after /./ in it, the rest."""
    dry_run: bool
    """Report what would be copied, and copy nothing."""
    check: bool
    """Report what differs at the destination and how, and copy nothing; `files` counts it."""
    strict_names: bool
    """Refuse names that a far end gives and nobody asked for."""

    # which files
    filters: tuple[tuple[str, str], ...]
    """("exclude", pattern) or ("include", pattern), as rsync's; the first that matches decides."""
    files_from: str | os.PathLike[str] | None
    """Copy what this file lists ("-": standard input), a path below the source in each line."""
    from0: bool
    """A NUL ends each line of `files_from`."""
    min_size_bytes: int | None
    """Leave out smaller files."""
    max_size_bytes: int | None
    """Leave out larger files."""
    min_age_s: int | None
    """Leave out files that were changed later than so long ago."""
    max_age_s: int | None
    """Leave out files that were changed earlier than so long ago."""

    # what happens at the destination
    update: bool
    """Leave out what is not newer than at the destination."""
    existing: bool
    """Copy only what is at the destination already."""
    ignore_existing: bool
    """Copy only what is not at the destination."""
    size_only: bool
    """Take files of the same size for the same."""
    checksum: bool
    """With `preserve`, hash files of the same size and time as well; else they are the same."""
    mkpath: bool
    """Make the folders above the destination that are missing."""
    delete: bool
    """Delete at the destination what the sources' folders do not have."""
    max_delete: int | None
    """Delete nothing where that would be more than so many files and folders."""
    remove_source_files: bool
    """Remove each file of the source that is at the destination, verified and unchanged."""
    backup: bool
    """Keep what is replaced at the destination."""
    backup_dir: str | None
    """Keep it below this folder, which is below the destination."""
    suffix: str | None
    """What `backup` adds to names; None: "~", and nothing with `backup_dir`."""
    link_dest: tuple[str | os.PathLike[str], ...]
    """Make hard links to files that are the same in these folders, which are relative to DEST."""
    chmod: str | None
    """Change the modes on the way, such as "D755,F644" or "go-w"."""
    chown: str | None
    """Give everything to this "USER:GROUP", where `archive` keeps owners."""
    numeric_ids: bool
    """With `archive` as root, keep the numbers of owners and not their names."""

    # how it is verified and resumed
    strong: bool
    """Also compare a SHA-256 of each file, read back at the destination, with the source."""
    manifest: str | os.PathLike[str] | None
    """Write a manifest of what is good at the destination to this file here: paths, SHA-256s."""
    manifest_format: str | None
    """"jsonl", "sha256sum" or "bagit"; None: by the file's name."""
    sign: str | os.PathLike[str] | None
    """Sign the manifest with this SSH key, into a file beside it that ends in .sig."""
    transfer_test: bool
    """Send made-up data of the sources' sizes; no disk is read or written."""
    resume: bool
    """Go on with what an earlier run left; False begins afresh."""
    verify: str
    """Over SFTP, "auto" (by a hash program there, else reading back), "read-back" or "none"."""

    # how it is sent
    remote: str
    """What to use at the far end: "agent" (python3), "sftp", or "auto"."""
    connections: int | None
    """The number of connections; None: found out while it runs."""
    channels: int | None
    """The number of channels of each connection; None: found out."""
    block_bytes: int
    """What is read and written at once."""
    chunk_bytes: int | None
    """What is verified and resent as one; None: 4 MiB, and less toward the end."""
    limit_kbit_s: int | None
    """The most to send, in kbit/s."""
    window_bytes: int
    """Memory for putting the chunks of a stream in order."""
    congestion: str | None
    """The TCP congestion control to use, such as "bbr"."""
    rcvbuf_bytes: int | None
    """The receive buffer of each connection's socket; None: the kernel decides."""
    sndbuf_bytes: int | None
    """The send buffer of each connection's socket; None: the kernel decides."""
    bind: tuple[str, ...]
    """Connect from these addresses of this machine, in turn."""
    cpus: tuple[int, ...]
    """Pin the ssh processes to these processors, in turn."""
    direct: bool
    """From host to host: send the data from the one to the other, not through this machine."""
    plane: str
    """What carries the lanes: "ssh", "tls", "plain" (both over TCP), or "auto", which is ssh."""
    plane_ports: tuple[int, int]
    """The first and the last port to listen on for `plane`; (0, 0) for any."""

    # how ssh is run
    program: str | os.PathLike[str]
    """Run this instead of ssh."""
    port: int | None
    """The port of the far end; None: ssh_config's."""
    identities: tuple[str | os.PathLike[str], ...]
    """Files with private keys to log in with."""
    config_file: str | os.PathLike[str] | None
    """The ssh_config to use."""
    jump: str | None
    """Go through this host."""
    ssh_options: tuple[str, ...]
    """KEY=VALUE each, as ssh's -o."""
    timeout_s: int | None
    """How long the host may take to answer; None: ssh_config's ConnectTimeout, else 30 s."""
    retry_for_s: int | None
    """Keep trying to connect for so long while the host cannot be reached; None: a minute or so."""
    address_family: int | None
    """4 or 6: use IPv4 or IPv6 only."""
    cipher: str | None
    """The cipher to use; None: the fastest that both ends do well."""
    compress: bool
    """Let ssh compress."""
    batch: bool
    """Never ask for a password, a passphrase or a host key."""
    password_file: str | os.PathLike[str] | None
    """Its first line answers what a login asks for; None: $PSCP_PASSWORD_FILE, if it is set."""
    login_once: bool
    """Log in once, and send everything over that one connection."""
    persist: str | None
    """Keep the connections so long for later copies, such as "10m" or "yes" (ControlPersist)."""

    # what is shown
    verbose: bool
    """Note which hash, cipher and connections are used, and why."""
    itemize: bool
    """For the command line: `verbose`, and name each file with what becomes of it."""
    debug: bool
    """Have ssh say what it does (its -v); the command -d shows that and pscp's own records."""
    quiet: bool
    """For the command line: errors only."""
    stats: bool
    """For the command line: end with a table of what was counted."""
    log_file: str | os.PathLike[str] | None
    """For the command line: write notes, errors and the summary to this file, dated."""
    syslog: bool
    """For the command line: send notes, errors and the summary to syslog as well."""


class OptionFields(_CommonFields, total=False):
    """What copy(), measure() and clean() take by keyword, and the calls of a Session."""

    transport: str
    """What makes the connections: "openssh", "asyncssh", "paramiko", or "auto"."""


class SessionFields(_CommonFields, total=False):
    """What Session() takes by keyword."""

    transport: str | paramiko.SSHClient | asyncssh.SSHClientConnection
    """As for copy(), or a connection that is open already, over which everything then goes."""


class ReplicateFields(OptionFields, total=False):
    """What replicate() takes by keyword: the fields of Settings as well."""

    # what is replicated
    exclude: tuple[str, ...]
    """Patterns of datasets to leave out, with all below them."""
    all_between: bool
    """With all snapshots since the last replication; False: the newest alone."""
    snapshot_name: str | None
    """Take a snapshot of this name first; "{time}" in it is the time (UTC)."""
    raw: bool
    """As they lie on the disk; encrypted ones without their keys."""
    properties: bool
    """With the datasets' properties."""

    # what the receiver does with it
    set_properties: tuple[str, ...]
    """NAME=VALUE each: set these properties there."""
    leave_properties: tuple[str, ...]
    """Do not take these properties."""
    keep_mountpoints: bool
    """Take also mountpoint, canmount, sharenfs and sharesmb from the stream."""
    mount: bool
    """Mount what is received."""
    force_rollback: bool
    """Throw away what was changed there since the snapshot that both have."""
    readonly: bool
    """Set readonly=on on a destination that this makes."""

    # what goes afterwards
    keep_last: int | None
    """Of the snapshots that `snapshot_name` took, keep so many of the newest."""
    prune: str
    """Where `keep_last` destroys the others: "source", "dest" or "both"."""
    bookmark: bool
    """Bookmark the newest snapshot that both ends have, at the source."""

    # how zfs is run
    parallel: int
    """The number of datasets at once."""
    zfs_command: str | None
    """Run this as zfs here, such as "sudo zfs"."""
    far_zfs_command: str | None
    """And this at the far end."""
