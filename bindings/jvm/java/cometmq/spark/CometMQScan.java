package cometmq.spark;

import java.util.OptionalLong;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One query over a store's files: its tasks, and what the optimizer may know of its size. */
final class CometMQScan implements SupportsReportStatistics, Batch {
    private final CometMQTable table;
    private final StructType schema;
    private final ReadPlan plan;
    private final Supplier<Tasks.Sized> ranges;
    private final String description;
    private boolean streams;

    CometMQScan(CometMQTable table, StructType schema, ReadPlan plan, Supplier<Tasks.Sized> ranges,
            String description) {
        this.table = table;
        this.schema = schema;
        this.plan = plan;
        this.ranges = ranges;
        this.description = description;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return description;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.all();
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        ReadOptions options = table.options();
        options.requireStream();
        streams = true;
        return new CometMQStream(options, plan, checkpoint);
    }

    /**
     * Return the size of a batch. A stream's is not known: Spark plans each micro-batch with it, long after its offsets
     * were chosen, and the range of a batch may be one that a stream never had.
     */
    @Override
    public Statistics estimateStatistics() {
        if (streams) {
            return new Size(OptionalLong.empty(), OptionalLong.empty());
        }
        Tasks.Sized sized = ranges.get();
        long rows = 0;
        double bytes = 0;
        for (int i = 0; i < sized.ranges().size(); i++) {
            rows += sized.ranges().get(i).rows();
            bytes += sized.ranges().get(i).rows() * sized.rowBytes().get(i);
        }
        return new Size(OptionalLong.of((long) bytes), OptionalLong.of(rows));
    }

    private record Size(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Tasks.ReaderFactory(plan.withBatchTopics(table.snapshot().batchTopics));
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return Tasks.of(ranges.get(), table.options(), !plan.keys().isEmpty());
    }
}
