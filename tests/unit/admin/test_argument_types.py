"""Checks: every public operation rejects an argument of a wrong type, by the argument's name and before any request.

The name server's port is closed: an operation that asked it would fail otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

import cometmq.admin.aio
from cometmq import InvalidArgument, WrongType
from cometmq.admin import Admin, MessageRequestMode, blocking
from cometmq.admin.argument_checks import argument_check, without_brackets

NAMESRV = "127.0.0.1:1"
PARTS: dict[str, type] = {
    "topics": blocking.Topics,
    "groups": blocking.Groups,
    "offsets": blocking.Offsets,
    "messages": blocking.Messages,
    "cluster": blocking.Cluster,
}
WRONG: dict[str, object] = {"str": 5, "bool": "no", "int": "5", "bytes": "text", "Mapping": 5, "Iterable": 5}
RIGHT: dict[str, object] = {
    "str": "x",
    "bytes": b"x",
    "Mapping": {},
    "Iterable": (),
    "int": 0,
    "MessageRequestMode": MessageRequestMode.POP,
}


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
    kind, _, rest = without_brackets(str(parameter.annotation)).partition(" | ")
    return kind if rest in ("", "None") else ""


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


def test_brackets_hide_no_type() -> None:
    def operation(attributes: Mapping[str, str | None] | None, names: Iterable[str | Mapping[str, int | None]]) -> None:
        """Take arguments whose types have unions inside."""

    check = argument_check(operation)
    check(None, [])
    with pytest.raises(WrongType, match="attributes must be a dict"):
        check(5, [])
    with pytest.raises(WrongType, match="names must be a list"):
        check({}, 5)


def test_texts_of_annotations_name_the_types() -> None:
    for part in PARTS.values():
        for name, method in inspect.getmembers(part, callable):
            if name.startswith("_"):
                continue
            _, *parameters = inspect.signature(method).parameters.values()
            arguments = SimpleNamespace(__annotations__={one.name: one.annotation for one in parameters})
            hints = typing.get_type_hints(arguments, inspect.unwrap(method).__globals__)
            for one in parameters:
                assert (kind_of(one) in WRONG) == (kind_of_type(hints[one.name]) in WRONG), (name, one)


def kind_of_type(kind: Any) -> str:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kinds = [one for one in typing.get_args(kind) if one is not types.NoneType]
        return kind_of_type(kinds[0]) if len(kinds) == 1 else ""
    return str((typing.get_origin(kind) or kind).__name__)
