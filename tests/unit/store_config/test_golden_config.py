"""Checks: every text file under config/ of every golden store re-creates byte for byte, as text and by its type."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.store_config.built_in_topics import system_topics
from cometmq.store_config.consumer_offsets import ConsumerOffsets, LightQueueOffsets
from cometmq.store_config.delay_offsets import DelayOffsets
from cometmq.store_config.documents import DOCUMENTS, Document
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.fastjson import Layout, encode, loads
from cometmq.store_config.managed import ManagedFile
from cometmq.store_config.order_info import OrderInfo
from cometmq.store_config.request_modes import RequestModes
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups
from cometmq.store_config.topics import Topics
from support.golden import StoreKind, golden_names

GoldenStore = Callable[[str, StoreKind], Path]

KINDS: tuple[StoreKind, ...] = ("clean", "crashed")
STORES = [(name, kind) for kind in KINDS for name in golden_names(kind)]


def text_files(store: Path) -> list[Path]:
    folders = [store / "config", store / "compaction"]
    found = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()]
    return sorted(path for path in found if not path.name.startswith("timercheck"))


def managed(store: Path) -> Iterator[ManagedFile]:
    config = store / "config"
    yield from (Topics(config), SubscriptionGroups(config), DelayOffsets(config))
    yield from (ConsumerOffsets(config), LightQueueOffsets(config), RequestModes(config), OrderInfo(config))
    for name in DOCUMENTS:
        yield Document(store / "compaction" if name == "position-checkpoint" else config, name)


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_files_re_create_byte_for_byte(golden_store: GoldenStore, name: str, kind: StoreKind) -> None:
    store = golden_store(name, kind)
    files = text_files(store)
    assert len(files) >= 10
    for path in files:
        data = path.read_bytes()
        layout = DOCUMENTS.get(path.name.removesuffix(".bak"), Layout.PRETTY)
        assert encode(loads(data), layout=layout) == data, path.name


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_files_pass_through_their_types(golden_store: GoldenStore, name: str, kind: StoreKind) -> None:
    store = golden_store(name, kind)
    seen = set()
    for file in managed(store):
        if not file.path.exists():
            continue
        seen.add(file.path.name)
        data = file.path.read_bytes()
        assert file.load().warning is None
        same = encode(file.encode(), layout=file.layout) == data
        # 4.x files get the members that 5.x has besides; documents have no such members.
        assert same == (name != "apache-4.9.7" or isinstance(file, Document)), file.path.name
    assert {path.name for path in text_files(store) if path.suffix != ".bak"} == seen


@pytest.mark.parametrize(("name", "kind"), STORES)
def test_a_rewrite_keeps_the_file_and_makes_it_the_backup(
    golden_store: GoldenStore, name: str, kind: StoreKind
) -> None:
    store = golden_store(name, kind)
    for file in managed(store):
        if file.path.exists():
            before = file.path.read_bytes()
            file.load()
            assert not file.persist()
            assert file.persist(only_if_changed=False)
            assert file.path.with_name(file.path.name + ".bak").read_bytes() == before
            assert file.path.read_bytes() == encode(file.encode(), layout=file.layout)
    assert not list(store.rglob("*.tmp"))
    assert not list(store.rglob("*.broken"))


def mutated(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(damaged) + 1)
        action = rng.randrange(4)
        if action == 0 and at < len(damaged):
            damaged[at] = rng.randrange(256)
        elif action == 1:
            del damaged[at : at + rng.randint(1, 20)]
        elif action == 2:
            damaged[at:at] = rng.choice([b"[", b"}", b"-", b"'", b"null,", b'"x":', b"1e999,", b"99999999999999999999"])
        else:
            damaged[at : at + 8] = bytes(8)
    return bytes(damaged)


def test_damaged_files_load_or_raise_the_one_error(golden_store: GoldenStore) -> None:
    """A file that loads can be written and read again; one that does not leaves the content before."""
    seed = int(os.environ.get("CMQ_SEED", "20250919"), 0)
    print(f"CMQ_SEED={seed}")
    rng = random.Random(seed)
    refused = loaded = 0
    for file in managed(golden_store("apache-5.3.3-groups", "clean")):
        if not file.path.exists():
            continue
        whole, backup = file.path.read_bytes(), file.path.with_name(file.path.name + ".bak")
        file.load()
        for _ in range(60):
            for path in (file.path, backup):
                path.write_bytes(mutated(rng, whole))
            before = file.encode()
            try:
                file.load()
            except ConfigError:
                refused += 1
                assert file.encode() == before
            else:
                loaded += 1
                file.persist(only_if_changed=False)
                again = file.encode()
                file.load()
                assert encode(file.encode(), layout=file.layout) == encode(again, layout=file.layout)
    assert refused > 50
    assert loaded > 50


@pytest.mark.parametrize("name", [name for name in golden_names() if name != "apache-4.9.7"])
def test_the_system_topics_and_groups_are_those_of_a_real_broker(golden_store: GoldenStore, name: str) -> None:
    config = golden_store(name, "clean") / "config"
    topics, groups = Topics(config), SubscriptionGroups(config)
    topics.load()
    groups.load()
    for topic in system_topics(timer_wheel_enable=name != "apache-5.3.3-expired"):
        assert topics.get(topic.topic_name) == topic
    for group in SYSTEM_GROUPS:
        assert groups.get(group.group_name) == group


def test_a_4x_store_gets_the_members_of_5x(golden_store: GoldenStore) -> None:
    config = golden_store("apache-4.9.7", "clean") / "config"
    offsets = ConsumerOffsets(config, now_ms=lambda: 77)
    offsets.load()
    content = offsets.encode()
    assert content["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 77}
    assert set(content) == {"dataVersion", "groupTopicMap", "offsetTable"}
    topics = Topics(config)
    topics.load()
    plain = topics.get("Plain")
    assert plain is not None
    assert plain.encode()["attributes"] == {}
