"""Registrations of brokers that are not there, for tests of name servers and of tools that ask them."""

from __future__ import annotations

from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper
from cometmq.remoting.bodies.registration import RegisterBrokerBody, body_checksum
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["registration"]


def registration(
    *,
    cluster: str = "c",
    broker_name: str = "b",
    expiry_ms: int | None = None,
    header_format: HeaderFormat = HeaderFormat.JSON,
) -> Command:
    """Return the request of a master at 127.0.0.1:10911 with the topics ``orders`` and ``bills``."""
    topics = {name: TopicConfig(topic_name=name) for name in ("orders", "bills")}
    body = RegisterBrokerBody(wrapper=TopicConfigAndMappingSerializeWrapper(topics=topics)).to_json()
    fields = {"clusterName": cluster, "brokerName": broker_name, "brokerAddr": "127.0.0.1:10911", "brokerId": "0"}
    fields |= {"haServerAddr": "127.0.0.1:10912", "bodyCrc32": str(body_checksum(body)), "compressed": "false"}
    if expiry_ms is not None:
        fields["heartbeatTimeoutMillis"] = str(expiry_ms)
    return Command(code=RequestCode.REGISTER_BROKER, fields=fields, body=body, format=header_format)
