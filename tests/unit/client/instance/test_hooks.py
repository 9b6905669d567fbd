"""Checks: an interceptor that raises is logged and changes nothing; filters leave messages out."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest

from cometmq.client.instance.hooks import Interceptor, MessageFilter, SendContext, run_hooks
from cometmq.errors import InvalidArgument


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, GeneratorExit])
def test_an_interceptor_that_raises_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    context = SendContext(group="g", topic="t", messages=(), unique_ids=(), queue=None, address=None, began_ms=1)
    seen: list[str] = []

    def broken(context: SendContext) -> None:
        raise error("broken on purpose")

    with caplog.at_level(logging.WARNING, logger="cometmq.client"):
        run_hooks([broken, lambda context: seen.append(context.topic)], context)
    assert seen == ["t"]
    assert "interceptor" in caplog.text
    assert "broken on purpose" in caplog.text


def test_ctrl_c_in_an_interceptor_ends_the_program_but_no_listener_thread() -> None:
    context = SendContext(group="g", topic="t", messages=(), unique_ids=(), queue=None, address=None, began_ms=1)
    ended: list[bool] = []

    def broken(context: SendContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_hooks([broken], context)
    thread = threading.Thread(target=lambda: (run_hooks([broken], context), ended.append(True)))
    thread.start()
    thread.join()
    assert ended == [True]


def test_contexts_do_not_share_their_data() -> None:
    one, other = (
        SendContext(group="g", topic="t", messages=(), unique_ids=(), queue=None, address=None, began_ms=1)
        for _ in range(2)
    )
    one.data["span"] = 1
    assert other.data == {}
    assert Interceptor().before_send is None


def test_a_message_is_kept_if_all_filters_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    def broken(message: Any) -> bool:
        raise SystemExit("broken on purpose")

    def is_even(message: Any) -> bool:
        return message % 2 == 0

    interceptors = [Interceptor(keep_message=hook) for hook in (broken, is_even, lambda message: message < 5)]
    kept = MessageFilter([Interceptor(), *interceptors])
    with caplog.at_level(logging.WARNING, logger="cometmq.client"):
        assert [*filter(kept.keeps, cast("list[Any]", range(8)))] == [0, 2, 4]
    assert "broken on purpose" in caplog.text
    assert not MessageFilter([Interceptor()])


def test_ctrl_c_in_a_filter_ends_the_program() -> None:
    def broken(message: Any) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MessageFilter([Interceptor(keep_message=broken)]).keeps(cast("Any", 1))


async def _waits(context: object) -> bool:
    return False


@pytest.mark.parametrize("name", ["keep_message", "before_send", "after_send", "before_consume", "after_consume"])
@pytest.mark.parametrize(("given", "text"), [(_waits, "async def"), ("print", "'print', which cannot be called")])
def test_functions_that_could_not_be_called_are_refused(name: str, given: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Interceptor(**{name: given})
