package cometmq.engine;

/** Messages as batches of columns. One thread at a time; close it. Batches are closed by their receiver. */
public final class Scan implements AutoCloseable {
    /** Messages that were not returned as stored. {@code offsets}: physical offsets of the first damaged records. */
    public record Skipped(long records, long invalidTexts, long clampedTimes, long expired, long[] offsets) {}

    private static final int COUNTS = 4;

    private final long number;

    Scan(long number) {
        this.number = number;
    }

    /**
     * Return the next batch, or null at the end.
     *
     * @param between called where filters or a search for keys take long, to stop the scan by an exception
     */
    public Batch next(Runnable between) {
        for (;;) {
            long[] numbers = Native.nextBatch(number);
            if (numbers == null) {
                return null;
            }
            if (numbers.length > 0) {
                return new Batch(numbers);
            }
            if (Thread.currentThread().isInterrupted()) {
                throw new IllegalStateException("the scan was interrupted");
            }
            between.run();
        }
    }

    /** Return the counts of records skipped and values changed so far. */
    public Skipped skipped() {
        long[] counts = Native.skipped(number);
        long[] offsets = java.util.Arrays.copyOfRange(counts, COUNTS, counts.length);
        return new Skipped(counts[0], counts[1], counts[2], counts[3], offsets);
    }

    @Override
    public void close() {
        Native.closeScan(number);
    }
}
