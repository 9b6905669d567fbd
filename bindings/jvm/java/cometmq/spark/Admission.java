package cometmq.spark;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** How many of the new messages a micro-batch takes from each queue; as src/cometmq/spark/admission.py. */
final class Admission {
    /** Mean bytes of a queue's messages between two offsets. */
    interface RowBytes {
        double of(QueueKey key, long start, long end);
    }

    private Admission() {}

    /** Return the messages that wait in each queue, where some do. */
    static Map<QueueKey, Long> waiting(Map<QueueKey, Long> start, Map<QueueKey, Long> end) {
        Map<QueueKey, Long> found = new TreeMap<>();
        end.forEach((key, high) -> {
            long rows = high - start.getOrDefault(key, 0L);
            if (rows > 0) {
                found.put(key, rows);
            }
        });
        return found;
    }

    static long sum(Map<QueueKey, Long> rows) {
        return rows.values().stream().mapToLong(Long::longValue).sum();
    }

    /**
     * Return an end at most {@code most} messages behind {@code start}, in proportion to the waiting messages of each
     * queue. Every queue in which some wait advances, as long as the limit allows, and else those whose turn it is.
     */
    static Map<QueueKey, Long> limitRows(Map<QueueKey, Long> start, Map<QueueKey, Long> end, long most) {
        Map<QueueKey, Long> waiting = waiting(start, end);
        long total = sum(waiting);
        if (total <= most) {
            return end;
        }
        Map<QueueKey, Long> shares = new TreeMap<>();
        if (waiting.size() >= most) {
            List<QueueKey> keys = new ArrayList<>(waiting.keySet());
            int turn = 0;
            for (long offset : start.values()) {
                turn = (int) ((turn + offset) % keys.size());
            }
            for (int i = 0; i < most; i++) {
                shares.put(keys.get((turn + i) % keys.size()), 1L);
            }
        } else {
            waiting.forEach((key, rows) -> shares.put(key, Math.max(1, BigInteger.valueOf(rows)
                    .multiply(BigInteger.valueOf(most)).divide(BigInteger.valueOf(total)).longValueExact())));
            fit(shares, waiting, most);
        }
        Map<QueueKey, Long> found = new TreeMap<>(end);
        waiting.forEach((key, rows) -> found.put(key, start.getOrDefault(key, 0L) + shares.getOrDefault(key, 0L)));
        return found;
    }

    /** Bring the sum of the shares to {@code most}, beginning with the fullest queues. */
    private static void fit(Map<QueueKey, Long> shares, Map<QueueKey, Long> waiting, long most) {
        List<QueueKey> keys = new ArrayList<>(waiting.keySet());
        keys.sort(Comparator.comparing((QueueKey key) -> -waiting.get(key)).thenComparing(Comparator.naturalOrder()));
        long spare = most - sum(shares);
        for (QueueKey key : keys) {
            long share = shares.get(key);
            long change = spare > 0 ? Math.min(spare, waiting.get(key) - share) : -Math.min(-spare, share - 1);
            shares.put(key, share + change);
            spare -= change;
        }
    }

    /** Return an end about {@code most} bytes behind {@code start}, at least one message. */
    static Map<QueueKey, Long> limitBytes(Map<QueueKey, Long> start, Map<QueueKey, Long> end, long most,
            RowBytes rowBytes) {
        Map<QueueKey, Long> waiting = waiting(start, end);
        double total = 0;
        for (Map.Entry<QueueKey, Long> one : waiting.entrySet()) {
            QueueKey key = one.getKey();
            total += one.getValue() * Math.max(1, rowBytes.of(key, start.getOrDefault(key, 0L), end.get(key)));
        }
        if (total <= most) {
            return end;
        }
        return limitRows(start, end, Math.max(1, (long) ((double) sum(waiting) * most / total)));
    }
}
