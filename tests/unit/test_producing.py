"""Checks: the fast path of messages writes what the slow path writes, takes nothing that is not plain, and lets go."""

from __future__ import annotations

import gc
import random
import socket
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest

from cometmq._engine import (
    Accumulator,
    BatchFastPath,
    FastPath,
    Gathered,
    Link,
    PendingBatch,
    PendingSend,
    SendRequest,
    UniqueIdCounter,
    decode_properties,
)
from cometmq.client.instance.unique_ids import UniqueIds
from cometmq.client.send.outgoing import SPECIAL_PROPERTIES, OutgoingMessage, encode_message, own_properties
from cometmq.client.send.sending import SendPolicy, SendResult
from cometmq.errors import ConnectionLost, MessageTooLarge
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.command import Command
from support.sends import send_answer

NOW_MS = 1_790_000_000_123
POLICY = SendPolicy(attempts=3)
QUEUE = MessageQueue(topic="t", broker_name="a", queue_id=3)
SHARED: dict[str, Any] = {
    "code": 310,
    "producer_group": "g",
    "topic": "t",
    "queue_id": -1,
    "properties": b"",
    "body": b"",
    "born_timestamp_ms": 0,
}
TEMPLATE = SendRequest(**SHARED)


class Owner:
    """The part of an engine that its sends use."""

    def __init__(self) -> None:
        self.answers: list[tuple[PendingSend, object]] = []
        self.interrupted: list[PendingBatch] = []

    def was_interrupted(self, pending: PendingBatch) -> None:
        self.interrupted.append(pending)

    def answered(self, send: PendingSend, answer: object) -> None:
        self.answers.append((send, answer))

    def require_other_thread(self) -> None:
        """Nobody waits on a loop here."""


class Twin:
    """A lane whose sends are kept, with ids that another counter makes too."""

    def __init__(self, **given: Any) -> None:
        self.owner = Owner()
        self.sent: list[tuple[str, SendRequest, Any, int]] = []
        self.under_way: set[PendingSend] = set()
        self.ids = UniqueIdCounter("0" * 20, lambda now_ms: (0, 2**42))
        self.masters = {"a": "a:1"}
        self.options: dict[str, Any] = {
            "next_queue": lambda: QUEUE,
            "masters": self.masters,
            "under_way": self.under_way,
            "transmit": self.transmit,
            "clock": lambda: 5.0,
            "now_ms": lambda: NOW_MS,
            "blocking": SendPolicy(attempts=2, attempt_timeout_ms=500),
            "asynchronous": POLICY,
            "once": SendPolicy(attempts=1),
            "queue_of": lambda key: MessageQueue(topic="t", broker_name="a", queue_id=len(key)),
            "special": SPECIAL_PROPERTIES,
            "body_bytes_max": 4_095,
            "timeout_ms": 3_000,
        }
        self.lane = FastPath(self.owner, TEMPLATE, self.ids, **({"links": None} | self.options | given))

    def transmit(self, address: str, request: SendRequest, on_answer: Any, *, timeout_ms: int) -> None:
        self.sent.append((address, request, on_answer, timeout_ms))


def accumulator(**given: Any) -> tuple[Accumulator, list[PendingBatch], list[PendingBatch]]:
    fresh: list[PendingBatch] = []
    ready: list[PendingBatch] = []
    options: dict[str, Any] = {"batch_max_bytes": 1_000, "total_max_bytes": 10_000, "message_max_bytes": 1_500} | given
    made = Accumulator(
        Owner(),
        UniqueIdCounter("0" * 20, lambda now_ms: (0, 2**42)),
        delay_ms=10,
        on_fresh=fresh.append,
        on_ready=ready.append,
        clock=lambda: 5.0,
        now_ms=lambda: NOW_MS,
        **options,
    )
    return made, fresh, ready


def texts(chance: random.Random) -> str | None:
    kinds = ["", "a", "ä", "中", "\U0001f600", " ", "%", "0"]
    return chance.choice([None, "", "".join(chance.choices(kinds, k=chance.randrange(40)))])


def names(chance: random.Random) -> dict[str, str] | None:
    """Properties of a message, or none."""
    if chance.random() < 0.4:
        return None
    return {"p" + (texts(chance) or ""): texts(chance) or "" for _ in range(chance.randrange(4))}


def test_a_plain_message_is_written_as_the_long_way_writes_it() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    twin = Twin()
    other = UniqueIdCounter("0" * 20, lambda now_ms: (0, 2**42))
    for _ in range(300):
        body = chance.randbytes(chance.randint(1, 300))
        tags = (texts(chance) or "").strip() or None
        keys, sharding_key, properties = texts(chance), texts(chance), names(chance)
        send = twin.lane.send(body, tags, keys, sharding_key, properties, False)
        assert send is not None
        address, request, on_answer, timeout_ms = twin.sent.pop()
        message = OutgoingMessage(body, tags, keys, properties, sharding_key=sharding_key)
        queue_id = 3 if sharding_key is None else len(sharding_key)
        unique_id = other.next(NOW_MS)
        assert request.properties == encode_message(message).properties + own_properties(unique_id)
        assert send.unique_id == unique_id
        assert (request.body, request.born_timestamp_ms, request.sys_flag, request.flag) == (body, NOW_MS, 0, 0)
        assert (request.code, request.producer_group, request.topic) == (310, "g", "t")
        assert (request.broker_name, request.queue_id, send.is_fixed) == ("a", queue_id, sharding_key is not None)
        assert (address, timeout_ms, on_answer) == ("a:1", 3_000, send)
        assert (send.began_s, send.deadline_s, send.attempts, send.queue.queue_id) == (5.0, 8.0, 1, queue_id)


@pytest.mark.parametrize("tags", ["a||b", "||", " a", "a\t", "a|b"])
def test_a_tag_that_needs_a_second_look_goes_the_long_way(tags: str) -> None:
    assert Twin().lane.send(b"x", tags, None, None, None, False) is None


def records_of(batch: bytes) -> list[tuple[bytes, bytes, int]]:
    """Read a batch's bytes, by the specification."""
    found = []
    at = 0
    while at < len(batch):
        size, magic, crc, flag, body_bytes = struct.unpack_from(">iiiii", batch, at)
        body = batch[at + 20 : at + 20 + body_bytes]
        (stored_bytes,) = struct.unpack_from(">h", batch, at + 20 + body_bytes)
        stored = batch[at + 22 + body_bytes : at + size]
        assert (magic, crc, len(stored)) == (0, 0, stored_bytes)
        found.append((body, stored, flag))
        at += size
    return found


def test_a_pending_batch_encodes_its_messages() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    made, _, ready = accumulator(batch_max_bytes=100_000, total_max_bytes=10**8, message_max_bytes=120_000)
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=4_095)
    other = UniqueIdCounter("0" * 20, lambda now_ms: (0, 2**42))
    expected: dict[tuple[str, bool], list[tuple[bytes, bytes, int]]] = {}
    futures: dict[tuple[str, bool], list[Gathered]] = {}
    for _ in range(1_000):
        body = chance.randbytes(chance.randint(1, 300))
        tags, keys, flag = chance.choice([None, "", "a", "bb"]), texts(chance), chance.randint(-(2**31), 2**31 - 1)
        wait_stored = chance.random() < 0.8
        properties = names(chance)
        stored = encode_message(OutgoingMessage(body, tags, keys, properties)).properties
        if chance.random() < 0.5:
            wait_stored, flag = True, 0
            future = lane.send(body, tags, keys, None, properties, False)
        else:
            future = made.add("t", None, tags, body, stored, flag=flag, wait_stored=wait_stored)
        assert future is not None
        own = own_properties(other.next(NOW_MS), wait_stored=wait_stored)
        expected.setdefault((tags or "", wait_stored), []).append((body, stored + own, flag))
        futures.setdefault((tags or "", wait_stored), []).append(future)
    got: dict[tuple[str, bool], list[tuple[bytes, bytes, int]]] = {}
    for pending in [*ready, *made.take_all()]:
        ids, count, size = pending.unique_ids, len(pending), pending.size_bytes
        batch = pending.take_records()
        assert size == len(batch)
        assert pending.size_bytes == 0
        records = records_of(batch)
        assert [decode_properties(stored)["UNIQ_KEY"] for _, stored, _ in records] == ids
        assert len(records) == count
        got.setdefault((pending.tags or "", pending.wait_stored), []).extend(records)
    assert got == expected
    for key, many in futures.items():
        assert [one.unique_id for one in many] == [decode_properties(stored)["UNIQ_KEY"] for _, stored, _ in got[key]]
    assert made.held_bytes == 0


class Text(str):
    """Not exactly a text."""


NOT_PLAIN: list[tuple[object, object, object]] = [
    ("text", None, None),
    (None, None, None),
    (b"", None, None),
    (bytearray(b"x"), None, None),
    (memoryview(b"x"), None, None),
    (b"x" * 4_096, None, None),
    (b"x", b"tag", None),
    (b"x", 7, None),
    (b"x", None, ["a", "b"]),
    (b"x", Text("a"), None),
    (b"x", "a\x01b", None),
    (b"x", None, "a\x02"),
    (b"x", "\ud800", None),
    (b"x", None, "k" * 2_049),
    (b"x", "t" * 1_100, "k" * 1_100),
    (b"x", "t" * 2_043, None),
]


@pytest.mark.parametrize(("body", "tags", "keys"), NOT_PLAIN)
def test_other_messages_are_left_to_the_slow_path(body: object, tags: object, keys: object) -> None:
    twin = Twin()
    assert twin.lane.send(body, tags, keys, None, None, False) is None
    assert not twin.lane.send_oneway(body, tags, keys, None, None)
    assert (twin.sent, twin.under_way) == ([], set())
    made, _, _ = accumulator(batch_max_bytes=10**6, total_max_bytes=10**7, message_max_bytes=10**6)
    assert (
        BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=4_095).send(
            body, tags, keys, None, None, False
        )
        is None
    )
    assert made.held_bytes == 0


NOT_PLAIN_PROPERTIES: list[object] = [
    [("a", "b")],
    MappingProxyType({"a": "b"}),
    {"a": 1},
    {"a": None},
    {"a": b"b"},
    {1: "b"},
    {Text("a"): "b"},
    {"a": Text("b")},
    {"": "b"},
    {"a\x01": "b"},
    {"a": "\x02"},
    {"\ud800": "b"},
    {"a": "\ud800"},
    {"a" * 2_049: "b"},
    {"a": "b" * 2_046},
    {str(at): "b" * 100 for at in range(20)},
    {"__RMQ.TRANSIENT.a": "b"},
    *({name: "1"} for name in sorted(SPECIAL_PROPERTIES)),
]


@pytest.mark.parametrize("properties", NOT_PLAIN_PROPERTIES)
def test_properties_that_are_not_plain_are_left_to_the_long_way(properties: object) -> None:
    twin = Twin()
    assert twin.lane.send(b"x", None, None, None, properties, False) is None
    assert not twin.lane.send_oneway(b"x", None, None, None, properties)
    made, _, _ = accumulator(batch_max_bytes=10**6, total_max_bytes=10**7, message_max_bytes=10**6)
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=4_095)
    assert lane.send(b"x", None, None, None, properties, False) is None
    assert (twin.sent, made.held_bytes) == ([], 0)


@pytest.mark.parametrize("sharding_key", [7, b"k", Text("k"), "\ud800", "a\x01b", "k" * 2_049])
def test_sharding_keys_that_are_not_plain_are_left_to_the_long_way(sharding_key: object) -> None:
    twin = Twin()
    assert twin.lane.send(b"x", None, None, sharding_key, None, False) is None
    assert not twin.lane.send_oneway(b"x", None, None, sharding_key, None)


def test_a_sharding_key_has_its_queue_and_goes_alone() -> None:
    twin = Twin()
    send = twin.lane.send(b"x", None, None, "four", None, True)
    assert send is not None
    assert (send.is_fixed, send.queue.queue_id, send.policy.attempts, twin.sent[0][3]) == (True, 4, 1, 3_000)
    assert twin.lane.send_oneway(b"x", None, None, "four", None)
    assert [request.queue_id for _, request, _, _ in twin.sent] == [4, 4]
    made, _, _ = accumulator()
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=100)
    assert lane.send(b"x", None, None, "four", None, False) is None


def test_the_longest_plain_texts() -> None:
    # TAGS, KEYS and what divides them take 12 of the 2,048 bytes.
    twin = Twin()
    assert twin.lane.send(b"x" * 4_095, "t" * 1_000, "k" * 1_036, None, None, False) is not None
    assert twin.lane.send(b"x", "t" * 1_000, "k" * 1_037, None, None, False) is None


def test_a_broker_without_address_is_left_to_the_long_way() -> None:
    twin = Twin()
    twin.masters.clear()
    assert twin.lane.send(b"x", None, None, None, None, False) is None
    assert not twin.lane.send_oneway(b"x", None, None, None, None)


def test_awaited_sends_have_their_own_limit_and_oneway_no_future() -> None:
    twin = Twin()
    send = twin.lane.send(b"x", None, None, None, None, True)
    assert send is not None
    assert send.policy.attempts == 2
    assert twin.lane.send_oneway(b"y", "t", None, None, None)
    assert [(on_answer, timeout_ms) for _, _, on_answer, timeout_ms in twin.sent] == [(send, 500), (None, 3_000)]


def test_stored_ends_a_send_and_anything_else_goes_to_its_engine() -> None:
    twin = Twin()
    good, bad = (twin.lane.send(b"x", None, None, None, None, False) for _ in range(2))
    assert good is not None
    assert bad is not None
    assert twin.under_way == {good, bad}
    called: list[Any] = []
    good.add_done_callback(called.append)
    good(send_answer(queue_id=3, queue_offset=9))
    assert (good.done(), good.request, called, twin.owner.answers) == (True, None, [good], [])
    assert (good.result().queue_offset, good.result().unique_id, good.result().queue) == (9, good.unique_id, QUEUE)
    assert good.result() is good.result()
    lost = ConnectionLost("gone")
    bad(lost)
    assert (bad.done(), bad.brokers, twin.owner.answers) == (False, ["a"], [(bad, lost)])
    assert twin.under_way == {bad}
    # From now on every answer is the engine's.
    bad(send_answer())
    assert len(twin.owner.answers) == 2


def test_rejected_message_is_not_in_flight() -> None:
    twin = Twin(transmit=lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        twin.lane.send(b"x", None, None, None, None, False)
    assert twin.under_way == set()


class Wires:
    """A link over a socket pair, in a table as a network has it."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.failures: list[Exception] = []
        self.woken = 0
        self.link = Link(
            self.near.detach(),
            format=1,
            wake=self.wake,
            on_request=self.failures.append,
            on_go_away=lambda *_: None,
            on_failure=self.failures.append,
        )
        self.links = {"a:1": self.link}

    def wake(self) -> None:
        self.woken += 1

    def close(self) -> None:
        self.link.close()
        self.far.close()


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


def test_a_connection_that_is_there_is_written_to_at_once(wires: Wires) -> None:
    twin = Twin(links=wires.links)
    send = twin.lane.send(b"body", "t", None, None, None, False)
    assert send is not None
    assert twin.lane.send_oneway(b"once", None, None, None, None)
    assert (twin.sent, wires.link.waiting) == ([], 1)
    frames = wires.far.recv(65_536)
    wires.link.flush()
    length = int.from_bytes(frames[:4], "big") + 4
    command = Command.decode(frames[:length])
    assert (command.code, command.fields["b"], command.body) == (310, "t", b"body")
    wires.far.send(command.response(0, fields={"msgId": "AB", "queueId": "3", "queueOffset": "8"}).encode())
    assert wires.link.receive()
    assert (send.result().queue_offset, twin.under_way, wires.failures) == (8, set(), [])


def test_a_connection_that_cannot_be_written_to_is_the_networks_affair(wires: Wires) -> None:
    twin = Twin(links=wires.links)
    # No frame can hold such a topic.
    lane = FastPath(
        twin.owner,
        SendRequest(**(SHARED | {"topic": "\ud800"})),
        twin.ids,
        links=wires.links,
        **(twin.options | {"transmit": twin.transmit}),
    )
    assert lane.send(b"x", None, None, None, None, False) is not None
    wires.link.close()
    assert twin.lane.send(b"x", None, None, None, None, False) is not None
    wires.links.clear()
    assert twin.lane.send_oneway(b"x", None, None, None, None)
    assert len(twin.sent) == 3


def part(made: Accumulator, body_bytes: int, **given: Any) -> Gathered | None:
    """Add a message that takes so many bytes of a batch."""
    options = {"topic": "t", "queue": None, "tags": None} | given
    return made.add(**options, body=b"x" * (body_bytes - 22 - 52), stored=b"")


def test_a_batch_beyond_its_size_is_sent() -> None:
    made, fresh, ready = accumulator()
    part(made, 600)
    assert (len(fresh), ready, made.first_due_s) == (1, [], 5.010)
    part(made, 400)
    assert ready == []
    part(made, 100)
    assert ready == fresh
    assert (ready[0].size_bytes, len(ready[0]), made.held_bytes, made.first_due_s) == (1_100, 3, 0, None)
    assert made.take_all() == []
    assert repr(ready[0]) == "PendingBatch(t, 3 messages, 1,100 bytes)"
    assert repr(made) == "Accumulator(batches: 0, 0 bytes)"


def test_a_batch_is_sent_before_it_exceeds_the_broker_limit() -> None:
    made, fresh, ready = accumulator()
    part(made, 900)
    part(made, 900)
    assert ready == fresh[:1]
    assert made.take_all() == fresh[1:]


def test_messages_beyond_a_limit_go_alone() -> None:
    made, _, _ = accumulator(total_max_bytes=1_200)
    assert part(made, 1_001) is None
    assert part(made, 900) is not None
    assert part(made, 301, tags="a") is None
    assert part(made, 300, tags="a") is not None
    with pytest.raises(MessageTooLarge, match="properties"):
        made.add("t", None, None, b"x", b"x" * 32_704)


def test_messages_are_batched_by_topic_queue_tags_and_wait() -> None:
    made, fresh, _ = accumulator()
    for _ in range(2):
        part(made, 100)
        part(made, 100, topic="u")
        part(made, 100, queue=MessageQueue(topic="t", broker_name="a", queue_id=0))
        part(made, 100, tags="x")
        part(made, 100, wait_stored=False)
    taken = made.take_all()
    assert taken == fresh
    assert [(one.topic, one.queue and one.queue.broker_name, one.tags, one.wait_stored) for one in taken] == [
        ("t", None, None, True),
        ("u", None, None, True),
        ("t", "a", None, True),
        ("t", None, "x", True),
        ("t", None, None, False),
    ]
    assert all(len(pending) == 2 for pending in taken)


def test_due_batches_are_taken() -> None:
    made, fresh, _ = accumulator()
    part(made, 100)
    assert made.take_due(5.009) == []
    assert made.take_due(5.010) == fresh
    assert made.take_due(5.010) == []


def test_messages_are_kept_where_somebody_is_to_see_them() -> None:
    made, fresh, _ = accumulator(keeps_messages=True)
    part(made, 100, message="one", is_awaited=True)
    part(made, 100, message="two")
    assert (fresh[0].messages, fresh[0].is_awaited) == (["one", "two"], True)
    others, began, _ = accumulator()
    part(others, 100, message="one")
    assert (began[0].messages, began[0].is_awaited) == (None, False)


def shipped(made: Accumulator) -> PendingSend:
    (pending,) = made.take_all()
    send = pending.future
    request = TEMPLATE.message("a", 3, b"UNIQ_KEY\x01AB\x02", pending.take_records(), NOW_MS)
    send.begin(request, None, POLICY, began_s=5.0, timeout_ms=3_000)
    send.queue = QUEUE
    return send


@pytest.mark.parametrize("is_short", [False, True])
def test_each_sender_gets_its_part(is_short: bool) -> None:
    made, _, _ = accumulator()
    futures = [part(made, 100) for _ in range(3)]
    send = shipped(made)
    called: list[Any] = []
    assert not any(one.done() for one in futures if one is not None)
    for one in futures:
        assert one is not None
        one.add_done_callback(called.append)
    answer = send_answer(queue_id=3, queue_offset=40, message_id="M0,M1,M2")
    if is_short:
        send.take_fast_path(set())
        send(answer)
    else:
        send.set_result(SendResult(answer, QUEUE, send.unique_id))
    assert send.unique_id == "AB"
    assert called == futures
    results = [one.result() for one in futures if one is not None]
    assert [(one.queue_offset, one.offset_message_id) for one in results] == [(40, "M0"), (41, "M1"), (42, "M2")]
    assert [one.unique_id for one in results] == [one.unique_id for one in futures if one is not None]
    assert [int(one.message_id[-4:], 16) for one in results] == [0, 1, 2]


def test_each_sender_gets_a_failure() -> None:
    made, _, _ = accumulator()
    one = part(made, 100)
    assert one is not None
    waited: list[object] = []
    thread = threading.Thread(target=lambda: waited.append(one.exception(30)))
    thread.start()
    shipped(made).set_error(ConnectionLost("gone"))
    thread.join(30)
    assert isinstance(waited[0], ConnectionLost)
    with pytest.raises(ConnectionLost):
        one.result()
    with pytest.raises(TypeError, match="batch is"):
        one.set_result(None)
    with pytest.raises(TypeError, match="batch is"):
        one.set_error(ConnectionLost("?"))


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(TypeError, match="Accumulator"):
        PendingBatch()
    with pytest.raises(TypeError, match="Accumulator"):
        Gathered()
    with pytest.raises(ValueError, match="20 digits, not 3"):
        UniqueIdCounter("ABC", lambda now_ms: (0, 1))


def test_ctrl_c_loses_no_batch() -> None:
    """Others may wait for messages of a batch that one thread begins, or sends away."""
    told: list[str] = []

    def interrupted_once(pending: PendingBatch) -> None:
        told.append(pending.topic)
        if len(told) == 1:
            raise KeyboardInterrupt

    owner = Owner()
    made = Accumulator(
        owner,
        UniqueIdCounter("0" * 20, lambda now_ms: (0, 2**42)),
        batch_max_bytes=1_000,
        total_max_bytes=10_000,
        message_max_bytes=1_500,
        delay_ms=10,
        on_fresh=interrupted_once,
        on_ready=interrupted_once,
        clock=lambda: 5.0,
    )
    with pytest.raises(KeyboardInterrupt):
        made.add("t", None, None, b"x" * 900, b"")
    assert told == ["t", "t"]
    told.clear()
    with pytest.raises(KeyboardInterrupt):
        made.add("t", None, None, b"x" * 200, b"")
    assert [len(pending) for pending in owner.interrupted] == [2]
    assert made.take_all() == []


def test_threads_lose_and_mix_nothing() -> None:
    made, _, ready = accumulator(total_max_bytes=10**8)
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=100)
    tags = ["a", "b", None]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(thread: int) -> None:
        for at in range(3_000):
            tag = tags[at % 3]
            assert lane.send(b"%s %d %d" % ((tag or "").encode(), thread, at), tag, None, None, None, False) is not None

    try:
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    found: list[bytes] = []
    ids: list[str] = []
    for pending in [*ready, *made.take_all()]:
        ids += pending.unique_ids
        for body, stored, _ in records_of(pending.take_records()):
            assert decode_properties(stored).get("TAGS", "").encode() == body.split(b" ")[0]
            found.append(body)
    assert sorted(found) == sorted(
        b"%s %d %d" % ((tags[at % 3] or "").encode(), thread, at) for thread in range(4) for at in range(3_000)
    )
    assert len(set(ids)) == 12_000


def spend(count: int) -> None:
    twin = Twin()
    made, _, ready = accumulator(total_max_bytes=10**8)
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=100)
    answer = send_answer()
    for at in range(count):
        send = twin.lane.send(b"%d" % at, "tag", "keys", None, None, False)
        assert send is not None
        twin.sent.clear()
        send(answer if at % 2 else ConnectionLost("gone"))
        twin.owner.answers.clear()
        twin.under_way.clear()
        future = lane.send(b"%d" % at, "tag" * (at % 2), "keys", None, None, False)
        assert future is not None
        assert lane.send(b"", None, None, None, None, False) is None
        future.add_done_callback(lambda one: None)
        for pending in ready:
            pending.take_records()
            pending.future.set_error(ConnectionLost("gone"))
        ready.clear()
    made.take_all()


def test_nothing_is_left_behind() -> None:
    spend(2_000)
    gc.collect()
    tracemalloc.start()
    try:
        spend(2_000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            spend(2_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000  # 6,000 sends of each kind: a few bytes of one would be more


def held(make: Callable[[], object]) -> int:
    """How many references to a body are left once what was made is gone."""
    before = sys.getrefcount(BODY)
    kept = make()
    assert sys.getrefcount(BODY) >= before
    del kept
    gc.collect()
    return sys.getrefcount(BODY) - before


BODY = bytes(range(100))


def test_bodies_are_let_go() -> None:
    made, _, _ = accumulator()
    lane = BatchFastPath(made, "t", special=SPECIAL_PROPERTIES, body_bytes_max=100)
    assert held(lambda: Twin().lane.send(BODY, None, None, None, None, False)) == 0
    # A batch has a copy, and keeps nothing of what it was made of.
    assert held(lambda: lane.send(BODY, "t", "k", None, None, False)) == 0
    assert held(lambda: lane.send(BODY, "\ud800", None, None, None, False)) == 0


def test_unique_ids_count_on() -> None:
    ids = UniqueIds()
    one, other = ids.next(NOW_MS), ids.next(NOW_MS)
    assert (one[:28], int(one[28:], 16) + 1) == (other[:28], int(other[28:], 16))
