package cometmq.spark;

import cometmq.engine.Batch;
import cometmq.engine.EngineException;
import cometmq.engine.Scan;
import cometmq.engine.ScanRequest;
import cometmq.engine.ScanRequest.Range;
import cometmq.engine.Store;
import java.util.List;
import java.util.TreeSet;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads a task's ranges, batch by batch, on an executor. One thread reads; Spark may close from another one at any time,
 * as where a task ends beside the thread that writes its rows to another process.
 */
final class BatchReader implements PartitionReader<ColumnarBatch> {
    private final ReadPlan plan;
    private final List<Range> ranges;
    private final LossPolicy loss;
    private final Scan scan;
    private final Vectors.EngineVector[] vectors;
    private final ColumnarBatch shown;
    private volatile Thread reading;
    private Batch batch;
    private long missing;
    private CustomTaskMetric[] metrics = Metrics.of(0, 0, 0);

    BatchReader(ReadPlan plan, List<Range> ranges) {
        this.plan = plan;
        this.ranges = ranges;
        loss = new LossPolicy(plan.failOnDataLoss());
        vectors = plan.columns().stream().map(Vectors::of).toArray(Vectors.EngineVector[]::new);
        shown = new ColumnarBatch(java.util.Arrays.copyOf(vectors, vectors.length, ColumnVector[].class));
        Catalog.requireFolder(plan.path(), "executor");
        try (Store store = Catalog.open(plan.path(), plan.batchTopics())) {
            missing = Catalog.rowsThere(store, ranges, loss);
            scan = store.scan(new ScanRequest(plan.scanned(), ranges, plan.tags(), plan.keys(), plan.where(),
                    plan.timeLowMs(),
                    plan.timeHighMs() == null ? null : Long.valueOf(plan.timeHighMs() + 1), plan.batchRows(),
                    plan.batchBytes(), plan.limit(), plan.skipCorrupt()));
        }
    }

    @Override
    public boolean next() {
        reading = Thread.currentThread();
        release();
        try {
            batch = scan.next(BatchReader::failIfKilled);
        } catch (EngineException.CorruptRecord error) {
            throw new IllegalStateException(error.getMessage() + "; option onCorrupt=skip goes round damage and reports "
                    + "it, and cometmq verify " + plan.path() + " shows all of it", error);
        }
        if (batch == null) {
            account();
            return false;
        }
        int scanned = 0;
        for (int i = 0; i < vectors.length; i++) {
            boolean isScanned = plan.columns().get(i).isScanned();
            vectors[i].show(batch, isScanned ? batch.column(scanned++) : Vectors.NO_ARRAY, batch.rows());
        }
        shown.setNumRows(batch.rows());
        missing -= batch.rows();
        return true;
    }

    private static void failIfKilled() {
        TaskContext task = TaskContext.get();
        if (task != null) {
            task.killTaskIfInterrupted();
        }
    }

    /** Report damage, and offsets without a row; where rows are filtered, these cannot be known. */
    private void account() {
        Scan.Skipped skipped = scan.skipped();
        TreeSet<String> names = new TreeSet<>();
        ranges.forEach(range -> names.add(range.topic() + "/" + range.queueId()));
        String queues = String.join(", ", names);
        if (skipped.records() > 0) {
            LossPolicy.LOG.warn("onCorrupt=skip: passed over {} damaged records while reading {} of {}, at the physical "
                    + "offsets {}", skipped.records(), queues, plan.path(), java.util.Arrays.toString(skipped.offsets()));
        }
        if (skipped.clampedTimes() > 0) {
            LossPolicy.LOG.warn("{} times of {} are outside 0001-01-02 to 9999-12-30; the nearest inside replaces them",
                    skipped.clampedTimes(), queues);
        }
        if (skipped.expired() > 0) {
            loss.lost(skipped.expired() + " messages of " + queues + " expired before they were read");
        }
        missing -= skipped.expired();
        metrics = Metrics.of(skipped.records(), skipped.expired(), skipped.clampedTimes());
        if (!plan.filters() && skipped.records() == 0 && missing != 0) {
            loss.lost(missing + " of the planned messages of " + queues
                    + " did not come: their offsets have none");
        }
    }

    @Override
    public ColumnarBatch get() {
        return shown;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return metrics;
    }

    private void release() {
        for (Vectors.EngineVector vector : vectors) {
            vector.clear();
        }
        if (batch != null) {
            batch.close();
            batch = null;
        }
    }

    @Override
    public void close() {
        if (reading == Thread.currentThread()) {
            release();
        } // else there are no rows yet, or they may be in use: the collector ends the batch
        scan.close();
    }
}
