"""The answer to a request that is not served, with the reason where the table of codes has one."""

from __future__ import annotations

from cometmq.remoting.codes import NEVER_REQUESTS, NOT_YET_REQUESTS, RequestCode, ResponseCode
from cometmq.remoting.command import Command

__all__ = ["not_supported_answer"]


def not_supported_answer(request: Command) -> Command:
    """Return code 3 with upstream's text, its blank in front included, and the reason behind it."""
    text = f" request type {request.code} not supported"
    reason = _reason(request.code)
    return request.response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{text}: {reason}" if reason is not None else text
    )


def _reason(code: int) -> str | None:
    try:
        known = RequestCode(code)
    except ValueError:
        return None
    if known in NOT_YET_REQUESTS:
        return f"CometMQ has no {NOT_YET_REQUESTS[known]} yet"
    return NEVER_REQUESTS.get(known)
