package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** One query over a store's files: its tasks, and what the optimizer may know of its size. */
final class CometMQScan implements SupportsReportStatistics, Batch {
    private static final long SMALLEST_TASK_BYTES = 16 << 20;

    private final CometMQTable table;
    private final StructType schema;
    private final ReadPlan plan;
    private final Supplier<CometMQScanBuilder.Sized> ranges;
    private final String description;
    private final Function<String, MicroBatchStream> stream;
    private boolean isStream;

    CometMQScan(CometMQTable table, StructType schema, ReadPlan plan, Supplier<CometMQScanBuilder.Sized> ranges,
            String description, Function<String, MicroBatchStream> stream) {
        this.table = table;
        this.schema = schema;
        this.plan = plan;
        this.ranges = ranges;
        this.description = description;
        this.stream = stream;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return description;
    }

    /** Spark asks behind {@link #toMicroBatchStream}: Python's streams come in rows. */
    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return isStream ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        isStream = true;
        return stream.apply(checkpoint);
    }

    @Override
    public Statistics estimateStatistics() {
        CometMQScanBuilder.Sized sized = ranges.get();
        long rows = 0;
        double bytes = 0;
        for (int i = 0; i < sized.ranges().size(); i++) {
            rows += sized.ranges().get(i).rows();
            bytes += sized.ranges().get(i).rows() * sized.rowBytes().get(i);
        }
        long most = rows;
        long size = (long) bytes;
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return OptionalLong.of(size);
            }

            @Override
            public OptionalLong numRows() {
                return OptionalLong.of(most);
            }
        };
    }

    // --- Tasks

    private record Task(List<Range> ranges) implements InputPartition {}

    /** Makes readers on the executors; the plan is all that it has. */
    private record ReaderFactory(ReadPlan plan) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("rows come in batches");
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new BatchReader(plan, ((Task) partition).ranges());
        }
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(plan.withBatchTopics(List.copyOf(table.snapshot().batchTopics)));
    }

    @Override
    public InputPartition[] planInputPartitions() {
        CometMQScanBuilder.Sized sized = ranges.get();
        if (sized.ranges().isEmpty()) {
            return new InputPartition[0];
        }
        if (!plan.keys().isEmpty()) {
            return new InputPartition[] {new Task(List.copyOf(sized.ranges()))}; // the index finds them at once
        }
        double total = 0;
        for (int i = 0; i < sized.ranges().size(); i++) {
            total += sized.ranges().get(i).rows() * Math.max(sized.rowBytes().get(i), 1);
        }
        ReadOptions options = table.options();
        long wanted = options.minPartitions != null ? options.minPartitions
                : Math.min(cores(), Math.max(1, (long) (total / SMALLEST_TASK_BYTES)));
        long count = Math.max(wanted, (long) Math.ceil(total / options.maxPartitionBytes));
        return dealt(sized, total, count);
    }

    private static long cores() {
        return SparkSession.active().sparkContext().defaultParallelism();
    }

    /** Cut the bytes of all ranges, laid end to end, at equal steps. Every offset is in exactly one task. */
    private static InputPartition[] dealt(CometMQScanBuilder.Sized sized, double total, long count) {
        List<InputPartition> tasks = new ArrayList<>();
        List<Range> current = new ArrayList<>();
        double step = total / count;
        double left = step;
        for (int i = 0; i < sized.ranges().size(); i++) {
            Range range = sized.ranges().get(i);
            double each = Math.max(sized.rowBytes().get(i), 1);
            long start = range.start();
            while (start < range.end()) {
                boolean isLast = tasks.size() + 1 >= count;
                long fitting = Math.max(current.isEmpty() ? 1 : 0, Math.round(left / each));
                long end = isLast ? range.end() : Math.min(range.end(), start + fitting);
                if (end > start) {
                    current.add(new Range(range.topic(), range.queueId(), start, end));
                    left -= (end - start) * each;
                    start = end;
                }
                if (!isLast && left < each / 2) {
                    tasks.add(new Task(List.copyOf(current)));
                    current = new ArrayList<>();
                    left = step;
                }
            }
        }
        if (!current.isEmpty()) {
            tasks.add(new Task(List.copyOf(current)));
        }
        return tasks.toArray(new InputPartition[0]);
    }
}
