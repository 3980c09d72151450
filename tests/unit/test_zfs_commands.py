"""What is said to zfs and what its words mean: names, usage, properties, complaints, commands.

Not here: the plan (test_zfs_plan.py), and real ZFS (../zfs, ../openzfs).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pscp.ground import errors
from pscp.stream.stream import Ran
from pscp.zfs import commands, error_messages
from pscp.zfs.commands import Speech
from pscp.zfs.inventory import (
    Abilities,
    Common,
    Dataset,
    Snapshot,
    Zfs,
    parse_datasets,
    parse_features,
    parse_usage,
    together,
)
from pscp.zfs.link import PipeStatuses
from pscp.zfs.names import excluded, is_dataset, is_excluded, moved, parse_place, relative
from pscp.zfs.plan import Stream
from pscp.zfs.settings import Settings, split_command

OPENZFS = """usage: zfs command args ...
where 'command' is one of the following:

\tversion

\thold [-r] <tag> <snapshot> ...
\trelease [-r] <tag> <snapshot> ...
\tbookmark <snapshot|bookmark> <newbookmark>
\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]
\t     [-R [-X dataset[,dataset]...]]     <snapshot>
\tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>
\tsend [-nVvPe] -t <receive_resume_token>
\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...
\t    <filesystem|volume|snapshot>
"""
FUSE = """usage: zfs command args ...

\tsend [-RDp] [-[iI] snapshot] <snapshot>
\treceive [-vnF] <filesystem|volume|snapshot>
\treceive [-vnF] -d <filesystem>

\thold [-r] <tag> <snapshot> ...
\tholds [-r] <snapshot> ...
\trelease [-r] <tag> <snapshot> ...
"""


# --- names


@pytest.mark.parametrize(
    "text",
    [
        "", "host:", "host:/tank", "/tank/a", "tank/", "tank//a", "tank/../b", "1tank/a",
        "tank/a@b", "host:tank#b", "tank/a;reboot", "host:tank/$(id)", "tank/a\nb", "host:-tank",
        "-h:tank/a", "host:tank/a%b", "tank/ä", f"tank/{'a' * 250}x", "ssh://host/", "a\0b",
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(errors.UsageError):
        parse_place(text)


def test_places() -> None:
    far = parse_place("root@host:tank/a b/c:d_e-f.g")
    assert (far.login, far.path) == ("root@host", "tank/a b/c:d_e-f.g")
    assert parse_place("ssh://host:22/tank/a").path == "tank/a"
    assert not parse_place("tank/a:b").is_remote


@given(st.text(max_size=30))
@example("tank/-r")
def test_a_dataset_is_never_an_option_nor_a_snapshot(name: str) -> None:
    if is_dataset(name):
        assert name[0].isalpha() and name.isascii() and not set("@#%\n\t\0'\"") & set(name)


def test_exclusion() -> None:
    for pattern, below, is_out in (
        ("tmp", "a/tmp", True), ("tmp", "a/tmp/deep", True), ("tmp", "tmpx", False),
        ("a/*", "a/b", True), ("a/*", "b/a/b", False), ("/tmp", "tmp", True), ("*", "", False),
    ):  # fmt: skip
        assert is_excluded(below, (pattern,)) is is_out, (pattern, below)
    names = ["t/a", "t/a/tmp", "t/a/b", "t/a/b/tmp", "t/a/vm", "t/a/vm/one"]
    for pattern, out in (
        ("tmp", names[1:4:2]), ("t/a/tmp", names[1:2]), ("t/a/vm/*", names[5:]),
        ("a/tmp", []), ("tmp/", []), ("t/a", []), ("t/tmp", []),
    ):  # fmt: skip
        unused = [] if out else [pattern]
        assert excluded(names, "t/a", (pattern,)) == ({*out}, unused), pattern
    deeper = [*names, "t/a/t/a/tmp"]  # what is below comes before a whole name
    assert excluded(deeper, "t/a", ("t/a/tmp", "no")) == ({"t/a/t/a/tmp"}, ["no"])
    assert (relative("t/a/b", "t/a"), relative("t/ab", "t/a")) == ("b", None)
    assert moved("t/a/b", "t/a", "v") == "v/b"


def test_a_zfs_command_is_words_and_no_shell() -> None:
    assert split_command("sudo '/opt/my zfs'") == ("sudo", "/opt/my zfs")
    for text in ("", "  ", "sudo 'zfs", "a ''"):
        with pytest.raises(errors.UsageError):
            split_command(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"set_properties": ("atime",)}, {"set_properties": ("-x=1",)},
        {"set_properties": ("a=b\nc",)}, {"leave_properties": ("A",)}, {"exclude": ("",)},
        {"snapshot_name": "bad name"}, {"snapshot_name": "a@b"}, {"snapshot_name": ""},
        {"snapshot_name": "a/b"},
        {"keep_last": 0}, {"prune": "both"}, {"prune": "none", "keep_last": 1}, {"parallel": 0},
        {"keep_last": 3}, {"snapshot_name": "a", "keep_last": 0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(fields: dict[str, object]) -> None:
    with pytest.raises(errors.UsageError):
        Settings(**fields)  # type: ignore[arg-type]


def test_the_time_in_a_name_is_a_name() -> None:
    settings = Settings(snapshot_name="auto.{time}")
    names = list(settings.snapshot_names())
    assert names[0].startswith("auto.2") and "{" not in names[0]
    assert names == sorted(set(names)) and all(settings.counts(name) for name in names)
    others = ("auto.", "auto.mine", f"auto.{names[0]}", names[0].replace(".", "-"), f"{names[0]}2")
    assert not any(settings.counts(name) for name in (*others, names[0][:-1], f"x{names[0]}"))
    once = Settings(snapshot_name="before-upgrade")
    assert [*once.snapshot_names()] == ["before-upgrade"] and once.counts("before-upgrade")
    assert not once.counts("before-upgrade2")


# --- what the ends can do


def test_abilities_of_openzfs() -> None:
    can = parse_usage(OPENZFS)
    assert {*"Lecwp"} <= can.send and {*"suFox"} <= can.receive
    assert can.resumes and can.bookmarks and can.holds


def test_abilities_of_zfs_fuse() -> None:
    can = parse_usage(FUSE)
    assert can.send == {*"RDp"} and can.receive == {*"vnF"}
    assert can.holds and not can.resumes and not can.bookmarks


def test_what_two_ends_can_do_together() -> None:
    modern, old = parse_usage(OPENZFS), parse_usage(FUSE)
    both = together(modern, modern)
    assert both == Common(("L", "e", "c"), True, True, True, True, True, True)
    assert together(modern, old) == Common((), False, False, True, True, False)
    assert together(old, modern) == Common((), False, True, False, True, True, True)
    assert not together(replace(modern, send=frozenset("nv")), modern).resume


def test_features_of_the_pools_hold_letters_back() -> None:
    def can(**features: str) -> Abilities:
        return Abilities(frozenset("Lec"), features=features)

    assert together(can(), can(large_blocks="disabled")).letters == ("e", "c")
    assert together(can(), can(large_blocks="enabled")).letters == ("L", "e", "c")
    zstd = {"zstd_compress": "active"}
    assert together(can(**zstd), can(zstd_compress="disabled")).letters == ("L", "e")
    assert together(can(**zstd), can(**zstd)).letters == ("L", "e", "c")
    assert parse_features("feature@a\tactive\nsize\t1G\nfeature@b\tdisabled\n") == {
        "a": "active", "b": "disabled",
    }  # fmt: skip


# --- answers


def got(*rows: tuple[str, ...]) -> str:
    """What zfs get prints; a property without a source has a "-" for it."""
    return "".join("\t".join((*row, "-")[:4]) + "\n" for row in rows)


def test_datasets_are_read() -> None:
    rows = (
        ("t/a/b", "guid", "9"), ("t/a", "receive_resume_token", "1-ab"), ("t/a", "guid", "7"),
        ("t/a@y", "guid", "2"), ("t/a@y", "createtxg", "20"), ("t/a@x", "createtxg", "3"),
        ("t/a@x", "guid", "1"), ("t/a@x", "userrefs", "2"), ("t/a@y", "pscp:job", "me", "local"),
        ("t/a#z", "guid", "1"), ("t/a/b", "type", "filesystem"),
    )  # fmt: skip
    found = parse_datasets(got(*rows), "t/a")
    assert list(found) == ["t/a", "t/a/b"]
    top = found["t/a"]
    assert [each.name for each in top.snapshots] == ["x", "y"] and top.token == "1-ab"
    assert (top.snapshots[0].is_held, top.snapshots[1].mark) == (True, "me")
    assert [each.short for each in top.bookmarks] == ["#z"]


@pytest.mark.parametrize(
    "text",
    [
        "other\tguid\t1\t-\n", "t/ab\tguid\t1\t-\n", "t/a\tguid\t1\n", "garbage",
        "t/a@-R x;y\tguid\t1\t-\n", "t/a@\tguid\t1\t-\n", "t/a/../b\tguid\t1\t-\n",
        "t/a\treceive_resume_token\ta b\t-\n", "t/a@x\tcreatetxg\t1\t-\n",
        "t/a@x\tguid\t1\t-\nt/a@x\tguid\t2\t-\n",
    ],
)  # fmt: skip
def test_answers_that_nobody_asked_for_are_refused(text: str) -> None:
    with pytest.raises(errors.ProtocolError):
        parse_datasets(text, "t/a")


@given(st.text(alphabet="t/a@#\t\n-x1 \u00e4", max_size=60))
def test_no_answer_breaks_the_reader(text: str) -> None:
    try:
        for name in parse_datasets(text, "t/a"):
            assert relative(name, "t/a") is not None
    except errors.ProtocolError:
        pass


# --- complaints


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("cannot receive incremental stream: most recent snapshot of b does not\nmatch incremental "
         "source", errors.Diverged),
        ("cannot receive incremental stream: destination b has been modified\nsince most recent "
         "snapshot", errors.Diverged),
        ("cannot receive new filesystem stream: destination 'b' exists\nmust specify -F to "
         "overwrite it", errors.DestinationExists),
        ("cannot receive new filesystem stream: out of space", errors.NoSpace),
        ("cannot receive: destination b space quota exceeded", errors.NoSpace),
        ("cannot open 'b/c': dataset does not exist\ncannot receive new filesystem stream: dataset "
         "does not exist", errors.NoSuchDataset),
        ("cannot receive new filesystem stream: permission denied", errors.ZfsDenied),
        ("sudo: a password is required", errors.ZfsDenied),
        ("cannot receive incremental stream: dataset is busy", errors.DatasetBusy),
        ("cannot rollback to 'b@c': clones of previous snapshots exist\nuse '-R' to force deletion "
         "of the following clones and dependents:\nb-clone", errors.StreamRejected),
        ("cannot destroy 'b@c': snapshot has dependent clones", errors.StreamRejected),
        ("cannot receive: stream has unsupported feature, flags = 24", errors.StreamRejected),
        ("cannot resume send: 'tank/a@b' used in the initial send no longer exists",
         errors.ResumeRefused),
        ("", errors.StreamRejected),
    ],
)  # fmt: skip
def test_what_a_complaint_means(said: str, kind: type[errors.DatasetError]) -> None:
    error = error_messages.meaning("b", said.encode())
    assert type(error) is kind and error.path == "b" and error.hint
    assert said.split("\n")[0] in error.message


def test_who_is_to_blame_for_a_stream() -> None:
    broken = b"warning: cannot send 't@a': Broken pipe"
    cut = b"cannot receive: failed to read from stream"

    def blamed(sent: int, received: int, sender: bytes, receiver: bytes) -> tuple[str, str]:
        ran = Ran(sent, b"", sender), Ran(received, b"", receiver)
        error = error_messages.of_stream("t", "v", PipeStatuses(*ran, 0))
        assert error is not None
        return type(error).__name__, error.path

    well = PipeStatuses(Ran(0, b"", b""), Ran(0, b"", b"noise"), 1)
    assert error_messages.of_stream("t", "v", well) is None
    assert blamed(1, 1, broken, b"cannot receive: out of space") == ("NoSpace", "v")
    assert blamed(1, -9, b"cannot open 't@a': dataset does not exist", b"") == (
        "NoSuchDataset", "t",
    )  # fmt: skip
    assert blamed(-9, -9, b"", cut) == ("StreamCut", "t")
    assert blamed(0, -9, b"", b"") == ("StreamCut", "v")
    assert blamed(1, 1, broken, cut) == ("StreamCut", "t")


# --- commands


def test_commands_of_a_stream() -> None:
    one, two = Snapshot("one", 1, 1), Snapshot("two", 2, 2)
    settings = Settings(
        raw=True, properties=True, set_properties=("a=b c",), leave_properties=("d",),
        force_rollback=True,
    )  # fmt: skip
    speech = Speech(settings, Common(("L", "e", "c"), True, True, True, True))
    stream = Stream("t/a", "v/a", two, one, True)
    assert speech.send(stream) == (
        "send", "-L", "-e", "-c", "-w", "-p", "-I", "t/a@one", "t/a@two",
    )  # fmt: skip
    assert speech.receive(stream) == (
        "receive", "-s", "-u", "-F", "-o", "a=b c", "-x", "d", "v/a",
    )  # fmt: skip
    assert speech.send(Stream("t/a", "v/a", token="1-x")) == ("send", "-t", "1-x")
    assert Speech(Settings(mount=True), Common()).receive(stream) == ("receive", "v/a")


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, ("mountpoint", "canmount", "sharenfs", "sharesmb")),
        ({"properties": True}, ("mountpoint", "canmount", "sharenfs", "sharesmb")),
        ({"leave_properties": ("canmount",)}, ("canmount", "mountpoint", "sharenfs", "sharesmb")),
        ({"set_properties": ("mountpoint=none",)}, ("canmount", "sharenfs", "sharesmb")),
        ({"keep_mountpoints": True, "leave_properties": ("atime",)}, ("atime",)),
    ],
)
def test_where_a_dataset_is_seen_is_not_taken_from_the_stream(
    chosen: dict[str, Any], left: tuple[str, ...]
) -> None:
    """B4: a stream may hold properties though -p was not given."""
    speech = Speech(Settings(**chosen), Common(leaves=True))
    words = speech.receive(Stream("t/a", "v/a", Snapshot("one", 1, 1)))
    assert tuple(b for a, b in pairwise(words) if a == "-x") == left


OWN = Dataset("t/a", (Snapshot("one", 17), Snapshot("two", 18)), (Snapshot("o", 16),))
TOKEN = (
    "resume token contents:\nnvlist version: 0\n\tobject = 0x1\n\ttoguid = 0x12\n"
    "\ttoname = {name}\n\tfromguid = 0x10\n\trawok = 1\n"
)
FOUND = "incremental\tt/a#o\tt/a@two\t123\nsize\t123\n"


def test_what_is_foreseen() -> None:
    text = TOKEN.format(name="t/a@two") + FOUND
    foreseen = commands.parse_foreseen(text)
    assert foreseen == commands.Foreseen(123, "t/a", True, ("t/a@two",), (18,), (16,))
    assert foreseen.is_of(OWN)
    assert commands.parse_foreseen("no size") == commands.Foreseen()
    assert commands.parse_foreseen("full\tt/a@one\n").sent == ("t/a@one",)  # of no size


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\tt/a@two", "\tt/secret@two"),
        ("toguid = 0x12", "toguid = 0x99"), ("toguid = 0x12", "toguid = 0"),
        ("fromguid = 0x10", "fromguid = 0x99"), ("fromguid = 0x10", "fromguid = -"),
        (FOUND, ""), ("\ttoguid = 0x12\n", ""),
        # texts in the token that look like what zfs says of it
        ("toname = t/a@two", "toname = t/a@two\nfull\tt/a@two\t1"),
        ("toname = t/a@two", "toname = t/a@two\n\ttoguid = 0x12"),
        ("toname = t/a@two", "toname = t/a@two\n\tfromguid = 0x10"),
    ],
)  # fmt: skip
def test_a_token_that_is_not_of_the_source(old: str, new: str) -> None:
    """B3: whatever its name says, and whatever it says beside."""
    text = TOKEN.format(name="t/a@two") + FOUND
    assert old in text and not commands.parse_foreseen(text.replace(old, new)).is_of(OWN)


def test_an_end_without_a_usable_zfs() -> None:
    def saying(text: str) -> Zfs:
        return Zfs(lambda argv: Ran(1, b"", text.encode()), [("zfs",)], "host")

    with pytest.raises(errors.NoZfs, match="host: zfs is of no use: The ZFS modules"):
        saying("The ZFS modules are not loaded.").learn("t/a")
    for denied in (
        "Permission denied the ZFS utilities",
        "doas: Operation not permitted",
        "sudo: a password is required",
    ):
        with pytest.raises(errors.ZfsDenied):
            saying(denied).learn("t/a")
