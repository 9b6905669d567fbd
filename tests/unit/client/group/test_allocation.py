"""Checks: every allocation strategy gives each member the queues that Java's gives it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cometmq.client.group.allocation import (
    AllocateStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    FunctionStrategy,
    MachineRoomNearby,
    as_strategy,
    md5_position,
)
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue

_HASH_IDS = ["10.0.0.1@1001", "10.0.0.2@1002", "10.0.0.3@1003"]


def _queues(count: int, *, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue(topic="TopicTest", broker_name=broker, queue_id=number) for number in range(count)]


def _ids(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _shares(strategy: AllocateStrategy, queues: Sequence[MessageQueue], ids: Sequence[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy.allocate("g", own, queues, ids)] for own in ids]


@pytest.mark.parametrize(
    ("queues", "members", "shares"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (4, 4, [[0], [1], [2], [3]]),
        (3, 5, [[0], [1], [2], [], []]),
        (2, 5, [[0], [1], [], [], []]),
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
    ],
)
def test_averagely(queues: int, members: int, shares: list[list[int]]) -> None:
    """Promises 62, 89: the articles' figures and the specification's vectors."""
    assert _shares(Averagely(), _queues(queues), _ids(members)) == shares


def test_averagely_as_upstream_computes_it() -> None:
    """Promise 89: the rule as the specification writes it, for all small sizes."""
    for count in range(1, 40):
        for members in range(1, 40):
            got = _shares(Averagely(), _queues(count), _ids(members))
            rest = count % members
            for index, share in enumerate(got):
                more = rest > 0 and index < rest
                size = 1 if count <= members else count // members + (1 if more else 0)
                start = index * size if more else index * size + rest
                assert share == [start + step for step in range(min(size, count - start))]


def test_by_circle() -> None:
    assert _shares(AveragelyByCircle(), _queues(8), _ids(3)) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert _shares(AveragelyByCircle(), _queues(1), _ids(2)) == [[0], []]


def test_by_config_gives_its_list_to_any_members() -> None:
    queues = _queues(4)
    retry = MessageQueue(topic="%RETRY%g", broker_name="broker-a", queue_id=0)
    strategy = ByConfig([*queues[1:3], retry])
    assert strategy.allocate("g", "not in the list", queues, ["c0"]) == queues[1:3]
    assert strategy.allocate("g", "c0", [retry], ["c0"]) == [retry]


def test_by_machine_room() -> None:
    queues = [
        *_queues(2, broker="plain"),
        *_queues(3, broker="r1@a"),
        *_queues(2, broker="r1@a@b"),
        *_queues(2, broker="r2@a"),
        *_queues(2, broker="r3@a"),
        *_queues(2, broker="r1@"),
    ]
    strategy = ByMachineRoom({"r1", "r2"})
    kept = [*queues[2:5], *queues[7:9]]
    ids = _ids(3)
    shares = [strategy.allocate("g", own, queues, ids) for own in ids]
    assert shares == [[kept[0], kept[3]], [kept[1], kept[4]], [kept[2]]]


class _Rooms:
    """The room is what stands before the minus."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return queue.broker_name.partition("-")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.partition("-")[0]


def test_machine_room_nearby() -> None:
    near, other, orphan_b, orphan_a = (
        _queues(3, broker="r1-a"),
        _queues(2, broker="r2-a"),
        _queues(4, broker="r9-a"),
        _queues(3, broker="r3-a"),
    )
    strategy = MachineRoomNearby(Averagely(), _Rooms())
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    queues = [*near, *other, *orphan_b, *orphan_a]
    ids = ["r1-x", "r1-y", "r2-x"]
    shares = [strategy.allocate("g", own, queues, ids) for own in ids]
    assert shares == [
        [*near[:2], orphan_a[0], *orphan_b[:2]],
        [near[2], orphan_a[1], orphan_b[2]],
        [*other, orphan_a[2], orphan_b[3]],
    ]
    with pytest.raises(InvalidArgument):
        strategy.allocate("g", "r1-x", _queues(1, broker="-a"), ids)
    with pytest.raises(InvalidArgument):
        strategy.allocate("g", "r1-x", queues, [*ids, "-z"])


def test_positions_on_the_ring() -> None:
    """Promise 90: Java's MD5Hash."""
    assert [md5_position(f"{each}-0") for each in _HASH_IDS] == [1664424904, 3373906669, 1631452046]
    assert md5_position("MessageQueue [topic=TopicTest, brokerName=broker-a, queueId=0]") == 1987926524


def test_consistent_hash() -> None:
    """Promise 90."""
    assert _shares(ConsistentHash(), _queues(8), _HASH_IDS) == [[0, 4], [2, 5], [1, 3, 6, 7]]


def test_consistent_hash_moves_only_the_share_of_a_leaver() -> None:
    """Promise 90."""
    queues, ids, strategy = _queues(400), _ids(9), ConsistentHash()
    before = {queue: own for own in ids for queue in strategy.allocate("g", own, queues, ids)}
    left = [own for own in ids if own != "c4"]
    after = {queue: own for own in left for queue in strategy.allocate("g", own, queues, left)}
    assert set(before) == set(after) == set(queues)
    assert any(own == "c4" for own in before.values())
    assert all(before[queue] in ("c4", after[queue]) for queue in queues)


def test_consistent_hash_of_the_users_own() -> None:
    places = {"c0-0": 10, "c1-0": 20, "c2-0": 20}
    strategy = ConsistentHash(
        virtual_nodes=1, hash_function=lambda key: places[key] if key in places else int(key[-2]) * 10
    )
    # Queue 0 lies at 0, 1 at 10, 2 at 20, 3 behind the last; c2 took c1's place over.
    assert _shares(strategy, _queues(4), _ids(3)) == [[0, 1, 3], [], [2]]
    assert _shares(ConsistentHash(virtual_nodes=0), _queues(4), _ids(2)) == [[], []]
    with pytest.raises(InvalidArgument):
        ConsistentHash(virtual_nodes=-1)


_CHECKED: list[AllocateStrategy] = [
    Averagely(),
    AveragelyByCircle(),
    ByMachineRoom({"r"}),
    MachineRoomNearby(Averagely(), _Rooms()),
    ConsistentHash(),
]


@pytest.mark.parametrize("strategy", _CHECKED, ids=lambda strategy: strategy.name)
def test_the_common_checks(strategy: AllocateStrategy) -> None:
    queues = _queues(2, broker="r-a")
    assert strategy.allocate("g", "r-gone", queues, ["r-x"]) == []
    for own, given, ids in (("", queues, ["r-x"]), ("r-x", [], ["r-x"]), ("r-x", queues, [])):
        with pytest.raises(InvalidArgument):
            strategy.allocate("g", own, given, ids)


def test_accepted_strategies() -> None:
    for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "avg"):
        assert as_strategy(name).name == name.upper()
    given = Averagely()
    assert as_strategy(given) is given

    def first_only(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        del group
        return queues if client_id == client_ids[0] else ()

    made = as_strategy(first_only)
    assert isinstance(made, FunctionStrategy)
    assert made.name == "first_only"
    assert _shares(made, _queues(2), _ids(2)) == [[0, 1], []]
    with pytest.raises(InvalidArgument, match="did you mean 'AVG_BY_CIRCLE'"):
        as_strategy("AVG_BY_CIRCEL")
    with pytest.raises(InvalidArgument):
        as_strategy(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="which is not a MessageQueue"):
        as_strategy(lambda *_: [5]).allocate("g", "c0", _queues(1), ["c0"])  # type: ignore[list-item]
