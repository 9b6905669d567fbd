package cometmq.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Drives a stream as Spark does, call by call: answers each line of the input, a JSON object, by one.
 *
 * <p>{@code start} (options, checkpoint) ends the stream before it; {@code initial} and {@code plan} (start) answer
 * {@code offset}; {@code read} (start, end) answers {@code rows}, bodies that are numbers; {@code stop}. An exception is
 * the answer {@code error}.
 */
public final class StreamDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private CometMQStream stream;

    private StreamDriver() {}

    public static void main(String[] args) throws Exception {
        SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false")
                .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.sql.warehouse.dir", args[0]).config("spark.local.dir", args[0]).getOrCreate();
        StreamDriver driver = new StreamDriver();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer;
            try {
                answer = driver.answer(JSON.readTree(line));
            } catch (RuntimeException error) {
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        switch (request.get("call").asText()) {
            case "start" -> start(request);
            case "stop" -> stop();
            case "initial" -> answer.put("offset", stream.initialOffset().json());
            case "plan" -> {
                Offset start = stream.deserializeOffset(request.get("start").asText());
                answer.put("offset", stream.latestOffset(start, stream.getDefaultReadLimit()).json());
            }
            case "read" -> read(request, answer.putArray("rows"));
            default -> throw new IllegalArgumentException(request.toString());
        }
        return answer;
    }

    private void stop() {
        if (stream != null) {
            stream.stop();
            stream = null;
        }
    }

    private void start(JsonNode request) {
        stop();
        Map<String, String> options = new TreeMap<>();
        request.get("options").properties().forEach(entry -> options.put(entry.getKey(), entry.getValue().asText()));
        StructType body = new StructType().add("body", "binary");
        CometMQTable table = (CometMQTable) new CometMQProvider().getTable(body, null, options);
        CometMQScan scan = (CometMQScan) table.newScanBuilder(CaseInsensitiveStringMap.empty()).build();
        stream = (CometMQStream) scan.toMicroBatchStream(request.get("checkpoint").asText());
    }

    private void read(JsonNode request, ArrayNode rows) throws Exception {
        InputPartition[] tasks = stream.planInputPartitions(stream.deserializeOffset(request.get("start").asText()),
                stream.deserializeOffset(request.get("end").asText()));
        PartitionReaderFactory factory = stream.createReaderFactory();
        for (InputPartition task : tasks) {
            try (PartitionReader<ColumnarBatch> reader = factory.createColumnarReader(task)) {
                while (reader.next()) {
                    ColumnarBatch batch = reader.get();
                    for (int row = 0; row < batch.numRows(); row++) {
                        rows.add(Long.parseLong(new String(batch.column(0).getBinary(row), StandardCharsets.UTF_8)));
                    }
                }
            }
        }
    }
}
