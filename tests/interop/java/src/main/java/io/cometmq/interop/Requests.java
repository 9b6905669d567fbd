package io.cometmq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request and reply with the official client, on either side.
 *
 * <p>Requests take the variant with a selector and a callback: in the others the client of 5.3.3 gives up when the broker
 * acknowledges the request.
 */
final class Requests {
    private Requests() {
    }

    /** Sends each of {@code bodies} as a request, one after the other; a row for each reply. */
    static void request(JSONObject request, Peer.Rows rows) throws Exception {
        long timeoutMs = request.getLongValue("timeout_ms");
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer("interop_requests"), request);
        producer.start();
        try {
            for (Object body : request.getJSONArray("bodies")) {
                Message message = new Message(request.getString("topic"), String.valueOf(body).getBytes(StandardCharsets.UTF_8));
                CompletableFuture<Message> reply = new CompletableFuture<>();
                producer.request(message, (queues, asked, first) -> queues.get(0), null, new RequestCallback() {
                    @Override
                    public void onSuccess(Message found) {
                        reply.complete(found);
                    }

                    @Override
                    public void onException(Throwable failure) {
                        reply.completeExceptionally(failure);
                    }
                }, timeoutMs);
                rows.add(MessageRow.of((MessageExt) reply.get(timeoutMs + 10_000L, TimeUnit.MILLISECONDS), true));
            }
        } finally {
            Clients.retire(producer::shutdown);
        }
    }

    /** Answers {@code count} requests with {@code prefix} and their bodies; the first row says that the listener runs. */
    static void answer(JSONObject request, Peer.Rows rows) throws Exception {
        byte[] prefix = request.getString("prefix").getBytes(StandardCharsets.UTF_8);
        CountDownLatch left = new CountDownLatch(request.getIntValue("count"));
        JSONArray failures = new JSONArray();
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer("interop_replies"), request);
        producer.start();
        DefaultMQPushConsumer consumer = Clients.configure(new DefaultMQPushConsumer(request.getString("group")), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                byte[] body = new byte[prefix.length + message.getBody().length];
                System.arraycopy(prefix, 0, body, 0, prefix.length);
                System.arraycopy(message.getBody(), 0, body, prefix.length, message.getBody().length);
                try {
                    producer.send(MessageUtil.createReplyMessage(message, body), 10_000L);
                } catch (Exception failure) {
                    failures.add(String.valueOf(failure));
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            rows.add(Map.of("started", true));
            if (!left.await(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " requests did not come");
            }
            rows.add(Map.of("failures", failures));
        } finally {
            Clients.retire(consumer::shutdown);
            Clients.retire(producer::shutdown);
        }
    }
}
