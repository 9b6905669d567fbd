"""SQL92 selectors: upstream's own answers, a model in Python, and texts beyond the limits."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from cometmq import errors
from cometmq._engine import Selector
from support.selector_model import Tree, answer, literal, text_of

ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text(encoding="utf-8"))
"""Answers of upstream 5.3.3, made and compared by ``tests/interop/test_selectors_java.py``."""
LETTERS = {True: "T", False: "F", None: "N", "error": "E"}


def encoded(properties: Mapping[str, str]) -> bytes:
    """Return a property string."""
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())


def letters(expression: str) -> str:
    try:
        selector = Selector(expression)
    except errors.InvalidArgument:
        return "refused"
    return "".join(LETTERS[selector.answer(encoded(properties))] for properties in ANSWERS["properties"])


def test_answers_are_those_of_upstream() -> None:
    ours = {expression: letters(expression) for expression in ANSWERS["answers"]}
    assert ours == ANSWERS["answers"]


# --- A model

VALUES = [
    *("5", "6", "-5", "+5", "05", "5.0", " 5 ", "5d", "0x1p2", "1e3", "1e-3", ".5", "5.", "x", "xyz", "it's"),
    *("true", "TRUE", "false", "NaN", "-0.0", "0", "Infinity", "-Infinity", "2147483647", "2147483648", "é"),
    *("-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "1e400", "-", "e", "0x", "5é"),
]
TEXTS = ["", "x", "5", "true", "y", "'", "é", "it's", "6"]
NAMES = ["a", "b", "c", "$x", "_long_name_of_a_property"]
WHOLE = [*range(10), 2**31 - 1, 2**31, 2**63 - 1]
REAL = [0.5, 5.0, 1e300, 5e-324, 1.7976931348623157e308]


class Trees:
    """Random expressions that upstream compiles, and random properties."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self) -> str:
        draw = self.random
        return draw.choice(
            [
                draw.choice(VALUES),
                str(draw.randint(-(2**66), 2**66)),
                repr(draw.gauss(0, 10.0 ** draw.randint(-30, 30))),
                (draw.gauss(0, 1) * 2.0 ** draw.randint(-1060, 1000)).hex(),
                "".join(draw.choices("0123456789+-.eExXpPfd ", k=draw.randint(1, 6))),
            ]
        )

    def properties(self) -> dict[str, str]:
        return {name: self.value() for name in NAMES if self.random.random() < 0.7}

    def property(self) -> Tree:
        return ("property", self.random.choice(NAMES))

    def number(self) -> Tree:
        draw = self.random
        return ("literal", literal(draw.choice(WHOLE)) if draw.random() < 0.7 else draw.choice(REAL))

    def text(self) -> str:
        return self.random.choice(TEXTS)

    def ordered(self, depth: int) -> Tree:
        """An operand of <, <=, >, >= and BETWEEN."""
        kind = self.random.choice(["property", "property", "number", "negate"])
        if kind == "negate":
            return ("negate", self.anything(depth))
        return self.property() if kind == "property" else self.number()

    def anything(self, depth: int) -> Tree:
        kind = self.random.choice(["property", "property", "number", "text", "condition", "ordered"])
        if kind == "text":
            return ("literal", self.text())
        if kind == "condition" and depth > 0:
            made = self.condition(depth - 1)
            return made[1] if made[0] == "cast" else made  # a bare property is a condition only where one is needed
        if kind == "ordered" and depth > 0:
            return self.ordered(depth - 1)
        return self.number() if kind == "number" else self.property()

    def equality(self, depth: int) -> Tree:
        """Upstream compiles neither NULL as an operand of = nor a truth left of another literal."""
        left, right = self.anything(depth), self.anything(depth)
        if left == ("literal", None):
            left = self.property()
        if right == ("literal", None) or (left[0] == right[0] == "literal" and isinstance(left[1], bool)):
            right = self.property()
        return (self.random.choice(["=", "<>"]), left, right)

    def between(self, depth: int) -> Tree:
        """Literals as bounds are in order, but for NOT BETWEEN."""
        value, low, high, negated = self.ordered(depth), self.ordered(depth), self.ordered(depth), self.flag()
        if not negated and low[0] == high[0] == "literal" and low[1] > high[1]:
            low, high = high, low
        return ("BETWEEN", value, low, high, negated)

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def condition(self, depth: int) -> Tree:
        draw = self.random
        if depth == 0:
            is_property = draw.random() < 0.5
            return ("cast", self.property()) if is_property else ("literal", draw.choice([True, False, None]))
        kind = draw.choice(["logic", "logic", "not", "is null", "=", "=", "<", "<", "BETWEEN", "IN", "search", "leaf"])
        depth -= 1
        if kind == "logic":
            return (draw.choice(["AND", "OR"]), self.condition(depth), self.condition(depth))
        if kind == "not":
            return ("not", self.condition(depth))
        if kind == "is null":
            return ("is null", self.anything(depth), self.flag())
        if kind == "=":
            return self.equality(depth)
        if kind == "<":
            return (draw.choice(["<", "<=", ">", ">="]), self.ordered(depth), self.ordered(depth))
        if kind == "BETWEEN":
            return self.between(depth)
        if kind == "IN":
            return ("IN", self.property(), [self.text() for _ in range(draw.randint(1, 9))], self.flag())
        if kind == "search":
            word = draw.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"])
            return (word, self.anything(depth), self.text(), self.flag())
        return self.condition(0)


def test_answers_are_those_of_the_model() -> None:
    seed = int(os.environ.get("CMQ_SEED", "19"))
    trees = Trees(seed)
    for number in range(100_000 if os.environ.get("CMQ_LONG") == "1" else 3_000):
        expression = text_of(tree := trees.condition(trees.random.randint(1, 4)))
        selector = Selector(expression)
        for properties in (trees.properties(), trees.properties()):
            ours, models = selector.answer(encoded(properties)), answer(tree, properties)
            assert ours == models, f"CMQ_SEED={seed}, expression {number}: {expression} of {properties}"


@pytest.mark.parametrize("seed", range(200))
def test_any_text_compiles_or_is_refused(seed: int) -> None:
    draw = random.Random(seed)
    words = ["a", "b", "'x'", "5", "0.5", "<", "<=", "<>", "=", "(", ")", ",", "-", "+", "NOT", "AND", "OR", "IN", "IS"]
    words += ["NULL", "BETWEEN", "CONTAINS", "/*", "*/", "--", "\n", "''", "'", ".", "TRUE"]
    text = " ".join(draw.choices(words, k=draw.randint(0, 12)))
    try:
        tail = Selector(text).tail
    except errors.InvalidArgument:
        return
    assert text.endswith(tail)


# --- The tail, duplicates, and limits


@pytest.mark.parametrize(
    ("expression", "tail"),
    [
        ("a > 5", ""),
        ("a > 5 banana", "banana"),
        ("a = '1') OR b", ") OR b"),
        ("a > 5 -- ü", "-- ü"),
        ("a = 0123", "123"),
    ],
)
def test_ignored_tail_is_reported(expression: str, tail: str) -> None:
    assert Selector(expression).tail == tail


def test_last_duplicate_with_a_value_wins() -> None:
    selector = Selector("a = '2'")
    assert selector.answer(b"a\x011\x02a\x012\x02") is True
    assert selector.answer(b"a\x012\x02a\x011\x02") is False
    assert selector.answer(b"a\x012\x02a\x01\x02") is True  # upstream's decoder drops a pair without a value
    assert selector.answer(b"b\x01a\x012\x02xa\x012\x02") is None  # `a` stands in a value, and in a longer name
    assert selector.answer(b"a\x011\x02a\x012") is True  # the last separator may be missing


@pytest.mark.parametrize("padding", range(0, 140, 7))
def test_values_are_found_across_blocks(padding: int) -> None:
    properties = b"p\x01" + b"x" * (padding + 1) + b"\x02a\x01value\x02b\x01" + b"y" * 200 + b"\x02"
    assert Selector("a = 'value' AND b ENDSWITH 'yy' AND c IS NULL").answer(properties) is True


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a = 1 AND " * 7000 + "TRUE", "at most 65536 bytes"),
        ("(" * 100_000 + "a" + ")" * 100_000, "at most 65536 bytes"),
        ("(" * 20_000 + "a = 1", "200 levels"),
        ("NOT " * 10_000 + "TRUE", "200 levels"),
        ("- " * 10_000 + "1 = 1", "200 levels"),
        (" OR ".join(f"p{i} IS NULL" for i in range(257)), "256 properties"),
    ],
)
def test_texts_beyond_the_limits_are_refused(expression: str, reason: str) -> None:
    with pytest.raises(errors.LimitReached, match=reason):
        Selector(expression)


def test_long_lists_and_chains_compile() -> None:
    members = ",".join(f"'{i}'" for i in range(8000))
    assert Selector(f"a IN ({members})").answer(b"a\x017999\x02") is True
    assert Selector(" OR ".join(["a = 'x'"] * 5000 + ["b = 'y'"])).answer(b"b\x01y\x02") is True
    assert Selector(" AND ".join(["a = - -1"] * 4000)).answer(b"a\x011\x02") is True
    assert Selector("(" * 199 + "a = 'x'" + ")" * 199).answer(b"a\x01x\x02") is True


@pytest.mark.parametrize(
    ("expression", "place", "reason"),
    [
        ("a >", 3, "the expression ends"),
        ("a > 'x'", 4, "only numbers and properties"),
        ("a = NULL", 0, "IS NULL"),
        ("a != 5", 2, "`!` is not part"),
        ("a = 'x", 4, "no closing quote"),
        ("5", 0, "a condition is needed"),
        ("a > 0.0", 4, "write 0 without one"),
        ("a IN ('x'", 9, "expected , or )"),
        ("a BETWEEN 6 AND 5", 10, "lower bound"),
    ],
)
def test_refusals_name_place_and_reason(expression: str, place: int, reason: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        Selector(expression)
    assert f"byte {place}:" in caught.value.message
    assert reason in caught.value.message
