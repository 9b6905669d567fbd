"""Other people's libraries, imported when a call needs them, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from cometmq._extras import EXTRAS, install_command
from cometmq.errors import MissingLibrary

__all__ = ["library"]


def library(name: str) -> ModuleType:
    """Return a module.

    Raises:
        MissingLibrary: it is not installed, or cannot be loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        install = install_command(package) if package in EXTRAS else f"pip install {package}"
        raise MissingLibrary(f"this needs {package}, which could not be imported ({error}): {install}") from error
