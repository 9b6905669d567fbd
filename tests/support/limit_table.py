"""The limits of servers and stores: where each one's value is, and the test that tries it.

The rows are those of the table in docs/operating.md, in its order; ``tests/hostile/test_limits.py`` compares them.
"""

from __future__ import annotations

from typing import NamedTuple

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
from cometmq.cli import logs
from cometmq.namesrv import handlers
from cometmq.namesrv.kv_config import KVLimits
from cometmq.namesrv.routes import LOST_BROKERS_MAX, RouteLimits
from cometmq.remoting import lanes
from cometmq.remoting.bodies import registration
from cometmq.remoting.properties import PROPERTIES_BYTES_MAX
from cometmq.store import handoff_door, handoff_files
from cometmq.store.topic_book import QUEUES_MAX
from cometmq.store_config.java_properties import CONFIG_BYTES_MAX
from cometmq.store_config.json_types import REQUEST_LIMITS

NET = "tests/c/net/test_cmq_net_limits.c"
UNIT = "tests/unit/broker"
TXN = "tests/c/broker/txn"
DOOR = "tests/unit/store/test_handoff_door.py"


class Limit(NamedTuple):
    """A row of the table.

    Attributes:
        value: the number that Python has of its own.
        define: the number of the engine: a header in csrc, and the name that it defines.
        test: a file, and a test or text in it that tries the limit; None: ``test_limits.py`` tries it.
    """

    value: int | None = None
    define: tuple[str, str] | None = None
    test: tuple[str, str] | None = None


LIMITS: dict[str, Limit] = {
    "bytes of a frame": Limit(define=("wire/cmq_frame.h", "CMQ_FRAME_BYTES_MAX")),
    "fields of a header": Limit(define=("wire/cmq_command.h", "CMQ_COMMAND_FIELDS_MAX")),
    "bytes of a message's body": Limit(),
    "bytes of a message's properties": Limit(value=PROPERTIES_BYTES_MAX),
    "connections": Limit(),
    "connections of one address": Limit(),
    "descriptors that connections leave to the store": Limit(test=(NET, "descriptors_of_the_store")),
    "seconds of silence": Limit(test=(NET, "idle")),
    "seconds for a frame that began": Limit(test=(NET, "slow_frames")),
    "answers that a client does not take": Limit(test=(NET, "slow_reader")),
    "partial frames and answers of all clients": Limit(
        test=("tests/c/net/test_cmq_net_memory.c", "greedy_addresses_make_room")
    ),
    "requests at the control thread": Limit(test=(NET, "control_leaves_room_for_the_modest")),
    "requests of one connection at the control thread": Limit(test=(NET, "control_of_one_connection")),
    "requests of one connection that take long": Limit(value=lanes.LANE_WAITING_MAX),
    "requests of one connection that wait for the disk": Limit(
        value=lanes.STORE_WAITING_MAX,
        test=("tests/unit/remoting/test_lanes.py", "test_too_much_work_of_one_connection_is_refused"),
    ),
    "characters of a body that is not strict JSON": Limit(value=REQUEST_LIMITS.lenient_chars),
    "values of a body": Limit(value=REQUEST_LIMITS.parts),
    "bytes of settings in a request": Limit(value=CONFIG_BYTES_MAX),
    "topics of a request": Limit(value=topics.TOPICS_OF_REQUEST_MAX),
    "groups of a request": Limit(value=groups.GROUPS_OF_REQUEST_MAX),
    "queues of a topic": Limit(value=QUEUES_MAX, test=(f"{UNIT}/test_topics.py", "65537 write queues")),
    "queues that an answer is about": Limit(value=offsets.QUEUES_OF_REQUEST_MAX),
    "queue units of an answer": Limit(
        value=queries.UNITS_MAX, test=(f"{UNIT}/test_queries.py", "test_an_answer_has_so_many_queue_units")
    ),
    "messages of a pull": Limit(define=("broker/loop/cmq_broker_internal.h", "CMQ_PULL_UNITS_MAX")),
    "bytes of the messages of a query": Limit(
        value=queries.BODY_BYTES_MAX, test=(f"{UNIT}/test_queries.py", "test_an_answer_fits_a_frame")
    ),
    "messages of other keys with the same hash, of a query by key": Limit(
        value=queries.MISSES_MAX,
        test=("tests/hostile/test_key_collisions.py", "test_a_query_reads_a_bounded_number_of_other_keys"),
    ),
    "light queues": Limit(
        test=("tests/hostile/test_properties.py", "test_senders_make_a_bounded_number_of_light_queues")
    ),
    "groups of a connection, of each kind": Limit(value=clients.GROUPS_OF_CONNECTION_MAX),
    "topics that a group subscribes to": Limit(value=clients.SUBSCRIPTIONS_MAX),
    "characters of a clientID": Limit(
        value=clients.CLIENT_ID_CHARS_MAX, test=(f"{UNIT}/test_clients.py", "a clientID has 1 to 4096 characters")
    ),
    "tags of an expression": Limit(
        define=("broker/tables/cmq_filter.h", "CMQ_FILTER_TAGS_MAX"),
        test=("tests/c/broker/tables/test_cmq_filter.c", "many_tags_up_to_the_limit"),
    ),
    "bytes of an SQL92 expression": Limit(
        define=("filter/cmq_selector.h", "CMQ_SELECTOR_TEXT_BYTES_MAX"),
        test=("tests/c/filter/test_cmq_selector.c", "hostile_texts_are_refused"),
    ),
    "properties that an SQL92 expression names": Limit(
        define=("filter/cmq_selector.h", "CMQ_SELECTOR_NAMES_MAX"),
        test=("tests/c/filter/test_cmq_selector.c", "names_have_a_limit"),
    ),
    "parentheses and prefix operators within one another, in an SQL92 expression": Limit(
        define=("filter/cmq_selector.h", "CMQ_SELECTOR_DEPTH_MAX"),
        test=("tests/c/filter/test_cmq_selector.c", "deep_expressions_run"),
    ),
    "characters of a group's expressions": Limit(value=clients.EXPRESSION_CHARS_MAX),
    "characters of the SQL92 expressions of all groups": Limit(
        value=filters.EXPRESSION_CHARS_MAX, test=(f"{UNIT}/test_filters.py", "test_expressions_have_a_limit")
    ),
    "bytes that CONTAINS and comparisons of properties look at in one message": Limit(
        define=("filter/cmq_selector.h", "CMQ_SELECTOR_LOOKS_MAX"),
        test=("tests/c/filter/test_cmq_selector.c", "looks_of_one_message_are_limited"),
    ),
    "queues locked by a request": Limit(value=locks.LOCKS_OF_REQUEST_MAX),
    "locks of all groups": Limit(
        value=locks.LOCKS_MAX, test=(f"{UNIT}/test_locks.py", "test_locks_of_all_groups_are_bounded")
    ),
    "topics that a group must not read": Limit(
        value=groups.FORBIDDEN_TOPICS_MAX, test=(f"{UNIT}/test_groups.py", "test_a_group_must_not_read_so_many_topics")
    ),
    "requests forwarded for one connection": Limit(value=client_forwarding.FORWARDED_OF_CALLER_MAX),
    "requests forwarded to one client": Limit(
        value=client_forwarding.FORWARDED_TO_CLIENT_MAX,
        test=(f"{UNIT}/test_client_forwarding.py", "test_forwarded_requests_are_bounded"),
    ),
    "requests forwarded for all": Limit(
        value=client_forwarding.FORWARDED_MAX,
        test=(f"{UNIT}/test_client_forwarding.py", "test_forwarded_requests_are_bounded"),
    ),
    "replies that wait for one requester": Limit(value=replies.PUSHED_TO_CLIENT_MAX),
    "replies that wait for all requesters": Limit(
        value=replies.PUSHED_MAX, test=(f"{UNIT}/test_replies.py", "test_waiting_replies_are_bounded")
    ),
    "sends that wait for the disk, for each thread of connections": Limit(
        define=("broker/loop/cmq_broker_internal.h", "CMQ_SENDS_WAITING_MAX"),
        test=("tests/c/broker/test_cmq_broker.c", "more_than_may_wait_for_the_disk_is_refused"),
    ),
    "copies of half messages for nobody, in a round of checks": Limit(
        define=("broker/txn/cmq_txn.h", "CMQ_TXN_FREE_COPIES_MAX"),
        test=(f"{TXN}/test_cmq_txn.c", "copies_for_nobody_are_not_counted"),
    ),
    "ends of transactions whose op record cannot be written": Limit(
        define=("broker/txn/cmq_txn.h", "CMQ_TXN_TEXTS_MAX"), test=(f"{TXN}/test_cmq_txn.c", "texts_have_a_limit")
    ),
    "open half messages that were copied": Limit(
        define=("broker/txn/cmq_txn_copies.h", "CMQ_TXN_COPIES_MAX"),
        test=(f"{TXN}/test_cmq_txn_ended.c", "copies_have_a_limit"),
    ),
    "entries of a list of acks": Limit(
        define=("broker/pop/cmq_pop_internal.h", "CMQ_POP_LIST_ENTRIES_MAX"),
        test=("tests/c/broker/pop/test_cmq_pop_ack.c", "long_lists_are_taken"),
    ),
    "lists of over 32 acks that one connection has waiting": Limit(
        define=("broker/pop/cmq_pop_internal.h", "CMQ_POP_LISTS_CONN_MAX"),
        test=("tests/c/broker/pop/test_cmq_pop_ack.c", "long_lists_leave_each_turn_to_others"),
    ),
    "held pulls, for each thread of connections": Limit(
        test=("tests/c/broker/test_cmq_broker.c", "more_holds_than_allowed_are_answered_at_once")
    ),
    "tags that they wait for": Limit(
        define=("broker/loop/cmq_hold.h", "CMQ_HOLDS_TAGS_MAX"),
        test=("tests/c/broker/loop/test_cmq_hold.c", "connections_have_a_share"),
    ),
    "bytes of compiled SQL92 expressions that held requests keep, for each thread of connections": Limit(
        define=("broker/loop/cmq_hold_programs.h", "CMQ_HOLDS_PROGRAM_BYTES_MAX"),
        test=("tests/c/broker/loop/test_cmq_hold_programs.c", "bytes_of_expressions_have_a_limit"),
    ),
    "held pops, for each thread of connections": Limit(
        test=("tests/c/broker/loop/test_cmq_pop_waits.c", "limits_are_of_all_and_of_a_key")
    ),
    "held pops of one topic, group and queue": Limit(
        test=("tests/c/broker/loop/test_cmq_pop_waits.c", "limits_are_of_all_and_of_a_key")
    ),
    "queues with messages that pops look at in a turn of a thread of connections": Limit(
        define=("broker/pop/cmq_pop_internal.h", "CMQ_POP_LOOKS_PER_TURN"),
        test=("tests/c/broker/pop/test_cmq_pop_walk.c", "a_pop_of_a_wide_topic_takes_several_turns"),
    ),
    "steps of SQL92 expressions that a request takes": Limit(
        define=("broker/loop/cmq_broker_internal.h", "CMQ_STEPS_PER_REQUEST"),
        test=("tests/c/broker/pop/test_cmq_pop_walk.c", "a_long_expression_is_compared_in_parts"),
    ),
    "messages of a pop": Limit(
        define=("broker/pop/record/cmq_pop_record.h", "CMQ_POP_MESSAGES_MAX"),
        test=("tests/c/broker/pop/test_cmq_pop_ack.c", "maxMsgNums is 33"),
    ),
    "bytes of an attemptId": Limit(
        define=("broker/pop/flight/cmq_pop_fifo_table.h", "CMQ_POP_ORDER_ATTEMPT_BYTES_MAX"),
        test=("tests/c/broker/pop/test_cmq_pop_ack.c", "attemptId has 400 bytes"),
    ),
    "queues with messages that a group popped in order": Limit(
        define=("broker/pop/flight/cmq_pop_fifo_table.h", "CMQ_POP_ORDER_QUEUES_MAX"),
        test=("tests/c/broker/pop/flight/test_cmq_pop_fifo_table.c", "impossible_batches_are_refused"),
    ),
    "first times of a queue's popped messages": Limit(
        define=("broker/pop/flight/cmq_pop_first_times.h", "CMQ_POP_FIRSTS_MAX"),
        test=("tests/c/broker/pop/flight/test_cmq_pop_first_times.c", "no_more_than_allowed_are_noted"),
    ),
    "deleted topics whose handles are known": Limit(
        define=("broker/pop/flight/cmq_pop_forgotten.h", "CMQ_POP_FORGOTTEN_MAX"),
        test=("tests/c/broker/pop/flight/test_cmq_pop_forgotten.c", "newest_deletions_stay"),
    ),
    "groups that a thread of connections has to wake": Limit(
        define=("broker/pop/cmq_pop_internal.h", "CMQ_POP_NOTES_MAX"),
        test=("tests/c/broker/pop/test_cmq_pop_hold.c", "notes_are_bounded_and_a_dropped_one_costs_time_alone"),
    ),
    "seconds that a popped message is invisible": Limit(
        test=("tests/c/broker/pop/test_cmq_pop_ack.c", "invisibleTime")
    ),
    "timers of a second": Limit(test=("tests/c/broker/timer/test_cmq_timer.c", "a_congested_slot_refuses")),
    "files of a staged write": Limit(
        value=staged_writes.FILES_OF_JOB_MAX, test=(f"{UNIT}/test_staged_writes.py", "test_no_more_files")
    ),
    "files of all staged writes": Limit(
        value=staged_writes.FILES_MAX, test=(f"{UNIT}/test_staged_writes.py", "test_no_more_files")
    ),
    "bytes of a piece of a staged file": Limit(
        value=staged_writes.PIECE_BYTES_MAX, test=(f"{UNIT}/test_staged_writes.py", "test_pieces_that_are_refused")
    ),
    "progress (group, topic, queue)": Limit(
        define=("broker/tables/cmq_offsets.h", "CMQ_OFFSETS_ENTRIES_MAX"),
        test=("tests/c/broker/tables/test_cmq_offsets.c", "entries_are_limited"),
    ),
    "progress of one group": Limit(test=("tests/c/broker/tables/test_cmq_offsets.c", "no_group_takes_the_shared_room")),
    "progress that clients of one address make in an hour": Limit(
        test=("tests/c/broker/tables/test_cmq_offsets.c", "no_client_takes_the_shared_budget")
    ),
    "resets of offsets that are guarded against commits from before": Limit(
        define=("broker/tables/cmq_offsets.h", "CMQ_OFFSETS_FENCES_MAX"),
        test=(
            "tests/c/broker/tables/test_cmq_offsets.c",
            "resets_beyond_the_fences_end_with_the_first_pull_that_gets_one",
        ),
    ),
    "topics made by sends": Limit(test=(f"{UNIT}/test_sends.py", "autoCreateTopicMax")),
    "groups made by clients": Limit(test=(f"{UNIT}/test_groups.py", "autoCreateGroupMax")),
    "keys of each statistic": Limit(value=stats.KEYS_MAX, test=(f"{UNIT}/test_stats.py", "test_keys_have_a_limit")),
    "topics, and groups of a topic, whose messages are counted": Limit(
        define=("broker/tables/cmq_traffic.h", "CMQ_TRAFFIC_ENTRIES_MAX"),
        test=("tests/c/broker/tables/test_cmq_traffic.c", "entries_have_a_limit"),
    ),
    "brokers of a name server": Limit(
        value=RouteLimits().brokers, test=("tests/unit/namesrv/test_routes.py", "test_limits_refuse_and_change_nothing")
    ),
    "topics of all brokers, at a name server": Limit(
        value=RouteLimits().topics, test=("tests/unit/namesrv/test_routes.py", "test_limits_refuse_and_change_nothing")
    ),
    "topics of a registration, at a name server": Limit(
        value=registration.REGISTERED_TOPICS_MAX, test=("tests/unit/remoting/bodies/test_registration.py", "200_001")
    ),
    "filter servers, and topics' mappings, of a registration": Limit(
        value=registration.REGISTERED_OTHERS_MAX,
        test=(
            "tests/unit/remoting/bodies/test_registration.py",
            "test_topics_filter_servers_and_mappings_have_a_limit",
        ),
    ),
    "topics of one address that wait to be registered, at a name server": Limit(
        value=handlers.REGISTERING_TOPICS_MAX,
        test=(
            "tests/unit/namesrv/test_handlers.py",
            "test_topics_of_an_address_that_wait_to_be_registered_have_a_limit",
        ),
    ),
    "bytes of a registration once inflated": Limit(
        value=registration.INFLATED_BYTES_MAX,
        test=("tests/hostile/test_control_thread.py", "test_a_name_server_inflates_apart_and_within_bounds"),
    ),
    "keys and namespaces of a name server": Limit(
        value=KVLimits().entries, test=("tests/unit/namesrv/test_kv_config.py", "entries=")
    ),
    "characters of all of them": Limit(
        value=KVLimits().total_chars, test=("tests/unit/namesrv/test_kv_config.py", "total_chars=")
    ),
    "lost brokers that a name server remembers": Limit(
        value=LOST_BROKERS_MAX, test=("tests/unit/namesrv/test_routes.py", "test_the_oldest_lost_brokers_make_room")
    ),
    "brokers whose places others took, at a name server": Limit(
        value=handlers.RIVALS_MAX, test=("tests/unit/namesrv/test_handlers.py", "test_remembered_rivals_have_a_limit")
    ),
    "bytes of an append through a store's door": Limit(
        value=handoff_door.REQUEST_BYTES_MAX, test=(DOOR, "test_requests_that_no_client_makes")
    ),
    "connections to a store's door": Limit(
        value=handoff_door.CONNECTIONS_MAX, test=(DOOR, "test_connections_are_bounded")
    ),
    "pieces of work in a store's hand-off folder": Limit(
        value=handoff_files.WAITING_MAX, test=("tests/unit/store/test_handoff.py", "test_too_much_work_is_refused")
    ),
    "log lines of one event in a second": Limit(
        value=logs.LINES_PER_SECOND_MAX,
        test=("tests/unit/cli/test_logs.py", "test_an_event_is_logged_so_often_a_second"),
    ),
    "log lines that wait for the reader of stderr": Limit(
        value=logs.LINES_WAITING_MAX,
        test=("tests/unit/cli/test_logs.py", "test_nobody_waits_for_a_reader_that_reads_no_more"),
    ),
    "characters of a value in a log line": Limit(
        value=logs.VALUE_CHARS_MAX, test=("tests/unit/cli/test_logs.py", "test_a_line_is_one_line_and_short")
    ),
}
