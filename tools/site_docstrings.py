"""Docstrings for the API reference of ``make docs``: a Griffe extension.

``_engine.pyi`` has types and no docstrings; the compiled module has docstrings and no types. Griffe reads the stub, and
this extension adds the docstrings of the imported module. Roles such as :meth:`send` become code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

_STUB = "_engine"
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`~?([^`]+)`")


class SiteDocstrings(griffe.Extension):
    """Changes docstrings after a package was read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add those of the compiled module, and replace roles."""
        stub = pkg.members.get(_STUB)
        if stub is not None:
            _add(stub, importlib.import_module(f"{pkg.path}.{_STUB}"))
        _replace_roles(pkg)


def _add(target: Any, source: object) -> None:
    for name, member in target.members.items():
        if member.is_alias:
            continue
        original = inspect.getattr_static(source, name, None)
        text = inspect.getdoc(original)
        if member.docstring is None and text and not _is_of_object(name, text):
            member.docstring = griffe.Docstring(text, parent=member)
        if member.is_class and original is not None:
            _add(member, original)


def _is_of_object(name: str, text: str) -> bool:
    """Tell whether the text is what every object says of a method such as ``__eq__``."""
    return name.startswith("__") and text == inspect.getdoc(getattr(object, name, None))


def _replace_roles(target: Any) -> None:
    if target.docstring is not None:
        target.docstring.value = _ROLE.sub(r"`\1`", target.docstring.value)
    for member in target.members.values():
        if not member.is_alias:
            _replace_roles(member)
