"""Checks: the figures of a push consumer's pulls and listener calls that administrators see."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.push.consume_counts import ConsumeCounts
from cometmq.client.push.listeners import SUCCEEDED, Handled, Outcome
from cometmq.client.push.tasks import Task, TaskResult
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeStatus


def task_result_of(topic: str, messages: list[Any], *, is_orderly: bool = False) -> TaskResult:
    queue = ProcessQueue(MessageQueue(topic=topic, broker_name="b", queue_id=0))
    return TaskResult(
        Task(queue, messages, 1, may_go_on=(lambda: True) if is_orderly else None), 10.0, parts=len(messages)
    )


def test_figures_are_of_each_topic_since_the_start() -> None:
    counts = ConsumeCounts()
    counts.pulled("t", 32, 0.004)
    counts.pulled("t", 8, 0.002)
    done = task_result_of("t", [1, 2, 3, 4])
    done.succeeded += [1, 2]
    done.results.append(([3], SUCCEEDED))
    done.results.append(([4], Handled(Outcome.RETRY)))
    done.ended_s = 10.2
    not_begun = task_result_of("t", [5])
    counts.add([done, not_begun])
    found = counts.statuses(["t", "other"], elapsed_s=4.0)
    assert found["t"] == ConsumeStatus(
        pull_rt_ms=3.0,
        pull_tps=10.0,
        consume_rt_ms=pytest.approx(50.0),
        consume_ok_tps=0.75,
        consume_failed_tps=0.25,
        consume_failed_messages=1,
    )
    assert found["other"].pull_tps == found["other"].pull_rt_ms == 0.0
    assert counts.consumed("t") == 3
    assert repr(counts) == "ConsumeCounts(t: 3)"


def test_the_calls_of_an_orderly_task_are_those_that_were_begun() -> None:
    counts = ConsumeCounts()
    done = task_result_of("t", [1, 2, 3, 4], is_orderly=True)
    done.add([1], SUCCEEDED)
    done.add([2], Handled(Outcome.SUSPEND))
    done.ended_s = 10.1
    counts.add([done])
    assert counts.statuses(["t"], elapsed_s=1.0)["t"].consume_rt_ms == pytest.approx(50.0)
