"""Requests that send messages, as the admin's sender makes them.

Source: remoting specification 2.2, 4.1 to 4.6.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.admin.servers import request
from cometmq.client.send.outgoing import TEMPLATE_QUEUES, TEMPLATE_TOPIC, Encoded, batch_body, own_properties
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command

__all__ = ["batch_request", "single_request"]


def _header(
    code: int,
    topic: str,
    queue_id: int,
    group: str,
    now_ms: int,
    properties: bytes,
    body: bytes,
    *,
    batch: bool,
    flag: int = 0,
) -> Command:
    return request(
        code,
        body=body,
        a=group,
        b=topic,
        c=TEMPLATE_TOPIC,
        d=TEMPLATE_QUEUES,
        e=queue_id,
        f=0,
        g=now_ms,
        h=flag,
        i=properties.decode(),
        j=0,
        k=False,
        m=batch,
    )


_WAIT_ALONE = b"WAIT\x01true\x02"


def _own(unique_id: str | None) -> bytes:
    return _WAIT_ALONE if unique_id is None else own_properties(unique_id)


def single_request(
    message: Encoded, *, topic: str, queue_id: int, group: str, unique_id: str | None, now_ms: int
) -> Command:
    """Return the request that sends one message (310); its id None where it brings it."""
    properties = message.properties + _own(unique_id)
    return _header(
        RequestCode.SEND_MESSAGE_V2,
        topic,
        queue_id,
        group,
        now_ms,
        properties,
        message.body,
        batch=False,
        flag=message.flag,
    )


def batch_request(
    messages: Iterable[Encoded], *, topic: str, queue_id: int, group: str, unique_id: str | None, now_ms: int
) -> Command:
    """Return the request that sends several messages at once (320).

    A broker stores the batch's unique id with each of them, also where they bring one of their own. So either they
    bring none, or the batch has none: then each is stored under its own.
    """
    body = batch_body((message.body, message.properties, message.flag) for message in messages)
    own = _own(unique_id)
    return _header(RequestCode.SEND_BATCH_MESSAGE, topic, queue_id, group, now_ms, own, body, batch=True)
