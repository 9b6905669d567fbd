"""Names of a package that are loaded when they are first used, so that an import pays for no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    namespace: dict[str, Any], places: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        namespace: its ``globals()``; names are kept there once they are loaded.
        places: name to the module that has it, or to the module that it is.
    """

    def load(name: str) -> object:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module = import_module(place)
        found = namespace[name] = module if place == f"{namespace['__name__']}.{name}" else getattr(module, name)
        return found

    def names() -> list[str]:
        return sorted(namespace["__all__"])

    return load, names
