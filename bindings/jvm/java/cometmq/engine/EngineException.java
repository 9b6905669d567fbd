package cometmq.engine;

import java.nio.charset.StandardCharsets;

/** A failure of the engine: one subclass for each status of csrc/base/cmq_status.h. */
public class EngineException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final long offset;

    EngineException(String text, long offset) {
        super(text);
        this.offset = offset;
    }

    /** Return the byte offset that the failure is about, or -1. */
    public long offset() {
        return offset;
    }

    /** Make the exception of a status; the native library calls it. */
    static EngineException of(int status, long offset, byte[] utf8) {
        String text = new String(utf8, StandardCharsets.UTF_8);
        switch (status) {
            case -10: return new InvalidArgument(text, offset);
            case -11: return new TopicInvalid(text, offset);
            case -12: return new TooLarge(text, offset);
            case -13: return new NotFound(text, offset);
            case -14: return new OffsetOutOfRange(text, offset);
            case -15: return new CorruptRecord(text, offset);
            case -16: return new NotAStore(text, offset);
            case -17: return new SettingNeeded(text, offset);
            case -18: return new SettingConflict(text, offset);
            case -30: return new StoreIOError(text, offset);
            case -31: return new DiskFull(text, offset);
            case -32: return new StoreLocked(text, offset);
            case -33: return new StoreClosed(text, offset);
            case -34: return new StoreFenced(text, offset);
            case -35: return new ReadOnlyStore(text, offset);
            case -36: return new NoMemory(text, offset);
            case -37: return new PermissionRefused(text, offset);
            case -38: return new LimitReached(text, offset);
            default: return new EngineException("status " + status + ": " + text, offset);
        }
    }

    /** A value outside its documented range. */
    public static final class InvalidArgument extends EngineException {
        private static final long serialVersionUID = 1;

        InvalidArgument(String text, long offset) {
            super(text, offset);
        }
    }

    /** A topic name that RocketMQ would refuse. */
    public static final class TopicInvalid extends EngineException {
        private static final long serialVersionUID = 1;

        TopicInvalid(String text, long offset) {
            super(text, offset);
        }
    }

    /** A body, properties or record over their limit. */
    public static final class TooLarge extends EngineException {
        private static final long serialVersionUID = 1;

        TooLarge(String text, long offset) {
            super(text, offset);
        }
    }

    /** No such topic, queue, message or file. */
    public static final class NotFound extends EngineException {
        private static final long serialVersionUID = 1;

        NotFound(String text, long offset) {
            super(text, offset);
        }
    }

    /** An offset outside its queue or log. */
    public static final class OffsetOutOfRange extends EngineException {
        private static final long serialVersionUID = 1;

        OffsetOutOfRange(String text, long offset) {
            super(text, offset);
        }
    }

    /** Bytes that no whole record, unit or header can be. */
    public static final class CorruptRecord extends EngineException {
        private static final long serialVersionUID = 1;

        CorruptRecord(String text, long offset) {
            super(text, offset);
        }
    }

    /** The directory is not a store, or has foreign or newer files inside. */
    public static final class NotAStore extends EngineException {
        private static final long serialVersionUID = 1;

        NotAStore(String text, long offset) {
            super(text, offset);
        }
    }

    /** The directory does not show a size; the text names the setting to give. */
    public static final class SettingNeeded extends EngineException {
        private static final long serialVersionUID = 1;

        SettingNeeded(String text, long offset) {
            super(text, offset);
        }
    }

    /** A setting that contradicts the files. */
    public static final class SettingConflict extends EngineException {
        private static final long serialVersionUID = 1;

        SettingConflict(String text, long offset) {
            super(text, offset);
        }
    }

    /** A system call failed. */
    public static final class StoreIOError extends EngineException {
        private static final long serialVersionUID = 1;

        StoreIOError(String text, long offset) {
            super(text, offset);
        }
    }

    /** No space on the disk. */
    public static final class DiskFull extends EngineException {
        private static final long serialVersionUID = 1;

        DiskFull(String text, long offset) {
            super(text, offset);
        }
    }

    /** Another process is the store's writer. */
    public static final class StoreLocked extends EngineException {
        private static final long serialVersionUID = 1;

        StoreLocked(String text, long offset) {
            super(text, offset);
        }
    }

    /** The store, scan or batch was closed. */
    public static final class StoreClosed extends EngineException {
        private static final long serialVersionUID = 1;

        StoreClosed(String text, long offset) {
            super(text, offset);
        }
    }

    /** A write failed; only reads are answered. */
    public static final class StoreFenced extends EngineException {
        private static final long serialVersionUID = 1;

        StoreFenced(String text, long offset) {
            super(text, offset);
        }
    }

    /** The store was opened to read. */
    public static final class ReadOnlyStore extends EngineException {
        private static final long serialVersionUID = 1;

        ReadOnlyStore(String text, long offset) {
            super(text, offset);
        }
    }

    /** No memory outside of the heap. */
    public static final class NoMemory extends EngineException {
        private static final long serialVersionUID = 1;

        NoMemory(String text, long offset) {
            super(text, offset);
        }
    }

    /** The file system refuses access. */
    public static final class PermissionRefused extends EngineException {
        private static final long serialVersionUID = 1;

        PermissionRefused(String text, long offset) {
            super(text, offset);
        }
    }

    /** A named limit of the engine was reached. */
    public static final class LimitReached extends EngineException {
        private static final long serialVersionUID = 1;

        LimitReached(String text, long offset) {
            super(text, offset);
        }
    }
}
