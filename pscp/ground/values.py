"""Values as they are typed or given: sizes, times, rates, numbers, ranges of ports, their bounds.

And the error for an option that is none. Not here: which option takes which value
(../options/options.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from pscp.ground.errors import UsageError
from pscp.ground.locations import CONTROL, UNSAFE_IN_HOST, check_path

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
MAX_SIZE_BYTES = 2**63 - 1  # off_t
LOGINS_MAX = 8  # at once at one host; sshd's MaxStartups begins to refuse at 10

_T = TypeVar("_T")

_SECONDS = r"([0-9]{1,9})\s*(min|[smhd])?"
_ANY_CASE = re.IGNORECASE | re.ASCII
_CPUS = r"([0-9]{1,4})(?:-([0-9]{1,4}))?"
_PORTS = r"([0-9]{1,5})(?:-([0-9]{1,5}))?"
_RATE = r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*([kmgt]?)(?:bit(?:/s)?|bps)?"
_SIZE = r"([0-9]{1,19})(?:\.([0-9]{1,3}))?\s*([kmgt]?)(i?b)?"


def parse_size(text: str, what: str) -> int:
    """Read a number of bytes such as 65536, 256k, 1.5M or 1GiB (powers of 1024)."""
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a size", "sizes look like 65536, 256k, 4M, 1G")
    whole, fraction, unit = match[1], match[2] or "", match[3].lower()
    number = int(whole + fraction) << 10 * " kmgt".index(unit or " ")
    size_bytes = number // int("1" + "0" * len(fraction))
    if not 0 < size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"{what}: {text!r} is too {'large' if size_bytes else 'small'}")
    return size_bytes


def parse_ports(text: str) -> tuple[int, int]:
    """Read a port, or a range of ports such as 5000-5010."""
    match = re.fullmatch(_PORTS, text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last:
        raise UsageError(f"--plane-port: {text!r} is no range of ports", "such as 5000-5010")
    return first, last


def parse_cpus(text: str) -> tuple[int, ...]:
    """Read a list of processors such as 0,2-5, as taskset(1) does."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(_CPUS, part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"--cpus: {text!r} is not a list of processors", "such as 0,2-5")
        found += range(first, last + 1)
    return tuple(found)


def parse_seconds(text: str, what: str) -> int:
    """Read a time such as 90, 90s, 30m, 30min, 2h or 1d, and return it in seconds."""
    match = re.fullmatch(_SECONDS, text.strip(), _ANY_CASE)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a time", "times look like 90, 90s, 30m, 2h, 1d")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[(match[2] or "s")[0].lower()]


def parse_kbit_s(text: str) -> int:
    """Read a rate such as 800, in kbit/s, or 10M and 1.5G: Mbit/s and Gbit/s. Return kbit/s."""
    match = re.fullmatch(_RATE, text.strip(), _ANY_CASE)
    if match is None:
        hint = "rates look like 800 (kbit/s), 500K, 10M (Mbit/s), 1G"
        if re.fullmatch("[a-zA-Z]+", text):
            hint = f"{hint}; -l limits the rate, and links are kept with -a"
        raise UsageError(f"-l/--limit: {text!r} is not a rate", hint)
    kbit_s = round(float(match[1]) * 1000.0 ** "kmgt".index(match[2].lower() or "k"))
    if not kbit_s:
        raise UsageError(f"-l/--limit: {text!r} is too small")
    return kbit_s


def parse_number(text: str, what: str) -> int:
    """Read a whole number; Options checks its range."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise UsageError(f"{what}: {text!r} is not a whole number")
    return int(text)


def check_range(
    what: str, value: int, low: int, high: int, show: Callable[[int], str] = str
) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise UsageError(f"{what} must be {show(low)} to {show(high)}, not {show(value)}")


def show_size(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it, as parse_size reads it back."""
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes} {unit}"
    return str(size_bytes)


def check_tuple(what: str, values: tuple[_T, ...]) -> tuple[_T, ...]:
    """Return the values; raise UsageError for one string, which is a sequence of strings too."""
    if isinstance(values, str):
        raise UsageError(f"{what} must be a tuple of strings, not one string")
    if not isinstance(values, tuple | list):
        raise UsageError(f"{what} must be a tuple, not {values!r}")
    return values


def check_argument(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a text, not {value!r}")
    if not value:
        raise UsageError(f"{what} is empty")
    if re.search(CONTROL, value):
        raise UsageError(f"{what} has a control character in it: {value!r}")
    try:
        check_path(value)
    except UsageError as error:
        raise UsageError(f"{what}: {error.message}") from None


def no_such_option(text: str, known: Iterable[str], hint: str) -> UsageError:
    """Return the error for an option that is none; its hint has the one that looks like it."""
    import difflib  # here: few commands need it

    name = text.partition("=")[0]
    names = [each for each in known if each.startswith("--")]
    close = difflib.get_close_matches(name, names, 1, 0.7) if name.startswith("--") else []
    if close:
        hint = f"did you mean {close[0]}? {hint}"
    return UsageError(f"no such option: {text}", hint)


def check_address(what: str, address: str) -> None:
    """Raise UsageError for what is no IP address."""
    import ipaddress  # here: few copies need it

    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(f"{what}: {address!r} is not an IP address") from None
    check_argument(what, address)
    if re.search(UNSAFE_IN_HOST, address):
        raise UsageError(f"{what}: a character in {address!r} cannot be in an address")
