"""Counts of a push consumer's pulled, popped and consumed messages of each topic since its start, for administration.

Threads: the client's loop. Source: consumption specification 1.15.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.remoting.bodies.running_info import ConsumeStatus

if TYPE_CHECKING:
    from cometmq.client.push.tasks import TaskResult

__all__ = ["ConsumeCounts"]


@dataclass(slots=True)
class _OfTopic:
    """The counts of one topic.

    Attributes:
        pulls: pulls and pops that brought messages.
        pull_s: how long those took from the question to the answer, the broker's waiting included.
        pulled: the messages that they brought.
        ok: messages that the listener took.
        failed: messages that it did not.
        calls: calls of the listener.
        listened_s: how long those took.
    """

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    ok: int = 0
    failed: int = 0
    calls: int = 0
    listened_s: float = 0.0


class ConsumeCounts:
    """Counts of one consumer."""

    def __init__(self) -> None:
        """Nothing was pulled."""
        self._topics: dict[str, _OfTopic] = {}

    def __repr__(self) -> str:
        """Return how many messages were consumed, by topic."""
        return f"ConsumeCounts({', '.join(f'{topic}: {one.ok}' for topic, one in sorted(self._topics.items()))})"

    def _of(self, topic: str) -> _OfTopic:
        one = self._topics.get(topic)
        if one is None:
            one = self._topics[topic] = _OfTopic()
        return one

    def add(self, task_results: Sequence[TaskResult]) -> None:
        """Count what listeners have done."""
        for task_result in task_results:
            one = self._of(task_result.task.held.queue.topic)
            one.ok += len(task_result.succeeded)
            if task_result.ended_s > task_result.begun_s:
                one.calls += len(task_result.results) if task_result.task.is_orderly else task_result.parts
                one.listened_s += task_result.ended_s - task_result.begun_s
            for part, handled in task_result.results:
                if handled.is_success:
                    one.ok += len(part)
                else:
                    one.failed += len(part)

    def pulled(self, topic: str, messages: int, elapsed_s: float) -> None:
        """Count a pull or pop that brought messages, and took so long."""
        one = self._of(topic)
        one.pulls += 1
        one.pull_s += elapsed_s
        one.pulled += messages

    def consumed(self, topic: str) -> int:
        """Return how many messages of a topic the listener took."""
        return self._of(topic).ok

    def statuses(self, topics: Collection[str], *, elapsed_s: float) -> dict[str, ConsumeStatus]:
        """Return the figures of topics since the start; those that are per second over so many seconds."""
        found: dict[str, ConsumeStatus] = {}
        for topic in topics:
            one = self._topics.get(topic, _OfTopic())
            found[topic] = ConsumeStatus(
                pull_rt_ms=one.pull_s * 1000 / one.pulls if one.pulls else 0.0,
                pull_tps=one.pulled / elapsed_s,
                consume_rt_ms=one.listened_s * 1000 / one.calls if one.calls else 0.0,
                consume_ok_tps=one.ok / elapsed_s,
                consume_failed_tps=one.failed / elapsed_s,
                consume_failed_messages=one.failed,
            )
        return found
