"""Checks: no administration request leaves a broker with a configuration that its next start cannot read.

Each request carries what a lenient or a fast reader takes and a strict one refuses, in a member that no version knows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK

TIMEOUT_MS = 10_000

POISONS = {
    "nested-90": b"[" * 90 + b"]" * 90,
    "nested-150": b"[" * 150 + b"]" * 150,
    "nested-900": b'{"a":' * 900 + b"1" + b"}" * 900,
    "exponent": b"1e20000",
    "exponent-at-the-limit": b"9" * 800 + b"e8000",
    "digits-2000": b"9" * 2000,
    "digits-890": b"9" * 890,
    "fraction": b"0." + b"3" * 5000,
    "half-surrogate": rb'"\ud83d"',
    "control-characters": rb'"\u0000\u001f\u2028"',
    "names": b'{"":1,"\\"":2,"$ref":3,"a:b":{"{}":4}}',
}

TOPIC_LIST = b'{"topicConfigList":[{"topicName":"orders","perm":6,"readQueueNums":4,"writeQueueNums":4,"x":%s}]}'
GROUP = (
    b'{"groupName":"billing","x":%s,"groupRetryPolicy":{"type":"EXPONENTIAL","y":%s,"exponentialRetryPolicy":{"z":%s}},'
    b'"subscriptionDataSet":[{"topic":"orders","w":%s}]}'
)
REQUESTS = {
    "topics": (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, TOPIC_LIST),
    "group": (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, GROUP),
    "groups": (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'{"groupConfigList":[' + GROUP + b"]}"),
}


def make(path: Path) -> Broker:
    settings = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}
    return Broker(load_broker_config(path, listen=":0", settings=settings, environ=ANY_DISK))


def ask(channel: Channel, code: int, body: bytes = b"", **fields: str) -> Command:
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_broker_starts_again_after_every_poisoned_request(tmp_path: Path, request_name: str) -> None:
    code, template = REQUESTS[request_name]
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        for poison in POISONS.values():
            body = template.replace(b"%s", poison)
            assert ask(channel, code, body).code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        # A later, harmless change writes the whole table again.
        assert ask(channel, code, template.replace(b"%s", b"1")).code == ResponseCode.SUCCESS
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        assert ask(channel, RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
    files = [path for path in (tmp_path / "config").iterdir() if path.suffix == ".broken"]
    assert files == [], "no generation was unreadable"


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
def test_members_that_no_version_knows_are_not_stored(tmp_path: Path, poison: bytes) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        for code, template in REQUESTS.values():
            ask(channel, code, template.replace(b"%s", poison))
    for name in ("topics.json", "subscriptionGroup.json"):
        written = (tmp_path / "config" / name).read_bytes()
        assert [member for member in (b'"w"', b'"x"', b'"y"', b'"z"') if member in written] == []
