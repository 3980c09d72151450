"""Digests of chunks: which algorithms this end has, how fast each is, and how to compute one.

XXH3-128 comes from the package xxhash where it is installed, else from the C library libxxhash
through ctypes, which apt, rsync and others depend on: so most far ends have it. All others are in
hashlib.

Not here: the comparison of digests (../writing/sink.py). Read next: ../reading/files.py.
"""

import hashlib
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, Optional, Union

STRONG = "sha256"  # of -s, so that a user can compare with sha256sum

if TYPE_CHECKING:
    import ctypes
    from typing import Protocol

    class Hasher(Protocol):
        """Computes one digest, as the objects of hashlib do."""

        def update(self, __data: Union[bytes, bytearray, memoryview]) -> None: ...
        def digest(self) -> bytes: ...


def _xxhash_package() -> "Optional[Callable[[], Hasher]]":
    try:
        if sys.flags.no_site:  # an agent's python3 -S, which starts faster
            import site

            sys.path += site.getsitepackages()
        import xxhash

        return xxhash.xxh3_128
    except (ImportError, AttributeError):
        return None


def _xxhash_library() -> "Optional[Callable[[], Hasher]]":
    """Return XXH3-128 of libxxhash 0.8 or later (before, the algorithm was another), or None."""
    try:
        import ctypes
    except ImportError:
        return None
    for name in ("libxxhash.so.0", "libxxhash.so", "libxxhash.0.dylib"):
        try:
            library = ctypes.CDLL(name)
            if library.XXH_versionNumber() >= 800:
                return _ctypes_hasher(library)
        except (OSError, AttributeError):
            continue
    return None


def _ctypes_hasher(library: "ctypes.CDLL") -> "Callable[[], Hasher]":
    import ctypes

    class Digest128(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.XXH3_createState.restype = pointer
    library.XXH3_freeState.argtypes = [pointer]
    library.XXH3_128bits_reset.argtypes = [pointer]
    library.XXH3_128bits_update.argtypes = [pointer, pointer, size]
    library.XXH3_128bits_digest.argtypes = [pointer]
    library.XXH3_128bits_digest.restype = Digest128
    library.XXH3_128bits.argtypes = [pointer, size]
    library.XXH3_128bits.restype = Digest128

    def place(data: Union[bytes, bytearray, memoryview]) -> "Union[int, bytes]":
        view = memoryview(data)
        if view.readonly or not len(view):  # ctypes takes the address of writable memory only
            return bytes(view)
        return ctypes.addressof(ctypes.c_char.from_buffer(view))

    def canonical(value: Digest128) -> bytes:
        return bytes(value.high.to_bytes(8, "big") + value.low.to_bytes(8, "big"))

    class Xxh3:
        """Computes the same (canonical, big-endian) digest as xxhash.xxh3_128."""

        def __init__(self) -> None:
            self._state = library.XXH3_createState()
            library.XXH3_128bits_reset(self._state)

        def __del__(self) -> None:
            library.XXH3_freeState(self._state)

        def update(self, data: Union[bytes, bytearray, memoryview]) -> None:
            library.XXH3_128bits_update(self._state, place(data), len(data))

        def digest(self) -> bytes:
            return canonical(library.XXH3_128bits_digest(self._state))

        @staticmethod
        def of(data: Union[bytes, bytearray, memoryview]) -> bytes:
            return canonical(library.XXH3_128bits(place(data), len(data)))

    return Xxh3


def _available() -> "Dict[str, Callable[[], Hasher]]":
    algorithms: Dict[str, Callable[[], Hasher]] = {
        "sha256": hashlib.sha256,
        "blake2b": lambda: hashlib.blake2b(digest_size=32),
    }
    xxh3 = _xxhash_package() or _xxhash_library()
    if xxh3:
        algorithms["xxh3-128"] = xxh3
    return algorithms


ALGORITHMS = _available()


def new(name: str) -> "Hasher":
    """Return a new hasher. Raises KeyError where this end does not have the algorithm."""
    return ALGORITHMS[name]()


def digest_of(name: str, data: Union[bytes, memoryview]) -> bytes:
    """Return the digest of this alone; through ctypes by one call for five."""
    make = ALGORITHMS[name]
    whole: "Optional[Callable[[Union[bytes, memoryview]], bytes]]" = getattr(make, "of", None)
    if whole is not None:
        return whole(data)
    hasher = make()
    hasher.update(data)
    return hasher.digest()


def speeds() -> Dict[str, float]:
    """Return the MB/s of each algorithm here, measured in about a millisecond in all."""
    sample = bytearray(1 << 16)
    measured = {}
    for name, make in ALGORITHMS.items():
        best_s = 1.0
        for _ in range(3):
            begun_s = time.perf_counter()
            hasher = make()
            hasher.update(sample)
            hasher.digest()
            best_s = min(best_s, time.perf_counter() - begun_s)
        measured[name] = round(len(sample) / max(best_s, 1e-7) / 1e6, 1)
    return measured
