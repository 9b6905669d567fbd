package cometmq.engine;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.OptionalLong;

/** A store that is open to read, also while another process writes. Any thread; close it. */
public final class Store implements AutoCloseable {
    /** A queue and its readable offsets: {@code low} to before {@code high}. */
    public record Queue(String topic, int id, long low, long high) {}

    private final long number;

    private Store(long number) {
        this.number = number;
    }

    /** Return why no store can be opened in this JVM, or null. */
    public static String unavailable() {
        return Native.unavailable();
    }

    /** Open; {@code batchTopics} are the topics whose queues are of inner batches. */
    public static Store open(String path, Collection<String> batchTopics) {
        if (unavailable() != null) {
            throw new UnsatisfiedLinkError(unavailable());
        }
        ByteArrayOutputStream topics = new ByteArrayOutputStream();
        for (String topic : batchTopics) {
            topics.writeBytes(utf8(topic));
            topics.write(0);
        }
        boolean extended = Files.isDirectory(Path.of(path, "consumequeue_ext"));
        return new Store(Native.openStore(utf8(path), topics.toByteArray(), extended));
    }

    /** Bring the view up to date and return every queue that ever had a message. */
    public List<Queue> queues() {
        ByteBuffer packed = ByteBuffer.wrap(Native.queues(number)).order(ByteOrder.LITTLE_ENDIAN);
        List<Queue> found = new ArrayList<>();
        while (packed.hasRemaining()) {
            byte[] topic = new byte[packed.getInt()];
            packed.get(topic);
            int id = packed.getInt();
            found.add(new Queue(new String(topic, StandardCharsets.UTF_8), id, packed.getLong(), packed.getLong()));
        }
        return found;
    }

    /** Fail where the log is damaged at its readable end, so that messages are missing behind it. */
    public void checkEnd() {
        Native.checkEnd(number);
    }

    /** Return the offset of a queue's first message stored at a time or later. */
    public long offsetAt(String topic, int queueId, long timeMs) {
        return Native.offsetAt(number, utf8(topic), queueId, timeMs);
    }

    /** Return when the message at an offset was stored, or nothing where none can be read there. */
    public OptionalLong storedMs(String topic, int queueId, long offset) {
        long stored = Native.storedMs(number, utf8(topic), queueId, offset);
        return stored == Long.MIN_VALUE ? OptionalLong.empty() : OptionalLong.of(stored);
    }

    /**
     * Check an SQL92 expression over properties.
     *
     * @throws EngineException.InvalidArgument it is none
     * @throws EngineException.LimitReached it is too long or too deep
     */
    public static void checkSelector(String expression) {
        Native.checkSelector(utf8(expression));
    }

    /** Return the mean bytes of a record in a range by samples; 0 where none can be read. */
    public double meanBytes(String topic, int queueId, long start, long end) {
        return Native.meanBytes(number, utf8(topic), queueId, start, end);
    }

    /** Open a scan. It stays usable when the store is closed. */
    public Scan scan(ScanRequest request) {
        return new Scan(Native.openScan(number, request.packed()));
    }

    @Override
    public void close() {
        Native.closeStore(number);
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
