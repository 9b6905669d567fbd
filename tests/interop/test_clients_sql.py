"""SQL92 filters of the official client: pulls, push consumers, held pulls, and messages that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.landscapes import in_each_pair
from interop.patterns import MessageSpec
from interop.sites import SHARED_SETTINGS, Peer
from interop.test_clients_consume import keys, send

pytestmark = pytest.mark.java

SETTINGS = {**SHARED_SETTINGS, "enablePropertyFilter": "true"}
EXPRESSION = "price > 10 AND region = 'eu' AND TAGS IS NOT NULL"
QUEUES = 2


def priced(topic: str, count: int, *, start: int = 0) -> list[MessageSpec]:
    """Messages of which each fourth matches; the others fail one comparison each."""
    return [
        MessageSpec(
            topic,
            b"x",
            None if number % 4 == 1 else "paid",
            (f"n{number}",),
            {"price": "9" if number % 4 == 2 else "11", "region": "us" if number % 4 == 3 else "eu"},
            number // 4 % QUEUES,
        )
        for number in range(start, start + count)
    ]


def matching(specs: list[MessageSpec]) -> list[str]:
    return sorted(spec.keys[0] for spec in specs if int(spec.keys[0][1:]) % 4 == 0)


@in_each_pair
def test_sql92_consumers_get_matching_messages_alone(site: Peer, tmp_path: Path) -> None:
    client, topic = site.client, "JavaSql"
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        early = priced(topic, 80)
        send(client, early)
        assert sorted(row["keys"] for row in client.pull_all(topic, sql=EXPRESSION)) == matching(early)

        client.start_consumer("sql", "java_sql", {topic: EXPRESSION}, is_sql=True)
        assert keys(client.consumed("sql", count=20)) == matching(early)
        # Its pulls are held now; messages that do not match wake none of them.
        late = priced(topic, 80, start=80)
        send(client, late)
        rows = client.consumed("sql", count=40)
        assert keys(rows) == matching(early + late)
        assert all(row["properties"]["region"] == "eu" for row in rows)


@in_each_pair
def test_failed_messages_of_an_sql92_consumer_are_retried(site: Peer, tmp_path: Path) -> None:
    client, topic = site.client, "JavaSqlRetries"
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        specs = priced(topic, 16)
        client.start_consumer("sql", "java_sql_retries", {topic: EXPRESSION}, is_sql=True, fail_until={"paid": 1})
        send(client, specs)
        rows = client.consumed("sql", count=4)
        assert keys(rows) == matching(specs)
        assert sorted(str(row["keys"]) for row in rows if not row["consumed"]) == matching(specs)
