"""The allowed behaviour of a group of consumers: the model that random histories are checked against.

It follows each message by its body, ``broker-queue-offset``, from the topic through retry topics to its end. A message
is settled when a listener or loop has finished with it, or when it is a dead letter that was allowed to become one.
A message that was put back is the broker's again; its place in the queue that it came from may be committed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from support.fake_cluster import FakeBroker, Record

__all__ = ["GROUP", "TOPIC", "Model", "Place", "Progress"]

GROUP, TOPIC = "g", "T"


class Place(NamedTuple):
    """A queue of the topic."""

    broker: str
    queue_id: int

    def body(self, offset: int) -> bytes:
        return f"{self.broker}-{self.queue_id}-{offset}".encode()


class Progress(dict[tuple[str, str, int], int]):
    """A broker's table of progress; each commit is held against the model."""

    def __init__(self, model: Model, broker: FakeBroker) -> None:
        super().__init__()
        self._model, self._broker = model, broker

    def __setitem__(self, key: tuple[str, str, int], offset: int) -> None:
        self._model.committed(self._broker, key, offset)
        super().__setitem__(key, offset)

    def move(self, key: tuple[str, str, int], offset: int) -> None:
        """Set the progress as a reset does, whatever the model says."""
        super().__setitem__(key, offset)


class Model:
    """Messages delivered, finished, put back and committed."""

    def __init__(self, *, is_orderly: bool, tries_max: int) -> None:
        self.is_orderly = is_orderly
        self.tries_max = tries_max
        self.troubles: list[str] = []
        self.done: set[bytes] = set()
        self.dead: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        """Of popped messages: they may not be redelivered."""
        self.sent_again: set[bytes] = set()
        """By a member, whose dead letter no broker took: acknowledged, and due for redelivery."""
        self.given_up: set[bytes] = set()
        """A listener said so."""
        self.failures: Counter[bytes] = Counter()
        self.put_back: Counter[bytes] = Counter()
        self.again: dict[Place, set[int]] = defaultdict(set)
        """Offsets that a reset is to bring again."""
        self._ordinal: dict[int, int] = {}
        """By id of a record: how often its message had been put back when this one was stored."""
        self._at_work: dict[Place, str] = {}
        self._next: dict[Place, int] = {}

    def fail(self, text: str) -> None:
        self.troubles.append(text)

    # --- What the brokers do ------------------------------------------------------------------------------------------

    def stored(self, record: Record) -> None:
        """Take note of a message that a broker takes."""
        if record.topic == TOPIC:
            return
        self.put_back[record.body] += 1
        self._ordinal[id(record)] = self.put_back[record.body]
        broker, queue_id, offset = record.body.decode().split("-")
        self._pass(Place(broker, int(queue_id)), int(offset))
        if record.topic == f"%RETRY%{GROUP}":
            self.sent_again.add(record.body)
        if record.topic == f"%DLQ%{GROUP}":
            self.dead.add(record.body)
            if record.body not in self.given_up and self.failures[record.body] < self.tries_max:
                self.fail(f"{record.body!r} is a dead letter after {self.failures[record.body]} failures")

    def _is_settled(self, record: Record) -> bool:
        return record.body in self.done or self.put_back[record.body] > self._ordinal.get(id(record), 0)

    def committed(self, broker: FakeBroker, key: tuple[str, str, int], offset: int) -> None:
        group, topic, queue_id = key
        queues = broker.topics.get(topic, ())
        if group != GROUP or queue_id >= len(queues):
            return
        queue = queues[queue_id]
        if offset > len(queue):
            self.fail(f"queue {queue_id} of {topic} was committed to {offset}, and ends at {len(queue)}")
        missing = [record.queue_offset for record in queue[:offset] if not self._is_settled(record)]
        if missing:
            self.fail(
                f"queue {queue_id} of {topic} at {broker.name} was committed to {offset}, "
                f"and nobody has finished {missing[:5]}"
            )

    # --- What the members do ------------------------------------------------------------------------------------------

    def begin(self, who: str, message: Any) -> None:
        body = message.body_bytes
        if body in self.acknowledged:
            self.fail(f"{who} gets {body!r}, which was acknowledged")
        if message.stored_topic != TOPIC:
            return
        place, offset = Place(message.broker_name, message.queue_id), message.queue_offset
        self.again[place].discard(offset)
        if not self.is_orderly:
            return
        if (other := self._at_work.get(place)) is not None:
            self.fail(f"{who} is at {offset} of {place}, where {other} is at work")
        if offset > self._next.get(place, 0):
            self.fail(f"{who} skips from {self._next.get(place, 0)} to {offset} of {place}")
        self._at_work[place] = f"{who} at {offset}"

    def end(self, who: str, message: Any, *, is_done: bool) -> None:
        if message.stored_topic == TOPIC:
            place = Place(message.broker_name, message.queue_id)
            if self._at_work.get(place, "").startswith(f"{who} "):
                del self._at_work[place]
            if is_done:
                self._pass(place, message.queue_offset)
        if is_done:
            self.done.add(message.body_bytes)

    def failed(self, message: Any, *, is_given_up: bool) -> None:
        """Take note that a listener did not take a message."""
        self.failures[message.body_bytes] += 1
        if is_given_up:
            self.given_up.add(message.body_bytes)

    def _pass(self, place: Place, offset: int) -> None:
        """Take note that an orderly queue may go on behind a message."""
        self._next[place] = max(self._next.get(place, 0), offset + 1)

    def gone(self, who: str) -> None:
        """Forget what a member is at whose process has ended."""
        for place in [place for place, one in self._at_work.items() if one.startswith(f"{who} ")]:
            del self._at_work[place]

    def reset(self, place: Place, offset: int, end: int) -> None:
        self.again[place] = set(range(offset, end))  # expected redeliveries of an earlier reset no longer count

    # --- The end ------------------------------------------------------------------------------------------------------

    def owing(self, brokers: Iterable[FakeBroker]) -> str | None:
        """Return what is not right yet in the end."""
        for broker in brokers:
            for queue_id, queue in enumerate(broker.topics[TOPIC]):
                for record in queue:
                    if record.body not in self.done and record.body not in self.dead:
                        return f"{record.body!r} was never finished"
                if again := sorted(self.again[Place(broker.name, queue_id)]):
                    return f"{again[:5]} of queue {queue_id} at {broker.name} were not redelivered after a reset"
        return None

    def behind(self, brokers: Iterable[FakeBroker]) -> str | None:
        """Return which progress is not at its queue's end, when all is finished."""
        for broker in brokers:
            for topic in (TOPIC, f"%RETRY%{GROUP}"):
                for queue_id, queue in enumerate(broker.topics.get(topic, ())):
                    offset = broker.offsets.get((GROUP, topic, queue_id), 0)
                    if offset < len(queue):
                        return f"progress of queue {queue_id} of {topic} at {broker.name} is {offset} of {len(queue)}"
        return None
