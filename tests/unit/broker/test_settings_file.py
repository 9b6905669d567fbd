"""Checks: settings that are changed at run time last, in the file that the next start reads, and nothing else in it
changes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from cometmq.admin import connect
from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.broker.server import Broker
from cometmq.broker.settings_file import SettingsFile, edited_properties, edited_toml
from cometmq.errors import DiskFull, Error, InvalidArgument, PermissionDenied, StorageError
from cometmq.store_config.broker_properties import parse_broker_properties
from cometmq.store_config.file_ops import SystemFileOps
from cometmq.store_config.setting_options import SettingValue

HOURS = "file_reserved_time_hours"
WHEN = "delete_when_hours_of_day"
VALUES: dict[str, SettingValue] = {HOURS: 48, "clean_file_forcibly_enable": False}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"fileReservedTime=48\ncleanFileForciblyEnable=false\n"),
        (b"fileReservedTime=72\n", b"fileReservedTime=48\ncleanFileForciblyEnable=false\n"),
        (b"fileReservedTime=72", b"fileReservedTime=48\ncleanFileForciblyEnable=false\n"),
        (b"brokerName=a", b"brokerName=a\nfileReservedTime=48\ncleanFileForciblyEnable=false\n"),
        (
            b"# kept\r\n\r\n  fileReservedTime : 72\r\n! kept\r\ncleanFileForciblyEnable true\r\nbrokerName=a\r\n",
            b"# kept\r\n\r\nfileReservedTime=48\r\n! kept\r\ncleanFileForciblyEnable=false\r\nbrokerName=a\r\n",
        ),
        (
            b"fileReservedTime=\\\n  7\\\n  2\nbrokerName=a\\\n   b\ncleanFileForciblyEnable=true\n",
            b"fileReservedTime=48\nbrokerName=a\\\n   b\ncleanFileForciblyEnable=false\n",
        ),
        (
            b"fileReservedTime=1\ncleanFileForciblyEnable=true\nfileReservedTime=2\n",
            b"fileReservedTime=48\ncleanFileForciblyEnable=false\nfileReservedTime=48\n",
        ),
        (
            b"file\\u0052eservedTime=1\n#fileReservedTime=3\nbrokerName=\xe4\n",
            b"file\\u0052eservedTime=48\n#fileReservedTime=3\nbrokerName=\xe4\ncleanFileForciblyEnable=false\n",
        ),
        (b"misspelt=1\nuseTLS=x\n", b"misspelt=1\nuseTLS=x\nfileReservedTime=48\ncleanFileForciblyEnable=false\n"),
    ],
)
def test_properties_change_in_their_own_lines_alone(before: bytes, after: bytes) -> None:
    assert edited_properties(before, VALUES, Path("b.properties")) == after


@pytest.mark.parametrize("text", ["04;16", "back\\slash", "line\nend\ttab", "\u20ac", "#hash=:!"])
def test_any_text_survives_a_properties_file(text: str) -> None:
    edited = edited_properties(b"regionId=old\n", {"region_id": text}, Path("b.properties"))
    assert parse_broker_properties(edited, source="x").settings["region_id"].value == text


@pytest.mark.parametrize("before", [b"brokerName=a\\", b"fileReservedTime=abc\n", b"brokerName=\\u00zz\n"])
def test_properties_that_cannot_be_edited_are_refused(before: bytes) -> None:
    with pytest.raises(InvalidArgument):
        edited_properties(before, VALUES, Path("b.properties"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "fileReservedTime = 48\ncleanFileForciblyEnable = false\n"),
        ("fileReservedTime = 72 # days\n", "fileReservedTime = 48 # days\ncleanFileForciblyEnable = false\n"),
        (
            '"file_reserved_time"=72\r\n[store]\r\nclean_file_forcibly_enable = true\r\n',
            '"file_reserved_time"=48\r\n[store]\r\nclean_file_forcibly_enable = false\r\n',
        ),
        (
            "[store]\nfileReservedTime=1_0\n[ broker ] # here\nbrokerName='a'\n[namesrv]\nlistenPort=1\n",
            "[store]\nfileReservedTime=48\n[ broker ] # here\ncleanFileForciblyEnable = false\nbrokerName='a'\n"
            "[namesrv]\nlistenPort=1\n",
        ),
        (
            "[namesrv]\nlistenPort=1",
            "fileReservedTime = 48\ncleanFileForciblyEnable = false\n[namesrv]\nlistenPort=1",
        ),
    ],
)
def test_toml_changes_in_its_own_lines_alone(before: str, after: str) -> None:
    assert edited_toml(before.encode(), VALUES, Path("c.toml")).decode() == after


def test_toml_texts_are_quoted() -> None:
    edited = edited_toml(b'deleteWhen = "04"\n', {WHEN: "01;13"}, Path("c.toml"))
    assert edited == b'deleteWhen = "01;13"\n'


@pytest.mark.parametrize(
    "before",
    [
        'brokerName = """\nfileReservedTime = 1\n"""\n',  # a text that looks like a setting
        "[broker]\n\"fileReservedTime\" = '''72'''\n",  # a form that is not replaced, so it would be there twice
        "fileReservedTime = \n",
    ],
)
def test_toml_that_cannot_be_edited_is_refused(before: str) -> None:
    with pytest.raises(InvalidArgument):
        edited_toml(before.encode(), VALUES, Path("c.toml"))


class Failing(SystemFileOps):
    """File operations one of which fails.

    Attributes:
        fails: the operation's name.
        number: the error.
    """

    def __init__(self, fails: str, number: int) -> None:
        self.fails = fails
        self.number = number

    def _check(self, name: str) -> None:
        if name == self.fails:
            raise OSError(self.number, os.strerror(self.number))

    def write_synced(self, path: Path, data: bytes) -> None:
        super().write_synced(path, data[: len(data) // 2] if self.fails == "torn" else data)
        self._check("write_synced")

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename")
        super().rename(source, target)


@pytest.mark.parametrize(
    ("fails", "number", "kind"),
    [
        ("write_synced", errno.EROFS, PermissionDenied),
        ("write_synced", errno.ENOSPC, DiskFull),
        ("rename", errno.EBUSY, StorageError),  # a file that is mounted by itself, as containers do
        ("torn", 0, StorageError),
    ],
)
def test_a_failed_save_leaves_the_file_and_nothing_beside_it(
    fails: str, number: int, kind: type[Error], tmp_path: Path
) -> None:
    path = tmp_path / "broker.properties"
    path.write_bytes(b"fileReservedTime=72\n")
    with pytest.raises(kind, match=r"broker\.properties"):
        SettingsFile(path, may_create=False, file_ops=Failing(fails, number)).save(VALUES)
    assert path.read_bytes() == b"fileReservedTime=72\n"
    assert [one.name for one in tmp_path.iterdir()] == ["broker.properties"]


def test_a_link_stays_and_its_target_keeps_its_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "real.properties", tmp_path / "broker.properties"
    target.write_bytes(b"fileReservedTime=72\n")
    target.chmod(0o640)
    link.symlink_to(target.name)
    SettingsFile(link, may_create=False).save({HOURS: 48})
    assert link.is_symlink()
    assert target.read_bytes() == b"fileReservedTime=48\n"
    assert target.stat().st_mode & 0o777 == 0o640


# --- Through a broker


def config_of(folder: Path, file: Path | None = None, **given: object) -> BrokerConfig:
    environ = given.pop("environ", {})
    assert isinstance(environ, dict)
    return load_broker_config(
        folder / "data", config=file, listen="127.0.0.1:0", settings={"brokerName": "b", **given}, environ=environ
    )


def change(config: BrokerConfig, **settings: str) -> str | None:
    """Run a broker, change settings, and return why they are lost at the next start."""
    with Broker(config) as broker, connect(broker=broker.address) as admin:
        lost = admin.cluster.set_broker_config(settings)["b"]
        shown = admin.cluster.broker_config()["b"]
        assert {name: shown[name] for name in settings} == settings
        return lost


def test_without_a_file_changed_settings_last_in_the_store(tmp_path: Path) -> None:
    assert change(config_of(tmp_path), fileReservedTime="48", deleteWhen="01;13") is None
    assert change(config_of(tmp_path), diskMaxUsedSpaceRatio="60") is None
    settings = config_of(tmp_path).settings
    assert (settings.file_reserved_time_hours, settings.delete_when_hours_of_day) == (48, "01;13")
    assert settings.disk_max_used_space_ratio_percent == 60
    assert config_of(tmp_path).settings_file == tmp_path / "data" / "cometmq" / "broker.properties"


@pytest.mark.parametrize("name", ["broker.properties", "cometmq.toml"])
def test_with_a_file_changed_settings_last_in_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("# by hand\nfileReservedTime = 72\n")
    assert change(config_of(tmp_path, file), fileReservedTime="48", autoCreateTopicEnable="false") is None
    settings = config_of(tmp_path, file).settings
    assert (settings.file_reserved_time_hours, settings.auto_create_topic_enable) == (48, False)
    assert file.read_text().startswith("# by hand\n")
    assert not (tmp_path / "data" / "cometmq" / "broker.properties").exists()


def test_a_file_that_cannot_be_written_is_named_and_the_change_holds_until_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("fileReservedTime=72\n")
    config = config_of(tmp_path, file)
    file.unlink()
    assert change(config, fileReservedTime="48") == (
        f"changed until the next start: cannot write {file}: it is no longer there"
    )
    file.mkdir()
    lost = change(config, fileReservedTime="48")
    assert lost is not None
    assert str(file) in lost


@pytest.mark.parametrize("name", ["broker.properties", "other.properties"])
def test_given_file_inside_the_store_is_not_created_again(tmp_path: Path, name: str) -> None:
    """Without the operator's other settings it would mislead the next start."""
    file = tmp_path / "data" / "cometmq" / name
    file.parent.mkdir(parents=True)
    file.write_text("fileReservedTime=72\n")
    config = config_of(tmp_path, file)
    file.unlink()
    lost = change(config, fileReservedTime="48")
    assert lost is not None
    assert "it is no longer there" in lost
    assert not file.exists()


@pytest.mark.parametrize("edits", [1, 2, 1_000])
def test_edit_of_the_file_during_a_change_is_kept(tmp_path: Path, edits: int) -> None:
    """The file is edited again: with what it has by then; one that changes each time is left alone."""
    path = tmp_path / "broker.properties"
    path.write_text("deleteWhen=00\n")
    left = edits

    class Edited(SystemFileOps):
        def write_synced(self, written: Path, data: bytes) -> None:
            nonlocal left
            super().write_synced(written, data)
            if left > 0:
                left -= 1
                path.write_text(f"deleteWhen={left % 23 + 1:02}\n")

    file = SettingsFile(path, may_create=False, file_ops=Edited())
    if edits < 1_000:
        file.save({HOURS: 48})
        assert path.read_text() == "deleteWhen=01\nfileReservedTime=48\n"
    else:
        with pytest.raises(StorageError, match="changes again and again"):
            file.save({HOURS: 48})
        assert path.read_text() == f"deleteWhen={left % 23 + 1:02}\n"
    assert [one.name for one in tmp_path.iterdir()] == ["broker.properties"]


def test_settings_that_other_sources_give_are_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, fileReservedTime=24, environ={"COMETMQ_DELETE_WHEN": "05"})
    lost = change(config, fileReservedTime="48", deleteWhen="06", diskMaxUsedSpaceRatio="60")
    assert lost is not None
    assert "the environment gives deleteWhen, too" in lost
    assert "--set or another option of the command gives fileReservedTime, too" in lost
    assert config.settings_file.read_text() == "diskMaxUsedSpaceRatio=60\n"


def test_a_stores_own_file_beside_a_given_one_is_named(tmp_path: Path) -> None:
    assert change(config_of(tmp_path), fileReservedTime="48") is None
    file = tmp_path / "broker.properties"
    file.write_text("deleteWhen=05\n")
    config = config_of(tmp_path, file)
    assert config.unused_file == tmp_path / "data" / "cometmq" / "broker.properties"
    assert config.settings.file_reserved_time_hours == 72


def test_retention_changes_without_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path, mappedFileSizeCommitLog=1 << 20, fileReservedTime=1_000_000)
    with Broker(config) as broker, connect(broker=broker.address) as admin:
        broker.store.append_many("orders", [bytes(64 << 10)] * 40)
        broker.store.handle.maintain(True)
        for segment in (tmp_path / "data" / "commitlog").iterdir():
            os.utime(segment, (1_600_000_000, 1_600_000_000))
        assert broker.store.expire() == 0
        admin.cluster.set_broker_config({"deleteWhen": ";".join(map(str, range(24))), "fileReservedTime": "1"})
        broker.store.maintain()  # or the background thread was faster
        assert broker.store.info().log_min > 0


def test_file_that_is_written_is_private(tmp_path: Path) -> None:
    """A crash leaves no secret that others can read, whatever the umask is."""
    seen: list[int] = []

    class Ops(SystemFileOps):
        def rename(self, source: Path, target: Path) -> None:
            seen.append(stat.S_IMODE(source.stat().st_mode))
            super().rename(source, target)

        def write_synced(self, path: Path, data: bytes) -> None:
            super().write_synced(path, data)
            seen.append(stat.S_IMODE(path.stat().st_mode))

    file = tmp_path / "broker.properties"
    file.write_text("brokerName=b\n")
    file.chmod(0o640)
    SettingsFile(file, may_create=False, file_ops=Ops()).save({HOURS: 48})
    assert seen == [0o600, 0o640]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
