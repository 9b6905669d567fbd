"""Checks: a package's lazily loaded name is never hidden by a module of the same name."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

MODULES = {"cometmq": {"store"}, "cometmq.client": set[str](), "cometmq.store_config": set[str]()}
"""Names that are meant to be modules, by package."""


@pytest.mark.parametrize("package", MODULES)
def test_no_name_of_a_package_is_a_module_by_accident(package: str) -> None:
    """Whichever is imported first: importing a module binds its name in its package."""
    names = set(import_module(package).__all__) | MODULES[package]
    assert {name for name in names if isinstance(getattr(import_module(package), name), ModuleType)} == MODULES[package]
    assert {name for name in names if find_spec(f"{package}.{name}") is not None} == MODULES[package]
