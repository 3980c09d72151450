"""The table of who answers a request: which role, by which function. Each module adds its own.

Not here: the requests (requests.py), an end and its roles (../serving/end.py), what an agent
answers before its end is asked (../serving/agent.py): OpenPlane, Pack, a lane that it hands over.
"""

import functools
from typing import Callable, Dict, Iterable, List, Tuple, TypeVar, Union

from ..frames import failures, wire
from ..reading import tree
from . import requests

# Methods of an End, which return the role that a request is for. ITSELF: the end.
ITSELF, SOURCE, SINK, WRITING_SINK = "itself", "file_source", "file_sink", "writing_sink"

T = TypeVar("T")
Reply = Callable[[object, bool], None]  # (answer, or failure data; whether it failed)
Failed = List[Tuple[int, failures.Data]]  # the place and the failure of each item that failed
# Gets the role and the request; returns the answer, or a function that calls a Reply later.
Act = Callable[..., object]

ANSWERS: Dict[type, Tuple[str, Act]] = {}


def add(role: str, table: Dict[type, Act]) -> None:
    """Have these requests answered by this role of an end."""
    requests.add(table)
    ANSWERS.update((kind, (role, act)) for kind, act in table.items())


def not_here(role: str) -> wire.WireError:
    """Return the error of a request that an end without this role cannot answer."""
    return wire.WireError("a request for a %s, which this end is not" % role)


def results(calls: "Iterable[Tuple[str, Callable[[], T]]]") -> "List[Union[T, failures.Data]]":
    """Make the call beside each path; return per path the result, or the failure as data."""
    results: List[Union[T, failures.Data]] = []
    for path, call in calls:
        try:
            results.append(call())
        except failures.EXPECTED as error:
            results.append(failures.from_exception(error, path))
    return results


def failed_of(entries: List[tree.Entry], act: Callable[[tree.Entry], None]) -> Failed:
    """Call `act` with each entry; return the place and the failure of those that failed."""
    calls = ((entry.path, functools.partial(act, entry)) for entry in entries)
    return failures.places(results(calls))
