package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * A store as a stream; as src/cometmq/spark/stream.py, whose checkpoints it continues. The rows of a range are the same
 * each time: messages that expired in between are a reported loss. Nothing is kept that a restart would miss.
 */
final class CometMQStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private static final long NANOS_PER_MS = 1_000_000;

    private final ReadOptions options;
    private final ReadPlan plan;
    private final FirstOffset first;
    private final LossPolicy loss;
    private Catalog catalog;
    private Map<QueueKey, Long> target; // the end of a run up to "available now"
    private long advancedAt = System.nanoTime();

    CometMQStream(ReadOptions options, ReadPlan plan, String checkpoint) {
        this.options = options;
        this.plan = plan;
        first = new FirstOffset(checkpoint);
        loss = new LossPolicy(options.failOnDataLoss);
    }

    @Override
    public Offset initialOffset() {
        return first.get(() -> new StreamOffset(opened().starts(opened().selected(true), Catalog.LATEST), Map.of()));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new StreamOffset(json);
    }

    /** Say that there are limits; {@link #latestOffset(Offset, ReadLimit)} applies all of them. */
    @Override
    public ReadLimit getDefaultReadLimit() {
        if (options.maxOffsetsPerTrigger != null) {
            return ReadLimit.maxRows(options.maxOffsetsPerTrigger);
        }
        if (options.maxBytesPerTrigger != null) {
            return ReadLimit.maxBytes(options.maxBytesPerTrigger);
        }
        return options.minOffsetsPerTrigger == null ? ReadLimit.allAvailable()
                : ReadLimit.minRows(options.minOffsetsPerTrigger, options.maxTriggerDelayMs);
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        target = highs(queues(null));
    }

    @Override
    public Offset reportLatestOffset() {
        return new StreamOffset(highs(queues(null)), Map.of());
    }

    private static Map<QueueKey, Long> highs(Map<QueueKey, Catalog.Ends> queues) {
        Map<QueueKey, Long> found = new TreeMap<>();
        queues.forEach((key, ends) -> found.put(key, ends.high()));
        return found;
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        StreamOffset begin = (StreamOffset) start;
        Set<QueueKey> restarted = new HashSet<>();
        Map<QueueKey, Catalog.Ends> queues = queues(begin.position.keySet());
        Map<QueueKey, Long> whole = ends(begin, queues, restarted);
        Map<QueueKey, Long> end = limit instanceof ReadAllAvailable ? whole : limited(begin.position, whole, limit);
        restarted.removeIf(key -> !end.get(key).equals(whole.get(key)));
        if (end.equals(begin.position) && restarted.isEmpty()) {
            opened().checkEnd();
            return start;
        }
        advancedAt = System.nanoTime();
        return new StreamOffset(end, marks(begin, end, queues, restarted));
    }

    /** Return the marks of an end. Queues that did not move keep theirs, except restarted ones. */
    private Map<QueueKey, Long> marks(StreamOffset begin, Map<QueueKey, Long> end, Map<QueueKey, Catalog.Ends> queues,
            Set<QueueKey> restarted) {
        Map<QueueKey, Long> marks = new TreeMap<>();
        end.forEach((key, high) -> {
            boolean unmoved = high.equals(begin.position.get(key)) && begin.marks.containsKey(key)
                    && !restarted.contains(key);
            if (unmoved) {
                marks.put(key, begin.marks.get(key));
            } else if (high > 0) {
                OptionalLong stored = opened().storedMs(key, high - 1);
                boolean isExpired = queues.containsKey(key) && high <= queues.get(key).low();
                if (stored.isPresent()) {
                    marks.put(key, stored.getAsLong());
                } else if (isExpired) {
                    // Any time before those of a topic that is made again shows the other life.
                    marks.put(key, begin.marks.getOrDefault(key, 0L));
                }
            }
        });
        return marks;
    }

    /**
     * Return where reading continues in a queue whose messages are not those that were read, or null where they are. The
     * queue was deleted and made again: all its messages are younger than the last one read. Or it was cut: those that
     * are younger, if any, came since.
     */
    private Long resumed(QueueKey key, long position, Long mark, Catalog.Ends ends) {
        if (position <= ends.low()) {
            return null; // nothing was read, or the messages read have expired
        }
        if (position > ends.high()) {
            if (mark == null) {
                return ends.high(); // nothing distinguishes them
            }
        } else if (mark == null || isStoredAt(key, position - 1, mark)) {
            return null;
        }
        if (ends.low() == ends.high()) {
            return ends.high();
        }
        // In one millisecond with the mark there may be messages of both; where the first one is not older, all are new.
        long first = opened().offsetAt(key, mark);
        return Math.min(first <= ends.low() ? ends.low() : opened().offsetAt(key, mark + 1), ends.high());
    }

    /** Return whether a message has the mark; true also where it cannot be read. */
    private boolean isStoredAt(QueueKey key, long offset, long mark) {
        OptionalLong stored = opened().storedMs(key, offset);
        return stored.isEmpty() || stored.getAsLong() == mark;
    }

    private static String otherQueue(QueueKey key, long position, Catalog.Ends ends) {
        return "the stream has read " + key.named() + " up to " + position + ", " + (position > ends.high()
                ? "and it ends at " + ends.high() + ": the topic was deleted and made again, or the store was cut"
                : "and another message lies there now: the topic was deleted and made again");
    }

    /**
     * Return the end of every queue, including queues that were read and no longer exist. Add queues whose reading
     * restarts, because the topic was re-created or the log was cut, to {@code restarted}.
     */
    private Map<QueueKey, Long> ends(StreamOffset begin, Map<QueueKey, Catalog.Ends> queues, Set<QueueKey> restarted) {
        Map<QueueKey, Long> end = new TreeMap<>();
        queues.forEach((key, ends) -> {
            long at = begin.position.getOrDefault(key, 0L);
            Long again = resumed(key, at, begin.marks.get(key), ends);
            long high = target == null ? ends.high() : Math.min(ends.high(), target.getOrDefault(key, at));
            if (again != null) {
                loss.lost(otherQueue(key, at, ends));
                restarted.add(key);
                end.put(key, Math.max(high, again));
            } else if (target == null || target.containsKey(key) || begin.position.containsKey(key)) {
                end.put(key, Math.max(high, at));
            }
        });
        Set<QueueKey> gone = new TreeSet<>(begin.position.keySet());
        gone.removeAll(queues.keySet());
        if (!gone.isEmpty()) {
            loss.lost("the stream has read " + QueueKey.listed(gone) + ", which the store or the options have no more");
            gone.forEach(key -> end.put(key, begin.position.get(key)));
        }
        return end;
    }

    private Map<QueueKey, Long> limited(Map<QueueKey, Long> begin, Map<QueueKey, Long> end, ReadLimit limit) {
        long rows = Admission.sum(Admission.waiting(begin, end));
        Long least = limit instanceof ReadMinRows min ? Long.valueOf(min.minRows()) : options.minOffsetsPerTrigger;
        long waitedMs = (System.nanoTime() - advancedAt) / NANOS_PER_MS;
        // Up to a target nothing comes any more that could be waited for.
        if (least != null && rows < least && waitedMs < options.maxTriggerDelayMs && target == null) {
            return begin;
        }
        Long mostRows = limit instanceof ReadMaxRows max ? Long.valueOf(max.maxRows()) : options.maxOffsetsPerTrigger;
        Long mostBytes = limit instanceof ReadMaxBytes max ? Long.valueOf(max.maxBytes()) : options.maxBytesPerTrigger;
        Map<QueueKey, Long> found = mostRows == null ? end : Admission.limitRows(begin, end, mostRows);
        return mostBytes == null ? found : Admission.limitBytes(begin, found, mostBytes, opened()::rowBytes);
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        StreamOffset begin = (StreamOffset) start;
        StreamOffset stop = (StreamOffset) end;
        Map<QueueKey, Catalog.Ends> queues = queues(stop.position.keySet());
        List<Range> ranges = new ArrayList<>();
        stop.position.forEach((key, planned) -> {
            long low = begin.position.getOrDefault(key, 0L);
            long high = planned;
            Catalog.Ends ends = queues.getOrDefault(key, new Catalog.Ends(0, 0));
            Long mark = stop.marks.get(key);
            Long changed = queues.containsKey(key) ? resumed(key, high, mark, ends) : null;
            if (changed != null && mark != null) {
                // The messages from there on are the next micro-batch's, which notices it, too.
                loss.lost(otherQueue(key, high, ends)
                        + "; it was so after the micro-batch was planned, which lacks messages");
                high = changed;
            }
            Long again = queues.containsKey(key) ? resumed(key, low, begin.marks.get(key), ends) : null;
            if (again != null && begin.marks.containsKey(key)) {
                low = again; // noticed and reported when the end was looked up
            }
            if (low < high) {
                Range there = there(key, low, high, ends);
                if (there.rows() > 0) {
                    ranges.add(there);
                }
            }
        });
        return Tasks.of(opened().sized(ranges), options, false);
    }

    private Range there(QueueKey key, long low, long high, Catalog.Ends ends) {
        long start = Math.min(Math.max(low, ends.low()), high);
        long end = Math.min(high, ends.high());
        if (start != low || end != high) {
            loss.lost("the messages " + low + " to " + (high - 1) + " of " + key.named()
                    + " are not all there any more: the queue has " + ends.low() + " to " + ends.high());
        }
        return new Range(key.topic(), key.id(), start, Math.max(start, end));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Tasks.ReaderFactory(plan.withBatchTopics(opened().batchTopics()));
    }

    @Override
    public void commit(Offset end) {
        // The checkpoint alone says how far the stream has come; streams with commitOffsets are Python's.
    }

    @Override
    public void stop() {
        if (catalog != null) {
            catalog.close();
            catalog = null;
        }
    }

    private Catalog opened() {
        if (catalog == null) {
            catalog = new Catalog(options);
        }
        return catalog;
    }

    /**
     * Return the queues as they are now; new ones, and new topics that match a pattern, are among them.
     *
     * @param known queues that the stream has read. Their topics may be gone, which the caller reports; others must exist
     *         unless losses are allowed. Null: all may be gone.
     */
    private Map<QueueKey, Catalog.Ends> queues(Set<QueueKey> known) {
        opened().refresh();
        if (known != null && options.failOnDataLoss) {
            Set<String> missing = new HashSet<>(options.topics);
            missing.removeAll(opened().names());
            known.forEach(key -> missing.remove(key.topic()));
            if (!missing.isEmpty()) {
                opened().selected(true); // fails, and names it
            }
        }
        return opened().selected(false);
    }
}
