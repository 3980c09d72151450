"""Readers of JSON values: each returns a value of one type, and raises WireError for any other.

Not here: which field of a request has which type (requests.py).
"""

from typing import Callable, List, Optional, Tuple, Type, TypeVar

from . import wire

Reader = Callable[[object], object]
T = TypeVar("T")


def _misfit() -> wire.WireError:
    return wire.WireError("a request with a field of another type")


def of(type_: Type[T]) -> Callable[[object], T]:
    def read(value: object) -> T:
        if not isinstance(value, type_) or type(value) is not type_:
            raise _misfit()
        return value

    return read


def integer(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _misfit()
        return value

    return read


def list_of(read: Callable[[object], T]) -> Callable[[object], List[T]]:
    return lambda value: [read(item) for item in items(value)]


def row(*readers: Reader) -> Callable[[object], Tuple[object, ...]]:
    """Return what reads a list with a value for each reader."""

    def read(value: object) -> Tuple[object, ...]:
        return tuple(read(item) for read, item in zip(readers, items(value, len(readers))))

    return read


def items(value: object, count: Optional[int] = None) -> List[object]:
    if not isinstance(value, list) or count not in (None, len(value)):
        raise _misfit()
    return value


def or_null(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)
