package cometmq.engine;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/** The functions of bindings/jvm/cmq_jvm.c. Numbers stand for stores, scans, batches and rows to stage; a closed one is refused. */
final class Native {
    static final String LIBRARY_PROPERTY = "cometmq.native.library";

    private static final String NAME = "libcometmq_jvm.so";

    private static final String UNAVAILABLE = tryToLoad();

    private Native() {}

    /** Return why the library cannot be loaded, or null where it was. */
    static String unavailable() {
        return UNAVAILABLE;
    }

    static native long openStore(byte[] path, byte[] batchTopics, boolean extended);

    static native void closeStore(long store);

    static native void checkEnd(long store);

    static native byte[] queues(long store);

    static native double meanBytes(long store, byte[] topic, int queueId, long start, long end);

    static native long offsetAt(long store, byte[] topic, int queueId, long timeMs);

    static native long storedMs(long store, byte[] topic, int queueId, long offset);

    static native void checkSelector(byte[] expression);

    static native long openScan(long store, byte[] request);

    static native void closeScan(long scan);

    static native long[] nextBatch(long scan);

    static native void releaseBatch(long batch);

    static native long[] skipped(long scan);

    static native ByteBuffer lostPages();

    static native void checkRead(long address, long bytes);

    static native long openRows(byte[] path, byte[] kinds, int bodyBytesMax, boolean hasTopic);

    static native void addRows(long rows, byte[] packed, int bytes);

    static native long[] finishRows(long rows);

    static native void closeRows(long rows);

    static native long openHandles();

    private static String tryToLoad() {
        try {
            load();
            return null;
        } catch (UnsatisfiedLinkError | SecurityException error) {
            return "the native library cannot be loaded: " + error.getMessage() + "; it is unpacked into java.io.tmpdir ("
                    + System.getProperty("java.io.tmpdir") + "), which must allow programs, unless the system property "
                    + LIBRARY_PROPERTY + " names it";
        }
    }

    /** The library beside the classes in the jar, or the file that the system property names. */
    private static void load() {
        String given = System.getProperty(LIBRARY_PROPERTY);
        if (given != null) {
            System.load(given);
            return;
        }
        String resource = "/cometmq/native/" + platform() + "/" + NAME;
        try (InputStream packed = Native.class.getResourceAsStream(resource)) {
            if (packed == null) {
                throw new UnsatisfiedLinkError("the jar has no native library for " + platform() + " (" + resource + ")");
            }
            // Each class loader loads a file of its own: the JVM refuses one file in two of them.
            Path copy = Files.createTempFile("cometmq", ".so");
            try {
                // Into the file that was made, whose mode lets nobody else write to it.
                try (OutputStream unpacked = Files.newOutputStream(copy)) {
                    packed.transferTo(unpacked);
                }
                System.load(copy.toString());
            } finally {
                Files.deleteIfExists(copy);
            }
        } catch (IOException error) {
            throw new UnsatisfiedLinkError(error.toString());
        }
    }

    private static String platform() {
        String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        return System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-" + (machine.equals("x86_64") ? "amd64" : machine);
    }
}
