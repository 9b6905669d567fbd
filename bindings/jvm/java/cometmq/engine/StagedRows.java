package cometmq.engine;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * A staged file under way: rows go in, are checked and encoded by the engine, and stay if the file is finished. One
 * thread; close it.
 */
public final class StagedRows implements AutoCloseable {
    /** A finished file: its rows, 0 where there is no file, its bytes and zlib's checksum of them. */
    public record Finished(long rows, long bytes, long crc32) {}

    private static final int LENGTH_BYTES = 8;
    private static final int BUFFER_BYTES = 256 << 10;

    private final long number;
    private byte[] buffer = new byte[BUFFER_BYTES];
    private int used;

    private StagedRows(long number) {
        this.number = number;
    }

    /**
     * Make a file.
     *
     * @param kinds a number of cmq_spark_kind for each column of the rows
     * @param hasTopic rows without a topic have a default one
     */
    public static StagedRows create(String path, byte[] kinds, int bodyBytesMax, boolean hasTopic) {
        return new StagedRows(Native.openRows(Store.utf8(path), kinds, bodyBytesMax, hasTopic));
    }

    /** Add a row. Its values may be refused by this call or by a later one. */
    public void add(UnsafeRow row) {
        int bytes = row.getSizeInBytes();
        if (bytes > buffer.length - used - LENGTH_BYTES) {
            send();
            if (bytes > buffer.length - LENGTH_BYTES) {
                buffer = new byte[Math.addExact(bytes, LENGTH_BYTES)];
            }
        }
        Platform.putLong(buffer, Platform.BYTE_ARRAY_OFFSET + used, bytes);
        row.writeToMemory(buffer, Platform.BYTE_ARRAY_OFFSET + used + LENGTH_BYTES);
        used += LENGTH_BYTES + bytes;
    }

    private void send() {
        Native.addRows(number, buffer, used);
        used = 0;
    }

    /** Write the remaining rows, and sync the file. */
    public Finished finish() {
        send();
        long[] found = Native.finishRows(number);
        return new Finished(found[0], found[1], found[2]);
    }

    /** Remove the file, unless it is finished and has rows. */
    @Override
    public void close() {
        Native.closeRows(number);
        buffer = new byte[0];
    }
}
