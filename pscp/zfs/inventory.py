"""Asks the zfs of an end what it can do, and which datasets and snapshots there are.

It runs `zfs` without arguments, `zfs get -Hp` and, where that is allowed, `zpool get`, which every
version of ZFS knows.

Not here: what follows from the answers (plan.py), what zfs's complaints mean (error_messages.py).
Read next: error_messages.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pscp.ground.errors import DatasetError, NoSuchDataset, NoZfs, ProtocolError, ZfsDenied
from pscp.stream.stream import NOT_FOUND, Ran
from pscp.zfs.error_messages import HERE, complaint, meaning
from pscp.zfs.names import is_dataset, is_snapshot_name, parent, relative

# The user property that a snapshot of ours has; its value is the mark of the replication.
MARK = "pscp:job"
TOKEN = "receive_resume_token"
_PROPERTIES = ("type", "guid", "createtxg", "userrefs", "origin", MARK)
_COLUMNS = "name,property,value,source"
_MAX_TOKEN = 64 * 1024
_ARGUMENTS_MAX = 48 * 1024  # characters of names in one command: a system takes 128 KiB or more

# Letters of zfs send that are used wherever both ends have them, and what the receiving pool needs.
_FASTER = {"L": "large_blocks", "e": "embedded_data", "c": "lz4_compress"}
_ENTRY = re.compile(r"^\t(?=\S)", re.MULTILINE)  # a continued line has blanks after its tab
_LETTERS = re.compile(r"\[-([A-Za-z]+)\]")


@dataclass(frozen=True)
class Abilities:
    """The abilities of one end's zfs. `features` are its pool's, with their state, if known."""

    send: frozenset[str] = frozenset()  # letters
    receive: frozenset[str] = frozenset()
    subcommands: frozenset[str] = frozenset()
    resumes: bool = False  # zfs send -t
    features: Mapping[str, str] = field(default_factory=dict)

    @property
    def bookmarks(self) -> bool:
        return "bookmark" in self.subcommands

    @property
    def holds(self) -> bool:
        return {"hold", "release"} <= self.subcommands


@dataclass(frozen=True)
class Common:
    """The abilities that the two ends have together."""

    letters: tuple[str, ...] = ()  # of zfs send, beside what was asked for
    resume: bool = False
    unmounted: bool = False  # zfs receive -u
    sizes: bool = False  # zfs send -nvP
    holds: bool = False  # at the source
    leaves: bool = False  # zfs receive -x
    sets: bool = False  # zfs receive -o


@dataclass(frozen=True)
class Snapshot:
    """A snapshot, or a bookmark of one: what is left of it to begin an increment with."""

    name: str  # behind the "@" or "#"
    guid: int
    txg: int = 0  # the order in which an end's snapshots were made
    is_bookmark: bool = False
    mark: str = ""  # if it was set on this very snapshot
    is_held: bool = False

    @property
    def short(self) -> str:
        return f"{'#' if self.is_bookmark else '@'}{self.name}"


@dataclass(frozen=True)
class Dataset:
    """A filesystem or a volume with its snapshots, oldest first."""

    name: str
    snapshots: tuple[Snapshot, ...] = ()
    bookmarks: tuple[Snapshot, ...] = ()
    token: str = ""  # of a cut receive
    origin: str = ""  # DATASET@NAME that a clone began with
    origin_guid: int = 0  # of that, where it was listed too


def guids(dataset: Dataset | None) -> set[int]:
    """Return the GUIDs of the dataset's snapshots."""
    return {each.guid for each in dataset.snapshots} if dataset else set()


class Zfs:
    """Runs the zfs command of one end."""

    def __init__(
        self,
        run_there: Callable[[Sequence[str]], Ran],
        commands: Sequence[Sequence[str]],
        where: str,
        option: str = HERE,
    ) -> None:
        """`option` is the one that says what zfs is at this end."""
        self.run_there, self.where, self._option = run_there, where, option
        self.can = Abilities()
        self._commands = commands
        self.command = tuple(commands[0])

    def argv(self, *words: str) -> tuple[str, ...]:
        return (*self.command, *words)

    def command_line(self, words: Sequence[str]) -> str:
        """Return a zfs command as a person would type it at this end."""
        return f"{self.where}: {shlex.join(self.argv(*words))}"

    def run(self, *words: str) -> Ran:
        return self.run_there(self.argv(*words))

    def beside(self, program: str) -> tuple[str, ...]:
        """Return what runs another program as zfs is run, such as by sudo; empty if none can be."""
        *before, zfs = self.command
        return (*before, program) if os.path.basename(zfs) == "zfs" else ()

    def meaning(self, dataset: str, err: bytes) -> DatasetError:
        """Return the error that this stderr of this end's zfs means."""
        return meaning(dataset, err, self._option)

    def do(self, dataset: str, *words: str) -> str:
        """Run a zfs command and return its output; raises the error that its complaint means."""
        ran = self.run(*words)
        if ran.status != 0:
            raise self.meaning(dataset, ran.err)
        return ran.out.decode("utf-8", "replace")

    def learn(self, dataset: str) -> None:
        """Find zfs, and what it and the dataset's pool can do. Raises NoZfs, or ZfsDenied."""
        said = b""
        for command in self._commands:
            self.command = tuple(command)
            ran = self.run()
            said = ran.err or ran.out
            usage = (ran.err + ran.out).decode("utf-8", "replace")
            self.can = parse_usage(usage)
            if {"send", "receive"} <= self.can.subcommands or ran.status != NOT_FOUND:
                break
        if not {"send", "receive"} <= self.can.subcommands:
            why = complaint(said) or "it says nothing"
            if isinstance(error := self.meaning(dataset, said), ZfsDenied):
                raise error
            what = f"{self.where}: {' '.join(self._commands[0])} is of no use: {why}"
            raise NoZfs(what, f"install ZFS there, or say where it is: {self._option}")
        if self.can.bookmarks:  # as old are features of pools
            self.can = dataclasses.replace(self.can, features=self._features(dataset))

    def _features(self, dataset: str) -> dict[str, str]:
        """Return the features of the dataset's pool; empty if zpool is not there or not allowed."""
        zpool = self.beside(f"{self.command[-1].removesuffix('zfs')}zpool")
        if not zpool:
            return {}
        pool = dataset.partition("/")[0]
        ran = self.run_there((*zpool, "get", "-H", "-o", "property,value", "all", pool))
        return parse_features(ran.out.decode("utf-8", "replace")) if ran.status == 0 else {}

    def _get(self, *depth: str) -> tuple[str, ...]:
        properties = [*_PROPERTIES, *([TOKEN] if "s" in self.can.receive else [])]
        kinds = ("-t", "filesystem,volume,snapshot,bookmark") if self.can.bookmarks else ()
        return ("get", *depth, *kinds, "-Hp", "-o", _COLUMNS, ",".join(properties))

    def datasets(self, top: str, recursive: bool) -> dict[str, Dataset]:
        """Return the dataset and those below it, parents first; empty if it is not there."""
        if not recursive:
            return self.look([top], top)
        try:
            return parse_datasets(self.do(top, *self._get("-r"), top), top)
        except NoSuchDataset:
            return {}

    def look(self, names: Sequence[str], top: str) -> dict[str, Dataset]:
        """Return those of these datasets that are there, asked for in few commands."""
        found: dict[str, Dataset] = {}
        for some in in_batches(names):
            ran = self.run(*self._get("-d", "1"), *some)
            error = self.meaning(top, ran.err) if ran.status != 0 else None
            if error is not None and not isinstance(error, NoSuchDataset):
                raise error
            found.update(parse_datasets(ran.out.decode("utf-8", "replace"), top))
        return {name: found[name] for name in names if name in found}

    def missing_above(self, name: str) -> str:
        """Return the pool or the parent of a dataset, whichever is not there; "" if both are."""
        names = [each for each in (name.partition("/")[0], parent(name)) if each]
        ran = self.run("list", "-H", "-o", "name", *dict.fromkeys(names))
        if ran.status == 0 or not isinstance(meaning(name, ran.err), NoSuchDataset):
            return ""
        there = ran.out.decode("utf-8", "replace").splitlines()
        return next((each for each in names if each not in there), "")

    def written(self, names: Sequence[str]) -> dict[str, int]:
        """Return the bytes written to each dataset since its newest snapshot, as far as zfs tells.

        zfs-fuse does not; OpenZFS does since 0.6.
        """
        found: dict[str, int] = {}
        for some in in_batches(names):
            ran = self.run("get", "-Hp", "-o", "name,value", "written", *some)
            rows = (line.split("\t") for line in ran.out.decode("utf-8", "replace").splitlines())
            found.update((row[0], _number(row[1])) for row in rows if len(row) == 2)
        return found

    def clones(self, dataset: str) -> dict[str, str]:
        """Return a clone in the dataset's pool for each snapshot that one began with."""
        pool = dataset.partition("/")[0]
        said = self.run("list", "-H", "-o", "origin,name", "-r", pool).out
        rows = (line.split("\t") for line in said.decode("utf-8", "replace").splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] != "-"}

    def is_unfinished(self, name: str) -> bool:
        """Return whether zfs receive has begun to make this dataset, or has thrown it away again.

        Until that is done zfs tells no version of a filesystem and no size of a volume, as they
        are in the stream (zfs_ioc_objset_stats and zfs_ioc_objset_zplprops in zfs_ioctl.c).
        """
        try:
            values = self.do(name, "get", "-Hp", "-o", "value", "version,volsize", name).split()
        except NoSuchDataset:
            return True
        return not any(value.isdigit() for value in values)


def in_batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names in as few lists as may be arguments of one command each."""
    some: list[str] = []
    for name in names:
        if some and sum(map(len, some)) + len(name) > _ARGUMENTS_MAX:
            yield some
            some = []
        some.append(name)
    if some:
        yield some


# --- what zfs can do


def parse_usage(text: str) -> Abilities:
    """Read what zfs prints when it is called without arguments."""
    lines = [entry.strip() for entry in _ENTRY.split(text)[1:]]
    send, receive = (
        "\n".join(line for line in lines if line.split()[:1] == [subcommand])
        for subcommand in ("send", "receive")
    )
    taking = re.findall(r"\[-([a-z]) <property", receive)
    return Abilities(
        send=frozenset("".join(_LETTERS.findall(send))),
        receive=frozenset("".join([*_LETTERS.findall(receive), *taking])),
        subcommands=frozenset(line.split()[0] for line in lines if line),
        resumes=re.search(r"-t <\w*token", send) is not None,
    )


def parse_features(text: str) -> dict[str, str]:
    """Read `zpool get -H -o property,value all POOL`."""
    rows = (line.split("\t") for line in text.splitlines())
    named = (row for row in rows if len(row) == 2 and row[0].startswith("feature@"))
    return {row[0].removeprefix("feature@"): row[1] for row in named}


def together(source: Abilities, dest: Abilities) -> Common:
    """Return what may be used between two ends. An end can receive what it can send."""
    letters = [
        letter
        for letter, feature in _FASTER.items()
        if letter in source.send & dest.send and dest.features.get(feature) != "disabled"
    ]
    has_zstd = source.features.get("zstd_compress") == "active"
    if "c" in letters and has_zstd and dest.features.get("zstd_compress") in (None, "disabled"):
        letters.remove("c")
    sizes = {"n", "v", "P"} <= source.send
    return Common(
        letters=tuple(letters),
        # a token is used only when zfs send -nvP has told what is in it
        resume=source.resumes and sizes and "s" in dest.receive,
        unmounted="u" in dest.receive,
        sizes=sizes,
        holds=source.holds,
        leaves="x" in dest.receive,
        sets="o" in dest.receive,
    )


# --- what there is


def parse_datasets(text: str, top: str) -> dict[str, Dataset]:
    """Read `zfs get -Hp -o name,property,value,source`: datasets by name, parents first."""
    found: dict[str, Dataset] = {}
    snapshots: dict[str, list[Snapshot]] = {}
    for name, of in _values(text).items():
        sign = next((each for each in "@#" if each in name), "")
        dataset, _, short = name.partition(sign or "@")
        if not is_dataset(dataset) or relative(dataset, top) is None:
            raise ProtocolError(f"zfs get told of {name[:80]!a}, which was not asked for")
        if not sign:
            found[name] = _dataset(name, of)
        elif not is_snapshot_name(short):
            raise ProtocolError(f"zfs get told of {name[:80]!a}, which is no name")
        else:
            snapshots.setdefault(dataset, []).append(_snapshot(sign, short, of))
    for name in found:
        in_order = sorted(snapshots.get(name, ()), key=lambda each: each.txg)
        found[name] = dataclasses.replace(
            found[name],
            snapshots=tuple(each for each in in_order if not each.is_bookmark),
            bookmarks=tuple(each for each in in_order if each.is_bookmark),
        )
    for name, dataset_of in found.items():
        origin, _, short = dataset_of.origin.partition("@")
        if origin in found and origin != name:
            guids = [each.guid for each in found[origin].snapshots if each.name == short]
            found[name] = dataclasses.replace(dataset_of, origin_guid=guids[0] if guids else 0)
    return {name: found[name] for name in sorted(found, key=lambda name: name.split("/"))}


def _values(text: str) -> dict[str, dict[str, str]]:
    """Return the properties of each name, by the names.

    A mark that the name only inherits, or that came in a stream, is left out: whoever sets a
    property of the dataset, or sends it, would mark its snapshots.
    """
    values: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        columns = line.split("\t")
        if len(columns) != 4:
            raise ProtocolError(f"zfs get said what is no row of four columns: {line[:80]!a}")
        name, key, value, source = columns
        of = values.setdefault(name, {})
        if key == MARK and source != "local":
            value = "-"
        # Asked for a dataset and one below it, zfs may print that twice, and a hold may come just
        # then; but the value of a user property may have lines in it that look like other rows.
        if of.setdefault(key, value) != value and key != "userrefs":
            raise ProtocolError(f"zfs get told of {name[:80]!a} twice")
    return values


def _dataset(name: str, of: dict[str, str]) -> Dataset:
    token = of.get(TOKEN, "-")
    if len(token) > _MAX_TOKEN or not token.isascii() or any(each.isspace() for each in token):
        raise ProtocolError(f"{name}: this is no resume token: {token[:80]!a}")
    origin = of.get("origin", "-")
    return Dataset(
        name, token="" if token == "-" else token, origin="" if origin == "-" else origin
    )


def _snapshot(sign: str, name: str, of: dict[str, str]) -> Snapshot:
    mark = of.get(MARK, "-")
    if not _number(of.get("guid", "")):
        raise ProtocolError(f"zfs get told no GUID of {sign}{name[:80]}")
    return Snapshot(
        name,
        guid=_number(of["guid"]),
        txg=_number(of.get("createtxg", "")),
        is_bookmark=sign == "#",
        mark="" if mark == "-" else mark,
        is_held=_number(of.get("userrefs", "")) > 0,
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 40 else 0
