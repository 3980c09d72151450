"""The options that say what is copied, and what becomes of what is at the destination.

Each is declared once: its field, its bounds, its words, and what they mean. Of the texts of a row
the first is what --help says, the second what docs/api.md and an editor say of the keyword, where
that differs. A row makes the field of Options, the words
of the commands, the keyword's type for type checkers (option_fields.pyi), the key of jobs.toml, and
its lines in docs/, man pages and completions.

Not here: how it is sent and shown (connection_options.py), what does not go together
(option_pairs.py, options.py), what a row is (option_rows.py).
Read next: connection_options.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from pscp.ground.values import (
    MAX_SIZE_BYTES,
    check_argument,
    parse_number,
    parse_seconds,
    parse_size,
)
from pscp.options import option_rows as bounds
from pscp.options.option_rows import Flag, Group, each_of, seconds, size, whole

COPIED = Group("what is copied")
WHICH = Group("which files")
THERE = Group("what happens at the destination")
VERIFIED = Group("how it is verified and resumed")
NO_COPY = Group("instead of a copy")

_PATTERN = "as rsync (docs/filters.md); the first of these that matches decides"
_LINES = "for each line of FILE (-: standard input) but # and ; comments"


def _check_suffix(what: str, value: object) -> None:  # "" is one, with a folder
    check_argument(what, f"x{value}" if isinstance(value, str) else value)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CopyOptions:
    """The fields of Options that are for copies alone."""

    recursive: bool = COPIED.flag("-r --recursive", "copy folders with what is in them")
    preserve: bool = COPIED.flag("-p --preserve", "keep times and modes")
    archive: bool = COPIED.flag(
        "-a --archive",
        "-r and -p, and keep links, hard links, extended attributes, groups one is in, "
        "and owners when root",
        "`recursive` and `preserve`, and keep links, extended attributes, groups that the user "
        "there is in, and owners when root.",
    )
    copy_links: bool = COPIED.flag(
        "-L --copy-links",
        "with -a, copy what symlinks lead to instead of the links",
        "With `archive`, copy what symlinks lead to instead of the links.",
    )
    one_file_system: bool = COPIED.flag("-x --one-file-system", "do not go into other file systems")
    relative: bool = COPIED.flag(
        "-R --relative",
        "keep the whole path of each source below DEST; after /./ in it, what follows that",
    )
    dry_run: bool = COPIED.flag(
        "-n --dry-run",
        "list what would be copied, and copy nothing",
    )
    strict_names: bool = COPIED.flag(
        "-T --no-strict-names",
        "take the names that the far end gives, even where they do not match what was asked",
        "Refuse names that a far end gives and nobody asked for.",
        default=True,
    )

    filters: tuple[tuple[str, str], ...] = WHICH.row(
        (),
        (
            Flag(
                "--exclude PATTERN", f"leave out what matches, {_PATTERN}",
                read=lambda text, what: ("exclude", text)
            ),
            Flag(
                "--exclude-from FILE", f"--exclude {_LINES}",
                read=lambda text, what: ("exclude-from", text)
            ),
            Flag(
                "--include PATTERN", f"keep what matches, {_PATTERN}",
                read=lambda text, what: ("include", text)
            ),
            Flag(
                "--include-from FILE", f"--include {_LINES}",
                read=lambda text, what: ("include-from", text)
            )
        ),
        '("exclude", pattern) or ("include", pattern), as rsync\'s; the first that matches decides.'
    )  # fmt: skip
    files_from: str | None = WHICH.path(
        "--files-from FILE",
        "copy what FILE lists (-: standard input), one path below SOURCE in each line",
        'Copy what this file lists ("-": standard input), a path below the source in each line.',
    )
    from0: bool = WHICH.flag(
        "-0 --from0",
        "in the files of --files-from, --exclude-from and --include-from a NUL ends a line",
        "A NUL ends each line of `files_from`.",
    )
    min_size_bytes: int | None = WHICH.value(
        "--min-size SIZE",
        "copy files of at least SIZE",
        check=size(1, MAX_SIZE_BYTES),
        read=parse_size,
    )
    min_age_s: int | None = WHICH.value(
        "--min-age TIME",
        "copy files that were changed at least so long ago (90, 30m, 2h, 1d)",
        "Leave out files that were changed later than so long ago.",
        check=seconds(bounds.MAX_AGE_S),
        read=parse_seconds,
    )
    max_size_bytes: int | None = WHICH.value(
        "--max-size SIZE",
        "copy files of at most SIZE",
        check=size(1, MAX_SIZE_BYTES),
        read=parse_size,
    )
    max_age_s: int | None = WHICH.value(
        "--max-age TIME",
        "copy files that were changed at most so long ago",
        "Leave out files that were changed earlier than so long ago.",
        check=seconds(bounds.MAX_AGE_S),
        read=parse_seconds,
    )

    update: bool = THERE.flag("-u --update", "leave out what is newer at the destination")
    existing: bool = THERE.flag("--existing", "copy only what is at the destination already")
    ignore_existing: bool = THERE.flag(
        "--ignore-existing", "copy only what is not at the destination"
    )
    size_only: bool = THERE.flag("--size-only", "take files of the same size for the same")
    checksum: bool = THERE.flag(
        "--checksum",
        "with -p or -a, hash files of the same size and time as well; else they are the same",
        "With `preserve`, hash files of the same size and time as well; else they are the same.",
    )
    mkpath: bool = THERE.flag(
        "--mkpath",
        "make the folders above DEST that are missing",
    )
    delete: bool = THERE.flag(
        "--delete", "delete at the destination what the sources' folders do not have"
    )
    max_delete: int | None = THERE.value(
        "--max-delete N",
        "delete nothing where that would be more than N files and folders",
        check=whole(10**9, least=0),
        read=parse_number,
    )
    remove_source_files: bool = THERE.flag(
        "--remove-source-files",
        "remove each file of the source that is at the destination, verified and unchanged",
    )
    backup: bool = THERE.flag("--backup", "keep what is replaced, as NAME~")
    backup_dir: str | None = THERE.value(
        "--backup-dir DIR",
        "keep it below DIR, in DEST or beside it (../old); says --backup too",
        "Keep it below this folder, relative to the destination, on its disk; says `backup`.",
        check=check_argument,
    )
    suffix: str | None = THERE.value(
        "--suffix SUFFIX",
        "what --backup adds to names (~, with DIR nothing)",
        'What `backup` adds to names; None: "~", and nothing with `backup_dir`.',
        check=_check_suffix,
    )
    link_dest: tuple[str, ...] = THERE.value(
        "--link-dest DIR",
        "make hard links to what is unchanged in DIR, which is relative to DEST; as often as "
        "20 times",
        "Make hard links to files that are the same in these folders, which are relative to DEST.",
        check=each_of(check_argument),
        is_path=True,
        default=(),
    )
    chmod: str | None = THERE.value(
        "--chmod MODES",
        "change the modes on the way, such as D755,F644 or go-w",
        check=check_argument,
    )
    chown: str | None = THERE.value(
        "--chown USER:GROUP",
        "give everything to these, where -a keeps owners",
        'Give everything to this "USER:GROUP", where `archive` keeps owners.',
        check=check_argument,
    )
    numeric_ids: bool = THERE.flag(
        "--numeric-ids",
        "with -a as root, keep the numbers of owners and not their names",
        "With `archive` as root, keep the numbers of owners and not their names.",
    )

    strong: bool = VERIFIED.flag(
        "-s --strong",
        "also compare a SHA-256 of each file, read back at the destination, with the source",
    )
    transfer_test: bool = VERIFIED.flag(
        "-t --transfer-test", "send made-up data of the sources' sizes; no disk is read or written"
    )
    verify: str = VERIFIED.choice(
        "--verify HOW",
        "over SFTP, where no agent can verify: auto (by a hash program there, else reading "
        "back), read-back, or none",
        ("auto", "read-back", "none"),
    )
    resume: bool = VERIFIED.flag(
        "--no-resume",
        "start afresh, whatever an earlier run left",
        "Go on with what an earlier run left; False begins afresh.",
        default=True,
    )
    manifest: str | None = VERIFIED.path(
        "--manifest FILE",
        "list in FILE the files that are good at the destination, with SHA-256s, for pscp-verify "
        "(docs/manifests.md)",
        "Write a manifest of what is good at the destination to this file here: paths, SHA-256s.",
    )
    manifest_format: str | None = VERIFIED.choice(
        "--manifest-format FORM",
        "its form (by the name of FILE, else jsonl): jsonl, sha256sum or bagit",
        bounds.MANIFEST_FORMATS,
        default=None,
    )
    sign: str | None = VERIFIED.path(
        "--sign KEY",
        "sign the manifest with this SSH key, as FILE.sig",
    )

    check: bool = NO_COPY.flag(
        "--check",
        "copy nothing; list what differs at DEST, with -p or -a by size, time, mode and owner, "
        "without or with --checksum by content; exit code 1 if anything does",
        "Report what differs at the destination and how, and copy nothing; `files` counts it.",
    )
