package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads every message of a topic, queue by queue from its first offset to the last, with a filter if one is given. */
@SuppressWarnings("deprecation")
final class Puller {
    private Puller() {
    }

    static void pullAll(JSONObject request, Peer.Rows rows) throws Exception {
        String tags = request.getString("tags") == null ? "*" : request.getString("tags");
        String sql = request.getString("sql");
        MessageSelector filter = sql == null ? MessageSelector.byTag(tags) : MessageSelector.bySql(sql);
        boolean withBody = request.getBooleanValue("with_body", false);
        DefaultMQPullConsumer consumer = Clients.pullConsumer(request);
        try {
            List<MessageQueue> queues = Clients.queues(consumer, request.getString("topic"));
            if (sql != null) {
                // A client sends expressions to brokers whose version it has from the answer to a heartbeat.
                MQClientInstance instance = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
                instance.updateTopicRouteInfoFromNameServer(request.getString("topic"));
                instance.sendHeartbeatToAllBrokerWithLock();
            }
            for (MessageQueue queue : queues) {
                pullQueue(consumer, queue, filter, withBody, rows);
            }
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }

    private static void pullQueue(
        DefaultMQPullConsumer consumer, MessageQueue queue, MessageSelector filter, boolean withBody, Peer.Rows rows)
        throws Exception {
        long next = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (next < end) {
            PullResult result = consumer.pull(queue, filter, next, 32);
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
