"""Checks: changed queues of a topic are reported to the listener of a pull consumer."""

from __future__ import annotations

import asyncio

from support.pull_scene import World, virtually


def test_other_queues_of_a_topic_are_reported() -> None:
    async def test(world: World) -> None:
        changes: list[tuple[str, int]] = []
        engine = await world.started(0)
        engine.watch_queues("t", lambda topic, queues: changes.append((topic, len(queues))))
        await asyncio.sleep(60)
        assert changes == []
        world.broker.create("t", 4)
        await asyncio.sleep(60)
        assert changes == [("t", 4)]
        await engine.close()

    virtually(test)
