"""The official Java client as a peer of our tests: one JVM that answers requests, typed here. It takes about 150 MB."""

from __future__ import annotations

import base64
import enum
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cometmq.admin
from interop.patterns import MessageSpec
from interop.processes import ANSWER_LIMIT_S, PEER_VERSION, START_LIMIT_S, STOP_LIMIT_S, Jvm, PeerFailed, tail
from interop.servers import Broker

Row: TypeAlias = "dict[str, Any]"


class Headers(enum.Enum):
    """How a client writes the headers of its requests; the answers come in the same form."""

    JSON = "JSON"
    ROCKETMQ = "ROCKETMQ"


class Client:
    """The official Java client, in one JVM for a whole session. Not for use by several threads at once.

    Attributes:
        namesrv: the name server that the next request goes to.
        version: the client's version.
        home: the folder that it takes for its user's home.
    """

    def __init__(
        self, home: Path, namesrv: str, *, version: str = PEER_VERSION, headers: Headers = Headers.JSON
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("client", home, version=version, heap_mb=192, log_level="WARN")
        self.namesrv = namesrv
        self.version = version
        self.home = home
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answer: Iterator[Row] = iter(())
        self._process = self._jvm.start(
            "io.cometmq.interop.Peer", pipes=True, properties={"rocketmq.serialize.type": headers.value}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def close(self) -> None:
        """Ends the JVM: its input ends, and so does it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
        self._reader.join()
        self._process.stdout.close()

    def ask(self, op: str, **arguments: object) -> Iterator[Row]:
        """Sends one request and yields its rows as they come. Unread rows of the request before are dropped."""
        for _ in self._answer:
            pass
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "namesrv": self.namesrv, **arguments}) + "\n")
        self._process.stdin.flush()
        self._answer = self._read_answer(op)
        return self._answer

    def _read_answer(self, op: str) -> Iterator[Row]:
        while True:
            try:
                line = self._lines.get(timeout=ANSWER_LIMIT_S)
            except queue.Empty:
                raise PeerFailed(f"client: no answer to {op} within {ANSWER_LIMIT_S} s") from None
            if not line:
                raise PeerFailed(f"client: ended during {op}\n{tail(self._jvm.out)}")
            answer = json.loads(line)
            if "error" in answer:
                raise PeerFailed(f"client: {op}: {answer['error']}\n{answer['trace']}")
            if "done" in answer:
                return
            yield answer["row"]

    # The requests, typed. See the Java classes for what each does.

    def create_topic(self, broker: Broker, topic: str, *, queues: int, in_all: int | None = None) -> None:
        """Creates the topic and waits until its route has so many queues, with those of other brokers ``in_all``."""
        route = queues if in_all is None else in_all
        list(self.ask("create_topic", address=broker.address, topic=topic, queues=queues, route_queues=route))

    def await_topic(self, topic: str) -> None:
        """Returns when the name server has a route for the topic, which a broker creates automatically."""
        list(self.ask("await_topic", topic=topic))

    def send(
        self,
        messages: Iterable[MessageSpec | Sequence[MessageSpec]],
        *,
        mode: str = "sync",
        compression: str | None = None,
        compress_over_bytes: int = 4096,
        max_message_bytes: int = 4 << 20,
    ) -> Iterator[Row]:
        """Sends in order; a nested sequence is one batch. Yields a row per message as it is acknowledged.

        Args:
            messages: the messages to send.
            mode: ``sync``, ``async`` or ``oneway``.
            compression: ``ZLIB``, ``LZ4`` or ``ZSTD``; None for the client's own choice.
            compress_over_bytes: shorter bodies go as they are.
            max_message_bytes: longer bodies the client refuses itself.
        """
        return self.ask(
            "send",
            messages=[_wire(m) if isinstance(m, MessageSpec) else [_wire(each) for each in m] for m in messages],
            mode=mode,
            compression=compression,
            compress_over_bytes=compress_over_bytes,
            max_message_bytes=max_message_bytes,
        )

    def request(self, topic: str, bodies: Sequence[str], *, timeout_ms: int = 30_000) -> list[Row]:
        """Sends requests one after the other; a row for each reply."""
        return list(self.ask("request", topic=topic, bodies=list(bodies), timeout_ms=timeout_ms))

    def answer(self, group: str, topic: str, *, count: int, prefix: str) -> Iterator[Row]:
        """Answers so many requests with the prefix and their bodies; the first row comes when the listener runs."""
        return self.ask("answer", group=group, topic=topic, count=count, prefix=prefix)

    def transact(
        self, group: str, topic: str, bodies: Sequence[str], *, checks: int = 0, timeout_ms: int = 60_000
    ) -> list[Row]:
        """Sends transactions, a row for each, and answers so many checks.

        c commits and r rolls back at once, C and R when a check asks: the first letter of a body.
        """
        arguments = {"group": group, "topic": topic, "bodies": list(bodies), "checks": checks, "timeout_ms": timeout_ms}
        return list(self.ask("transact", **arguments, linger_ms=1_000 if checks else 0))

    def pull_all(
        self, topic: str, *, tags: str | None = None, sql: str | None = None, with_body: bool = False
    ) -> list[Row]:
        """Every message of the topic that passes the filter, tags or an SQL92 expression, by queue and offset."""
        return list(self.ask("pull_all", topic=topic, tags=tags, sql=sql, with_body=with_body))

    def group_consume(self, group: str, topic: str, *, count: int, timeout_ms: int = 30_000) -> list[Row]:
        """Up to ``count`` messages through the group's own progress, committed: the broker has the progress."""
        rows = list(self.ask("group_consume", group=group, topic=topic, count=count, timeout_ms=timeout_ms))
        behind: dict[int, int] = {}
        for row in rows:
            behind[row["queue"]] = max(behind.get(row["queue"], 0), row["queue_offset"] + 1)
        self.await_progress(group, topic, behind)
        return rows

    def await_progress(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Returns when the broker has these offsets of the group, by queue, or later ones.

        Upstream's consumers tell it one way, without an answer, and a broker takes such commands from several threads.
        """
        limit = time.monotonic() + START_LIMIT_S
        with cometmq.admin.connect(namesrv=self.namesrv) as admin:
            while True:
                progress = admin.offsets.progress(group, topic=topic)
                found = {queue.queue_id: queue.consumer_offset for queue in progress.queues}
                behind = {queue: offset for queue, offset in offsets.items() if found.get(queue, -1) < offset}
                if not behind:
                    return
                if time.monotonic() > limit:
                    raise PeerFailed(f"{group} never came to {behind} of {topic} at the broker: {found}")

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Queue id to (first offset, next offset)."""
        return {row["queue"]: (row["min_offset"], row["max_offset"]) for row in self.ask("offsets", topic=topic)}

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Queue id to the group's committed offset."""
        return {row["queue"]: row["consumer_offset"] for row in self.ask("group_offsets", group=group, topic=topic)}

    def search_offset(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Queue id to the offset of the first message stored at or after the time."""
        return {
            row["queue"]: row["offset"] for row in self.ask("search_offset", topic=topic, timestamp_ms=timestamp_ms)
        }

    def query_key(self, topic: str, key: str) -> list[Row]:
        return list(self.ask("query_key", topic=topic, key=key))

    def query_unique_key(self, topic: str, key: str) -> list[Row]:
        return list(self.ask("query_unique_key", topic=topic, key=key))

    def view(self, topic: str, offset_message_id: str) -> Row:
        (row,) = self.ask("view", topic=topic, id=offset_message_id)
        return row

    def read_unique_id(self, unique_id: str) -> Row:
        """Returns the parts that the client's own code reads from an id: ``ip``, ``pid`` and ``made_at_ms``."""
        (row,) = self.ask("read_unique_id", id=unique_id)
        return row

    def mqadmin(self, *arguments: str) -> str:
        """Returns the output of a command of ``mqadmin``; the name server is added."""
        (row,) = self.ask("mqadmin", arguments=[*arguments, "-n", self.namesrv])
        return f"{row['out']}{row['errors']}"

    # Consumers that live on. Names are the test's own.

    def start_consumer(
        self,
        name: str,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        start_from: str = "FIRST_OFFSET",
        timestamp: str | None = None,
        is_orderly: bool = False,
        is_broadcasting: bool = False,
        max_reconsume_times: int = -1,
        fail_until: Mapping[str, int] | None = None,
        is_sql: bool = False,
        has_heartbeat_v2: bool = False,
        client_rebalance: bool = True,
        pop_invisible_ms: int = 60_000,
        hangs: bool = False,
        instance: str | None = None,
        strategy: Mapping[str, object] | None = None,
    ) -> str:
        """Starts a push consumer and returns its client id.

        Args:
            name: its name in the test.
            group: its group.
            subscriptions: topic to tags.
            start_from: ``FIRST_OFFSET``, ``LAST_OFFSET`` or ``TIMESTAMP``.
            timestamp: for ``TIMESTAMP``, local time as ``yyyyMMddHHmmss``.
            is_orderly: whether it consumes queue by queue under locks.
            is_broadcasting: whether it gets everything, beside the others of its group.
            max_reconsume_times: tries before the dead letters; -1 is the client's own choice.
            fail_until: tag to the number of tries that fail.
            is_sql: whether the subscriptions are SQL92 expressions, not tags.
            has_heartbeat_v2: whether it sends heartbeats of the second kind; not in 4.9.
            client_rebalance: False lets brokers say which queues it has, and whether it pops them; not in 4.9.
            pop_invisible_ms: how long what it popped is invisible; 5 s to 5 min, anything else is a minute.
            hangs: whether its listener does not come back before it is released.
            instance: the second part of its client id; None for one of its own.
            strategy: how its group shares queues out (``Strategies.java``); None for the client's default.
        """
        (row,) = self.ask(
            "consumer_start",
            name=name,
            group=group,
            subscriptions=dict(subscriptions),
            timestamp=timestamp,
            orderly=is_orderly,
            broadcasting=is_broadcasting,
            max_reconsume_times=max_reconsume_times,
            fail_until=dict(fail_until or {}),
            sql=is_sql,
            heartbeat_v2=has_heartbeat_v2,
            client_rebalance=client_rebalance,
            pop_invisible_ms=pop_invisible_ms,
            hangs=hangs,
            instance=instance,
            strategy=strategy,
            **{"from": start_from},
        )
        return str(row["client_id"])

    def consumed(self, *names: str, count: int, timeout_ms: int = 60_000) -> list[Row]:
        """Everything that these consumers were given, as soon as they have consumed ``count`` messages."""
        return list(self.ask("consumer_rows", names=names, count=count, timeout_ms=timeout_ms))

    def committed(self, *names: str, topic: str, count: int) -> None:
        """Returns when these consumers have committed ``count`` messages, all queues together."""
        list(self.ask("consumer_commit", names=names, topic=topic, count=count))

    def divided(self, *names: str, topic: str, queues: int) -> dict[str, list[str]]:
        """Consumer to its ``broker:queue``, as soon as each queue has one owner and each consumer a queue."""
        answer = self.ask("consumer_queues", names=names, topic=topic, total=queues)
        return {row["consumer"]: row["queues"] for row in answer}

    def owned(self, *names: str, topic: str) -> dict[str, set[str]]:
        """Consumer to the ``broker:queue`` that it has at this moment."""
        answer = self.ask("consumer_owned", names=names, topic=topic)
        return {row["consumer"]: set(row["queues"]) for row in answer}

    def popped(self, *names: str, topic: str) -> dict[str, set[str]]:
        """Consumer to the ``broker:queue`` that it pops at this moment; queue -1 is all of them."""
        answer = self.ask("consumer_popped", names=names, topic=topic)
        return {row["consumer"]: set(row["queues"]) for row in answer}

    def rebalance(self, *names: str) -> None:
        """Has consumers look at once which queues are theirs; they do so every 20 seconds."""
        list(self.ask("consumer_rebalance", names=names))

    def release(self, *names: str) -> None:
        """Lets consumers go on that hang."""
        list(self.ask("consumer_release", names=names))

    def pop(
        self,
        broker: Broker,
        group: str,
        topic: str,
        *,
        max_messages: int = 32,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        queue_id: int = -1,
        in_order: bool = False,
    ) -> tuple[Row, list[Row]]:
        """One pop by the client's own request.

        Args:
            broker: the broker to ask.
            group, topic: the group that pulls, and its topic.
            max_messages: at most so many.
            invisible_ms: how long nobody else gets them.
            poll_ms: how long the broker holds the request where it has nothing.
            queue_id: of one queue; -1 for all.
            in_order: whether it is a pop of an orderly group.

        Returns:
            A row with the ``status`` and the ``rest``, and the messages, each with its ``handle``.
        """
        head, *messages = self.ask(
            "pop",
            broker=broker.name,
            address=broker.address,
            group=group,
            topic=topic,
            max=max_messages,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            queue=queue_id,
            order=in_order,
        )
        return head, messages

    def pop_ack(
        self, broker: Broker, group: str, topic: str, messages: Iterable[Row], *, in_batch: bool = False
    ) -> list[str]:
        """Acknowledges what :meth:`pop` gave, one by one or in one request; the status of each request."""
        handles = [message["handle"] for message in messages]
        rows = self.ask("pop_ack", address=broker.address, group=group, topic=topic, handles=handles, batch=in_batch)
        return [row["status"] for row in rows]

    def pop_change(self, broker: Broker, group: str, topic: str, message: Row, *, invisible_ms: int) -> Row:
        """Gives what :meth:`pop` gave another invisible time from now on; the message with its new handle."""
        (row,) = self.ask(
            "pop_change",
            address=broker.address,
            group=group,
            topic=topic,
            handle=message["handle"],
            invisible_ms=invisible_ms,
        )
        assert row["status"] == "OK"
        return {**message, "handle": row["handle"]}

    def assignment(
        self, broker: Broker, group: str, topic: str, *, client_id: str, strategy: str = "AVG"
    ) -> set[tuple[int, str]]:
        """Queue and mode of what a broker says a member is to have; none where it is to keep what it has."""
        rows = self.ask(
            "assignment", address=broker.address, group=group, topic=topic, client_id=client_id, strategy=strategy
        )
        return {(row["queue"], row["mode"]) for row in rows}

    def stop_consumers(self, *names: str) -> None:
        """A clean end: progress is with the broker, and the group knows."""
        list(self.ask("consumer_stop", names=names))

    def clear_consumers(self) -> None:
        """Ends what a test left alive, and forgets what was consumed."""
        list(self.ask("consumer_clear"))

    def consume_assigned(
        self, group: str, topic: str, *, count: int, seek: int | None = None, tags: str | None = None
    ) -> tuple[list[Row], dict[int, int]]:
        """Reads all queues of a topic by assignment and commits.

        Returns:
            The messages, and queue to committed offset.
        """
        answer = self.ask("assigned_consume", group=group, topic=topic, count=count, seek=seek, tags=tags)
        rows = list(answer)
        committed = {row["committed_queue"]: row["committed"] for row in rows if "committed_queue" in row}
        return [row for row in rows if "committed_queue" not in row], committed

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Moves the group to a time while it consumes. Queue to the offset where it is now."""
        answer = self.ask("reset_offset", group=group, topic=topic, timestamp_ms=timestamp_ms)
        return {row["queue"]: row["offset"] for row in answer}

    def consume_directly(self, group: str, client_id: str, topic: str, offset_message_id: str) -> str:
        """Has one consumer consume one message now; its answer."""
        (row,) = self.ask("consume_directly", group=group, client_id=client_id, topic=topic, id=offset_message_id)
        return str(row["result"])

    def running_info(self, group: str, client_id: str, *, with_stacks: bool = False) -> Row:
        """Returns a consumer's report of itself."""
        (row,) = self.ask("running_info", group=group, client_id=client_id, jstack=with_stacks)
        return row


def _wire(spec: MessageSpec) -> Row:
    return {
        "topic": spec.topic,
        "body": base64.b64encode(spec.body).decode(),
        "tags": spec.tags,
        "keys": " ".join(spec.keys) or None,
        "properties": dict(spec.properties),
        "queue": spec.queue,
        "hash_key": spec.hash_key,
        "delay_level": spec.delay_level,
        "system_properties": dict(spec.system_properties),
    }
