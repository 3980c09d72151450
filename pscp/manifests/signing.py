"""Signatures of manifests, made and verified by ssh-keygen -Y (OpenSSH 8.2 or later).

Not here: what is signed (making.py), who reads a manifest (formats.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO

from pscp.ground.errors import BadManifest, CopyError, UsageError
from pscp.ground.state import replacing

NAMESPACE = "pscp-manifest"  # so that no signature for something else passes for one of these
_PATIENCE_S = 600.0  # a person types a passphrase, or touches a key


def check_can_sign(key: str) -> None:
    """Raise UsageError where it can be told before a copy that this key cannot sign."""
    _program()
    what = "it takes the file of a private key, or of a public one that ssh-agent has the other of"
    _check_readable("--sign", key, what)


def _check_readable(option: str, path: str, hint: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", hint) from None


def _program() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise UsageError("there is no ssh-keygen here, which makes and verifies signatures")
    return found


def sign(key: str, path: str, *, batch: bool) -> None:
    """Sign a manifest, into PATH.sig. With `batch` nobody is asked for a passphrase.

    Raises CopyError.
    """
    argv = ["-q", "-Y", "sign", "-n", NAMESPACE, "-f", key]
    never = {"SSH_ASKPASS": "false", "SSH_ASKPASS_REQUIRE": "force"} if batch else {}
    try:
        with open(path, "rb") as content:
            done = _run(argv, content, never)
        why = _last_line(done.stderr) if done.returncode != 0 else ""
        if not why:
            with replacing(f"{path}.sig") as file:
                file.write(done.stdout)
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise CopyError(
            f"{path} was written, but not signed: {why}",
            f"ssh-keygen -Y sign -n {NAMESPACE} -f {key} {path} signs it",
        )


def verify(file: str, name: str, allowed: str | None, signer: str | None) -> str:
    """Verify NAME.sig, the signature of a manifest whose content is in `file`; return whose it is.

    That is "" where there is none and none is wanted. Raises BadManifest where it is not right, and
    where there is none and `allowed` wants one.
    """
    signature = name + ".sig"
    if allowed is not None:
        _check_readable("--allowed-signers", allowed, "ssh-keygen(1) says what is in it")
    if not os.path.lexists(signature):
        if allowed is not None:
            raise BadManifest(f"{name} is not signed: there is no {signature}")
        return ""
    if allowed is None:
        said = _check(file, name, ["-Y", "check-novalidate"])
        return f"key {_key_of(said)}, of which nothing says whose it is"
    if signer is None:
        signer = _principal(name, allowed)
    said = _check(file, name, ["-Y", "verify", "-f", allowed, "-I", signer])
    return f"{signer}, key {_key_of(said)}"


def _principal(name: str, allowed: str) -> str:
    """Return whom the signature's key belongs to, as allowed_signers says."""
    argv = ["-Y", "find-principals", "-f", allowed, "-s", name + ".sig"]
    done = _run(argv, subprocess.DEVNULL)
    found = done.stdout.decode(errors="replace").splitlines()
    if done.returncode != 0 or not found:
        raise BadManifest(
            f"{name}: {allowed} does not list the key that signed it", "nothing was read"
        )
    return found[0]


def _check(file: str, name: str, what: list[str]) -> str:
    with open(file, "rb") as content:
        done = _run([*what, "-n", NAMESPACE, "-s", name + ".sig"], content)
    if done.returncode != 0:
        why = _last_line(done.stderr or done.stdout)
        raise BadManifest(f"{name}: its signature is not right: {why}", "nothing was read")
    return done.stdout.decode(errors="replace")


def _run(
    argv: list[str], stdin: IO[bytes] | int, more: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [_program(), *argv],
            stdin=stdin,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, **more},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 1, b"", b"ssh-keygen did not end")


def _key_of(said: str) -> str:
    found = re.search(r"with (\S+) key (\S+)", said)
    return f"{found[1]} {found[2]}" if found else "unknown"


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "ssh-keygen did not say why"
