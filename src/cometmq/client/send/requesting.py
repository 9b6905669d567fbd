"""Requests and replies: a message that waits for another one, and the message that answers it.

A request is an ordinary message whose properties name it (``CORRELATION_ID``) and its sender (``REPLY_TO_CLIENT``). Its
reply goes to the reply topic of the request's cluster, whose brokers push it to that sender. So that they can, each
broker of the topic has taken a heartbeat over its present connection before a request is sent.

Threads: requests and replies begin in any thread; all else is the loop's. Source: specification of transactions and
filters 2.1, 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cometmq._engine import ReceivedMessage
from cometmq.client.arguments import one
from cometmq.client.instance.awaited_replies import ReplyFuture
from cometmq.client.send.outgoing import REPLY_PROPERTIES, OutgoingMessage
from cometmq.client.send.queue_selection import queue_by_random
from cometmq.errors import ClientStateError, Error, InvalidArgument

if TYPE_CHECKING:
    from cometmq._engine import PendingSend, SendFuture
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.send.queue_selection import QueueSelector
    from cometmq.client.send.request_making import RequestMaker
    from cometmq.client.send.send_attempts import SendAttempts
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["Requests", "reply_message"]

_CORRELATION_ID, _REPLY_TO_CLIENT, _TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"


class Requests:
    """The requests of one producer, and its replies.

    Attributes:
        waiting: futures of requests whose replies are still to come, and the requests' correlation ids.
    """

    def __init__(self, instance: ClientInstance, attempts: SendAttempts, maker: RequestMaker) -> None:
        """Ask nothing yet; on the loop."""
        self._instance = instance
        self._attempts = attempts
        self._maker = maker
        self.waiting: dict[ReplyFuture, str] = {}

    def __repr__(self) -> str:
        """Return how many wait."""
        return f"Requests({len(self.waiting)} wait)"

    def begin(
        self,
        message: OutgoingMessage,
        topic: str,
        *,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        timeout_ms: int,
    ) -> ReplyFuture:
        """Send a request to a topic, a name on the wire; the future brings its reply."""
        attempts = self._attempts
        correlation_id = str(uuid4())
        own = {_CORRELATION_ID: correlation_id, _REPLY_TO_CLIENT: self._instance.client_id, _TTL: str(timeout_ms)}
        asked = replace(message, properties={**(message.properties or {}), **own})
        request, unique_id = self._maker.single(asked, topic)
        send = attempts.new(request, unique_id, is_awaited=True, timeout_ms=timeout_ms)
        attempts.place(send, asked, queue, selector, arg)
        if attempts.is_observed:
            attempts.observe(send, (asked,), (unique_id,))
        future = ReplyFuture(attempts.require_other_thread)
        self.waiting[future] = correlation_id
        future.add_done_callback(lambda _: self.waiting.pop(future, None))
        self._instance.loop.call_soon_threadsafe(self._ask, send, future, correlation_id, timeout_ms)
        return future

    def _ask(self, send: PendingSend, future: ReplyFuture, correlation_id: str, timeout_ms: int) -> None:
        if future.done():  # forgotten
            return
        self._instance.replies.expect(correlation_id, future, topic=send.topic, timeout_ms=timeout_ms)
        self._instance.spawn(self._send(send, future, correlation_id))

    async def _send(self, send: PendingSend, future: ReplyFuture, correlation_id: str) -> None:
        """Let the topic's brokers know the requester, then send."""
        replies = self._instance.replies
        try:
            ring = await self._attempts.routes.find(send.topic)
            await self._instance.introduce({queue.broker_name for queue in ring.queues})
        except Error as error:
            replies.fail(correlation_id, error)
            return
        except BaseException:
            replies.fail(correlation_id, ClientStateError("the producer was closed before the request was sent"))
            raise
        if not future.done():
            send.add_done_callback(partial(self._sent, correlation_id))
            self._attempts.begin(send, is_awaited=True)

    def _sent(self, correlation_id: str, send: SendFuture) -> None:
        self._instance.replies.sent(correlation_id, send.exception())

    def forget(self, future: ReplyFuture) -> None:
        """Stop waiting for the reply to a cancelled request; on the loop. An unsent request is not sent."""
        correlation_id = self.waiting.get(future)
        if correlation_id is None:
            return
        error = ClientStateError("the request was cancelled before its reply came")
        self._instance.replies.fail(correlation_id, error)
        if not future.done():  # not expected yet
            future.set_exception(error)

    def give_up(self, reason: str) -> None:
        """Stop waiting for all replies; on the loop, after :meth:`SendAttempts.give_up`."""
        for correlation_id in list(self.waiting.values()):
            self._instance.replies.fail(correlation_id, ClientStateError(f"{reason}, before the reply came"))

    def reply(self, message: OutgoingMessage, request: ReceivedMessage, *, timeout_ms: int | None) -> SendFuture:
        """Send a reply (:func:`reply_message`), to the broker that has the request first: its requester is there."""
        attempts = self._attempts
        assert message.topic is not None
        made, unique_id = self._maker.single(message, message.topic)
        send = attempts.new(made, unique_id, is_awaited=True, timeout_ms=timeout_ms)
        send.chooser = _at_broker(request.broker_name)
        if attempts.is_observed:
            attempts.observe(send, (message,), (unique_id,))
        return attempts.begin(send, is_awaited=True)


def _at_broker(name: str) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    def choose(queues: Sequence[MessageQueue]) -> MessageQueue:
        return queue_by_random([queue for queue in queues if queue.broker_name == name] or queues, None)

    return choose


def reply_message(
    request: ReceivedMessage,
    body: bytes,
    *,
    tags: str | None = None,
    keys: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> OutgoingMessage:
    """Return the message that answers a request.

    Raises:
        InvalidArgument: the message is no request, or its broker does not say which cluster it is of.
    """
    found = one("reply_to", request, ReceivedMessage, "a message that a consumer received").properties
    for name in (_CORRELATION_ID, _REPLY_TO_CLIENT):
        if not found.get(name):
            raise InvalidArgument(f"the message {request.message_id} is no request: it has no property {name}")
    cluster = found.get("CLUSTER")
    if not cluster:
        raise InvalidArgument(
            f"the request {request.message_id} cannot be answered: it has no property CLUSTER, which brokers since 4.6 "
            "add"
        )
    own = {name: found[name] for name in (_CORRELATION_ID, _REPLY_TO_CLIENT, _TTL) if name in found}
    return OutgoingMessage(
        body, tags, keys, {**(properties or {}), **own, **REPLY_PROPERTIES}, topic=f"{cluster}_REPLY_TOPIC"
    )
