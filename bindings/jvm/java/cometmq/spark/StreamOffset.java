package cometmq.spark;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * A stream's offset, in the text of src/cometmq/spark/offsets.py, so that either engine reads the other's checkpoint:
 * {@code {"orders/0": 23, "orders/0@": 1700000000000}}, the next offset of each queue, and when the last message before
 * it was stored. By the latter a queue that was deleted and made again is known.
 */
final class StreamOffset extends Offset {
    private static final String MARK = "@";

    final Map<QueueKey, Long> position = new TreeMap<>();
    final Map<QueueKey, Long> marks = new TreeMap<>();
    private final String json;

    StreamOffset(Map<QueueKey, Long> position, Map<QueueKey, Long> marks) {
        this.position.putAll(position);
        this.marks.putAll(marks);
        StringBuilder text = new StringBuilder("{");
        this.position.forEach((key, offset) -> append(text, key.toString(), offset));
        this.marks.forEach((key, time) -> append(text, key + MARK, time));
        json = text.append('}').toString();
    }

    /** Read a checkpoint's text, which stays as it is. */
    StreamOffset(String json) {
        this.json = json;
        Topics.object(json, "checkpointLocation").properties().forEach(entry -> {
            String name = entry.getKey();
            boolean isMark = name.endsWith(MARK);
            String queue = isMark ? name.substring(0, name.length() - 1) : name;
            if (queue.indexOf('/') != queue.lastIndexOf('/')) {
                throw new OptionException("path", "the checkpoint's offsets were read with option nameServer: continue with "
                        + "that, or begin with a new checkpointLocation and startingOffsets");
            }
            (isMark ? marks : position).put(QueueKey.parsed(queue), entry.getValue().asLong());
        });
    }

    /** As Python's json.dumps writes it: equal positions have equal texts. */
    private static void append(StringBuilder text, String name, long value) {
        if (text.length() > 1) {
            text.append(", ");
        }
        text.append('"').append(name).append("\": ").append(value);
    }

    @Override
    public String json() {
        return json;
    }
}
