package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Questions to the broker: is it there, which offsets does it know, which message has this key or id. */
@SuppressWarnings("deprecation")
final class Admin {
    private Admin() {
    }

    /** Creates or changes a topic at the broker, and waits until the name server tells its route. */
    static void createTopic(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        int queues = request.getIntValue("queues", 4);
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            TopicConfig config = new TopicConfig(topic);
            config.setReadQueueNums(queues);
            config.setWriteQueueNums(queues);
            admin.createAndUpdateTopicConfig(request.getString("address"), config);
        } finally {
            Clients.retire(admin::shutdown);
        }
        awaitRoute(request, request.getIntValue("route_queues", queues));
    }

    /** Waits until the name server tells the route of a topic that the broker makes by itself. */
    static void awaitTopic(JSONObject request, Peer.Rows rows) throws Exception {
        awaitRoute(request, 1);
    }

    /** Asked as a consumer, because the admin client answers with another class in 4.9. */
    private static void awaitRoute(JSONObject request, int queues) throws Exception {
        DefaultMQPullConsumer consumer = Clients.pullConsumer(request);
        try {
            Peer.await(60_000L, () -> Clients.queues(consumer, request.getString("topic")).size() >= queues);
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }

    /** Per queue: the first and the next offset, and the store time of the first message. */
    static void offsets(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQPullConsumer consumer = Clients.pullConsumer(request);
        try {
            for (MessageQueue queue : Clients.queues(consumer, request.getString("topic"))) {
                rows.add(Map.of(
                    "queue", queue.getQueueId(),
                    "min_offset", consumer.minOffset(queue),
                    "max_offset", consumer.maxOffset(queue),
                    "earliest_store_timestamp_ms", consumer.earliestMsgStoreTime(queue)));
            }
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }

    /** Per queue: how far the group has come, and the next offset of the queue. */
    static void groupOffsets(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            ConsumeStats stats = admin.examineConsumeStats(request.getString("group"), request.getString("topic"));
            stats.getOffsetTable().forEach((queue, offset) -> rows.add(Map.of(
                "queue", queue.getQueueId(),
                "consumer_offset", offset.getConsumerOffset(),
                "broker_offset", offset.getBrokerOffset())));
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** Per queue: the first offset whose message was stored at {@code timestamp_ms} or later. */
    static void searchOffset(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQPullConsumer consumer = Clients.pullConsumer(request);
        try {
            for (MessageQueue queue : Clients.queues(consumer, request.getString("topic"))) {
                rows.add(Map.of(
                    "queue", queue.getQueueId(),
                    "offset", consumer.searchOffset(queue, request.getLongValue("timestamp_ms"))));
            }
        } finally {
            Clients.retire(consumer::shutdown);
        }
    }

    /** Messages that carry a key, through the index. No match is an empty answer, where the client throws. */
    static void queryKey(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            report(() -> admin.queryMessage(request.getString("topic"), request.getString("key"),
                request.getIntValue("max", 32), 0, Long.MAX_VALUE), rows);
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** Messages with this unique id, through the index. */
    static void queryUniqueKey(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            report(() -> admin.queryMessageByUniqKey(null, request.getString("topic"), request.getString("key"),
                request.getIntValue("max", 32), 0, Long.MAX_VALUE), rows);
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** The message with this offset id: the id names the broker's address and the physical offset. */
    static void view(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            rows.add(MessageRow.of(admin.viewMessage(request.getString("topic"), request.getString("id")), false));
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** What upstream reads from a message's unique id: where and when it was made. */
    static void readUniqueId(JSONObject request, Peer.Rows rows) {
        String id = request.getString("id");
        rows.add(Map.of(
            "ip", MessageClientIDSetter.getIPStrFromID(id),
            "pid", MessageClientIDSetter.getPidFromID(id),
            "made_at_ms", MessageClientIDSetter.getNearlyTimeFromID(id).getTime()));
    }

    /** Lets a consumer of the group consume the message with this offset id at once, outside of its progress. */
    static void consumeDirectly(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            ConsumeMessageDirectlyResult result = admin.consumeMessageDirectly(
                request.getString("group"), request.getString("client_id"), request.getString("topic"), request.getString("id"));
            rows.add(Map.of("result", result.getConsumeResult().name(), "order", result.isOrder()));
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** What a consumer of the group says of itself: its properties, its subscriptions, and the queues it has. */
    static void runningInfo(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            ConsumerRunningInfo info = admin.getConsumerRunningInfo(
                request.getString("group"), request.getString("client_id"), request.getBooleanValue("jstack", false));
            rows.add(Map.of(
                "properties", info.getProperties(),
                "topics", info.getSubscriptionSet().stream().map(SubscriptionData::getTopic).sorted().toList(),
                "queues", info.getMqTable().keySet().stream().map(queue -> queue.getTopic() + ":" + queue.getQueueId()).sorted().toList(),
                "jstack", info.getJstack() != null));
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    /** Moves a group's progress to a time while its consumers run. Per queue: where it is now. */
    static void resetOffset(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            admin.resetOffsetByTimestamp(request.getString("topic"), request.getString("group"), request.getLongValue("timestamp_ms"), true)
                .forEach((queue, offset) -> rows.add(Map.of("broker", queue.getBrokerName(), "queue", queue.getQueueId(), "offset", offset)));
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    private interface Query {
        QueryResult run() throws Exception;
    }

    private static void report(Query query, Peer.Rows rows) throws Exception {
        QueryResult result;
        try {
            result = query.run();
        } catch (MQClientException failure) {
            if (failure.getResponseCode() == ResponseCode.NO_MESSAGE) {
                return;
            }
            throw failure;
        }
        for (MessageExt message : result.getMessageList()) {
            rows.add(MessageRow.of(message, false));
        }
    }
}
