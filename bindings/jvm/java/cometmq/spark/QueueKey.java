package cometmq.spark;

import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;

/** A queue, ordered as ranges are read. */
record QueueKey(String topic, int id) implements Comparable<QueueKey> {
    private static final int LISTED = 5;

    /** Return the key that {@link #toString()} wrote. */
    static QueueKey parsed(String text) {
        int slash = text.lastIndexOf('/');
        return new QueueKey(text.substring(0, slash), Integer.parseInt(text.substring(slash + 1)));
    }

    @Override
    public int compareTo(QueueKey other) {
        int order = topic.compareTo(other.topic);
        return order != 0 ? order : Integer.compare(id, other.id);
    }

    /** Name the queue as a stream's offset does. */
    @Override
    public String toString() {
        return topic + "/" + id;
    }

    /** Name it in a sentence. */
    String named() {
        return "queue " + id + " of '" + topic + "'";
    }

    /** Name several. */
    static String listed(Collection<QueueKey> keys) {
        List<String> names = keys.stream().sorted().map(QueueKey::toString).toList();
        return names.stream().limit(LISTED).collect(Collectors.joining(", "))
                + (names.size() > LISTED ? " and " + (names.size() - LISTED) + " more" : "");
    }
}
