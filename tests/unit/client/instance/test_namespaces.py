"""Checks: the prefix of a namespace comes and goes, and the system's names have none."""

from __future__ import annotations

import pytest

from cometmq.client.instance.namespaces import with_namespace, without_namespace


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("T", "NS%T"),
        ("%RETRY%g", "%RETRY%NS%g"),
        ("%DLQ%g", "%DLQ%NS%g"),
        ("100%", "NS%100%"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
        ("", ""),
    ],
)
def test_there_and_back(name: str, wire: str) -> None:
    assert with_namespace("NS", name) == wire
    assert with_namespace("NS", wire) == wire, "once only"
    assert without_namespace("NS", wire) == name


@pytest.mark.parametrize("name", ["T", "NS%T", "%RETRY%g"])
@pytest.mark.parametrize("namespace", [None, ""])
def test_no_namespace(namespace: str | None, name: str) -> None:
    assert with_namespace(namespace, name) == name
    assert without_namespace(namespace, name) == name


def test_another_namespace_s_names_stay() -> None:
    assert without_namespace("NS", "OTHER%T") == "OTHER%T"
    assert without_namespace("NS", "%RETRY%OTHER%g") == "%RETRY%OTHER%g"
