package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownOffset;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** One query's columns, filters, limit and aggregates. Each query gets its own; the frame keeps none of it. */
final class CometMQScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns,
        SupportsPushDownLimit, SupportsPushDownOffset, SupportsPushDownAggregates {
    private final CometMQTable table;
    private StructType read;
    private Filter[] pushed = {};
    private Bounds bounds = Bounds.NONE;
    private boolean isExact = true;
    private int limit;
    private int skipped;
    private Aggregation aggregation;

    CometMQScanBuilder(CometMQTable table) {
        this.table = table;
        read = table.schema();
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
        List<Filter> kept = new ArrayList<>();
        List<Filter> rest = new ArrayList<>();
        boolean hasLight = table.snapshot().sized.ranges().stream().anyMatch(range -> Topics.isLight(range.topic()));
        for (Filter filter : filters) {
            Bounds found = Bounds.of(filter);
            boolean isWhole = !hasLight && Bounds.isExact(filter);
            bounds = bounds.and(found);
            if (!isWhole) {
                rest.add(filter);
            }
            if (isWhole || !found.equals(Bounds.NONE)) {
                kept.add(filter);
            }
        }
        pushed = kept.toArray(new Filter[0]);
        isExact = rest.isEmpty();
        return rest.toArray(new Filter[0]);
    }

    @Override
    public Filter[] pushedFilters() {
        return pushed;
    }

    @Override
    public void pruneColumns(StructType required) {
        read = required;
    }

    /** Each task reads at most so many rows; Spark takes the first of them all. */
    @Override
    public boolean pushLimit(int rows) {
        limit = rows;
        return true;
    }

    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    /** Leave the first rows out, where each offset that is left is a row of the answer. */
    @Override
    public boolean pushOffset(int rows) {
        if (limit > 0 || aggregation != null || !countsOffsets()) {
            return false;
        }
        skipped = rows;
        return true;
    }

    private boolean countsOffsets() {
        ReadOptions options = table.options();
        return isExact && limit == 0 && options.failOnDataLoss && !options.skipCorrupt && options.tags.isEmpty()
                && options.keys.isEmpty() && options.where == null
                && table.snapshot().sized.ranges().stream().noneMatch(range -> Topics.isLight(range.topic()));
    }

    // --- Aggregates

    @Override
    public boolean supportCompletePushDown(Aggregation asked) {
        return countsOffsets() && isKnown(asked);
    }

    @Override
    public boolean pushAggregation(Aggregation asked) {
        if (!supportCompletePushDown(asked)) {
            return false;
        }
        aggregation = asked;
        return true;
    }

    private static boolean isKnown(Aggregation asked) {
        for (Expression group : asked.groupByExpressions()) {
            int kind = kindOf(group);
            if (kind != Columns.TOPIC && kind != Columns.QUEUE_ID) {
                return false;
            }
        }
        for (AggregateFunc function : asked.aggregateExpressions()) {
            boolean isCount = function instanceof CountStar || function instanceof Count count && !count.isDistinct()
                    && count.column() instanceof NamedReference name && Columns.isNeverNull(nameOf(name));
            boolean isEnd = function instanceof Min min && kindOf(min.column()) == Columns.QUEUE_OFFSET
                    || function instanceof Max max && kindOf(max.column()) == Columns.QUEUE_OFFSET;
            if (!isCount && !isEnd) {
                return false;
            }
        }
        return true;
    }

    private static String nameOf(NamedReference name) {
        return String.join(".", name.fieldNames());
    }

    private static int kindOf(Expression expression) {
        return expression instanceof NamedReference name ? Columns.kindOf(nameOf(name)) : -1;
    }

    /** Return the answer, from the ends of the queues. */
    private LocalScan answer(List<Range> ranges) {
        Expression[] groups = aggregation.groupByExpressions();
        AggregateFunc[] functions = aggregation.aggregateExpressions();
        StructType schema = new StructType();
        for (Expression group : groups) {
            schema = schema.add(nameOf((NamedReference) group),
                    kindOf(group) == Columns.TOPIC ? DataTypes.StringType : DataTypes.IntegerType);
        }
        for (AggregateFunc function : functions) {
            schema = schema.add(function.describe(), DataTypes.LongType);
        }
        Map<List<Object>, List<Range>> grouped = new LinkedHashMap<>();
        if (groups.length == 0) {
            grouped.put(List.of(), new ArrayList<>());
        }
        for (Range range : ranges) {
            List<Object> key = new ArrayList<>();
            for (Expression group : groups) {
                key.add(kindOf(group) == Columns.TOPIC ? UTF8String.fromString(range.topic()) : range.queueId());
            }
            grouped.computeIfAbsent(key, none -> new ArrayList<>()).add(range);
        }
        List<InternalRow> rows = new ArrayList<>();
        grouped.forEach((key, members) -> {
            List<Object> row = new ArrayList<>(key);
            for (AggregateFunc function : functions) {
                row.add(valueOf(function, members));
            }
            rows.add(new GenericInternalRow(row.toArray()));
        });
        return new AnswerScan(schema, rows.toArray(new InternalRow[0]), description(ranges.size(), 0));
    }

    private static Object valueOf(AggregateFunc function, List<Range> ranges) {
        if (function instanceof Min) {
            return ranges.isEmpty() ? null : ranges.stream().mapToLong(Range::start).min().getAsLong();
        }
        if (function instanceof Max) {
            return ranges.isEmpty() ? null : ranges.stream().mapToLong(range -> range.end() - 1).max().getAsLong();
        }
        return ranges.stream().mapToLong(Range::rows).sum();
    }

    /** Rows that planning knows. */
    private record AnswerScan(StructType readSchema, InternalRow[] rows, String description) implements LocalScan {}

    // --- The scan

    @Override
    public Scan build() {
        ReadOptions options = table.options();
        List<String> tags = sorted(bounds.tags(), options.tags);
        // A message may have a key of each: with the option, the filters' are left to Spark.
        List<String> keys = options.keys.isEmpty() ? sorted(bounds.keys(), List.of()) : options.keys;
        boolean hasNone = bounds.tags() != null && tags.isEmpty() || bounds.keys() != null && keys.isEmpty();
        ReadPlan plan = new ReadPlan(options.path, List.of(), table.columns(read), tags, keys, options.where,
                bounds.timeLowMs(), bounds.timeHighMs(), options.batchRows, options.batchBytes, limit,
                options.skipCorrupt, options.failOnDataLoss);
        if (aggregation != null) {
            List<Range> ranges = narrowed(hasNone).ranges();
            table.snapshot().requireAll(ranges); // an older frame counts no messages that it could not read
            return answer(ranges);
        }
        return new CometMQScan(table, read, plan, () -> narrowed(hasNone), description(-1, limit));
    }

    /** Return the ranges that are not empty. */
    private Tasks.Sized narrowed(boolean hasNone) {
        Tasks.Sized all = table.snapshot().sized;
        Tasks.Sized found = new Tasks.Sized(new ArrayList<>(), new ArrayList<>());
        long toSkip = skipped;
        for (int i = 0; i < all.ranges().size() && !hasNone; i++) {
            Range range = bounds.narrowed(all.ranges().get(i));
            long fewer = Math.min(toSkip, range.rows());
            range = new Range(range.topic(), range.queueId(), range.start() + fewer, range.end());
            toSkip -= fewer;
            if (range.rows() > 0) {
                found.ranges().add(range);
                found.rowBytes().add(all.rowBytes().get(i));
            }
        }
        return found;
    }

    private static List<String> sorted(Set<String> found, List<String> asked) {
        if (found == null) {
            return asked;
        }
        TreeSet<String> both = new TreeSet<>(found);
        if (!asked.isEmpty()) {
            both.retainAll(asked);
        }
        return List.copyOf(both);
    }

    private String description(int answered, int rows) {
        return "cometmq engine=jvm, pushed filters: " + Arrays.toString(pushed)
                + (answered < 0 ? "" : ", answered from the ends of " + answered + " queues")
                + (rows == 0 ? "" : ", limit of a task: " + rows) + (skipped == 0 ? "" : ", offset: " + skipped);
    }
}
