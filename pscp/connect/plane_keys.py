"""The keys of a direct plane with TLS: made for one session, kept in memory only.

Not here: what they are for (direct_plane.py, ../endpoint/link.py).
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import NamedTuple

from pscp.errors import UsageError

# The ends' clocks may differ; a certificate counts only while its session asks for lanes.
_YEARS = 2000, 2100


def check() -> None:
    """Raise UsageError if the package that makes keys is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError(
            "--plane tls: the Python package cryptography is not installed",
            f"{sys.executable or 'python3'} -m pip install cryptography",
        )


class Identity(NamedTuple):
    """One end's private key and certificate (PEM)."""

    key: str
    certificate: str

    @property
    def both(self) -> str:
        return self.key + self.certificate


def new_identity() -> Identity:
    """Make a key, and a certificate that it has signed itself."""
    import datetime  # here: this takes 0.1 s to load, while ssh logs in

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    begin, end = (datetime.datetime(year, 1, 1) for year in _YEARS)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pscp")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(private.decode("ascii"), certificate.public_bytes(pem).decode("ascii"))


class Keys:
    """The keys of both ends, made by a thread while ssh logs in."""

    def __init__(self) -> None:
        """Raises UsageError if the package that makes them is not installed."""
        check()
        self._thread = threading.Thread(target=self._make, name="keys", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        self._here, self._there = new_identity(), new_identity()

    def get(self) -> tuple[Identity, Identity]:
        """Return the keys of this end and of the far one."""
        self._thread.join()
        return self._here, self._there
