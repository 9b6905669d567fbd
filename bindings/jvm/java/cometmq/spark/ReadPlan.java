package cometmq.spark;

import cometmq.engine.ScanRequest;
import java.io.Serializable;
import java.util.List;

/** The plan of a query, which Spark sends to the executors. Times are inclusive, {@code limit} 0 is none. */
record ReadPlan(String path, List<String> batchTopics, List<Columns.Column> columns, List<String> tags,
        List<String> keys, String where, Long timeLowMs, Long timeHighMs, int batchRows, int batchBytes, long limit,
        boolean skipCorrupt, boolean failOnDataLoss) implements Serializable {
    private static final ScanRequest.Column ONLY_TO_COUNT = new ScanRequest.Column(Columns.QUEUE_OFFSET, 0, "");

    ReadPlan withBatchTopics(List<String> topics) {
        return new ReadPlan(path, topics, columns, tags, keys, where, timeLowMs, timeHighMs, batchRows, batchBytes, limit,
                skipCorrupt, failOnDataLoss);
    }

    List<ScanRequest.Column> scanned() {
        List<ScanRequest.Column> found =
                columns.stream().filter(Columns.Column::isScanned).map(Columns.Column::scanned).toList();
        return found.isEmpty() ? List.of(ONLY_TO_COUNT) : found;
    }

    /** Return whether rows of the ranges are left out on purpose. */
    boolean filters() {
        return !tags.isEmpty() || !keys.isEmpty() || where != null || timeLowMs != null || timeHighMs != null || limit > 0;
    }
}
