package io.cometmq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends the messages of the request, in their order, each acknowledged before the next.
 *
 * <p>An entry of {@code messages} is one message, or a list of them that go out as one batch to the queue of the first.
 * Without {@code queue} the client chooses. A row is printed per message as soon as the broker has answered, so that a test
 * that kills the broker knows what was acknowledged. The first failure ends the sending: its row holds {@code "failed"}.
 */
final class Sender {
    private final DefaultMQProducer producer;
    private final Peer.Rows rows;

    private Sender(DefaultMQProducer producer, Peer.Rows rows) {
        this.producer = producer;
        this.rows = rows;
    }

    static void send(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer("interop_producer"), request);
        producer.setCompressMsgBodyOverHowmuch(request.getIntValue("compress_over_bytes", 4096));
        producer.setCompressType(CompressionType.of(request.getString("compression") == null ? "ZLIB" : request.getString("compression")));
        producer.setSendMsgTimeout(request.getIntValue("timeout_ms", 10_000));
        // A second try after a lost answer would store a message twice, and the test could not tell why.
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            new Sender(producer, rows).sendAll(request.getJSONArray("messages"));
        } finally {
            Clients.retire(producer::shutdown);
        }
    }

    private void sendAll(JSONArray entries) throws Exception {
        for (Object entry : entries) {
            List<JSONObject> group = new ArrayList<>();
            if (entry instanceof JSONArray batch) {
                batch.forEach(each -> group.add((JSONObject) each));
            } else {
                group.add((JSONObject) entry);
            }
            try {
                sendGroup(group, entry instanceof JSONArray);
            } catch (Exception failure) {
                rows.add(Map.of("failed", String.valueOf(failure)));
                return;
            }
        }
    }

    private void sendGroup(List<JSONObject> group, boolean asBatch) throws Exception {
        List<Message> messages = new ArrayList<>();
        List<byte[]> bodies = new ArrayList<>();
        for (JSONObject spec : group) {
            Message message = message(spec);
            messages.add(message);
            bodies.add(message.getBody());
        }
        MessageQueue queue = queue(group.get(0));
        SendResult result;
        if (asBatch) {
            result = queue == null ? producer.send(messages) : producer.send(messages, queue);
        } else {
            result = queue == null ? producer.send(messages.get(0)) : producer.send(messages.get(0), queue);
        }
        // A batch's ids come joined by commas; its queue offset is that of its first message.
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        for (int i = 0; i < group.size(); i++) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("status", result.getSendStatus().name());
            row.put("topic", result.getMessageQueue().getTopic());
            row.put("queue", result.getMessageQueue().getQueueId());
            row.put("queue_offset", result.getQueueOffset() + i);
            row.put("message_id", ids[i]);
            row.put("offset_message_id", offsetIds[i]);
            row.put("body_sha256", MessageRow.sha256(bodies.get(i)));
            rows.add(row);
        }
    }

    private static Message message(JSONObject spec) {
        Message message = new Message(spec.getString("topic"), Base64.getDecoder().decode(spec.getString("body")));
        if (spec.getString("tags") != null) {
            message.setTags(spec.getString("tags"));
        }
        if (spec.getString("keys") != null) {
            message.setKeys(spec.getString("keys"));
        }
        message.setFlag(spec.getIntValue("flag", 0));
        JSONObject properties = spec.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
        }
        return message;
    }

    /** The queue the spec names, or null. The broker's name comes from the route. */
    private MessageQueue queue(JSONObject spec) throws Exception {
        Integer wanted = spec.getInteger("queue");
        if (wanted == null) {
            return null;
        }
        String topic = spec.getString("topic");
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            if (queue.getQueueId() == wanted) {
                return queue;
            }
        }
        throw new IllegalArgumentException("topic " + topic + " has no queue " + wanted);
    }
}
