package cometmq.engine;

/** Lets tests of other packages count what the native library holds. */
public final class Handles {
    private Handles() {}

    public static long open() {
        return Native.openHandles();
    }
}
