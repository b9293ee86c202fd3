"""Every public function has annotations: of each parameter and of the result.

Public is what is defined in a module, or in a public class of a module, under a name without a leading underscore.
What numba compiles is left out: a kernel's types are those that it is called with.
"""

import ast

import pytest

from support.type_check import PACKAGES, ROOT

COMPILED = {"kernel", "device_function", "intrinsic", "jit", "njit"}
"""Decorators of functions that numba compiles."""

FEWEST = {"reference": 150, "kernels": 50, "model": 50, "engine": 100, "golden": 80, "parity": 100}
"""Public functions of a package that must at least have been looked at."""


def decorators(function):
    """Names of a function's decorators, without their arguments."""
    for node in function.decorator_list:
        node = node.func if isinstance(node, ast.Call) else node
        yield node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def public_functions(body, method=False):
    """(function, whether it is a method) of every public function in the statements ``body``."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, method=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not COMPILED & set(decorators(node)):
            special = method and node.name in ("__init__", "__call__", "__getitem__")
            if special or not node.name.startswith("_"):
                yield node, method


def missing(function, method):
    """What of a function has no annotation: names of parameters, and ``return``."""
    arguments = function.args
    taken = [*arguments.posonlyargs, *arguments.args]
    bound = method and "staticmethod" not in decorators(function)
    taken = taken[1:] if bound else taken
    taken += [*arguments.kwonlyargs, *(a for a in (arguments.vararg, arguments.kwarg) if a is not None)]
    names = [a.arg for a in taken if a.annotation is None]
    return names + ["return"] * (function.returns is None)


def unannotated(source):
    """(public functions in ``source``, those without annotations: (line, name, what is missing))."""
    found = list(public_functions(ast.parse(source).body))
    return len(found), [(f.lineno, f.name, names) for f, method in found if (names := missing(f, method))]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_have_annotations(package):
    seen, bad = 0, []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        count, found = unannotated(path.read_text(encoding="utf-8"))
        seen += count
        bad += [f"{name}:{line}: {function}: {', '.join(names)}" for line, function, names in found]
    assert not bad, "\n".join(bad)
    assert seen >= FEWEST[package]


def test_a_function_without_annotations_is_found():
    source = """
def whole(x: int, *, y: int = 0) -> int: ...
def part(x, y: int): ...
def _private(x): ...
@kernel(parallel=True)
def compiled(x): ...
class Public:
    def method(self, *rest) -> None: ...
class _Private:
    def method(self, x): ...
"""
    assert unannotated(source) == (3, [(3, "part", ["x", "return"]), (8, "method", ["rest"])])
