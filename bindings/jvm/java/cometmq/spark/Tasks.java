package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** From ranges of queues to Spark's tasks, by bytes. */
final class Tasks {
    private static final long SMALLEST_TASK_BYTES = 16 << 20;

    private Tasks() {}

    /** Ranges, and the mean bytes of a row in each. */
    record Sized(List<Range> ranges, List<Double> rowBytes) {}

    private record Task(List<Range> ranges) implements InputPartition {}

    /** Makes readers on the executors; the plan is all that it has. */
    record ReaderFactory(ReadPlan plan) implements PartitionReaderFactory {
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

    /** Deal ranges that are not empty out to tasks. */
    static InputPartition[] of(Sized sized, ReadOptions options, boolean byKey) {
        if (sized.ranges().isEmpty()) {
            return new InputPartition[0];
        }
        if (byKey) {
            return new InputPartition[] {new Task(List.copyOf(sized.ranges()))}; // the index finds them at once
        }
        double total = 0;
        for (int i = 0; i < sized.ranges().size(); i++) {
            total += sized.ranges().get(i).rows() * Math.max(sized.rowBytes().get(i), 1);
        }
        long wanted = options.minPartitions != null ? options.minPartitions
                : Math.min(cores(), Math.max(1, (long) (total / SMALLEST_TASK_BYTES)));
        long count = Math.max(wanted, (long) Math.ceil(total / options.maxPartitionBytes));
        return dealt(sized, total, count);
    }

    private static long cores() {
        return SparkSession.active().sparkContext().defaultParallelism();
    }

    /** Cut the bytes of all ranges, laid end to end, at equal steps. Every offset is in exactly one task. */
    private static InputPartition[] dealt(Sized sized, double total, long count) {
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
