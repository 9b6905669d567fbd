package cometmq.engine;

/** Rows as Arrow arrays in the engine's memory. Their addresses are valid until {@link #close()}. */
public final class Batch implements AutoCloseable {
    /** An array: addresses of its buffers in Arrow's order (0: none), and its children. */
    public record Array(long nullCount, long[] buffers, Array[] children) {}

    private final long number;
    private final int rows;
    private final Array root;

    Batch(long[] numbers) {
        number = numbers[0];
        rows = Math.toIntExact(numbers[1]);
        root = new Cursor(numbers, 2).array();
    }

    /** Return the number of rows. */
    public int rows() {
        return rows;
    }

    /** Return a column's array. */
    public Array column(int at) {
        return root.children()[at];
    }

    @Override
    public void close() {
        Native.releaseBatch(number);
    }

    private static final class Cursor {
        private final long[] numbers;
        private int at;

        Cursor(long[] numbers, int at) {
            this.numbers = numbers;
            this.at = at;
        }

        Array array() {
            long nullCount = numbers[at++];
            long[] buffers = new long[(int) numbers[at++]];
            for (int i = 0; i < buffers.length; i++) {
                buffers[i] = numbers[at++];
            }
            Array[] children = new Array[(int) numbers[at++]];
            for (int i = 0; i < children.length; i++) {
                children[i] = array();
            }
            return new Array(nullCount, buffers, children);
        }
    }
}
