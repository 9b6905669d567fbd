"""Checks: a request that is not served is answered with upstream's text, and with the reason where there is one."""

from __future__ import annotations

import pytest

from cometmq.remoting.codes import NEVER_REQUESTS, NOT_YET_REQUESTS, RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.not_supported import not_supported_answer


@pytest.mark.parametrize("code", [*NEVER_REQUESTS, *NOT_YET_REQUESTS])
def test_reasons(code: RequestCode) -> None:
    answer = not_supported_answer(Command(code=code, opaque=7))
    assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 7)
    assert answer.remark is not None
    text, reason = answer.remark.split(": ", 1)
    assert text == f" request type {code.value} not supported"
    assert (NEVER_REQUESTS.get(code) or NOT_YET_REQUESTS[code]) in reason


def test_unknown_code() -> None:
    assert not_supported_answer(Command(code=777)).remark == " request type 777 not supported"
