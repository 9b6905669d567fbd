"""Advice on refusals: a sentence for each code that an administrator can do something about."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.remoting.codes import RequestCode, ResponseCode

__all__ = ["advice_for"]

_ADVICE: Mapping[int, str] = {
    ResponseCode.SYSTEM_BUSY: "the server is overloaded: retry later, or with fewer requests in flight",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this server, or its version, does not support the operation",
    ResponseCode.MESSAGE_ILLEGAL: "the message or batch is too large or malformed",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker's store rejects writes: check its disk and its log",
    ResponseCode.NO_PERMISSION: "check the permissions of topic and broker; the broker may require credentials",
    ResponseCode.TOPIC_NOT_EXIST: "check the name, or create the topic: cometmq topic create TOPIC",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "check the name, or create the group: cometmq group create GROUP",
    ResponseCode.CONSUMER_NOT_ONLINE: "no member of the group is connected to this broker",
    ResponseCode.CONSUME_MSG_TIMEOUT: "the client did not answer the broker within 10 seconds",
    ResponseCode.FLOW_CONTROL: "the broker throttles its clients: retry later",
}

_CHANGES_SETTINGS = frozenset((RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG))
_ASKS_A_MEMBER = frozenset((RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY))


def advice_for(code: int, *, request_code: int) -> str | None:
    """Return what to do about a response code, or None where its remark says all there is to say.

    Args:
        code: the response's.
        request_code: the request's code.
    """
    if code == ResponseCode.NO_PERMISSION and request_code in _CHANGES_SETTINGS:
        return "change it in the server's configuration file and restart the server"
    if code == ResponseCode.SYSTEM_ERROR and request_code in _ASKS_A_MEMBER:
        return "`cometmq group describe GROUP` lists the connected members with their client ids"
    return _ADVICE.get(code)
