package cometmq.spark;

import cometmq.engine.EngineException;
import cometmq.engine.ScanRequest.Range;
import cometmq.engine.Store;
import com.fasterxml.jackson.databind.JsonNode;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** The source's content, on the driver: a store opened to read, its topics, and the ends of its queues. Close it. */
final class Catalog implements AutoCloseable {
    static final long EARLIEST = -2;
    static final long LATEST = -1;
    private static final int LISTED = 10;

    /** Readable offsets: {@code low} to before {@code high}. */
    record Ends(long low, long high) {}

    private final ReadOptions options;
    private final TreeMap<QueueKey, Ends> known = new TreeMap<>();
    private Topics topics;
    private Store store;
    private boolean warned;

    Catalog(ReadOptions options) {
        this.options = options;
        requireFolder(options.path, "driver");
        topics = new Topics(options.path);
        store = open(options.path, topics.batches);
        try {
            list();
        } catch (RuntimeException error) {
            store.close();
            throw error;
        }
    }

    /**
     * Include messages written since the last refresh. A view cannot continue if retention passed it, or if a new
     * writer cut messages that it had seen: then the store is reopened, and the caller notices the missing messages.
     */
    void refresh() {
        Topics now = new Topics(options.path);
        if (!now.batches.equals(topics.batches)) {
            reopen(now.batches); // their queues are of another form
        }
        topics = now;
        try {
            list();
        } catch (EngineException.StoreClosed passed) {
            reopen(now.batches);
            list();
        }
    }

    private void reopen(List<String> batchTopics) {
        Store before = store;
        store = open(options.path, batchTopics);
        before.close();
    }

    private void list() {
        known.clear();
        for (Store.Queue queue : store.queues()) {
            known.put(new QueueKey(queue.topic(), queue.id()), new Ends(queue.low(), queue.high()));
        }
    }

    List<String> batchTopics() {
        return List.copyOf(topics.batches);
    }

    /** Return the names of all topics. */
    Set<String> names() {
        TreeSet<String> names = new TreeSet<>(topics.queues.keySet());
        known.keySet().forEach(key -> names.add(key.topic()));
        return names;
    }

    @Override
    public void close() {
        store.close();
    }

    /** Open the store of a path. */
    static Store open(String path, List<String> batchTopics) {
        try {
            return Store.open(path, batchTopics);
        } catch (EngineException.SettingNeeded error) {
            throw new OptionException("config", "give the broker's settings file: " + error.getMessage(), error);
        } catch (EngineException.NotAStore | EngineException.NotFound error) {
            throw new OptionException("path", path + " cannot be read as a store: " + error.getMessage(), error);
        }
    }

    /** Report the rows of the ranges that are gone, and return the number of those still there. */
    static long rowsThere(Store store, List<Range> ranges, LossPolicy loss) {
        Map<QueueKey, Ends> queues = new HashMap<>();
        store.queues().forEach(
                queue -> queues.put(new QueueKey(queue.topic(), queue.id()), new Ends(queue.low(), queue.high())));
        long rows = 0;
        for (Range range : ranges) {
            QueueKey key = new QueueKey(range.topic(), range.queueId());
            Ends ends = queues.getOrDefault(key, new Ends(0, 0));
            if (range.rows() > 0 && (ends.low() > range.start() || ends.high() < range.end())) {
                loss.lost("the messages " + range.start() + " to " + (range.end() - 1) + " of " + key.named()
                        + " are not all there any more: the queue has " + ends.low() + " to " + ends.high());
            }
            rows += Math.max(Math.min(ends.high(), range.end()) - Math.max(ends.low(), range.start()), 0);
        }
        return rows;
    }

    static void requireFolder(String path, String where) {
        if (Files.isDirectory(Path.of(path))) {
            return;
        }
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            host = "here";
        }
        throw new OptionException("path", path + " is not there on the " + where + " " + host
                + "; every executor must see the store under the same path as the driver");
    }

    /** Fail where the log is damaged at its readable end, or log that once (onCorrupt=skip). */
    void checkEnd() {
        try {
            store.checkEnd();
        } catch (EngineException.CorruptRecord error) {
            if (!options.skipCorrupt) {
                throw new IllegalStateException(
                        error.getMessage() + "; option onCorrupt=skip reads the messages before the damage", error);
            }
            if (!warned) {
                LossPolicy.LOG.warn("onCorrupt=skip: only the messages before the damage are read: {}",
                        error.getMessage());
            }
            warned = true;
        }
    }

    /** Return the offset of a queue's first message stored at a time or later. */
    long offsetAt(QueueKey key, long timeMs) {
        return store.offsetAt(key.topic(), key.id(), timeMs);
    }

    /** Return when the message at an offset was stored, or nothing where none can be read there. */
    OptionalLong storedMs(QueueKey key, long offset) {
        return store.storedMs(key.topic(), key.id(), offset);
    }

    /** Return the mean bytes of a message in a range, by samples. */
    double rowBytes(QueueKey key, long start, long end) {
        return store.meanBytes(key.topic(), key.id(), start, end);
    }

    /** Return ranges with the bytes of their messages. */
    Tasks.Sized sized(List<Range> ranges) {
        List<Double> bytes = new ArrayList<>();
        for (Range range : ranges) {
            bytes.add(range.rows() == 0 ? 0 : rowBytes(new QueueKey(range.topic(), range.queueId()), range.start(), range.end()));
        }
        return new Tasks.Sized(ranges, bytes);
    }

    // --- Topics and queues

    /**
     * Return the queues that the options choose.
     *
     * @param strict fail where a topic or queue is not there, or the pattern matches none
     */
    Map<QueueKey, Ends> selected(boolean strict) {
        Set<String> names = names();
        Map<QueueKey, Ends> found = new TreeMap<>();
        if (options.assigned != null) {
            JsonNode asked = Topics.object(options.assigned, "assign");
            if (asked.isEmpty()) {
                throw new OptionException("assign", "names no topic");
            }
            asked.properties().forEach(entry -> assign(entry.getKey(), entry.getValue(), names, strict, found));
            return found;
        }
        List<String> wanted = new ArrayList<>(options.topics);
        for (String name : options.pattern == null ? List.<String>of() : names) {
            if (!Topics.isSystem(name) && options.pattern.matcher(name).matches()) {
                wanted.add(name);
            }
        }
        if (wanted.isEmpty() && strict) {
            throw new OptionException("subscribePattern",
                    "'" + options.pattern + "' matches no topic; known topics: " + listed(names));
        }
        for (String topic : wanted) {
            if (strict) {
                require(topic, names, "topic");
            }
            found.putAll(queuesOf(topic));
        }
        return found;
    }

    private void assign(String topic, JsonNode ids, Set<String> names, boolean strict,
            Map<QueueKey, Ends> into) {
        if (!ids.isArray() || ids.isEmpty()) {
            throw new OptionException("assign",
                    "the topic '" + topic + "' needs a list of its queues: {\"" + topic + "\": [0, 1]}");
        }
        if (strict) {
            require(topic, names, "assign");
        }
        Map<QueueKey, Ends> there = queuesOf(topic);
        for (JsonNode id : ids) {
            QueueKey key = new QueueKey(topic, queueId(id.asText(), topic, "assign"));
            if (!there.containsKey(key) && strict) {
                throw new OptionException("assign", "the topic '" + topic + "' has no queue " + key.id() + "; there are "
                        + there.keySet().stream().map(QueueKey::id).toList());
            }
            if (there.containsKey(key)) {
                into.put(key, there.get(key));
            }
        }
    }

    private static void require(String topic, Set<String> names, String option) {
        if (!names.contains(topic)) {
            throw new OptionException(option, "there is no topic '" + topic + "'; known topics: " + listed(names));
        }
    }

    private static String listed(Set<String> names) {
        List<String> own = names.stream().filter(name -> !Topics.isSystem(name)).toList();
        return own.isEmpty() ? "none"
                : String.join(", ", own.subList(0, Math.min(LISTED, own.size())))
                        + (own.size() > LISTED ? " and " + (own.size() - LISTED) + " more" : "");
    }

    private Map<QueueKey, Ends> queuesOf(String topic) {
        Map<QueueKey, Ends> found = new TreeMap<>();
        for (int id = 0; id < topics.queues.getOrDefault(topic, 0); id++) {
            found.put(new QueueKey(topic, id), new Ends(0, 0));
        }
        found.putAll(known.subMap(new QueueKey(topic, Integer.MIN_VALUE), true,
                new QueueKey(topic, Integer.MAX_VALUE), true));
        return found;
    }

    // --- Starts and ends

    /**
     * Return where reading begins in each queue.
     *
     * @param otherwise where no option says so: EARLIEST in a batch, LATEST in a stream
     */
    Map<QueueKey, Long> starts(Map<QueueKey, Ends> queues, long otherwise) {
        return position(queues, options.starting, otherwise, otherwise == EARLIEST ? LATEST : null);
    }

    /** Return where a batch ends in each queue. */
    Map<QueueKey, Long> ends(Map<QueueKey, Ends> queues) {
        return position(queues, options.ending, LATEST, EARLIEST);
    }

    private Map<QueueKey, Long> position(Map<QueueKey, Ends> queues, ReadOptions.Side side, long otherwise, Long wrong) {
        LossPolicy loss = new LossPolicy(options.failOnDataLoss);
        Map<QueueKey, Long> found = resolved(queues, side, otherwise, wrong);
        found.replaceAll((key, offset) -> checked(offset, key, queues.get(key), side.name() + "Offsets", loss));
        return found;
    }

    private static long checked(long offset, QueueKey key, Ends limits, String option, LossPolicy loss) {
        if (offset > limits.high()) {
            throw new OptionException(option, offset + " is beyond the end of " + key.named() + ", which has "
                    + limits.low() + " to " + limits.high());
        }
        if (offset < limits.low()) {
            loss.lost("option " + option + ": " + offset + " in " + key.named() + " has expired; its first message is "
                    + limits.low());
            return limits.low();
        }
        return offset;
    }

    private Map<QueueKey, Long> resolved(Map<QueueKey, Ends> queues, ReadOptions.Side side, long otherwise, Long wrong) {
        Map<QueueKey, Long> found = new TreeMap<>();
        if (side.timestamp() != null) {
            queues.forEach((key, ends) -> found.put(key, offsetWithin(key, side.timestamp(), ends)));
            return found;
        }
        Map<QueueKey, Long> asked = new HashMap<>();
        long rest = otherwise;
        if (side.offsetsByTimestamp() != null) {
            String option = side.name() + "OffsetsByTimestamp";
            parsed(side.offsetsByTimestamp(), option, 0, queues)
                    .forEach((key, time) -> asked.put(key, offsetWithin(key, time, queues.get(key))));
        } else if (side.offsets() != null) {
            String option = side.name() + "Offsets";
            if (side.offsets().equalsIgnoreCase("earliest") || side.offsets().equalsIgnoreCase("latest")) {
                rest = side.offsets().equalsIgnoreCase("earliest") ? EARLIEST : LATEST;
            } else {
                asked.putAll(parsed(side.offsets(), option, EARLIEST, queues));
            }
            if (wrong != null && (rest == wrong || asked.containsValue(wrong))) {
                throw new OptionException(option, wrong == LATEST
                        ? "a batch cannot start at latest: there would be nothing to read"
                        : "a batch cannot end at earliest: there would be nothing to read");
            }
        }
        for (Map.Entry<QueueKey, Ends> queue : queues.entrySet()) {
            long offset = asked.getOrDefault(queue.getKey(), rest);
            Ends ends = queue.getValue();
            found.put(queue.getKey(), offset == EARLIEST ? ends.low() : offset == LATEST ? ends.high() : offset);
        }
        return found;
    }

    private long offsetWithin(QueueKey key, long timeMs, Ends limits) {
        if (limits.low() == limits.high()) {
            return limits.low();
        }
        return Math.min(Math.max(offsetAt(key, timeMs), limits.low()), limits.high());
    }

    /** Return the numbers of a JSON text by queue: {"topic": {"0": 23}}, or with a broker's name between. */
    private static Map<QueueKey, Long> parsed(String text, String option, long lowest, Map<QueueKey, Ends> queues) {
        Map<QueueKey, Long> found = new HashMap<>();
        Topics.object(text, option).properties().forEach(topic -> {
            if (!topic.getValue().isObject()) {
                throw new OptionException(option, "the topic '" + topic.getKey() + "' needs its queues: {\""
                        + topic.getKey() + "\": {\"0\": 23}}");
            }
            topic.getValue().properties().forEach(queue -> {
                if (queue.getValue().isObject()) {
                    queue.getValue().properties().forEach(
                            inner -> number(topic.getKey(), inner, option, lowest, queues, found));
                } else {
                    number(topic.getKey(), queue, option, lowest, queues, found);
                }
            });
        });
        return found;
    }

    private static void number(String topic, Map.Entry<String, JsonNode> queue, String option, long lowest,
            Map<QueueKey, Ends> queues, Map<QueueKey, Long> into) {
        QueueKey key = new QueueKey(topic, queueId(queue.getKey(), topic, option));
        JsonNode value = queue.getValue();
        if (!value.isIntegralNumber() || !value.canConvertToLong() || value.asLong() < lowest) {
            throw new OptionException(option, value + " for " + key.named() + " is not " + (lowest < 0
                    ? "an offset from 0 up, -2 (earliest) or -1 (latest)" : "a time in milliseconds"));
        }
        if (!queues.containsKey(key)) {
            List<Integer> there =
                    queues.keySet().stream().filter(one -> one.topic().equals(topic)).map(QueueKey::id).toList();
            throw new OptionException(option, there.isEmpty() ? "'" + topic + "' is not read"
                    : "the topic '" + topic + "' has no queue " + key.id() + "; there are " + there);
        }
        if (into.put(key, value.asLong()) != null) {
            throw new OptionException(option, "the queue " + key.id() + " of '" + topic
                    + "' stands under two brokers; a store is one broker's");
        }
    }

    private static int queueId(String text, String topic, String option) {
        if (!text.matches("\\d{1,9}")) {
            throw new OptionException(option,
                    "'" + text + "' is not a queue of '" + topic + "': queues are numbers from 0 up, as texts");
        }
        return Integer.parseInt(text);
    }
}
