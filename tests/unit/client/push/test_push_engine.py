"""Checks: push consumers on virtual time: consuming, committing, sending back and giving up; their start and end."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cometmq.client.group.rebalance import Rebalance
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.push import push_engine
from cometmq.client.push.listeners import Outcome
from cometmq.errors import BrokerError, ClientStateError, GroupTaken, InvalidArgument
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeResult
from support.fake_cluster import FakeCluster
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, run_on_threads, until


@on_cluster
async def test_everything_is_consumed_once_and_committed(cluster: FakeCluster) -> None:
    """Promises 2, 4, 13, 37, 71: from the first offset, by the listener, to the offset that the broker keeps."""
    fill(cluster, 500)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 500)
    await engine.close()
    assert sorted(seen.numbers()) == list(range(500))
    assert committed(cluster) == {0: 250, 1: 250}
    assert engine.state is ServiceState.SHUTDOWN_ALREADY
    assert cluster.brokers[0].groups.get("g", {}) == {}


@on_cluster
async def test_a_listener_does_not_see_the_namespace(cluster: FakeCluster) -> None:
    broker = cluster.brokers[0]
    broker.create("ns%T", 1)
    broker.append("ns%T", 0, b"0")
    seen = Seen(lambda message: Outcome.RETRY if not message.reconsume_times else None)
    engine = consumer(cluster, seen, namespace="ns")
    await engine.start()
    await until(lambda: len(seen.messages) == 2)
    await engine.close()
    assert [message.topic for message in seen.messages] == ["T", "T"]
    assert [message.stored_topic for message in seen.messages] == ["ns%T", "%RETRY%ns%g"]
    assert pickle.loads(pickle.dumps(seen.messages[1])).topic == "T"


@on_cluster
async def test_where_a_new_group_begins_and_an_old_one_goes_on(cluster: FakeCluster) -> None:
    """Promise 1: a new group begins at the end, and an old one where it was."""
    fill(cluster, 10)
    seen = Seen()
    engine = consumer(cluster, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)
    await asyncio.sleep(1)
    cluster.brokers[0].append("T", 0, b"100")
    await until(lambda: len(seen.bodies) == 1)
    await engine.close()
    cluster.brokers[0].append("T", 0, b"101")
    again = Seen()
    engine = consumer(cluster, again, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await engine.start()
    await until(lambda: len(again.bodies) == 1)
    await engine.close()
    assert (seen.numbers(), again.numbers()) == ([100], [101])


@on_cluster
async def test_a_new_group_may_begin_at_a_time(cluster: FakeCluster) -> None:
    """Promise 3: by default half an hour before the consumer was made."""
    fill(cluster, 4)
    await asyncio.sleep(3600)
    cluster.brokers[0].append("T", 1, b"7")
    seen = Seen()
    engine = consumer(cluster, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)
    await engine.start()
    await until(lambda: len(seen.bodies) == 1)
    await engine.close()
    assert seen.numbers() == [7]


@on_cluster
async def test_batches(cluster: FakeCluster) -> None:
    """Promise 69: the listener gets at most so many at a time."""
    fill(cluster, 100)
    sizes: list[int] = []

    async def listener(messages: list[Any]) -> None:
        sizes.append(len(messages))

    engine = consumer(cluster, listener, batch=True, consume_message_batch_max_size=10)
    await engine.start()
    await until(lambda: sum(sizes) == 100)
    await engine.close()
    assert max(sizes) == 10
    assert committed(cluster) == {0: 50, 1: 50}


@on_cluster
async def test_tags_are_compared_by_their_text(cluster: FakeCluster) -> None:
    """Promise 8: ``Aa`` and ``BB`` have one hash code; the broker lets both through."""
    for tag in ("Aa", "BB", "C", "Aa"):
        cluster.brokers[0].append("T", 0, tag.encode(), {"TAGS": tag})
    seen = Seen()
    engine = consumer(cluster, seen, topics={"T": ("Aa || D", "TAG")})
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    await until(lambda: engine.offsets("T").get(queue_of(0)) == 4)
    await engine.close()
    assert seen.bodies == [b"Aa", b"Aa"]


@on_cluster
async def test_a_tag_that_never_matches_moves_the_offset(cluster: FakeCluster) -> None:
    """Promise 40: NO_MATCHED_MSG corrects the offset."""
    fill(cluster, 10, TAGS="other")
    engine = consumer(cluster, Seen(), topics={"T": ("wanted", "TAG")})
    await engine.start()
    await until(lambda: engine.offsets("T") == {queue_of(0): 5, queue_of(1): 5})
    await engine.close()


def test_broadcasting_gives_each_member_all_and_tries_none_again(tmp_path: Path) -> None:
    """Promise 7: each member has its own progress, in a file."""

    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 20)
        members = []
        for name in ("one", "two"):
            seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"3" else None)
            engine = consumer(
                cluster,
                seen,
                message_model=MessageModel.BROADCASTING,
                instance_name=name,
                offset_folder=tmp_path,
            )
            await engine.start()
            members.append((seen, engine))
        await until(lambda: all(len(seen.bodies) == 20 for seen, _ in members))
        for seen, engine in members:
            await engine.close()
            assert sorted(seen.numbers()) == list(range(20))
        assert "%RETRY%g" not in cluster.brokers[0].topics

    run_on_threads(body)
    texts = [file.read_text() for file in tmp_path.rglob("offsets.json")]
    assert [re.findall(r"}:(\d+)", text) for text in texts] == [["10", "10"]] * 2, "it goes past the failed message"


@on_cluster
async def test_members_of_a_group_share_the_messages(cluster: FakeCluster) -> None:
    """Promises 6, 61, 64, 82: a second member takes half of the queues; nothing is lost, progress moves with them."""
    cluster.brokers[0].create("T", 4)
    first, second = Seen(), Seen()
    one, two = consumer(cluster, first), consumer(cluster, second)
    await one.start()
    fill(cluster, 40, queues=4)
    await until(lambda: len(first.bodies) == 40)
    await two.start()
    await until(lambda: len([q for q in one.queues if q.topic == "T"]) == 2 and len(two.queues) >= 2)
    await asyncio.sleep(1)
    fill(cluster, 40, queues=4)
    await until(lambda: len(first.bodies) + len(second.bodies) >= 80)
    await asyncio.sleep(5)
    assert len(first.bodies) == 60
    assert len(second.bodies) == 20
    await one.close()
    await until(lambda: len([q for q in two.queues if q.topic == "T"]) == 4)
    await two.close()
    assert committed(cluster) == {0: 20, 1: 20, 2: 20, 3: 20}


@on_cluster
async def test_running_info(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"3" and not message.reconsume_times else None)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 10)
    await asyncio.sleep(0.1)
    info = engine.running_info()
    assert info.properties["consumerGroup"] == "g"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert {one.topic for one in info.subscriptions} == {"T", "%RETRY%g"}
    assert info.queues[queue_of(0)].commit_offset == 5
    assert info.statuses["T"].consume_failed_messages == 1
    assert info.statuses["T"].pull_tps > 0
    assert info.statuses["T"].pull_rt_ms > 0
    assert "queues=" in repr(engine)
    await engine.close()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (lambda _: None, ConsumeResult.CR_SUCCESS),
        (lambda _: Outcome.RETRY, ConsumeResult.CR_LATER),
        (lambda _: Outcome.COMMIT, ConsumeResult.CR_COMMIT),
        (lambda _: Outcome.ROLLBACK, ConsumeResult.CR_ROLLBACK),
        (lambda _: 17, ConsumeResult.CR_RETURN_NULL),
        (lambda _: 1 // 0, ConsumeResult.CR_THROW_EXCEPTION),
    ],
)
def test_one_message_is_consumed_directly(answer: Callable[[Any], Any], result: ConsumeResult) -> None:
    """Promise 73."""

    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 1, queues=1)
        seen = Seen()
        engine = consumer(cluster, seen)
        await engine.start()
        await until(lambda: len(seen.bodies) == 1)
        offsets = dict(engine.offsets("T"))
        seen.answer = answer
        told = await engine.consume_directly(seen.messages[0], "b0")
        assert told.consume_result is result
        assert (told.remark is None) is (result.value < 4)
        assert engine.offsets("T") == offsets
        await engine.close()

    on_cluster(body)()


@on_cluster
async def test_interceptors_see_messages_before_and_after(cluster: FakeCluster) -> None:
    fill(cluster, 2, queues=1)
    contexts: list[Any] = []
    befores: list[Any] = []
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"1" else None)
    interceptor = Interceptor(before_consume=befores.append, after_consume=contexts.append)
    engine = consumer(cluster, seen, more={"interceptors": [interceptor]}, max_reconsume_times=0)
    await engine.start()
    await until(lambda: len(contexts) == 2)
    assert befores == contexts
    assert [(c.group, c.queue, c.is_success, c.return_type) for c in contexts] == [
        ("g", queue_of(0), True, 0),
        ("g", queue_of(0), False, 4),
    ]
    await engine.close()


@on_cluster
async def test_filtered_messages_count_as_consumed(cluster: FakeCluster) -> None:
    fill(cluster, 6, queues=1)
    seen = Seen()
    interceptor = Interceptor(keep_message=lambda message: message.body_bytes in (b"1", b"3"))
    engine = consumer(cluster, seen, more={"interceptors": [interceptor]})
    await engine.start()
    await until(lambda: engine.offsets("T").get(queue_of(0)) == 6)
    await engine.close()
    assert seen.bodies == [b"1", b"3"]


@on_cluster
async def test_the_user_hears_of_other_queues(cluster: FakeCluster) -> None:
    told: list[tuple[str, int, int]] = []

    def listener(topic: str, all_queues: Any, mine: Any) -> None:
        told.append((topic, len(all_queues), len(mine)))
        raise ValueError("changes nothing")

    engine = consumer(cluster, Seen(), more={"queue_listener": listener})
    await engine.start()
    await until(lambda: ("T", 2, 2) in told)
    await engine.close()


@on_cluster
async def test_states(cluster: FakeCluster) -> None:
    """Promises 16 and 17: started once; closing twice, or before a start, does nothing."""
    engine = consumer(cluster, Seen())
    await engine.close()
    with pytest.raises(ClientStateError, match="not started"):
        engine.flow_counters  # noqa: B018 - the property raises
    await engine.start()
    with pytest.raises(ClientStateError, match="running"):
        await engine.start()
    await engine.close()
    await engine.close()
    with pytest.raises(ClientStateError, match="closed"):
        await engine.start()


@on_cluster
async def test_a_setting_that_is_wrong_fails_the_start(cluster: FakeCluster) -> None:
    """Promises 17 and 50."""
    engine = consumer(cluster, Seen(), consume_thread_max=0)
    with pytest.raises(InvalidArgument, match="consume_thread_max"):
        await engine.start()
    assert engine.state is ServiceState.START_FAILED


@on_cluster
async def test_a_group_runs_once_on_an_instance(cluster: FakeCluster) -> None:
    """Promises 17 and 19: the second one is refused and can start when the first is gone."""
    one = consumer(cluster, Seen(), instance_name="same")
    two = consumer(cluster, Seen(), instance_name="same")
    await one.start()
    with pytest.raises(GroupTaken):
        await two.start()
    assert two.state is ServiceState.CREATE_JUST
    await one.close()
    await two.start()
    await two.close()


@on_cluster
async def test_close_waits_for_listeners_and_commits_their_messages(cluster: FakeCluster) -> None:
    fill(cluster, 40, queues=1)
    begun: list[int] = []
    ended: list[int] = []

    async def listener(message: Any) -> None:
        begun.append(int(message.body_bytes))
        await asyncio.sleep(2)
        ended.append(int(message.body_bytes))

    engine = consumer(cluster, listener, consume_thread_min=5, consume_thread_max=5)
    await engine.start()
    await until(lambda: len(begun) == 5)
    await engine.close()
    assert sorted(ended) == sorted(begun) == [0, 1, 2, 3, 4]
    assert committed(cluster) == {0: 5}


@on_cluster
async def test_topics_come_and_go_while_it_runs(cluster: FakeCluster) -> None:
    cluster.brokers[0].create("U", 1)
    cluster.brokers[0].append("U", 0, b"5")
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await engine.subscribe("U", "*")
    await until(lambda: seen.bodies == [b"5"])
    engine.unsubscribe("T")
    await until(lambda: {queue.topic for queue in engine.queues} <= {"U", "%RETRY%g"})
    await engine.close()


@on_cluster
async def test_a_consumer_without_a_topic_says_so(cluster: FakeCluster) -> None:
    engine = consumer(cluster, Seen(), topics={})
    with patch.object(push_engine._log, "warning") as warning:
        await engine.start()
    assert "subscribe" in warning.call_args.args[0]
    await engine.close()


@on_cluster
async def test_an_own_offset_store(cluster: FakeCluster) -> None:
    fill(cluster, 6, queues=1)
    saved: dict[MessageQueue, int] = {queue_of(0): 4}

    class Store:
        def load(self, queue: MessageQueue) -> int | None:
            return saved.get(queue)

        async def save(self, offsets: Any) -> None:
            saved.update(offsets)

    seen = Seen()
    engine = consumer(cluster, seen, more={"offset_store": Store()})
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    await engine.close()
    assert seen.numbers() == [4, 5]
    assert saved[queue_of(0)] == 6


@on_cluster
async def test_a_round_that_fails_in_any_way_is_not_the_last(cluster: FakeCluster) -> None:
    fill(cluster, 2)
    seen = Seen()
    engine = consumer(cluster, seen, orderly=True)
    rounds: list[None] = []

    async def lock_all(_: Rebalance) -> None:
        rounds.append(None)
        raise ZeroDivisionError if len(rounds) == 1 else BrokerError("no", code=1)

    with patch.object(Rebalance, "lock_all", lock_all):
        await engine.start()
        await until(lambda: len(rounds) >= 3)
        await engine.close()
