"""The requests of the coordinator to an end of a copy: a record for each, and their JSON.

The payload of an ASK frame is {"ask": the record's name, and its fields}. The near end is given the
record itself. docs/protocol.md lists the names, by the end that answers.

Not here: what an end does for a request (../serving/end.py, ../../sftp/end.py), the frame
(../frames/wire.py), the checks of answers (../../transfer/pieces/answers.py).
Read next: ../serving/end.py.
"""

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

from ..frames import wire
from ..reading.source import SourceFile, Top
from ..reading.tree import Entry, Rules
from . import entries

if TYPE_CHECKING:
    from typing import Protocol

    class Request(Protocol):
        """Any of the records below."""

        def _asdict(self) -> Dict[str, object]: ...

else:
    Request = object


Pieces = List[Tuple[int, int]]  # (offset, length) of each
Words = Union[str, List[str]]


# --- asked of either end


class Ping(NamedTuple):
    """Nothing: the answer shows that the end is there. Answer: null."""


class Expand(NamedTuple):
    """Which files sources as typed stand for. Answer: per path `[[name, path, is_folder], ...]`,
    or a failure.
    """

    paths: List[str]  # as typed
    glob: bool  # whether they may be patterns


class Target(NamedTuple):
    """Ask where a copy lands; this run claims it. Answer: `[root, names there, those that exist,
    made, claim]`; *made* is the name of the folder that the copy makes AS its source, or "",
    *claim* the answer to Claim, null for a dry run.
    """

    path: str  # as typed
    names: List[str]  # of the sources
    folders: List[bool]  # which sources are folders
    token: str  # of the copy
    nonce: str  # of this run ("": a dry run)
    known: List[str]  # runs that it may take the copy over from
    mkpath: bool  # whether the folders above it are made as well
    backups: str = ""  # the folder of --backup-dir that is not in DEST


class Claim(NamedTuple):
    """Have this run own the copy. Answer: `{"held": the run that owns the copy and is not known, or
    "", "earlier": [runs that may have left parts]}`.
    """

    root: str
    token: str
    nonce: str
    known: List[str]


class Learn(NamedTuple):
    """Take further modules, whose requests follow. Answer: null."""

    modules: str


class BeginSource(NamedTuple):
    """Be the source of a copy. Answer: null."""

    tops: List[Top]  # (name, path, is_folder)
    rules: Rules  # of the walk
    hash: str
    block_bytes: int
    strong: bool  # whether each file's SHA-256 is compared as well
    test: bool  # whether the data is made up
    debug: bool = False  # whether the agent writes what it does to its standard error
    modules: str = ""  # those that the agent lacks for this copy


class BeginSink(NamedTuple):
    """Be the sink of a copy. Answer: null."""

    root: str
    token: str
    nonce: str
    earlier: List[str]  # runs that may have left parts
    hash: str
    strong: bool
    preserve: bool
    archive: bool
    test: bool  # whether nothing is written
    server: Dict[str, object]  # what the answer to the claim had on an SFTP server
    lane: int = 0  # the lane's number in the run
    debug: bool = False  # as with BeginSource
    modules: str = ""  # as with BeginSource
    backup: List[str] = []  # (suffix and folder for what is replaced; empty: it is not kept)
    # (DEST's path below the root, its whole one, and folders with names to give; empty: none)
    link_dest: List[str] = []
    made: str = ""  # as in the answer to Target
    # Folders ("" is the root) below which a folder takes the place of a file or link.
    replaces: List[str] = []
    one_mount: bool = False  # whether folders where something else is mounted are refused


class BeginStream(NamedTuple):
    """Be a lane of the stream that is gathered at a socket. Answer: null."""

    socket: str  # the answer to Gather
    hash: str
    block_bytes: int
    modules: str  # as with Gather
    debug: bool = False  # as with BeginSource


class End(NamedTuple):
    """End the copy, and the stream that is gathered there. Answer: null; the agent can begin
    another.
    """


class OpenPlane(NamedTuple):
    """Have an agent, and no near end, take lanes of a direct plane: listen on the address that SSH
    came in on, or connect to the coordinator. Answer: `[address, port, note]`.
    """

    modules: str  # those that the agent lacks for it
    plane: str  # "tls" or "plain"
    dial: int  # the coordinator's port to connect to; 0: listen
    ports: List[int]  # (the first and the last to listen on; `[0, 0]`: any)
    tokens: List[str]  # of the lanes: what whoever connects sends, and the answer, in hex
    own: str  # private key and certificate for TLS (PEM; "" without)
    peer: str  # the coordinator's certificate (PEM)
    congestion: str  # control of the sockets ("": the kernel's)
    buffers: List[int]  # (receive and send buffer of the sockets in bytes; 0: the kernel's)


class Cpu(NamedTuple):
    """Ask what the connection costs at the far end. Answer: the CPU-seconds that the agent's
    parent, sshd, has used; null where unknown.
    """


# --- asked of a source


class Walk(NamedTuple):
    """The next entries of the walk. Answer: `[entries, whether these were the last]`."""

    after: Optional[Tuple[int, str]]  # (`[top, path]`, or null)
    restart: bool  # whether this is another walk than that of the request before
    most: int  # entries


class Extents(NamedTuple):
    """Ask where a sparse file has data. Answer: `[[[offset, length], ...], whether these were the
    last]`.
    """

    file: SourceFile
    offset: int  # to begin at


class Pack(NamedTuple):
    """Small files, whole. Answer: a PACK frame. Only an agent is asked for it."""

    files: List[SourceFile]


class Digests(NamedTuple):
    """The digests of extents of files. Answer: per file the digests in hex, or a failure."""

    files: List[Tuple[SourceFile, Pieces]]
    hash: str


# --- asked of a sink


class Make(NamedTuple):
    """Make the part of a file that is one hole. Answer: its receipt."""

    entry: Entry


class Finish(NamedTuple):
    """Make the part the file. Answer: null, once the file is durable and renamed."""

    entry: Entry
    strong: str  # (SHA-256 or "")
    receipt: int  # which all chunks have


class Discard(NamedTuple):
    """Remove the parts of a file. Answer: whether all are gone; null where one was the file itself
    (an earlier version's --inplace), and no file has its name now.
    """

    path: str
    nonces: List[str]  # of runs ("": this one)


class Sweep(NamedTuple):
    """Remove what lanes that died left of small files in these folders. Answer: null."""

    folders: List[str]


class Revoke(NamedTuple):
    """Refuse whatever a lost lane still has on its way. Answer: null."""

    lane: int  # of this run; the last one of a task stands for all tasks up to that


class Release(NamedTuple):
    """End the ownership of the copy, which is over. Answer: null."""


class Folds(NamedTuple):
    """Ask whether a folder takes alike names for one, by case or accents. A file is made in it for
    a moment. Answer: whether it does.
    """

    folder: str
    make: bool  # the folder, where it is missing


class Unmark(NamedTuple):
    """Remove the marker of the folder that the copy has made: it is complete. Answer: null."""


class Folders(NamedTuple):
    """Give folders their metadata. Answer: `[place, failure]` of those that failed to take it."""

    entries: List[Entry]


# --- asked of a stream's far end


class Gather(NamedTuple):
    """Start the far end of a stream. Answer: the path of the socket for its other lanes."""

    is_sink: bool  # else the stream's source
    window: int  # in chunks
    command: Words  # (a list, or a text for the shell)
    path: Optional[str]  # of a file in the command's place, or null
    modules: str  # those that the agent lacks for it


class AwaitOutput(NamedTuple):
    """Ask what the command has written. Answer: `said`: `[[text, bytes], ...]`, `status` or null,
    `deaf` (it reads no more), `failure`; after a second also without news.
    """

    after: List[int]  # bytes of each output that the coordinator has
    deaf: bool  # whether it knows that the command reads no more


class AwaitChunks(NamedTuple):
    """How many chunks were written. Answer: their number, once it is above `past`, or after a
    second.
    """

    past: int  # chunks


class CloseInput(NamedTuple):
    """End the command's input after the last chunk. Answer: null."""

    total: int  # chunks


class Abort(NamedTuple):
    """End the command, as the stream is cut short. Answer: null, once it has ended."""


OfGathering = Union[AwaitOutput, AwaitChunks, CloseInput, Abort]
Begin = Union[BeginSource, BeginSink, BeginStream]
BEGINNINGS = (BeginSource, BeginSink, BeginStream)

OF_COPY = (Learn, BeginSource, BeginSink)
WITH_MODULES = (OpenPlane, Gather, BeginStream, *OF_COPY)

OF_EITHER = (Ping, Expand, Target, Claim, Learn, *BEGINNINGS, End, OpenPlane, Cpu)
OF_SOURCE = (Walk, Extents, Pack, Digests)
OF_SINK = (Make, Finish, Discard, Sweep, Revoke, Release, Unmark, Folds, Folders)
OF_GATHERING = (AwaitOutput, AwaitChunks, CloseInput, Abort)
OF_STREAM = (Gather, *OF_GATHERING)
_ALL = OF_EITHER + OF_SOURCE + OF_SINK + OF_STREAM
KINDS: Dict[str, Any] = {kind.__name__: kind for kind in _ALL}


def add(kinds: "Iterable[type]") -> None:
    """Take these records for requests too."""
    KINDS.update({kind.__name__: kind for kind in kinds})


def to_json(request: "Request") -> bytes:
    """Return the payload of an ASK frame."""
    return wire.to_json(dict(request._asdict(), ask=type(request).__name__))


def from_json(value: object) -> "Request":
    """Return the record that came as JSON, with every field of its type. Raises WireError."""
    name = value.get("ask") if isinstance(value, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(value, dict) or value.keys() != {"ask", *kind._fields}:
        raise wire.WireError("a request of no known kind")
    make: Callable[..., "Request"] = kind
    types = kind.__annotations__
    return make(*[_reader(types[field])(value[field]) for field in kind._fields])


def path_of(request: "Request") -> str:
    """Return the path of the file that a request is about; "" for none, or several."""
    entry = getattr(request, "entry", None)
    if isinstance(entry, Entry):
        return entry.path
    path = getattr(request, "path", None)
    return path if isinstance(path, str) else ""


# --- the types of fields

Reader = Callable[[object], Any]  # raises WireError for a value of another type


def _of(kind: type) -> Reader:
    def read(value: object) -> object:
        if type(value) is not kind:
            raise _misfit()
        return value

    return read


def _misfit() -> wire.WireError:
    return wire.WireError("a request with a field of another type")


def integer(value: object, least: int = 0, most: int = (1 << 64) - 1) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _misfit()
    return value


def row(value: object, count: int) -> List[object]:
    """Return the items of a list of so many. Raises WireError."""
    if not isinstance(value, list) or len(value) != count:
        raise _misfit()
    return value


def parse_source_file(value: object) -> SourceFile:
    """Return the file of a source's manifest that came as JSON. Raises WireError."""
    top, path, size, mtime_ns, inode = row(value, 5)
    time_ns = integer(mtime_ns, -wire.MAX_TIME_NS, wire.MAX_TIME_NS)
    return SourceFile(integer(top), _text(path), integer(size), time_ns, integer(inode))


_text = _of(str)
_READERS: Dict[object, Reader] = {
    str: _text,
    bool: _of(bool),
    int: integer,
    Words: lambda value: value if isinstance(value, str) else _reader(List[str])(value),
    Entry: entries.entry,
    SourceFile: parse_source_file,
    Dict[str, object]: _of(dict),
}


def _reader(kind: Any) -> Reader:
    """Return what reads the JSON of this type, as an annotation names it."""
    read = _READERS.get(kind)
    if read is None:
        read = _READERS[kind] = _new_reader(kind)
    return read


def _new_reader(kind: Any) -> Reader:
    is_record = hasattr(kind, "_fields")
    types = [kind.__annotations__[field] for field in kind._fields] if is_record else kind.__args__
    reads = [_reader(each) for each in types if each is not type(None)]
    if is_record or kind.__origin__ in (tuple, Tuple):

        def read_row(value: object) -> object:
            items = [read(item) for read, item in zip(reads, row(value, len(reads)))]
            return kind(*items) if is_record else tuple(items)

        return read_row
    if kind.__origin__ is Union:
        return lambda value: None if value is None else reads[0](value)

    def read_list(value: object) -> object:
        if not isinstance(value, list):
            raise _misfit()
        return [reads[0](item) for item in value]

    return read_list
