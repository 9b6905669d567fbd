"""Our client on a broker of Apache's that asks for signed requests (authentication of 5.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cometmq.admin
from cometmq.client import NamespaceFields, RequestSigner
from cometmq.errors import BrokerError, RouteNotFound, SendFailed
from interop.members import Seen, producer, push
from interop.servers import Broker
from interop.sites import Peer
from interop.waiting import eventually

pytestmark = pytest.mark.java(full=True)

USER, SECRET = "admin", "12345678"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": SECRET}),
}


def test_signed_requests_are_taken_and_others_refused(peer: Peer, tmp_path: Path) -> None:
    topic, seen = "PySigned", Seen()
    signed: dict[str, Any] = {"rpc_hooks": [NamespaceFields("tenant"), RequestSigner(USER, SECRET)]}
    forged: dict[str, Any] = {"rpc_hooks": [RequestSigner(USER, "wrong")]}
    # Not the site's: it asks its brokers unsigned whether they are there.
    broker = Broker(tmp_path / "store", tmp_path / "home", peer.namesrv.address, settings=SETTINGS)
    broker.start()
    try:
        with producer(peer, "py_signed", **signed) as sender:

            def sent() -> bool:
                try:
                    sender.send(topic, b"hello", keys="k")
                except RouteNotFound:  # the broker has not registered yet
                    return False
                return True

            eventually(sent)
            with push(peer, "py_signed_group", seen, **signed).subscribe(topic):
                (taken,) = seen.wait_for(1)
        assert taken.message.body_bytes == b"hello"
        with cometmq.admin.connect(namesrv=peer.namesrv.address, rpc_hooks=signed["rpc_hooks"]) as admin:
            assert admin.topics.describe(topic).messages == 1
        with cometmq.admin.connect(namesrv=peer.namesrv.address) as admin, pytest.raises(BrokerError):
            admin.topics.describe(topic)
        for options in (forged, {}):
            with producer(peer, "py_unsigned", **options) as sender, pytest.raises(SendFailed):
                sender.send(topic, b"x")
    finally:
        broker.kill()
