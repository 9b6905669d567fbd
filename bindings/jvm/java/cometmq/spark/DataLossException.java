package cometmq.spark;

/** Messages that were to be read are gone. */
public final class DataLossException extends RuntimeException {
    private static final long serialVersionUID = 1;

    DataLossException(String text) {
        super(text);
    }
}
