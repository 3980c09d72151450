"""The rules of the house, held by reading the package's own source: imports, sizes, docstrings.

LADDER is the one record of who may import whom. A rule that a change breaks on purpose is
changed here, in the same commit.

Not here: what ruff and mypy check. Read next: docs/design.md.
"""

from __future__ import annotations

import ast
import collections
import functools
import posixpath
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from conftest import unavailable

import pscp
from pscp.connect import agent_program

PACKAGE = Path(pscp.__file__).parent
ENDPOINT = PACKAGE / "endpoint"

# A room may import what is on the rungs below its own; "" is the top, which has nothing but rooms.
LADDER = (
    ("",),
    ("cli",),
    ("serve/server",),
    ("serve",),
    ("jobs",),
    ("jobs/reports",),
    ("jobs/toml",),
    ("aio", "zfs", "measuring"),
    ("calls",),
    ("stream", "manifests", "cluster"),
    ("transfer",),
    ("transfer/walk",),
    ("transfer/ending",),
    ("transfer/terms",),
    ("transfer/lanes",),
    ("transfer/pieces",),
    ("connect",),
    ("connect/logins", "connect/known", "sftp"),
    ("sftp/protocol", "transports/libraries"),
    ("transports", "progress"),
    ("toml",),
    ("options",),
    ("ground",),
    ("endpoint",),
    ("endpoint/serving",),
    ("endpoint/streams", "endpoint/plane"),
    ("endpoint/there",),
    ("endpoint/writing",),
    ("endpoint/asking",),
    ("endpoint/reading",),
    ("endpoint/frames",),
)
LATER = {
    "agent": ("stream_server", "direct", "link"),  # what is sent when there is need of it
    "end": ("stream_server", "leftovers", "backup", "synthetic", "null_sink", "linkdest", "mirror"),
    "tree": ("ownership", "xattrs"),
    "commit": ("backup",),
    "metadata": ("ownership", "xattrs"),
}

# What a reader who follows "Read next" from the package on passes, in this order.
WAY_OF_A_CHUNK = (
    "calls/api.py", "transfer/copy.py", "transfer/coordinator.py", "transfer/walk/file_job.py",
    "transfer/lanes/lane_traffic.py", "endpoint/reading/source.py", "connect/bootstrap.py",
    "endpoint/serving/agent.py", "endpoint/writing/sink.py", "endpoint/writing/commit.py",
)  # fmt: skip
# What is imported from above for type checkers alone, and is never loaded so.
FOR_TYPES = {
    ("ground/errors.py", "pscp.calls.deliveries.Delivery"),
    ("ground/errors.py", "pscp.progress.progress.Result"),
}
SAYS_WHAT_IT_IS_NOT = re.compile(r"Not here: |[Nn]othing (else|here)\b")

MAX_FUNCTION_LINES = 50
MAX_POSITIONAL = 5  # arguments; and no two of them are bools
MAX_FILE_LINES = 450
MAX_COLUMNS = 100
ROOM_MOST = 15  # modules
MAX_BUNDLE_BYTES = 32 * 1024  # a window of SSH's at the start, so it costs no round trip more

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
SHIPPED = {
    path.stem: path.relative_to(PACKAGE).as_posix()
    for path in sorted(ENDPOINT.rglob("*.py"))
    if path.stem != "__init__"
}


@functools.cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text("utf-8"))


def docstring_of(file: str) -> str:
    return ast.get_docstring(tree_of(file)) or ""


def room_of(file: str) -> str:
    return posixpath.dirname(file)


@functools.cache
def imported(file: str) -> tuple[str, ...]:
    """Everything that is imported anywhere in the file, by its full dotted name."""
    folder, found = ["pscp", *file.split("/")[:-1]], list[str]()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{prefix}.{alias.name}" for alias in node.names]
    return tuple(name for name in found if (file, name) not in FOR_TYPES)


def imported_rooms(file: str) -> set[str]:
    """The rooms whose modules the file imports; "from pscp import copy" is the top."""
    rooms = {room_of(each) for each in FILES}
    found = set()
    for name in imported(file):
        first, *rest = name.split(".")
        if first == "pscp":
            ways = ("/".join(rest[:count]) for count in range(len(rest), -1, -1))
            found.add(next(way for way in ways if way in rooms))
    return found


def imported_files(file: str) -> set[str]:
    """The modules of the package that the file imports."""
    found = set()
    for name in imported(file):
        _, *rest = name.split(".")
        for length in range(1, len(rest) + 1):
            path = "/".join(rest[:length]) + ".py"
            if name.startswith("pscp.") and path in FILES and path != file:
                found.add(path)
    return found


def named_in(file: str, after: str = "") -> Iterator[str]:
    """The modules that the file's docstring names, below this word of it."""
    text = docstring_of(file).partition(after)[2] if after else docstring_of(file)
    for name in re.findall(r"[\w./]*\w+\.py\b", text.partition("\n\n")[0] if after else text):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
        yield beside if beside in FILES else name


def cycle_of(following: dict[str, list[str]]) -> list[str]:
    """A circle of files, each followed by the next; empty where there is none."""
    done = set[str]()

    def visit(file: str, way: list[str]) -> list[str]:
        if file in way:
            return [*way[way.index(file) :], file]
        if file in done:
            return []
        done.add(file)
        found = (visit(each, [*way, file]) for each in following.get(file, []))
        return next(filter(None, found), [])

    return next(filter(None, (visit(file, []) for file in following)), [])


def reached(file: str, following: dict[str, list[str]]) -> set[str]:
    found, todo = set[str](), [file]
    while todo:
        if (file := todo.pop()) not in found:
            found.add(file)
            todo += following[file]
    return found


def rung_of(room: str) -> int:
    return next(place for place, rung in enumerate(LADDER) if room in rung)


# --- the ladder


def test_the_ladder_has_a_rung_for_every_room() -> None:
    rooms = {room_of(file) for file in FILES}
    assert sorted(name for rung in LADDER for name in rung) == sorted(rooms)


def test_nothing_imports_upward() -> None:
    for file in FILES:
        room = room_of(file)
        upward = {each for each in imported_rooms(file) - {room} if rung_of(each) <= rung_of(room)}
        assert upward == set(), file


def face_of(room: str) -> str:
    """What other rooms import of this one, as the last paragraph of its __init__.py has it.

    A module of which one imports the whole is named alone, of any other what is imported.
    """
    taken: dict[str, set[str]] = collections.defaultdict(set)
    for file in FILES:
        for name in imported(file) if room_of(file) != room else ():
            rest = name.split(".")[1:] if name.startswith("pscp.") else []
            places = (place for place in range(len(rest), 0, -1))
            ends = (end for end in places if "/".join(rest[:end]) + ".py" in FILES)
            end = next(ends, len(rest))  # none of its modules: a name of its __init__.py
            if "/".join(rest[: end - 1]) == room and rest:
                taken[rest[end - 1]].add(".".join(rest[end:]))
    modules = (
        module if "" in names else f"{module} ({', '.join(sorted(names))})"
        for module, names in sorted(taken.items())
    )
    return textwrap.fill(f"For other rooms: {', '.join(modules) or 'nothing'}.", MAX_COLUMNS)


def test_a_room_says_what_others_may_import_of_it() -> None:
    """Its face: what is not there is the room's own, and changes without a look at other rooms."""
    for room in {room_of(file) for file in FILES} - {""}:
        face = face_of(room)
        assert docstring_of(f"{room}/__init__.py").endswith(f"\n\n{face}"), f"{room}:\n{face}"


def test_a_room_is_small() -> None:
    held = collections.Counter(map(room_of, FILES))
    assert {room: count for room, count in held.items() if count > ROOM_MOST} == {}
    assert [file for file in FILES if not room_of(file)] == ["__init__.py", "__main__.py"]


def test_no_modules_of_a_room_import_each_other_in_a_circle() -> None:
    assert cycle_of({file: sorted(imported_files(file)) for file in FILES}) == []


def test_imports_are_seen_wherever_they_are() -> None:
    assert "calls" in imported_rooms("cli/copy.py")  # within a function
    assert "pscp.endpoint.frames.wire" in set(imported("endpoint/frames/session.py"))  # relative
    assert "pscp.endpoint.frames.wire.WireError" in set(imported("endpoint/frames/failures.py"))


# --- the shipped folder


def test_the_endpoint_imports_only_itself_and_the_standard_library() -> None:
    for name, file in SHIPPED.items():
        for full in imported(file):
            top = full.partition(".")[0]
            inside = full.startswith("pscp.endpoint.")
            optional = (name, top) == ("hashes", "xxhash")  # used where it is, never needed
            assert inside or optional or top in sys.stdlib_module_names, (name, full)


def test_the_modules_of_a_copy_import_no_others() -> None:
    for name in agent_program.MODULES:
        ours = {file.rpartition("/")[2][:-3] for file in imported_files(SHIPPED[name])}
        assert ours <= {*agent_program.MODULES, *LATER.get(name, ())}, name


def test_every_shipped_module_is_sent_once() -> None:
    later = agent_program.STREAM_MODULES + agent_program.PLANE_MODULES
    assert sorted(agent_program.MODULES + agent_program.COPY_MODULES + later) == sorted(SHIPPED)


def test_a_thread_has_the_context_variables_of_who_makes_it() -> None:
    """Where a program's call makes it: a handler of logging and a callback run in any of these."""
    of_a_command = "cli", "jobs", "serve", "endpoint"
    alone = {  # processes of their own, other machines, and what only a command starts
        "cluster/dispatcher.py", "cluster/executor.py",
        "ground/signals.py", "ground/terminal_text.py",
        "transports/tls_pump.py", "transports/libraries/helper.py",
        "transports/libraries/paramiko_helper.py",
    }  # fmt: skip
    made = re.compile(
        r"\bThread\((?!\s*target=with_context\()|\bTimer\((?![^\n]*with_context\()"
        r"|\.submit\((?!with_context\()|\bpool\.map\((?!with_context\()"
    )
    bare = {
        f"{file}: {found[0]}"
        for file in FILES
        if file.partition("/")[0] not in of_a_command and file not in alone
        for found in made.finditer((PACKAGE / file).read_text())
    }
    assert bare == set()


def test_the_bundle_knows_the_rooms() -> None:
    """What is sent is one flat package, so no two modules have one name."""
    held = {name: f"endpoint/{agent_program.path_of(name)}.py" for name in SHIPPED}
    assert held == SHIPPED
    assert len(SHIPPED) == sum(map(len, agent_program.ROOMS.values()))
    assert len(SHIPPED) + len(agent_program.ROOMS) + 1 == len([*ENDPOINT.rglob("*.py")])


def test_the_endpoint_is_ascii() -> None:
    for path in ENDPOINT.rglob("*.py"):
        assert path.read_bytes().isascii(), path.name


def test_there_is_an_interpreter_to_check_the_endpoint_with(far_pythons: list[str]) -> None:
    if not far_pythons:
        unavailable("no python3 from 3.6 to 3.14 found")


def test_the_endpoint_compiles_and_loads(far_python: str) -> None:
    """Without a warning, and with no more than the standard library of that version."""
    loads = (
        "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n"
        "import importlib, os\n"
        "for name in sys.argv[2:]:\n"
        "    path = os.path.join(sys.argv[1], name)\n"
        "    with open(path) as file: compile(file.read(), path, 'exec')\n"
        "    importlib.import_module(name[:-3].replace('/', '.'))\n"
    )
    argv = [far_python, "-I", "-W", "error", "-c", loads, str(PACKAGE), *SHIPPED.values()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_bundle_is_small() -> None:
    assert len(agent_program.bundle()) < MAX_BUNDLE_BYTES


# --- docstrings and sizes


def test_a_docstring_says_what_the_module_is_and_is_not() -> None:
    for file in FILES:
        first, _, rest = docstring_of(file).partition("\n")
        assert first and (first.endswith(".") or rest), f"{file}: a sentence says what it is"
        assert SAYS_WHAT_IT_IS_NOT.search(docstring_of(file)), f"{file}: and what it is not"


def test_to_read_next_leads_somewhere_and_in_no_circle() -> None:
    following = {file: list(named_in(file, "Read next:")) for file in FILES}
    assert cycle_of(following) == []
    path = [*reached("__init__.py", following)]
    assert [file for file in WAY_OF_A_CHUNK if file not in path] == []


def test_a_docstring_names_only_files_that_there_are() -> None:
    for file in FILES:
        folder = (PACKAGE / file).parent
        for name in re.findall(r"[\w./]*\w+\.py\b", docstring_of(file)):
            assert (folder / name).exists() or (PACKAGE / name).exists(), (file, name)


def test_every_module_is_named_by_another() -> None:
    named = {name for file in FILES for name in named_in(file) if name != file}
    assert [f for f in FILES if f not in named and not f.endswith("__.py")] == []


def test_functions_are_short() -> None:
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= MAX_FUNCTION_LINES, (file, node.name)


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """The arguments that may be given by place, without the object itself."""
    found = [*node.args.posonlyargs, *node.args.args]
    return found[1:] if found and found[0].arg in ("self", "cls") else found


def test_few_arguments_are_given_by_place() -> None:
    """Where many are, or two bools, mypy does not see that two have changed places."""
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = positional(node)
                bools = [each for each in given if is_bool(each.annotation)]
                assert len(given) <= MAX_POSITIONAL and len(bools) <= 1, (file, node.name)


def is_bool(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "bool"


def test_files_are_short() -> None:
    lines = {file: len((PACKAGE / file).read_text("utf-8").splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > MAX_FILE_LINES} == {}
