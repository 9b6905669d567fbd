"""Our client in bad weather: brokers restarted and killed under load, name servers that go and come back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import cometmq.admin
from cometmq.client import Producer, PullConsumer, SimpleConsumer
from cometmq.errors import ConnectionLost, Error, SendFailed
from interop.landscapes import on_each_server
from interop.members import (
    QUICK,
    Seen,
    as_arguments,
    create_topic,
    keyed,
    keys_of,
    producer,
    push,
)
from interop.sites import SHARED_SETTINGS, Site
from interop.waiting import LIMIT_S, eventually

QUEUES = 4


class Load:
    """A thread that sends one message after the other, and keeps what became of each, until the context ends."""

    def __init__(self, sender: Producer, topic: str) -> None:
        self._sender = sender
        self._topic = topic
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._sent = 0
        self._others: list[str] = []
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        """Of these it is certain that they are not stored."""
        self.failures = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert self._others == []

    def _run(self) -> None:
        while not self._is_over:
            key = f"n{self._sent}"
            self._sent += 1
            try:
                self._sender.send(self._topic, b"x", keys=key)
                outcome = self.acknowledged
            except SendFailed as failure:
                self.failures += 1
                outcome = set() if failure.is_uncertain else self.refused
            except Error as other:
                self._others.append(repr(other))
                return
            with self._changed:
                outcome.add(key)
                self._changed.notify_all()

    def until(self, *, acknowledged: int = 0, failures: int = 0) -> None:
        """Waits until so many more were acknowledged, or were not."""
        with self._changed:
            acknowledged += len(self.acknowledged)
            failures += self.failures
            assert self._changed.wait_for(
                lambda: len(self.acknowledged) >= acknowledged and self.failures >= failures, LIMIT_S
            ), (len(self.acknowledged), self.failures, self._others)


@on_each_server()
@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.java(full=True))])
def test_nothing_acknowledged_is_lost_when_the_broker_ends_under_load(servers: Site, tmp_path: Path, end: str) -> None:
    topic, name, seen = f"PyWeather_{end}", f"broker-{end}", Seen()
    with servers.broker(tmp_path / "store", name=name) as broker:
        create_topic(servers, topic, queues=QUEUES, broker_names=(name,))
        with (
            push(servers, f"py_weather_{end}", seen, pull_time_delay_when_exception_ms=100).subscribe(topic),
            producer(servers, send_msg_timeout_ms=1000) as sender,
        ):
            with Load(sender, topic) as load:
                load.until(acknowledged=100)
                seen.wait_for(50)
                getattr(broker, end)()
                load.until(failures=1)
                broker.start()
                servers.await_broker(broker)
                load.until(acknowledged=100)
            came = {one.key for one in seen.until(lambda taken: {one.key for one in taken} >= load.acknowledged)}
        assert not came & load.refused
        broker.kill()  # a clean end takes ten seconds, and nothing of it is wanted


@on_each_server(short=False, quick=False)
def test_one_of_three_brokers_goes_and_comes_back(servers: Site, tmp_path: Path) -> None:
    topic, seen = "PyThree", Seen()
    names = ("broker-1", "broker-2", "broker-3")
    with (
        servers.broker(tmp_path / "1", name=names[0]),
        servers.broker(tmp_path / "2", name=names[1]) as going,
        servers.broker(tmp_path / "3", name=names[2]),
    ):
        create_topic(servers, topic, queues=2, broker_names=names)
        with (
            push(servers, "py_three", seen, pull_time_delay_when_exception_ms=100).subscribe(topic),
            producer(servers) as sender,
        ):
            with Load(sender, topic) as load:
                load.until(acknowledged=100)
                seen.until(lambda taken: {one.message.broker_name for one in taken} == set(names))
                going.kill()
                # The others take what this one does not.
                load.until(acknowledged=100)
                going.start()
                servers.await_broker(going)
                there = len(seen.all)
                load.until(acknowledged=100)
                seen.until(lambda taken: any(one.message.broker_name == names[1] for one in taken[there:]))
            seen.until(lambda taken: {one.key for one in taken} >= load.acknowledged)
        assert load.failures == 0
        servers.kill_brokers()


@on_each_server(short=False, quick=False, old=False)
@pytest.mark.parametrize("kind", [SimpleConsumer, PullConsumer])
def test_a_loop_goes_on_when_its_broker_comes_back(
    servers: Site, tmp_path: Path, kind: type[SimpleConsumer | PullConsumer]
) -> None:
    topic, name, seen = f"PyLoop{kind.__name__}", f"broker-loop-{kind.__name__}", Seen()
    errors: list[Exception] = []
    with servers.broker(tmp_path / "store", name=name, settings=SHARED_SETTINGS) as broker:
        create_topic(servers, topic, queues=1, broker_names=(name,))
        consumer = kind(
            "py_loop",
            name_servers=servers.namesrv.address,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            poll_name_server_interval_ms=QUICK["poll_name_server_interval_ms"],
        )

        def work() -> None:
            listener = seen.by()
            try:
                for message in consumer:
                    listener(message)
            except Exception as error:  # noqa: BLE001 - reported by the test
                errors.append(error)

        with producer(servers, send_msg_timeout_ms=1000) as sender, consumer:
            consumer.subscribe(topic)
            thread = threading.Thread(target=work)
            thread.start()
            with Load(sender, topic) as load:
                load.until(acknowledged=20)
                seen.until(lambda taken: len(taken) >= 10 or errors)
                assert errors == []
                broker.kill()
                load.until(failures=3)
                broker.start()
                servers.await_broker(broker)
                load.until(acknowledged=20)
            seen.until(lambda taken: {one.key for one in taken} >= load.acknowledged or errors)
            consumer.close()
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert errors == []
        broker.kill()


@on_each_server(short=False)
def test_a_name_server_goes_and_comes_back(servers: Site, tmp_path: Path) -> None:
    topic, later, name, seen = "PyNameless", "PyNamelessLater", "broker-nameless", Seen()
    specs = keyed(topic, range(60), queues=2)
    with servers.another_name_server("lone") as lone:
        both = f"{servers.namesrv.address};{lone.address}"
        with (
            servers.broker(tmp_path / "store", name=name, settings={"namesrvAddr": both}) as broker,
            cometmq.admin.connect(namesrv=lone.address) as admin,
        ):
            create_topic(servers, topic, queues=2, broker_names=(name,))
            eventually(lambda: topic in admin.topics.list())
            at: dict[str, str] = {"name_servers": lone.address}
            with (
                push(servers, "py_nameless", seen, **at).subscribe(topic) as consumer,
                producer(servers, **at) as sender,
            ):
                for spec in specs[:20]:
                    sender.send(**as_arguments(spec, name))
                seen.wait_for_keys(keys_of(specs[:20]))
                lone.stop()
                # Clients that know the brokers go on.
                for spec in specs[20:40]:
                    sender.send(**as_arguments(spec, name))
                seen.wait_for_keys(keys_of(specs[:40]))
                with producer(servers, "py_late", send_msg_timeout_ms=500, **at) as late:
                    with pytest.raises(ConnectionLost, match=lone.address):
                        late.send(topic, b"x")
                    lone.start()
                    servers.await_broker(broker, name_server=lone.address)
                    create_topic(servers, later, queues=1, broker_names=(name,))
                    eventually(lambda: later in admin.topics.list())
                    for spec in specs[40:50]:
                        late.send(**as_arguments(spec, name))
                    consumer.subscribe(later)
                    for spec in keyed(later, range(50, 60), queues=1):
                        sender.send(**as_arguments(spec, name))
                seen.wait_for_keys(keys_of(specs))
            broker.kill()


@on_each_server(short=False, quick=False)
def test_one_of_two_name_servers_is_enough(servers: Site, tmp_path: Path) -> None:
    name, seen = "broker-named-twice", Seen()
    with servers.another_name_server("second") as second:
        both = f"{second.address};{servers.namesrv.address}"
        with servers.broker(tmp_path / "store", name=name, settings={"namesrvAddr": both}) as broker:
            for topic in ("PyTwice", "PyTwiceLater"):
                create_topic(servers, topic, queues=2, broker_names=(name,))
            with (
                push(servers, "py_twice", seen, name_servers=both).subscribe("PyTwice") as consumer,
                producer(servers, name_servers=both) as sender,
            ):
                sender.send("PyTwice", b"x", keys="n0")
                seen.wait_for_keys(["n0"])
                second.stop()
                # A topic that neither had asked for yet.
                consumer.subscribe("PyTwiceLater")
                sender.send("PyTwiceLater", b"x", keys="n1")
                seen.wait_for_keys(["n0", "n1"])
                # Somebody new, whose first address is the dead one.
                with producer(servers, "py_new", name_servers=both) as new:
                    new.send("PyTwice", b"x", keys="n2")
                seen.wait_for_keys(["n0", "n1", "n2"])
            broker.kill()
