"""Checks: chains of orderly listener calls, where the engine's own tests do not reach."""

from __future__ import annotations

import asyncio
from typing import Any

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.push.consume_service import ConsumeContext
from cometmq.client.push.listeners import SUCCEEDED
from cometmq.client.push.orderly_service import OrderlyService
from cometmq.client.push.tasks import Task, TaskResult
from cometmq.remoting.bodies.message_queue import MessageQueue


def test_a_queue_that_was_given_up_while_its_listener_ran_is_not_remembered() -> None:
    async def main() -> None:
        nothing: Any = None
        around = ConsumeContext(
            group="g",
            batch_max=1,
            store=nothing,
            send_backs=nothing,
            on_room=nothing,
            spawn=nothing,
            now_ms=lambda: 0,
        )
        service = OrderlyService(
            around, needs_lock=False, auto_commit=True, most=16, suspend_default_ms=1_000, lock=nothing
        )
        held = ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))
        held.listeners = 1
        held.dropped = True
        service.forget(held)
        message: Any = type("Message", (), {"queue_offset": 0, "body_size": 1})()
        task_result = TaskResult(Task(held, [message], 1, may_go_on=lambda: True), 0.0, parts=1)
        task_result.add([message], SUCCEEDED)
        service.done([task_result])
        assert held.listeners == 0
        # Else it and all that it holds would stay for as long as the consumer does.
        assert held not in service._mean_s

    asyncio.run(main())
