package cometmq.engine;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;

/** The functions of bindings/jvm/cmq_jvm.c. Numbers stand for stores, scans and batches; a closed one is refused. */
final class Native {
    static final String LIBRARY_PROPERTY = "cometmq.native.library";

    private static final String NAME = "libcometmq_jvm.so";

    static {
        load();
    }

    private Native() {}

    static native long openStore(byte[] path, byte[] batchTopics, boolean extended);

    static native void closeStore(long store);

    static native void checkEnd(long store);

    static native byte[] queues(long store);

    static native double meanBytes(long store, byte[] topic, int queueId, long start, long end);

    static native long offsetAt(long store, byte[] topic, int queueId, long timeMs);

    static native long openScan(long store, byte[] request);

    static native void closeScan(long scan);

    static native long[] nextBatch(long scan);

    static native void releaseBatch(long batch);

    static native long[] skipped(long scan);

    static native long openHandles();

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
                Files.copy(packed, copy, StandardCopyOption.REPLACE_EXISTING);
                System.load(copy.toString());
            } finally {
                Files.deleteIfExists(copy);
            }
        } catch (IOException error) {
            UnsatisfiedLinkError failed = new UnsatisfiedLinkError(
                    "cannot unpack the native library into " + System.getProperty("java.io.tmpdir") + ": " + error);
            failed.initCause(error);
            throw failed;
        }
    }

    private static String platform() {
        String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        return System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-" + (machine.equals("x86_64") ? "amd64" : machine);
    }
}
