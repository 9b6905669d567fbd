package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consumes a topic as a member of a group, through rebalance and the group's stored progress, until {@code count} messages
 * have come or {@code timeout_ms} has passed; then commits. The client tells the broker one way, without an answer, and what it
 * tells just before it closes its connection may be lost: so it asks something more behind it.
 */
final class GroupConsumer {
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
            Set<MessageQueue> consumed = new HashSet<>();
            while (seen < wanted && System.nanoTime() < deadline) {
                List<MessageExt> messages = consumer.poll(200);
                for (MessageExt message : messages) {
                    rows.add(MessageRow.of(message, false));
                    consumed.add(new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
                    seen++;
                }
            }
            consumer.commitSync();
            consumer.commit(consumed, true);
            for (MessageQueue queue : consumed) {
                consumer.offsetForTimestamp(queue, 0L);
            }
        } finally {
            consumer.shutdown();
        }
    }
}
