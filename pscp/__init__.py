"""pscp: parallel bulk transfer over SSH. The public API, re-exported; nothing else.

    result = pscp.copy("data", "host:backup/", recursive=True)
    with pscp.Session("host") as session:  # logs in once, for several copies
        session.copy("a.txt", "host:")
        print(session.run(["uname", "-s"]).out)

help(pscp.copy), help(pscp.Session) and help(pscp.Options) say how they are called; pscp.aio has the
same for asyncio. What goes wrong is raised as a subclass of pscp.PscpError: where files failed a
FilesFailed, once all others are copied, whose `result` names them; with raises=False that Result is
returned. Its `text` is for people: the message, and what to do.

Everything is imported on first use, so that the command line starts quickly: copy() and Session
from calls/api.py, fan_out() from calls/deliveries.py, the errors from ground/errors.py, Options
from options/options.py, Location from ground/locations.py, Result and Counters from
progress/progress.py, clean() from calls/cleaning.py, look() from calls/looking.py, verify() from
calls/verifying.py, measure() from measuring/measure.py, replicate() from zfs/replicate.py. The
types of the keywords are in options/option_fields.py.
Read next: calls/api.py.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers it is True; typing takes long to load
if TYPE_CHECKING:  # what is in __all__ is public by that
    from pscp import aio as aio
    from pscp.calls.api import Session, copy
    from pscp.calls.cleaning import Cleaned, clean
    from pscp.calls.deliveries import Delivery, fan_out
    from pscp.calls.looking import Look, look
    from pscp.calls.verifying import Verified, verify
    from pscp.ground import errors as errors
    from pscp.ground.counters import LargeFile
    from pscp.ground.errors import *
    from pscp.ground.locations import Location, parse_location
    from pscp.manifests.comparing import Difference, What
    from pscp.measuring.advice import Measurement
    from pscp.measuring.measure import measure
    from pscp.options.options import Options
    from pscp.progress.callbacks import FileEvent
    from pscp.progress.progress import Counters, Failure, Outcome, Result, WorkerTotals
    from pscp.stream.stream import Ran
    from pscp.transfer.terms.copy_terms import JobTerms
    from pscp.transfer.terms.moves import Moves
    from pscp.transfer.walk.selection import Settled
    from pscp.zfs.replicate import Replicated, replicate

    __version__: str
else:
    # As `else`, so that type checkers know each name, and refuse others.
    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from importlib import metadata

            try:
                return metadata.version("pscp-ssh")
            except metadata.PackageNotFoundError:  # a checkout that is not installed
                return "0"
        if name in _MODULES:
            return importlib.import_module(f"pscp.{_MODULES[name]}")
        if name not in __all__:
            raise AttributeError(f"module 'pscp' has no attribute {name!r}")
        return getattr(importlib.import_module(f"pscp.{_HOMES.get(name, 'ground.errors')}"), name)


_MODULES = {"aio": "aio", "errors": "ground.errors"}
_HOMES = {  # where what is in __all__ comes from; all else is in ground/errors.py
    "copy": "calls.api", "Session": "calls.api", "fan_out": "calls.deliveries",
    "Delivery": "calls.deliveries", "clean": "calls.cleaning", "Cleaned": "calls.cleaning",
    "look": "calls.looking", "Look": "calls.looking", "verify": "calls.verifying",
    "Verified": "calls.verifying", "Location": "ground.locations",
    "parse_location": "ground.locations", "Options": "options.options",
    "Counters": "progress.progress", "Failure": "progress.progress",
    "Result": "progress.progress", "WorkerTotals": "progress.progress",
    "FileEvent": "progress.callbacks", "LargeFile": "ground.counters",
    "Outcome": "progress.progress", "Difference": "manifests.comparing",
    "What": "manifests.comparing",
    "measure": "measuring.measure", "Measurement": "measuring.advice",
    "replicate": "zfs.replicate", "Replicated": "zfs.replicate", "Ran": "stream.stream",
    "JobTerms": "transfer.terms.copy_terms", "Moves": "transfer.terms.moves",
    "Settled": "transfer.walk.selection",
}  # fmt: skip
__all__ = [
    "AgentFailed", "AuthenticationError", "BadManifest", "Cancelled", "Cleaned", "CommandFailed",
    "ConnectError", "ConnectionFull", "ConnectionLost", "CopyError", "CopyRunning", "Counters",
    "DatasetBusy", "DatasetError", "Delivery", "DestinationError", "DestinationExists",
    "Difference", "Diverged", "Failure", "FanOutFailed", "FileError", "FileEvent", "FilesFailed",
    "HostKeyError", "Interrupted", "ItemError", "JobTerms", "LargeFile", "Location", "Look",
    "Measurement", "Moves", "NoAgent", "NoCommonSnapshot", "NoPython", "NoSftp", "NoSnapshot",
    "NoSpace", "NoSuchDataset", "NoZfs", "NotRemoved", "Options", "Outcome", "ProtocolError",
    "PscpError", "Ran", "Replicated", "Result", "ResumeRefused", "Session", "Settled",
    "SnapshotExists", "SourceChanged", "StreamCut", "StreamRejected", "SystemFailure", "Terminated",
    "TimedOut", "UnknownOption", "Unreachable", "UnsafeName", "UnsupportedFile", "UsageError",
    "Verified", "VerifyError", "What", "WorkerTotals", "ZfsDenied", "clean", "copy", "fan_out",
    "look", "measure", "parse_location", "replicate", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__all__", "__doc__", "__file__", "__name__", "__version__"]
