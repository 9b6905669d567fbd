"""Checks: every public operation rejects an argument of a wrong type, by the argument's name and before any request.

The name server's port is closed: an operation that asked it would fail otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import cometmq.admin.aio
from cometmq import InvalidArgument, WrongType
from cometmq.admin import Admin, blocking

NAMESRV = "127.0.0.1:1"
PARTS: dict[str, type] = {
    "topics": blocking.Topics,
    "groups": blocking.Groups,
    "offsets": blocking.Offsets,
    "messages": blocking.Messages,
    "cluster": blocking.Cluster,
}
WRONG: dict[str, object] = {"str": 5, "bool": "no", "bytes": "text", "Mapping": 5, "Iterable": 5}
RIGHT: dict[str, object] = {"str": "x", "bytes": b"x", "Mapping": {}, "Iterable": (), "int": 0}


def rows() -> Iterator[Any]:
    for part, kind in PARTS.items():
        for name, method in inspect.getmembers(kind, callable):
            if name.startswith("_"):
                continue
            _, *parameters = inspect.signature(method).parameters.values()
            needed = {
                one.name: RIGHT.get(kind_of(one), "x") for one in parameters if one.default is inspect.Parameter.empty
            }
            for one in parameters:
                if kind_of(one) in WRONG:
                    given = needed | {one.name: WRONG[kind_of(one)]}
                    yield pytest.param(part, name, given, one.name, id=f"{part}.{name}({one.name})")


def kind_of(parameter: inspect.Parameter) -> str:
    kind, _, rest = str(parameter.annotation).partition(" | ")
    return kind.partition("[")[0] if rest in ("", "None") else ""


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    with cometmq.admin.connect(namesrv=NAMESRV) as connected:
        yield connected


ROWS = list(rows())


def test_every_operation_with_arguments_has_a_row() -> None:
    assert len(ROWS) > 100
    assert {row.values[0] for row in ROWS} == set(PARTS)


@pytest.mark.parametrize(("part", "name", "given", "wrong"), ROWS)
def test_argument_of_a_wrong_type_is_named(
    admin: Admin, part: str, name: str, given: dict[str, object], wrong: str
) -> None:
    with pytest.raises(WrongType, match=f"^{wrong} must be "):
        getattr(getattr(admin, part), name)(**given)


def test_awaited_operations_check_the_same() -> None:
    async def scene() -> None:
        async with cometmq.admin.aio.connect(namesrv=NAMESRV) as admin:
            with pytest.raises(WrongType, match=r"^topic must be a str, not int"):
                await admin.topics.describe(5)  # type: ignore[arg-type]
            with pytest.raises(WrongType, match=r"^settings must be a dict, not list"):
                await admin.cluster.set_namesrv_config([])  # type: ignore[arg-type]

    asyncio.run(scene())


def test_texts_are_no_bodies_and_no_lists(admin: Admin) -> None:
    with pytest.raises(WrongType, match=r"^body must be bytes-like, not str .*: encode it"):
        admin.messages.send("t", "text")  # type: ignore[arg-type]
    with pytest.raises(WrongType, match=r"^groups must be a list, not str"):
        admin.groups.dead_letters("g")
    with pytest.raises(InvalidArgument):
        admin.topics.describe(None)  # type: ignore[arg-type]
