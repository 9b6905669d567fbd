"""Checks: routes are asked for once, kept where nobody can be asked, asked for again while they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.routes import Routes
from cometmq.remoting.bodies.routes import QueueData, TopicRouteData
from cometmq.store_config.topic_config import Perm, TopicConfig
from support.broker_twins import Rig, run


def route(queues: int, perm: int = 6) -> TopicRouteData:
    part = QueueData(broker_name="b", read_queue_nums=queues, write_queue_nums=queues, perm=perm)
    return TopicRouteData(queue_datas=(part,))


async def count(routes: Routes, topic: str = "t") -> int | None:
    found = await routes.queues(topic)
    return None if found is None else len(found)


def test_a_broker_without_name_servers_is_the_whole_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        await rig.make_topics(
            TopicConfig(topic_name="t", read_queue_nums=3, write_queue_nums=5),
            TopicConfig(topic_name="mute", perm=Perm.WRITE),
        )
        assert await count(rig.control.routes) == 3
        assert await count(rig.control.routes, "mute") == 0
        assert await count(rig.control.routes, "nowhere") is None

    with Rig(tmp_path) as rig:
        run(scenario())


def test_routes_are_cached_and_refreshed(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers, routes = rig.name_servers, rig.control.routes
        servers.routes = {"t": route(2)}
        assert [await count(routes), await count(routes), await count(routes, "nowhere")] == [2, 2, None]
        assert servers.asked == ["t", "nowhere"]
        servers.routes["t"] = route(4)
        assert await count(routes) == 2
        await routes.refresh()
        assert await count(routes) == 4
        servers.up = False
        await routes.refresh()
        assert [await count(routes), await count(routes, "nowhere")] == [4, None]
        servers.up = True
        servers.routes["t"] = route(70_000)
        await routes.refresh()
        assert await count(routes) == 4, "a route that nobody can believe changes nothing"
        del servers.routes["t"]
        await routes.refresh()
        assert await count(routes) is None

    with Rig(tmp_path) as rig:
        run(scenario())


def test_a_topic_without_queues_is_asked_for_each_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig.name_servers.routes = {"t": route(2, perm=Perm.WRITE)}
        assert [await count(rig.control.routes), await count(rig.control.routes)] == [0, 0]
        assert rig.name_servers.asked == ["t", "t"]

    with Rig(tmp_path) as rig:
        run(scenario())


@pytest.mark.parametrize("set_by_ms", [30 * 86_400_000, -30 * 86_400_000])
def test_needed_topics_stay_and_others_go_when_the_wall_clock_is_set(tmp_path: Path, set_by_ms: int) -> None:
    async def scenario() -> None:
        servers, routes = rig.name_servers, rig.control.routes
        servers.routes = {"t": route(2)}
        await count(routes)
        rig.clock.set(set_by_ms)
        servers.asked.clear()
        await routes.refresh()
        assert servers.asked == ["t"]
        rig.clock.move(600_001)
        await routes.refresh()
        assert servers.asked == ["t"], "forgotten"

    with Rig(tmp_path) as rig:
        run(scenario())


def test_a_topic_that_nobody_needs_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers, routes = rig.name_servers, rig.control.routes
        servers.routes = {"t": route(2), "u": route(2)}
        assert [await count(routes), await count(routes, "u")] == [2, 2]
        rig.clock.move(600_000)
        assert await count(routes, "u") == 2
        rig.clock.move(1)
        servers.asked.clear()
        await routes.refresh()
        assert servers.asked == ["u"]

    with Rig(tmp_path) as rig:
        run(scenario())
