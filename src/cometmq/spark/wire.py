"""The way to a cluster from Spark's processes: plain calls, and pulls that are under way while Spark does other things.

Connections live on the client's background loop (:mod:`cometmq.client.instance.background`), one in each process.
Spark forks, keeps and kills its processes as it likes: each makes its own, and nothing has to be ended in order.

A broker or name server that does not answer, or says that it cannot for now, is tried again, with growing pauses, until
these add up to the time-out.

Threads: the methods that are coroutines run on the loop, the others block in any thread but the loop's.
Source:  consumption specification 1.8; remoting specification 2.3.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from cometmq._engine import PullRequest
from cometmq.admin.aio import AsyncAdmin
from cometmq.admin.channels import Channels
from cometmq.admin.operation import Call
from cometmq.client.instance.background import background
from cometmq.client.pull.pull_policy import pull_flags, pull_status
from cometmq.errors import BrokerError, BrokerNotFound, ConnectionLost, Error, LimitReached, NotFound, RequestTimeout
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.hub import Hub
from cometmq.spark.offsets import QueueKey
from cometmq.store_config.built_in_topics import SCHEDULE_TOPIC
from cometmq.store_config.topic_config import Perm

if TYPE_CHECKING:
    from cometmq._engine import PullAnswer

__all__ = ["EVERYTHING", "PULL_MESSAGES_MAX", "Retry", "Subscription", "Wire", "subscription_of"]

_T = TypeVar("_T")
_Answer: TypeAlias = "PullAnswer | Error"


class _Coded(Protocol):
    """An answer of either kind."""

    @property
    def code(self) -> int: ...
    @property
    def remark(self) -> str | None: ...


_C = TypeVar("_C", bound=_Coded)

PULL_MESSAGES_MAX = 4096
"""Most messages that a pull asks for; brokers have limits of their own, far lower by default."""

_GROUP = "TOOLS_CONSUMER"
"""The group that every broker knows without registration; nothing is committed for it."""

_TRY_MS = 5_000
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 2_000
_SILENCE = (ConnectionLost, RequestTimeout)


class Retry:
    """Pauses between attempts, whose sum is limited."""

    def __init__(self, timeout_ms: int) -> None:
        """``timeout_ms``: limit of the sum of the pauses."""
        self._left_ms = timeout_ms
        self._next_ms = _FIRST_PAUSE_MS

    async def pause(self) -> bool:
        """Wait before the next attempt; False at once where the time is used up."""
        if self._left_ms <= 0:
            return False
        pause_ms = min(self._next_ms, self._left_ms)
        self._left_ms -= pause_ms
        self._next_ms = min(self._next_ms * 2, _LONGEST_PAUSE_MS)
        await asyncio.sleep(pause_ms / 1000)
        return True


class Subscription(NamedTuple):
    """The expression that brokers filter by."""

    expression: str
    expression_type: str = "TAG"


EVERYTHING = Subscription("*")


def subscription_of(topic: str, tags: Sequence[str], where: str | None = None) -> Subscription:
    """Return the expression that brokers filter by: ``where`` before tags, since a request has one.

    Queue units of delayed messages hold delivery times in place of tag hashes: brokers would find none by their tags.
    """
    if where is not None:
        return Subscription(where, "SQL92")
    return Subscription(" || ".join(tags)) if tags and topic != SCHEDULE_TOPIC else EVERYTHING


class Wire:
    """A cluster."""

    def __init__(self, name_servers: Sequence[str], *, timeout_ms: int) -> None:
        """Connect to nobody yet.

        Args:
            name_servers: addresses, ``host:port``.
            timeout_ms: how long a server that does not answer is tried again.
        """
        self.timeout_ms = timeout_ms
        self.admin = AsyncAdmin(namesrv=";".join(name_servers), timeout_ms=_TRY_MS)
        self._channels = Channels()
        self._background = background()
        self._hub = self.run(_make_hub())
        self._addresses: dict[str, str] = {}

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have something done on the loop; return what it returns and raise what it raises."""
        return self._background.run(work)

    def end(self, work: Coroutine[Any, Any, object]) -> None:
        """Have something ended on the loop; nothing where the interpreter ends, whose threads turn no more."""
        if sys.is_finalizing():
            work.close()
        else:
            self.run(work)

    def ask(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return what a call of ``admin`` returns; it is made again while a server does not answer.

        Raises:
            ConnectionLost, RequestTimeout: none answered in time.
            BrokerError: a server refused.
        """
        return self.run(self._ask(call))

    async def _ask(self, call: Callable[[], Awaitable[_T]], passing: tuple[type[Error], ...] = _SILENCE) -> _T:
        retry = Retry(self.timeout_ms)
        while True:
            try:
                return await call()
            except passing:  # noqa: PERF203 - a pause is between them
                if not await retry.pause():
                    raise

    async def pull(
        self, key: QueueKey, offset: int, *, max_messages: int, subscription: Subscription = EVERYTHING
    ) -> PullAnswer:
        """Pull once from a queue, without waiting for messages that are not there yet.

        Raises:
            ConnectionLost, RequestTimeout, LimitReached, BrokerNotFound: its broker did not answer in time.
            BrokerError: it refused; SQL92, too, where its setting ``enablePropertyFilter`` is false.
        """
        request = PullRequest(
            group=_GROUP,
            topic=key.topic,
            queue_id=key.queue_id,
            queue_offset=offset,
            max_messages=min(max_messages, PULL_MESSAGES_MAX),
            sys_flag=pull_flags(subscription=True),
            commit_offset=0,
            suspend_timeout_ms=0,
            sub_version=0,
            max_bytes=(1 << 31) - 1,
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
            broker_name=key.broker,
        )
        return await self._ask_broker(
            key.broker,
            lambda address: self._pull_once(address, request),
            lambda answer: pull_status(answer.code) is not None,
        )

    def request(
        self, broker: str, command: Command, *, codes: Sequence[int] = (), timeout_ms: int = _TRY_MS
    ) -> Command:
        """Make an idempotent request of a broker; retry while it is silent, busy or ending.

        Args:
            broker: its name.
            command: the request.
            codes: answers besides success that are wanted.
            timeout_ms: longest wait for an answer to one attempt.

        Raises:
            ConnectionLost, RequestTimeout, BrokerNotFound: the broker did not answer in time.
            BrokerError: it refused.
        """

        async def once(address: str) -> Command:
            answer = await self._channels.answer(Call(address, command, timeout_ms))
            if isinstance(answer, Error):
                raise answer
            return answer

        wanted = (ResponseCode.SUCCESS, *codes)
        return self.run(self._ask_broker(broker, once, lambda answer: answer.code in wanted))

    async def _ask_broker(
        self, broker: str, once: Callable[[str], Awaitable[_C]], is_wanted: Callable[[_C], bool]
    ) -> _C:
        retry = Retry(self.timeout_ms)
        while True:
            try:
                address = await self._address_of(broker)
                answer = await once(address)
                if is_wanted(answer):
                    return answer
                refusal = BrokerError(answer.remark, code=answer.code, address=address)
                self._addresses.pop(broker, None)  # one that ends comes back elsewhere
                if not refusal.retriable or not await retry.pause():
                    raise refusal
            except (ConnectionLost, RequestTimeout, LimitReached, BrokerNotFound):  # noqa: PERF203 - a pause is between them
                self._addresses.pop(broker, None)  # it may have moved
                if not await retry.pause():
                    raise

    def writable_brokers(self, topic: str | None) -> tuple[str, ...]:
        """Return the brokers that a send to a topic may go to, by name; None: all masters.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered in time.
            NotFound: the broker is not registered, and did not register in time: a restarting one registers again.
        """
        return self.run(self._ask(lambda: self._writable_brokers(topic), (*_SILENCE, NotFound)))

    async def _writable_brokers(self, topic: str | None) -> tuple[str, ...]:
        if topic is not None:
            try:
                route = await self._channels.run(self.admin.messages.core.send_route(topic))
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            else:
                return tuple(sorted({part.broker.broker_name for part in route.parts if part.perm & Perm.WRITE}))
        found = await self.admin.cluster.brokers()
        return tuple(sorted({one.broker_name for one in found if one.is_master}))

    async def _pull_once(self, address: str, request: PullRequest) -> PullAnswer:
        came: asyncio.Future[_Answer] = self._background.loop.create_future()

        def on_answer(answer: _Answer) -> None:
            if not came.done():  # the caller may have gone
                came.set_result(answer)

        self._hub.pull(address, request, on_answer, timeout_ms=_TRY_MS)
        answer = await came
        if isinstance(answer, Error):
            raise answer
        return answer

    async def _address_of(self, broker: str) -> str:
        address = self._addresses.get(broker)
        if address is None:
            try:
                found = await self.admin.cluster.brokers()
            except NotFound:
                found = ()
            self._addresses = {one.broker_name: one.address for one in found if one.is_master}
            address = self._addresses.get(broker)
        if address is None:
            known = ", ".join(sorted(self._addresses)) or "none"
            raise BrokerNotFound(
                f"no name server knows broker {broker}; known are {known}: check that it runs and is registered "
                "(cometmq cluster show)",
                broker_name=broker,
            )
        return address

    def close(self) -> None:
        """End all connections. Closing twice is fine."""
        self.end(self._close())

    async def _close(self) -> None:
        await self._hub.close()
        await self._channels.close()
        await self.admin.close()


async def _make_hub() -> Hub:
    return Hub()
