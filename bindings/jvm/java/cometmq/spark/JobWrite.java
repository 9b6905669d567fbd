package cometmq.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * A write into a store: tasks stage files through the engine, and {@link JobService} commits them, as for the Python
 * source: the same files, the same names of jobs, the same keys of work that is done once.
 */
final class JobWrite implements Write {
    private final LogicalWriteInfo info;
    private final boolean truncates;

    private JobWrite(LogicalWriteInfo info, boolean truncates) {
        this.info = info;
        this.truncates = truncates;
    }

    /** Builds a write. Modes that would take messages back are refused when it is known which of the two it is. */
    static final class Builder implements WriteBuilder, SupportsTruncate, SupportsStreamingUpdateAsAppend {
        private final LogicalWriteInfo info;
        private boolean truncates;

        Builder(LogicalWriteInfo info) {
            this.info = info;
        }

        @Override
        public WriteBuilder truncate() {
            truncates = true;
            return this;
        }

        @Override
        public Write build() {
            return new JobWrite(info, truncates);
        }
    }

    @Override
    public String description() {
        return "cometmq engine=jvm";
    }

    @Override
    public String toString() {
        return description();
    }

    @Override
    public BatchWrite toBatch() {
        Job job = new Job(info, truncates, false);
        return new BatchWrite() {
            @Override
            public StagedWriter.Factory createBatchWriterFactory(PhysicalWriteInfo physical) {
                return job.begin();
            }

            @Override
            public void commit(WriterCommitMessage[] messages) {
                job.commit(messages, 0);
            }

            @Override
            public void abort(WriterCommitMessage[] messages) {
                job.abandon();
            }
        };
    }

    @Override
    public StreamingWrite toStreaming() {
        Job job = new Job(info, truncates, true);
        return new StreamingWrite() {
            @Override
            public StagedWriter.Factory createStreamingWriterFactory(PhysicalWriteInfo physical) {
                return job.begin();
            }

            @Override
            public void commit(long epoch, WriterCommitMessage[] messages) {
                job.commit(messages, epoch);
            }

            @Override
            public void abort(long epoch, WriterCommitMessage[] messages) {
                job.abandon();
            }
        };
    }

    /** The job of a batch, or of one micro-batch after the other. */
    private static final class Job {
        private final ObjectNode what = JobService.request("check");
        private final String path;
        private final byte[] kinds;
        private final boolean hasTopic;
        private final StructType schema;
        private String job;

        /** Check options and columns. */
        Job(LogicalWriteInfo info, boolean truncates, boolean streaming) {
            schema = info.schema();
            ObjectNode options = what.putObject("options");
            info.options().asCaseSensitiveMap().forEach((name, value) -> {
                if (!name.equalsIgnoreCase("engine")) { // Python would refuse to be another
                    options.put(name, value);
                }
            });
            what.put("streaming", streaming).put("truncates", truncates).put("query", info.queryId());
            ArrayNode columns = what.putArray("columns");
            for (StructField field : info.schema().fields()) {
                columns.addArray().add(field.name()).add(field.dataType().simpleString());
            }
            JsonNode checked = JobService.call(what);
            path = checked.get("path").asText();
            hasTopic = checked.get("hasTopic").asBoolean();
            kinds = new byte[checked.get("kinds").size()];
            for (int i = 0; i < kinds.length; i++) {
                kinds[i] = (byte) checked.get("kinds").get(i).asInt();
            }
        }

        private ObjectNode request(String call) {
            ObjectNode request = JobService.request(call);
            request.setAll((ObjectNode) what.deepCopy().without("call"));
            return request.put("job", job);
        }

        /** Make the job's folder. */
        StagedWriter.Factory begin() {
            JsonNode begun = JobService.call(request("begin"));
            job = begun.get("job").asText();
            return new StagedWriter.Factory(path, job, kinds, begun.get("bodyBytesMax").asInt(), hasTopic, schema);
        }

        /** Have the files appended, all or, where it was done before, none. */
        void commit(WriterCommitMessage[] messages, long number) {
            ObjectNode request = request("commit").put("number", number);
            ArrayNode files = request.putArray("files");
            for (WriterCommitMessage message : messages) {
                if (message instanceof StagedWriter.Staged staged && staged.rows() > 0) {
                    files.addArray().add(staged.name()).add(staged.rows()).add(staged.bytes()).add(staged.crc32());
                }
            }
            JobService.call(request);
        }

        /** Leave nothing: a failed task sends no message, and one may still be writing. */
        void abandon() {
            if (job != null) {
                JobService.call(request("abandon"));
            }
        }
    }
}
