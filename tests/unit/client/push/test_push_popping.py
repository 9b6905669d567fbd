"""Checks: push consumers whose brokers have them pop, on virtual time: listeners that fail, hang and are late; modes
that change while everything runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.instance.hooks import Interceptor
from cometmq.client.push.listener_workers import ListenerSpec
from cometmq.client.push.listeners import Outcome
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.push.push_popping import may_pop
from cometmq.client.settings import PushSettings
from cometmq.remoting.bodies.assignments import MessageRequestMode
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeBroker, FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

POP, PULL = MessageRequestMode.POP, MessageRequestMode.PULL
Behaviour = Callable[["ReceivedMessage"], Awaitable[Outcome | None]]


async def _take(message: ReceivedMessage) -> Outcome | None:
    return None


class Scene:
    """A cluster with topic T, which group g pops, and members of it."""

    def __init__(self, loop: VirtualLoop, *, brokers: int = 1) -> None:
        self.loop = loop
        self.cluster = FakeCluster(loop, brokers=brokers)
        for broker in self.cluster.brokers:
            broker.create("T", 2)
        self.set_mode(POP)
        self.sent = 0
        self.calls: list[tuple[int, float, ReceivedMessage]] = []
        self.handled: set[bytes] = set()
        self.made = 0

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.brokers[0]

    def set_mode(self, mode: MessageRequestMode) -> None:
        for broker in self.cluster.brokers:
            broker.pops.modes["T"] = mode

    def send(self, count: int) -> None:
        for _ in range(count):
            broker = self.cluster.brokers[self.sent % len(self.cluster.brokers)]
            broker.append("T", self.sent % 2, b"%d" % self.sent)
            self.sent += 1

    @property
    def all_bodies(self) -> set[bytes]:
        return {b"%d" % number for number in range(self.sent)}

    @property
    def acked(self) -> list[bytes]:
        return [body for broker in self.cluster.brokers for body in broker.pops.acked]

    @property
    def hidden(self) -> int:
        return sum(len(broker.pops.hidden) for broker in self.cluster.brokers)

    async def join(
        self, behave: Behaviour = _take, *, spec: Any = None, interceptors: Sequence[Interceptor] = (), **options: Any
    ) -> PushEngine:
        self.made += 1
        number = self.made

        async def listener(message: ReceivedMessage) -> Outcome | None:
            self.calls.append((number, self.loop.time(), message))
            outcome = await behave(message)
            if outcome in (None, Outcome.SUCCESS):
                self.handled.add(message.body_bytes)
            return outcome

        given = {
            "name_servers": ("ns:9876",),
            "group": "g",
            "client_ip": f"10.0.0.{number}",
            "client_rebalance": False,
            "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **options,
        }
        engine = PushEngine(
            PushSettings(**given),
            ListenerSpec(function=listener, **(spec or {})),
            expressions={"T": (None, "TAG")},
            network_factory=self.cluster.factory,
            interceptors=interceptors,
            now_ms=self.loop.now_ms,
        )
        await engine.start()
        return engine


def run(main: Callable[[Scene], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def of(loop: VirtualLoop) -> None:
        await main(Scene(loop, **options))

    run_virtual(of)


def test_filtered_messages_are_acknowledged_unseen() -> None:
    async def main(scene: Scene) -> None:
        scene.send(10)
        interceptor = Interceptor(keep_message=lambda message: int(message.body_bytes) < 3)
        engine = await scene.join(interceptors=[interceptor])
        await asyncio.sleep(5)
        assert scene.handled == {b"0", b"1", b"2"}
        assert sorted(scene.acked) == sorted(scene.all_bodies)
        assert len(scene.calls) == 3
        await engine.close()

    run(main)


def test_popped_messages_are_consumed_and_acknowledged() -> None:
    """Promises 99, 103."""

    async def main(scene: Scene) -> None:
        scene.send(100)
        engine = await scene.join()
        await asyncio.sleep(5)
        assert scene.handled == scene.all_bodies
        assert sorted(scene.acked) == sorted(scene.all_bodies)
        assert len(scene.calls) == 100
        assert scene.hidden == 0
        assert {(queue.topic, queue.broker_name, queue.queue_id) for queue in engine.queues} == {
            ("T", "b0", -1),
            ("T", "b1", -1),
            ("%RETRY%g", "b0", 0),
            ("%RETRY%g", "b1", 0),
        }
        scene.send(1)
        await asyncio.sleep(0.1)
        assert len(scene.handled) == 101, "a held pop is answered at once"
        info = engine.running_info()
        popped = info.pop_queues[MessageQueue(topic="T", broker_name="b0", queue_id=-1)]
        assert (popped.wait_ack_count, popped.dropped) == (0, False)
        figures = info.statuses["T"]
        assert figures.pull_tps == pytest.approx(figures.consume_ok_tps)
        assert figures.pull_tps > 0
        assert figures.pull_rt_ms > 0
        asked = scene.cluster.asked(RequestCode.POP_MESSAGE)[0].fields
        assert (asked["invisibleTime"], asked["pollTime"], asked["maxMsgNums"]) == ("60000", "15000", "32")
        assert not [one for one in scene.cluster.asked(RequestCode.PULL_MESSAGE) if one.fields["topic"] == "T"]
        await engine.close()

    run(main, brokers=2)


def test_failed_message_is_redelivered_with_growing_delays() -> None:
    """Promise 101."""

    async def main(scene: Scene) -> None:
        scene.send(2)

        async def fail(message: ReceivedMessage) -> Outcome | None:
            if message.body_bytes == b"0" and message.reconsume_times < 3:
                raise RuntimeError("not yet")
            return None

        engine = await scene.join(fail)
        await asyncio.sleep(200)
        tries = [(at, message) for _, at, message in scene.calls if message.body_bytes == b"0"]
        assert [message.reconsume_times for _, message in tries] == [0, 1, 2, 3]
        gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(tries)]
        assert [round(gap) for gap in gaps] == [10, 30, 60]
        assert {message.topic for _, message in tries} == {"T"}
        assert sorted(scene.acked) == [b"0", b"1"]
        await engine.close()

    run(main)


def test_a_listener_chooses_when_or_gives_up() -> None:
    async def main(scene: Scene) -> None:
        scene.send(2)

        async def choose(message: ReceivedMessage) -> Outcome | None:
            if message.reconsume_times:
                return None
            return Outcome.retry(delay_level=2) if message.body_bytes == b"0" else Outcome.DEAD_LETTER

        engine = await scene.join(choose)
        await asyncio.sleep(100)
        (_, first, _), (_, second, _) = [call for call in scene.calls if call[2].body_bytes == b"0"]
        assert round(second - first) == 60
        assert [record.body for record in scene.broker.topics["%DLQ%g"][0]] == [b"1"]
        assert sorted(scene.acked) == [b"0", b"1"]
        await engine.close()

    run(main)


def test_a_batch_that_is_taken_in_part() -> None:
    async def main(scene: Scene) -> None:
        scene.send(6)

        async def half(messages: Any) -> Any:
            return [
                Outcome.RETRY if message.body_bytes == b"3" and not message.reconsume_times else None
                for message in messages
            ]

        engine = PushEngine(
            PushSettings(
                name_servers=("ns:9876",),
                group="g",
                client_rebalance=False,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                consume_message_batch_max_size=4,
            ),
            ListenerSpec(function=half, batch=True),
            expressions={"T": (None, "TAG")},
            network_factory=scene.cluster.factory,
            now_ms=scene.loop.now_ms,
        )
        await engine.start()
        await asyncio.sleep(3)
        assert sorted(scene.acked) == [b"0", b"1", b"2", b"4", b"5"]
        await asyncio.sleep(12)
        assert sorted(scene.acked) == sorted(scene.all_bodies)
        await engine.close()

    run(main)


def test_a_member_that_hangs_holds_up_nobody() -> None:
    """The article's point: the hanging member's messages are redelivered to the others, and nothing waits behind it."""

    async def main(scene: Scene) -> None:
        never = asyncio.Event()

        async def hang(message: ReceivedMessage) -> Outcome | None:
            await never.wait()
            return None

        hanging = await scene.join(hang, consume_thread_max=4, consume_thread_min=4)
        await asyncio.sleep(1)
        scene.send(40)
        await asyncio.sleep(1)
        helper = await scene.join()
        scene.send(40)
        await asyncio.sleep(300)
        assert scene.handled == scene.all_bodies
        assert {number for number, _, message in scene.calls if message.body_bytes in scene.handled} == {1, 2}
        assert len([call for call in scene.calls if call[0] == 1]) == 4, "parts that are late are not begun"
        await helper.close()
        never.set()
        await hanging.close()

    run(main)


def test_a_listener_that_is_late_acknowledges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(scene: Scene) -> None:
        scene.send(1)

        async def slow(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(15 if message.reconsume_times == 0 else 1)
            return None

        engine = await scene.join(slow, pop_invisible_time_ms=10_000)
        await asyncio.sleep(30)
        assert [message.reconsume_times for _, _, message in scene.calls] == [0, 1]
        assert len(scene.cluster.asked(RequestCode.ACK_MESSAGE)) == 1
        (queue,) = [queue for queue in engine.queues if queue.queue_id == -1]
        assert engine.running_info().pop_queues[queue].wait_ack_count == 0
        await engine.close()

    run(main)
    (told,) = [one.getMessage() for one in caplog.records if "longer than" in one.msg]
    assert "took longer than the invisible time (10 s) for 1 message of T at" in told
    assert "pop_extend=True" in told


def test_failure_is_logged_with_the_queue_of_the_message(caplog: pytest.LogCaptureFixture) -> None:
    async def main(scene: Scene) -> None:
        scene.send(2)

        async def fail(message: ReceivedMessage) -> Outcome | None:
            if message.queue_id == 1:
                raise ValueError("not this one")
            return None

        engine = await scene.join(fail)
        await asyncio.sleep(2)
        assert -1 in [queue.queue_id for queue in engine.queues]
        await engine.close()

    run(main)
    (told,) = [one.getMessage() for one in caplog.records if "the listener failed with" in one.msg]
    assert "from offset 0 of MessageQueue(topic='T'" in told
    assert "queue_id=1)" in told


@pytest.mark.parametrize("fails", [False, True])
def test_message_in_a_listener_may_stay_invisible_for_its_whole_time(fails: bool) -> None:
    async def main(scene: Scene) -> None:
        scene.send(3)

        async def slow(message: ReceivedMessage) -> Outcome | None:
            if message.body_bytes == b"1" and not message.reconsume_times:
                await asyncio.sleep(100)
                return Outcome.RETRY if fails else None
            return None

        engine = await scene.join(slow, pop_invisible_time_ms=10_000, pop_extend=True)
        other = await scene.join()
        await asyncio.sleep(95)
        assert len(scene.calls) == 3, "nobody else gets it meanwhile"
        assert scene.hidden == 1
        await asyncio.sleep(30)
        assert len(scene.calls) == (4 if fails else 3)
        assert sorted(scene.acked) == [b"0", b"1", b"2"]
        asked = len(scene.cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        assert 15 < asked < 30
        await asyncio.sleep(60)
        assert len(scene.cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == asked
        await engine.close()
        await other.close()

    run(main)


def test_message_that_waited_for_a_listener_stays_invisible() -> None:
    async def main(scene: Scene) -> None:
        scene.send(2)

        async def slow(message: ReceivedMessage) -> None:
            await asyncio.sleep(6 if len(scene.calls) == 1 else 60)

        engine = await scene.join(
            slow, pop_invisible_time_ms=10_000, pop_extend=True, consume_thread_min=1, consume_thread_max=1
        )
        other = await scene.join()
        await asyncio.sleep(100)
        assert [number for number, _, _ in scene.calls] == [1, 1], "nobody else gets it meanwhile"
        assert sorted(scene.acked) == [b"0", b"1"]
        await engine.close()
        await other.close()

    run(main)


def test_a_consumer_that_is_closed_hides_nothing_any_longer() -> None:
    async def main(scene: Scene) -> None:
        scene.send(1)
        never = asyncio.Event()

        async def hang(message: ReceivedMessage) -> Outcome | None:
            await never.wait()
            return None

        engine = await scene.join(hang, pop_invisible_time_ms=10_000, pop_extend=True)
        await asyncio.sleep(30)
        assert scene.hidden == 1
        await engine.close(timeout_ms=5_000)
        other = await scene.join()
        await asyncio.sleep(20)
        assert scene.handled == {b"0"}
        await other.close()

    run(main)


def test_pops_wait_while_too_much_is_unfinished() -> None:
    async def main(scene: Scene) -> None:
        room = asyncio.Event()
        scene.send(500)

        async def wait(message: ReceivedMessage) -> Outcome | None:
            await room.wait()
            return None

        engine = await scene.join(wait)
        await asyncio.sleep(10)
        assert 96 < scene.hidden <= 128
        room.set()
        await asyncio.sleep(10)
        assert scene.handled == scene.all_bodies
        await engine.close()

    run(main)


def test_a_message_tried_too_often_is_a_dead_letter() -> None:
    async def main(scene: Scene) -> None:
        async def fail(message: ReceivedMessage) -> Outcome | None:
            return Outcome.RETRY

        scene.broker.append("T", 0, b"tired", reconsume_times=17)
        old = scene.broker.append("T", 0, b"old", reconsume_times=16)
        old.born_ms -= 5 * 3_600_000
        scene.broker.append("T", 0, b"young", reconsume_times=16)
        engine = await scene.join(fail)
        await asyncio.sleep(5)
        assert [message.body_bytes for _, _, message in scene.calls] == [b"old", b"young"]
        assert sorted(scene.acked) == [b"old", b"tired"]
        assert scene.hidden == 1
        await asyncio.sleep(20)
        assert scene.acked[-1] == b"young", "it came back once more than it may"
        dead = [record.body for queue in scene.broker.topics["%DLQ%g"] for record in queue]
        assert sorted(dead) == [b"old", b"tired", b"young"]
        await engine.close()

    run(main)


def test_the_mode_changes_while_everything_runs() -> None:
    """Promises 97, 126: from pulling to popping and back, and nothing is lost."""

    async def main(scene: Scene) -> None:
        scene.set_mode(PULL)
        fails: set[bytes] = set()

        async def fail_once(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(0.01)
            if message.body_bytes.endswith(b"7") and message.body_bytes not in fails:
                fails.add(message.body_bytes)
                raise RuntimeError("once")
            return None

        quick = {"rebalance_wait_interval_ms": 2_000, "poll_name_server_interval_ms": 1_000}
        members = [await scene.join(fail_once, **quick) for _ in range(2)]
        for mode in (PULL, POP, PULL, POP):
            scene.set_mode(mode)
            for _ in range(50):
                scene.send(3)
                await asyncio.sleep(0.2)
            kinds = {queue.queue_id >= 0 for one in members for queue in one.queues if queue.topic == "T"}
            assert kinds == {mode is PULL}
            has_retry = [("%RETRY%g_T" in one.subscriptions) for one in members]
            assert has_retry == [mode is PULL] * 2
        scene.set_mode(PULL)
        await asyncio.sleep(300)
        assert scene.handled == scene.all_bodies
        assert scene.hidden == 0
        # Also of what was popped before and is pulled now.
        assert {message.topic for _, _, message in scene.calls} == {"T"}
        assert "%RETRY%g_T" in {message.stored_topic for _, _, message in scene.calls}
        pops = len(scene.cluster.asked(RequestCode.POP_MESSAGE))
        await asyncio.sleep(100)
        assert len(scene.cluster.asked(RequestCode.POP_MESSAGE)) == pops
        for one in members:
            await one.close()

    run(main)


@pytest.mark.parametrize("others", ["ours", "older"])
def test_earlier_failures_are_redelivered_to_members_without_queues(others: str) -> None:
    """A broker has one table of subscriptions for a group. ``older``: a foreign client takes the retry
    topic out of it again and again, as Java's do while they have no queue of the topic."""

    async def main(scene: Scene) -> None:
        async def fail_first(message: ReceivedMessage) -> Outcome | None:
            if not message.reconsume_times:
                raise RuntimeError("the first time")
            return None

        quick = {"rebalance_wait_interval_ms": 2_000, "pop_invisible_time_ms": 30_000}
        members = [await scene.join(fail_first, **quick) for _ in range(3)]
        await asyncio.sleep(5)
        scene.send(4)
        await asyncio.sleep(1)
        assert scene.hidden == 4
        scene.set_mode(PULL)
        await asyncio.sleep(5)
        assert [len([queue for queue in one.queues if queue.topic == "T"]) for one in members] == [1, 1, 0]
        assert ["%RETRY%g_T" in one.subscriptions for one in members] == [True] * 3
        assert "%RETRY%g_T" in scene.broker.subscribed["g"]
        for _ in range(600):
            if others == "older":
                scene.broker.subscribed["g"].pop("%RETRY%g_T", None)
            await asyncio.sleep(0.1)
        assert scene.handled == scene.all_bodies
        for one in members:
            await one.close()

    run(main)


def test_topics_come_and_go() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.join(rebalance_min_interval_ms=10)
        await asyncio.sleep(2)
        engine.unsubscribe("T")
        await asyncio.sleep(2)
        assert {queue.topic for queue in engine.queues} == {"%RETRY%g"}
        await asyncio.sleep(20)
        asked = len(scene.cluster.asked(RequestCode.POP_MESSAGE))
        await asyncio.sleep(40)
        assert len(scene.cluster.asked(RequestCode.POP_MESSAGE)) == asked
        await engine.subscribe("T", None)
        scene.send(1)
        await asyncio.sleep(2)
        assert scene.handled == {b"0"}
        engine.suspend()
        await asyncio.sleep(20)
        scene.send(1)
        await asyncio.sleep(10)
        assert scene.handled == {b"0"}
        await engine.resume()
        await asyncio.sleep(2)
        assert scene.handled == {b"0", b"1"}
        await engine.close()

    run(main)


def test_a_broker_that_goes_and_comes_back() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.join()
        await asyncio.sleep(2)
        scene.broker.pops.is_full = True
        await asyncio.sleep(30)
        scene.broker.pops.is_full = False
        address = scene.broker.address
        gone = scene.cluster.stop(address)
        await asyncio.sleep(30)
        scene.cluster.servers[address] = gone
        scene.send(3)
        await asyncio.sleep(3)
        assert scene.handled == scene.all_bodies
        await engine.close()

    run(main)


def test_orderly_consumers_share_their_queues_out_themselves() -> None:
    async def main(scene: Scene) -> None:
        scene.send(4)
        engine = await scene.join(spec={"orderly": True})
        await asyncio.sleep(5)
        assert scene.handled == scene.all_bodies
        assert not scene.cluster.asked(RequestCode.QUERY_ASSIGNMENT)
        assert not scene.cluster.asked(RequestCode.POP_MESSAGE)
        await engine.close()

    run(main)


def test_consumers_that_may_pop() -> None:
    settings = PushSettings(group="g", client_rebalance=False)
    assert may_pop(settings, is_orderly=False)
    assert not may_pop(settings, is_orderly=True)
    assert not may_pop(replace(settings, client_rebalance=True), is_orderly=False)
    assert not may_pop(replace(settings, message_model=MessageModel.BROADCASTING), is_orderly=False)
