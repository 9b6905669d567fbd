package io.cometmq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Drives the official RocketMQ client for the tests.
 *
 * <p>One JVM serves a whole test session, because starting a JVM costs more than most tests. Each line on standard input
 * is a request, {@code {"op": …, …}}. The answer on standard output is any number of {@code {"row": …}} lines and then one
 * {@code {"done": true}} or {@code {"error": …}}. Requests are served one after the other. Each request starts and ends
 * client objects of its own, so that no route or offset is remembered from one request to the next.
 */
public final class Peer {
    private final PrintStream out;

    private Peer(PrintStream out) {
        this.out = out;
    }

    /** Receives the rows of an answer as they come into being. */
    interface Rows {
        void add(Map<String, ?> row);
    }

    /** One kind of request. */
    interface Operation {
        void run(JSONObject request, Rows rows) throws Exception;
    }

    private static final Map<String, Operation> OPERATIONS = Map.ofEntries(
        Map.entry("send", Sender::send),
        Map.entry("pull_all", Puller::pullAll),
        Map.entry("group_consume", GroupConsumer::consume),
        Map.entry("await_broker", Admin::awaitBroker),
        Map.entry("create_topic", Admin::createTopic),
        Map.entry("offsets", Admin::offsets),
        Map.entry("group_offsets", Admin::groupOffsets),
        Map.entry("search_offset", Admin::searchOffset),
        Map.entry("query_key", Admin::queryKey),
        Map.entry("query_unique_key", Admin::queryUniqueKey),
        Map.entry("view", Admin::view));

    public static void main(String[] args) throws Exception {
        PrintStream protocol = System.out;
        // Whatever a library prints must not end up between the lines of an answer.
        System.setOut(System.err);
        Peer peer = new Peer(new PrintStream(protocol, false, StandardCharsets.UTF_8));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            peer.serve(JSON.parseObject(line));
        }
        // The client leaves threads behind that are no daemons; the end of input is the end of the program.
        System.exit(0);
    }

    private void serve(JSONObject request) {
        try {
            Operation operation = OPERATIONS.get(request.getString("op"));
            if (operation == null) {
                throw new IllegalArgumentException("unknown op " + request.getString("op"));
            }
            operation.run(request, row -> line(Map.of("row", row)));
            line(Map.of("done", true));
        } catch (Exception failure) {
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            line(Map.of("error", String.valueOf(failure), "trace", trace.toString()));
        }
    }

    private void line(Map<String, ?> value) {
        out.println(JSON.toJSONString(value, JSONWriter.Feature.WriteNulls));
        out.flush();
    }
}
