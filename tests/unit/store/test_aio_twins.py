"""Checks: the asyncio surface has all names, arguments and defaults of the synchronous one; plain ones are listed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import cometmq
from cometmq import HandedOff, Reader
from cometmq.aio import AsyncConsumer, AsyncHandedOff, AsyncReader, AsyncStore

TWINS = [
    pytest.param(cometmq.Store, AsyncStore, {"store", "wrap"}, id="Store"),
    pytest.param(cometmq.Consumer, AsyncConsumer, {"consumer"}, id="Consumer"),
    pytest.param(Reader, AsyncReader, set(), id="Reader"),
    pytest.param(HandedOff, AsyncHandedOff, {"handed_off"}, id="HandedOff"),
]
PLAIN = {
    # Facts known at opening, and methods that only release or inspect what was handed out.
    AsyncStore: {"opening", "read", "follow", "scan", "consumer", "transaction", "wrap"},
    AsyncConsumer: {"positions", "committed", "close"},
    AsyncReader: {"positions", "close"},
    AsyncHandedOff: set(),
}


def public(kind: type) -> set[str]:
    """The names that a class promises: its attributes, and those that its constructor sets."""
    set_by_init = set()
    if inspect.isfunction(kind.__init__):
        set_by_init = {name for name in kind.__init__.__code__.co_names if isinstance(name, str)}
        source = inspect.getsource(kind.__init__)
        set_by_init = {name for name in set_by_init if f"self.{name} = " in source}
    return {name for name in {*dir(kind), *set_by_init} if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "waiting", "own"), TWINS)
def test_the_names_are_the_same(plain: type, waiting: type, own: set[str]) -> None:
    assert public(waiting) - own == public(plain)


@pytest.mark.parametrize(("plain", "waiting", "own"), [twins for twins in TWINS if twins.id != "Reader"])
def test_the_arguments_are_the_same(plain: type, waiting: type, own: set[str]) -> None:
    def arguments(kind: type, name: str) -> list[tuple[str, Any, Any]]:
        method = inspect.getattr_static(kind, name)
        return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]

    for name in sorted(public(plain)):
        if inspect.isfunction(inspect.getattr_static(plain, name, None)):
            assert arguments(waiting, name) == arguments(plain, name), name


@pytest.mark.parametrize(("plain", "waiting", "own"), TWINS)
def test_plain_methods_are_listed(plain: type, waiting: type, own: set[str]) -> None:
    methods = {name for name in public(waiting) if callable(getattr(waiting, name, None))}
    assert {name for name in methods if not inspect.iscoroutinefunction(getattr(waiting, name))} == PLAIN[waiting]


def test_open_takes_the_same_options() -> None:
    assert {*inspect.signature(cometmq.aio.open).parameters} <= {*inspect.signature(cometmq.open).parameters, "options"}
