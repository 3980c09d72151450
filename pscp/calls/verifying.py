"""Verifies a tree, here or at a host, against a manifest, and repairs what differs from it.

A repair is a copy of just the paths that differ: of a large file only what is not the same is sent
(../endpoint/there/reuse.py), and nothing gets its final name whose SHA-256 is not the manifest's.

Not here: how a manifest is made (../manifests/making.py), read and compared
(../manifests/formats.py, ../manifests/comparing.py), the command line (../cli/verify.py).
Read next: ../manifests/comparing.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pscp.calls.api import copy
from pscp.calls.call_arguments import Place, cluster_of
from pscp.connect.connections import Connections
from pscp.connect.one_host import OneHost
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.ground import errors
from pscp.ground.locations import Location, as_location, check_direction, parse_location
from pscp.manifests import signing, trees
from pscp.manifests.comparing import Difference, compare
from pscp.manifests.formats import Manifest
from pscp.options.connection_options import ConnectionOptions
from pscp.options.keywords import in_keywords
from pscp.options.option_pairs import OF_A_CLUSTER, check_no_cluster
from pscp.options.option_rows import Group, with_keywords
from pscp.options.options import Options, check_concern, with_fields
from pscp.progress.progress import LiveCounters, Reporter, Result
from pscp.transfer.terms.copy_terms import ALONE, JobTerms, Movers

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

WANTED = Group("what is verified", ("pscp-verify",))
_REPAIRABLE = ("missing", "size", "content", "target")


@dataclass(frozen=True)
class Verified:
    """The result of a tree's comparison with a manifest."""

    files: int = 0  # of the manifest
    bytes: int = 0  # that were read and hashed
    differences: tuple[Difference, ...] = ()  # those that are left; as many as memory allows
    differing: int = 0  # how many there are
    repaired: tuple[str, ...] = ()  # paths that are now as the manifest says
    signer: str = ""  # whose signature the manifest has; "" for none
    is_whole: bool = True  # no file had failed when the manifest was made
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if all is there as the manifest says."""
        return not self.differing


@dataclass(frozen=True)
class VerifyTerms:
    """The terms of a verification: which files, and what it may change."""

    strict: bool = WANTED.flag("--strict", "what is below ROOT and not in MANIFEST differs as well")
    times: bool = WANTED.flag("--times", "so does a file with another time")
    allowed_signers: str | None = WANTED.value(
        "--allowed-signers FILE",
        "who may have signed, as ssh-keygen has it; without a signature of one of these the "
        "manifest is refused",
    )
    signer: str | None = WANTED.value("--signer NAME", "the one of these who must have signed")
    repair: Location | None = WANTED.value(  # noqa: RUF009  # it is made once
        "--repair SOURCE",
        "copy what differs from SOURCE, a folder here or HOST:DIR, if it has the bytes that "
        "the manifest says",
        read=lambda text, what: parse_location(text),
    )


@with_keywords(ConnectionOptions)
@in_keywords()
def verify(
    manifest: str | os.PathLike[str],
    root: Place,
    /,
    options: Options | None = None,
    *,
    strict: bool = False,
    times: bool = False,
    allowed_signers: str | os.PathLike[str] | None = None,
    signer: str | None = None,
    repair: Place | None = None,
    reporter: Reporter | None = None,
    **fields: Unpack[OptionFields],
) -> Verified:
    """Read a tree again, where it lies, and compare its files with a manifest.

    Args:
        manifest: a file here, in one of the forms that copy() writes, signed or not.
        root: the tree, "host:folder" or a folder here.
        options: the options of the connections; `fields` replace its own.
        strict: what is there and not listed differs, too.
        times: so does a file with another time.
        allowed_signers: a file as ssh-keygen(1) describes it; who signed must be in it.
        signer: the one of these who must have signed.
        repair: a tree that has the right bytes: what differs is copied from it. Where that cannot
            be, the reporter is told why, and what differs is in the result.
        reporter: shows where it stands.

    Returns:
        Verified; its `differences` name each file that is not as listed.

    Raises:
        BadManifest: for one that is malformed, or whose signature is not right. Nothing was read.
        UsageError: for one that cannot be opened.
        CopyError, ConnectError, ProtocolError: as copy() does.
    """
    check_concern("verify()", fields, *OF_A_CLUSTER)
    chosen = with_fields(options or Options(), fields, verify)
    if signer is not None and allowed_signers is None:
        raise errors.UsageError("a signer says nothing without allowed_signers")
    allowed = None if allowed_signers is None else os.fspath(allowed_signers)
    origin = None if repair is None else as_location(repair)
    where = as_location(root)
    if origin is not None:
        check_direction([origin], where)
    wanted = VerifyTerms(strict, times, allowed, signer, origin)
    with contextlib.closing(Manifest(os.fspath(manifest))) as sound:
        signed_by = signing.verify(sound.file.name, sound.name, allowed, signer)
        run = _Verification(sound, where, chosen, wanted, reporter or Reporter())
        return replace(run.run(), signer=signed_by)


class _Verification:
    """One verification, and its repair."""

    def __init__(
        self,
        manifest: Manifest,
        where: Location,
        options: Options,
        wanted: VerifyTerms,
        reporter: Reporter,
    ) -> None:
        self._manifest, self._where, self._options = manifest, where, options
        self._wanted, self._reporter = wanted, reporter
        self._counters = LiveCounters(started_s=time.monotonic(), host=where.login)

    def run(self) -> Verified:
        manifest, counters = self._manifest, self._counters
        counters.add(bytes_total=manifest.size_bytes, files_total=len(manifest.paths))
        counters.set(plan_complete=True)
        self._reporter.start(counters)
        ended: Result | None = None
        try:
            with self._movers() as movers, self._connections() as connections:
                root = self._root(connections)
                found, count = self._compare(connections, root, None, movers)
                if self._wanted.strict:
                    extra = list(self._extra(connections, root))
                    found, count = [*found, *extra], count + len(extra)
            repaired: tuple[str, ...] = ()
            if self._wanted.repair is not None:
                found, repaired = self._repair(root, found)
            ended = Result(differing=count - len(repaired))
        finally:
            self._reporter.stop(ended)
        return Verified(
            files=len(manifest.paths),
            bytes=counters.bytes_done,
            differences=tuple(found),
            differing=ended.differing,
            repaired=repaired,
            is_whole=manifest.is_whole,
            seconds=time.monotonic() - counters.started_s,
        )

    @contextlib.contextmanager
    def _connections(self) -> Iterator[Connections | None]:
        if not self._where.is_remote:
            yield None
            return
        with OneHost(self._where) as connections:
            for text in connections.check(self._options, True):
                if self._options.verbose:
                    self._reporter.note(text)
            yield connections

    def _movers(self) -> AbstractContextManager[Movers]:
        if self._where.is_remote:
            check_no_cluster(self._options, f"{self._where.text}: files are hashed at their host")
        cluster = self._options.cluster
        return nullcontext(ALONE) if cluster is None else cluster_of(self._options)

    def _root(self, connections: Connections | None) -> str:
        with trees.asker(connections, self._options, self._reporter) as ask:
            return trees.resolved(self._where, ask)

    def _compare(
        self,
        connections: Connections | None,
        root: str,
        only: set[str] | None,
        movers: Movers = ALONE,
    ) -> tuple[list[Difference], int]:
        shown = self._counters, self._reporter
        with trees.opened(root, connections, self._options, shown, movers) as tree:
            found = compare(
                tree, self._manifest, self._counters, times=self._wanted.times, only=only
            )
        return found.found, found.count

    def _extra(self, connections: Connections | None, root: str) -> Iterator[Difference]:
        manifest, others = self._manifest, 0
        own = "" if self._where.is_remote else os.path.realpath(manifest.name)  # may lie below ROOT
        with trees.asker(connections, self._options, self._reporter) as ask:
            for path, kind, why in trees.listed(root, ask):
                is_own = own and os.path.join(root, path) in (own, f"{own}.sig")
                if path in manifest.paths or is_own:
                    continue
                if why:
                    yield Difference(path, "unreadable", f"could not be read: {why}")
                elif manifest.lists_links or kind == tree.FILE:
                    yield Difference(path, "not listed", "is not in the manifest")
                else:
                    others += 1
        if others:
            what = "link or special file" if others == 1 else "links and special files"
            why = f"{manifest.name} lists files alone"
            self._reporter.note(f"{why}: {others} {what} below {self._where.text} not compared")

    # --- the repair

    def _repair(
        self, root: str, found: list[Difference]
    ) -> tuple[list[Difference], tuple[str, ...]]:
        """Copy what differs, and compare it again. Return what is left, and what was repaired."""
        paths = {each.path for each in found if each.what in _REPAIRABLE}
        if not paths:
            return found, ()
        try:
            self._copy(root, paths)
        except (errors.ConnectError, errors.CopyError, errors.ProtocolError) as error:
            self._reporter.note(f"the repair has failed: {error.message}")
        with self._connections() as connections:
            left, _ = self._compare(connections, root, paths)
        still = {each.path for each in left}
        others = [each for each in found if each.path not in paths]
        repaired = tuple(each.path for each in found if each.path in paths - still)
        return [*others, *left], repaired

    def _copy(self, root: str, paths: set[str]) -> None:
        origin = self._wanted.repair
        assert origin is not None
        files, others = dict[str, str](), dict[str, str]()
        for each in self._manifest.records():
            if each.path in paths and each.kind == tree.FILE:
                files[each.path] = each.digest
            elif each.path in paths:
                others[each.path] = f"{each.kind}:{each.target}"
        if files:  # also what a link of SOURCE leads to
            self._copy_these(origin, root, files, keeps_links=False)
        if others:
            self._copy_these(origin, root, others, keeps_links=True)

    def _copy_these(
        self, origin: Location, root: str, expected: dict[str, str], *, keeps_links: bool
    ) -> None:
        with tempfile.NamedTemporaryFile() as listed:
            listed.write(b"".join(to_bytes(path) + b"\0" for path in sorted(expected)))
            listed.flush()
            options = replace(
                self._options,
                files_from=listed.name,
                from0=True,
                preserve=True,
                archive=keeps_links,
                checksum=True,
                cluster=None,  # these are few
                cluster_insecure=False,
            )
            path = root.rstrip("/") + "/"
            to = replace(self._where, path=path, text=self._where.prefix + path)
            result = copy(
                origin, to, options=options, terms=JobTerms(expected=expected), raises=False
            )
        for failure in result.failures:
            why = failure.message
            if failure.error == errors.VerifyError.__name__:
                why = f"{origin.text} has other bytes than the manifest says: nothing was changed"
            self._reporter.note(f"{failure.path}: {why}")
