"""Spans of OpenTelemetry around sends and listeners, one trace from the order to the bill, by plain interceptors.

    pip install opentelemetry-sdk
    python examples/traced_orders.py

The sender puts its context into the message's properties, as W3C's ``traceparent``; the consumer takes it from there.
The recorded spans are printed as a tree; with an exporter of your own it goes to your tracing system instead.
"""

# The library need not be installed where types are checked.
# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import threading
from collections.abc import Iterator

from opentelemetry import context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from cometmq import testing
from cometmq.client import ConsumeFromWhere, Interceptor, Producer, PushConsumer, ReceivedMessage
from cometmq.client.instance.hooks import ConsumeContext, SendContext

LIMIT_S = 60


def trace_properties() -> dict[str, str]:
    """Return the properties that carry the current context to whoever consumes the message."""
    properties: dict[str, str] = {}
    propagate.inject(properties)
    return properties


def tracing(tracer: Tracer) -> Interceptor:
    """Return an interceptor that makes a span of each send and of each call of a listener."""

    def before_send(send: SendContext) -> None:
        """In the sender's thread: the span is a child of what the sender is at."""
        attributes = {"messaging.system": "rocketmq", "messaging.destination.name": send.topic}
        send.data["span"] = tracer.start_span(f"send {send.topic}", kind=SpanKind.PRODUCER, attributes=attributes)

    def after_send(send: SendContext) -> None:
        """On the producer's loop, when the broker has answered."""
        span = send.data["span"]
        span.set_attribute("messaging.message.id", ",".join(send.unique_ids))
        if send.error is not None:
            span.record_exception(send.error)
            span.set_status(Status(StatusCode.ERROR, str(send.error)))
        span.end()

    def before_consume(call: ConsumeContext) -> None:
        """In the listener's thread: its own spans become children of this one."""
        senders = [propagate.extract(dict(message.properties)) for message in call.messages]
        links = [Link(trace.get_current_span(sender).get_span_context()) for sender in senders[1:]]
        span = tracer.start_span(
            f"process {call.queue.topic}", context=senders[0], kind=SpanKind.CONSUMER, links=links,
            attributes={"messaging.consumer.group.name": call.group, "messaging.batch.message_count": len(senders)},
        )  # fmt: skip
        call.data["span"] = span
        call.data["token"] = context.attach(trace.set_span_in_context(span))

    def after_consume(call: ConsumeContext) -> None:
        """In the same thread, whatever the listener has done."""
        context.detach(call.data["token"])
        if not call.is_success:
            call.data["span"].set_status(Status(StatusCode.ERROR, "to be tried again"))
        call.data["span"].end()

    return Interceptor(
        before_send=before_send, after_send=after_send, before_consume=before_consume, after_consume=after_consume
    )


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the numbers of a span's trace and of the span."""
    own = span.get_span_context()
    assert own is not None
    return own.trace_id, own.span_id


def tree(spans: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> Iterator[str]:
    """Yield a line for each span, below its parent."""
    children = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
    for span in sorted(children, key=lambda child: child.start_time or 0):
        yield f"{'  ' * depth}{span.name} ({span.kind.name.lower()})"
        yield from tree(spans, ids_of(span)[1], depth + 1)


def main() -> None:
    recorded = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(recorded))
    tracer = provider.get_tracer("orders")
    interceptor = tracing(tracer)
    billed = threading.Event()

    def bill(message: ReceivedMessage) -> None:
        with tracer.start_as_current_span("write the bill"):
            billed.set()

    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with testing.cluster() as cluster:  # or any RocketMQ cluster
        servers = cluster.name_server_address
        with (
            Producer("shop", name_servers=servers, interceptors=[interceptor]) as producer,
            tracer.start_as_current_span("checkout"),
        ):
            producer.send("orders", b"order 17", properties=trace_properties())
        consumer = PushConsumer(
            "billing", name_servers=servers, listener=bill, interceptors=[interceptor], consume_from_where=first
        )
        with consumer.subscribe("orders"):
            if not billed.wait(LIMIT_S):
                raise SystemExit("no order came")
    spans = recorded.get_finished_spans()
    print("\n".join(tree(spans)))
    traces = {ids_of(span)[0] for span in spans}
    print(f"{len(spans)} spans in {len(traces)} trace")


if __name__ == "__main__":
    main()
