package cometmq.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import java.util.function.Supplier;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;

/**
 * Where a stream began, in its checkpoint. Spark asks for it until the first micro-batch is committed, also after a
 * crash; a second look-up of `latest`, or of an `earliest` that has expired, would skip rows that were planned.
 */
final class FirstOffset {
    private static final String NAME = "cometmq-first-offset";

    private final Path folder;

    /** {@code folder} is the source's own in the checkpoint, on any file system. */
    FirstOffset(String folder) {
        this.folder = new Path(folder);
    }

    /** Return the offset that was kept, or keep the one that is found now. */
    StreamOffset get(Supplier<StreamOffset> found) {
        try {
            FileSystem files = folder.getFileSystem(SparkSession.active().sessionState().newHadoopConf());
            try (FSDataInputStream kept = files.open(new Path(folder, NAME))) {
                return new StreamOffset(new String(kept.readAllBytes(), StandardCharsets.UTF_8));
            } catch (FileNotFoundException first) {
                return keep(files, found.get());
            }
        } catch (IOException error) {
            throw new UncheckedIOException("the stream's first offset cannot be kept in " + folder, error);
        }
    }

    private StreamOffset keep(FileSystem files, StreamOffset offset) throws IOException {
        Path temporary = new Path(folder, "." + NAME + "." + UUID.randomUUID() + ".tmp");
        try (FSDataOutputStream into = files.create(temporary, false)) {
            into.write(offset.json().getBytes(StandardCharsets.UTF_8));
        }
        if (!files.rename(temporary, new Path(folder, NAME))) {
            throw new IOException(temporary + " cannot be renamed");
        }
        return offset;
    }
}
