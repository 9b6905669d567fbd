package cometmq.engine;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Rows as Arrow arrays in the engine's memory. Their addresses are valid until {@link #close()}, which belongs to the
 * thread that reads them. Another thread forgets the batch instead: it ends with the last reference to it.
 */
public final class Batch implements AutoCloseable {
    /** An array: addresses of its buffers in Arrow's order (0: none), and its children. */
    public record Array(long nullCount, long[] buffers, Array[] children) {}

    private static final Cleaner CLEANER = Cleaner.create();
    private static final VarHandle WORD =
            MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.nativeOrder());
    private static final ByteBuffer LOST_PAGES = Native.lostPages().order(ByteOrder.nativeOrder());

    private final Cleaner.Cleanable released;
    private final int rows;
    private final Array root;

    Batch(long[] numbers) {
        long number = numbers[0];
        rows = Math.toIntExact(numbers[1]);
        root = new Cursor(numbers, 2).array();
        released = CLEANER.register(this, () -> Native.releaseBatch(number));
    }

    /** Return the number of rows. */
    public int rows() {
        return rows;
    }

    /** Return a column's array. */
    public Array column(int at) {
        return root.children()[at];
    }

    /**
     * Fail where bytes that were copied from a batch are not the log's: its page was lost before, and has zeros.
     *
     * @throws EngineException.CorruptRecord it was
     */
    public static void checkRead(long address, int bytes) {
        if ((int) WORD.getAcquire(LOST_PAGES, 0) != 0) {
            Native.checkRead(address, bytes);
        }
    }

    @Override
    public void close() {
        released.clean();
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
