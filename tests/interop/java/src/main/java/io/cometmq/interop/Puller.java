package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads every message of a topic, queue by queue from its first offset to the last, with a tag expression if one is given. */
@SuppressWarnings("deprecation")
final class Puller {
    private Puller() {
    }

    static void pullAll(JSONObject request, Peer.Rows rows) throws Exception {
        String tags = request.getString("tags") == null ? "*" : request.getString("tags");
        boolean withBody = request.getBooleanValue("with_body", false);
        DefaultMQPullConsumer consumer = Clients.pullConsumer(request);
        try {
            for (MessageQueue queue : Clients.queues(consumer, request.getString("topic"))) {
                pullQueue(consumer, queue, tags, withBody, rows);
            }
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }

    private static void pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue, String tags, boolean withBody, Peer.Rows rows)
        throws Exception {
        long next = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (next < end) {
            PullResult result = consumer.pull(queue, tags, next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : (List<MessageExt>) result.getMsgFoundList()) {
                    rows.add(MessageRow.of(message, withBody));
                }
            } else if (result.getPullStatus() != PullStatus.NO_MATCHED_MSG) {
                throw new IllegalStateException("pull of " + queue + " at " + next + " of " + end + " answered " + result);
            }
            if (result.getNextBeginOffset() <= next) {
                throw new IllegalStateException("pull of " + queue + " at " + next + " does not advance: " + result);
            }
            next = result.getNextBeginOffset();
        }
    }
}
