"""SQL92 selectors in Python: expressions as trees, their text, and upstream's answer for a set of properties.

A tree is a tuple whose first member names its kind. The rules are those of the specification's section 3.3, written for
clarity alone; ``tests/unit/selector`` compares the engine with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Tree: TypeAlias = "tuple[Any, ...]"
Answer: TypeAlias = "bool | str | None"

_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_DOUBLE = re.compile(r"([+-]?)(NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z")
_HEX = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?\Z")


class NotComparable(Exception):
    """What upstream throws while it evaluates."""


class Int(int):
    """A number that Java keeps in 32 bits."""


class Long(int):
    """A number that Java keeps in 64 bits."""


def literal(number: int) -> int:
    """Return a literal's value with its size."""
    return Int(number) if number < 2**31 else Long(number)


def _integer(text: str, bits: int) -> int:
    if not _INTEGER.match(text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise NotComparable(text)
    return int(text)


def _double(text: str) -> float:
    text = text.strip("".join(map(chr, range(33))))
    if found := _HEX.match(text):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    if not _DOUBLE.match(text):
        raise NotComparable(text)
    return float(text.rstrip("fFdD") if not text.endswith(("NaN", "Infinity")) else text)


def _order(a: Any, b: Any) -> int:
    """Java's ``compareTo`` of numbers, also of NaN and -0.0; a whole number is widened first."""
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    if a < b or a > b:
        return -1 if a < b else 1
    if isinstance(a, float):
        left, right = (math.isnan(a), math.copysign(1, a)), (math.isnan(b), math.copysign(1, b))
        if left[0] or right[0]:
            return int(left[0]) - int(right[0])
        return (left > right) - (left < right)
    return 0


def _read_as(value: Any, text: str) -> Any:
    if isinstance(value, bool):
        return text.lower() == "true"
    if isinstance(value, float):
        return _double(text)
    return _integer(text, 32 if isinstance(value, Int) else 64)


def _compare(a: Any, b: Any) -> int:
    if isinstance(a, str) and isinstance(b, str):
        return (a > b) - (a < b)
    if isinstance(a, str):
        return _order(_read_as(b, a), b)
    if isinstance(b, str):
        if isinstance(a, bool):
            raise NotComparable(b)
        return _order(a, _read_as(a, b))
    if isinstance(a, bool) != isinstance(b, bool):
        return -1
    return _order(a, b)


def _relate(operator: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    order = _order(_double(a), _double(b)) if isinstance(a, str) and isinstance(b, str) else _compare(a, b)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _not(value: Any) -> bool | None:
    return None if value is None else not value


def _and(left: Any, right: Any) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: Any, right: Any) -> bool | None:
    return _not(_and(_not(left), _not(right)))


def _search(kind: str, value: str, pattern: str) -> bool:
    if kind == "CONTAINS":
        return pattern in value
    return value.startswith(pattern) if kind == "STARTSWITH" else value.endswith(pattern)


def evaluate(tree: Tree, properties: Mapping[str, str]) -> Any:
    """Return a tree's value."""
    kind, *parts = tree
    if kind == "property":
        return properties.get(parts[0])
    if kind == "literal":
        return parts[0]
    if kind == "negate":
        value = evaluate(parts[0], properties)
        if value is None or isinstance(value, (str, bool)):
            return None
        return -value if isinstance(value, float) else type(value)(-value)
    if kind == "cast":
        return None if evaluate(parts[0], properties) is None else False
    if kind == "not":
        return _not(evaluate(parts[0], properties))
    if kind in ("AND", "OR"):
        left = evaluate(parts[0], properties)
        if left is (kind == "OR"):
            return left
        return (_and if kind == "AND" else _or)(left, evaluate(parts[1], properties))
    if kind == "is null":
        return (evaluate(parts[0], properties) is None) != parts[1]
    if kind == "=":
        return _equal(evaluate(parts[0], properties), evaluate(parts[1], properties))
    if kind == "<>":
        return _not(_equal(evaluate(parts[0], properties), evaluate(parts[1], properties)))
    if kind == "BETWEEN":
        value, low, high, negated = parts
        lower = evaluate(("<" if negated else ">=", value, low), properties)
        if lower is negated:
            return lower
        upper = evaluate((">" if negated else "<=", value, high), properties)
        return (_or if negated else _and)(lower, upper)
    if kind == "IN":
        value = evaluate(parts[0], properties)
        return None if value is None else (value in parts[1]) != parts[2]
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        value = evaluate(parts[0], properties)
        return isinstance(value, str) and parts[1] != "" and _search(kind, value, parts[1]) != parts[2]
    left = evaluate(parts[0], properties)
    return None if left is None else _relate(kind, left, evaluate(parts[1], properties))


def _equal(a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return True if a is b else None if a is None else False
    return _compare(a, b) == 0


def answer(tree: Tree, properties: Mapping[str, str]) -> Answer:
    """Return upstream's answer: True, False, None, or "error"."""
    try:
        value = evaluate(tree, properties)
    except NotComparable:
        return "error"
    assert value is None or isinstance(value, bool)
    return value


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" in text else f"{text}.0"
    return _quoted(value) if isinstance(value, str) else str(int(value))


def text_of(tree: Tree) -> str:
    """Return a tree as an expression, with parentheses around every operand that needs some."""
    kind, *parts = tree
    if kind == "property":
        return str(parts[0])
    if kind == "literal":
        return _literal_text(parts[0])
    if kind == "negate":
        return f"- {_operand(parts[0])}"
    if kind == "cast":
        return text_of(parts[0])
    if kind == "not":
        return f"NOT {_operand(parts[0])}"
    left = _operand(parts[0])
    if kind == "is null":
        return f"{left} IS {'NOT ' if parts[1] else ''}NULL"
    if kind == "BETWEEN":
        return f"{left} {'NOT ' if parts[3] else ''}BETWEEN {_operand(parts[1])} AND {_operand(parts[2])}"
    if kind == "IN":
        return f"{left} {'NOT ' if parts[2] else ''}IN ({', '.join(map(_quoted, parts[1]))})"
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"{left} {'NOT ' if parts[2] else ''}{kind} {_quoted(parts[1])}"
    return f"{left} {kind} {_operand(parts[1])}"


def _operand(tree: Tree) -> str:
    is_plain = tree[0] in ("property", "literal", "cast")
    return text_of(tree) if is_plain else f"({text_of(tree)})"
