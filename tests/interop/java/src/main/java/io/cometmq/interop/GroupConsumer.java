package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Consumes a topic as a member of a group, through rebalance and the group's stored progress, until {@code count} messages
 * have come or {@code timeout_ms} has passed; then commits. It ends when the broker has the progress: the client tells it one
 * way, without an answer, and what it tells just before it closes its connection may be lost.
 */
final class GroupConsumer {
    private static final long TELL_LIMIT_NANOS = 60_000_000_000L;

    private GroupConsumer() {
    }

    static void consume(JSONObject request, Peer.Rows rows) throws Exception {
        int wanted = request.getIntValue("count");
        DefaultLitePullConsumer consumer = Clients.configure(new DefaultLitePullConsumer(request.getString("group")), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        // Whole batches are handed out; with one message each, the count is met exactly and nothing more is committed.
        consumer.setPullBatchSize(1);
        consumer.subscribe(request.getString("topic"), request.getString("tags") == null ? "*" : request.getString("tags"));
        consumer.start();
        try {
            long deadline = System.nanoTime() + request.getLongValue("timeout_ms", 30_000L) * 1_000_000L;
            int seen = 0;
            Map<MessageQueue, Long> progress = new HashMap<>();
            while (seen < wanted && System.nanoTime() < deadline) {
                List<MessageExt> messages = consumer.poll(200);
                for (MessageExt message : messages) {
                    rows.add(MessageRow.of(message, false));
                    progress.put(
                        new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()),
                        message.getQueueOffset() + 1);
                    seen++;
                }
            }
            consumer.commitSync();
            tell(request, consumer, progress);
        } finally {
            consumer.shutdown();
        }
    }

    private static void tell(JSONObject request, DefaultLitePullConsumer consumer, Map<MessageQueue, Long> progress)
        throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            long deadline = System.nanoTime() + TELL_LIMIT_NANOS;
            Map<MessageQueue, Long> missing = new HashMap<>(progress);
            while (!missing.isEmpty()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the broker never had the progress " + missing);
                }
                consumer.commit(missing.keySet(), true);
                ConsumeStats stats = admin.examineConsumeStats(request.getString("group"), request.getString("topic"));
                missing.entrySet().removeIf(
                    entry -> stats.getOffsetTable().containsKey(entry.getKey())
                        && stats.getOffsetTable().get(entry.getKey()).getConsumerOffset() >= entry.getValue());
            }
        } finally {
            Clients.retire(admin::shutdown);
        }
    }
}
