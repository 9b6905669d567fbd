"""A pytest plugin that loads one module from another file: ``CMQ_MUTANT=package.module=path``. See ``mutants.py``."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the changed file for its module's name."""
        return importlib.util.spec_from_file_location(fullname, self._path) if fullname == self._name else None


if "CMQ_MUTANT" in os.environ:
    sys.meta_path.insert(0, _Finder(*os.environ["CMQ_MUTANT"].split("=", 1)))
