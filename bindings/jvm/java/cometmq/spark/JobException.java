package cometmq.spark;

/** A write cannot be begun or committed; the text names the option or column to change, or says that the rows wait. */
public final class JobException extends RuntimeException {
    private static final long serialVersionUID = 1;

    JobException(String text, Throwable cause) {
        super(text, cause);
    }
}
