"""The choice of a name server, and the requests to it.

Name servers do not know of each other; each has all of it. The list is begun at a random place, so that clients spread,
and the one that answered is asked again. One that cannot be reached, is silent or talks nonsense is skipped for the
next, within the same call; a refused request is not repeated elsewhere.

Where no address is configured, a web server can list them (upstream's "address server").

Threads: the client's loop. Source: consumption specification 1.4.3; remoting specification 7.1.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from cometmq.client.instance.routes import check_route
from cometmq.errors import (
    BrokerError,
    ClientStateError,
    ConnectionLost,
    InvalidArgument,
    LimitReached,
    MalformedBody,
    MalformedCommand,
    NotConnected,
    RequestTimeout,
)
from cometmq.remoting.addresses import parse_addresses
from cometmq.remoting.bodies.routes import TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from cometmq.remoting.network import Network

__all__ = ["LOOK_UP_BYTES_MAX", "STANDARD_LOOK_UP_PORT", "NameServers", "look_up", "look_up_url"]

LOOK_UP_BYTES_MAX = 64 << 10
"""Longest answer of a web server that is read."""
STANDARD_LOOK_UP_PORT = 8080

T = TypeVar("T")

_log = logging.getLogger(__name__)


class NameServers:
    """The name servers of one client instance."""

    def __init__(self, network: Network, addresses: Sequence[str], *, random: Random | None = None) -> None:
        """Ask nobody yet; ``random`` says where the list is begun."""
        self._network = network
        self._random = Random() if random is None else random
        self._addresses: tuple[str, ...] = ()
        self._next = 0
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them, in the order given."""
        return self._addresses

    def replace(self, addresses: Sequence[str]) -> bool:
        """Use other name servers from now on; return whether they differ."""
        if sorted(addresses) == sorted(self._addresses):
            return False
        self._addresses = tuple(addresses)
        self._next = self._random.randrange(len(self._addresses)) if self._addresses else 0
        return True

    async def find_route(self, topic: str, *, timeout_ms: int) -> TopicRouteData | None:
        """Return where a topic is, or None where nobody has it.

        Args:
            topic: the topic.
            timeout_ms: longest wait for each name server.

        Raises:
            ClientStateError: no name server is known.
            BrokerError: a name server refused, or the server is not one.
            ConnectionLost, RequestTimeout, LimitReached, MalformedBody, MalformedCommand: none of them gave an answer
                that can be used; the text has what went wrong at each, the kind and the cause are the last one's.
        """

        def read(answer: Command, address: str) -> TopicRouteData | None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if answer.code == ResponseCode.SUCCESS:
                return check_route(topic, TopicRouteData.from_json(answer.body))
            is_none = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            advice = "this is not a name server: name_servers takes name servers' addresses" if is_none else None
            raise BrokerError(answer.remark, code=answer.code, address=address, advice=advice)

        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True)
        return await self.ask(command, read, timeout_ms=timeout_ms)

    async def ask(self, command: Command, read: Callable[[Command, str], T], *, timeout_ms: int) -> T:
        """Ask the name server that answered last, or the next one that can be used.

        Args:
            command: the question.
            read: makes the result of an answer and its server's address; a MalformedBody or MalformedCommand of it
                passes to the next server.
            timeout_ms: longest wait for each name server.

        Raises:
            ClientStateError: no name server is known.
            ConnectionLost, RequestTimeout, LimitReached, MalformedBody, MalformedCommand: none could be used; as
                :meth:`find_route`.
            Error: other errors of ``read``.
        """
        addresses = self._addresses
        if not addresses:
            raise ClientStateError(
                "no name server is known: give name_servers='host:9876', or set NAMESRV_ADDR in the environment"
            )
        first = self._next
        failures: list[str] = []
        for step in range(len(addresses)):
            position = (first + step) % len(addresses)
            address = addresses[position]
            try:
                result = read(await self._network.invoke(address, command, timeout_ms=timeout_ms), address)
            except (ConnectionLost, RequestTimeout, LimitReached, MalformedBody, MalformedCommand) as error:
                if self._addresses is addresses:
                    self._next = (position + 1) % len(addresses)
                text = str(error)
                failures.append(text if address in text else f"{address}: {text}")
                if step + 1 == len(addresses):
                    # That the last one was not reached does not say that none was.
                    kind = ConnectionLost if isinstance(error, NotConnected) else type(error)
                    raise kind(
                        f"no name server answered ({'; '.join(failures)}): check that one runs, and that name_servers "
                        "has its address"
                    ) from error
                _log.info("name server %s was passed over: %s", address, error)
            else:
                if self._addresses is addresses:
                    self._next = position
                return result
        raise AssertionError("the loop returns or raises")


def look_up_url(domain: str, *, subgroup: str, unit_name: str | None) -> str:
    """Return the URL at which a web server lists the name servers.

    Args:
        domain: host, or ``host:port``; without a port it is :data:`STANDARD_LOOK_UP_PORT`.
        subgroup: the last part of the path.
        unit_name: the unit, or None.
    """
    host = domain if ":" in domain else f"{domain}:{STANDARD_LOOK_UP_PORT}"
    unit = f"-{unit_name}?nofix=1" if unit_name and unit_name.strip() else ""
    return f"http://{host}/rocketmq/{subgroup}{unit}"


def look_up(url: str, *, timeout_ms: int) -> tuple[str, ...]:
    """Ask a web server for the name servers; blocks.

    Returns:
        The addresses in the first line of its answer.

    Raises:
        ConnectionLost: it cannot be reached, or refuses.
        MalformedBody: the first line is not a list of addresses.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_ms / 1000) as answer:
            text = answer.read(LOOK_UP_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise ConnectionLost(f"cannot get name servers from {url}: {error}") from error
    lines = text.splitlines()
    try:
        return parse_addresses(lines[0] if lines else "")
    except InvalidArgument as error:
        raise MalformedBody(f"cannot get name servers from {url}: {error}") from error
