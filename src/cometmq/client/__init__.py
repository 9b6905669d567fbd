"""The client: producers and consumers for CometMQ's broker and Apache RocketMQ's, blocking.

``cometmq.aio`` has the same for asyncio. What decides is plain: functions and small objects, without sockets and
without a clock. The engines act on one event loop and own all state; the two surfaces have no logic of their own.

=================================  =================================================================================
module                             holds
=================================  =================================================================================
``producer, push_consumer,``       the blocking surface; ``background`` is the loop behind it, ``push_surface`` what
``pull_consumer``                  both surfaces of the push consumer share, ``asked_surface`` what pull and simple
                                   consumers do
``send_engine, send_attempts``     a producer's ways in; its sends, their attempts and their end. ``sending`` is what
                                   becomes of one, ``request_making`` its request, ``pressure`` how much may be under
                                   way, ``sending_many`` what is waited for; the short way of plain messages is
                                   ``cometmq._engine``'s (``_producing.pxi``)
``send_routes, fault_detector``    the queues that are sent to, and who waits for them; brokers that failed, asked again
``accumulating``                   batches made of single sends, and their timer
``tracing, inner_producer``        producers behind others: for the message trace, for what consumers put back
``push_engine, push_pulls,``       a push consumer; its pulls; what it tells of both
``consume_counts``
``push_popping, push_pops,``       what a push consumer has to pop; its pops, and what happens to what they bring
``pop_service``
``consume_service,``               what happens to messages between pull and progress; what is logged of listeners that
``concurrent_service,``            fail
``orderly_service,``
``listener_failures``
``tasks, thread_workers,``         what workers get and give; who calls the listener
``workers``
``pull_engine, pull_ahead,``       a pull consumer; what it pulls before it is asked for; one pull
``pull_kernel``
``consumer_facts``                 what the settings of a consumer say to heartbeats and rebalance
``simple_consumer, simple_engine`` a simple consumer, which pops; ``pop_kernel`` has its requests, and ``pop_extending``
                                   keeps messages hidden that are worked on, ``held_messages`` counts what it has
``instance, heart,``               what the clients of one id share: routes, timers; heartbeats; what servers ask
``server_requests``
``closing``                        runs a close to its end, whoever waits for it
``rebalance``                      which queues a member has: asks, locks, releases
``offset_stores, start_offsets``   progress, at brokers or in a local file; where a new group begins
**decisions**
``allocation, rebalancing``        strategies; a member's new queues
``process_queue, pulling``         what is cached of a queue; when it is pulled and what an answer means
``consuming, listeners,``          chunks and outcomes; what listeners may answer; messages that come again
``retrying, send_backs``
``routes, name_servers, faults,``  where topics are; which name server, broker and queue is taken
``queue_selection``
``subscriptions, heartbeats,``     what is told to brokers; names with a namespace
``namespaces, parts``
``outgoing, compressing,``         messages on their way out
``unique_ids``
``trace``                          upstream's message trace
``pop_handles, popping``           handles of popped messages; what is asked, and when a failed one comes again
``settings, producer_settings,``   settings, their checks and defaults
``simple_settings``
``arguments, outages``             checks of what methods are given; what passes by itself, and how often it is told of
``hooks, listener_hooks,``         interceptors, and those around listeners; the states of a service
``service_state``
``offset_file``                    upstream's ``offsets.json``
=================================  =================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq._engine import OutgoingMessage, ReceivedMessage, SendFuture
    from cometmq.client.instance.hooks import Interceptor
    from cometmq.client.producer import Producer
    from cometmq.client.pull_consumer import PullConsumer
    from cometmq.client.push.listeners import Outcome
    from cometmq.client.push_consumer import PushConsumer
    from cometmq.client.send.sending import SendResult
    from cometmq.client.simple_consumer import SimpleConsumer
    from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = [
    "ConsumeFromWhere",
    "Interceptor",
    "MessageModel",
    "MessageQueue",
    "OutgoingMessage",
    "Outcome",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SendFuture",
    "SendResult",
    "SimpleConsumer",
]

_PLACES = {
    "ConsumeFromWhere": "cometmq.remoting.bodies.heartbeat",
    "Interceptor": "cometmq.client.instance.hooks",
    "MessageModel": "cometmq.remoting.bodies.heartbeat",
    "MessageQueue": "cometmq.remoting.bodies.message_queue",
    "OutgoingMessage": "cometmq._engine",
    "Outcome": "cometmq.client.push.listeners",
    "Producer": "cometmq.client.producer",
    "PullConsumer": "cometmq.client.pull_consumer",
    "PushConsumer": "cometmq.client.push_consumer",
    "ReceivedMessage": "cometmq._engine",
    "SendFuture": "cometmq._engine",
    "SendResult": "cometmq.client.send.sending",
    "SimpleConsumer": "cometmq.client.simple_consumer",
}
"""Imported when they are first asked for: others use single modules of this package, and should not pay for all."""


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(place), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
