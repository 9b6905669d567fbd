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
 * client objects of its own, so that no route or offset is remembered from one request to the next; only the push consumers
 * of {@link Consumers} live on.
 *
 * <p>Compiled against 5.3.3, run over the jars of 5.3.3 or of 4.9.7: what is not in both stands apart, in {@link Admin} or in
 * a class of its own, and is not asked for where it is missing.
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

    interface Condition {
        boolean holds() throws Exception;
    }

    /** Asks until the answer is yes. An exception counts as no, but for the last one, which tells why it never was. */
    static void await(long timeoutMs, Condition condition) throws Exception {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000L;
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (condition.holds()) {
                    return;
                }
                last = null;
            } catch (Exception notYet) {
                last = notYet;
            }
            Thread.sleep(50);
        }
        throw last != null ? last : new IllegalStateException("not within " + timeoutMs + " ms");
    }

    private static final Map<String, Operation> OPERATIONS = Map.ofEntries(
        Map.entry("send", Sender::send),
        Map.entry("pull_all", Puller::pullAll),
        Map.entry("group_consume", GroupConsumer::consume),
        Map.entry("assigned_consume", Assigned::consume),
        Map.entry("consumer_start", Consumers::start),
        Map.entry("consumer_rows", Consumers::rows),
        Map.entry("consumer_queues", Consumers::queues),
        Map.entry("consumer_owned", Consumers::owned),
        Map.entry("consumer_popped", Consumers::popped),
        Map.entry("consumer_rebalance", Consumers::rebalance),
        Map.entry("consumer_release", Consumers::release),
        Map.entry("consumer_commit", Consumers::commit),
        Map.entry("consumer_stop", Consumers::stop),
        Map.entry("consumer_clear", Consumers::clear),
        // What 4.9 has no classes for is not looked at before it is asked for.
        Map.entry("pop", (request, rows) -> Popper.pop(request, rows)),
        Map.entry("pop_ack", (request, rows) -> Popper.ack(request, rows)),
        Map.entry("pop_change", (request, rows) -> Popper.change(request, rows)),
        Map.entry("assignment", (request, rows) -> Popper.assignment(request, rows)),
        Map.entry("request", Requests::request),
        Map.entry("answer", Requests::answer),
        Map.entry("transact", Transactions::transact),
        Map.entry("mqadmin", Commands::run),
        Map.entry("bench_produce", Bench::produce),
        Map.entry("bench_consume", Bench::consume),
        Map.entry("bench_latency", Bench::latency),
        Map.entry("consume_directly", Admin::consumeDirectly),
        Map.entry("running_info", Admin::runningInfo),
        Map.entry("reset_offset", Admin::resetOffset),
        Map.entry("create_topic", Admin::createTopic),
        Map.entry("await_topic", Admin::awaitTopic),
        Map.entry("offsets", Admin::offsets),
        Map.entry("group_offsets", Admin::groupOffsets),
        Map.entry("search_offset", Admin::searchOffset),
        Map.entry("query_key", Admin::queryKey),
        Map.entry("query_unique_key", Admin::queryUniqueKey),
        Map.entry("view", Admin::view),
        Map.entry("read_unique_id", Admin::readUniqueId));

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
        } catch (Exception | LinkageError failure) {
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
