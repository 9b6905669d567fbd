package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Collection;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads a topic's queues by assignment, without a rebalance: from where {@code seek} says or from the group's progress, until
 * {@code count} messages have come or time is up; then commits. The last rows tell each queue's committed offset.
 */
final class Assigned {
    private Assigned() {
    }

    static void consume(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        DefaultLitePullConsumer consumer = Clients.configure(new DefaultLitePullConsumer(request.getString("group")), request);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(1);
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            if (request.getString("tags") != null) {
                consumer.setSubExpressionForAssign(topic, request.getString("tags"));
            }
            consumer.assign(queues);
            Long seek = request.getLong("seek");
            if (seek != null) {
                for (MessageQueue queue : queues) {
                    consumer.seek(queue, seek);
                }
            }
            int wanted = request.getIntValue("count");
            // A pull that assign() has begun may bring one message of each queue from before the place that was sought.
            int early = queues.size();
            long deadline = System.nanoTime() + request.getLongValue("timeout_ms", 30_000L) * 1_000_000L;
            for (int seen = 0; seen < wanted && System.nanoTime() < deadline; ) {
                for (MessageExt message : consumer.poll(200)) {
                    if (seek != null && message.getQueueOffset() < seek && early-- > 0) {
                        continue;
                    }
                    rows.add(MessageRow.of(message, false));
                    seen++;
                }
            }
            consumer.commitSync();
            for (MessageQueue queue : queues) {
                rows.add(Map.of("committed_queue", queue.getQueueId(), "committed", consumer.committed(queue)));
            }
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }
}
