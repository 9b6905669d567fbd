package cometmq.spark;

/** An option is unknown, missing, or has a value that cannot be used. The text begins with the option's name. */
public final class OptionException extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    OptionException(String option, String text) {
        super("option " + option + ": " + text);
    }

    OptionException(String option, String text, Throwable cause) {
        super("option " + option + ": " + text, cause);
    }
}
