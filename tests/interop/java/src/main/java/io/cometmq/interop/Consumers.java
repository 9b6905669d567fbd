package io.cometmq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Push consumers that live from one request to another, known by the name the test gave them, and what each was given.
 *
 * <p>A consumer fails the messages whose tag is in {@code fail_until} as long as they were tried fewer times than that. One
 * that {@code hangs} notes what it is given and does not come back before it is released.
 */
final class Consumers {
    private static final int THREADS = 4;
    private static final int HEARTBEAT_MS = 1000;
    private static final Map<String, DefaultMQPushConsumer> LIVE = new ConcurrentHashMap<>();
    /** What those that hang wait for. */
    private static final Map<String, CountDownLatch> HANGING = new ConcurrentHashMap<>();
    /** Everything that any consumer was given, in the order of its coming. Guarded by itself. */
    private static final List<Map<String, Object>> SEEN = new ArrayList<>();

    private Consumers() {
    }

    static void start(JSONObject request, Peer.Rows rows) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = Clients.configure(new DefaultMQPushConsumer(request.getString("group")), request);
        boolean broadcasting = request.getBooleanValue("broadcasting", false);
        if (broadcasting) {
            Broadcasting.make(consumer);
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + request.getString("from")));
        if (request.getString("timestamp") != null) {
            consumer.setConsumeTimestamp(request.getString("timestamp"));
        }
        // The client's first rebalance and its first regular heartbeat come at the same moment, a second after the start. Where
        // the one changes the version of a subscription while the other is under way, any broker refuses its pulls until the
        // next heartbeat, half a minute later.
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.setPullBatchSize(request.getIntValue("pull_batch", 32));
        consumer.setConsumeMessageBatchMaxSize(request.getIntValue("consume_batch", 1));
        if (request.getString("instance") != null) {
            consumer.setInstanceName(request.getString("instance"));
        }
        if (request.getJSONObject("strategy") != null) {
            consumer.setAllocateMessageQueueStrategy(Strategies.of(request.getJSONObject("strategy")));
        }
        consumer.setMaxReconsumeTimes(request.getIntValue("max_reconsume_times", -1));
        for (Map.Entry<String, Object> subscription : request.getJSONObject("subscriptions").entrySet()) {
            String expression = String.valueOf(subscription.getValue());
            if (request.getBooleanValue("sql", false)) {
                consumer.subscribe(subscription.getKey(), MessageSelector.bySql(expression));
            } else {
                consumer.subscribe(subscription.getKey(), expression);
            }
        }
        if (request.getBooleanValue("heartbeat_v2", false)) {
            HeartbeatV2.use(consumer);
        }
        if (!request.getBooleanValue("client_rebalance", true)) {
            BrokerRebalance.use(consumer, request.getIntValue("pop_invisible_ms", 60000));
        }
        JSONObject failUntil = request.getJSONObject("fail_until");
        Judge judge = message -> failUntil != null && message.getTags() != null
            && message.getReconsumeTimes() < failUntil.getIntValue(message.getTags(), 0);
        if (request.getBooleanValue("orderly", false)) {
            consumer.registerMessageListener(new Orderly(name, judge));
        } else {
            if (request.getBooleanValue("hangs", false)) {
                HANGING.put(name, new CountDownLatch(1));
            }
            consumer.registerMessageListener(new Concurrent(name, judge));
        }
        try {
            consumer.start();
        } catch (MQClientException failure) {
            Clients.retire(consumer::shutdown);
            throw failure;
        }
        if (broadcasting) {
            Broadcasting.wake(consumer);
        }
        LIVE.put(name, consumer);
        rows.add(Map.of("client_id", consumer.buildMQClientId()));
    }

    /** Lets those go on that hang. */
    static void release(JSONObject request, Peer.Rows rows) {
        for (String name : names(request)) {
            HANGING.remove(name).countDown();
        }
    }

    /** Has consumers ask at once which queues are theirs, where they would within 20 seconds. */
    static void rebalance(JSONObject request, Peer.Rows rows) {
        for (String name : names(request)) {
            LIVE.get(name).getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
        }
    }

    /** Whether a message fails this time. */
    private interface Judge {
        boolean fails(MessageExt message);
    }

    private static final class Broadcasting {
        /** The enumeration is in another package in 4.9. */
        static void make(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
            for (Method method : DefaultMQPushConsumer.class.getMethods()) {
                if (method.getName().equals("setMessageModel")) {
                    Class<?> models = method.getParameterTypes()[0];
                    method.invoke(consumer, models.getField("BROADCASTING").get(null));
                }
            }
        }

        /**
         * Upstream's start wakes its rebalance, unless another heartbeat is under way just then. In a group the broker wakes it
         * too; one that gets everything would then begin 30 seconds later, against any broker.
         */
        static void wake(DefaultMQPushConsumer consumer) {
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
        }
    }

    /** Heartbeats that are a fingerprint as long as nothing changes; 4.9 has none. */
    private static final class HeartbeatV2 {
        static void use(DefaultMQPushConsumer consumer) {
            consumer.setUseHeartbeatV2(true);
        }
    }

    /** Brokers say which queues a member has, and whether it pulls or pops them; 4.9 has none of that. */
    private static final class BrokerRebalance {
        static void use(DefaultMQPushConsumer consumer, int invisibleMs) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(invisibleMs);
        }
    }

    private record Concurrent(String name, Judge judge) implements MessageListenerConcurrently {
        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            boolean failed = messages.stream().anyMatch(judge::fails);
            CountDownLatch hanging = HANGING.get(name);
            record(name, messages, context.getMessageQueue(), !failed && hanging == null);
            if (hanging != null) {
                try {
                    hanging.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            }
            return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }

    private record Orderly(String name, Judge judge) implements MessageListenerOrderly {
        @Override
        public ConsumeOrderlyStatus consumeMessage(List<MessageExt> messages, ConsumeOrderlyContext context) {
            boolean failed = messages.stream().anyMatch(judge::fails);
            record(name, messages, context.getMessageQueue(), !failed);
            context.setSuspendCurrentQueueTimeMillis(10);
            return failed ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        }
    }

    private static void record(String name, List<MessageExt> messages, MessageQueue queue, boolean consumed) {
        long now = System.currentTimeMillis();
        List<Map<String, Object>> rows = new ArrayList<>();
        for (MessageExt message : messages) {
            Map<String, Object> row;
            try {
                row = MessageRow.of(message, false);
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
            row.put("consumer", name);
            row.put("broker", queue.getBrokerName());
            row.put("consumed", consumed);
            row.put("consumed_at_ms", now);
            rows.add(row);
        }
        synchronized (SEEN) {
            SEEN.addAll(rows);
            SEEN.notifyAll();
        }
    }

    /** Waits until the consumers have consumed {@code count} messages between them, or time is up; then all they were given. */
    static void rows(JSONObject request, Peer.Rows rows) throws Exception {
        Set<String> names = names(request);
        int count = request.getIntValue("count", 0);
        long deadline = System.nanoTime() + request.getLongValue("timeout_ms", 60_000L) * 1_000_000L;
        List<Map<String, Object>> found;
        synchronized (SEEN) {
            while (true) {
                found = SEEN.stream().filter(row -> names.contains((String) row.get("consumer"))).toList();
                long left = (deadline - System.nanoTime()) / 1_000_000L;
                if (left <= 0 || found.stream().filter(row -> (Boolean) row.get("consumed")).count() >= count) {
                    break;
                }
                SEEN.wait(left);
            }
        }
        found.forEach(rows::add);
    }

    /**
     * Waits until {@code total} queues of the topic are divided among the consumers, each queue with one of them and none
     * of them without; then who has which.
     */
    static void queues(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        int total = request.getIntValue("total");
        Map<String, Set<String>> owned = new LinkedHashMap<>();
        Peer.await(60_000L, () -> {
            owned.clear();
            for (String name : names(request)) {
                owned.put(name, owned(LIVE.get(name), topic));
            }
            return isDivided(owned, total);
        });
        owned.forEach((name, queues) -> rows.add(Map.of("consumer", name, "queues", queues)));
    }

    private static List<MessageQueue> processed(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic)).toList();
    }

    /** Which queues of the topic each consumer has at this moment. */
    static void owned(JSONObject request, Peer.Rows rows) {
        for (String name : names(request)) {
            rows.add(Map.of("consumer", name, "queues", owned(LIVE.get(name), request.getString("topic"))));
        }
    }

    /** Which queues of the topic each consumer pops at this moment; -1 stands for all of a broker. */
    static void popped(JSONObject request, Peer.Rows rows) {
        for (String name : names(request)) {
            rows.add(Map.of("consumer", name, "queues", Popped.queues(LIVE.get(name), request.getString("topic"))));
        }
    }

    /** 4.9 knows no pops. */
    private static final class Popped {
        static Set<String> queues(DefaultMQPushConsumer consumer, String topic) {
            Set<String> queues = new TreeSet<>();
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic))
                .forEach(queue -> queues.add(queue.getBrokerName() + ":" + queue.getQueueId()));
            return queues;
        }
    }

    private static Set<String> owned(DefaultMQPushConsumer consumer, String topic) {
        Set<String> queues = new TreeSet<>();
        processed(consumer, topic).forEach(queue -> queues.add(queue.getBrokerName() + ":" + queue.getQueueId()));
        return queues;
    }

    private static boolean isDivided(Map<String, Set<String>> owned, int total) {
        Set<String> all = new HashSet<>();
        int sum = 0;
        for (Set<String> queues : owned.values()) {
            if (queues.isEmpty()) {
                return false;
            }
            sum += queues.size();
            all.addAll(queues);
        }
        return sum == total && all.size() == total;
    }

    /**
     * Waits until the consumers' own progress in the topic, all queues together, is {@code count}, and tells the broker.
     *
     * <p>A consumer does so every few seconds by itself. Who takes over a queue before that consumes again what was consumed.
     */
    static void commit(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        long count = request.getLongValue("count");
        Map<MessageQueue, Long> progress = new LinkedHashMap<>();
        Peer.await(60_000L, () -> {
            progress.clear();
            for (String name : names(request)) {
                OffsetStore store = LIVE.get(name).getOffsetStore();
                for (MessageQueue queue : processed(LIVE.get(name), topic)) {
                    progress.put(queue, store.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
                }
            }
            return progress.values().stream().mapToLong(Long::longValue).sum() == count;
        });
        OffsetStore anyStore = LIVE.get(names(request).iterator().next()).getOffsetStore();
        for (Map.Entry<MessageQueue, Long> entry : progress.entrySet()) {
            anyStore.updateConsumeOffsetToBroker(entry.getKey(), entry.getValue(), false);
        }
    }

    /** Ends consumers cleanly: when this returns, their progress is with the broker and they have left the group. */
    static void stop(JSONObject request, Peer.Rows rows) throws Exception {
        List<Thread> ending = new ArrayList<>();
        for (String name : names(request)) {
            DefaultMQPushConsumer consumer = LIVE.remove(name);
            if (consumer == null) {
                throw new IllegalArgumentException("no consumer " + name);
            }
            Thread thread = new Thread(consumer::shutdown, "stop " + name);
            thread.start();
            ending.add(thread);
        }
        for (Thread thread : ending) {
            thread.join();
        }
    }

    /** Ends whatever is alive without waiting for it, and forgets what was seen. */
    static void clear(JSONObject request, Peer.Rows rows) {
        HANGING.values().forEach(CountDownLatch::countDown);
        HANGING.clear();
        for (String name : List.copyOf(LIVE.keySet())) {
            Clients.retire(LIVE.remove(name)::shutdown);
        }
        synchronized (SEEN) {
            SEEN.clear();
        }
    }

    private static Set<String> names(JSONObject request) {
        JSONArray names = request.getJSONArray("names");
        return new TreeSet<>(names.toJavaList(String.class));
    }
}
