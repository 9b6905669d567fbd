"""Every command of upstream's ``mqadmin`` on our servers and on upstream's: the same outcome, or a reason in the docs.

``mqadmin-outcomes.txt`` has the commands that ``mqadmin-5.3.3.txt`` has not, each with its outcome: the first line
that it prints, or the code and text of the answer that made it fail. Where ours differs, its outcome stands behind
``ours``.
``CMQ_OUTCOMES=FILE`` writes what was seen into a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.java_client import Client
from interop.landscapes import in_full_only, ours_and_upstream
from interop.patterns import MessageSpec
from interop.servers import Broker
from interop.sites import Maker, Peer

pytestmark = pytest.mark.java

OUTCOMES = Path(__file__).with_name("mqadmin-outcomes.txt")
TOPIC, GROUP = "T", "g_reader"
SHOWN = 110
"""Characters of an outcome that are compared."""

REPLACED = [
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"/\S*/(pytest-\S+)", "FILE"),
    (r"\b[0-9A-F]{16,}\b", "ID"),
    (r"\S+@[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "CLIENT"),
    (r"\d+(\.\d+)?", "N"),
    (r"[ \t]+", " "),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One command of the file."""

    command: str
    upstream: str
    ours: str


def outcomes() -> Iterator[Outcome]:
    """The commands of the file, in its order."""
    for block in OUTCOMES.read_text(encoding="utf-8").split("$ ")[1:]:
        command, *lines = block.strip().splitlines()
        found = dict(line.split(": ", 1) for line in lines)
        yield Outcome(command, found["upstream"], found.get("ours", found["upstream"]))


def outcome_of(text: str) -> str:
    """The code and text that a command failed with, or its first line, without what differs from run to run."""
    failed = re.search(r"CODE: (\d+) +DESC: *(.*)", text)
    if failed is not None:
        code, reason = failed.groups()
        return f"code {code}, {normalized(reason)}"[:SHOWN]
    lines = [line for line in text.splitlines() if line.strip() and "======" not in line]
    return normalized(lines[0])[:SHOWN] if lines else "nothing"


def normalized(line: str) -> str:
    for pattern, replacement in REPLACED:
        line = re.sub(pattern, replacement, line)
    return line.strip()


def lists(folder: Path) -> dict[str, str]:
    """Files that commands read."""
    topics = [
        {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "order": False}
        | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        for name in ("Listed1", "Listed2")
    ]
    groups = [{"groupName": "listed_1", "consumeEnable": True, "retryMaxTimes": 3, "retryQueueNums": 1}]
    files = {"TOPICS": folder / "topics.json", "GROUPS": folder / "groups.json"}
    for file, content in zip(files.values(), (topics, groups), strict=True):
        file.write_text(json.dumps(content), encoding="utf-8")
    return {name: str(file) for name, file in files.items()}


def seen(client: Client, broker: Broker, folder: Path) -> dict[str, str]:
    """Give all commands and return what came of each."""
    client.mqadmin("updateTopic", "-b", broker.address, "-t", TOPIC, "-r", "2", "-w", "2")
    client.await_topic(TOPIC)
    rows = list(client.send([MessageSpec(TOPIC, b"body", "tag", (f"k{n}",), {"own": "1"}, n % 2) for n in range(6)]))
    client.start_consumer("reader", GROUP, {TOPIC: "tag"})
    client.consumed("reader", count=6)
    words = {
        "BROKER": broker.address,
        "FOLDER": str(folder),
        "UNIQUE_ID": str(rows[3]["message_id"]),
        **lists(folder),
    }
    found = {}
    for one in outcomes():
        given = [words.get(word, word) for word in one.command.split()]
        found[one.command] = outcome_of(client.mqadmin(*given))
    client.stop_consumers("reader")
    return found


@in_full_only
@ours_and_upstream
def test_every_command_ends_as_the_file_says(site: Peer, tmp_path: Path) -> None:
    settings = {"brokerClusterName": "AdminCluster", "timerWheelEnable": "true"}
    is_ours = site.landscape.broker is Maker.OURS
    with site.broker(tmp_path / "store", name="admin", settings=settings) as broker:
        found = seen(site.client, broker, tmp_path)
    if (written := os.environ.get("CMQ_OUTCOMES")) is not None:
        Path(f"{written}-{site.landscape.broker.name}").write_text(json.dumps(found), encoding="utf-8")
    assert found == {one.command: one.ours if is_ours else one.upstream for one in outcomes()}
