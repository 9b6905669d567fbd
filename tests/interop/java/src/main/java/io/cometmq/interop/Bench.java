package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client under load, for {@code benchmarks/run_client.py}: the same jobs as the Python workers there have, with the
 * same messages and settings.
 *
 * <p>A body is 64-bit words, little-endian: its number, then one word that follows from it, over and over. Each answer is one row:
 * seconds on the clock and of all processors, or latencies in microseconds.
 */
final class Bench {
    private static final long FACTOR = 0x9E3779B97F4A7C15L;
    private static final int WORD_BYTES = 8;
    private static final long LIMIT_S = 60;

    private Bench() {
    }

    // --- Messages --------------------------------------------------------------------------------------------------------

    private static List<Message> messages(String topic, int count, int bodyBytes) {
        List<Message> messages = new ArrayList<>(count);
        for (long number = 0; number < count; number++) {
            ByteBuffer body = ByteBuffer.allocate(bodyBytes).order(ByteOrder.LITTLE_ENDIAN);
            body.putLong(number);
            while (body.hasRemaining()) {
                body.putLong(number * FACTOR + 1);
            }
            messages.add(new Message(topic, body.array()));
        }
        return messages;
    }

    private static long number(byte[] body) {
        return ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).getLong();
    }

    private static void checkBody(byte[] body, int bodyBytes) {
        ByteBuffer words = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN);
        long number = words.getLong();
        boolean isRight = body.length == bodyBytes;
        while (isRight && words.hasRemaining()) {
            isRight = words.getLong() == number * FACTOR + 1;
        }
        if (!isRight) {
            throw new IllegalStateException("message " + number + " came with other bytes than were sent");
        }
    }

    private static void checkOnceEach(List<Long> numbers, int count) {
        BitSet seen = new BitSet(count);
        for (long number : numbers) {
            if (number < 0 || number >= count || seen.get((int) number)) {
                throw new IllegalStateException("message " + number + " of " + count + " came twice, or never was sent");
            }
            seen.set((int) number);
        }
        if (seen.cardinality() != count) {
            throw new IllegalStateException(seen.cardinality() + " messages came instead of " + count);
        }
    }

    // --- Measuring -------------------------------------------------------------------------------------------------------

    private static long processorNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Runs from its making. */
    private static final class Stopwatch {
        private final long beginNs = System.nanoTime();
        private final long processorBeginNs = processorNs();

        Map<String, Number> taken(int messages) {
            return Map.of(
                "seconds", (System.nanoTime() - beginNs) / 1e9,
                "cpu_s", (processorNs() - processorBeginNs) / 1e9,
                "messages", messages);
        }
    }

    /** Takes bodies, from any thread, until all are there. Runs from the first call to the last, without the first's messages. */
    private static final class Collector {
        private final byte[][] bodies;
        private final int[] queues;
        private final AtomicInteger came = new AtomicInteger();
        private final AtomicReference<Stopwatch> watch = new AtomicReference<>();
        private final CountDownLatch done = new CountDownLatch(1);
        private volatile int before;
        private volatile Map<String, Number> taken;

        Collector(int count) {
            bodies = new byte[count][];
            queues = new int[count];
        }

        void addAll(List<MessageExt> messages) {
            if (watch.get() == null && !messages.isEmpty() && watch.compareAndSet(null, new Stopwatch())) {
                before = messages.size();
            }
            messages.forEach(this::add);
        }

        private void add(MessageExt message) {
            int place = came.getAndIncrement();
            if (place >= bodies.length) {
                return; // more than were sent: the check tells
            }
            bodies[place] = message.getBody();
            queues[place] = message.getQueueId();
            if (place == bodies.length - 1) {
                taken = watch.get().taken(Math.max(bodies.length - before, 1));
                done.countDown();
            }
        }

        boolean await() throws InterruptedException {
            return done.await(LIMIT_S, TimeUnit.SECONDS);
        }

        /** What it took, once each message has come once, with its bytes, and in its queue's order where that is asked for. */
        Map<String, Number> checked(int bodyBytes, boolean isOrdered) {
            if (taken == null || came.get() != bodies.length) {
                throw new IllegalStateException(came.get() + " of " + bodies.length + " messages came");
            }
            List<Long> numbers = new ArrayList<>(bodies.length);
            Map<Integer, Long> newest = new HashMap<>();
            for (int place = 0; place < bodies.length; place++) {
                checkBody(bodies[place], bodyBytes);
                long number = number(bodies[place]);
                numbers.add(number);
                Long before = newest.put(queues[place], number);
                if (isOrdered && before != null && before >= number) {
                    throw new IllegalStateException("messages of queue " + queues[place] + " came out of order");
                }
            }
            checkOnceEach(numbers, bodies.length);
            return taken;
        }
    }

    // --- Sending ---------------------------------------------------------------------------------------------------------

    private static DefaultMQProducer producer(JSONObject request) throws Exception {
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer("bench"), request);
        producer.start();
        return producer;
    }

    static void produce(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        List<Message> messages = messages(topic, request.getIntValue("count"), request.getIntValue("body_bytes"));
        DefaultMQProducer producer = producer(request);
        try {
            producer.fetchPublishMessageQueues(topic);
            Stopwatch watch = new Stopwatch();
            if (request.getString("how").equals("one by one")) {
                for (Message message : messages) {
                    producer.send(message);
                }
            } else {
                producer.setAutoBatch(request.getString("how").equals("accumulated"));
                pipelined(producer, messages, request.getIntValue("window"));
            }
            rows.add(watch.taken(messages.size()));
        } finally {
            Clients.retire(producer::shutdown);
        }
    }

    private static void pipelined(DefaultMQProducer producer, List<Message> messages, int window) throws Exception {
        Semaphore room = new Semaphore(window);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                room.release();
            }

            @Override
            public void onException(Throwable failure) {
                failed.compareAndSet(null, failure);
                room.release();
            }
        };
        for (Message message : messages) {
            room.acquire();
            producer.send(message, callback);
        }
        if (!room.tryAcquire(window, LIMIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not all messages were acknowledged within " + LIMIT_S + " s");
        }
        if (failed.get() != null) {
            throw new IllegalStateException("a message was not acknowledged", failed.get());
        }
    }

    // --- Consuming -------------------------------------------------------------------------------------------------------

    private static DefaultMQPushConsumer pushConsumer(JSONObject request) throws Exception {
        DefaultMQPushConsumer consumer = Clients.configure(new DefaultMQPushConsumer(request.getString("group")), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        return consumer;
    }

    static void consume(JSONObject request, Peer.Rows rows) throws Exception {
        Collector came = new Collector(request.getIntValue("count"));
        boolean isPoll = request.getString("how").equals("poll");
        if (isPoll) {
            poll(request, came);
        } else {
            push(request, came);
        }
        rows.add(came.checked(request.getIntValue("body_bytes"), isPoll));
    }

    private static void push(JSONObject request, Collector came) throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(request);
        JSONObject settings = request.getJSONObject("settings");
        if (settings.containsKey("pull_batch_size")) {
            consumer.setPullBatchSize(settings.getIntValue("pull_batch_size"));
            consumer.setPullBatchSizeInBytes(settings.getIntValue("pull_batch_size_bytes"));
            consumer.setPullThresholdForQueue(settings.getIntValue("pull_threshold_for_queue"));
            consumer.setConsumeConcurrentlyMaxSpan(settings.getIntValue("consume_concurrently_max_span"));
            consumer.setConsumeMessageBatchMaxSize(settings.getIntValue("consume_message_batch_max_size", 1));
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            came.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        came.await();
        Clients.retire(consumer::shutdown);
    }

    private static void poll(JSONObject request, Collector came) throws Exception {
        DefaultLitePullConsumer consumer = Clients.configure(new DefaultLitePullConsumer(request.getString("group")), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(request.getJSONObject("settings").getIntValue("pull_batch_size"));
        consumer.subscribe(request.getString("topic"), "*");
        consumer.start();
        long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (came.taken == null && System.nanoTime() < endNs) {
            came.addAll(consumer.poll(1_000));
        }
        Clients.retire(consumer::shutdown);
    }

    // --- Latency ---------------------------------------------------------------------------------------------------------

    static void latency(JSONObject request, Peer.Rows rows) throws Exception {
        int count = request.getIntValue("count");
        int ahead = request.getIntValue("ahead");
        String topic = request.getString("topic");
        long[] tookNs = new long[count];
        List<Long> numbers = new ArrayList<>(count);
        CountDownLatch ready = new CountDownLatch(ahead);
        CountDownLatch done = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = pushConsumer(request);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer words = ByteBuffer.wrap(message.getBody()).order(ByteOrder.LITTLE_ENDIAN);
                long number = words.getLong();
                tookNs[(int) number] = nowNs - words.getLong();
                synchronized (numbers) {
                    numbers.add(number);
                }
                ready.countDown();
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = producer(request);
        try {
            // Those ahead show that the consumer has all its queues.
            paced(producer, request, 0, ahead);
            if (!ready.await(LIMIT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException(ready.getCount() + " of the first " + ahead + " messages did not come");
            }
            paced(producer, request, ahead, count);
            if (!done.await(LIMIT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException(done.getCount() + " of " + count + " messages did not come");
            }
        } finally {
            Clients.retire(producer::shutdown);
            Clients.retire(consumer::shutdown);
        }
        synchronized (numbers) {
            checkOnceEach(numbers, count);
        }
        double[] us = new double[count - ahead];
        for (int place = 0; place < us.length; place++) {
            us[place] = tookNs[ahead + place] / 1e3;
        }
        rows.add(Map.of("us", us));
    }

    private static void paced(DefaultMQProducer producer, JSONObject request, int first, int end) throws Exception {
        long beginNs = System.nanoTime();
        long stepNs = TimeUnit.SECONDS.toNanos(1) / request.getIntValue("per_s");
        for (int number = first; number < end; number++) {
            for (long restNs; (restNs = beginNs + (number - first) * stepNs - System.nanoTime()) > 0; ) {
                LockSupport.parkNanos(restNs);
            }
            ByteBuffer body = ByteBuffer.allocate(request.getIntValue("body_bytes")).order(ByteOrder.LITTLE_ENDIAN);
            body.putLong(number).putLong(System.nanoTime());
            producer.send(new Message(request.getString("topic"), body.array()));
        }
    }
}
