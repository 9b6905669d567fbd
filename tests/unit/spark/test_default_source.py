"""Checks: where PySpark is too old for a part of the Python source, the error names version and the other engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cometmq.spark.errors import OptionError

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark.sql.datasource
from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.spark.default_source import CometMQSource

BODY = StructType([StructField("body", BinaryType())])


def forget(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for name in modules:
        monkeypatch.delitem(sys.modules, f"cometmq.spark.{name}", raising=False)


def test_pyspark_4_1_has_no_streams_through_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch, "stream")
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    source = CometMQSource({"path": str(tmp_path), "topic": "t"})
    with pytest.raises(OptionError, match=r"reading a stream through Python needs PySpark 4\.2.* 4\.1\.4.*engine=jvm"):
        source.streamReader(BODY)


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_pyspark_4_0_has_no_writes_through_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    forget(monkeypatch, "writer", "wire_writer")
    monkeypatch.delattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
    monkeypatch.setattr(pyspark, "__version__", "4.0.2")
    source = CometMQSource({"path": str(tmp_path), "topic": "t"})
    with pytest.raises(OptionError, match=r"writing through Python needs PySpark 4\.1.* 4\.0\.2.*engine=jvm"):
        getattr(source, kind)(BODY, False)


def test_other_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch, "stream")
    monkeypatch.setitem(sys.modules, "cometmq.spark.catalog", None)
    source = CometMQSource({"path": str(tmp_path), "topic": "t"})
    with pytest.raises(ImportError, match=r"cometmq\.spark\.catalog"):
        source.streamReader(BODY)
