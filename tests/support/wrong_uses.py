"""Calls that are written as texts, for the tables of wrong uses, and the names that they use."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cometmq
import cometmq.admin
from cometmq import aio
from cometmq.client import OutgoingMessage, Producer, PullConsumer, PushConsumer, SimpleConsumer
from support.small_store import open_small

__all__ = ["call", "check_refused", "world"]


@contextmanager
def world(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the names of the calls, in a working directory of their own.

    They see one store with the topic ``t`` (a queue, five messages), opened for writing (``s``), for reading (``r``)
    and for asyncio (``a``), and clients whose name server does not exist.
    """
    network = {"name_servers": "127.0.0.1:1"}
    admin = cometmq.admin.connect(namesrv="127.0.0.1:1")
    admin.close()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with open_small(folder / "s") as s, open_small(folder / "s", mode="r") as r:
            s.append_many("t", [b"1", b"2", b"3", b"4", b"5"], tags="a")
            closed = s.consumer("closed", "t")
            closed.close()
            with s.consumer("g", "t") as c, Producer("started", **network) as started:  # type: ignore[arg-type]
                yield {
                    "cometmq": cometmq,
                    "aio": aio,
                    "pa": pa,
                    "np": np,
                    "Path": Path,
                    "Fraction": Fraction,
                    "datetime": datetime,
                    "d": f"{folder}/",
                    "s": s,
                    "r": r,
                    "a": aio.AsyncStore.wrap(s),
                    "c": c,
                    "closed": closed,
                    "m": s.get("t", 0, 0),
                    "table": pa.table({"a": [1, 2]}),
                    "network": network,
                    "Producer": Producer,
                    "PushConsumer": PushConsumer,
                    "PullConsumer": PullConsumer,
                    "SimpleConsumer": SimpleConsumer,
                    "OutgoingMessage": OutgoingMessage,
                    "producer": Producer("g", **network),  # type: ignore[arg-type]
                    "push": PushConsumer("g", **network),  # type: ignore[arg-type]
                    "pull": PullConsumer("g", **network),  # type: ignore[arg-type]
                    "simple": SimpleConsumer("g", **network),  # type: ignore[arg-type]
                    "started": started,
                    "closed_admin": admin,
                }
    finally:
        os.chdir(before)


def call(text: str, names: dict[str, Any]) -> Any:
    """Make a call, and wait where it is asyncio's."""
    result = eval(text, names)

    async def waited() -> Any:
        return await result

    return asyncio.run(waited()) if inspect.isawaitable(result) else result


def check_refused(names: dict[str, Any], text: str, kind: type[cometmq.Error], part: str) -> None:
    """Make a call that must raise this error with this part in its text, and change nothing."""
    before = sorted(Path(names["d"]).iterdir())
    with pytest.raises(cometmq.Error) as caught:
        call(text, names)
    assert type(caught.value) is kind
    assert part in str(caught.value)
    assert sorted(Path(names["d"]).iterdir()) == before, "a directory was made"
    assert names["s"].topics() == ["t"]
