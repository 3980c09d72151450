"""What is sent to the far end is the endpoint folder without what is only for people."""

from __future__ import annotations

import ast
import pkgutil

import pytest

from pscp.connect import agent_program


def meaning(text: bytes) -> str:
    """The program, without what its docstrings say, and types that only mypy reads."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 2:  # of another room
            node.level, node.module = 1, (node.module or "").partition(".")[2] or None
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Constant):
            node.test, node.body = ast.Constant(0), []
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            for place, step in enumerate(node.body):
                if isinstance(step, ast.AnnAssign) and step.value is not None:
                    node.body[place] = ast.Assign([step.target], step.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("name", [*agent_program.MODULES, *agent_program.STREAM_MODULES])
def test_a_module_means_the_same_without_comments_and_docstrings(name: str) -> None:
    text = pkgutil.get_data("pscp.endpoint", f"{agent_program.path_of(name)}.py")
    assert text is not None
    sent = agent_program._text(name)
    assert meaning(sent) == meaning(text)
    assert sent.count(b"\n") == text.count(b"\n")  # a traceback names the right line
    assert b'"""' not in sent and len(sent) < len(text)
