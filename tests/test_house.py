"""The rules of the house, held by reading the package's own source: imports, sizes, docstrings.

LADDER is the one record of who may import whom. A rule that a change breaks on purpose is
changed here, in the same commit.

Not here: what ruff and mypy check. Read next: docs/design.md.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import unavailable

import pscp
from pscp import bootstrap

PACKAGE = Path(pscp.__file__).parent
ENDPOINT = PACKAGE / "endpoint"

# A module may import those on the rungs below its own. Folders are one name each.
LADDER = (
    ("__init__",),
    ("start",),
    ("zfs",),
    ("cli", "selftest"),
    ("tables", "pipecli"),
    ("measuring", "cleaning"),
    ("api",),
    ("streams",),
    ("run",),
    ("lent",),
    ("connections", "coordinator", "pipes"),
    ("crew", "farwalk", "resume"),
    ("filejob",),
    ("worker", "latecomers"),
    ("lane",),
    ("bootstrap",),
    ("prompts", "master", "setups"),
    ("sftp", "hosts"),
    ("channels",),
    ("board", "limiter", "advice", "terminal", "answers"),
    ("plan", "journal", "progress", "tuner", "load", "spool"),
    ("awkward", "servers", "embedded"),
    ("signals",),
    ("processes",),
    ("arguments",),
    ("state", "patience"),
    ("options", "lines"),
    ("errors",),
    ("endpoint",),
)
# Tighter than their rung: a way in knows nothing of copies.
ONLY = {
    "channels": {"channels", "options", "errors", "endpoint"},
    "servers": {"processes", "options", "errors"},
    "embedded": set[str](),
    "processes": set[str](),
}
OF_SELFTEST = {"awkward", "servers", "embedded"}  # no copy needs these
LATER = {"agent": ("gather",), "end": ("gather", "leftovers")}  # sent when there is need of them

# The last ones on their path of reading.
READ_LAST = {
    "advice.py", "arguments.py", "board.py", "channels/askpass.py", "channels/children.py",
    "channels/command.py", "channels/control.py", "channels/fdpass.py", "channels/lent.py",
    "channels/openssh.py", "channels/ride.py", "crew.py", "endpoint/agent.py",
    "endpoint/commands.py", "endpoint/durable.py", "endpoint/end.py", "endpoint/entries.py",
    "endpoint/failures.py", "endpoint/fence.py", "endpoint/machine.py", "endpoint/madeup.py",
    "endpoint/names.py", "endpoint/parts.py", "farwalk.py", "hosts.py", "journal.py",
    "latecomers.py", "lent.py", "limiter.py", "lines.py", "load.py", "patience.py", "resume.py",
    "setups.py", "spool.py", "state.py", "__init__.py", "sftp/program.py", "sftp/standin.py",
}  # fmt: skip
SAYS_WHAT_IT_IS_NOT = re.compile(r"Not here: |[Nn]othing (else|here)\b")

MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 450
MAX_BUNDLE_BYTES = 32 * 1024  # a window of SSH's at the start, so it costs no round trip more

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
SHIPPED = sorted(path.stem for path in ENDPOINT.glob("*.py") if path.stem != "__init__")


@functools.cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text("utf-8"))


def docstring_of(file: str) -> str:
    return ast.get_docstring(tree_of(file)) or ""


def unit_of(file: str) -> str:
    """What the ladder calls the module."""
    return file.split("/")[0].removesuffix(".py")


def imported(file: str) -> Iterator[str]:
    """Everything that is imported anywhere in the file, by its full dotted name."""
    folder = ["pscp", *file.split("/")[:-1]]
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def own_units(file: str) -> set[str]:
    """The rungs' names among what the file imports; "from pscp import copy" is __init__."""
    known = {name for rung in LADDER for name in rung}
    found = set()
    for name in imported(file):
        first, _, rest = name.partition(".")
        if first == "pscp":
            unit = rest.partition(".")[0]
            found.add(unit if unit in known else "__init__")
    return found


def rung_of(unit: str) -> int:
    return next(place for place, rung in enumerate(LADDER) if unit in rung)


# --- the ladder


def test_the_ladder_has_a_rung_for_every_module() -> None:
    assert sorted(name for rung in LADDER for name in rung) == sorted({unit_of(f) for f in FILES})


def test_nothing_imports_upward() -> None:
    for file in FILES:
        unit = unit_of(file)
        upward = {u for u in own_units(file) - {unit} if rung_of(u) <= rung_of(unit)}
        assert upward == set(), file


def test_some_import_less_than_the_ladder_allows() -> None:
    for file in FILES:
        unit = unit_of(file)
        assert own_units(file) <= ONLY.get(unit, own_units(file)), file
        if unit not in OF_SELFTEST | {"selftest"}:
            assert own_units(file) & OF_SELFTEST == set(), file


def test_imports_are_seen_wherever_they_are() -> None:
    assert "api" in own_units("cli.py")  # within a function
    assert "pscp.endpoint.wire" in set(imported("endpoint/session.py"))  # relative
    assert "pscp.endpoint.wire.WireError" in set(imported("endpoint/failures.py"))


# --- the shipped folder


def test_the_endpoint_imports_only_itself_and_the_standard_library() -> None:
    for name in SHIPPED:
        for full in imported(f"endpoint/{name}.py"):
            top = full.partition(".")[0]
            inside = full.startswith("pscp.endpoint.")
            optional = (name, top) == ("hashes", "xxhash")  # used where it is, never needed
            assert inside or optional or top in sys.stdlib_module_names, (name, full)


def test_the_modules_of_a_copy_import_no_others() -> None:
    for name in bootstrap.MODULES:
        ours = {f for f in imported(f"endpoint/{name}.py") if f.startswith("pscp.")}
        there = {*bootstrap.MODULES, *LATER.get(name, ())}
        assert {full.split(".")[2] for full in ours} <= there, name


def test_every_shipped_module_is_sent_once() -> None:
    all_of_them = bootstrap.MODULES + bootstrap.STREAM_MODULES + bootstrap.CLEAN_MODULES
    assert sorted(all_of_them) == SHIPPED


def test_the_endpoint_is_ascii() -> None:
    for path in ENDPOINT.glob("*.py"):
        assert path.read_bytes().isascii(), path.name


def test_there_is_an_interpreter_to_check_the_endpoint_with(far_pythons: list[str]) -> None:
    if not far_pythons:
        unavailable("no python3 from 3.6 to 3.13 found")


def test_the_endpoint_compiles_and_loads(far_python: str) -> None:
    """Without a warning, and with no more than the standard library of that version."""
    loads = (
        "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n"
        "import importlib, os\n"
        "for name in sys.argv[2:]:\n"
        "    path = os.path.join(sys.argv[1], 'endpoint', name + '.py')\n"
        "    with open(path) as file: compile(file.read(), path, 'exec')\n"
        "    importlib.import_module('endpoint.' + name)\n"
    )
    argv = [far_python, "-I", "-W", "error", "-c", loads, str(PACKAGE), *SHIPPED]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_bundle_is_small() -> None:
    assert len(bootstrap.bundle()) < MAX_BUNDLE_BYTES


# --- docstrings and sizes


def test_a_docstring_says_what_the_module_is_and_is_not() -> None:
    for file in FILES:
        first, _, rest = docstring_of(file).partition("\n")
        assert first and (first.endswith(".") or rest), f"{file}: a sentence says what it is"
        assert SAYS_WHAT_IT_IS_NOT.search(docstring_of(file)), f"{file}: and what it is not"


def test_a_docstring_says_what_to_read_next() -> None:
    for file in FILES:
        assert ("Read next: " in docstring_of(file)) is (file not in READ_LAST), file


def test_a_docstring_names_only_files_that_there_are() -> None:
    for file in FILES:
        folder = (PACKAGE / file).parent
        for name in re.findall(r"[\w./]*\w+\.py\b", docstring_of(file)):
            assert (folder / name).exists() or (PACKAGE / name).exists(), (file, name)


def test_what_is_read_last_is_named_by_another() -> None:
    for file in READ_LAST - {"__init__.py"}:
        others = [docstring_of(other) for other in FILES if other != file]
        assert any(Path(file).name in said for said in others), file


def test_functions_are_short() -> None:
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= MAX_FUNCTION_LINES, (file, node.name)


def test_files_are_short() -> None:
    lines = {file: len((PACKAGE / file).read_text("utf-8").splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > MAX_FILE_LINES} == {}
