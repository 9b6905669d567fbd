"""Checks: modes are set, taken away and kept with what we do not know; a file that cannot be used says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store_config.errors import ConfigError
from cometmq.store_config.request_modes import MessageRequestMode, RequestMode, RequestModes

POP = RequestMode(mode=MessageRequestMode.POP, pop_share_queue_num=3)


def test_modes_are_set_kept_and_taken_away(tmp_path: Path) -> None:
    modes = RequestModes(tmp_path)
    assert modes.put("t", "g", POP) is None
    assert modes.put("t", "h", RequestMode()) is None
    assert modes.put("u", "g", POP) is None
    assert modes.persist()
    assert not modes.changed
    again = RequestModes(tmp_path)
    again.load()
    assert again.all() == {"t": {"g": POP, "h": RequestMode()}, "u": {"g": POP}}
    assert again.put("t", "g", POP) == POP
    assert not again.changed, "nothing is another now"
    assert again.put("u", "g", None) == POP
    assert again.put("u", "g", None) is None
    assert again.get("u", "g") is None
    assert again.persist()
    modes.load()
    assert modes.all() == {"t": {"g": POP, "h": RequestMode()}}


def test_members_that_are_missing_or_not_known(tmp_path: Path) -> None:
    path = tmp_path / "messageRequestMode.json"
    path.write_text('{"messageRequestModeMap":{"t":{"g":{"mode":"POP"},"h":{},"i":null},"u":null},"newer":[1]}')
    modes = RequestModes(tmp_path)
    modes.load()
    assert modes.all() == {"t": {"g": RequestMode(mode=MessageRequestMode.POP), "h": RequestMode()}, "u": {}}
    modes.put("t", "g", POP)
    modes.persist()
    assert '"newer":[1]' in "".join(path.read_text().split())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"messageRequestModeMap":{"t":{"g":{"mode":"PUSH"}}}}', "messageRequestModeMap.t.g.mode"),
        ('{"messageRequestModeMap":{"t":{"g":{"popShareQueueNum":3000000000}}}}', "popShareQueueNum"),
        ('{"messageRequestModeMap":{"t":[]}}', "messageRequestModeMap.t"),
        ('{"messageRequestModeMap":7}', "messageRequestModeMap"),
        ("[]", "object"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "messageRequestMode.json").write_text(text)
    (tmp_path / "messageRequestMode.json.bak").write_text(text)
    with pytest.raises(ConfigError, match=where):
        RequestModes(tmp_path).load()
