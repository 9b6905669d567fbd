"""Checks: an interceptor that raises is told of and changes nothing."""

from __future__ import annotations

import logging

import pytest

from cometmq.client.instance.hooks import Interceptor, SendContext, run_hooks


def test_an_interceptor_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    context = SendContext(group="g", topic="t", messages=(), unique_ids=(), queue=None, address=None, began_ms=1)
    seen: list[str] = []

    def broken(context: SendContext) -> None:
        raise RuntimeError("broken on purpose")

    with caplog.at_level(logging.WARNING, logger="cometmq.client"):
        run_hooks([broken, lambda context: seen.append(context.topic)], context)
    assert seen == ["t"]
    assert "interceptor" in caplog.text
    assert "broken on purpose" in caplog.text


def test_contexts_do_not_share_their_data() -> None:
    one, other = (
        SendContext(group="g", topic="t", messages=(), unique_ids=(), queue=None, address=None, began_ms=1)
        for _ in range(2)
    )
    one.data["span"] = 1
    assert other.data == {}
    assert Interceptor().before_send is None
