package cometmq.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The topics of a store's topics.json, as far as reading needs them. */
final class Topics {
    private static final Set<String> SYSTEM = Set.of("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest",
            "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC");
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Topics and their numbers of queues. */
    final Map<String, Integer> queues = new TreeMap<>();
    /** Topics whose queues are of inner batches. */
    final List<String> batches = new ArrayList<>();

    Topics(String store) {
        JsonNode table = read(Path.of(store, "config", "topics.json"));
        if (table == null) {
            table = read(Path.of(store, "config", "topics.json.bak"));
        }
        JsonNode entries = table == null ? JSON.createObjectNode() : table.path("topicConfigTable");
        for (Map.Entry<String, JsonNode> entry : entries.properties()) {
            JsonNode topic = entry.getValue();
            queues.put(entry.getKey(),
                    Math.max(topic.path("readQueueNums").asInt(16), topic.path("writeQueueNums").asInt(16)));
            if (topic.path("attributes").path("queue.type").asText().equals("BatchCQ")) {
                batches.add(entry.getKey());
            }
        }
    }

    private static JsonNode read(Path file) {
        try {
            JsonNode found = JSON.readTree(Files.readAllBytes(file));
            return found.isObject() ? found : null;
        } catch (IOException error) {
            return null; // it is not there, or damaged: the copy is next
        }
    }

    static boolean isSystem(String topic) {
        return SYSTEM.contains(topic) || topic.startsWith("rmq_sys_");
    }

    static boolean isLight(String topic) {
        return topic.startsWith("%LMQ%");
    }

    /** Return an option's JSON object. */
    static JsonNode object(String text, String option) {
        JsonNode found;
        try {
            found = JSON.readTree(text);
        } catch (JsonProcessingException error) {
            throw new OptionException(option, "'" + text + "' is neither earliest nor latest nor JSON ("
                    + error.getOriginalMessage() + ")", error);
        }
        if (!found.isObject()) {
            throw new OptionException(option, "'" + text + "' is not a JSON object such as {\"orders\": {\"0\": 23}}");
        }
        return found;
    }
}
