"""A network for producers whose brokers answer sends as a test says, and whose name server knows what it says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cometmq.errors import ConnectionLost, Error
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.sends import send_answer

if TYPE_CHECKING:
    from cometmq._engine import SendAnswer, SendRequest
    from cometmq.remoting.network import OnPullAnswer, OnSendAnswer

__all__ = ["ScriptedNetwork", "route_of"]


def route_of(*broker_names: str, queues: int = 2, perm: int = 6) -> TopicRouteData:
    """Return a route with these brokers, whose addresses are their names with port 1."""
    return TopicRouteData(
        queue_datas=tuple(
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=0)
            for name in broker_names
        ),
        broker_datas=tuple(
            BrokerData(cluster="c", broker_name=name, broker_addresses={0: f"{name}:1"}) for name in broker_names
        ),
    )


class ScriptedNetwork:
    """Requests are in ``sent``; ``script`` has the answers: "stored" when it is empty.

    Attributes:
        routes: topic to route; the name server knows no others.
        sent: (address, request, timeout in ms) of every attempt.
        oneway_sends: the same for those that get no answer.
        oneways: (address, request) of every other request that gets no answer.
        asked: (address, code) of every other request.
        answer_ms: how long an answer takes.
        is_held: answers wait until :meth:`let_go`.
    """

    links = None

    def __init__(self, **routes: TopicRouteData) -> None:
        """Nothing was sent."""
        self.routes = dict(routes)
        self.script: deque[SendAnswer | Error] = deque()
        self.sent: list[tuple[str, SendRequest, int]] = []
        self.oneway_sends: list[tuple[str, SendRequest]] = []
        self.asked: list[tuple[str, int]] = []
        self.on_request: Any = None
        self.on_lost: Any = None
        self.oneways: list[tuple[str, Command]] = []
        self.answer_ms = 1
        self.is_held = False
        self.held: list[Callable[[], object]] = []
        self.silent: set[str] = set()

    def factory(self, settings: Any, **callbacks: Any) -> ScriptedNetwork:
        """Be the network of the instance that asks; of several, brokers ask the first."""
        self.loop = asyncio.get_running_loop()
        if self.on_request is None:
            self.on_request, self.on_lost = callbacks["on_request"], callbacks["on_lost"]
        return self

    async def invoke(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        """Answer for the name server and for brokers."""
        self.asked.append((address, request.code))
        if address in self.silent:
            raise ConnectionLost(f"{address} is gone")
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = self.routes.get(request.fields["topic"])
            if route is None:
                return request.response(ResponseCode.TOPIC_NOT_EXIST)
            return request.response(0, body=route.to_json())
        return request.response(0)

    def send(self, address: str, request: SendRequest, on_answer: OnSendAnswer | None, *, timeout_ms: int) -> None:
        """Take a send."""
        if on_answer is None:
            self.oneway_sends.append((address, request))
            return
        self.sent.append((address, request, timeout_ms))
        answer = self.script.popleft() if self.script else send_answer(queue_id=request.queue_id)
        if self.is_held:
            self.held.append(lambda: on_answer(answer))
        else:
            self.loop.call_soon_threadsafe(self.loop.call_later, self.answer_ms / 1000, on_answer, answer)

    def let_go(self) -> None:
        """Let the answers come that wait."""
        held, self.held = self.held, []
        for answer in held:
            answer()

    def pull(self, address: str, request: Any, on_answer: OnPullAnswer, *, timeout_ms: int) -> None:
        """Nobody pulls here."""
        raise AssertionError("a producer pulls nothing")

    def oneway(self, address: str, request: Command) -> None:
        """Take a request that gets no answer."""
        self.asked.append((address, request.code))
        self.oneways.append((address, request))

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def brokers(self) -> Sequence[str]:
        """The brokers of the attempts, in order."""
        return [request.broker_name or "" for _, request, _ in self.sent]
