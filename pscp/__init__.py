"""pscp: parallel bulk transfer over SSH. The public API, re-exported; nothing else.

    result = pscp.copy("data", "host:backup/", recursive=True)
    with pscp.Session("host") as session:  # logs in once, for several copies
        session.copy("a.txt", "host:")
        print(session.run(["uname", "-s"]).out)

help(pscp.copy), help(pscp.Session) and help(pscp.Options) say how they are called; pscp.aio has the
same for asyncio. What goes wrong as a whole is raised as a subclass of pscp.PscpError; a file that
was not copied is a Failure in the result's `failures`.

Everything is imported on first use, so that the command line starts quickly: copy() and Session
from api.py, fan_out() from deliveries.py, the errors from errors.py, Options from options.py,
Location from locations.py, Result and Counters from progress.py, clean() from cleaning.py, look()
from looking.py, verify() from verifying.py, measure() from measuring/measure.py, replicate() from
zfs/replicate.py. The types of the keywords are in option_fields.py.
Read next: api.py.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers it is True; typing takes long to load
if TYPE_CHECKING:
    from pscp import aio as aio
    from pscp import errors as errors
    from pscp.api import Session as Session
    from pscp.api import copy as copy
    from pscp.callbacks import FileEvent as FileEvent
    from pscp.cleaning import Cleaned as Cleaned
    from pscp.cleaning import clean as clean
    from pscp.deliveries import Delivery as Delivery
    from pscp.deliveries import fan_out as fan_out
    from pscp.errors import AuthenticationError as AuthenticationError
    from pscp.errors import BadManifest as BadManifest
    from pscp.errors import Cancelled as Cancelled
    from pscp.errors import CommandFailed as CommandFailed
    from pscp.errors import ConnectError as ConnectError
    from pscp.errors import ConnectionFull as ConnectionFull
    from pscp.errors import ConnectionLost as ConnectionLost
    from pscp.errors import CopyError as CopyError
    from pscp.errors import CopyRunning as CopyRunning
    from pscp.errors import DatasetBusy as DatasetBusy
    from pscp.errors import DatasetError as DatasetError
    from pscp.errors import DestinationError as DestinationError
    from pscp.errors import DestinationExists as DestinationExists
    from pscp.errors import Diverged as Diverged
    from pscp.errors import FileError as FileError
    from pscp.errors import HostKeyError as HostKeyError
    from pscp.errors import Interrupted as Interrupted
    from pscp.errors import ItemError as ItemError
    from pscp.errors import NoAgent as NoAgent
    from pscp.errors import NoCommonSnapshot as NoCommonSnapshot
    from pscp.errors import NoPython as NoPython
    from pscp.errors import NoSftp as NoSftp
    from pscp.errors import NoSnapshot as NoSnapshot
    from pscp.errors import NoSpace as NoSpace
    from pscp.errors import NoSuchDataset as NoSuchDataset
    from pscp.errors import NoZfs as NoZfs
    from pscp.errors import ProtocolError as ProtocolError
    from pscp.errors import PscpError as PscpError
    from pscp.errors import ResumeRefused as ResumeRefused
    from pscp.errors import SnapshotExists as SnapshotExists
    from pscp.errors import SourceChanged as SourceChanged
    from pscp.errors import StreamCut as StreamCut
    from pscp.errors import StreamRejected as StreamRejected
    from pscp.errors import SystemFailure as SystemFailure
    from pscp.errors import Terminated as Terminated
    from pscp.errors import Unreachable as Unreachable
    from pscp.errors import UnsafeName as UnsafeName
    from pscp.errors import UnsupportedFile as UnsupportedFile
    from pscp.errors import UsageError as UsageError
    from pscp.errors import VerifyError as VerifyError
    from pscp.errors import ZfsDenied as ZfsDenied
    from pscp.locations import Location as Location
    from pscp.locations import parse_location as parse_location
    from pscp.looking import Look as Look
    from pscp.looking import look as look
    from pscp.measuring.advice import Measurement as Measurement
    from pscp.measuring.measure import measure as measure
    from pscp.options import Options as Options
    from pscp.progress import Counters as Counters
    from pscp.progress import Failure as Failure
    from pscp.progress import Result as Result
    from pscp.stream.stream import Ran as Ran
    from pscp.transfer.job_terms import JobTerms as JobTerms
    from pscp.transfer.moves import Moves as Moves
    from pscp.transfer.settled import Settled as Settled
    from pscp.verifying import Verified as Verified
    from pscp.verifying import verify as verify
    from pscp.zfs.replicate import Replicated as Replicated
    from pscp.zfs.replicate import replicate as replicate

    __version__: str
else:
    # As `else`, so that type checkers know each name, and refuse others.
    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from importlib import metadata

            try:
                return metadata.version("pscp")
            except metadata.PackageNotFoundError:  # a checkout that is not installed
                return "0"
        if name in _MODULES:
            return importlib.import_module(f"pscp.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'pscp' has no attribute {name!r}")
        return getattr(importlib.import_module(f"pscp.{_HOMES.get(name, 'errors')}"), name)


_MODULES = ("aio", "errors")
_HOMES = {  # where what is in __all__ comes from; all else is in errors.py
    "copy": "api", "Session": "api", "Location": "locations", "Options": "options",
    "parse_location": "locations", "Counters": "progress", "Failure": "progress",
    "Result": "progress", "FileEvent": "callbacks", "measure": "measuring.measure",
    "Measurement": "measuring.advice", "replicate": "zfs.replicate",
    "Replicated": "zfs.replicate", "Ran": "stream.stream", "clean": "cleaning",
    "Cleaned": "cleaning", "JobTerms": "transfer.job_terms",
    "Moves": "transfer.moves", "Settled": "transfer.settled", "verify": "verifying",
    "Verified": "verifying", "fan_out": "deliveries", "Delivery": "deliveries",
    "look": "looking", "Look": "looking",
}  # fmt: skip
__all__ = [
    "AuthenticationError", "BadManifest", "Cancelled", "Cleaned", "CommandFailed", "ConnectError",
    "ConnectionFull", "ConnectionLost", "CopyError", "CopyRunning", "Counters", "DatasetBusy",
    "DatasetError", "Delivery", "DestinationError", "DestinationExists", "Diverged", "Failure",
    "FileError", "FileEvent", "HostKeyError", "Interrupted", "ItemError", "JobTerms", "Location",
    "Look", "Measurement", "Moves", "NoAgent", "NoCommonSnapshot", "NoPython", "NoSftp",
    "NoSnapshot", "NoSpace", "NoSuchDataset", "NoZfs", "Options", "ProtocolError", "PscpError",
    "Ran", "Replicated", "Result", "ResumeRefused", "Session", "Settled", "SnapshotExists",
    "SourceChanged", "StreamCut", "StreamRejected", "SystemFailure", "Terminated", "Unreachable",
    "UnsafeName", "UnsupportedFile", "UsageError", "Verified", "VerifyError", "ZfsDenied", "clean",
    "copy", "fan_out", "look", "measure", "parse_location", "replicate", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__all__", "__doc__", "__file__", "__name__", "__version__"]
