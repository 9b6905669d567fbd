"""Checks: tables fit a terminal, or are printed row by row; nothing is cut or broken in two."""

from __future__ import annotations

import pytest

from cometmq.cli.tables import print_table

TITLES = ["broker", "address", "messages", "attributes"]
ROWS: list[list[object]] = [
    ["broker-a", "[2001:db8::1234:5678]:10911", 1234567, "a=1 b=2"],
    ["b", "10.0.0.1:10911", None, "message.type=FIFO cleanup.policy=DELETE"],
]
WHOLE = """\
broker    address                       messages  attributes
broker-a  [2001:db8::1234:5678]:10911  1,234,567  a=1 b=2
b         10.0.0.1:10911                       -  message.type=FIFO cleanup.policy=DELETE
"""


@pytest.mark.parametrize("width_chars", [None, 200, max(map(len, WHOLE.splitlines()))])
def test_where_there_is_room(width_chars: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TITLES, ROWS, width_chars=width_chars)
    assert capsys.readouterr().out == WHOLE


def test_columns_of_words_are_broken_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    for width_chars in range(72, 80):
        print_table(TITLES, ROWS, wrapping={"attributes"}, width_chars=width_chars)
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines), lines[-1].split()) == (4, ["cleanup.policy=DELETE"])
        assert max(map(len, lines)) <= width_chars


def test_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TITLES, ROWS, width_chars=60)
    assert (
        capsys.readouterr().out
        == """\
broker      broker-a
address     [2001:db8::1234:5678]:10911
messages    1,234,567
attributes  a=1 b=2

broker      b
address     10.0.0.1:10911
messages    -
attributes  message.type=FIFO cleanup.policy=DELETE

"""
    )
