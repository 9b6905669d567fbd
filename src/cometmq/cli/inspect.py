"""``cometmq inspect``: the content of a store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

import cometmq
from cometmq._plural import counted
from cometmq.cli.arguments import Config, Json, StorePath
from cometmq.cli.failures import reported
from cometmq.cli.terminal import bytes_text, print_json, safe_text, time_text

if TYPE_CHECKING:
    from rich.tree import Tree

    from cometmq.store.inspection import GroupReport, QueueReport, StoreReport, TopicReport

__all__ = ["inspect"]

_LINE_CHARS_MAX = 10_000
_QUEUES_SHOWN = 16
"""A topic with more queues is summed up, unless it was asked for by name."""


@reported()
def inspect(
    path: StorePath,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Show only this topic, with all its queues.")
    ] = None,
    no_system: Annotated[bool, typer.Option("--no-system", help="Hide RocketMQ's own topics.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Show the contents and health of a store.

    Topics, queues, offsets, sizes, time span, consumer groups, lag and health.

    Safe at any time: the store may be open in CometMQ or a RocketMQ broker, closed, or crashed.

    \b
    Examples:
      cometmq inspect data/
      cometmq inspect data/ --topic orders
      cometmq inspect data/ --json | jq '.groups[] | {group, topic, lag}'
    """
    from cometmq.store import inspection

    with cometmq.open(path, mode="r", config=config) as store:
        report = inspection.inspect(store, topic=topic, system=not no_system)
    if json:
        print_json(report)
        return
    from rich.console import Console

    # Into a file or pipe, lines are as long as they are.
    width = None if sys.stdout.isatty() else _LINE_CHARS_MAX
    Console(markup=False, highlight=False, width=width).print(draw(report, all_queues=topic is not None))


def draw(report: StoreReport, *, all_queues: bool = False) -> Tree:
    """Return the tree that people see."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(report.path, style="bold"))
    store = tree.add(Text("store"))
    for line in _store_lines(report):
        store.add(Text(line))
    topics = tree.add(Text(f"topics ({len(report.topics)})"))
    for one in report.topics:
        _add_topic(topics, one, all_queues=all_queues)
    groups = tree.add(Text(f"consumer groups ({len({one.group for one in report.groups})})"))
    for group in report.groups:
        _add_group(groups, group, all_queues=all_queues)
    files = tree.add(Text("files"))
    for folder in report.folders:
        on_disk = f", {bytes_text(folder.disk_bytes)} on disk" if folder.disk_bytes < folder.size_bytes else ""
        files.add(Text(f"{folder.name}: {counted(folder.files, 'file')}, {bytes_text(folder.size_bytes)}{on_disk}"))
    for size in report.layout:
        if size.value != size.default:
            files.add(Text(f"{size.setting} = {size.value:,} (RocketMQ's default: {size.default:,})"))
    health = tree.add(Text("health"))
    for line in _health_lines(report):
        health.add(Text(line))
    for remark in report.health.remarks:
        health.add(Text(remark, style="yellow"))
    return tree


def _store_lines(report: StoreReport) -> list[str]:
    size = report.log_end - report.log_min
    return [
        f"{counted(report.messages, 'message')} in {bytes_text(size)} of log, physical offsets {report.log_min:,} to "
        f"{report.log_end:,}",
        f"stored {time_text(report.earliest_timestamp_ms)} to {time_text(report.latest_timestamp_ms)}",
    ]


def _add_topic(tree: Tree, topic: TopicReport, *, all_queues: bool) -> None:
    from rich.text import Text

    remarks = [
        counted(topic.messages, "message"),
        f"{len(topic.queues)} of {counted(max(topic.write_queues, topic.read_queues), 'queue')} in use",
        *(["RocketMQ's own"] if topic.system else []),
        *(["inner batches"] if topic.batch else []),
        *(["not in topics.json"] if not topic.configured else []),
        *([f"perm {topic.perm}"] if topic.perm != 6 else []),
    ]
    branch = tree.add(Text(f"{safe_text(topic.name)}: {', '.join(remarks)}"))
    if topic.messages:
        span = f"{time_text(topic.earliest_timestamp_ms)} to {time_text(topic.latest_timestamp_ms)}"
        branch.add(Text(f"stored {span}", style="dim"))
    for name, value in topic.attributes.items():
        branch.add(Text(f"{safe_text(name)} = {safe_text(value)}", style="dim"))
    if len(topic.queues) > _QUEUES_SHOWN and not all_queues:
        queues = counted(len(topic.queues), "queue")
        branch.add(Text(f"{queues}; use --topic {safe_text(topic.name)} to list them", style="dim"))
        return
    for queue in topic.queues:
        branch.add(Text(f"queue {queue.queue_id}: {counted(queue.messages, 'message')}, {_range(queue)}"))


def _range(queue: QueueReport) -> str:
    return f"{queue.min_offset:,} to {queue.max_offset:,}"


def _add_group(tree: Tree, group: GroupReport, *, all_queues: bool) -> None:
    from rich.text import Text

    title = f"{safe_text(group.group)} in {safe_text(group.topic)}: "
    title += f"lag {counted(group.lag, 'message')}" if group.lag else "up to date"
    branch = tree.add(Text(title))
    if len(group.queues) > _QUEUES_SHOWN and not all_queues:
        return
    for queue in group.queues:
        behind = f", lag {queue.lag:,}" if queue.lag else ""
        branch.add(Text(f"queue {queue.queue_id}: at {queue.offset:,}{behind}", style="dim"))


def _health_lines(report: StoreReport) -> list[str]:
    health, index = report.health, report.index
    if health.writer_pid == 0:
        writer = "not open for writing"
    else:
        who = "CometMQ" if health.writer_is_ours else "a RocketMQ broker"
        where = f"process {health.writer_pid}" if health.writer_pid > 0 else "another host or container"
        writer = f"open for writing by {who} ({where})"
    lines = [writer]
    if health.checkpoint_log_ms:  # 0 until a writer has lived long enough to write one
        lines.append(
            f"durable up to: log {time_text(health.checkpoint_log_ms)}, "
            f"queues {time_text(health.checkpoint_queues_ms)}"
            + (f", index {time_text(health.checkpoint_index_ms)}" if health.checkpoint_index_ms else "")
        )
    lines.append(f"index: {counted(index.keys, 'key')} in {counted(index.files, 'file')}")
    return lines
