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
import java.util.TreeMap;
import java.util.TreeSet;

/** What a loaded frame reads: ranges whose ends are fixed when its first query is planned, and the sizes of messages. */
final class Snapshot {
    private static final long EARLIEST = -2;
    private static final long LATEST = -1;
    private static final int LISTED = 10;

    /** A queue, ordered as ranges are read. */
    private record Key(String topic, int id) implements Comparable<Key> {
        @Override
        public int compareTo(Key other) {
            int order = topic.compareTo(other.topic);
            return order != 0 ? order : Integer.compare(id, other.id);
        }

        String named() {
            return "queue " + id + " of '" + topic + "'";
        }
    }

    private record Ends(long low, long high) {}

    final List<Range> ranges = new ArrayList<>();
    /** Mean bytes of a record in each range. */
    final List<Double> rowBytes = new ArrayList<>();
    final List<String> batchTopics;

    private final ReadOptions options;
    private final Topics topics;
    private final Map<Key, Ends> known = new TreeMap<>();

    Snapshot(ReadOptions options) {
        this.options = options;
        requireFolder(options.path, "driver");
        topics = new Topics(options.path);
        batchTopics = topics.batches;
        try (Store store = open(options.path, batchTopics)) {
            for (Store.Queue queue : store.queues()) {
                known.put(new Key(queue.topic(), queue.id()), new Ends(queue.low(), queue.high()));
            }
            Map<Key, Ends> queues = selected();
            checkEnd(store);
            LossPolicy loss = new LossPolicy(options.failOnDataLoss);
            Map<Key, Long> starts = resolved(store, queues, options.starting, EARLIEST);
            Map<Key, Long> ends = resolved(store, queues, options.ending, LATEST);
            queues.forEach((key, limits) -> {
                long start = checked(starts.get(key), key, limits, "startingOffsets", loss);
                long end = Math.max(start, checked(ends.get(key), key, limits, "endingOffsets", loss));
                ranges.add(new Range(key.topic, key.id, start, end));
                rowBytes.add(start == end ? 0 : store.meanBytes(key.topic, key.id, start, end));
            });
        }
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

    /** Report what is gone of the ranges, and return how many rows they have still. */
    static long rowsThere(Store store, List<Range> ranges, LossPolicy loss) {
        Map<Key, Ends> queues = new HashMap<>();
        store.queues().forEach(
                queue -> queues.put(new Key(queue.topic(), queue.id()), new Ends(queue.low(), queue.high())));
        long rows = 0;
        for (Range range : ranges) {
            Key key = new Key(range.topic(), range.queueId());
            Ends ends = queues.getOrDefault(key, new Ends(0, 0));
            if (range.rows() > 0 && (ends.low > range.start() || ends.high < range.end())) {
                loss.lost("the messages " + range.start() + " to " + (range.end() - 1) + " of " + key.named()
                        + " are not all there any more: the queue has " + ends.low + " to " + ends.high);
            }
            rows += Math.max(Math.min(ends.high, range.end()) - Math.max(ends.low, range.start()), 0);
        }
        return rows;
    }

    /** Fail where messages of ranges that were fixed before have expired since. */
    void requireAll(List<Range> fixed) {
        try (Store store = open(options.path, batchTopics)) {
            rowsThere(store, fixed, new LossPolicy(options.failOnDataLoss));
        }
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

    private void checkEnd(Store store) {
        try {
            store.checkEnd();
        } catch (EngineException.CorruptRecord error) {
            if (!options.skipCorrupt) {
                throw new IllegalStateException(
                        error.getMessage() + "; option onCorrupt=skip reads the messages before the damage", error);
            }
            LossPolicy.LOG.warn("onCorrupt=skip: only the messages before the damage are read: {}", error.getMessage());
        }
    }

    // --- Topics and queues

    private Map<Key, Ends> selected() {
        TreeSet<String> names = new TreeSet<>(topics.queues.keySet());
        known.keySet().forEach(key -> names.add(key.topic));
        Map<Key, Ends> found = new TreeMap<>();
        if (options.assigned != null) {
            JsonNode asked = Topics.object(options.assigned, "assign");
            if (asked.isEmpty()) {
                throw new OptionException("assign", "names no topic");
            }
            asked.properties().forEach(entry -> assign(entry.getKey(), entry.getValue(), names, found));
            return found;
        }
        List<String> wanted = new ArrayList<>(options.topics);
        for (String name : options.pattern == null ? List.<String>of() : names) {
            if (!Topics.isSystem(name) && options.pattern.matcher(name).matches()) {
                wanted.add(name);
            }
        }
        if (wanted.isEmpty()) {
            throw new OptionException("subscribePattern",
                    "'" + options.pattern + "' matches no topic; known topics: " + listed(names));
        }
        for (String topic : wanted) {
            require(topic, names, "topic");
            found.putAll(queuesOf(topic));
        }
        return found;
    }

    private void assign(String topic, JsonNode ids, TreeSet<String> names, Map<Key, Ends> into) {
        if (!ids.isArray() || ids.isEmpty()) {
            throw new OptionException("assign",
                    "the topic '" + topic + "' needs a list of its queues: {\"" + topic + "\": [0, 1]}");
        }
        require(topic, names, "assign");
        Map<Key, Ends> there = queuesOf(topic);
        for (JsonNode id : ids) {
            Key key = new Key(topic, queueId(id.asText(), topic, "assign"));
            if (!there.containsKey(key)) {
                throw new OptionException("assign", "the topic '" + topic + "' has no queue " + key.id + "; there are "
                        + there.keySet().stream().map(Key::id).toList());
            }
            into.put(key, there.get(key));
        }
    }

    private static void require(String topic, TreeSet<String> names, String option) {
        if (!names.contains(topic)) {
            throw new OptionException(option, "there is no topic '" + topic + "'; known topics: " + listed(names));
        }
    }

    private static String listed(TreeSet<String> names) {
        List<String> own = names.stream().filter(name -> !Topics.isSystem(name)).toList();
        return own.isEmpty() ? "none"
                : String.join(", ", own.subList(0, Math.min(LISTED, own.size())))
                        + (own.size() > LISTED ? " and " + (own.size() - LISTED) + " more" : "");
    }

    private Map<Key, Ends> queuesOf(String topic) {
        Map<Key, Ends> found = new TreeMap<>();
        for (int id = 0; id < topics.queues.getOrDefault(topic, 0); id++) {
            found.put(new Key(topic, id), new Ends(0, 0));
        }
        known.forEach((key, ends) -> {
            if (key.topic.equals(topic)) {
                found.put(key, ends);
            }
        });
        return found;
    }

    // --- Starts and ends

    private static long checked(long offset, Key key, Ends limits, String option, LossPolicy loss) {
        if (offset > limits.high) {
            throw new OptionException(option, offset + " is beyond the end of " + key.named() + ", which has "
                    + limits.low + " to " + limits.high);
        }
        if (offset < limits.low) {
            loss.lost("option " + option + ": " + offset + " in " + key.named() + " has expired; its first message is "
                    + limits.low);
            return limits.low;
        }
        return offset;
    }

    private static Map<Key, Long> resolved(Store store, Map<Key, Ends> queues, ReadOptions.Side side, long otherwise) {
        Map<Key, Long> found = new HashMap<>();
        if (side.timestamp() != null) {
            queues.forEach((key, ends) -> found.put(key, offsetAt(store, key, side.timestamp(), ends)));
            return found;
        }
        Map<Key, Long> asked = new HashMap<>();
        long rest = otherwise;
        if (side.offsetsByTimestamp() != null) {
            String option = side.name() + "OffsetsByTimestamp";
            parsed(side.offsetsByTimestamp(), option, 0, queues)
                    .forEach((key, time) -> asked.put(key, offsetAt(store, key, time, queues.get(key))));
        } else if (side.offsets() != null) {
            String option = side.name() + "Offsets";
            if (side.offsets().equalsIgnoreCase("earliest") || side.offsets().equalsIgnoreCase("latest")) {
                rest = side.offsets().equalsIgnoreCase("earliest") ? EARLIEST : LATEST;
            } else {
                asked.putAll(parsed(side.offsets(), option, EARLIEST, queues));
            }
            long wrong = otherwise == EARLIEST ? LATEST : EARLIEST;
            if (rest == wrong || asked.containsValue(wrong)) {
                throw new OptionException(option, otherwise == EARLIEST
                        ? "a batch cannot start at latest: there would be nothing to read"
                        : "a batch cannot end at earliest: there would be nothing to read");
            }
        }
        for (Map.Entry<Key, Ends> queue : queues.entrySet()) {
            long offset = asked.getOrDefault(queue.getKey(), rest);
            Ends ends = queue.getValue();
            found.put(queue.getKey(), offset == EARLIEST ? ends.low : offset == LATEST ? ends.high : offset);
        }
        return found;
    }

    private static long offsetAt(Store store, Key key, long timeMs, Ends limits) {
        if (limits.low == limits.high) {
            return limits.low;
        }
        return Math.min(Math.max(store.offsetAt(key.topic, key.id, timeMs), limits.low), limits.high);
    }

    /** Return the numbers of a JSON text by queue: {"topic": {"0": 23}}, or with a broker's name between. */
    private static Map<Key, Long> parsed(String text, String option, long lowest, Map<Key, Ends> queues) {
        Map<Key, Long> found = new HashMap<>();
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
            Map<Key, Ends> queues, Map<Key, Long> into) {
        Key key = new Key(topic, queueId(queue.getKey(), topic, option));
        JsonNode value = queue.getValue();
        if (!value.isIntegralNumber() || !value.canConvertToLong() || value.asLong() < lowest) {
            throw new OptionException(option, value + " for " + key.named() + " is not " + (lowest < 0
                    ? "an offset from 0 up, -2 (earliest) or -1 (latest)" : "a time in milliseconds"));
        }
        if (!queues.containsKey(key)) {
            List<Integer> there = queues.keySet().stream().filter(one -> one.topic.equals(topic)).map(Key::id).toList();
            throw new OptionException(option, there.isEmpty() ? "'" + topic + "' is not read"
                    : "the topic '" + topic + "' has no queue " + key.id + "; there are " + there);
        }
        if (into.put(key, value.asLong()) != null) {
            throw new OptionException(option, "the queue " + key.id + " of '" + topic
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
