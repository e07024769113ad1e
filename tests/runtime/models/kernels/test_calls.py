"""No kernel is compiled twice for the same work: numba makes another one of a literal, and of a prange's index."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spectune

PACKAGE = Path(spectune.__file__).parent
FLOORS = ("planner", "runtime")
FILES = sorted(
    file for floor in FLOORS for file in (PACKAGE / floor).rglob("*.py") if "\n@compiled" in file.read_text()
)


def is_apart(function: ast.FunctionDef) -> bool:
    """Whether a function is a kernel that is compiled by itself, and not a part of its callers."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id == "compiled":
            return True
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "compiled":
            return all(option.arg != "inline" for option in decorator.keywords)
    return False


def functions(file: Path) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))


APART = {function.name for file in FILES for function in functions(file) if is_apart(function)}


def literals(function: ast.FunctionDef) -> Iterator[str]:
    """Yield calls that hand a whole number as it is written to a kernel."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        is_literal = any(isinstance(given, ast.Constant) and type(given.value) is int for given in call.args)
        if is_literal and getattr(call.func, "id", "") in APART:
            yield ast.unparse(call)


def unsigned(function: ast.FunctionDef) -> Iterator[str]:
    """Yield uses of a prange's index that neither look something up nor make it signed."""
    for loop in ast.walk(function):
        if isinstance(loop, ast.For) and getattr(getattr(loop.iter, "func", None), "id", "") == "prange":
            assert isinstance(loop.target, ast.Name)
            for line in loop.body:
                yield from (ast.unparse(line) for _ in bare(line, loop.target.id))


def bare(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield where a name stands in neither a subscript nor a call of `signed`."""
    if isinstance(node, ast.Name) and node.id == name:
        yield node
    for child in ast.iter_child_nodes(node):
        is_looked_up = isinstance(node, ast.Subscript) and child is node.slice
        is_signed = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "signed"
        if not is_looked_up and not is_signed:
            yield from bare(child, name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_kernel_is_handed_a_literal_or_a_prange_s_index(file: Path) -> None:
    found = [told for function in functions(file) for told in (*literals(function), *unsigned(function))]
    assert not found, "hand over ZERO or a name, and signed(index)"


def test_what_would_be_compiled_twice_is_found() -> None:
    (wrong,) = ast.parse("def both(x):\n    for i in prange(3):\n        tile(x, i)\n        tile(x[i], 0)\n").body
    assert isinstance(wrong, ast.FunctionDef) and "tile" in APART
    assert (list(literals(wrong)), list(unsigned(wrong))) == (["tile(x[i], 0)"], ["tile(x, i)"])
