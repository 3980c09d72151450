"""Values of the command line: sizes, lists of processors, ranges of ports.

Not here: times and numbers, which others read too, and every bound (../options.py).
"""

from __future__ import annotations

import re

from pscp.errors import UsageError
from pscp.options import MAX_SIZE_BYTES

_CPUS = r"([0-9]{1,4})(?:-([0-9]{1,4}))?"
_PORTS = r"([0-9]{1,5})(?:-([0-9]{1,5}))?"
_SIZE = r"([0-9]{1,19})\s*([kmgt]?)(i?b)?"


def parse_size(text: str, what: str) -> int:
    """Read a number of bytes such as 65536, 256k, 4M or 1GiB (powers of 1024)."""
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a size", "sizes look like 65536, 256k, 4M, 1G")
    number, unit = int(match[1]), match[2].lower()
    size_bytes = number << 10 * " kmgt".index(unit or " ")
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
