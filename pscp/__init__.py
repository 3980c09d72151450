"""pscp: parallel bulk transfer over SSH. The public API, re-exported; nothing else.

copy() and Session are in api.py, Options in options.py, Location in locations.py, the errors in
errors.py, Result and Counters in progress.py, measure() in measuring/measure.py, Measurement in
measuring/advice.py, clean() in cleaning.py, replicate() in zfs/replicate.py; the types of their
keywords are in option_fields.py. They are imported on first use, so that the command line starts
quickly.
Read next: api.py.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # for type checkers it is True; typing takes long to load
if TYPE_CHECKING:
    from pscp.api import Session as Session
    from pscp.api import copy as copy
    from pscp.cleaning import Cleaned as Cleaned
    from pscp.cleaning import clean as clean
    from pscp.errors import ConnectError as ConnectError
    from pscp.errors import CopyError as CopyError
    from pscp.errors import PscpError as PscpError
    from pscp.errors import UsageError as UsageError
    from pscp.locations import Location as Location
    from pscp.locations import parse_location as parse_location
    from pscp.measuring.advice import Measurement as Measurement
    from pscp.measuring.measure import measure as measure
    from pscp.options import Options as Options
    from pscp.progress import Counters as Counters
    from pscp.progress import Failure as Failure
    from pscp.progress import Result as Result
    from pscp.zfs.replicate import replicate as replicate

_HOMES = {
    "copy": "api", "Session": "api", "ConnectError": "errors", "CopyError": "errors",
    "PscpError": "errors", "UsageError": "errors", "Location": "locations", "Options": "options",
    "parse_location": "locations", "Counters": "progress", "Failure": "progress",
    "Result": "progress", "measure": "measuring.measure", "Measurement": "measuring.advice",
    "replicate": "zfs.replicate", "clean": "cleaning", "Cleaned": "cleaning",
}  # fmt: skip

__all__ = [
    "Cleaned", "Counters", "ConnectError", "CopyError", "Failure", "Location", "Measurement",
    "Options", "PscpError", "Result", "Session", "UsageError", "clean", "copy", "measure",
    "parse_location", "replicate",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pscp' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pscp.{_HOMES[name]}"), name)
