"""Checks: cometmq.client exports the names that it declares, and imports them on demand."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cometmq.client


def test_every_name_leads_to_something() -> None:
    assert dir(cometmq.client) == sorted(cometmq.client.__all__)
    for name in cometmq.client.__all__:
        assert getattr(cometmq.client, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        cometmq.client.Consumer  # noqa: B018 - asked for is enough


def test_a_module_of_the_package_does_not_bring_all() -> None:
    code = "import sys, cometmq.client.send.outgoing; sys.exit('cometmq.client.push.push_engine' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
