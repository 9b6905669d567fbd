"""The official Go client against our servers: only the address changes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from interop.landscapes import in_each_pair, in_full_only
from interop.processes import BUILD
from interop.sites import Peer

pytestmark = pytest.mark.java

SOURCE = Path(__file__).parent / "go"
QUEUES = 4
EACH = 10
RUN_LIMIT_S = 150


@pytest.fixture(scope="session")
def go_peer() -> Path:
    """The program, built once; the client's modules come through the Go proxy."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed (Debian: apt-get install golang)")
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / "go-peer"
    with (BUILD / "go-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [go, "build", "-mod=readonly", "-o", str(program), "."]
        built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        # A mistake of ours must not turn into a skip.
        assert "main.go" not in built.stderr, built.stderr
        pytest.skip(f"Go could not get the client's modules: {built.stderr[-600:]}")
    return program


@in_full_only
@in_each_pair
def test_go_and_java_clients_receive_sends_of_the_go_client(site: Peer, go_peer: Path) -> None:
    topic, group = "GoTopic", "go_group"
    site.client.create_topic(site.shared_broker, topic, queues=QUEUES)
    arguments = ["-namesrv", site.namesrv.address, "-topic", topic, "-group", group, "-count", str(EACH)]
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    run = subprocess.run(
        [go_peer, *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr[-4000:]
    events = [json.loads(line) for line in run.stdout.splitlines()]

    sent = {event["keys"]: event for event in events if event["kind"] != "consumed"}
    assert len(sent) == 4 * EACH
    stored = {str(row["keys"]): row for row in site.client.pull_all(topic)}
    assert stored.keys() == sent.keys()
    for keys, event in sent.items():
        row = stored[keys]
        assert (row["tags"], row["properties"]["own"]) == (event["tags"], event["kind"])
        if event["kind"] in ("sync", "async"):
            assert (row["queue"], row["queue_offset"], row["message_id"]) == (
                event["queue"],
                event["place"],
                event["id"],
            )

    consumed = [event for event in events if event["kind"] == "consumed"]
    first_tries = [event for event in consumed if event["tries"] == 0]
    assert sorted(event["keys"] for event in first_tries) == sorted(
        keys for keys, event in sent.items() if event["tags"] == "even"
    )
    # One failed, and came back once.
    assert [(event["keys"], event["tries"], event["body"]) for event in consumed if event["tries"]] == [
        ("sync4", 1, "sync 4")
    ]
