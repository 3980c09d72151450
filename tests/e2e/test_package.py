"""What is released: the sdist is whole; the wheel that is made of it, the .deb and the zipapp work.

The wheel is installed into an environment where nothing of the checkout is, nor the extras
asyncssh and paramiko. The other packages are those of this one.

Not here: what the completions offer (../unit/test_completions.py).
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import unavailable
from matrix import LIBRARIES
from servers.private import PrivateServer

from e2e import ways
from e2e.world import ROOT

COMMANDS = ("pscp", "pscp-pipe", "pscp-run", "pscp-serve", "pscp-verify", "pscp-zfs")
FOLDERS = (".ci", "docs", "examples", "pscp", "scripts", "share", "tests")
MADE = (*(ROOT / ".gitignore").read_text("utf-8").replace("/", "").split(), ".git")


class Built(NamedTuple):
    sdist: Path  # unpacked
    wheel: Path
    deb: Path
    pyz: Path


def run(*argv: object, **popen: Any) -> ways.Ran:
    return ways.run([str(word) for word in argv], timeout=240, **popen)


def files_of_the_checkout() -> list[str]:
    """Those of the folders above and of the top, without what programs make."""
    suffixes = (".in", ".ini", ".md", ".toml", ".yaml")
    found = [path for path in ROOT.iterdir() if path.suffix in suffixes or path.name == "LICENSE"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = [path.relative_to(ROOT) for path in found]
    return [str(name) for name in names if not any(is_made(part) for part in name.parts)]


def is_made(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in MADE)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("package")
    ran = run(ROOT / "scripts" / "release", folder / "dist")
    assert ran.code == 0, ran.err
    [sdist], [wheel], [deb] = (list((folder / "dist").glob(f"*.{e}")) for e in ("gz", "whl", "deb"))
    assert run("tar", "-xzf", sdist, "-C", folder).code == 0
    return Built(folder / sdist.name.removesuffix(".tar.gz"), wheel, deb, wheel.parent / "pscp.pyz")


@pytest.fixture(scope="module")
def clean(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    tried = (run(*pip, "install", *options, built.wheel) for pip in pips(python))
    ran = next((each for each in tried if "No module named pip" not in each.err), None)
    if ran is None:
        unavailable("there is no pip")
    assert ran.code == 0, ran.err
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").out
    # Its neighbours; the .pth file of the checkout itself is not followed from there.
    others = folder / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(LIBRARIES):
            (others / path.name).symlink_to(path)
    Path(packages.strip(), "others.pth").write_text(f"{others}\n")
    return folder / "bin"


def pips(python: Path) -> list[tuple[object, ...]]:
    return [(name, "-m", "pip", "--python", python) for name in (sys.executable, "python3")]


def test_the_sdist_has_all_files(built: Built) -> None:
    assert [name for name in files_of_the_checkout() if not (built.sdist / name).exists()] == []


def test_the_wheel_has_every_module_and_nothing_else_of_the_checkout(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    ours = {name for name in files_of_the_checkout() if name.startswith("pscp/")}
    assert {name for name in names if name.startswith("pscp/")} == ours
    assert {name.split("/")[0].split("-")[0] for name in names} == {"pscp", "pscp_ssh"}


def test_the_wheel_installs_what_is_in_share(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    shared = {name for name in files_of_the_checkout() if name.startswith("share/")}
    installed = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert installed == shared and len(shared) >= 13


def test_the_metadata_has_the_licence(built: Built) -> None:
    wheel = zipfile.ZipFile(built.wheel)
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["License-Expression"]) == ("pscp-ssh", "MIT")
    assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    for needed in metadata.get_all("Requires-Dist", []):
        assert "extra ==" in needed or ("<" in needed and ">=" in needed), needed


def test_every_command_runs(built: Built, clean: Path, tmp_path: Path) -> None:
    for name in COMMANDS:
        ran = run(clean / name, "--help", cwd=tmp_path)
        assert (ran.code, ran.err) == (0, "") and f"usage: {name} " in ran.out


def test_python_m_pscp_is_the_command(built: Built, clean: Path, tmp_path: Path) -> None:
    """Where PuTTY's or parallel-ssh's program has the name."""
    version = built.wheel.name.split("-")[1]
    assert run(clean / "python", "-m", "pscp", "--version", cwd=tmp_path) == (
        0, f"pscp {version}\n", "",
    )  # fmt: skip
    assert run(clean / "python", "-m", "pscp", "a", cwd=tmp_path).code == 2


def test_a_copy_with_the_wheel_alone(clean: Path, tmp_path: Path, sshd: PrivateServer) -> None:
    """What is sent to the far end is read from where it was installed."""
    (tmp_path / "source").write_text("contents")
    words = ("-qF", sshd.ssh_config, "source", f"{sshd.host}:{tmp_path}/copied")
    ran = run(clean / "pscp", *words, cwd=tmp_path, env=dict(os.environ))
    assert ran == (0, "", "")
    assert (tmp_path / "copied").read_text() == "contents"
    assert run(clean / "pscp", "--remote", "sftp", *words, cwd=tmp_path) == (0, "", "")
    where = "import pscp; print(pscp.__file__)"
    assert run(clean / "python", "-c", where, cwd=tmp_path).out.startswith(str(clean.parent))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transport_whose_library_is_not_installed(
    library: str, clean: Path, tmp_path: Path, sshd: PrivateServer
) -> None:
    (tmp_path / "source").write_text("contents")
    words = ("--transport", library, "-qF", sshd.ssh_config, "source", f"{sshd.host}:copied")
    code, out, err = run(clean / "pscp", *words, cwd=tmp_path)
    said = f"pscp: --transport {library}: the Python package {library} is not installed\n"
    assert (code, out) == (2, "") and err.startswith(said)
    assert f"-m pip install {library}" in err and "Traceback" not in err


def test_the_deb_installs_every_command(built: Built, tmp_path: Path, sshd: PrivateServer) -> None:
    root = tmp_path / "root"
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir()
    (root / "var/lib/dpkg/status").touch()
    # Below a folder of its own, and with what it depends on where it is.
    words = ("--force-depends", "--force-not-root", "--log=/dev/null", f"--root={root}")
    env = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    ran = run("dpkg", *words, "--install", built.deb, env=env)
    assert ran.code == 0, ran.err
    python = root / "usr/lib/pscp/bin/python3"  # of their first lines
    for name in COMMANDS:
        ran = run(python, root / "usr/bin" / name, "--help")
        assert (ran.code, ran.err) == (0, "") and f"usage: {name} " in ran.out
        assert (root / f"usr/share/man/man1/{name}.1.gz").exists()
        assert (root / f"usr/share/bash-completion/completions/{name}").exists()
    (tmp_path / "source").write_text("contents")
    for library in LIBRARIES:
        there = tmp_path / library
        copy = ("--transport", library, "-qF", str(sshd.ssh_config), str(tmp_path / "source"))
        ran = run(python, root / "usr/bin/pscp", *copy, f"{sshd.host}:{there}")
        assert ran == (0, "", "") and there.read_text() == "contents"
    ran = run(
        python, root / "usr/bin/pscp-run", "--config", ROOT / "examples/mirror.toml", "--list"
    )
    assert ran.code == 0, ran.err


def test_the_zipapp_is_one_file_that_copies(
    built: Built, tmp_path: Path, sshd: PrivateServer
) -> None:
    (tmp_path / "pscp.pyz").write_bytes(built.pyz.read_bytes())
    (tmp_path / "source").write_text("contents")
    env = dict(os.environ) | {"SHIV_ROOT": str(tmp_path / "unpacked")}
    words = ("-qF", sshd.ssh_config, "source", f"{sshd.host}:{tmp_path}/copied")
    python = (sys.executable, "-I", "-S", "pscp.pyz")
    assert run(*python, *words, cwd=tmp_path, env=env) == (0, "", "")
    assert (tmp_path / "copied").read_text() == "contents"
    ran = run(*python, "--help", cwd=tmp_path, env=env | {"SHIV_CONSOLE_SCRIPT": "pscp-verify"})
    assert ran.code == 0 and "usage: pscp-verify " in ran.out


def test_nothing_tells_anyone_to_install_the_index_s_pscp() -> None:
    """That name is another program's there: what installs it runs a stranger's code."""
    installs = re.compile(
        r"\b(pip|pipx|uv|uvx)\b.* (install|add|inject|run) .*(?<![/\w])pscp(?![-\w])"
    )
    pages = ("docs/", "pscp/", "share/", "examples/", "README", "CHANGELOG", "CONTRIBUTING")
    texts = {n: (ROOT / n).read_text("utf-8", "replace") for n in files_of_the_checkout()}
    lines = [
        (n, line) for n, text in texts.items() if n.startswith(pages) for line in text.splitlines()
    ]
    assert [(name, line) for name, line in lines if installs.search(line)] == []
    assert installs.search("pip install 'pscp[jobs]'") and installs.search("pipx install pscp")
