"""Checks: transactional messages: the half message, its outcome, and answers to checks, with brokers by script."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cometmq._engine import ReceivedMessage, SendResult, decode_properties
from cometmq.aio import TransactionProducer as AsyncTransactionProducer
from cometmq.client import Producer, TransactionProducer, TransactionResult, TransactionState
from cometmq.client.instance.background import background
from cometmq.client.instance.server_requests import read_message
from cometmq.client.send import transactions
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.trace.trace_records import EndTransactionTrace, PubTrace, decode_trace
from cometmq.errors import ClientStateError, ForkedClient, InvalidArgument, SendFailed, WrongType
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from support.fake_cluster import Record
from support.frames import all_frames
from support.producers import played
from support.scripted_network import ScriptedNetwork, route_of
from support.sends import send_answer
from support.virtual_loop import VirtualLoop, run_virtual

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
PLACE = {"message_id": "7F00000100002A9F0000000000001234", "queue_offset": 7, "transaction_id": "U1"}
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def message(**given: Any) -> OutgoingMessage:
    return OutgoingMessage(b"body", **{"topic": "t", **given})


async def committed(message: ReceivedMessage) -> TransactionState:
    return COMMIT


async def in_transaction(
    engine: SendEngine, local: Callable[[SendResult], object], sent: OutgoingMessage | None = None
) -> TransactionResult:
    """Do what both surfaces do."""
    sent = sent or message()
    result = await engine.begin_transaction(sent)
    with engine.deciding(sent, result) as decision:
        if decision.is_open:
            decision.outcome = local(result)
    return TransactionResult(result, decision.state)


def outcomes(network: ScriptedNetwork) -> list[Command]:
    """The outcomes that brokers were sent."""
    return [command for _, command in network.oneways if command.code == RequestCode.END_TRANSACTION]


# --- Local transactions


@pytest.mark.parametrize(("outcome", "state"), [(COMMIT, 8), (ROLLBACK, 12), (UNKNOWN, 0), (None, 0)])
def test_outcome_of_a_local_transaction_goes_to_its_broker(outcome: TransactionState | None, state: int) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(**PLACE))
        seen: list[SendResult] = []

        def local(sent: SendResult) -> TransactionState | None:
            assert outcomes(network) == []
            seen.append(sent)
            return outcome

        result = await in_transaction(engine, local, message(tags="T", keys="k", properties={"a": "b"}))
        assert seen == [result.sent]
        assert result.state == state
        assert isinstance(result.state, TransactionState)
        ((_, half, _),) = network.sent
        assert (half.code, half.topic, half.sys_flag & 0xC, half.body) == (310, "t", 4, b"body")
        properties = decode_properties(half.properties)
        assert properties.items() >= {"TRAN_MSG": "true", "PGROUP": "g", "TAGS": "T", "KEYS": "k", "a": "b"}.items()
        assert properties["UNIQ_KEY"] == result.transaction_id
        ((address, end),) = network.oneways
        assert address == f"{half.broker_name}:1"
        assert (end.code, end.remark) == (37, None)
        assert end.fields == {
            "topic": "t",
            "producerGroup": "g",
            "tranStateTableOffset": "7",
            "commitLogOffset": str(0x1234),
            "commitOrRollback": str(state),
            "fromTransactionCheck": "false",
            "msgId": result.transaction_id,
            "transactionId": "U1",
            "bname": half.broker_name,
        }

    played(use, checker=committed)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_exception_of_a_local_transaction_is_unknown_and_the_callers(error: BaseException) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        def local(sent: SendResult) -> TransactionState:
            raise error

        network.script.append(send_answer(**PLACE))
        with pytest.raises(type(error)):
            await in_transaction(engine, local)
        (end,) = outcomes(network)
        assert end.fields["commitOrRollback"] == "0"
        assert end.remark == f"executeLocalTransactionBranch exception: {error!r}"

    played(use, checker=committed)


@pytest.mark.parametrize("outcome", [True, 8, "COMMIT"])
def test_outcome_of_another_type_is_refused(outcome: object) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(**PLACE))
        with pytest.raises(WrongType, match="return a TransactionState"):
            await in_transaction(engine, lambda sent: outcome)
        (end,) = outcomes(network)
        assert end.fields["commitOrRollback"] == "0"

    played(use, checker=committed)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_half_message_that_is_less_safe_than_asked_is_rolled_back(code: int) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=code, **PLACE))
        result = await in_transaction(engine, lambda sent: pytest.fail("it must not run"))
        assert result.state is ROLLBACK
        (end,) = outcomes(network)
        assert end.fields["commitOrRollback"] == "12"

    played(use, checker=committed)


def test_half_message_that_is_not_stored_has_no_transaction() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=16, remark="forbidden"))
        network.script.append(send_answer(code=13, remark="illegal"))
        with pytest.raises(SendFailed, match="illegal"):
            await in_transaction(engine, lambda sent: pytest.fail("it must not run"))
        assert network.oneways == []

    played(use, checker=committed)


@pytest.mark.parametrize(
    "held", [{"delay_level": 1}, {"delay_ms": 5}, {"deliver_at_ms": 5}, {"properties": {"TIMER_DELAY_SEC": "3"}}]
)
def test_message_in_a_transaction_cannot_be_held_back(held: dict[str, Any]) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        with pytest.raises(InvalidArgument, match="held back"):
            engine.begin_transaction(message(**held))
        assert network.sent == []

    played(use, checker=committed)


def test_outcome_without_a_master_is_left_to_a_check(caplog: pytest.LogCaptureFixture) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        def local(sent: SendResult) -> TransactionState:
            engine.instance.routes.__init__()  # type: ignore[misc]
            return COMMIT

        assert (await in_transaction(engine, local)).state is COMMIT
        assert network.oneways == []
        assert "no master" in caplog.text

    played(use, checker=committed)


def test_answer_without_a_place_does_not_hide_the_local_transactions_end(caplog: pytest.LogCaptureFixture) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(message_id="none"))
        assert (await in_transaction(engine, lambda sent: COMMIT)).state is COMMIT
        assert network.oneways == []
        assert "its outcome cannot be sent" in caplog.text

    played(use, checker=committed)


class Unprintable(Exception):
    """An error of a library whose text cannot be made any more, as of a row whose session is closed."""

    def __repr__(self) -> str:
        raise RuntimeError("the session is closed")


def test_errors_text_does_not_replace_the_error() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for error in (Unprintable(), ValueError("x" * 100_000), ValueError("a\udcff")):

            def local(sent: SendResult, error: Exception = error) -> TransactionState:
                raise error

            network.script.append(send_answer(**PLACE))
            with pytest.raises(type(error)):
                await in_transaction(engine, local)
            network.on_request("a:1", question())
        ends = await answered(network, 6)
        assert {end.fields["commitOrRollback"] for end in ends} == {"0"}
        assert all(len(Command.decode(end.encode()).remark or "") < 1_000 for end in ends)

    async def failing(message: ReceivedMessage) -> TransactionState:
        raise Unprintable

    played(use, checker=failing)


def test_local_transaction_that_returns_in_a_fork_has_no_outcome_there() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        def returning(sent: SendResult) -> TransactionState:
            engine.attempts.is_forked = True  # as in the child of a fork
            return COMMIT

        def leaving(sent: SendResult) -> TransactionState:
            engine.attempts.is_forked = True
            raise SystemExit

        network.script.append(send_answer(**PLACE))
        result = await engine.begin_transaction(message())
        for local, error in ((returning, ForkedClient), (leaving, SystemExit)):
            with pytest.raises(error), engine.deciding(message(), result) as decision:
                decision.outcome = local(result)
            engine.attempts.is_forked = False
        assert outcomes(network) == []

    played(use, checker=committed)


# --- Checks


def test_checker_is_not_asked_about_a_local_transaction_that_still_runs() -> None:
    async def checker(message: ReceivedMessage) -> TransactionState:
        checked.append(message.unique_id)
        return ROLLBACK

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(**PLACE))
        sent = await engine.begin_transaction(message())
        of_it = question({"UNIQ_KEY": sent.unique_id})
        with engine.deciding(message(), sent) as decision:
            network.on_request("a:1", of_it)
            network.on_request("a:1", question())
            ends = await answered(network, 2)
            assert {end.fields["msgId"]: end.fields["commitOrRollback"] for end in ends} == {
                sent.unique_id: "0",
                "U1": "12",
            }
            assert checked == ["U1"]
            decision.outcome = COMMIT
        network.on_request("a:1", of_it)
        await answered(network, 4)
        assert checked == ["U1", sent.unique_id]

    checked: list[str | None] = []
    played(use, checker=checker)


def question(properties: dict[str, str] | None = None, **changes: object) -> Command:
    stored = Record(
        topic="t",
        queue_id=2,
        queue_offset=9,
        physical_offset=0x5678,
        body=b"half",
        properties={"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "U1", **(properties or {})},
        born_ms=1,
        stored_ms=2,
    )
    fields: dict[str, object] = {
        "topic": HALF,
        "tranStateTableOffset": 9,
        "commitLogOffset": 0x5678,
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": "7F00000100002A9F0000000000005678",
        "bname": "a",
        **changes,
    }
    return request(RequestCode.CHECK_TRANSACTION_STATE, body=stored.encode(), **fields).as_oneway()


async def answered(network: ScriptedNetwork, count: int = 1) -> list[Command]:
    while len(outcomes(network)) < count:
        await asyncio.sleep(0.001)
    return outcomes(network)


@pytest.mark.parametrize(("outcome", "state"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOWN, "0"), (None, "0")])
def test_check_is_answered_by_the_checker(outcome: TransactionState | None, state: str) -> None:
    checked: list[ReceivedMessage] = []

    async def checker(message: ReceivedMessage) -> TransactionState | None:
        checked.append(message)
        return outcome

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        assert network.on_request("10.0.0.7:10911", question()) is None
        (end,) = await answered(network)
        assert network.oneways[0][0] == "10.0.0.7:10911"
        assert end.fields == {
            "topic": HALF,
            "producerGroup": "g",
            "tranStateTableOffset": "9",
            "commitLogOffset": str(0x5678),
            "commitOrRollback": state,
            "fromTransactionCheck": "true",
            "msgId": "U1",
            "transactionId": "U1",
            "bname": "a",
        }
        assert end.remark is None

    played(use, checker=checker)
    assert [(one.unique_id, one.topic, one.body_bytes) for one in checked] == [("U1", "t", b"half")]


def test_check_of_a_broker_before_5_0_is_answered_in_its_form() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.on_request("a:1", question(topic=None, bname=None))
        (end,) = await answered(network)
        assert not {"topic", "bname"} & set(end.fields)

    played(use, checker=committed)


def test_checker_that_fails_is_unknown_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(message: ReceivedMessage) -> TransactionState:
        raise ValueError("database is gone")

    async def wrong(message: ReceivedMessage) -> Any:
        return "COMMIT"

    for checker, reason in ((failing, "database is gone"), (wrong, "return a TransactionState")):

        async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop, reason: str = reason) -> None:
            network.on_request("a:1", question())
            (end,) = await answered(network)
            assert end.fields["commitOrRollback"] == "0"
            assert end.remark is not None
            assert end.remark.startswith("checkLocalTransactionState Exception: ")
            assert reason in end.remark

        played(use, checker=checker)
    assert caplog.text.count("the checker failed") == 2


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(), GeneratorExit()]
)
def test_plain_checker_that_ends_its_thread_is_unknown(error: BaseException) -> None:
    def checker(message: ReceivedMessage) -> TransactionState:
        raise error

    async def main() -> None:
        network = ScriptedNetwork(t=route_of("a"))
        settings = ProducerSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.1")
        engine = await SendEngine.open(settings, checker=checker, network_factory=network.factory)
        network.on_request("a:1", question())
        (end,) = await answered(network)
        assert end.fields["commitOrRollback"] == "0"
        assert type(error).__name__ in (end.remark or "")
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_coroutine_checker_that_ends_the_process_is_unknown() -> None:
    async def checker(message: ReceivedMessage) -> TransactionState:
        raise SystemExit(1)

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.on_request("a:1", question())
        (end,) = await answered(network)
        assert end.fields["commitOrRollback"] == "0"

    played(use, checker=checker)


def test_checks_of_other_groups_and_of_plain_producers_get_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        assert network.on_request("a:1", question({"PGROUP": "other"})) is None
        await asyncio.sleep(1)
        assert outcomes(network) == []
        assert "group other, which is not here" in caplog.text

    played(use, checker=committed)

    async def plainly(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        assert network.on_request("a:1", question()) is None
        await asyncio.sleep(1)
        assert outcomes(network) == []

    played(plainly)


def test_waiting_checks_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(transactions, "CHECKS_MAX", 2)

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for _ in range(3):
            network.on_request("a:1", question())
        await asyncio.sleep(1)
        assert outcomes(network) == []
        assert "2 checks wait" in caplog.text
        go.set()
        await answered(network, 2)
        network.on_request("a:1", question())
        await answered(network, 3)

    go = asyncio.Event()

    async def slow(message: ReceivedMessage) -> TransactionState:
        await go.wait()
        return COMMIT

    played(use, checker=slow)


def test_plain_checker_runs_in_a_thread_of_its_own_and_ends_with_the_producer() -> None:
    threads: list[str] = []
    may_end = threading.Event()

    def checker(message: ReceivedMessage) -> TransactionState:
        threads.append(threading.current_thread().name)
        assert may_end.wait(30)
        return COMMIT

    async def main() -> None:
        network = ScriptedNetwork(t=route_of("a"))
        settings = ProducerSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.1")
        engine = await SendEngine.open(settings, checker=checker, network_factory=network.factory)
        network.on_request("a:1", question())
        network.on_request("a:1", question())
        assert engine._transactions is not None
        while engine._transactions._checking < 2:
            await asyncio.sleep(0)
        may_end.set()
        assert [end.fields["commitOrRollback"] for end in await answered(network, 2)] == ["8", "8"]
        await engine.close()
        await engine.check_transaction("a:1", question(), None)  # type: ignore[arg-type]
        assert len(outcomes(network)) == 2

    asyncio.run(main())
    assert len(threads) == 2
    assert set(threads) == {"cometmq-check_0"}


def test_checker_may_be_an_object_whose_call_is_a_coroutine() -> None:
    class Checker:
        async def __call__(self, message: ReceivedMessage) -> TransactionState:
            return ROLLBACK

    async def main() -> None:
        network = ScriptedNetwork(t=route_of("a"))
        settings = ProducerSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.1")
        engine = await SendEngine.open(settings, checker=Checker(), network_factory=network.factory)
        network.on_request("a:1", question())
        assert [end.fields["commitOrRollback"] for end in await answered(network)] == ["12"]
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["apache-5.3.3", "apache-4.9.7"])
def test_captured_checks_of_apaches_broker_are_answered_as_by_javas_client(name: str) -> None:
    frames = all_frames(name)
    if frames is None:
        pytest.skip("the captured frames of whole runs are not at hand: they lie beside the tree, in ../shared/golden")
    codes = (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.END_TRANSACTION)
    commands = [frame.command for frame in frames if frame.server == "broker"]
    commands = [one for one in commands if one.code in codes and not one.is_response]
    checks = [one for one in commands if one.code == RequestCode.CHECK_TRANSACTION_STATE]
    theirs = {
        one.fields["commitLogOffset"]: one for one in commands if one.fields.get("fromTransactionCheck") == "true"
    }
    assert len(checks) >= 3

    async def main(loop: VirtualLoop) -> None:
        network = ScriptedNetwork(t=route_of("a"))
        (group,) = {one.fields["producerGroup"] for one in theirs.values()}
        settings = ProducerSettings(group=group, name_servers=("ns:9876",), client_ip="10.0.0.1")

        async def checker(message: ReceivedMessage) -> TransactionState:
            found = theirs[str(message.physical_offset)]
            return TransactionState(int(found.fields["commitOrRollback"]))

        engine = await SendEngine.open(settings, checker=checker, network_factory=network.factory, now_ms=loop.now_ms)
        for number, check in enumerate(checks, start=1):
            assert network.on_request("a:1", check) is None
            end = (await answered(network, number))[-1]
            assert end.fields == theirs[check.fields["commitLogOffset"]].fields
        await engine.close()

    run_virtual(main)


# --- Trace


def test_outcomes_are_traced() -> None:
    network = ScriptedNetwork(t=route_of("a"), RMQ_SYS_TRACE_TOPIC=route_of("b"))

    async def main(loop: VirtualLoop) -> None:
        settings = ProducerSettings(group="g", name_servers=("ns:1",), client_ip="10.0.0.1", enable_trace=True)
        engine = await SendEngine.open(settings, checker=committed, network_factory=network.factory, now_ms=loop.now_ms)
        network.script.append(send_answer(**PLACE, region_id="r1"))
        result = await in_transaction(engine, lambda sent: ROLLBACK, message(tags="T", keys="k"))
        network.on_request("a:1", question({"MSG_REGION": "r2"}))
        network.on_request("a:1", question({"TRACE_ON": "false"}))
        await answered(network, 3)
        await engine.close()
        traced = [one for _, one, _ in network.sent if one.topic == "RMQ_SYS_TRACE_TOPIC"]
        records = [record for one in traced for record in decode_trace(one.body.decode())]
        pub, end, checked = records
        assert isinstance(pub, PubTrace)
        assert (pub.message_type, pub.message_id) == (1, result.transaction_id)
        assert isinstance(end, EndTransactionTrace)
        assert (end.message_id, end.transaction_id, end.topic) == (result.transaction_id, "U1", "t")
        assert (end.state, end.region_id, end.store_host) == ("ROLLBACK_MESSAGE", "r1", "a:1")
        assert (end.tags, end.keys, end.message_type, end.is_from_check) == ("T", "k", 2, False)
        assert isinstance(checked, EndTransactionTrace)
        assert (checked.state, checked.region_id, checked.is_from_check) == ("COMMIT_MESSAGE", "r2", True)
        assert (checked.group, checked.topic, checked.message_id) == ("g", "t", "U1")

    run_virtual(main)


# --- Surfaces


@pytest.mark.parametrize("kind", [TransactionProducer, AsyncTransactionProducer])
def test_checker_is_a_function(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="checker"):
        kind("g", checker="COMMIT")
    with pytest.raises(TypeError):
        kind("g")
    assert "TransactionProducer g" in repr(kind("g", checker=committed))
    assert issubclass(TransactionProducer, Producer)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> ScriptedNetwork:
    """The network of clients that a test makes."""
    scripted = ScriptedNetwork(t=route_of("a"))
    monkeypatch.setattr("cometmq.client.instance.instance._hub", scripted.factory)
    return scripted


def check_surface(network: ScriptedNetwork, send: Callable[[Any], TransactionResult]) -> None:
    """Check what a surface's ``send_in_transaction`` does; ``send`` calls it with a local transaction."""
    network.script.extend([send_answer(**PLACE), send_answer(code=10, **PLACE), send_answer(**PLACE)])
    seen: list[SendResult] = []

    def local(sent: SendResult) -> TransactionState:
        seen.append(sent)
        return COMMIT

    result = send(local)
    assert (seen, result.state) == ([result.sent], COMMIT)
    assert decode_properties(network.sent[0][1].properties).items() >= {"TAGS": "T", "KEYS": "k", "a": "b"}.items()
    assert send(local).state is ROLLBACK
    assert len(seen) == 1

    def failing(sent: SendResult) -> TransactionState:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        send(failing)
    assert [end.fields["commitOrRollback"] for end in outcomes(network)] == ["8", "12", "0"]


def test_blocking_surface(network: ScriptedNetwork) -> None:
    with TransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
        check_surface(
            network,
            lambda local: producer.send_in_transaction(
                "t", b"x", local=local, tags="T", keys="k", properties={"a": "b"}
            ),
        )
        with pytest.raises(InvalidArgument, match="not both"):
            producer.send_in_transaction(message(), b"x", local=lambda sent: COMMIT)


def test_blocking_calls_on_the_loop_send_nothing(network: ScriptedNetwork) -> None:
    with TransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
        asked = read_message(
            question({"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "c", "CLUSTER": "C"}).body, broker_name="a"
        )
        calls: list[Callable[[], object]] = [
            lambda: producer.send_in_transaction("t", b"x", local=lambda sent: COMMIT),
            lambda: producer.request("t", b"x"),
            lambda: producer.reply_to(asked, b"x"),
        ]

        async def on_the_loop() -> None:
            for call in calls:
                with pytest.raises(ClientStateError, match="own event loop"):
                    call()
            await asyncio.sleep(0)

        background().run(on_the_loop())
        producer.flush()
        assert network.sent == []


@pytest.mark.parametrize("local", [5, None, "COMMIT", COMMIT])
def test_local_transaction_that_cannot_be_called_stores_nothing(network: ScriptedNetwork, local: Any) -> None:
    with (
        TransactionProducer("g", checker=committed, name_servers="ns:9876") as producer,
        pytest.raises(WrongType, match="give a function that takes a SendResult"),
    ):
        producer.send_in_transaction("t", b"x", local=local)

    async def send() -> None:
        async with AsyncTransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
            with pytest.raises(WrongType, match="give a function that takes a SendResult"):
                await producer.send_in_transaction("t", b"x", local=local)

    asyncio.run(send())
    assert network.sent == []


def test_blocking_producer_refuses_a_coroutine_as_local_transaction(network: ScriptedNetwork) -> None:
    async def book(sent: SendResult) -> TransactionState:
        return COMMIT

    class Booking:
        async def __call__(self, sent: SendResult) -> TransactionState:
            return COMMIT

    locals_: list[Any] = [book, functools.partial(book), Booking()]
    with TransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
        for local in locals_:
            with pytest.raises(WrongType, match=r"use the producer of cometmq\.aio"):
                producer.send_in_transaction("t", b"x", local=local)
    assert network.sent == []


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_asyncio_surface(network: ScriptedNetwork, is_coroutine: bool) -> None:
    async def sends(local: Callable[[SendResult], TransactionState]) -> TransactionResult:
        async def awaited(sent: SendResult) -> TransactionState:
            await asyncio.sleep(0)
            return local(sent)

        async with AsyncTransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
            return await producer.send_in_transaction(
                "t", b"x", local=awaited if is_coroutine else local, tags="T", keys="k", properties={"a": "b"}
            )

    check_surface(network, lambda local: asyncio.run(sends(local)))


def test_cancelled_local_transaction_is_unknown(network: ScriptedNetwork) -> None:
    async def story() -> None:
        network.script.append(send_answer(**PLACE))
        began = asyncio.Event()

        async def local(sent: SendResult) -> TransactionState:
            began.set()
            await asyncio.Event().wait()
            return COMMIT

        async with AsyncTransactionProducer("g", checker=committed, name_servers="ns:9876") as producer:
            task = asyncio.ensure_future(producer.send_in_transaction("t", b"x", local=local))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(story())
    assert [end.fields["commitOrRollback"] for end in outcomes(network)] == ["0"]
