"""The base of the blocking and the asyncio push consumer: all calls before the start.

Source: consumption specification 1.2, 1.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from cometmq.client.arguments import callable_hook, check_executor, flag, plain_hook
from cometmq.client.group.offset_stores import OwnOffsetStore, check_own_store
from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.instance.hooks import Interceptor, interceptors_of
from cometmq.client.instance.service_state import ServiceState, not_startable
from cometmq.client.pull.pull_policy import FlowCounters
from cometmq.client.push.listener_workers import ListenerSpec
from cometmq.client.push.push_engine import PushEngine, QueueListener
from cometmq.client.settings import PushSettings, settings_of
from cometmq.errors import ClientStateError, InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.names import validate_topic

if TYPE_CHECKING:
    from cometmq.client.instance.instance import NetworkFactory
    from cometmq.client.push.listeners import AnyListener, BatchListener, Listener

__all__ = ["PushSurface"]

_UPSTREAM_THREADS = 20

L = TypeVar("L", bound="AnyListener")


class PushSurface:
    """A push consumer that may not have been started yet.

    Attributes:
        settings: its settings.
    """

    def __init__(
        self,
        options: Mapping[str, object],
        *,
        group: str,
        name_servers: str | Iterable[str] | None,
        listener: Listener | None,
        batch_listener: BatchListener | None,
        orderly: bool,
        auto_commit: bool,
        executor: Executor | None,
        offset_store: OwnOffsetStore | None,
        interceptors: Iterable[Interceptor],
        queue_listener: QueueListener | None,
    ) -> None:
        """Keep the arguments; :class:`cometmq.client.push_consumer.PushConsumer` explains them."""
        if listener is not None and batch_listener is not None:
            raise InvalidArgument("there is more than one listener: give either listener= or batch_listener=")
        for given in (listener, batch_listener):
            if given is not None:
                callable_hook("the listener", given)
        if queue_listener is not None:
            plain_hook("queue_listener", queue_listener)
        check_own_store(offset_store)
        check_executor(executor)
        flag("orderly", orderly)
        flag("auto_commit", auto_commit)
        most = options.get("consume_thread_max")
        if isinstance(most, int) and 0 < most < _UPSTREAM_THREADS:
            # Upstream's least number of threads has no meaning here: fewer than its 20 need only the one option.
            options = {"consume_thread_min": most, **options}
        self.settings = settings_of(PushSettings, options, name_servers=name_servers, group=group)
        self._spec = ListenerSpec(
            function=listener if batch_listener is None else batch_listener,
            batch=batch_listener is not None,
            orderly=orderly,
            auto_commit=auto_commit,
            executor=executor,
        )
        self._offset_store = offset_store
        self._interceptors = interceptors_of("PushConsumer", interceptors)
        self._queue_listener = queue_listener
        self._expressions: dict[str, tuple[str | None, str]] = {}
        self._network_factory: NetworkFactory | None = None
        self._engine: PushEngine | None = None

    @property
    def state(self) -> ServiceState:
        """Where it is in its life."""
        return ServiceState.CREATE_JUST if self._engine is None else self._engine.state

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this member's now."""
        return [] if self._engine is None else self._engine.queues

    @property
    def flow_counters(self) -> FlowCounters:
        """How often pulls waited because too much was held.

        Raises:
            ClientStateError: it does not run.
        """
        return self._running().flow_counters

    def listener(self, function: L) -> L:
        """Take a function as the listener of single messages: ``@consumer.listener``.

        Raises:
            InvalidArgument: there is a listener already.
            ClientStateError: it has been started.
        """
        self._take_listener(function, batch=False)
        return function

    def batch_listener(self, function: L) -> L:
        """Take a function as the listener of lists of messages: ``@consumer.batch_listener``. As :meth:`listener`."""
        self._take_listener(function, batch=True)
        return function

    def _take_listener(self, function: AnyListener, *, batch: bool) -> None:
        if self._engine is not None:
            raise ClientStateError(f"{self._name} is {self.state.value}: give the listener before start()")
        if self._spec.function is not None:
            raise InvalidArgument(f"{self._name} has a listener already")
        callable_hook("the listener", function)
        self._spec = replace(self._spec, function=function, batch=batch)

    @property
    def _name(self) -> str:
        return f"consumer group {self.settings.group}"

    def _note_subscription(self, topic: str, expression: str | None, expression_type: str) -> None:
        """Keep a subscription for the start; an invalid one is rejected here."""
        validate_topic(topic)
        make_subscription(topic, expression, expression_type=expression_type, now_ms=0)
        self._expressions[topic] = (expression, expression_type)

    def _open(self) -> PushEngine:
        """Return an engine to be started."""
        if self._engine is not None and self._engine.state is not ServiceState.CREATE_JUST:
            raise not_startable(self._name, self._engine.state)
        self._engine = PushEngine(
            self.settings,
            self._spec,
            expressions=self._expressions,
            offset_store=self._offset_store,
            interceptors=self._interceptors,
            queue_listener=self._queue_listener,
            network_factory=self._network_factory,
        )
        return self._engine

    def _running(self) -> PushEngine:
        if self._engine is None or not self._engine.is_running:
            raise ClientStateError(f"{self._name} is {self.state.value}: start it, or make a new one")
        return self._engine
