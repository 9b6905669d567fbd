"""Checks: the table of limits in docs/operating.md is true: each row has its value in the code, and is tried.

Most rows are tried here, by a client that asks for one more. The others are tried by the tests that are named.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.broker import (
    client_forwarding,
    clients,
    filters,
    groups,
    locks,
    offsets,
    queries,
    replies,
    staged_writes,
    stats,
    topics,
)
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.cli import logs
from cometmq.namesrv.kv_config import KVLimits
from cometmq.namesrv.routes import LOST_BROKERS_MAX, RouteLimits
from cometmq.remoting import lanes
from cometmq.remoting.bodies import registration
from cometmq.remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store import handoff_door
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.java_properties import CONFIG_BYTES_MAX
from cometmq.store_config.json_types import REQUEST_LIMITS
from cometmq.store_config.setting_names import OPTIONS
from support.broker_twins import send_fields

ROOT = Path(__file__).parents[2]
TIMEOUT_MS = 60_000
SMALL = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}
BUSY, ERROR, ILLEGAL = ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL
DEFAULTS = BrokerSettings()


def rows() -> dict[str, tuple[str, str]]:
    """The table: limit to its default and its setting."""
    text = (ROOT / "docs" / "operating.md").read_text()
    section = text[text.index("## Limits") :].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [len(row) for row in cells] == [4] * len(cells)
    assert cells[0] == ["limit", "default", "setting", "then"]
    return {limit: (default, setting.strip("`")) for limit, default, setting, _ in cells[1:]}


VALUES: dict[str, object] = {
    "requests of one connection that take long": lanes.LANE_WAITING_MAX,
    "characters of a body that is not strict JSON": REQUEST_LIMITS.lenient_chars,
    "values of a body": REQUEST_LIMITS.parts,
    "bytes of settings in a request": CONFIG_BYTES_MAX,
    "topics of a request": topics.TOPICS_OF_REQUEST_MAX,
    "groups of a request": groups.GROUPS_OF_REQUEST_MAX,
    "queues that an answer is about": offsets.QUEUES_OF_REQUEST_MAX,
    "queue units of an answer": queries.UNITS_MAX,
    "messages of other keys with the same hash, of a query by key": queries.MISSES_MAX,
    "groups of a connection, of each kind": clients.GROUPS_OF_CONNECTION_MAX,
    "topics that a group subscribes to": clients.SUBSCRIPTIONS_MAX,
    "characters of a clientID": clients.CLIENT_ID_CHARS_MAX,
    "characters of a group's expressions": clients.EXPRESSION_CHARS_MAX,
    "characters of the SQL92 expressions of all groups": filters.EXPRESSION_CHARS_MAX,
    "queues locked by a request": locks.LOCKS_OF_REQUEST_MAX,
    "locks of all groups": locks.LOCKS_MAX,
    "topics that a group must not read": groups.FORBIDDEN_TOPICS_MAX,
    "requests forwarded for one connection": client_forwarding.FORWARDED_OF_CALLER_MAX,
    "requests forwarded to one client": client_forwarding.FORWARDED_TO_CLIENT_MAX,
    "requests forwarded for all": client_forwarding.FORWARDED_MAX,
    "replies that wait for one requester": replies.PUSHED_TO_CLIENT_MAX,
    "replies that wait for all requesters": replies.PUSHED_MAX,
    "keys of each statistic": stats.KEYS_MAX,
    "brokers of a name server": RouteLimits().brokers,
    "topics of all brokers, at a name server": RouteLimits().topics,
    "topics of a registration, at a name server": registration.REGISTERED_TOPICS_MAX,
    "keys and namespaces of a name server": KVLimits().entries,
    "characters of all of them": KVLimits().total_chars,
    "lost brokers that a name server remembers": LOST_BROKERS_MAX,
    "files of a staged write": staged_writes.FILES_OF_JOB_MAX,
    "files of all staged writes": staged_writes.FILES_MAX,
    "bytes of an append through a store's door": handoff_door.REQUEST_BYTES_MAX,
    "connections to a store's door": handoff_door.CONNECTIONS_MAX,
    "log lines of one event in a second": logs.LINES_PER_SECOND_MAX,
    "log lines that wait for the reader of stderr": logs.LINES_WAITING_MAX,
    "characters of a value in a log line": logs.VALUE_CHARS_MAX,
}
"""The numbers that Python has of its own."""

CONSTANTS: dict[str, tuple[str, str]] = {
    "bytes of a frame": ("wire/cmq_frame.h", "CMQ_FRAME_BYTES_MAX"),
    "fields of a header": ("wire/cmq_command.h", "CMQ_COMMAND_FIELDS_MAX"),
    "tags of an expression": ("broker/tables/cmq_filter.h", "CMQ_FILTER_TAGS_MAX"),
    "parentheses and prefix operators within one another, in an SQL92 expression": (
        "filter/cmq_selector.h",
        "CMQ_SELECTOR_DEPTH_MAX",
    ),
    "bytes that CONTAINS and comparisons of properties look at in one message": (
        "filter/cmq_selector.h",
        "CMQ_SELECTOR_LOOKS_MAX",
    ),
    "copies of half messages for nobody, in a round of checks": ("broker/txn/cmq_txn.h", "CMQ_TXN_FREE_COPIES_MAX"),
    "ends of transactions whose op record cannot be written": ("broker/txn/cmq_txn.h", "CMQ_TXN_TEXTS_MAX"),
    "open half messages that were copied": ("broker/txn/cmq_txn_copies.h", "CMQ_TXN_COPIES_MAX"),
    "entries of a list of acks": ("broker/pop/cmq_pop_internal.h", "CMQ_POP_LIST_ENTRIES_MAX"),
    "lists of over 32 acks that one connection has waiting": (
        "broker/pop/cmq_pop_internal.h",
        "CMQ_POP_LISTS_CONN_MAX",
    ),
    "tags that they wait for": ("broker/loop/cmq_hold.h", "CMQ_HOLDS_TAGS_MAX"),
    "bytes of compiled SQL92 expressions that held requests keep, for each thread of connections": (
        "broker/loop/cmq_hold_programs.h",
        "CMQ_HOLDS_PROGRAM_BYTES_MAX",
    ),
    "queues with messages that pops look at in a turn of a thread of connections": (
        "broker/pop/cmq_pop_internal.h",
        "CMQ_POP_LOOKS_PER_TURN",
    ),
    "steps of SQL92 expressions that a request takes": (
        "broker/loop/cmq_broker_internal.h",
        "CMQ_STEPS_PER_REQUEST",
    ),
    "messages of a pop": ("broker/pop/record/cmq_pop_record.h", "CMQ_POP_MESSAGES_MAX"),
    "progress (group, topic, queue)": ("broker/tables/cmq_offsets.h", "CMQ_OFFSETS_ENTRIES_MAX"),
    "resets of offsets that are guarded against commits from before": (
        "broker/tables/cmq_offsets.h",
        "CMQ_OFFSETS_FENCES_MAX",
    ),
}
"""The numbers of the engine."""


# --- Trying -----------------------------------------------------------------------------------------------------------


@contextmanager
def served(path: Path, **settings: object) -> Iterator[Broker]:
    with Broker(load_broker_config(path, listen=":0", settings={**SMALL, **settings}, environ={})) as broker:
        yield broker


def ask(broker: Broker, code: int, body: bytes = b"", **fields: str) -> Command:
    with Channel(broker.address) as channel:
        return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_MS / 1000)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def first_answer(connection: socket.socket) -> Command:
    with connection.makefile("rb") as stream:
        prefix = stream.read(4)
        return Command.decode(prefix + stream.read(int.from_bytes(prefix, "big")))


def make_topic(broker: Broker, name: str, queues: int) -> None:
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields).code == ResponseCode.SUCCESS


def frame_bytes(path: Path) -> None:
    with served(path) as broker, connect(broker) as connection:
        connection.sendall(((16 << 20) + 1).to_bytes(4, "big") + bytes(8))
        assert is_closed(connection)


def header_fields(path: Path) -> None:
    with served(path) as broker:
        assert ask(broker, RequestCode.GET_BROKER_CONFIG, **{f"f{number}": "" for number in range(65)}).code == ERROR


def body_bytes(path: Path) -> None:
    with served(path, maxMessageSize=1_000) as broker:
        fields = {
            "a": "p",
            "b": "orders",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
        }
        assert ask(broker, RequestCode.SEND_MESSAGE_V2, bytes(1_001), **fields).code == ILLEGAL
        assert ask(broker, RequestCode.SEND_MESSAGE_V2, bytes(1_000), **fields).code == ResponseCode.SUCCESS


def connections(path: Path) -> None:
    with served(path, connectionsMax=2) as broker, connect(broker), connect(broker), connect(broker) as third:
        assert is_closed(third)


def connections_of_one_address(path: Path) -> None:
    limited = served(path, connectionsMax=100, connectionsPerAddressMax=2)
    with limited as broker, connect(broker), connect(broker), connect(broker) as third:
        assert is_closed(third)


def long_requests(path: Path) -> None:
    with served(path) as broker, connect(broker) as connection:
        make_topic(broker, "wide", 65_536)
        fields = {"consumerGroup": "g", "topic": "wide"}
        requests = [
            Command(code=RequestCode.GET_CONSUME_STATS, fields=fields, opaque=number).encode()
            for number in range(lanes.LANE_WAITING_MAX + 1)
        ]
        connection.sendall(b"".join(requests))
        answer = first_answer(connection)
        assert (answer.code, answer.opaque) == (BUSY, lanes.LANE_WAITING_MAX)


def lenient_chars(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.HEART_BEAT, b"{a:" + b" " * 262_144 + b"1}")
        assert "not strict JSON" in str(answer.remark)


def values(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.HEART_BEAT, b'{"a":[' + b"1," * 300_000 + b"1]}")
        assert "300000 values" in str(answer.remark)


def settings_bytes(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.UPDATE_BROKER_CONFIG, b"#" * (CONFIG_BYTES_MAX + 1))
        assert answer.code == ERROR


def topics_of_a_request(path: Path) -> None:
    topic = b'{"topicName":"t%d"}'
    listed = b",".join(topic % number for number in range(topics.TOPICS_OF_REQUEST_MAX + 1))
    with served(path) as broker:
        answer = ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[' + listed + b"]}")
        assert (answer.code, "10001 topics" in str(answer.remark)) == (ERROR, True)


def groups_of_a_request(path: Path) -> None:
    group = b'{"groupName":"g%d"}'
    listed = b",".join(group % number for number in range(groups.GROUPS_OF_REQUEST_MAX + 1))
    with served(path) as broker:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        answer = ask(broker, code, b'{"groupConfigList":[' + listed + b"]}")
        assert (answer.code, "10001 groups" in str(answer.remark)) == (ERROR, True)


def queues_of_an_answer(path: Path) -> None:
    with served(path) as broker:
        make_topic(broker, "wide", 65_536)
        make_topic(broker, "wider", 65_536)
        answer = ask(broker, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList="wide;wider")
        assert (answer.code, "100000 queues" in str(answer.remark)) == (ERROR, True)


def beat(path: Path, text: str, **members: object) -> None:
    with served(path) as broker:
        data = HeartbeatData(client_id="c", **members)  # type: ignore[arg-type]
        answer = ask(broker, RequestCode.HEART_BEAT, data.to_json())
        assert (answer.code, text in str(answer.remark)) == (ERROR, True)
        assert list(broker.control.clients.consumers.groups()) == []


def groups_of_a_connection(path: Path) -> None:
    producers = tuple(ProducerData(group_name=f"p{number}") for number in range(1_001))
    beat(path, "1000 groups", producers=producers)


def subscriptions(path: Path) -> None:
    many = tuple(SubscriptionData(topic=f"t{number}", sub_string="*") for number in range(2_001))
    beat(path, "2000 topics", consumers=(ConsumerData(group_name="g", subscriptions=many),))


def expressions(path: Path) -> None:
    long = (SubscriptionData(topic="t", sub_string="x" * 262_145),)
    beat(path, "262144 characters", consumers=(ConsumerData(group_name="g", subscriptions=long),))


def locks_of_a_request(path: Path) -> None:
    queues = tuple(MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(65_537))
    with served(path) as broker:
        body = LockBatchRequestBody(consumer_group="g", client_id="c", queues=queues).to_json()
        assert "65536 queues" in str(ask(broker, RequestCode.LOCK_BATCH_MQ, body).remark)


def forwarded_requests(path: Path) -> None:
    """A member that never answers, and one more request than may wait for it."""
    with served(path) as broker, Channel(broker.address) as member, connect(broker) as asker:
        data = HeartbeatData(client_id="silent", consumers=(ConsumerData(group_name="g"),))
        beaten = member.invoke(Command(code=RequestCode.HEART_BEAT, body=data.to_json()), timeout_ms=TIMEOUT_MS)
        assert beaten.code == ResponseCode.SUCCESS
        most = client_forwarding.FORWARDED_OF_CALLER_MAX
        fields = {"consumerGroup": "g", "clientId": "silent"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        asker.sendall(b"".join(Command(code=code, fields=fields, opaque=n).encode() for n in range(most + 1)))
        answer = first_answer(asker)
        assert (answer.code, answer.opaque) == (BUSY, most)


def waiting_replies(path: Path) -> None:
    """A requester that never acknowledges, and one more reply than may wait for it."""
    with served(path) as broker, Channel(broker.address) as requester, connect(broker) as replier:
        data = HeartbeatData(client_id="silent", producers=(ProducerData(group_name="p"),))
        beaten = requester.invoke(Command(code=RequestCode.HEART_BEAT, body=data.to_json()), timeout_ms=TIMEOUT_MS)
        assert beaten.code == ResponseCode.SUCCESS
        most = replies.PUSHED_TO_CLIENT_MAX
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        names = {"topic": "DefaultCluster_REPLY_TOPIC", "properties": "REPLY_TO_CLIENT\x01silent\x02"}
        reply = Command(code=code, fields=send_fields(code, **names), body=b"x")
        replier.sendall(b"".join(reply.with_opaque(number).encode() for number in range(most + 1)))
        answer = first_answer(replier)
        assert (answer.code, answer.opaque) == (BUSY, most)


TRIED: dict[str, Callable[[Path], None]] = {
    "bytes of a frame": frame_bytes,
    "fields of a header": header_fields,
    "bytes of a message's body": body_bytes,
    "connections": connections,
    "connections of one address": connections_of_one_address,
    "requests of one connection that take long": long_requests,
    "characters of a body that is not strict JSON": lenient_chars,
    "values of a body": values,
    "bytes of settings in a request": settings_bytes,
    "topics of a request": topics_of_a_request,
    "groups of a request": groups_of_a_request,
    "queues that an answer is about": queues_of_an_answer,
    "groups of a connection, of each kind": groups_of_a_connection,
    "topics that a group subscribes to": subscriptions,
    "characters of a group's expressions": expressions,
    "queues locked by a request": locks_of_a_request,
    "requests forwarded for one connection": forwarded_requests,
    "replies that wait for one requester": waiting_replies,
}

NET = "tests/c/net/test_cmq_net_limits.c"
UNIT = "tests/unit/broker"
TXN = "tests/c/broker/txn"
DOOR = "tests/unit/store/test_handoff_door.py"
TRIED_ELSEWHERE = {
    "ends of transactions whose op record cannot be written": (f"{TXN}/test_cmq_txn.c", "texts_have_a_limit"),
    "open half messages that were copied": (f"{TXN}/test_cmq_txn_ended.c", "copies_have_a_limit"),
    "characters of the SQL92 expressions of all groups": (f"{UNIT}/test_filters.py", "test_expressions_have_a_limit"),
    "bytes that CONTAINS and comparisons of properties look at in one message": (
        "tests/c/filter/test_cmq_selector.c",
        "looks_of_one_message_are_limited",
    ),
    "descriptors that connections leave to the store": (NET, "descriptors_of_the_store"),
    "seconds of silence": (NET, "idle"),
    "seconds for a frame that began": (NET, "slow_frames"),
    "answers that a client does not take": (NET, "slow_reader"),
    "partial frames and answers of all clients": (
        "tests/c/net/test_cmq_net_memory.c",
        "greedy_addresses_make_room",
    ),
    "requests at the control thread": (NET, "control_leaves_room_for_the_modest"),
    "requests of one connection at the control thread": (NET, "control_of_one_connection"),
    "queue units of an answer": (f"{UNIT}/test_queries.py", "test_an_answer_has_so_many_queue_units"),
    "messages of other keys with the same hash, of a query by key": (
        "tests/hostile/test_key_collisions.py",
        "test_a_query_reads_a_bounded_number_of_other_keys",
    ),
    "characters of a clientID": (f"{UNIT}/test_clients.py", "a clientID has 1 to 4096 characters"),
    "tags of an expression": ("tests/c/broker/tables/test_cmq_filter.c", "many_tags_up_to_the_limit"),
    "parentheses and prefix operators within one another, in an SQL92 expression": (
        "tests/c/filter/test_cmq_selector.c",
        "deep_expressions_run",
    ),
    "copies of half messages for nobody, in a round of checks": (
        f"{TXN}/test_cmq_txn.c",
        "copies_for_nobody_are_not_counted",
    ),
    "resets of offsets that are guarded against commits from before": (
        "tests/c/broker/tables/test_cmq_offsets.c",
        "resets_beyond_the_fences_end_with_the_first_pull_that_gets_one",
    ),
    "keys of each statistic": (f"{UNIT}/test_stats.py", "test_keys_have_a_limit"),
    "brokers of a name server": ("tests/unit/namesrv/test_routes.py", "test_limits_refuse_and_change_nothing"),
    "topics of all brokers, at a name server": (
        "tests/unit/namesrv/test_routes.py",
        "test_limits_refuse_and_change_nothing",
    ),
    "light queues": ("tests/hostile/test_properties.py", "test_senders_make_a_bounded_number_of_light_queues"),
    "locks of all groups": (f"{UNIT}/test_locks.py", "test_locks_of_all_groups_are_bounded"),
    "topics that a group must not read": (f"{UNIT}/test_groups.py", "test_a_group_must_not_read_so_many_topics"),
    "requests forwarded to one client": (f"{UNIT}/test_client_forwarding.py", "test_forwarded_requests_are_bounded"),
    "requests forwarded for all": (f"{UNIT}/test_client_forwarding.py", "test_forwarded_requests_are_bounded"),
    "replies that wait for all requesters": (f"{UNIT}/test_replies.py", "test_waiting_replies_are_bounded"),
    "entries of a list of acks": ("tests/c/broker/pop/test_cmq_pop_ack.c", "long_lists_are_taken"),
    "lists of over 32 acks that one connection has waiting": (
        "tests/c/broker/pop/test_cmq_pop_ack.c",
        "long_lists_leave_each_turn_to_others",
    ),
    "held pulls, for each thread of connections": (
        "tests/c/broker/test_cmq_broker.c",
        "more_holds_than_allowed_are_answered_at_once",
    ),
    "tags that they wait for": ("tests/c/broker/loop/test_cmq_hold.c", "connections_have_a_share"),
    "bytes of compiled SQL92 expressions that held requests keep, for each thread of connections": (
        "tests/c/broker/loop/test_cmq_hold_programs.c",
        "bytes_of_expressions_have_a_limit",
    ),
    "held pops, for each thread of connections": (
        "tests/c/broker/loop/test_cmq_pop_waits.c",
        "limits_are_of_all_and_of_a_key",
    ),
    "held pops of one topic, group and queue": (
        "tests/c/broker/loop/test_cmq_pop_waits.c",
        "limits_are_of_all_and_of_a_key",
    ),
    "queues with messages that pops look at in a turn of a thread of connections": (
        "tests/c/broker/pop/test_cmq_pop_walk.c",
        "a_pop_of_a_wide_topic_takes_several_turns",
    ),
    "steps of SQL92 expressions that a request takes": (
        "tests/c/broker/pop/test_cmq_pop_walk.c",
        "a_long_expression_is_compared_in_parts",
    ),
    "messages of a pop": ("tests/c/broker/pop/test_cmq_pop_ack.c", "maxMsgNums is 33"),
    "seconds that a popped message is invisible": ("tests/c/broker/pop/test_cmq_pop_ack.c", "invisibleTime"),
    "progress (group, topic, queue)": ("tests/c/broker/tables/test_cmq_offsets.c", "entries_are_limited"),
    "progress of one group": ("tests/c/broker/tables/test_cmq_offsets.c", "no_group_takes_the_shared_room"),
    "files of a staged write": (f"{UNIT}/test_staged_writes.py", "test_no_more_files"),
    "files of all staged writes": (f"{UNIT}/test_staged_writes.py", "test_no_more_files"),
    "progress that clients of one address make in an hour": (
        "tests/c/broker/tables/test_cmq_offsets.c",
        "no_client_takes_what_all_share",
    ),
    "topics made by sends": (f"{UNIT}/test_sends.py", "autoCreateTopicMax"),
    "groups made by clients": (f"{UNIT}/test_groups.py", "autoCreateGroupMax"),
    "topics of a registration, at a name server": ("tests/unit/remoting/bodies/test_registration.py", "200_001"),
    "bytes of a registration once inflated": (
        "tests/hostile/test_control_thread.py",
        "test_a_name_server_inflates_apart_and_within_bounds",
    ),
    "keys and namespaces of a name server": ("tests/unit/namesrv/test_kv_config.py", "entries="),
    "characters of all of them": ("tests/unit/namesrv/test_kv_config.py", "total_chars="),
    "lost brokers that a name server remembers": (
        "tests/unit/namesrv/test_routes.py",
        "test_the_oldest_lost_brokers_make_room",
    ),
    "bytes of an append through a store's door": (DOOR, "test_requests_that_no_client_makes"),
    "connections to a store's door": (DOOR, "test_connections_are_bounded"),
    "log lines of one event in a second": ("tests/unit/cli/test_logs.py", "test_an_event_is_logged_so_often_a_second"),
    "log lines that wait for the reader of stderr": (
        "tests/unit/cli/test_logs.py",
        "test_nobody_waits_for_a_reader_that_reads_no_more",
    ),
    "characters of a value in a log line": ("tests/unit/cli/test_logs.py", "test_a_line_is_one_line_and_short"),
}


def test_each_row_is_tried() -> None:
    assert set(rows()) == set(TRIED) | set(TRIED_ELSEWHERE)
    assert not set(TRIED) & set(TRIED_ELSEWHERE)


@pytest.mark.parametrize("limit", TRIED_ELSEWHERE)
def test_tests_that_rows_name_are_there(limit: str) -> None:
    file, name = TRIED_ELSEWHERE[limit]
    assert name in (ROOT / file).read_text()


def test_defaults_are_those_of_the_code() -> None:
    table = rows()
    for limit, value in VALUES.items():
        assert table[limit][0] == f"{value:,}", limit
    for limit, (default, setting) in table.items():
        if not setting:
            continue
        (field,) = [name for name, option in OPTIONS.items() if option.upstream_name == setting]
        value = getattr(DEFAULTS, field)
        shown = {4 << 20: "4 MiB", 0: "half of all"}.get(value, f"{value:,}")
        assert default == shown, (limit, value)
    inflated = re.fullmatch(r"(\d+) MiB", table["bytes of a registration once inflated"][0])
    assert inflated is not None
    assert int(inflated[1]) << 20 == registration.INFLATED_BYTES_MAX


def constant(file: str, name: str) -> int:
    """Return the value of a ``#define`` of numbers, sums left out."""
    found = re.search(rf"^#define {name} (.+?)(?:  .*)?$", (ROOT / "csrc" / file).read_text(), re.MULTILINE)
    assert found, (file, name)
    parts = re.fullmatch(r"\(?(\d+)u?(?: << (\d+)\))?", found[1].strip())
    assert parts, found[1]
    return int(parts[1]) << int(parts[2] or 0)


@pytest.mark.parametrize("limit", CONSTANTS)
def test_defaults_are_those_of_the_engine(limit: str) -> None:
    shown, value = rows()[limit][0], constant(*CONSTANTS[limit])
    mebibytes = re.fullmatch(r"(\d+) MiB", shown)
    assert value == (int(mebibytes[1]) << 20 if mebibytes else int(shown.replace(",", "")))


@pytest.mark.parametrize("limit", TRIED)
def test_request_beyond_a_limit_gets_the_answer_of_the_table(tmp_path: Path, limit: str) -> None:
    TRIED[limit](tmp_path)
