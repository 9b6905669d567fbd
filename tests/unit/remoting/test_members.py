"""Checks: fields become typed values, and what is missing or wrong is an error that names the member."""

from __future__ import annotations

import pytest

from cometmq.errors import MalformedCommand
from cometmq.remoting.members import Members, flag_text

FIELDS = Members(
    {"topic": "orders", "empty": "", "queueId": "3", "offset": "-9223372036854775808", "big": "2147483648"}
    | {"word": "three", "yes": "TRUE", "no": "yes", "point": "1.5", "blank": " 3", "long": "9" * 5000}
)


def test_values_have_their_types() -> None:
    assert FIELDS.required("topic") == "orders"
    assert FIELDS.required_int32("queueId") == 3
    assert FIELDS.required_int64("offset") == -(2**63)
    assert FIELDS.required_boolean("yes")
    assert not FIELDS.required_boolean("no"), "as Java's parseBoolean"


def test_missing_ones_are_the_default() -> None:
    assert FIELDS.text("nothing") is None
    assert FIELDS.text("nothing", "there") == "there"
    assert FIELDS.text("empty", "there") == "", "an empty text was given"
    assert FIELDS.int32("nothing") is None
    assert FIELDS.int32("empty", 7) == 7, "a ROCKETMQ header cannot tell empty from missing"
    assert FIELDS.int64("nothing", 8) == 8
    assert FIELDS.boolean("nothing", True)
    assert not FIELDS.boolean("empty")


@pytest.mark.parametrize("name", ["nothing", "empty"])
@pytest.mark.parametrize("read", [Members.required, Members.required_int32, Members.required_int64])
def test_a_required_member_is_named_when_it_is_missing(read: object, name: str) -> None:
    assert callable(read)
    with pytest.raises(MalformedCommand, match=name) as caught:
        read(FIELDS, name)
    assert caught.value.member == name


@pytest.mark.parametrize("name", ["word", "point", "blank", "big", "long"])
def test_a_number_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(MalformedCommand, match=name) as caught:
        FIELDS.int32(name, 0)
    assert caught.value.member == name
    assert len(str(caught.value)) < 200, "the text quotes no more than a piece of what was sent"


def test_flags_as_texts() -> None:
    assert (flag_text(True), flag_text(False)) == ("true", "false")
