"""A producer's engine over a scripted network, on virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from cometmq.client.instance.hooks import Interceptor
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.transactions import Checker
from support.scripted_network import ScriptedNetwork, route_of
from support.virtual_loop import VirtualLoop, run_virtual

__all__ = ["Use", "played"]

Use: TypeAlias = Callable[[SendEngine, ScriptedNetwork, VirtualLoop], Awaitable[None]]


def played(
    use: Use,
    *,
    interceptors: tuple[Interceptor, ...] = (),
    checker: Checker | None = None,
    routes: Any = None,
    knows_the_way: bool = False,
    **options: Any,
) -> ScriptedNetwork:
    """Run a producer over a scripted network with topic t at brokers a, b and c.

    Args:
        use: sends.
        interceptors, checker: the producer's.
        routes: topic to route, where it is not t's.
        knows_the_way: the queues of t are known from the beginning, so that plain messages take the fast path.
        options: the producer's settings.
    """
    network = ScriptedNetwork(**({"t": route_of("a", "b", "c")} if routes is None else routes))
    settings = ProducerSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.1", **options)

    async def main(loop: VirtualLoop) -> None:
        engine = await SendEngine.open(
            settings,
            interceptors=interceptors,
            checker=checker,
            network_factory=network.factory,
            now_ms=loop.now_ms,
        )
        try:
            if knows_the_way:
                await engine.attempts.routes.find(engine._maker.topic_of((), "t"))
            await use(engine, network, loop)
        finally:
            network.is_held = False
            network.let_go()
            await engine.close()

    run_virtual(main)
    return network
