package cometmq.spark;

import cometmq.engine.EngineException;
import cometmq.engine.Handles;
import cometmq.engine.ScanRequest.Range;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A task's reader: closed by another thread while its rows are read, and over a log that is cut after rows were found.
 * Arguments: a store with messages of 64 KiB and a tag in queue 0 of "orders", and their number.
 */
public final class ReaderHostility {
    private ReaderHostility() {}

    public static void main(String[] args) throws Exception {
        Path store = Path.of(args[0]);
        int messages = Integer.parseInt(args[1]);
        closeByAnotherThreadKeepsTheRows(store, messages);
        lostPagesFailTheirRow(store, messages);
        System.out.println("passed");
    }

    private static BatchReader reader(Path store, int messages) {
        ReadOptions options = ReadOptions.of(java.util.Map.of("path", store.toString(), "topic", "orders"));
        StructType schema = new StructType().add("tags", "string").add("body", "binary");
        ReadPlan plan = new ReadPlan(store.toString(), List.of(), Columns.of(schema, options), List.of(), List.of(), null,
                null, null, 8192, 4 << 20, 0, false, true);
        return new BatchReader(plan, List.of(new Range("orders", 0, 0, messages)));
    }

    private static void closeByAnotherThreadKeepsTheRows(Path store, int messages) throws Exception {
        long before = Handles.open();
        BatchReader reader = reader(store, messages);
        reader.next();
        ColumnarBatch batch = reader.get();
        UTF8String tag = batch.column(0).getUTF8String(0);
        Thread closer = new Thread(reader::close);
        closer.start();
        closer.join();
        require(Handles.open() == before + 1, "the batch of the rows is gone: " + Handles.open());
        require(tag.toString().equals("red"), "a row's tag is " + tag);
        require(batch.column(1).getBinary(0).length == 1 << 16, "a row's body is gone");
        // The reader closes, too, as every task does at its end.
        reader.close();
        require(Handles.open() == before, "a batch is left");
        // Without that, the collector ends it.
        reader = reader(store, messages);
        reader.next();
        Thread other = new Thread(reader::close);
        other.start();
        other.join();
        require(Handles.open() == before + 1, "the batch of the rows is gone: " + Handles.open());
        reader = null;
        batch = null;
        while (Handles.open() != before) {
            System.gc();
            Thread.yield();
        }
    }

    private static void lostPagesFailTheirRow(Path store, int messages) throws Exception {
        try (BatchReader reader = reader(store, messages)) {
            reader.next();
            ColumnarBatch batch = reader.get();
            require(batch.numRows() == messages, batch.numRows() + " rows");
            for (Path segment : segments(store)) {
                try (RandomAccessFile log = new RandomAccessFile(segment.toFile(), "rw")) {
                    log.setLength(0);
                }
            }
            for (int row = 0; row < messages; row++) {
                try {
                    byte[] body = batch.column(1).getBinary(row);
                    throw new AssertionError("row " + row + " of a cut log has a body, " + Arrays.toString(
                            Arrays.copyOf(body, 4)));
                } catch (EngineException.CorruptRecord expected) {
                    require(expected.getMessage().contains("cometmq verify"), expected.getMessage());
                }
            }
        }
    }

    private static List<Path> segments(Path store) throws Exception {
        try (Stream<Path> files = Files.list(store.resolve("commitlog"))) {
            return files.toList();
        }
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
