"""Checks: subscriptions say what Java's would, and texts and queues sort as Java sorts them."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from cometmq.client.group.subscriptions import make_subscription, queue_order, text_order
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue

_NUMBERS = itertools.count()


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression: str | None) -> None:
    """Promise 8."""
    made = make_subscription("t", expression, now_ms=5)
    assert (made.topic, made.sub_string, made.tags, made.codes) == ("t", "*", (), ())
    assert (made.sub_version, made.expression_type, made.class_filter_mode) == (5, "TAG", False)


def test_tags() -> None:
    """Promises 8, 52: a double bar separates; the codes are Java's hash codes."""
    made = make_subscription("t", " TagA || TagB||TagA|| ", now_ms=5)
    assert made.sub_string == " TagA || TagB||TagA|| "
    assert made.tags == ("TagA", "TagB")
    assert made.codes == (2_598_919, 2_598_920)
    assert make_subscription("t", "a|b", now_ms=5).tags == ("a|b",)


def test_tags_with_the_same_code_give_it_once() -> None:
    made = make_subscription("t", "Aa||BB", now_ms=5)
    assert (made.tags, made.codes) == (("Aa", "BB"), (2112,))


@pytest.mark.parametrize("expression", ["||", "||||", " || ", " "])
def test_separators_alone_are_refused(expression: str) -> None:
    with pytest.raises(InvalidArgument):
        make_subscription("t", expression, now_ms=5)


def test_other_types_are_kept_as_they_are() -> None:
    """Promises 52, 57."""
    made = make_subscription("t", "a > 5", expression_type="SQL92", now_ms=5)
    assert (made.sub_string, made.expression_type, made.tags) == ("a > 5", "SQL92", ())
    for empty in (None, ""):
        with pytest.raises(InvalidArgument):
            make_subscription("t", empty, expression_type="SQL92", now_ms=5)


@pytest.mark.parametrize("kind", ["sql", "tag", "SQL", "", 5])
def test_types_that_no_broker_knows(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expression_type is .*: write 'TAG' or 'SQL92'"):
        make_subscription("t", "a", expression_type=kind, now_ms=5)


@pytest.mark.parametrize("expression", [["a", "b"], 5, b"a"])
def test_invalid_expressions_are_rejected(expression: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"it is one text, as 'tagA \|\| tagB'"):
        make_subscription("t", expression, now_ms=5)


@pytest.mark.parametrize("expression", ["order(v2)", "Bob's", "made in china", "it is"])
def test_legitimate_tags_are_subscribed_to_in_silence(expression: str, caplog: pytest.LogCaptureFixture) -> None:
    assert make_subscription("t", expression, now_ms=5).tags == (expression,)
    assert caplog.records == []


@pytest.mark.parametrize("expression", ["a,b", "a;b", "a | b", "a or b", "a and b", "a=b", "R&&D"])
def test_doubtful_tags_are_logged_once(expression: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = f"doubtful-{next(_NUMBERS)}"  # not logged by an earlier test
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert make_subscription(topic, f"x || {expression}", now_ms=5).tags == ("x", expression)
    assert [record.getMessage() for record in caplog.records] == [
        f"{expression!r} in the expression for {topic!r} is subscribed to as one tag: only || divides tags, and "
        'conditions need expression_type="SQL92"'
    ]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a == 1", "is refused by brokers like RocketMQ 5.3: SQL92 expression, byte 3: `==` is not part of"),
        (
            "a LIKE 'x%'",
            "is ignored: SQL92 expression, byte 2: the condition ends before \"LIKE 'x%'\"; write CONTAINS",
        ),
        ("a = 1 b", "is ignored: SQL92 expression, byte 6: the condition ends before 'b'"),
    ],
)
def test_doubtful_conditions_are_logged_once(expression: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = f"doubtful-{next(_NUMBERS)}"  # not logged by an earlier test
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            made = make_subscription(topic, expression, expression_type="SQL92", now_ms=5)
    assert made.sub_string == expression, "the broker decides"
    (record,) = caplog.records
    assert text in record.getMessage()


def test_sound_conditions_are_subscribed_to_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    make_subscription("t", "a IS NOT NULL AND b <> 'x'", expression_type="SQL92", now_ms=0)
    assert caplog.records == []


@pytest.mark.parametrize("expression", ["a = 'x'", "price > 10", "a && b", "TAGS in ('a')", "a = b OR c = d"])
def test_conditions_of_type_tag_are_refused(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="which has no meaning there and would match nothing"):
        make_subscription("t", expression, now_ms=5)


def test_texts_sort_by_utf16_units() -> None:
    """Promise 60: U+1F600 begins with a surrogate, which Java puts before U+FF5E."""
    assert sorted(["\uff5e", "\U0001f600", "a"], key=text_order) == ["a", "\U0001f600", "\uff5e"]


def test_queues_sort_by_topic_broker_and_id() -> None:
    """Promise 60."""
    names = [("b", "a", 0), ("a", "c", 10), ("a", "c", 2), ("a", "b", 10)]
    queues = [MessageQueue(topic=topic, broker_name=broker, queue_id=number) for topic, broker, number in names]
    assert sorted(queues, key=queue_order) == [queues[3], queues[2], queues[1], queues[0]]
