package cometmq.spark;

import cometmq.engine.Batch;
import cometmq.engine.EngineException;
import cometmq.engine.Scan;
import cometmq.engine.ScanRequest;
import cometmq.engine.ScanRequest.Range;
import cometmq.engine.Store;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads a task's ranges, batch by batch, on an executor. */
final class BatchReader implements PartitionReader<ColumnarBatch> {
    private final ReadPlan plan;
    private final List<Range> ranges;
    private final LossPolicy loss;
    private final Scan scan;
    private final Vectors.EngineVector[] vectors;
    private final ColumnarBatch shown;
    private Batch batch;
    private long missing;

    BatchReader(ReadPlan plan, List<Range> ranges) {
        this.plan = plan;
        this.ranges = ranges;
        loss = new LossPolicy(plan.failOnDataLoss());
        vectors = plan.columns().stream().map(column -> Vectors.of(column.type()))
                .toArray(Vectors.EngineVector[]::new);
        shown = new ColumnarBatch(java.util.Arrays.copyOf(vectors, vectors.length, ColumnVector[].class));
        Snapshot.requireFolder(plan.path(), "executor");
        try (Store store = Snapshot.open(plan.path(), plan.batchTopics())) {
            missing = planned(store);
            scan = store.scan(new ScanRequest(plan.scanned(), ranges, plan.tags(), plan.keys(), plan.timeLowMs(),
                    plan.timeHighMs() == null ? null : Long.valueOf(plan.timeHighMs() + 1), plan.batchRows(),
                    plan.batchBytes(), plan.limit(), plan.skipCorrupt()));
        }
    }

    /** Return how many rows the ranges have, where nothing is filtered. */
    private long planned(Store store) {
        Map<String, Store.Queue> queues = new HashMap<>();
        store.queues().forEach(queue -> queues.put(queue.topic() + "/" + queue.id(), queue));
        long rows = 0;
        for (Range range : ranges) {
            Store.Queue queue = queues.get(range.topic() + "/" + range.queueId());
            long low = queue == null ? 0 : queue.low();
            long high = queue == null ? 0 : queue.high();
            if (range.rows() > 0 && (low > range.start() || high < range.end())) {
                loss.lost("the messages " + range.start() + " to " + (range.end() - 1) + " of queue " + range.queueId()
                        + " of '" + range.topic() + "' are not all there any more: the queue has " + low + " to "
                        + high);
            }
            rows += Math.max(Math.min(high, range.end()) - Math.max(low, range.start()), 0);
        }
        return rows;
    }

    @Override
    public boolean next() {
        release();
        try {
            batch = scan.next();
        } catch (EngineException.CorruptRecord error) {
            throw new IllegalStateException(error.getMessage() + "; option onCorrupt=skip goes round damage and reports "
                    + "it, and cometmq verify " + plan.path() + " shows all of it", error);
        }
        if (batch == null) {
            account();
            return false;
        }
        for (int i = 0; i < vectors.length; i++) {
            vectors[i].show(batch.column(i), batch.rows());
        }
        shown.setNumRows(batch.rows());
        missing -= batch.rows();
        return true;
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
        if (!plan.filters() && skipped.records() == 0 && missing != 0) {
            loss.lost(missing + " of the planned messages of " + queues
                    + " did not come: their offsets have none");
        }
    }

    @Override
    public ColumnarBatch get() {
        return shown;
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
        release();
        scan.close();
    }
}
