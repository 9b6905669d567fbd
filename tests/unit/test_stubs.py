"""Checks: the stub of the compiled module names exactly what the module has, with the same signatures.

``mypy.stubtest`` compares names, kinds and the signatures of functions and methods. A compiled constructor has no
signature, and no argument of the module has a type at run time, so both are read from the Cython sources.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "bindings" / "python").glob("_*.p[xy][xi]"))

TYPES = {
    "bint": "bool",
    "double": "float",
    "int": "int",
    "size_t": "int",
    "Py_ssize_t": "int",
    "uint8_t[::1]": "Buffer",
}
"""C types to types of the stub; ``int64_t`` and its like are whole numbers, too."""
SLOTS = {"__eq__", "__exit__", "__getitem__"}
"""Methods whose arguments Python passes by position: their names are free."""
ATTRIBUTE = re.compile(r"    cdef (?:readonly|public) (\S+) ([\w, ]+)")
CLASS = re.compile(r"(?:cdef )?class (\w+)")
FUNCTION = re.compile(r"( *)def (\w+)\(")


@dataclass(frozen=True)
class Argument:
    """One argument of a function: as Cython declares it, or as the stub does."""

    name: str
    types: frozenset[str] | None
    """Type names without their parameters, ``None`` among them where it is allowed; None: not declared."""
    default: str | None
    is_keyword_only: bool


def test_stub_matches_the_compiled_module(tmp_path: Path) -> None:
    allowlist = Path(__file__).with_name("stubtest_allowlist.txt")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nfollow_imports = skip\n")  # the types of others are `make typecheck`'s; half the time
    options = ["--mypy-config-file", str(config), "--allowlist", str(allowlist)]
    found = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "cometmq._engine", "--ignore-unused-allowlist", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_stub_matches_the_declared_arguments() -> None:
    stub = dict(of_stub((ROOT / "src/cometmq/_engine.pyi").read_text()))
    compared = 0
    problems = []
    for source in SOURCES:
        for name, declared in of_cython(source.read_text()):
            if name not in stub or name.rpartition(".")[2] in SLOTS:
                continue  # whether it is public is stubtest's question
            compared += 1
            problems += [f"{source.name}: {name}: {problem}" for problem in differences(declared, stub[name])]
    assert problems == []
    assert compared > 150, "the sources are not where this test reads them"


def test_stub_matches_the_declared_attributes() -> None:
    stub = properties_of_stub((ROOT / "src/cometmq/_engine.pyi").read_text())
    declared = {}
    for source in SOURCES:
        declared.update(attributes_of_cython(source.read_text()))
    compared = {name: types for name, types in declared.items() if types is not None and name in stub}
    assert {name: stub[name] - {"None"} for name in compared} == {
        name: types - {"None"} for name, types in compared.items()
    }
    assert len(compared) > 60, "the sources are not where this test reads them"


@pytest.mark.parametrize(
    ("declared", "written", "problem"),
    [
        ("str topic not None", "topic: str | None", "topic: declared str, in the stub None, str"),
        ("str topic", "topic: str", "topic: declared None, str, in the stub str"),
        ("int64_t end", "end: str", "end: declared int, in the stub str"),
        ("bint wait=True", "wait: bool = False", "wait: default True, in the stub False"),
        ("*, int end", "end: int", "arguments end (keyword only), in the stub end"),
        ("first, second", "second, first", "arguments first, second, in the stub second, first"),
    ],
)
def test_differences_name_the_argument(declared: str, written: str, problem: str) -> None:
    cython = dict(of_cython(f"def call({declared}):\n    pass\n"))
    stub = dict(of_stub(f"def call({written}) -> None: ...\n"))
    assert differences(cython["call"], stub["call"]) == [problem]


def differences(declared: list[Argument], stub: list[Argument]) -> list[str]:
    """Return how the stub's arguments differ from the declared ones."""
    if order(declared) != order(stub):
        return [f"arguments {order(declared)}, in the stub {order(stub)}"]
    problems = []
    for ours, theirs in zip(declared, stub, strict=True):
        if ours.types is not None and theirs.types is not None and not agree(ours.types, theirs.types):
            problems.append(f"{ours.name}: declared {listed(ours.types)}, in the stub {listed(theirs.types)}")
        if (ours.default is None) != (theirs.default is None) or (
            ours.default != theirs.default and theirs.default != "..." and is_literal(ours.default)
        ):
            problems.append(f"{ours.name}: default {ours.default}, in the stub {theirs.default}")
    return problems


def order(arguments: list[Argument]) -> str:
    """Return the names in their order."""
    return ", ".join(one.name + " (keyword only)" * one.is_keyword_only for one in arguments)


def listed(types: frozenset[str]) -> str:
    """Return types for a message."""
    return ", ".join(sorted(types))


def agree(declared: frozenset[str], stub: frozenset[str]) -> bool:
    """Whether both allow the same; ``Any`` in the stub says nothing."""
    return declared == stub or "Any" in stub


def is_literal(text: str | None) -> bool:
    """Whether a default is written out, so that the stub can have the same."""
    try:
        ast.literal_eval(text or "")
    except (SyntaxError, ValueError):
        return False
    return True


def of_cython(source: str) -> Iterator[tuple[str, list[Argument]]]:
    """Return each ``def`` of a Cython source, with its class before the name, and its arguments."""
    owner = ""
    lines = source.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if found := CLASS.match(line):
            owner = found[1] + "."
        elif re.match(r"\w", line):
            owner = ""
        if found := FUNCTION.match(line):
            rest = "".join(lines[index:])[found.end() :]
            prefix = owner if found[1] else ""
            yield prefix + found[2], list(cython_arguments(up_to_bracket(rest), is_method=bool(prefix)))


def up_to_bracket(text: str) -> str:
    """Return the text before the bracket that closes an argument list."""
    depth = 1
    for index, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            return text[:index]
    raise AssertionError(f"no end of arguments: {text[:80]}")


def cython_arguments(text: str, *, is_method: bool) -> Iterator[Argument]:
    """Return the arguments that a list declares, without ``self``."""
    is_keyword_only = False
    for index, part in enumerate(parts(text)):
        if part == "*":
            is_keyword_only = True
        elif part != "/" and not (is_method and index == 0):
            declared, _, default = part.partition("=")
            words = declared.removesuffix(" not None").split()
            types = None if len(words) == 1 else cython_types(words[-2], is_not_none=declared.endswith(" not None"))
            yield Argument(words[-1], types, default.strip() or None, is_keyword_only)


def cython_types(name: str, *, is_not_none: bool = False) -> frozenset[str] | None:
    """Return the stub's types for a declared one; None for an object of any type."""
    if name == "object":
        return None
    found = TYPES.get(name, "int" if re.fullmatch(r"u?int\d+_t", name) else None)
    if found is not None:
        return frozenset({found})
    return frozenset({name} if is_not_none else {name, "None"})


def attributes_of_cython(source: str) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Return each attribute that Python sees of the classes, and its types."""
    owner = ""
    for line in source.splitlines():
        if found := CLASS.match(line):
            owner = found[1]
        elif found := ATTRIBUTE.match(line):
            for name in found[2].split(","):
                yield f"{owner}.{name.strip()}", cython_types(found[1])


def parts(text: str) -> Iterator[str]:
    """Return what stands between the commas of an argument list."""
    depth = 0
    part = ""
    for char in re.sub(r"\s+", " ", text) + ",":
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += char


def of_stub(source: str) -> Iterator[tuple[str, list[Argument]]]:
    """Return each function and method of a stub; of overloads the last."""
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef) and not is_overload(member):
                yield prefix + member.name, list(stub_arguments(member.args, is_method=bool(prefix)))


def properties_of_stub(source: str) -> dict[str, frozenset[str]]:
    """Return the properties and attributes of the stub's classes, and their types."""
    found = {}
    for node in ast.parse(source).body:
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            assert isinstance(node, ast.ClassDef)
            if isinstance(member, ast.FunctionDef) and member.decorator_list:
                found[f"{node.name}.{member.name}"] = stub_types(member.returns) or frozenset()
            elif isinstance(member, ast.AnnAssign):
                found[f"{node.name}.{ast.unparse(member.target)}"] = stub_types(member.annotation) or frozenset()
    return found


def is_overload(function: ast.FunctionDef) -> bool:
    """Whether a function has several signatures, which no single declaration equals."""
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in function.decorator_list)


def stub_arguments(args: ast.arguments, *, is_method: bool) -> Iterator[Argument]:
    """Return the arguments of a stub's function, without ``self``."""
    positional = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        if not (is_method and index == 0):
            yield Argument(arg.arg, stub_types(arg.annotation), text_of(default), is_keyword_only=False)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield Argument(arg.arg, stub_types(arg.annotation), text_of(default), is_keyword_only=True)


def text_of(node: ast.expr | None) -> str | None:
    """Return an expression's source."""
    return None if node is None else ast.unparse(node).replace("'", '"')


def stub_types(annotation: ast.expr | None) -> frozenset[str] | None:
    """Return the members of a union, without their parameters."""
    if annotation is None:
        return None
    if isinstance(annotation, ast.BinOp):
        left, right = stub_types(annotation.left), stub_types(annotation.right)
        assert left is not None
        assert right is not None
        return left | right
    if isinstance(annotation, ast.Subscript):
        return stub_types(annotation.value)
    return frozenset({ast.unparse(annotation)})
