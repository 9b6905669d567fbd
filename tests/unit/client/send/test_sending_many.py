"""Checks: many sends in order, of which only so many are under way, over an engine that completes nothing by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from cometmq.client.send.sending_many import SendWindow, many
from cometmq.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from cometmq.client.send.send_engine import SendEngine


class Recorder:
    """Stands for an engine: a send is its number."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, str | None]] = []

    def send_item(self, message: object, topic: str | None) -> int:
        self.sent.append((message, topic))
        return len(self.sent)


def window(engine: Recorder, under_way: int) -> SendWindow:
    return SendWindow(cast("SendEngine", engine), topic="t", under_way=under_way)


@pytest.mark.parametrize("under_way", [1, 2, 3, 8, 1_000])
def test_messages_are_sent_once_in_order_and_no_more_than_so_many_are_under_way(under_way: int) -> None:
    engine = Recorder()
    sending = window(engine, under_way)
    finished: list[object] = []
    for at in range(50):
        due = sending.due()
        finished += due
        sending.forget(len(due))
        sending.send(b"%d" % at)
        assert len(sending.begun) <= under_way
    finished += sending.begun
    assert engine.sent == [(b"%d" % at, "t") for at in range(50)]
    assert finished == list(range(1, 51))


def test_half_of_a_full_window_is_waited_for() -> None:
    sending = window(Recorder(), 6)
    for _ in range(5):
        sending.send(b"x")
    assert sending.due() == []
    sending.send(b"x")
    assert cast("list[object]", sending.due()) == [1, 2, 3]


def test_window_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="under_way"):
        window(Recorder(), 0)


@pytest.mark.parametrize("given", [b"body", "text", bytearray(b"body"), memoryview(b"body"), 7])
def test_one_body_is_not_many_messages(given: object) -> None:
    with pytest.raises(WrongType, match="give a list"):
        many(cast("list[bytes]", given))
