"""The client: producers and consumers for CometMQ's broker and Apache RocketMQ's, blocking.

``cometmq.aio`` has the same for asyncio. Decisions are plain functions and small objects, without sockets and without
a clock. The engines act on one event loop and own all state; the two surfaces have no logic of their own. Each folder
is a room:

==============  ========================================================================================================
room            holds
==============  ========================================================================================================
(this folder)   the blocking surfaces: ``producer``, ``transaction_producer``, ``push_consumer``, ``pull_consumer``,
                ``simple_consumer``; ``polling_consumer``, the methods that pull and simple consumers share;
                ``settings`` and ``arguments``: options with their defaults, and the checks of what methods are given
``instance/``   everything that the clients of one id share: ``instance`` with its routes, timers and connections;
                ``background``, the loop's thread; ``loop_tasks``; ``heartbeats`` and ``heartbeat_sender``;
                ``registrants``, the interfaces of the producers and consumers that register; ``server_requests``,
                ``awaited_replies``;
                ``routes``, ``route_updates``, ``name_servers``, ``namespaces``, ``unique_ids``; ``service_state``,
                ``closing``; ``hooks``, the interceptors; ``outages``, transient failures and their rate-limited
                logging
``send/``       a producer's engine: ``send_engine``, its entry points; ``send_attempts``, retries and results;
                ``send_routes``, ``queue_selection``, ``faults`` and ``fault_detector``: queues, and failed brokers;
                ``request_making``, ``outgoing``, ``compressing``: from a message to a request; ``accumulating``,
                batches of single sends; ``pressure``, limits on requests in flight; ``sending``, ``sending_many``;
                ``requesting``, request and reply; ``transactions``; ``inner_producer``, for messages that consumers
                send back; ``producer_settings``. The fast path of plain messages is compiled:
                ``bindings/python/_producing.pxi``
``push/``       a push consumer's engine: ``push_engine``, ``push_pulls``, ``push_pops`` with ``push_popping`` and
                ``pop_service``; ``tasks``, ``thread_workers``, ``workers``: the listener's callers;
                ``consume_service``, ``concurrent_service``, ``orderly_service``, ``outcome_policy``: from a listener's
                answer to progress; ``listeners``, ``listener_workers``, ``listener_hooks``,
                ``listener_failures``; ``queue_resets``; ``consume_counts``; ``push_surface``, shared by both surfaces
``pull/``       a pull consumer's engine: ``pull_engine``, ``pull_ahead``, ``queue_watches``; ``pull_kernel`` and
                ``pull_policy``, one pull and when it is made
``pop/``        a simple consumer's engine: ``simple_engine``, ``pop_targets``, ``queue_order``,
                ``simple_settings``, ``held_messages``, ``loop_pace``; ``pop_kernel``, ``pop_policy``,
                ``pop_handles``, ``pop_extending``: popped messages, here and in ``push/``
``group/``      a member's part in its group: ``rebalance``, ``queue_diff``, ``allocation``; ``process_queue``;
                ``offset_stores``, ``offset_file``, ``start_offsets``; ``retry_policy``, ``send_backs``;
                ``subscriptions``, ``consumer_facts``
``trace/``      upstream's message trace: ``trace_records``, ``trace``, ``tracing``
==============  ========================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq._lazy import lazy_names

if TYPE_CHECKING:
    from cometmq._engine import OutgoingMessage, ReceivedMessage, SendFuture
    from cometmq.client.instance.awaited_replies import ReplyFuture
    from cometmq.client.instance.hooks import Interceptor
    from cometmq.client.producer import Producer
    from cometmq.client.pull_consumer import PullConsumer
    from cometmq.client.push.listeners import Outcome
    from cometmq.client.push_consumer import PushConsumer
    from cometmq.client.send.sending import SendResult
    from cometmq.client.send.transactions import TransactionResult, TransactionState
    from cometmq.client.simple_consumer import SimpleConsumer
    from cometmq.client.transaction_producer import TransactionProducer
    from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
    from cometmq.remoting.bodies.message_queue import MessageQueue
    from cometmq.remoting.signing import NamespaceFields, RequestSigner

__all__ = [
    "ConsumeFromWhere",
    "Interceptor",
    "MessageModel",
    "MessageQueue",
    "NamespaceFields",
    "OutgoingMessage",
    "Outcome",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "ReplyFuture",
    "RequestSigner",
    "SendFuture",
    "SendResult",
    "SimpleConsumer",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
]

_PLACES = {
    "ConsumeFromWhere": "cometmq.remoting.bodies.heartbeat",
    "Interceptor": "cometmq.client.instance.hooks",
    "MessageModel": "cometmq.remoting.bodies.heartbeat",
    "MessageQueue": "cometmq.remoting.bodies.message_queue",
    "NamespaceFields": "cometmq.remoting.signing",
    "OutgoingMessage": "cometmq._engine",
    "Outcome": "cometmq.client.push.listeners",
    "Producer": "cometmq.client.producer",
    "PullConsumer": "cometmq.client.pull_consumer",
    "PushConsumer": "cometmq.client.push_consumer",
    "ReceivedMessage": "cometmq._engine",
    "ReplyFuture": "cometmq.client.instance.awaited_replies",
    "RequestSigner": "cometmq.remoting.signing",
    "SendFuture": "cometmq._engine",
    "SendResult": "cometmq.client.send.sending",
    "SimpleConsumer": "cometmq.client.simple_consumer",
    "TransactionProducer": "cometmq.client.transaction_producer",
    "TransactionResult": "cometmq.client.send.transactions",
    "TransactionState": "cometmq.client.send.transactions",
}
"""Imported when they are first asked for: others use single modules of this package, and should not pay for all."""

__getattr__, __dir__ = lazy_names(globals(), _PLACES)
