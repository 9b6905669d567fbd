"""Checks: every public class has a text form that helps at a prompt."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from pathlib import Path

import pytest

import cometmq
import cometmq.admin
import cometmq.aio

MODULES = [
    "cometmq",
    "cometmq.admin",
    "cometmq.admin.aio",
    "cometmq.aio",
    "cometmq.arrow",
    "cometmq.client",
    "cometmq.testing",
]


@pytest.mark.parametrize("name", MODULES)
def test_public_classes_have_a_text_form(name: str) -> None:
    module = importlib.import_module(name)
    plain = [
        public
        for public in module.__all__
        if inspect.isclass(value := getattr(module, public)) and value.__repr__ is object.__repr__
    ]
    assert plain == []


def test_readers_and_consumers_of_asyncio(tmp_path: Path) -> None:
    async def texts() -> list[str]:
        async with cometmq.aio.open(tmp_path / "store") as store:
            await store.append("t", b"x")
            reader = store.read("t")
            consumer = await store.consumer("g", "t")
            shown = [repr(reader), repr(consumer)]
            reader.close()
            consumer.close()
            return [*shown, repr(reader), repr(consumer)]

    assert asyncio.run(texts()) == [
        "<AsyncReader open; use async for>",
        "<AsyncConsumer 'g' of t>",
        "<AsyncReader closed; use async for>",
        "<AsyncConsumer 'g' of t closed>",
    ]


def test_parts_of_a_session_name_their_calls() -> None:
    with cometmq.admin.connect(broker="127.0.0.1:1") as admin:
        assert repr(admin.offsets) == "<Offsets: progress, at_time, reset, commit, skip, clone>"
        assert repr(admin.messages.sender("t")) == "<Sender to t: not entered>"
