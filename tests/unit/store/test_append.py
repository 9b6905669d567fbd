"""Checks: messages appended by any method come out the same; wrong input is refused and changes nothing."""

from __future__ import annotations

import array
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cometmq
from cometmq import Store, errors
from support.small_store import SMALL, open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


def bodies_of(store: Store, topic: str = "t") -> list[bytes]:
    return [bytes(message) for message in store.read(topic)]


# --- One message


def test_everything_of_a_message_comes_back(store: Store) -> None:
    before_ms = time.time_ns() // 1_000_000
    result = store.append(
        "orders",
        b"body",
        tags="paid",
        keys=["k1", "k2"],
        properties={"region": "eu", "数量": "8", "UNIQ_KEY": "u-1"},
        flag=-7,
        born_timestamp_ms=1234,
    )
    message = store.get("orders", 0, 0)
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 0, 0)
    assert (result.topic, result.queue_id, result.queue_offset) == ("orders", 0, 0)
    assert message.physical_offset == result.physical_offset == 0
    assert message.message_id == result.message_id
    assert result.end == message.physical_offset + message.record_bytes
    assert bytes(message) == b"body"
    assert message.tags == "paid"
    assert message.keys == ("k1", "k2")
    assert message.unique_id == "u-1"
    assert message.properties == {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "region": "eu",
        "数量": "8",
        "UNIQ_KEY": "u-1",
    }
    assert (message.flag, message.sys_flag, message.reconsume_times) == (-7, 0, 0)
    assert message.born_timestamp_ms == 1234
    assert before_ms <= message.store_timestamp_ms == result.store_timestamp_ms
    assert message.store_host == ("127.0.0.1", 10911)


@pytest.mark.parametrize("body", [b"", b"x", bytearray(b"array"), memoryview(b"view"), np.frombuffer(b"np", np.uint8)])
def test_bodies_are_bytes_like(store: Store, body: Any) -> None:
    store.append("t", body)
    assert bodies_of(store) == [bytes(body)]


def test_a_message_is_a_body_itself(store: Store) -> None:
    store.append("t", b"again")
    store.append("t", store.get("t", 0, 0))
    assert bodies_of(store) == [b"again", b"again"]


@pytest.mark.parametrize("body", ["text", None, 5, [b"x"]])
def test_other_bodies_are_refused(store: Store, body: Any) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        store.append("t", body)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"bodies": [b"a", None]}, r"bodies\[1\] must be bytes-like, not NoneType"),
        ({"bodies": np.array([b"a", None], dtype=object)}, r"bodies\[1\] must be bytes-like, not NoneType"),
        ({"keys": [None, [5]]}, r"keys\[1\] contains 5, of type int"),
        ({"tags": ["a", 5]}, r"tags\[1\] must be str, bytes or None, not int"),
        ({"properties": [None, 5]}, r"properties\[1\] must be a mapping or None, not int"),
        ({"properties": {"name": None}}, "the property 'name' must be str or bytes, not NoneType"),
        ({"queue": [0, None]}, r"queue\[1\] must be an int, not NoneType"),
        ({"born_timestamps_ms": [0, 1.5]}, r"born_timestamps_ms\[1\] must be an int, not float"),
    ],
)
def test_the_element_at_fault_is_named(store: Store, arguments: dict[str, Any], place: str) -> None:
    with pytest.raises(TypeError, match=place):
        store.append_many("t", **{"bodies": [b"1", b"2"], **arguments})
    with pytest.raises(errors.InvalidArgument, match=r"keys\[1\]: the key 'a b' is empty or holds a space"):
        store.append_many("t", [b"1", b"2"], keys=[None, ["a b"]])
    with pytest.raises(errors.InvalidArgument, match=r"bodies\[1\] cannot be read as bytes"):
        store.append_many("t", [b"1", memoryview(b"abcd")[::2]])
    assert list(store.read()) == []


def test_invalid_numbers_and_mappings_are_named(store: Store) -> None:
    with pytest.raises(TypeError, match="queue must be an int, not str"):
        store.append("t", b"x", queue="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="properties must be a mapping of names to values, not list"):
        store.append("t", b"x", properties=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not str: encode it"):
        store.append("t", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"bodies\[0\] must be bytes-like, not str: encode it"):
        store.append_many("t", ["text"])  # type: ignore[list-item]
    store.append("t", b"x")
    with pytest.raises(TypeError, match="start must be an int, not str"):
        store.read("t", start="5")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="has 1 queue, counted from 0, and no 5"):
        store.append("t", b"x", queue=5)
    assert store.append("t", b"x", queue=np.int64(0)).queue_offset == 1


def test_which_of_a_batch_is_too_large(store: Store) -> None:
    large = b"x" * (int(str(SMALL["maxMessageSize"])) + 1)
    with pytest.raises(errors.MessageTooLarge, match="this is message 1 of the batch, counted from 0") as caught:
        store.append_many("t", [b"1", large])
    assert caught.value.appended == 1
    with pytest.raises(errors.MessageTooLarge) as caught:
        store.append("t", large)
    assert "message" not in str(caught.value)


def test_largest_body(store: Store) -> None:
    limit = int(str(SMALL["maxMessageSize"]))
    store.append("t", b"x" * limit)
    with pytest.raises(errors.MessageTooLarge, match="maxMessageSize"):
        store.append("t", b"x" * (limit + 1))
    assert [len(body) for body in bodies_of(store)] == [limit]


@pytest.mark.parametrize("topic", ["", "a/b", "..", "a\nb", "ü", "x" * 128, "a b", "SCHEDULE_TOPIC_XXXX"])
def test_topics_that_rocketmq_refuses(store: Store, topic: str) -> None:
    with pytest.raises(errors.InvalidTopic):
        store.append(topic, b"x")
    assert store.topics(system=True) == []
    assert list(store.read()) == []


@pytest.mark.parametrize("arguments", [{"tags": "a\x01b"}, {"keys": "a\x02b"}, {"properties": {"a\x01": "b"}}])
def test_separators_are_refused(store: Store, arguments: dict[str, Any]) -> None:
    store.append("t", b"before")
    with pytest.raises(errors.InvalidArgument):
        store.append("t", b"x", **arguments)
    assert bodies_of(store) == [b"before"]


def test_tags_and_keys_are_no_properties(store: Store) -> None:
    with pytest.raises(errors.InvalidArgument, match="argument tags"):
        store.append("t", b"x", properties={"TAGS": "a"})
    with pytest.raises(errors.InvalidArgument, match="holds a space"):
        store.append("t", b"x", keys=["a b"])
    with pytest.raises(errors.MessageTooLarge):
        store.append("t", b"x", properties={"big": "v" * 40_000})
    with pytest.raises(TypeError):
        store.append("t", b"x", properties={"n": 5})  # type: ignore[dict-item]


def test_queues_take_turns(store: Store) -> None:
    store.create_topic("t", queues=3)
    assert [store.append("t", b"x").queue_id for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert store.append("t", b"x", queue=2).queue_offset == 2
    for queue in (3, -1):
        with pytest.raises(errors.InvalidArgument, match="3 queues, counted from 0"):
            store.append("t", b"x", queue=queue)


def test_default_queues(tmp_path: Path) -> None:
    with open_small(tmp_path / "store", default_queues=4) as store:
        assert [store.append("t", b"x").queue_id for _ in range(5)] == [0, 1, 2, 3, 0]
        assert store.topic("t").write_queues == store.topic("t").read_queues == 4


@pytest.mark.parametrize(
    "arguments",
    [{"flag": 1 << 31}, {"flag": -(1 << 31) - 1}, {"born_timestamp_ms": 1 << 63}, {"queue": 1 << 40}, {"queue": -1}],
)
def test_numbers_out_of_range(store: Store, arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        store.append("t", b"x", **arguments)
    many = {name.replace("timestamp_ms", "timestamps_ms"): value for name, value in arguments.items()}
    with pytest.raises(errors.InvalidArgument):
        store.append_many("t", [b"x"], **many)
    assert list(store.read()) == []


def test_light_queues(tmp_path: Path) -> None:
    settings = {**SMALL, "enableLmq": True, "enableMultiDispatch": True}
    for number in range(2):
        with open_small(tmp_path / "store", settings=settings) as store:
            store.append("t", b"%d" % number, properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
            assert bodies_of(store, "%LMQ%a") == bodies_of(store, "%LMQ%b") == [b"%d" % n for n in range(number + 1)]
            with store.consumer("g", "%LMQ%a") as consumer:
                assert [bytes(message) for message in consumer] == [b"%d" % number]
                consumer.commit()
    assert (tmp_path / "store" / "config" / "lmqConsumerOffset.json").exists()
    assert not (tmp_path / "store" / "config" / "consumerOffset.json").exists()


def test_results_compare(store: Store) -> None:
    first, second = store.append("t", b"x"), store.append("t", b"x")
    assert first == first
    assert first != second
    assert len({first, second}) == 2
    assert "t/0@1" in repr(second)


# --- Many messages


def columns(kind: str, values: list[bytes]) -> Any:
    """The same values in another container."""
    width = max(map(len, values))
    return {
        "list": lambda: values,
        "tuple": lambda: tuple(values),
        "generator": lambda: (value for value in values),
        "bytearrays": lambda: [bytearray(value) for value in values],
        "numpy S": lambda: np.array(values, dtype=f"S{width}"),
        "numpy S strided": lambda: np.array([v for value in values for v in (value, b"!")], dtype=f"S{width}")[::2],
        "numpy object": lambda: np.array(values, dtype=object),
        "binary": lambda: pa.array(values, pa.binary()),
        "large_binary": lambda: pa.array(values, pa.large_binary()),
        "string": lambda: pa.array([value.decode() for value in values], pa.string()),
        "large_string": lambda: pa.array([value.decode() for value in values], pa.large_string()),
        "binary_view": lambda: pa.array(values, pa.binary_view()),
        "string_view": lambda: pa.array([value.decode() for value in values], pa.string_view()),
        "dictionary": lambda: pa.array(values, pa.binary()).dictionary_encode(),
        "sliced": lambda: pa.array([b"skipped", *values, b"cut"], pa.binary()).slice(1, len(values)),
        "chunked": lambda: pa.chunked_array(
            [pa.array(values[:2], pa.binary()), pa.array([], pa.binary()), pa.array(values[2:], pa.binary())]
        ),
        "one chunk": lambda: pa.chunked_array([pa.array(values, pa.binary())]),
    }[kind]()


KINDS = [
    "list",
    "tuple",
    "generator",
    "bytearrays",
    "numpy S",
    "numpy S strided",
    "numpy object",
    "binary",
    "large_binary",
    "string",
    "large_string",
    "binary_view",
    "string_view",
    "dictionary",
    "sliced",
    "chunked",
    "one chunk",
]
BODIES = [b"a", b"bb", b"", b"a longer body, over twelve bytes", b"e"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "string" not in kind])
def test_bodies_from_any_container(store: Store, kind: str) -> None:
    result = store.append_many("t", columns(kind, BODIES))
    assert bodies_of(store) == BODIES
    assert len(result) == result.count == len(BODIES)
    assert result.queue_offsets.tolist() == [0, 1, 2, 3, 4]
    assert result.physical_offsets.tolist() == [message.physical_offset for message in store.read("t")]
    assert result.queue_ids.tolist() == [0] * 5
    assert result.queue_id == 0
    assert [one.message_id for one in result] == [message.message_id for message in store.read("t")]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("generator", "bytearrays")])
def test_tags_and_keys_from_any_container(store: Store, kind: str) -> None:
    values = [b"t1", b"t2", b"", b"t1", b"a-tag-of-more-than-twelve"]
    store.append_many("t", BODIES, tags=columns(kind, values), keys=columns(kind, values))
    texts = [value.decode() for value in values]
    assert [message.tags or "" for message in store.read("t")] == texts
    assert [" ".join(message.keys) for message in store.read("t")] == texts
    assert [bytes(message) for message in store.read("t", tags="t1 || t2")] == [b"a", b"bb", BODIES[3]]
    assert [bytes(message) for message in store.find("t", "t1")] == [BODIES[3], b"a"]


@pytest.mark.parametrize("null_of", [pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_nulls_are_no_tags_and_no_bodies(store: Store, null_of: pa.DataType) -> None:
    values = pa.array([b"aa", None, b"cc"], pa.binary()).cast(null_of)
    store.append_many("t", [b"1", b"2", b"3"], tags=values)
    assert [message.tags for message in store.read("t")] == ["aa", None, "cc"]
    with pytest.raises(errors.InvalidArgument, match=r"bodies\[1\] is null"):
        store.append_many("t", values)


def test_nulls_in_dictionaries(store: Store) -> None:
    store.append_many("t", [b"1", b"2", b"3"], tags=pa.array(["x", None, "x"]).dictionary_encode())
    assert [message.tags for message in store.read("t")] == ["x", None, "x"]


def test_fixed_width_keeps_every_byte(store: Store) -> None:
    rows = np.array([[1, 0, 2, 0], [0, 0, 0, 0]], dtype=np.uint8)
    void = np.array([b"a\0\0", b"\0\0c"], dtype="V3")
    records = np.array([(1, 2.0), (3, 4.0)], dtype=[("id", "<i4"), ("price", "<f8")])
    fixed = pa.array([b"x\0", b"\0\0"], pa.binary(2))
    for values in (rows, void, records, fixed, rows[::-1]):
        store.append_many("t", values)
    assert bodies_of(store) == [
        bytes([1, 0, 2, 0]),
        bytes(4),
        b"a\0\0",
        b"\0\0c",
        records[0].tobytes(),
        records[1].tobytes(),
        b"x\0",
        b"\0\0",
        bytes(4),
        bytes([1, 0, 2, 0]),
    ]


@pytest.mark.parametrize(
    "bodies",
    [
        b"one body",
        "text",
        None,
        ["text"],
        [b"x", None],
        np.arange(3),
        np.zeros((2, 2, 2), np.uint8),
        pa.array([1, 2]),
        pa.array([[b"x"]]),
        pa.chunked_array([pa.array([1])]),
    ],
)
def test_other_containers_are_refused(store: Store, bodies: Any) -> None:
    with pytest.raises(TypeError):
        store.append_many("t", bodies)
    assert list(store.read()) == []


def test_one_value_for_all(store: Store) -> None:
    store.append_many("t", [b"1", b"2"], tags="x", keys="k", properties={"p": "v"}, born_timestamps_ms=77)
    for message in store.read("t"):
        assert (message.tags, message.keys, message.properties["p"]) == ("x", ("k",), "v")
        assert message.born_timestamp_ms == 77


def test_a_value_per_message(store: Store) -> None:
    store.append_many(
        "t",
        [b"1", b"2", b"3"],
        tags=["x", None, b"z"],
        keys=[["a", "b"], None, "c d"],
        properties=[{"p": "1"}, None, {"q": b"3"}],
        born_timestamps_ms=np.array([5, 6, 7]),
    )
    messages = list(store.read("t"))
    assert [message.tags for message in messages] == ["x", None, "z"]
    assert [message.keys for message in messages] == [("a", "b"), (), ("c", "d")]
    assert [message.properties.get("p") or message.properties.get("q") for message in messages] == ["1", None, "3"]
    assert [message.born_timestamp_ms for message in messages] == [5, 6, 7]


@pytest.mark.parametrize("name", ["tags", "keys", "properties", "queue", "born_timestamps_ms"])
def test_lengths_must_agree(store: Store, name: str) -> None:
    values: Any = {"properties": [{}], "queue": [0], "born_timestamps_ms": [1]}.get(name, ["x"])
    with pytest.raises(errors.InvalidArgument, match="one length, not 1 and 2"):
        store.append_many("t", [b"1", b"2"], **{name: values})
    assert list(store.read()) == []


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        (np.array(["2026-11-27"] * 2, "M8[ms]"), errors.WrongType, r"born_timestamps_ms\[0\] must be an int"),
        (np.array([[1], [2]]), errors.WrongType, r"born_timestamps_ms\[0\] must be an int, not ndarray"),
        (np.array([1, (1 << 63) + 5], np.uint64), errors.InvalidArgument, r"born_timestamps_ms\[1\] is 9,223,.*,813"),
        ([1 << 64, 1], errors.InvalidArgument, r"born_timestamps_ms\[0\] is 18,446,744,.*: too large"),
        (pa.array([1, (1 << 63) + 5], pa.uint64()), errors.InvalidArgument, r"born_timestamps_ms\[1\] is 9,223,"),
        (pa.array([1, None]), errors.WrongType, r"born_timestamps_ms\[1\] must be an int, not NoneType"),
    ],
)
def test_numbers_that_do_not_fit_are_named(store: Store, numbers: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        store.append_many("t", [b"1", b"2"], born_timestamps_ms=numbers)
    assert list(store.read()) == []


@pytest.mark.parametrize(
    "queue", [[2, 0, 2], (2, 0, 2), np.array([2, 0, 2]), np.array([2, 0, 2], np.uint8), array.array("i", [2, 0, 2])]
)
def test_a_queue_per_message(store: Store, queue: Any) -> None:
    store.create_topic("t", queues=3)
    result = store.append_many("t", [b"1", b"2", b"3"], queue=queue)
    assert result.queue_ids.tolist() == [2, 0, 2]
    assert result.queue_offsets.tolist() == [0, 0, 1]
    assert result.queue_id is None
    assert result[-1].queue_offset == 1
    with pytest.raises(errors.InvalidArgument, match=r"queue\[2\] is 3"):
        store.append_many("t", [b"1", b"2", b"3"], queue=[0, 1, 3])


def test_many_are_dealt_out(store: Store) -> None:
    store.create_topic("t", queues=3)
    assert store.append_many("t", [b"x"] * 4).queue_ids.tolist() == [0, 1, 2, 0]
    assert store.append_many("t", [b"x"] * 2).queue_ids.tolist() == [1, 2]
    assert store.append_many("t", [b"x"] * 2, queue=1).queue_offsets.tolist() == [2, 3]


def test_nothing_is_fine(store: Store) -> None:
    result = store.append_many("t", [])
    assert len(result) == 0
    assert result.queue_offsets.tolist() == []
    assert store.append_many("t", pa.array([], pa.binary())).count == 0
    with pytest.raises(IndexError):
        result[0]


def test_messages_before_a_failure_stay(store: Store) -> None:
    with pytest.raises(errors.MessageTooLarge) as caught:
        store.append_many("t", [b"1", b"2", b"x" * 400_000, b"4"])
    assert caught.value.appended == 2
    assert bodies_of(store) == [b"1", b"2"]
    assert store.append("t", b"5").queue_offset == 2


def test_over_many_segments(store: Store) -> None:
    bodies = [bytes([i % 251]) * 5000 for i in range(1000)]
    result = store.append_many("t", bodies)
    assert bodies_of(store) == bodies
    assert result.physical_offsets[-1] > 4 << 20
    assert len(list((store.path / "commitlog").iterdir())) >= 5


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_waiting_can_be_put_off(tmp_path: Path, flush: str) -> None:
    with open_small(tmp_path / "store", flush=flush) as store:
        result = store.append("t", b"later", wait=False)
        store.wait_durable(result.end)
        assert bodies_of(store) == [b"later"]
        many = store.append_many("t", [b"x"] * 10, wait=False)
        store.wait_durable(many.end)
        assert len(bodies_of(store)) == 11
        store.flush()
        assert store.info().flushed == store.info().log_end == many.end


def test_a_new_store_needs_no_settings(tmp_path: Path) -> None:
    with cometmq.open(tmp_path / "plain") as store:
        assert store.flush_mode is cometmq.FlushMode.SYNC
        assert store.opening().created
        store.append("t", b"x")
        assert store.info().segment_bytes == 1 << 30
    taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "plain").rglob("*"))
    assert taken < 1 << 20


def test_a_list_that_changes_while_it_is_read(store: Store) -> None:
    class Shrinks(list[str]):
        def __iter__(self) -> Iterator[str]:
            keys.clear()
            return iter(["k"])

    keys: list[Any] = [Shrinks(), *["x"] * 100]
    with pytest.raises(RuntimeError, match="changed"):
        store.append_many("t", [b"x"] * 101, keys=keys)
    assert list(store.read()) == []


def test_a_list_may_change_while_the_engine_works(store: Store) -> None:
    """Another thread empties the list again and again; the bodies that were in it are appended."""
    bodies = [b"body"] * 1000
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            bodies[:] = [b"%d" % number for number in range(500)]
            bodies[:] = [b"body"] * 1000

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            result = store.append_many("t", bodies)
            assert len(result) in (500, 1000)
    finally:
        stop.set()
        thread.join()
    for body in bodies_of(store):
        assert body == b"body" or int(body) < 500
