"""The sink end of a copy: writes chunks and packs, verifies them, makes files final.

Used by the agent when it is pushed to, and by a lane when it pulls. Every name is resolved below
the destination's root without following links (names.Root), whoever chose it.

Not here: a part's way to its final name (durable.py), when what is sent (../lane.py).
Read next: agent.py.
"""

import collections
import os
import stat
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import durable, failures, files, hashes, metadata, tree, wire
from .names import Root, part_name, to_bytes, to_text
from .session import Arriving

_FILES_KEPT = 16  # open descriptors a lane
Done = Callable[[List[Optional[failures.Data]]], None]


class Target(NamedTuple):
    """Where a copy lands: the folder, each source's name in it, and which of them exist there."""

    root: str
    names: List[str]
    existing: List[str]


def resolve(destination: str, names: List[str], folders: List[bool], token: str) -> Target:
    """What DEST means for these sources, as with cp and scp. Raises Refusal, OSError."""
    path = os.path.expanduser(to_bytes(destination)) or b"."
    slash = path.endswith((b"/", b"/."))  # realpath() takes both away
    full = os.path.realpath(path)
    if os.path.isdir(full):
        return _existing(full, names, token)
    if len(names) != 1:
        raise _refused(destination, "is not a folder, and there are several sources for it")
    if os.path.lexists(full):
        if slash or folders[0]:
            raise _refused(destination, "is a file, not a folder")
    elif slash and not folders[0]:
        raise _refused(destination, "no such folder")
    parent, name = os.path.split(full)
    if not os.path.isdir(parent):
        raise _refused(destination, "no such folder: %s" % to_text(parent))
    return _existing(parent, [to_text(name)], token)


def _existing(root: bytes, names: List[str], token: str) -> Target:
    def exists(name: str) -> bool:
        plain = to_bytes(name)
        candidates = (plain, part_name(plain, token))
        return not plain or any(os.path.lexists(os.path.join(root, each)) for each in candidates)

    return Target(to_text(root), names, [name for name in names if exists(name)])


def _refused(path: str, message: str) -> failures.Refusal:
    return failures.Refusal(failures.DESTINATION, path, message)


_ENTRY_TYPES = (str, int, str, int, int, int, int, dict)


def entry(value: Any) -> tree.Entry:
    """An Entry as it came over the wire, with every field of its type. WireError otherwise."""
    try:
        made = tree.Entry(*value)
    except TypeError:
        raise wire.WireError("an entry of another shape")
    if (
        tuple(map(type, made)) != _ENTRY_TYPES
        or made.kind not in tree.KINDS
        or not 0 <= made.size <= (wire.MAX_OFFSET if made.kind == tree.FILE else 0)
        or not 0 <= made.mode <= 0o7777
        or abs(made.mtime_ns) > 1 << 63
        or ("x" in made.extra and not _are_attributes(made.extra["x"]))
    ):
        raise wire.WireError("an entry with a field out of bounds")
    return made


def _are_attributes(value: Any) -> bool:
    """As metadata.py reads them: name -> base64."""
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


class Sink:
    """Takes the files of one copy at this end."""

    def __init__(
        self, root: str, token: str, policy: metadata.Policy, algorithm: str, strong: bool
    ) -> None:
        self.root = Root(root)
        self._token, self._policy = token, policy
        self._algorithm, self._strong = algorithm, strong
        # A small file's part is this lane's alone: an agent whose connection was lost may still be
        # at work on the same file, and must not rename what another has half written.
        self._own_token = token + os.urandom(3).hex()
        self._settler = durable.Settler(self.root, policy, strong)
        self._known: Dict[int, tree.Entry] = {}
        self._open: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._arriving = Arriving()
        self._hasher = hashes.new(algorithm)
        self._failure: Optional[failures.Data] = None  # of the chunk that is arriving
        self._room = memoryview(bytearray(1 << 18))

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        """From now on `id_` is this file."""
        self._known[id_] = value

    def forget(self, id_: int) -> None:
        self._known.pop(id_, None)
        file = self._open.pop(id_, None)
        if file is not None:
            file.close()

    def _entry(self, id_: int) -> tree.Entry:
        if id_ not in self._known:
            raise wire.WireError("bytes for a file that was not announced")
        return self._known[id_]

    def _file(self, id_: int) -> Any:
        file = self._open.get(id_)
        if file is None:
            file = self._open[id_] = self._opened(self._known[id_])
            if len(self._open) > _FILES_KEPT:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(id_)
        return file

    def _opened(self, value: tree.Entry) -> Any:
        with self.root.lock:
            folder_fd, name = self.root.at(value.path, make=True)
            part = part_name(name, self._token)
            extra = value.extra
            return files.FileSink(folder_fd, part, value.size, "sparse" in extra, "dig" in extra)

    def write(self, id_: int, offset: int, block: memoryview) -> None:
        """A block came. What goes wrong is told when the chunk is complete."""
        value = self._entry(id_)
        if self._arriving.block(id_, offset, len(block), value.size):
            self._hasher = hashes.new(self._algorithm)
            self._failure = None
        self._hasher.update(block)
        if self._failure is None:
            try:
                self._file(id_).write(block, offset)
            except (OSError, failures.Refusal) as error:
                self._failure = failures.from_exception(error, value.path)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """The chunk's digest came: does it match; the part's inode; what went wrong."""
        self._arriving.complete(id_, offset, length)
        if self._failure is not None:
            return False, 0, self._failure
        return self._hasher.digest() == digest, self._file(id_).inode, None

    def abandon(self) -> None:
        """The source could not read the rest of the chunk that is arriving."""
        self._arriving.abandon()

    def finish(self, value: tree.Entry, strong: str, inode: int, done: Done) -> None:
        """All chunks landed in the part with this inode: make it the file, soon."""
        try:
            with self.root.lock:
                folder_fd, name = self.root.at(value.path, make=True)
                if self._is_finished(folder_fd, name, value, inode):
                    return done([None])
                part = files.FileSink(folder_fd, part_name(name, self._token), value.size, True)
                if inode and part.inode != inode:
                    part.close()
                    raise failures.Refusal(failures.VERIFY, value.path, "its part was replaced")
        except (OSError, failures.Refusal) as error:
            return done([failures.from_exception(error, value.path)])
        whole = durable.Part(part.fd, value, strong, self._token, True)
        self._settler.add(durable.Batch([whole], done))

    def _is_finished(self, folder_fd: int, name: bytes, value: tree.Entry, inode: int) -> bool:
        """Was it renamed already, by a lane that died before it could say so?"""
        try:
            os.stat(part_name(name, self._token), dir_fd=folder_fd, follow_symlinks=False)
            return False
        except FileNotFoundError:
            pass
        try:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return bool(inode) and (status.st_ino, status.st_size) == (inode, value.size)

    # --- small files, folders and links, by packs

    def pack(
        self, entries: List[tree.Entry], rows: List[Any], bodies: memoryview, done: Done
    ) -> None:
        """Take a pack. `done` gets, per entry, None or its failure; it may come later."""
        outcome: List[Optional[failures.Data]] = [None] * len(entries)
        parts: List[durable.Part] = []
        places: List[int] = []
        offset = 0
        check_sizes(entries, rows, len(bodies))
        for place, (value, row) in enumerate(zip(entries, rows)):
            if isinstance(row, dict):
                outcome[place] = failures.checked(row)
                continue
            body = bodies[offset : offset + value.size]
            offset += len(body)
            try:
                part = self._small(value, row, body)
            except (OSError, failures.Refusal) as error:
                outcome[place] = failures.from_exception(error, value.path)
                continue
            if part is not None:
                parts.append(part)
                places.append(place)

        def settled(found: List[Optional[failures.Data]]) -> None:
            for place, failure in zip(places, found):
                outcome[place] = failure
            done(outcome)

        if parts:
            self._settler.add(durable.Batch(parts, settled))
        else:
            done(outcome)

    def _small(self, value: tree.Entry, row: Any, body: memoryview) -> Optional[durable.Part]:
        if value.kind == tree.FOLDER:
            self._make_folder(value)
        elif value.kind == tree.LINK:
            self._make_link(value)
        else:
            return self._make_part(value, row[1], body)
        return None

    def _make_part(self, value: tree.Entry, digest: str, body: memoryview) -> durable.Part:
        hasher = hashes.new(hashes.STRONG if self._strong else self._algorithm)
        hasher.update(body)
        if hasher.digest().hex() != digest:
            raise failures.Refusal(failures.DAMAGED, value.path, "arrived damaged")
        with self.root.lock:
            folder_fd, name = self.root.at(value.path, make=True)
            nameless = files.new_small(folder_fd)
            if nameless is None:
                part, flags = part_name(name, self._own_token), files.PART_FLAGS | os.O_TRUNC
                fd = os.open(part, flags, 0o600, dir_fd=folder_fd)
            else:
                fd = nameless
        try:
            written = os.write(fd, body) if body else 0
            while written < len(body):
                written += os.write(fd, body[written:])
        except OSError:
            os.close(fd)
            durable.unlink_part(self.root, value.path, self._own_token)
            raise
        return durable.Part(fd, value, digest, self._own_token, nameless is None)

    def _make_folder(self, value: tree.Entry) -> None:
        """A folder that is usable until all in it has landed; then folders() finishes it."""
        if not value.path:
            return
        mode = self._policy.mode(value.mode) & 0o777 | 0o700
        with self.root.lock:
            folder_fd, name = self.root.at(value.path, make=True)
            try:
                os.mkdir(name, mode, dir_fd=folder_fd)
            except FileExistsError:
                self.root.folder(value.path)  # raises where it is not a folder
            if "new" in value.extra:
                os.fchmod(self.root.folder(value.path), mode)

    def _make_link(self, value: tree.Entry) -> None:
        target = value.extra["to"]
        with self.root.lock:
            folder_fd, name = self.root.at(value.path, make=True)
            durable.replaced(folder_fd, name, value.path)
            part = part_name(name, self._token)
            _unlink(part, folder_fd)
            os.symlink(to_bytes(target), part, dir_fd=folder_fd)
            metadata.apply_to_link(folder_fd, part, value, self._policy)
            os.rename(part, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)

    # --- after all files: hard links, then folders' metadata

    def hard_link(self, value: tree.Entry) -> None:
        """Make the file another name of one that was copied."""
        with self.root.lock:
            from_fd, first = self.root.at(value.extra["to"])
            from_fd = os.dup(from_fd)  # the next at() may close it
            try:
                folder_fd, name = self.root.at(value.path, make=True)
                durable.replaced(folder_fd, name, value.path)
                part = part_name(name, self._token)
                _unlink(part, folder_fd)
                os.link(
                    first, part, src_dir_fd=from_fd, dst_dir_fd=folder_fd, follow_symlinks=False
                )
                os.rename(part, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                _unlink(part, folder_fd)  # rename does nothing when both are the same file
            finally:
                os.close(from_fd)

    def finish_folder(self, value: tree.Entry) -> None:
        """Everything in the folder has landed: give it its metadata."""
        with self.root.lock:
            fd = self.root.folder(value.path)
            # Before its metadata changes: so the first folder's fsync commits all, and the next
            # ones find nothing to wait for.
            os.fsync(fd)
            metadata.apply_to_folder(fd, value, self._policy, "new" in value.extra)

    # --- what is there already

    def look(self, paths: List[str]) -> List[Any]:
        """Per path [kind, size, mtime_ns, whether there is a part]; kind "" for nothing."""
        return [self._seen(path) for path in paths]

    def _seen(self, path: str) -> List[Any]:
        if not path:
            return [tree.FOLDER, 0, 0, False]
        try:
            with self.root.lock:
                folder_fd, name = self.root.at(path)
                part = part_name(name, self._token)
                return _kind_and_size(folder_fd, name) + [_exists(folder_fd, part)]
        except (OSError, failures.Refusal):
            return ["", 0, 0, False]  # the attempt to write there will tell

    def digests(
        self, path: str, part: bool, extents: List[Any], algorithm: str
    ) -> List[Optional[str]]:
        """The hex digest of each extent of the file, or of its part; None where it is shorter."""
        try:
            fd = self._opened_there(path, part)
        except FileNotFoundError:
            return [None] * len(extents)
        try:
            found = [files.digest_of(fd, (o, n), algorithm, self._room) for o, n in extents]
            return [None if digest is None else digest.hex() for digest in found]
        finally:
            os.close(fd)

    def _opened_there(self, path: str, part: bool) -> int:
        """A descriptor of the file, or of its part."""
        with self.root.lock:
            folder_fd, name = self.root.at(path)
            if part:
                name = part_name(name, self._token)
            return os.open(name, files.READ_FLAGS | os.O_NOFOLLOW, dir_fd=folder_fd)

    def extents(self, path: str, offset: int) -> Tuple[List[files.Extent], bool]:
        """The file's next stretches of data, and whether these were the last."""
        fd = self._opened_there(path, False)
        try:
            size = os.fstat(fd).st_size
            found = files.data_extents(fd, size, offset, files.EXTENTS_MOST)
        finally:
            os.close(fd)
        return found, len(found) < files.EXTENTS_MOST

    def discard(self, path: str) -> None:
        """Remove the file's part."""
        durable.unlink_part(self.root, path, self._token)

    def adopt(self, value: tree.Entry) -> None:
        """The file is here already and verified: with -p give it its source's metadata."""
        if not self._policy.preserve:
            return
        fd = self._opened_there(value.path, False)
        try:
            metadata.apply_to_file(fd, value, self._policy, None)
        finally:
            os.close(fd)

    def close(self) -> None:
        self._settler.close()
        for id_ in list(self._open):
            self.forget(id_)
        self.root.close()


def check_sizes(entries: List[tree.Entry], rows: List[Any], count: int) -> None:
    """Before anything is opened: the rows are for these entries, and for so many bytes."""
    for value, row in zip(entries, rows):
        if isinstance(row, dict):
            failures.checked(row)
            continue
        if not isinstance(row, list) or len(row) != 2 or row[0] != value.size:
            raise wire.WireError("a pack's row that does not fit its entry")
        if value.kind not in (tree.FILE, tree.FOLDER, tree.LINK):
            raise wire.WireError("a pack with an entry of kind %s" % ascii(value.kind))
        if value.kind == tree.LINK and not _is_target(value.extra.get("to")):
            raise wire.WireError("a link without a target")
        count -= value.size
    if count:
        raise wire.WireError("a PACK frame with other bytes than its list says")


def _is_target(value: Any) -> bool:
    """Can a symbolic link point there?"""
    try:
        return isinstance(value, str) and b"\0" not in to_bytes(value) and value != ""
    except UnicodeEncodeError:
        return False


def _unlink(name: bytes, folder_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        pass


def _exists(folder_fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False


def _kind_and_size(folder_fd: int, name: bytes) -> List[Any]:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return ["", 0, 0]
    for kind, predicate in (
        (tree.FILE, stat.S_ISREG), (tree.FOLDER, stat.S_ISDIR), (tree.LINK, stat.S_ISLNK),
    ):  # fmt: skip
        if predicate(status.st_mode):
            return [kind, status.st_size, status.st_mtime_ns]
    return ["other", 0, 0]
