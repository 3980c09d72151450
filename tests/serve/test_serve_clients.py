"""Real clients and pscp-serve: each way that each has to put, list, get, rename and remove.

Not here: uploads that are cut (test_serve_resume.py), clients that mean harm
(test_serve_hostile.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from conftest import unavailable, until

from serve.clients import BIG_BYTES, Clients, digest, random_file
from serve.server import Serving

NAMES = ["plain", "ümläut", "with space", "-dash", "q'u\"o", "*star[1]"]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("serve"), "workers = 2") as made:
        yield made


@pytest.fixture
def clients(serving: Serving, tmp_path: Path) -> Clients:
    return Clients(serving, tmp_path)


def landed(serving: Serving, name: str) -> list[str]:
    """The SHA-256s of what was told to have landed under a name."""
    return [each["sha256"] for each in serving.events("upload") if each["path"] == name]


@pytest.mark.parametrize("words", [[], ["-O"]], ids=["sftp", "scp"])
def test_scp(serving: Serving, clients: Clients, tmp_path: Path, words: list[str]) -> None:
    name = f"scp{len(words)}"
    sha256 = random_file(tmp_path / "big", BIG_BYTES)
    (tmp_path / "empty").touch()
    os.utime(tmp_path / "big", (1_000_000_000, 1_000_000_000))
    clients.scp(*words, "-p", str(tmp_path / "big"), f"127.0.0.1:{name}")
    clients.scp(*words, str(tmp_path / "empty"), f"127.0.0.1:/{name}.empty")
    assert digest(serving.home / name) == sha256
    assert (serving.home / name).stat().st_mtime == 1_000_000_000
    assert (serving.home / f"{name}.empty").stat().st_size == 0
    assert landed(serving, name) == [sha256]
    clients.scp(*words, f"127.0.0.1:{name}", str(tmp_path / "back"))
    assert digest(tmp_path / "back") == sha256


@pytest.mark.parametrize(("words", "files"), [([], 200), (["-O"], 600)], ids=["sftp", "scp"])
def test_scp_of_a_tree(
    serving: Serving, clients: Clients, tmp_path: Path, words: list[str], files: int
) -> None:
    tree = tmp_path / f"tree{len(words)}"
    (tree / "below").mkdir(parents=True)
    for number in range(files):
        (tree / "below" / f"{number}").write_bytes(b"x" * number)
    clients.scp(*words, "-r", str(tree), "127.0.0.1:")
    found = {
        each.name: each.read_bytes() for each in (serving.home / tree.name / "below").iterdir()
    }
    assert found == {f"{number}": b"x" * number for number in range(files)}


def test_scp_over_what_is_there(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    """OpenSSH's scp opens it without truncating it, and cuts it at the end."""
    for size_bytes in (300_000, 100_000, 500_000):
        sha256 = random_file(tmp_path / "changing", size_bytes)
        clients.scp(str(tmp_path / "changing"), "127.0.0.1:changing")
        assert digest(serving.home / "changing") == sha256
        assert landed(serving, "changing")[-1] == sha256


def test_sftp(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "big", BIG_BYTES)
    out = clients.sftp(
        f"mkdir sub\nput {tmp_path}/big sub/one\nrename sub/one sub/two\nls -l sub\n"
        f"ln -s two sub/link\nget sub/link {tmp_path}/back\nls -l sub\nrm sub/link\ndf\n"
    )
    assert digest(serving.home / "sub" / "two") == digest(tmp_path / "back") == sha256
    assert " two" in out and "link" in out and ".pscp-part" not in out
    clients.sftp("rm sub/two\nrmdir sub\n", "-R", "256")
    assert not (serving.home / "sub").exists()


def test_names(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).write_text(name)
    clients.scp(*(f"{tmp_path}/{name}" for name in NAMES), "127.0.0.1:/")
    assert [(serving.home / name).read_text() for name in NAMES] == NAMES


def test_a_name_that_is_no_text(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    name = os.fsdecode(b"raw\xff\xfe")
    (tmp_path / name).write_text("raw")
    clients.scp(f"{tmp_path}/{name}", "127.0.0.1:/")
    assert os.fsencode(name) in os.listdir(os.fsencode(serving.home))
    assert landed(serving, name)


def test_a_sparse_file(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    """5 GiB of which a client writes the ends, as one that keeps holes does."""
    script = "import sys, paramiko\n" + SPARSE
    argv = [str(serving.port), str(clients.key)]
    subprocess.run(
        [*PYTHON, script, *argv], check=True, timeout=120, cwd=tmp_path, capture_output=True
    )
    status = (serving.home / "sparse").stat()
    assert status.st_size == 5 << 30 and status.st_blocks * 512 < 1 << 20
    with (serving.home / "sparse").open("rb") as file:
        assert file.read(5) == b"begin"
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"


PYTHON = [sys.executable, "-c"]
SPARSE = """
transport = paramiko.Transport(("127.0.0.1", int(sys.argv[1])))
transport.connect(username="alice", pkey=paramiko.Ed25519Key.from_private_key_file(sys.argv[2]))
client = paramiko.SFTPClient.from_transport(transport)
with client.open("sparse", "wb") as file:
    file.write(b"begin")
    file.seek((5 << 30) - 3)
    file.write(b"end")
transport.close()
"""


def test_paramiko(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "big", BIG_BYTES)
    transport = paramiko.Transport(("127.0.0.1", serving.port))
    key = paramiko.Ed25519Key.from_private_key_file(str(clients.key))
    transport.connect(username="alice", pkey=key)
    client = paramiko.SFTPClient.from_transport(transport)
    assert client is not None
    try:
        client.put(str(tmp_path / "big"), "by-paramiko")
        with client.open("by-paramiko", "ab") as file:
            file.write(b"more")
        client.get("by-paramiko", str(tmp_path / "back"))
        client.posix_rename("by-paramiko", "paramiko-2")
        assert client.stat("paramiko-2").st_size == BIG_BYTES + 4
        client.remove("paramiko-2")
    finally:
        transport.close()
    assert landed(serving, "by-paramiko") == [sha256, digest(tmp_path / "back")]


def test_rclone(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    sha256 = random_file(tree / "big", BIG_BYTES)
    (tree / "small").write_text("small")
    clients.rclone("copy", str(tree), "REMOTE:by-rclone")
    clients.rclone("check", "--download", str(tree), "REMOTE:by-rclone")
    assert digest(serving.home / "by-rclone" / "big") == sha256
    # It renames what it has finished, which is then what is told.
    assert landed(serving, "by-rclone/big") == [sha256]
    assert not [each for each in serving.events("upload") if "partial" in each["path"]]
    clients.rclone("move", "REMOTE:by-rclone", "REMOTE:moved")
    clients.rclone("purge", "REMOTE:moved")
    assert not (serving.home / "moved").exists()


def test_lftp(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "big", BIG_BYTES)
    clients.lftp(f"mkdir by-lftp; put {tmp_path}/big -o by-lftp/one")
    clients.lftp("mv by-lftp/one by-lftp/two; ls")
    assert digest(serving.home / "by-lftp" / "two") == sha256
    clients.lftp(f"get by-lftp/two -o {tmp_path}/back; rm -r by-lftp")
    assert digest(tmp_path / "back") == sha256 and not (serving.home / "by-lftp").exists()


def test_lftp_mirrors_a_tree(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    tree = tmp_path / "mirrored"
    for name in ("one", "a/two", "a/b/three", "~/four"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    clients.lftp(f"mirror -R --parallel=3 {tree}")
    clients.lftp(f"mkdir -p in/it; cd in/it; mirror -R {tree} again")
    for found in (serving.home / "mirrored", serving.home / "in/it/again"):
        files = [path for path in found.rglob("*") if path.is_file()]
        assert len(files) == 4
        assert all(path.read_text() == str(path.relative_to(found)) for path in files)


def test_curl(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    if "sftp" not in clients.run("curl", "--version").split():
        unavailable("this curl has no sftp")
    sha256 = random_file(tmp_path / "big", BIG_BYTES)
    words = ["-sS", "--insecure", "--key", str(clients.key), "--user", "alice:"]
    url = f"sftp://127.0.0.1:{serving.port}/by-curl"
    clients.run("curl", *words, "-T", str(tmp_path / "big"), url)
    assert digest(serving.home / "by-curl") == sha256


def test_sshfs(serving: Serving, clients: Clients, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    options = [each for each in clients.options if not each.startswith(("-F", "-oUser="))]
    argv = ["sshfs", *options, "alice@127.0.0.1:/", str(mounted)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=200, check=False)
    except FileNotFoundError:
        unavailable("sshfs is not installed")
    if done.returncode != 0:
        unavailable(f"sshfs does not mount here: {done.stderr!r}")
    try:
        (mounted / "by-sshfs").write_bytes(b"first" * 1000)
        with (mounted / "by-sshfs").open("r+b") as file:
            file.seek(10)
            file.write(b"SECOND")
        (mounted / "by-sshfs").rename(mounted / "sshfs-2")
        until((serving.home / "sshfs-2").exists)
        assert (serving.home / "sshfs-2").read_bytes() == b"firstfirstSECOND" + (b"first" * 1000)[
            16:
        ]
    finally:
        subprocess.run(["fusermount", "-u", str(mounted)], check=False, timeout=200)
