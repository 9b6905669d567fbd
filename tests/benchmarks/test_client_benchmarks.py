"""The client's benchmark: its short form works on our broker, and what is not right gives no figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ("cometmq.client, our broker", "cometmq.aio, our broker")
RATES = ("send, one by one/128B", "send, accumulated/128B", "consume, listener/128B", "consume, poll/1024B")


def run_quick(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_client.py"), "--quick", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"CMQ_BENCH_DIR": str(directory), "CMQ_BENCH_RESULTS": str(directory / "results"), "COLUMNS": "200"},
    )


@pytest.mark.timeout(300)
def test_our_clients_at_our_broker(tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--json", "--systems", *CLIENTS, "--only", *RATES, "latency")
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["quick"]
    assert document["failed"] == {}
    figures: dict[str, dict[str, Any]] = {figure["name"]: figure for figure in document["figures"]}
    percentiles = [f"latency, send to listener/128B/{label}" for label in ("p50", "p99", "p99.9")]
    assert set(figures) == {f"client/{title}/{client}" for title in (*RATES, *percentiles) for client in CLIENTS}
    for title in RATES:
        blocking, on_loop = (figures[f"client/{title}/{client}"] for client in CLIENTS)
        assert blocking["unit"] == "msg/s"
        assert blocking["cpu_ns"] > 0
        assert on_loop["ratio"] == pytest.approx(on_loop["value"] / blocking["value"])
    assert list(tmp_path.glob("client-*")) == []
    assert len(list((tmp_path / "results").glob("client-*-quick.json"))) == 1


def test_the_table_names_settings_and_goals(tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--systems", CLIENTS[0], "--only", "send, pipelined/128B")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "200 k/s: " in done.stdout
    assert "asynchronous flush" in done.stdout
    assert "these figures mean nothing" in " ".join(done.stdout.split())


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--systems", "no such client")
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr


# --- What is not right ------------------------------------------------------------------------------------------------


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.usefixtures("on_path")
def test_bodies_are_numbered() -> None:
    from clients import messages

    bodies = messages.make_bodies(70_000, 128)
    assert {len(body) for body in bodies} == {128}
    numbers = messages.numbers_of(bodies, 128)
    assert numbers.tolist() == list(range(70_000))
    messages.check_once_each(numbers, 70_000)
    messages.check_once_each(numbers[::-1], 70_000)
    messages.check_ascending(numbers, "q")
    assert len(messages.numbers_of([], 128)) == 0


def flipped(bodies: list[bytes]) -> list[bytes]:
    return [*bodies[:-1], bodies[-1][:-1] + bytes([bodies[-1][-1] ^ 1])]


SPOILED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "lost": lambda bodies: bodies[:-1],
    "lost in the middle": lambda bodies: bodies[:5] + bodies[6:],
    "twice": lambda bodies: [*bodies, bodies[0]],
    "twice instead of another": lambda bodies: [*bodies[:-1], bodies[0]],
    "one bit": flipped,
    "cut": lambda bodies: [*bodies[:-1], bodies[-1][:-8]],
    "out of order": lambda bodies: bodies[::-1],
}


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_wrong_results_are_found(spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    from clients import measuring, messages

    came = measuring.Collector(100, lambda: None, is_ordered=True)
    came.add_all(spoil(messages.make_bodies(100, 128)))
    with pytest.raises(messages.WrongResult):
        came.check(128)


@pytest.mark.usefixtures("on_path")
def test_queues_have_an_order_each() -> None:
    from clients import measuring, messages

    bodies = messages.make_bodies(6, 128)
    came = measuring.Collector(6, lambda: None)
    for queue, numbers in ((1, [1, 3]), (0, [0, 2]), (1, [5]), (0, [4])):
        came.add_from(queue, [bodies[number] for number in numbers])
    came.check(128)
    came = measuring.Collector(6, lambda: None)
    for queue, numbers in ((1, [1, 3]), (0, [4]), (1, [5]), (0, [0, 2])):
        came.add_from(queue, [bodies[number] for number in numbers])
    with pytest.raises(messages.WrongResult, match="out of order"):
        came.check(128)


@pytest.mark.usefixtures("on_path")
def test_a_collector_ends_with_the_last_message() -> None:
    from clients import measuring, messages

    bodies = messages.make_bodies(10, 128)
    ends: list[str] = []
    came = measuring.Collector(10, lambda: ends.append("done"))
    came.add_all(bodies[:4])
    for body in bodies[4:-1]:
        came.add(body)
    assert not came.is_done
    with pytest.raises(messages.WrongResult, match="9 of 10"):
        came.taken()
    came.add(bodies[-1])
    came.add(bodies[-1])
    assert ends == ["done"]
    assert came.taken().messages == 6  # those of the first call came before the clock ran


@pytest.mark.usefixtures("on_path")
def test_latencies_leave_out_sends_ahead() -> None:
    from clients import measuring, messages

    events: list[str] = []
    came = measuring.Arrivals(2, 4, on_ready=lambda: events.append("ready"), on_done=lambda: events.append("done"))
    bodies = [measuring.stamped(number, 128) for number in range(4)]
    for body in bodies[:3]:
        came.add(body)
    assert events == ["ready"]
    with pytest.raises(messages.WrongResult):
        came.latencies_us()
    came.add(bodies[3])
    assert events == ["ready", "done"]
    latencies = came.latencies_us()
    assert len(latencies) == 2
    assert all(us > 0 for us in latencies)
