"""The broker's consumer groups: made on first use or by administration, and passed to the loops.

The table is the store's own (:class:`cometmq.store.group_book.GroupBook`). A group is in ``subscriptionGroup.json``
before the loops answer its pulls.

Threads: the event loop's, but for :meth:`BrokerGroups.changed_elsewhere`.
Source: consumption specification 3.8; upstream's SubscriptionGroupManager and AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cometmq.broker.log_lists import listed_names
from cometmq.broker.plane import DataPlane
from cometmq.broker.upstream_messages import FAQ
from cometmq.errors import Error, InvalidArgument
from cometmq.remoting.answers import Caller, Outcome, Refusal, Table, ok, with_body
from cometmq.remoting.bodies.body import REQUEST_LIMITS, decode_body
from cometmq.remoting.bodies.config_tables import (
    GroupForbidden,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
    decode_subscription_group,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.remoting.server import AGAIN
from cometmq.remoting.shared_write import SharedWrite
from cometmq.store.group_book import GroupBook
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.names import SYSTEM_GROUP_PREFIX, validate_group, validate_made_topic, validate_used_group
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig

__all__ = ["FORBIDDEN_TOPICS_MAX", "GROUPS_OF_REQUEST_MAX", "BrokerGroups"]

_log = logging.getLogger("cometmq.broker.groups")

GROUPS_OF_REQUEST_MAX = 10_000
"""Groups that one request makes or changes."""
FORBIDDEN_TOPICS_MAX = 1_000
"""Topics that one group must not read."""

_READ_BIT = 0
_RETRY_QUEUES_MAX = 65_536


class BrokerGroups:
    """All consumer groups of one broker."""

    def __init__(
        self,
        book: GroupBook,
        plane: DataPlane,
        *,
        auto_create: bool,
        auto_create_max: int,
        forget_progress: Callable[[str], None],
        forbidden_changed: Callable[[str], None],
    ) -> None:
        """Loops get nothing before :meth:`start`.

        Args:
            book: the store's groups.
            plane: the loops.
            auto_create: a group that nobody made is made on its first use.
            auto_create_max: with so many groups, of any origin, it is not.
            forget_progress: drops a deleted group's progress.
            forbidden_changed: hears of a group that may read other topics than before.
        """
        self._table = book.table
        self._plane = plane
        self.auto_create = auto_create
        self.auto_create_max = auto_create_max
        self._forget_progress = forget_progress
        self._forbidden_changed = forbidden_changed
        self._write = SharedWrite(self._table.persist)
        self._making: dict[str, asyncio.Task[SubscriptionGroupConfig | None]] = {}

    # --- The table

    def start(self, own: Sequence[SubscriptionGroupConfig]) -> None:
        """Make the system's groups where they are missing, and give the loops every group. Blocks."""
        missing = [group for group in own if group.group_name not in self._table]
        for group in missing:
            self._table.put(group)
        if missing:
            self._table.persist()
        for group in self._table.all():
            self._pass_on(group)

    def _pass_on(self, group: SubscriptionGroupConfig) -> None:
        """Make a stored group known to the loops. One that cannot be is passed over: the others are served."""
        try:
            self._plane.put_group(group)
        except InvalidArgument as error:
            _log.warning("group passed over", extra={"group": group.group_name, "error": str(error)})

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, or None."""
        return self._table.get(name)

    def all(self) -> tuple[SubscriptionGroupConfig, ...]:
        """Return every group."""
        return self._table.all()

    def changed_elsewhere(self, name: str) -> None:
        """Update the loops with a group that the store's own side made or removed. Any thread."""
        found = self._table.get(name)
        if found is None:
            self._plane.remove_group(name)
        else:
            self._plane.put_group(found)

    def forbidden_topics(self, name: str) -> tuple[str, ...]:
        """Return the topics that a group must not read."""
        return self._table.forbidden_topics(name, _READ_BIT)

    async def find_or_make(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, made where it is not there and may be made; else None."""
        found = self._table.get(name)
        if found is not None and name not in self._making:
            return found
        if not (self.auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        try:
            validate_used_group(name)
        except InvalidArgument:
            return None
        task = self._making.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._made(name))
            self._making[name] = task
            task.add_done_callback(lambda _: self._making.pop(name, None))
        return await asyncio.shield(task)

    async def _made(self, name: str) -> SubscriptionGroupConfig | None:
        # Looked at in the step that puts it into the table, so that those made at the same time count.
        if len(self._table) >= self.auto_create_max:
            return None
        group = SubscriptionGroupConfig(group_name=name)
        await self._put([group])
        _log.info("group made", extra={"group": name})
        return group

    async def require(self, name: str) -> SubscriptionGroupConfig:
        """Return a group as :meth:`find_or_make`; Refusal with 26 instead of None."""
        found = await self.find_or_make(name)
        if found is None:
            raise self._unknown(f"subscription group not exist, {name}")
        return found

    def _unknown(self, text: str) -> Refusal:
        """The answer where there is no group and none could be made; why, where it was for their number."""
        limit = self.auto_create_max
        if self.auto_create and len(self._table) >= limit:
            text = f"{text} and with {limit} groups none is made on use (autoCreateGroupMax)"
        return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"{text} {FAQ}")

    async def _put(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        """Make groups durable, then known to the loops; all or none of them."""
        before = [self._table.put(group) for group in groups]
        try:
            await self._write()
        except Error:
            for group, old in zip(groups, before, strict=True):
                if old is None:
                    self._table.remove(group.group_name)
                else:
                    self._table.put(old)
            raise
        for group in groups:
            self._plane.put_group(group)

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.POP_MESSAGE: self._pull,
            RequestCode.NOTIFICATION: self._pull,
            RequestCode.PEEK_MESSAGE: self._pull,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: with_body(_group_of, self._update),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: with_body(
                SubscriptionGroupList.from_request, self._update_list
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._show_all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._show,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._remove,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self._forbid,
        }

    async def _pull(self, request: Command, caller: Caller) -> Outcome:
        """Make the group that the loops did not know, and let them serve the pull or pop."""
        name = Members(request.fields).required("consumerGroup")
        found = await self.find_or_make(name)
        if found is None:
            raise self._unknown(f"subscription group [{name}] does not exist,")
        # The loops may have got the group after the request passed them.
        self._plane.put_group(found)
        return AGAIN

    def _checked(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        try:
            validate_group(group.group_name)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, error.message) from error
        if group.retry_queue_nums > _RETRY_QUEUES_MAX:
            raise InvalidArgument(
                f"retryQueueNums is {group.retry_queue_nums}; at most {_RETRY_QUEUES_MAX} are allowed"
            )
        if group.attributes:
            raise InvalidArgument(f"there is no group attribute {next(iter(group.attributes))!r}")
        # Upstream drops members that it does not know, too: they would be kept in the file.
        return group.without_unknown()

    async def _update(self, request: Command, caller: Caller, group: SubscriptionGroupConfig) -> Command:
        await self._update_changed([self._checked(group)])
        return ok(request)

    async def _update_list(self, request: Command, caller: Caller, body: SubscriptionGroupList) -> Command:
        if len(body.groups) > GROUPS_OF_REQUEST_MAX:
            raise InvalidArgument(
                f"{len(body.groups)} groups in one request; at most {GROUPS_OF_REQUEST_MAX} are taken"
            )
        await self._update_changed([self._checked(group) for group in body.groups])
        return ok(request)

    async def _update_changed(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        if groups:
            await self._put(groups)
            _log.info("groups updated", extra={"groups": listed_names(group.group_name for group in groups)})

    async def _show_all(self, request: Command, caller: Caller) -> Command:
        # Without totalGroupNum in the answer a client that would ask page by page is content with the whole table.
        body = SubscriptionGroupWrapper(
            data_version=self._table.data_version,
            groups={group.group_name: group for group in self.all()},
            forbidden=self._table.forbidden_table(),
        )
        return ok(request, body=await caller.apart(body.to_json))

    async def _show(self, request: Command, caller: Caller) -> Command:
        found = await self.find_or_make(Members(request.fields).required("group"))
        if found is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return ok(request, body=encode(found.encode(), layout=Layout.COMPACT))

    async def _remove(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        name = members.required("groupName")
        if name.startswith(SYSTEM_GROUP_PREFIX):
            raise Refusal(ResponseCode.NO_PERMISSION, f"the group {name} is the broker's own")
        self._plane.remove_group(name)
        self._table.remove(name)
        if members.boolean("cleanOffset"):
            self._forget_progress(name)
        await self._write()
        _log.info("group deleted", extra={"group": name})
        return ok(request)

    def _check_forbidden(self, name: str, topic: str) -> None:
        """Refuse to keep what is of no group and no topic, since anybody may send any names."""
        if self._table.get(name) is None:
            raise self._unknown(f"subscription group not exist, {name}")
        try:
            validate_made_topic(topic)
        except InvalidArgument as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, error.message) from error
        if self._table.forbidden_mask(name, topic):
            return
        if len(self._table.forbidden_topics(name, _READ_BIT)) >= FORBIDDEN_TOPICS_MAX:
            text = f"the group {name} must not read {FORBIDDEN_TOPICS_MAX} topics already"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)

    async def _forbid(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        name, topic = members.required("group"), members.required("topic")
        if members.text("readable") is not None:
            self._check_forbidden(name, topic)
            self._table.set_forbidden(name, topic, _READ_BIT, forbidden=not members.boolean("readable"))
            await self._write()
            self._forbidden_changed(name)
        readable = not self._table.forbidden_mask(name, topic) & 1 << _READ_BIT
        body = GroupForbidden(group=name, topic=topic, readable=readable)
        return request.response(ResponseCode.SUCCESS, remark="", body=body.to_json())


def _group_of(body: bytes) -> SubscriptionGroupConfig:
    return decode_body("SubscriptionGroupConfig", body, decode_subscription_group, limits=REQUEST_LIMITS)
