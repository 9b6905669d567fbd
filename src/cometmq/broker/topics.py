"""The broker's topics: made on first use, by administration or by the broker itself; loops and name servers get them.

A topic is in ``topics.json`` before the loops take a message for it, and the name servers know it before the request
that caused it is answered, so that a client which asks for its route next finds it. The table is the store's own
(:class:`cometmq.store.topic_book.TopicBook`): an append of this process, or one handed off, makes topics for the broker
too.

Threads: the event loop's, but for :meth:`BrokerTopics.changed_elsewhere`.
Source: consumption specification 3.9, remoting specification 2.9 and 7.4; upstream's TopicConfigManager and
AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cometmq.broker.log_lists import listed_names
from cometmq.broker.plane import DataPlane
from cometmq.broker.upstream_messages import FAQ
from cometmq.errors import Error, InvalidArgument
from cometmq.remoting.answers import Caller, Refusal, Table, ok, with_body
from cometmq.remoting.bodies.config_tables import (
    CreateTopicListRequestBody,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.remoting.shared_write import SharedWrite
from cometmq.store.topic_book import QUEUES_MAX, TopicBook
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.names import (
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    is_light_queue,
    is_system_topic,
    is_topic_name,
    may_send_to,
    validate_made_topic,
    validate_topic,
)
from cometmq.store_config.topic_config import Perm, QueueType, TopicConfig, alter_attributes

__all__ = ["TOPICS_OF_REQUEST_MAX", "Announcer", "BrokerTopics", "TopicRules", "parse_attributes"]

_log = logging.getLogger("cometmq.broker.topics")

TOPICS_OF_REQUEST_MAX = 10_000
"""Topics that one request makes or changes."""

_TEMPLATE = "TBW102"
_PERM_MAX = 15
_UNIT, _UNIT_SUBSCRIBED = 1, 2
_NOT_SET = "not set any response code"
"""The remark of upstream's answer to code 17: success, with the remark of an answer that nobody filled in."""


class Announcer(Protocol):
    """The link to the name servers."""

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        """Announce new and changed topics; returns when they know, or when waiting longer is no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The settings of topics.

    Attributes:
        auto_create: a send to an unknown topic makes it.
        auto_create_max: with so many topics, of any origin, it does not.
        refuse_system_names: administration cannot touch the system's topics.
        mixed_message_type: ``message.type`` may be MIXED.
        clear_pop_retry: deleting a topic deletes its pop retry topics.
    """

    auto_create: bool = True
    auto_create_max: int = 100_000
    refuse_system_names: bool = True
    mixed_message_type: bool = False
    clear_pop_retry: bool = True


class BrokerTopics:
    """All topics of one broker."""

    def __init__(
        self,
        book: TopicBook,
        plane: DataPlane,
        announcer: Announcer,
        *,
        rules: TopicRules,
        delete: Callable[[str], None],
        make_batch: Callable[[str], None],
        groups_with_progress: Callable[[str], Iterable[str]],
    ) -> None:
        """Loops and name servers get nothing before :meth:`start`.

        Args:
            book: the store's topics.
            plane: the loops.
            announcer: the way to the name servers.
            rules: the settings.
            delete: deletes a topic's queues and progress in the store; may take long.
            make_batch: marks a topic's queues in the store as holding inner batches.
            groups_with_progress: names the groups that have progress in a topic.
        """
        self._book = book
        self._table = book.table
        self._plane = plane
        self._announcer = announcer
        self.rules = rules
        self._delete = delete
        self._make_batch = make_batch
        self._groups_with_progress = groups_with_progress
        self._write = SharedWrite(self._table.persist)
        self._making: dict[str, asyncio.Task[TopicConfig]] = {}

    # --- The table

    def start(self, own: Iterable[TopicConfig]) -> None:
        """Make the broker's own topics where they are missing, and give the loops every topic. Blocks.

        Some are called after broker and cluster. A name like ``room@broker``, by which groups share queues out by
        machine rooms, cannot be a topic's, nor could a client ask for it: such a broker goes without them.
        """
        missing = [topic for topic in own if topic.topic_name not in self._table and is_topic_name(topic.topic_name)]
        for topic in missing:
            self._table.put(topic)
        if missing:
            self._table.persist()
        for topic in self._table.all():
            self._pass_on(topic)

    def _pass_on(self, topic: TopicConfig) -> None:
        """Make a stored topic known to the loops. One that cannot be is passed over: the others are served."""
        try:
            self._plane.put_topic(topic)
        except InvalidArgument as error:
            _log.warning("topic passed over", extra={"topic": topic.topic_name, "error": str(error)})

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic, or None."""
        return self._table.get(name)

    def require(self, name: str) -> TopicConfig:
        """Return a topic; Refusal with 17 for an unknown one."""
        found = self._table.get(name)
        if found is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return found

    def all(self) -> tuple[TopicConfig, ...]:
        """Return every topic."""
        return self._table.all()

    @property
    def data_version(self) -> DataVersion:
        """The version of the whole table."""
        return self._table.data_version

    def touch(self) -> None:
        """Give the table a new version: something that name servers hear with it has changed."""
        self._table.touch()

    def changed_elsewhere(self, name: str) -> TopicConfig | None:
        """Update the loops with a topic that the store's own side made, changed or removed. Any thread."""
        found = self._table.get(name)
        if found is None:
            self._plane.remove_topic(name)
        else:
            self._plane.put_topic(found)
        return found

    async def _put(self, topics: Sequence[TopicConfig]) -> None:
        """Make topics durable, known to the loops and to the name servers, in this order; all or none of them."""
        await self._keep(topics)
        for topic in topics:
            if topic.queue_type is QueueType.BATCH:
                self._make_batch(topic.topic_name)
            self._plane.put_topic(topic)
            self._book.forget_target(topic.topic_name)
        await self._announcer.announce(topics)

    async def _keep(self, topics: Sequence[TopicConfig]) -> None:
        """Put topics into the table and write it down; all or none of them."""
        before = [self._table.put(topic) for topic in topics]
        try:
            await self._write()
        except Error:
            for topic, old in zip(topics, before, strict=True):
                if old is None:
                    self._table.remove(topic.topic_name)
                else:
                    self._table.put(old)
            raise

    async def take_order(self, topics: Sequence[TopicConfig]) -> None:
        """Store topics whose order the name servers keep; nothing is announced.

        Raises:
            StorageError: they could not be written down; everything is as before.
        """
        await self._keep(topics)
        for topic in topics:
            self._pass_on(topic)

    async def _make(self, topic: TopicConfig, *, count_max: int | None = None) -> TopicConfig:
        """Make a topic once, however many ask for it at the same time."""
        name = topic.topic_name
        task = self._making.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._made(topic, count_max))
            self._making[name] = task
            task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(task)

    async def _made(self, topic: TopicConfig, count_max: int | None) -> TopicConfig:
        # Looked at in the step that puts it into the table, so that those made at the same time count.
        if count_max is not None and len(self._table) >= count_max:
            text = f"topic[{topic.topic_name}] not exist, and with {count_max} topics none is made on use"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"{text} (autoCreateTopicMax)")
        await self._put([topic])
        _log.info("topic made", extra={"topic": topic.topic_name, "queues": topic.write_queue_nums, "perm": topic.perm})
        return topic

    async def make_for_group(
        self, name: str, *, queues: int, order: bool = False, unit_mode: bool = False
    ) -> TopicConfig:
        """Return a group's retry or dead-letter topic, made where it is not there, however many topics there are.

        Raises:
            InvalidTopic: the name is too long for a topic.
        """
        found = self._table.get(name)
        if found is not None and name not in self._making:
            if found.order != order:
                found = replace(found, order=order)
                await self._put([found])
            return found
        validate_made_topic(name)
        return await self._make(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                order=order,
                topic_sys_flag=_UNIT_SUBSCRIBED if unit_mode else 0,
            )
        )

    # --- A send to a topic that the loops do not know

    async def make_for_send(
        self, name: str, *, template: str, queues: int, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Return a topic, made by its template where it is not there; None where that is not allowed.

        Raises:
            Refusal: there are too many topics.
        """
        found = self._table.get(name)
        if found is not None and name not in self._making:
            # The loops may have got the topic after the request passed them.
            self._plane.put_topic(found)
            return found
        is_retry = name.startswith(RETRY_PREFIX)
        sys_flag = (_UNIT_SUBSCRIBED if is_retry else _UNIT) if unit_mode else 0
        config = self._from_template(name, template, queues, sys_flag)
        if config is None and is_retry:
            config = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1, topic_sys_flag=sys_flag)
        return None if config is None else await self._make(config, count_max=self.rules.auto_create_max)

    def _from_template(self, name: str, template: str, queues: int, sys_flag: int) -> TopicConfig | None:
        found = self._table.get(template)
        if found is None or not found.perm & Perm.INHERIT:
            return None
        if template == _TEMPLATE and not self.rules.auto_create:
            return None
        count = max(min(queues, found.write_queue_nums), 0)
        return TopicConfig(
            topic_name=name,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=found.perm & ~Perm.INHERIT,
            topic_filter_type=found.topic_filter_type,
            topic_sys_flag=sys_flag,
        )

    async def make_for_request(self, request: Command) -> TopicConfig:
        """Return the topic of a send or a reply, made where it may be.

        Raises:
            Refusal: it may not, or no client may make such a send.
            MalformedCommand: a member is missing.
        """
        members = Members(request.fields)
        is_long = request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
        name = members.required("topic" if is_long else "b")
        template = members.required("defaultTopic" if is_long else "c")
        queues = members.required_int32("defaultTopicQueueNums" if is_long else "d")
        try:
            validate_topic(name)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, error.message) from error
        if not may_send_to(name):
            raise Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        unit_mode = members.boolean("unitMode" if is_long else "k")
        found = await self.make_for_send(name, template=template, queues=queues, unit_mode=unit_mode)
        if found is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        return found

    # --- Administration

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: with_body(
                CreateTopicListRequestBody.from_request, self._update_list
            ),
            RequestCode.DELETE_TOPIC_IN_BROKER: self._remove,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._show_all,
            RequestCode.GET_TOPIC_CONFIG: self._show,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._show_system,
        }

    def _check_name(self, name: str) -> None:
        try:
            validate_topic(name)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, error.message) from error
        self._check_system(name)

    def _check_system(self, name: str) -> None:
        # Topics that only the broker writes are never changed: messages parked there would be lost.
        if not may_send_to(name) or (self.rules.refuse_system_names and is_system_topic(name)):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")

    def _altered(self, wanted: TopicConfig) -> TopicConfig:
        """Check a topic as a request gives it and apply its attribute changes to what is there."""
        name = wanted.topic_name
        self._check_name(name)
        if is_light_queue(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"{name} is a light queue, made by its first message")
        for kind, count in (("read", wanted.read_queue_nums), ("write", wanted.write_queue_nums)):
            if not 0 <= count <= QUEUES_MAX:
                raise InvalidArgument(f"{count} {kind} queues; a topic has 0 to {QUEUES_MAX}")
        if not 0 <= wanted.perm <= _PERM_MAX:
            raise InvalidArgument(f"perm is {wanted.perm}; it is made of the bits 1, 2, 4 and 8")
        if not self.rules.mixed_message_type and wanted.attributes.get("+message.type") == "MIXED":
            raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        found = self._table.get(name)
        attributes = alter_attributes(None if found is None else found.attributes, wanted.attributes)
        return replace(wanted, attributes=attributes)

    async def _update(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        members.required("defaultTopic")
        config = self._altered(
            TopicConfig(
                topic_name=members.required("topic"),
                read_queue_nums=members.required_int32("readQueueNums"),
                write_queue_nums=members.required_int32("writeQueueNums"),
                perm=members.required_int32("perm"),
                topic_filter_type=members.required("topicFilterType"),
                topic_sys_flag=members.int32("topicSysFlag", 0),
                order=members.required_boolean("order"),
                attributes=parse_attributes(members.text("attributes", "")),
            )
        )
        await self._update_changed([config])
        return request.response(ResponseCode.SUCCESS, remark=_NOT_SET)

    async def _update_list(self, request: Command, caller: Caller, body: CreateTopicListRequestBody) -> Command:
        if len(body.topics) > TOPICS_OF_REQUEST_MAX:
            raise InvalidArgument(f"{len(body.topics)} topics in one request; at most {TOPICS_OF_REQUEST_MAX} may be")
        # Members that this version does not know are dropped, as upstream drops them: they would be kept in the file.
        configs = [self._altered(replace(topic, unknown={})) for topic in body.topics]
        await self._update_changed(configs)
        return request.response(ResponseCode.SUCCESS, remark=_NOT_SET)

    async def _update_changed(self, configs: Sequence[TopicConfig]) -> None:
        changed = [config for config in configs if config != self._table.get(config.topic_name)]
        if changed:
            await self._put(changed)
            _log.info("topics updated", extra={"topics": listed_names(config.topic_name for config in changed)})

    async def _remove(self, request: Command, caller: Caller) -> Command:
        name = Members(request.fields).text("topic", "").strip()
        if not name:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._check_system(name)
        names = [name]
        if self.rules.clear_pop_retry:
            for group in self._groups_with_progress(name):
                derived = (f"{RETRY_PREFIX}{group}+{name}", f"{RETRY_PREFIX}{group}_{name}")
                names += [retry for retry in derived if retry in self._table]
        for doomed in names:
            await self.remove(doomed)
        return ok(request)

    async def remove(self, name: str) -> None:
        """Delete a topic with its queues and the groups' progress; the loops stop first. An unknown topic is fine."""
        self._plane.remove_topic(name)
        self._plane.remove_offsets(topic=name)
        await asyncio.get_running_loop().run_in_executor(None, self._delete, name)
        _log.info("topic deleted", extra={"topic": name})

    async def _show_all(self, request: Command, caller: Caller) -> Command:
        # Without totalTopicNum in the answer a client that would ask page by page is content with the whole table.
        version = self.data_version
        body = TopicConfigAndMappingSerializeWrapper(
            data_version=version,
            mapping_data_version=version,
            topics={topic.topic_name: topic for topic in self.all()},
        )
        return ok(request, body=await caller.apart(body.to_json))

    def _show(self, request: Command, caller: Caller) -> Command:
        name = Members(request.fields).required("topic")
        found = self._table.get(name)
        if found is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return ok(request, body=TopicConfigAndQueueMapping(topic=found).to_json())

    def _show_system(self, request: Command, caller: Caller) -> Command:
        own = {topic.topic_name for topic in self.all() if is_system_topic(topic.topic_name)}
        return ok(request, body=TopicList(topics=tuple(sorted(own | SYSTEM_TOPICS))).to_json())


def parse_attributes(text: str) -> dict[str, str]:
    """Read the attribute changes of a request: ``+name=value`` and ``-name``, commas between them.

    Raises:
        InvalidArgument: a piece is neither.
    """
    changes: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        if (piece[0] == "-") == bool(equals) or not name[1:]:
            raise InvalidArgument(f"{piece!r} changes no attribute: write +name=value or -name")
        if name in changes:
            raise InvalidArgument(f"the attribute {name} is changed twice in one request")
        changes[name] = value
    return changes
