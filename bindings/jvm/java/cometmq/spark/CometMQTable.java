package cometmq.spark;

import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A loaded frame, or the target of a write. Python's table does what the JVM cannot, if allowed. */
final class CometMQTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final Options given;
    private final String unreadable; // why Python must read, or null
    private final Supplier<Table> python; // null: only the JVM may answer
    private ReadOptions options;
    private Snapshot snapshot;

    CometMQTable(StructType schema, Options given, String unreadable, Supplier<Table> python) {
        this.schema = schema;
        this.given = given;
        this.unreadable = unreadable;
        this.python = python;
    }

    @Override
    public String name() {
        return CometMQProvider.NAME + (unreadable == null ? "" : " read by engine=python (" + unreadable + ")");
    }

    @Override
    @SuppressWarnings("deprecation") // columns() is made of it
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
                TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap asGiven) {
        if (unreadable == null) {
            return new CometMQScanBuilder(this);
        }
        if (python == null) {
            throw new OptionException("engine", unreadable + "; engine=auto lets Python do it");
        }
        return ((SupportsRead) python.get()).newScanBuilder(asGiven);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        String reason = python == null ? null : JobService.unavailable();
        if (reason == null) {
            return new JobWrite.Builder(info);
        }
        LossPolicy.LOG.warn("{}; Spark's Python source writes", reason);
        return ((SupportsWrite) python.get()).newWriteBuilder(info);
    }

    synchronized ReadOptions options() {
        if (options == null) {
            options = new ReadOptions(given);
        }
        return options;
    }

    /** Return what the frame reads: fixed by its first query, so that all its queries agree. */
    synchronized Snapshot snapshot() {
        if (snapshot == null) {
            options().requireBatch();
            snapshot = new Snapshot(options());
        }
        return snapshot;
    }

    List<Columns.Column> columns(StructType read) {
        return Columns.of(read, options());
    }
}
