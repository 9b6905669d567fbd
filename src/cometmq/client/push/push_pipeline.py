"""The way of a message through one push consumer: pulls and pops bring it, a service queues it, workers consume it.

The pipeline puts the stations together as the consumer's settings ask, and stops them in order. The start makes it once
the offsets are loaded.

Threads: the client's loop; listeners run in the workers. Source: consumption specification 1.1, 1.3, 1.18.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cometmq.client.group.retry_policy import most_tries
from cometmq.client.group.send_backs import SendBacks
from cometmq.client.instance.hooks import MessageFilter
from cometmq.client.pop.pop_kernel import PopKernel
from cometmq.client.push.concurrent_service import ConcurrentService
from cometmq.client.push.consume_counts import ConsumeCounts
from cometmq.client.push.consume_service import ConsumeContext
from cometmq.client.push.listener_hooks import ListenerHooks
from cometmq.client.push.listener_workers import ListenerSpec, make_workers
from cometmq.client.push.orderly_service import OrderlyService
from cometmq.client.push.pop_service import PopService
from cometmq.client.push.push_popping import PushPopping, may_pop
from cometmq.client.push.push_pops import PopHost, PushPops
from cometmq.client.push.push_pulls import PullHost, PushPulls
from cometmq.remoting.bodies.heartbeat import MessageModel

if TYPE_CHECKING:
    from cometmq.client.group.offset_stores import OffsetStore
    from cometmq.client.group.rebalance import Rebalance
    from cometmq.client.instance.hooks import Interceptor
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.push.push_tasks import PushTasks
    from cometmq.client.push.tasks import TaskResult, Workers
    from cometmq.client.settings import PushSettings
    from cometmq.remoting.bodies.heartbeat import SubscriptionData

__all__ = ["PipelineHost", "PushPipeline"]

_log = logging.getLogger(__name__)


class PipelineHost(PullHost, PopHost, Protocol):
    """The consumer whose pipeline this is."""

    @property
    def group(self) -> str:
        """The group, as brokers know it."""
        ...

    @property
    def subscriptions(self) -> MutableMapping[str, SubscriptionData]:
        """Topic to subscription, as brokers know them."""
        ...


class PushPipeline:
    """The stations of one push consumer.

    Attributes:
        pulls: brings the messages of the queues that the consumer owns.
        popping: brings the messages of the queues that brokers share out; None where they share none.
        service: has pulled messages consumed, and acts on the results.
        workers: run the listener.
        call_now: gives messages to the listener outside of any queue.
        counts: the figures of what came and was consumed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        host: PipelineHost,
        settings: PushSettings,
        listener: ListenerSpec,
        store: OffsetStore,
        rebalance: Rebalance,
        tasks: PushTasks,
        *,
        interceptors: Sequence[Interceptor],
        on_subscriptions: Callable[[], Coroutine[Any, Any, None]],
        now_ms: Callable[[], int],
    ) -> None:
        """Bring nothing yet.

        Args:
            instance: reaches the brokers.
            host: the consumer.
            settings: the consumer's.
            listener: its listener.
            store: its offsets.
            rebalance: locks queues for an orderly listener.
            tasks: runs work beside.
            interceptors: filter messages, and see them before and after the listener.
            on_subscriptions: sends the brokers changed subscriptions.
            now_ms: the wall clock.
        """
        self._instance = instance
        self._host = host
        self._settings = settings
        self._listener = listener
        self._tasks = tasks
        self._now_ms = now_ms
        self.counts = ConsumeCounts()
        self._filter = MessageFilter(interceptors)
        self.pulls = PushPulls(
            instance,
            host,
            settings,
            store,
            group=host.group,
            counts=self.counts,
            spawn=tasks.spawn,
            message_filter=self._filter,
        )
        self.service = self._make_service(store, rebalance)
        self.popping: PushPopping | None = None
        if may_pop(settings, is_orderly=host.is_orderly):
            self.popping = self._make_popping(on_subscriptions)
        self.workers = self._make_workers(interceptors)
        self.service.workers = self.workers
        if self.popping is not None:
            self.popping.service.workers = self.workers

    @property
    def _batch_max(self) -> int:
        return self._settings.consume_message_batch_max_size if self._listener.batch else 1

    def _make_service(self, store: OffsetStore, rebalance: Rebalance) -> ConcurrentService | OrderlyService:
        settings, model = self._settings, self._settings.message_model
        most = most_tries(settings.max_reconsume_times, orderly=self._host.is_orderly)
        around = ConsumeContext(
            group=self._host.group,
            batch_max=self._batch_max,
            store=store,
            send_backs=SendBacks(self._instance, self._host.group, most=most, unit_mode=settings.unit_mode),
            on_room=self.pulls.room,
            spawn=self._tasks.spawn,
            now_ms=self._instance.steady_ms,
        )
        if not self._host.is_orderly:
            return ConcurrentService(around, model=model)
        return OrderlyService(
            around,
            needs_lock=model is MessageModel.CLUSTERING,
            auto_commit=self._listener.auto_commit,
            most=most,
            suspend_default_ms=settings.suspend_current_queue_time_ms,
            lock=rebalance.lock,
        )

    def _make_popping(self, on_subscriptions: Callable[[], Coroutine[Any, Any, None]]) -> PushPopping:
        settings, group = self._settings, self._host.group
        most = most_tries(settings.max_reconsume_times)
        kernel = PopKernel(
            self._instance,
            group=group,
            namespace=settings.namespace,
            tries_max=most,
            dead_letters=SendBacks(self._instance, group, most=most, unit_mode=settings.unit_mode),
            message_filter=self._filter,
        )
        service = PopService(
            group=group,
            batch_max=self._batch_max,
            tries_max=most,
            kernel=kernel,
            extends=settings.pop_extend,
            spawn=self._tasks.spawn,
            now_ms=self._now_ms,
        )
        pops = PushPops(
            self._instance, self._host, settings, kernel, group=group, counts=self.counts, consume=service.submit
        )
        return PushPopping(
            pops,
            service,
            self._host.subscriptions,
            group=group,
            on_change=lambda: self._tasks.spawn(on_subscriptions()),
            now_ms=self._now_ms,
        )

    def _make_workers(self, interceptors: Sequence[Interceptor]) -> Workers:
        on_done = self.service.done if self.popping is None else self.popping.sorted(self.service.done)

        def done(task_results: list[TaskResult]) -> None:
            self.counts.add(task_results)
            on_done(task_results)

        timeout_s = self._settings.consume_timeout_minutes * 60.0
        workers, self.call_now = make_workers(
            self._listener,
            done,
            ListenerHooks(interceptors, group=self._host.group, timeout_s=timeout_s, now_ms=self._now_ms),
            group=self._host.group,
            threads_max=self._settings.consume_thread_max,
            has_interceptors=bool(interceptors),
        )
        return workers

    @property
    def is_in_listener(self) -> bool:
        """Whether the caller is a call of the listener. Any thread."""
        return self.workers.is_inside

    async def drain(self, *, timeout_ms: int) -> None:
        """Bring no more messages, and let listeners finish those that they have begun."""
        self._close()
        hanging = await self.workers.close(
            drain_ms=self._settings.await_termination_when_shutdown_ms, finish_ms=timeout_ms
        )
        if hanging:
            _log.warning("group %s: %d listeners still run; their messages are redelivered", self._host.group, hanging)

    async def stop(self, *, drained: bool) -> None:
        """Stop all of it; listeners are cut short where they were not ``drained``."""
        self._close()
        if self.popping is not None:
            await self.popping.end()
        if not drained:
            await self.workers.close(drain_ms=0, finish_ms=0)

    def _close(self) -> None:
        self.pulls.close()
        self.service.close()
        if self.popping is not None:
            self.popping.close()
