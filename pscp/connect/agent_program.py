"""The program that the remote command runs: the endpoint folder, without what only people read.

The loader and the modules that each agent needs make the bundle, which is compressed; further
modules are sent where they are needed. What is sent is one flat package: the rooms of the folder
are left out of the imports.

Not here: how it gets to the far end (bootstrap.py), what it does there
(../endpoint/serving/agent.py).
"""

from __future__ import annotations

import base64
import functools
import json
import pkgutil
import re
import threading
import zlib
from collections.abc import Sequence

ROOMS = {
    "frames": ("wire", "session", "failures", "hashes", "system"),
    "reading": (
        "paths", "files", "metadata", "ownership", "xattrs", "tree", "rows", "source",
        "synthetic",
    ),
    "asking": ("entries", "requests", "answers"),
    "writing": (
        "fence", "parts", "removal", "placing", "commit", "backup", "verifying", "sink",
        "null_sink", "seen", "tries",
    ),
    "there": (
        "sameness", "lookup", "listings", "listed_paths", "hardlinks", "linkdest", "reuse",
        "mirror", "moving", "leftovers", "owners", "kernel", "counting", "attributes",
    ),
    "streams": ("machine", "stream_states", "stream", "stream_process", "stream_server"),
    "plane": ("link", "gate", "congestion", "direct"),
    "serving": ("frame_server", "end", "agent", "onward"),
}  # fmt: skip
MODULES = (
    "system", "wire", "session", "hashes", "failures", "files", "paths", "fence", "parts",
    "metadata", "tree", "entries", "source", "requests", "answers", "removal", "commit",
    "placing", "sink", "verifying", "end", "frame_server", "agent",
)  # fmt: skip
# Sent with a stream's first question.
STREAM_MODULES = ("machine", "stream_states", "stream", "stream_process", "stream_server")
# Sent when a copy begins that needs them, or with Learn. Each adds its requests where it is
# imported.
COPY_MODULES: tuple[str, ...] = (
    "ownership", "xattrs", "sameness", "lookup", "hardlinks", "linkdest", "reuse", "backup",
    "mirror", "moving", "leftovers", "rows", "listings", "owners", "listed_paths", "synthetic",
    "null_sink", "onward", "kernel", "counting", "attributes", "seen", "tries",
)  # fmt: skip
# Sent where the agent is to take direct lanes.
PLANE_MODULES = ("link", "gate", "congestion", "direct")

_PACKAGE = "pscp_agent"

# The program that the remote command runs; it finds itself and the modules in `parts`. Modules that
# few channels need are added to `texts` when they come. What is loaded is no garbage, as 3.7 can be
# told: to look through it, while it is loaded and at the end, took 9 of an agent's 45 ms of CPU.
_LOADER = """
import _frozen_importlib, gc, sys
gc.set_threshold(20000)
texts = dict(zip({names!r}, parts[1:]))
class Finder:
    def find_spec(self, full, *_):
        package, _, name = full.rpartition(".")
        if package == {package!r} and name in texts:
            return _frozen_importlib.ModuleSpec(full, self)
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        name = module.__name__.rpartition(".")[2]
        exec(compile(texts[name], "pscp/endpoint/" + name + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
package = type(sys)({package!r})
package.__path__ = []
package.texts = texts
sys.modules[{package!r}] = package
from {package}.agent import main
getattr(gc, "freeze", int)()
main()
"""
_COMPRESSION = 6  # 9 takes twice the time, for 200 bytes

_QUOTES = b'"""'
_ATTRIBUTE_TYPE = re.compile(rb"^( +self\.\w+): [^=]+(?= =)")
# Of a parameter: in quotes, or a name, maybe with brackets, which are three deep at most.
_INNER = rb"\[(?:[^][]|\[(?:[^][]|\[[^][]*\])*\])*\]"
_PARAMETER_TYPE = re.compile(rb': (?:"[^"]+"|[\w.]+(?:%s)?)(?= = |, |,?$)' % _INNER)
_ROOM = re.compile(rb"^( *from )\.\.\w+(?:(\.\w+)|)(?= import )")  # of an import
_bundling = threading.Lock()  # of several copies that begin at once one makes the bundle


def bundle() -> bytes:
    """Return the endpoint folder as one compressed program: loader and modules, NUL between."""
    with _bundling:
        return _bundle()


@functools.cache
def _bundle() -> bytes:
    loader = _LOADER.format(package=_PACKAGE, names=MODULES)
    texts = [_text(name).decode("ascii") for name in MODULES]
    return zlib.compress("\0".join([loader, *texts]).encode("ascii"), _COMPRESSION)


@functools.cache
def stream_modules() -> str:
    """Return the further modules that an agent needs for a stream, as agent.py reads them."""
    return _packed(STREAM_MODULES)


@functools.cache
def plane_modules() -> str:
    """Return the further modules that an agent needs for the direct plane."""
    return _packed(PLANE_MODULES)


def copy_modules(names: Sequence[str]) -> str:
    """Return these of COPY_MODULES, as agent.py reads them; "" for none."""
    return _packed(names) if names else ""


def _packed(names: Sequence[str]) -> str:
    texts = {name: _text(name).decode("ascii") for name in names}
    return base64.b64encode(zlib.compress(json.dumps(texts).encode("ascii"), 9)).decode("ascii")


def path_of(module: str) -> str:
    """Return the path of a module below endpoint/, without its suffix."""
    return next(f"{room}/{module}" for room, modules in ROOMS.items() if module in modules)


@functools.cache
def _text(module: str) -> bytes:
    """Return the module's text without comments, docstrings and types; lines keep their numbers.

    Nearly half of the bytes need not be sent and parsed so; an indent of one space in place of four
    saves 1,300 bytes more. No string in endpoint/ looks like a docstring, a comment or a type. Line
    by line it takes 4 ms, with a regular expression 10.
    """
    kept: list[bytes] = []
    is_docstring = is_for_mypy = is_definition = False
    for line in (pkgutil.get_data("pscp.endpoint", f"{path_of(module)}.py") or b"").split(b"\n"):
        words = line.lstrip(b" ")
        line = b" " * ((len(line) - len(words)) // 4) + words
        if is_docstring:
            is_docstring = not words.endswith(_QUOTES)
            kept.append(b"")
        elif is_for_mypy and line[:1] in (b"", b" "):
            kept.append(b"")
        elif words.startswith(_QUOTES):
            is_docstring = words == _QUOTES or not words.endswith(_QUOTES)
            kept.append(line[: -len(words)] + b'""')
        elif words.startswith(b"#"):
            kept.append(b"")
        elif words.startswith(b"from .."):
            kept.append(_ROOM.sub(lambda found: found[1] + (found[2] or b"."), line))
        elif line.startswith(b"if TYPE_CHECKING:"):
            is_for_mypy = True
            kept.append(b"if 0:0")
        else:
            is_for_mypy = False
            code, returns, _ = line.partition(b"  # ")[0].partition(b") -> ")
            if words.startswith(b"self."):
                code = _ATTRIBUTE_TYPE.sub(rb"\1", code)
            elif (returns or is_definition) and b"lambda" not in code:
                code = _PARAMETER_TYPE.sub(b"", code)
            is_definition = not returns and (is_definition or words.startswith(b"def "))
            kept.append(code + b"):" if returns else code)
    return b"\n".join(kept)
