"""Which options do not go together: the tables that the checks, docs/option-pairs.md and the tests
read.

Options of COMBINED decide what becomes of an entry: each pair of them is refused, means what
neither says alone, or does just what both do alone, as most do. A name is a field of Options, or
`field=value` where only that value is meant.

Not here: what options mean together (../../scripts/docs.d/option_pairs_page.py, for people alone),
the bounds of one option (option_rows.py), how they are checked (options.py), what becomes of an
entry (transfer/).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pscp.ground.errors import UsageError

# What takes part in deciding what becomes of an entry.
COMBINED = (
    "recursive", "preserve", "archive", "copy_links", "one_file_system", "relative", "dry_run",
    "check", "filters", "files_from", "min_size_bytes", "max_size_bytes", "min_age_s", "max_age_s",
    "update", "existing", "ignore_existing", "size_only", "checksum", "mkpath", "delete",
    "max_delete", "remove_source_files", "backup", "backup_dir", "suffix", "link_dest", "chmod",
    "chown", "numeric_ids", "strong", "transfer_test", "resume=False", "verify=none",
    "remote=sftp", "has_plane", "direct", "manifest",
)  # fmt: skip

# What a stream ("-") takes of what is in these tables: there is no entry, of which the others would
# decide, and no file that a cluster's workers could see.
OF_A_STREAM = ("verify=none", "has_plane", "persist", "login_once")
ONE_STREAM = '"-" goes with HOST:FILE, and nothing else; a file here that is called so is "./-"'

_SPELLED = {
    "recursive": "-r", "preserve": "-p", "archive": "-a", "copy_links": "-L", "relative": "-R",
    "one_file_system": "-x", "dry_run": "-n", "update": "-u", "strong": "-s",
    "filters": "--exclude", "transfer_test": "-t", "resume=False": "--no-resume",
    "has_plane": "--plane", "min_size_bytes": "--min-size", "max_size_bytes": "--max-size",
    "min_age_s": "--min-age", "max_age_s": "--max-age",
}  # fmt: skip


class Pair(NamedTuple):
    """Two options, and why they are refused together, or one without the other."""

    one: str
    other: str
    why: str
    hint: str = ""


REFUSED = (
    Pair("size_only", "checksum", "one takes files unread, the other hashes them"),
    Pair("existing", "ignore_existing", "together they would copy nothing"),
    Pair("delete", "files_from", "it is for whole folders, and a list names parts of them"),
    Pair("delete", "relative", "it is for whole folders", "copy one folder after the other"),
    Pair(
        "delete", "remove_source_files",
        "what one run moves, the next one would delete at the destination",
    ),
    Pair("size_only", "strong", "one takes files unread, the other reads them at both ends"),
    Pair("size_only", "remove_source_files", "only what was verified is removed"),
    Pair("size_only", "manifest", "a manifest lists what is as at the source"),
    Pair("existing", "transfer_test", "-t does not ask what is at DEST"),
    Pair("check", "transfer_test", "-t does not ask what is at DEST"),
    Pair("relative", "transfer_test", "-t makes no folders", "name the files' folders as sources"),
    Pair("delete", "transfer_test", "-t changes nothing", "use -n to see what would be deleted"),
    Pair("check", "link_dest", "--check compares with DEST alone", "-n tells what would be linked"),
    Pair("check", "manifest", "--manifest lists what was copied"),
    Pair("dry_run", "manifest", "--manifest lists what was copied"),
    Pair("transfer_test", "manifest", "--manifest lists what was copied"),
    Pair("manifest", "verify=none", "it lists what was verified"),
    Pair("manifest", "direct", "it asks the destination from here"),
    Pair("remove_source_files", "verify=none", "only what was verified is removed"),
    Pair("strong", "verify=none", "it reads back what was written"),
    Pair("has_plane", "remote=sftp", "its lanes are agents", "leave out --remote sftp"),
    Pair("direct", "has_plane", "its lanes are ssh's, between the hosts"),
)  # fmt: skip

# The first says nothing without the second.
NEEDED = (
    Pair("max_delete", "delete", ""),
    Pair("suffix", "backup", ""),
    Pair("manifest_format", "manifest", ""),
    Pair("sign", "manifest", ""),
    Pair("cluster_insecure", "cluster", ""),
    Pair("delete", "recursive", "it is for whole folders"),
    Pair("link_dest", "recursive", "it is for whole folders"),
    Pair("chown", "archive", "only that keeps owners"),
    Pair("numeric_ids", "archive", "only that keeps owners"),
)

# What a copy to or from several hosts (HOST,HOST:PATH) does not take.
NOT_OF_SEVERAL_HOSTS = (
    Pair("has_plane", "", "its lanes are one host's"),
    Pair("direct", "", "its lanes are one host's"),
    Pair("persist", "", "it keeps connections to one host"),
    Pair("remote=sftp", "", "it has no locks that other hosts see"),
    Pair("manifest", "", "one host is asked for it"),
    Pair("remove_source_files", "", "whether DEST is the source cannot be told"),
)

# What a copy by a cluster's workers does not take.
NOT_OF_A_CLUSTER = (
    Pair("cluster", "direct", "one end has to be here, and seen by its workers"),
    Pair("cluster", "has_plane", "its workers' lanes are ssh's"),
    Pair("cluster", "remote=sftp", "what comes late is kept out by an agent"),
    Pair("cluster", "transfer_test", "-t has no files that workers could see"),
    Pair("cluster", "persist", "each worker has connections of its own"),
    Pair("cluster", "login_once", "each worker logs in by itself"),
)
# These are for copies of files alone.
OF_A_CLUSTER = ("cluster", "cluster_insecure")


def spelled(name: str) -> str:
    """Return an option as the command line has it."""
    field, _, value = name.partition("=")
    word = _SPELLED.get(name) or "--" + field.replace("_", "-")
    return f"{word} {value}" if value and name not in _SPELLED else word


def is_given(options: object, name: str) -> bool:
    """Return whether the option has been given, with that value where the name has one; what says
    that it is not wanted is none.
    """
    field, _, value = name.partition("=")
    found = getattr(options, field)
    if (field, found) == ("persist", "no"):
        return False
    return str(found) == value if value else found not in (None, False, ())


def not_of_a_stream(options: object) -> list[str]:
    """Return the options that are given and that a stream does not take, as spelled."""
    names = [name for name in (*COMBINED, "cluster") if name not in OF_A_STREAM]
    return [spelled(name) for name in names if is_given(options, name)]


def check_several_hosts(options: object) -> None:
    """Raise UsageError for an option that is given and is one host's alone."""
    for name, _, why, hint in NOT_OF_SEVERAL_HOSTS:
        if is_given(options, name):
            message = f"{spelled(name)} does not go with several hosts: {why}"
            raise UsageError(message, hint or "name one host, or leave it out")


def check_no_cluster(options: object, what: str) -> None:
    """Raise UsageError for a cluster that is given to what copies nothing, or to several places."""
    if is_given(options, "cluster"):
        raise UsageError(f"--cluster does not go with {what}", "leave it out")


def problems(options: object) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with these options together: a message and a hint."""
    for one, other, why, hint in (*REFUSED, *NOT_OF_A_CLUSTER):
        if is_given(options, one) and is_given(options, other):
            leave = hint or f"leave out one of {spelled(one)} and {spelled(other)}"
            yield f"{spelled(one)} does not go with {spelled(other)}: {why}", leave
    for one, other, why, hint in NEEDED:
        others = (other, "archive") if other == "recursive" else (other,)
        if is_given(options, one) and not any(is_given(options, each) for each in others):
            needed = " or ".join(map(spelled, others))
            reason = f"needs {needed}: {why}" if why else f"says nothing without {needed}"
            yield f"{spelled(one)} {reason}", hint
