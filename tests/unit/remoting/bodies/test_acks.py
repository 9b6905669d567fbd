"""Checks: the bit set of a batch of acknowledgements is Java's, and both forms of its names are read."""

from __future__ import annotations

import pytest

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.acks import BatchAck, BitSet


def test_bits_are_offsets() -> None:
    assert list(BatchAck.from_json(b'{"b":"BQI=","so":100}').acknowledged) == [0, 2, 9]
    assert BitSet(0b1000000101) == BatchAck.from_json(b'{"b":"BQIAAA=="}').acknowledged, "zeros at the end mean nothing"
    assert b'"b":""' in BatchAck().to_json()


def test_long_names_are_read_as_well() -> None:
    long = b'{"consumerGroup":"CG","topic":"t","retry":"1","startOffset":7,"queueId":1,"reviveQueueId":2,"popTime":3,'
    short = b'{"c":"CG","t":"t","r":"1","so":7,"q":1,"rq":2,"pt":3,'
    assert BatchAck.from_json(long + b'"invisibleTime":4,"bitSet":"Ag=="}') == BatchAck.from_json(
        short + b'"it":4,"b":"Ag=="}'
    )


@pytest.mark.parametrize("bits", ["=", "no base64", "A" * 12_000])
def test_malformed_bit_sets_are_refused(bits: str) -> None:
    with pytest.raises(MalformedBody, match="b:"):
        BatchAck.from_json(f'{{"b":"{bits}"}}'.encode())
