"""The build backend: scikit-build-core's, and PySpark among the requirements where the engine for the JVM can be built.

An isolated build sees its own requirements only, so without this a wheel that is built beside an installed PySpark
would have no jar. PySpark is asked for where a JDK is there and the environment that is installed into has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_JAVA_MIN = 17


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the requirements of a wheel's build."""
    return backend.get_requires_for_build_wheel(config_settings) + _jvm_requirements(config_settings)


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the requirements of an editable build."""
    return backend.get_requires_for_build_editable(config_settings) + _jvm_requirements(config_settings)


def _jvm_requirements(config_settings: dict[str, Any] | None) -> list[str]:
    is_off = str((config_settings or {}).get("cmake.define.CMQ_JVM", "ON")).upper() in ("OFF", "0", "FALSE", "NO")
    return [] if is_off or not _has_jdk() or _pyspark_is_installed() else ["pyspark>=4.2"]


def _has_jdk() -> bool:
    """Return whether CMake will find a JDK that is new enough; bindings/jvm/CMakeLists.txt looks in the same places."""
    home = os.environ.get("JAVA_HOME")
    javac = (home and shutil.which("javac", path=os.path.join(home, "bin"))) or shutil.which("javac")  # noqa: PTH118
    if javac is None:
        return False
    shown = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r"javac (\d+)", shown.stdout + shown.stderr)
    return version is not None and int(version[1]) >= _JAVA_MIN


def _pyspark_is_installed() -> bool:
    """Return whether the environment around the isolated one has PySpark; CMake finds it there in the same way."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyspark') is None)"
    return subprocess.run([sys.executable, "-I", "-c", look], check=False).returncode == 0
