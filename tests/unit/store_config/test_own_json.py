"""Checks: whatever a small JSON file of ours holds, its readers get the content or a ValueError."""

from __future__ import annotations

import pytest

from cometmq.store_config.own_json import loads_own


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"9" * 5_000,
        b"NaN",
        b"[Infinity]",
        b'{"a":1e999}',
        b'{"a":-1e999}',
    ],
)
def test_content_that_cannot_be_used_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads_own(data)


def test_finite_numbers_are_read() -> None:
    assert loads_own('{"a":[1,2.5,-1e3]}') == {"a": [1, 2.5, -1000.0]}
