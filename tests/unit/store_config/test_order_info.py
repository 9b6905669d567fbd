"""Checks: batches come back as they were written, in upstream's form; a file that cannot be used says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store_config.errors import ConfigError
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue, OrderInfo

TEXT = """{
\t"table":{
\t\t"T@g":{0:{
\t\t\t\t"a":"attempt-1",
\t\t\t\t"cm":5,
\t\t\t\t"i":60000,
\t\t\t\t"l":1800000000001,
\t\t\t\t"o":[
\t\t\t\t\t100,
\t\t\t\t\t1,
\t\t\t\t\t5
\t\t\t\t],
\t\t\t\t"oc":{101:2
\t\t\t\t},
\t\t\t\t"ot":{105:1800000090000
\t\t\t\t},
\t\t\t\t"popTime":1800000000000
\t\t\t},1:{
\t\t\t\t"cm":-9223372036854775808,
\t\t\t\t"l":1,
\t\t\t\t"o":[
\t\t\t\t\t5000000000
\t\t\t\t],
\t\t\t\t"popTime":1
\t\t\t}
\t\t}
\t}
}"""

QUEUES = [
    OrderedQueue(
        "g",
        "T",
        0,
        OrderedBatch(
            attempt="attempt-1",
            pop_ms=1_800_000_000_000,
            invisible_ms=60_000,
            used_ms=1_800_000_000_001,
            acked=5,
            offsets=(100, 101, 105),
            visible_ms={105: 1_800_000_090_000},
            times={101: 2},
        ),
    ),
    OrderedQueue("g", "T", 1, OrderedBatch(pop_ms=1, used_ms=1, acked=1 << 63, offsets=(5_000_000_000,))),
]


def test_batches_are_upstreams_text(tmp_path: Path) -> None:
    path = tmp_path / "consumerOrderInfo.json"
    path.write_text(TEXT)
    info = OrderInfo(tmp_path)
    info.load()
    assert info.all() == QUEUES
    assert info.persist(only_if_changed=False)
    assert path.read_text() == TEXT
    info.replace(QUEUES)
    assert not info.changed
    info.replace(QUEUES[:1])
    assert info.persist()
    info.load()
    assert info.all() == QUEUES[:1]
    info.replace([])
    info.persist()
    assert path.read_text() == '{\n\t"table":{}\n}'


def test_entries_that_upstream_ignores_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "consumerOrderInfo.json").write_text(
        '{"table":{"T":{0:{"o":[1]}},"T@g@x":{0:{"o":[1]}},"@g":{0:{"o":[1]}},"T@g":{1:{"o":[]},2:{"o":[3]},3:null},"U@g":null}}'
    )
    info = OrderInfo(tmp_path)
    info.load()
    assert info.all() == [OrderedQueue("g", "T", 2, OrderedBatch(offsets=(3,)))]


@pytest.mark.parametrize(
    ("batch", "where"),
    [
        ('{"o":[5,0]}', r"table\.T@g\.0\.o"),
        ('{"o":[5,3,2]}', "rise"),
        ('{"o":[-1]}', "rise"),
        ('{"o":[9223372036854775807]}', "rise"),
        ('{"o":[9223372036854775806,5]}', "rise"),
        (f'{{"o":{list(range(65))}}}', "65 messages; 64 is the most"),
        ('{"oc":{1:-1}}', "oc"),
        ('{"ot":{"x":1}}', "ot"),
        ('{"popTime":"soon"}', "popTime"),
        ("[]", r"table\.T@g\.0"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path: Path, batch: str, where: str) -> None:
    for name in ("consumerOrderInfo.json", "consumerOrderInfo.json.bak"):
        (tmp_path / name).write_text(f'{{"table":{{"T@g":{{0:{batch}}}}}}}')
    with pytest.raises(ConfigError, match=where):
        OrderInfo(tmp_path).load()
