package io.cometmq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends the messages of the request, in their order, each acknowledged before the next unless {@code mode} is
 * {@code async} (then all are on the way at once, and the rows come in the order of the messages) or {@code oneway}.
 *
 * <p>An entry of {@code messages} is one message, or a list of them that go out as one batch to the queue of the first.
 * With {@code queue} a message goes there, with {@code hash_key} to the queue that the client's selector by hash takes,
 * otherwise the client chooses. A row is printed per message as soon as the broker has answered, so that a test that kills
 * the broker knows what was acknowledged. The first failure ends the sending: its row holds {@code "failed"}.
 */
final class Sender {
    private static final long ASYNC_LIMIT_S = 60;
    private final DefaultMQProducer producer;
    private final Peer.Rows rows;

    private Sender(DefaultMQProducer producer, Peer.Rows rows) {
        this.producer = producer;
        this.rows = rows;
    }

    static void send(JSONObject request, Peer.Rows rows) throws Exception {
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer("interop_producer"), request);
        producer.setCompressMsgBodyOverHowmuch(request.getIntValue("compress_over_bytes", 4096));
        if (request.getString("compression") != null) {
            Compression.set(producer, request.getString("compression"));
        }
        producer.setMaxMessageSize(request.getIntValue("max_message_bytes", 4 << 20));
        producer.setSendMsgTimeout(request.getIntValue("timeout_ms", 10_000));
        // A second try after a lost answer would store a message twice, and the test could not tell why.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        try {
            Sender sender = new Sender(producer, rows);
            JSONArray entries = request.getJSONArray("messages");
            switch (request.getString("mode")) {
                case "sync" -> sender.sendAll(entries);
                case "async" -> sender.sendAsync(entries);
                case "oneway" -> sender.sendOneway(entries);
                default -> throw new IllegalArgumentException("unknown mode " + request.getString("mode"));
            }
        } finally {
            Clients.retire(producer::shutdown);
        }
    }

    /** A client of 4.9 has one kind of compression only, and not this class. */
    private static final class Compression {
        static void set(DefaultMQProducer producer, String name) {
            producer.setCompressType(CompressionType.of(name));
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
                rows.add(failed(failure));
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
        String hashKey = group.get(0).getString("hash_key");
        SendResult result;
        if (asBatch) {
            result = queue == null ? producer.send(messages) : producer.send(messages, queue);
        } else if (hashKey != null) {
            result = producer.send(messages.get(0), new SelectMessageQueueByHash(), hashKey);
        } else {
            result = queue == null ? producer.send(messages.get(0)) : producer.send(messages.get(0), queue);
        }
        // A batch's ids come joined by commas; its queue offset is that of its first message.
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        for (int i = 0; i < group.size(); i++) {
            rows.add(acknowledged(result, i, ids[i], offsetIds[i], bodies.get(i)));
        }
    }

    private void sendAsync(JSONArray entries) throws Exception {
        List<Map<String, Object>> outcomes = new ArrayList<>();
        CountDownLatch missing = new CountDownLatch(entries.size());
        for (int i = 0; i < entries.size(); i++) {
            outcomes.add(null);
            JSONObject spec = entries.getJSONObject(i);
            Message message = message(spec);
            SendCallback callback = callback(outcomes, i, message.getBody(), missing);
            MessageQueue queue = queue(spec);
            if (queue == null) {
                producer.send(message, callback);
            } else {
                producer.send(message, queue, callback);
            }
        }
        if (!missing.await(ASYNC_LIMIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(missing.getCount() + " of " + entries.size() + " callbacks never came");
        }
        synchronized (outcomes) {
            outcomes.forEach(rows::add);
        }
    }

    private static SendCallback callback(List<Map<String, Object>> outcomes, int at, byte[] body, CountDownLatch missing) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                try {
                    end(acknowledged(result, 0, result.getMsgId(), result.getOffsetMsgId(), body));
                } catch (Exception failure) {
                    onException(failure);
                }
            }

            @Override
            public void onException(Throwable failure) {
                end(failed(failure));
            }

            private void end(Map<String, Object> outcome) {
                synchronized (outcomes) {
                    outcomes.set(at, outcome);
                }
                missing.countDown();
            }
        };
    }

    private void sendOneway(JSONArray entries) throws Exception {
        for (int i = 0; i < entries.size(); i++) {
            JSONObject spec = entries.getJSONObject(i);
            MessageQueue queue = queue(spec);
            if (queue == null) {
                producer.sendOneway(message(spec));
            } else {
                producer.sendOneway(message(spec), queue);
            }
            rows.add(Map.of("status", "ONEWAY"));
        }
    }

    private static Map<String, Object> acknowledged(SendResult result, int index, String id, String offsetId, byte[] body) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("status", result.getSendStatus().name());
        row.put("topic", result.getMessageQueue().getTopic());
        row.put("broker", result.getMessageQueue().getBrokerName());
        row.put("queue", result.getMessageQueue().getQueueId());
        row.put("queue_offset", result.getQueueOffset() + index);
        row.put("message_id", id);
        row.put("offset_message_id", offsetId);
        row.put("region", result.getRegionId());
        row.put("body_sha256", MessageRow.sha256(body));
        return row;
    }

    /** What went wrong, with the broker's code where it is the broker that refused. */
    private static Map<String, Object> failed(Throwable failure) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("failed", String.valueOf(failure));
        row.put("kind", failure.getClass().getSimpleName());
        if (failure instanceof MQBrokerException refused) {
            row.put("code", refused.getResponseCode());
        } else if (failure instanceof MQClientException refused) {
            row.put("code", refused.getResponseCode());
        }
        return row;
    }

    private static Message message(JSONObject spec) {
        Integer fill = spec.getInteger("fill_bytes");
        byte[] body = fill != null ? new byte[fill] : Base64.getDecoder().decode(spec.getString("body"));
        Message message = new Message(spec.getString("topic"), body);
        if (spec.getString("tags") != null) {
            message.setTags(spec.getString("tags"));
        }
        if (spec.getString("keys") != null) {
            message.setKeys(spec.getString("keys"));
        }
        message.setFlag(spec.getIntValue("flag", 0));
        if (spec.getInteger("delay_level") != null) {
            message.setDelayTimeLevel(spec.getInteger("delay_level"));
        }
        JSONObject properties = spec.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
        }
        JSONObject system = spec.getJSONObject("system_properties");
        if (system != null) {
            system.forEach((name, value) -> MessageAccessor.putProperty(message, name, String.valueOf(value)));
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
