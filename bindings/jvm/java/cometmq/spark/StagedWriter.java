package cometmq.spark;

import cometmq.engine.EngineException;
import cometmq.engine.StagedRows;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/** A task's writing: its rows into a file of its own, durably. Nothing is in the store until the driver commits. */
final class StagedWriter implements DataWriter<InternalRow> {
    private final Factory factory;
    private final Path folder;
    private final Path temporary;
    private final String name;
    private final StagedRows rows;
    private final UnsafeProjection projection;

    /** A task's message to the driver; without rows there is no file. */
    record Staged(String name, long rows, long bytes, long crc32) implements WriterCommitMessage {}

    /** The parameters that every task of a job gets; Spark sends them to the executors. */
    record Factory(String path, String job, byte[] kinds, int bodyBytesMax, boolean hasTopic, StructType schema)
            implements DataWriterFactory, StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new StagedWriter(this, partition, task);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new StagedWriter(this, partition, task);
        }
    }

    private StagedWriter(Factory factory, int partition, long task) {
        this.factory = factory;
        folder = staged(factory.path()).resolve(factory.job());
        // The partition first, for one fixed order of all files; no other attempt has the name.
        String base = String.format(Locale.ROOT, "%08d-%010d-%s", partition, task, UUID.randomUUID().toString().replace("-", ""));
        name = base + ".arrow";
        temporary = folder.resolve(base + ".tmp");
        projection = UnsafeProjection.create(factory.schema());
        try {
            rows = StagedRows.create(temporary.toString(), factory.kinds(), factory.bodyBytesMax(), factory.hasTopic());
        } catch (EngineException.NotFound error) {
            throw aborted(error);
        }
    }

    /** Return the folder of jobs. The way to a store may lead over symbolic links; below it there is none. */
    private static Path staged(String path) {
        Path store = Path.of(path);
        try {
            store = store.toRealPath();
        } catch (IOException error) {
            LossPolicy.LOG.debug("{} is not there", path, error); // creating the file fails, with the text for it
        }
        return store.resolve("cometmq").resolve("staged");
    }

    @Override
    public void write(InternalRow row) {
        rows.add(row instanceof UnsafeRow unsafe ? unsafe : projection.apply(row));
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        StagedRows.Finished finished = rows.finish();
        if (finished.rows() > 0) {
            try {
                Files.move(temporary, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
            } catch (NoSuchFileException error) {
                throw aborted(error);
            }
        }
        return new Staged(name, finished.rows(), finished.bytes(), finished.crc32());
    }

    private RuntimeException aborted(Exception error) {
        String host = "this host";
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (IOException unknown) {
            LossPolicy.LOG.debug("no host name", unknown);
        }
        return new IllegalStateException(folder + " is not there on " + host + ": the write was aborted meanwhile, or the "
                + "store of option path is not visible on this executor", error);
    }

    @Override
    public void abort() throws IOException {
        rows.close();
        Files.deleteIfExists(temporary);
    }

    @Override
    public void close() {
        rows.close();
    }
}
