"""The libraries behind the package's extras, and the command that installs them, for a checkout as for a wheel.

The extras themselves stand in ``pyproject.toml``; a test compares the two.
"""

from __future__ import annotations

import shlex

__all__ = ["EXTRAS", "install_command"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "duckdb": ("duckdb>=2.0", "pytz"),
    "polars": ("polars>=1.20",),
    "spark": ("pyspark>=4.2",),
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra's libraries into this environment."""
    return shlex.join(["pip", "install", *EXTRAS[extra]])
