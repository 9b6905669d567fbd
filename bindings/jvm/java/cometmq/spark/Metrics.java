package cometmq.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Figures of a scan besides Spark's own, which its plan shows: sums over all tasks. */
public final class Metrics {
    private static final String SKIPPED = "skippedRecords";
    private static final String EXPIRED = "expiredMessages";
    private static final String CLAMPED = "clampedTimes";

    private Metrics() {}

    /** Spark makes one of these by its class's name where it shows the figure. */
    abstract static class Sum extends CustomSumMetric {
        private final String name;
        private final String description;

        Sum(String name, String description) {
            this.name = name;
            this.description = description;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public String description() {
            return description;
        }
    }

    /** With onCorrupt=skip. */
    public static final class SkippedRecords extends Sum {
        public SkippedRecords() {
            super(SKIPPED, "damaged records skipped");
        }
    }

    /** With failOnDataLoss=false. */
    public static final class ExpiredMessages extends Sum {
        public ExpiredMessages() {
            super(EXPIRED, "messages expired while they were read");
        }
    }

    /** Spark's timestamps have a shorter range than RocketMQ's. */
    public static final class ClampedTimes extends Sum {
        public ClampedTimes() {
            super(CLAMPED, "times replaced by the nearest in range");
        }
    }

    /** Return all of them. */
    static CustomMetric[] all() {
        return new CustomMetric[] {new SkippedRecords(), new ExpiredMessages(), new ClampedTimes()};
    }

    private record Value(String name, long value) implements CustomTaskMetric {}

    /** Return a task's part of each. */
    static CustomTaskMetric[] of(long skipped, long expired, long clamped) {
        return new CustomTaskMetric[] {new Value(SKIPPED, skipped), new Value(EXPIRED, expired),
            new Value(CLAMPED, clamped)};
    }
}
