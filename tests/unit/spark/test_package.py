"""Checks: Spark's look-up finds the source; importing it is light, and failing to is nobody else's trouble."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pkgutil import iter_modules

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark_cometmq


def test_sparks_look_up_finds_it() -> None:
    from pyspark.sql.datasource import DataSource

    assert "pyspark_cometmq" in {module.name for module in iter_modules()}
    assert issubclass(pyspark_cometmq.DefaultSource, DataSource)
    assert pyspark_cometmq.DefaultSource.name() == "cometmq"
    assert pyspark_cometmq.RocketMQSource.name() == "rocketmq"


def test_the_import_is_light() -> None:
    program = (
        "import sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "import pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_cometmq\n"
        "heavy = {'pyarrow', 'numpy', 'pandas', 'polars', 'duckdb', 'rich', 'typer'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_where_it_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cometmq.spark.default_source", None)
    monkeypatch.delitem(sys.modules, "pyspark_cometmq")
    with pytest.warns(RuntimeWarning, match=r'format\("cometmq"\) is not there'):
        found = importlib.import_module("pyspark_cometmq")
    assert not hasattr(found, "DefaultSource")
