package cometmq.engine;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;

/**
 * The columns and messages of a scan. csrc/export/cmq_scan_request.h describes the packed form.
 *
 * @param columns the columns, at least one
 * @param ranges the messages
 * @param tags only messages with one of these tags; empty: all
 * @param keys only messages with one of these keys; empty: all
 * @param where only messages for whose properties this SQL92 expression is true; null: all
 * @param startMs earliest store time, or null
 * @param endMs store time to stop before, or null
 * @param batchRows most rows of a batch; 0: the engine's default
 * @param batchBytes most bytes of bodies that a batch copies; 0: the engine's default
 * @param limitRows most rows; 0: all
 * @param skipCorrupt pass over damaged records and count them
 */
public record ScanRequest(List<Column> columns, List<Range> ranges, List<String> tags, List<String> keys, String where,
        Long startMs, Long endMs, int batchRows, int batchBytes, long limitRows, boolean skipCorrupt) {
    /** A column: numbers of cmq_scan_kind and cmq_scan_form, and the property that it shows, or "". */
    public record Column(int kind, int form, String property) {}

    /** Messages of one queue: from {@code start} to before {@code end}. */
    public record Range(String topic, int queueId, long start, long end) implements Serializable {
        /** Return the number of offsets. */
        public long rows() {
            return end - start;
        }
    }

    private static final int VERSION = 2;
    private static final int SKIP_CORRUPT = 1;
    private static final int START_TIME = 2;
    private static final int END_TIME = 4;
    private static final int WHERE = 8;

    byte[] packed() {
        Output into = new Output();
        into.number(VERSION, 4);
        into.number(columns.size(), 4);
        for (Column column : columns) {
            into.number(column.kind(), 1);
            into.number(column.form(), 1);
            into.text(column.property());
        }
        into.number(ranges.size(), 4);
        for (Range range : ranges) {
            into.text(range.topic());
            into.number(range.queueId(), 4);
            into.number(range.start(), 8);
            into.number(range.end(), 8);
        }
        into.texts(tags);
        into.texts(keys);
        into.text(where != null ? where : "");
        into.number((skipCorrupt ? SKIP_CORRUPT : 0) | (startMs != null ? START_TIME : 0)
                | (endMs != null ? END_TIME : 0) | (where != null ? WHERE : 0), 1);
        into.number(startMs != null ? startMs : 0, 8);
        into.number(endMs != null ? endMs : 0, 8);
        into.number(batchRows, 4);
        into.number(batchBytes, 4);
        into.number(limitRows, 8);
        return into.bytes.toByteArray();
    }

    private static final class Output {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        void number(long value, int width) {
            byte[] packed = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(value).array();
            bytes.write(packed, 0, width);
        }

        void text(String text) {
            byte[] utf8 = Store.utf8(text);
            number(utf8.length, 4);
            bytes.writeBytes(utf8);
            bytes.write(0);
        }

        void texts(List<String> texts) {
            number(texts.size(), 4);
            texts.forEach(this::text);
        }
    }
}
