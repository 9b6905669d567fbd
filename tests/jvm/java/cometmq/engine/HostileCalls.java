package cometmq.engine;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Every native function with closed, foreign and invented numbers, null and malformed arguments: an exception each time,
 * never a crash. Arguments: a store with the topic "orders" of one queue, its number of messages. Its topic "packed" has
 * an LZ4 body behind messages without one; the codec's class is not in the class path.
 */
public final class HostileCalls {
    private static final ScanRequest.Column OFFSET = new ScanRequest.Column(2, 0, "");
    private static final ScanRequest.Column BODY = new ScanRequest.Column(3, 1, "");

    private HostileCalls() {}

    public static void main(String[] args) throws Exception {
        byte[] path = args[0].getBytes(StandardCharsets.UTF_8);
        long messages = Long.parseLong(args[1]);
        readsEverything(path, messages);
        closedNumbersAreRefused(path);
        inventedNumbersAreRefused(path);
        malformedRequestsAreRefused(path);
        oneCallAtATime(path, messages);
        codecsThatAreMissingFailTheCall(path);
        rowsToStageAreCheckedBytes(args[0] + ".rows");
        if (Native.openHandles() != 0) {
            throw new AssertionError(Native.openHandles() + " handles are left");
        }
        System.out.println("passed");
    }

    private static byte[] request(long end) {
        return request("orders", end);
    }

    private static byte[] request(String topic, long end) {
        return new ScanRequest(List.of(OFFSET, BODY), List.of(new ScanRequest.Range(topic, 0, 0, end)), List.of(),
                List.of(), null, null, null, 100, 0, 0, false).packed();
    }

    private static long rows(long scan) {
        long rows = 0;
        for (long[] batch = Native.nextBatch(scan); batch != null; batch = Native.nextBatch(scan)) {
            rows += batch.length > 0 ? batch[1] : 0;
            Native.releaseBatch(batch.length > 0 ? batch[0] : 0);
        }
        return rows;
    }

    private static void readsEverything(byte[] path, long messages) {
        long store = Native.openStore(path, new byte[0], false);
        long scan = Native.openScan(store, request(messages));
        Native.closeStore(store);
        expect(messages, rows(scan)); // a scan keeps its store
        Native.closeScan(scan);
    }

    private static void closedNumbersAreRefused(byte[] path) {
        long store = Native.openStore(path, new byte[0], false);
        long scan = Native.openScan(store, request(10));
        long batch = Native.nextBatch(scan)[0];
        Native.closeScan(scan);
        Native.closeStore(store);
        for (long number : new long[] {store, scan, batch, 0, -1, Long.MIN_VALUE, Long.MAX_VALUE, store + 1}) {
            refused(EngineException.StoreClosed.class, () -> Native.queues(number));
            refused(EngineException.StoreClosed.class, () -> Native.nextBatch(number));
            refused(EngineException.StoreClosed.class, () -> Native.skipped(number));
            refused(EngineException.StoreClosed.class, () -> Native.openScan(number, request(1)));
            refused(EngineException.StoreClosed.class, () -> Native.offsetAt(number, new byte[] {'a'}, 0, 0));
            refused(EngineException.StoreClosed.class, () -> Native.meanBytes(number, new byte[] {'a'}, 0, 0, 1));
            refused(EngineException.StoreClosed.class, () -> {
                Native.checkEnd(number);
                return null;
            });
            Native.closeStore(number);
            Native.closeScan(number);
        }
        Native.releaseBatch(batch);
        Native.releaseBatch(batch);
    }

    private static void inventedNumbersAreRefused(byte[] path) {
        long store = Native.openStore(path, new byte[0], false);
        refused(EngineException.StoreClosed.class, () -> Native.nextBatch(store));
        Native.closeScan(store);
        Native.releaseBatch(store);
        Native.queues(store);
        refused(EngineException.InvalidArgument.class, () -> Native.openScan(store, null));
        refused(EngineException.InvalidArgument.class, () -> Native.offsetAt(store, null, 0, 0));
        refused(EngineException.InvalidArgument.class, () -> Native.meanBytes(store, new byte[] {'a', 0}, 0, 0, 1));
        refused(EngineException.class, () -> Native.offsetAt(store, new byte[] {'n'}, -1, 0));
        refused(EngineException.InvalidArgument.class, () -> Native.openStore(null, new byte[0], false));
        refused(EngineException.InvalidArgument.class, () -> Native.openStore(path, null, false));
        refused(EngineException.class, () -> Native.openStore("/nowhere/at/all".getBytes(StandardCharsets.UTF_8),
                new byte[0], false));
        expect(0, (long) Native.meanBytes(store, new byte[] {'n'}, 7, -5, Long.MAX_VALUE));
        Native.closeStore(store);
    }

    private static void malformedRequestsAreRefused(byte[] path) {
        long store = Native.openStore(path, new byte[0], false);
        byte[] whole = request(10);
        for (int bytes = 0; bytes < whole.length; bytes++) {
            byte[] cut = Arrays.copyOf(whole, bytes);
            refused(EngineException.class, () -> Native.openScan(store, cut));
        }
        refused(EngineException.class, () -> Native.openScan(store, Arrays.copyOf(whole, whole.length + 1)));
        Random random = new Random(20);
        for (int round = 0; round < 5000; round++) {
            byte[] changed = whole.clone();
            changed[random.nextInt(changed.length)] = (byte) random.nextInt(256);
            try {
                long scan = Native.openScan(store, changed);
                rows(scan);
                Native.closeScan(scan);
            } catch (EngineException error) {
                continue; // most of them are refused
            }
        }
        Native.closeStore(store);
    }

    /** Two threads in one scan: each row comes once, and a call beside another is refused. */
    private static void oneCallAtATime(byte[] path, long messages) throws Exception {
        long store = Native.openStore(path, new byte[0], false);
        long scan = Native.openScan(store, request(messages));
        AtomicInteger found = new AtomicInteger();
        CyclicBarrier start = new CyclicBarrier(2);
        Thread[] threads = new Thread[2];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                try {
                    start.await();
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                for (;;) {
                    try {
                        long[] batch = Native.nextBatch(scan);
                        if (batch == null) {
                            return;
                        }
                        found.addAndGet((int) batch[1]);
                        Native.releaseBatch(batch[0]);
                    } catch (EngineException.InvalidArgument error) {
                        Thread.yield(); // the other thread is inside
                    }
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        expect(messages, found.get());
        Native.closeStore(store);
        Native.closeScan(scan);
    }

    /** Its error is pending when the engine has rows to give: nothing of JNI is called then, and no handle is left. */
    private static void codecsThatAreMissingFailTheCall(byte[] path) {
        long store = Native.openStore(path, new byte[0], false);
        long scan = Native.openScan(store, request("packed", 5));
        try {
            Native.nextBatch(scan);
            throw new AssertionError("a missing codec failed nothing");
        } catch (NoClassDefFoundError error) {
            expect(2, Native.openHandles());
        }
        Native.closeScan(scan);
        Native.closeStore(store);
    }

    /** Rows are bytes that anybody may give: refused or taken, and the file is whole or removed. */
    private static void rowsToStageAreCheckedBytes(String file) {
        byte[] path = file.getBytes(StandardCharsets.UTF_8);
        byte[] kinds = {0, 2};
        refused(EngineException.InvalidArgument.class, () -> Native.openRows(null, kinds, 1, true));
        refused(EngineException.InvalidArgument.class, () -> Native.openRows(path, null, 1, true));
        refused(EngineException.InvalidArgument.class, () -> Native.openRows(path, new byte[] {0, -1}, 1, true));
        refused(EngineException.NotFound.class, () -> Native.openRows("/nowhere/at/all".getBytes(StandardCharsets.UTF_8),
                kinds, 1, true));
        // Length, nulls (the tag is one), the body's word, the tag's.
        byte[] whole = java.nio.ByteBuffer.allocate(40).order(java.nio.ByteOrder.LITTLE_ENDIAN).putLong(32).putLong(2)
                .putLong(24L << 32 | 3).putLong(0).put(new byte[] {'a', 'b', 'c'}).array();
        Random random = new Random(20);
        for (int round = 0; round < 2000; round++) {
            long rows = Native.openRows(path, kinds, 100, true);
            byte[] changed = whole.clone();
            changed[random.nextInt(changed.length)] = (byte) random.nextInt(256);
            int bytes = random.nextInt(4) == 0 ? random.nextInt(42) - 1 : changed.length;
            try {
                Native.addRows(rows, changed, bytes);
            } catch (EngineException error) {
                // Many of them are refused; nothing of a part of a row stays.
                if (bytes >= 0 && bytes <= changed.length) {
                    refused(EngineException.StoreClosed.class, () -> Native.finishRows(rows));
                }
                Native.closeRows(rows);
                continue;
            }
            Native.finishRows(rows);
            Native.closeRows(rows);
            new java.io.File(file).delete();
        }
        expect(0, new java.io.File(file).exists() ? 1 : 0);
        long rows = Native.openRows(path, kinds, 100, true);
        refused(EngineException.StoreClosed.class, () -> Native.nextBatch(rows));
        Native.addRows(rows, whole, whole.length);
        expect(1, Native.finishRows(rows)[0]);
        refused(EngineException.StoreClosed.class, () -> Native.finishRows(rows));
        Native.closeRows(rows);
        Native.closeRows(rows);
        for (long number : new long[] {rows, 0, -1, Long.MIN_VALUE, Long.MAX_VALUE}) {
            refused(EngineException.StoreClosed.class, () -> Native.finishRows(number));
            refused(EngineException.StoreClosed.class, () -> {
                Native.addRows(number, whole, whole.length);
                return null;
            });
        }
        long open = Native.openRows((file + "2").getBytes(StandardCharsets.UTF_8), kinds, 100, true);
        refused(EngineException.InvalidArgument.class, () -> {
            Native.addRows(open, null, 0);
            return null;
        });
        Native.closeRows(open);
        expect(0, new java.io.File(file + "2").exists() ? 1 : 0);
    }

    private static void expect(long wanted, long found) {
        if (wanted != found) {
            throw new AssertionError("expected " + wanted + ", found " + found);
        }
    }

    private static void refused(Class<? extends EngineException> kind, Callable<?> call) {
        try {
            call.call();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return;
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", found " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", but the call returned");
    }
}
