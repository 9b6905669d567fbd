package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs a command of {@code mqadmin} in this JVM, where it costs nothing to start, and gives what it prints. */
final class Commands {
    private Commands() {
    }

    static void run(JSONObject request, Peer.Rows rows) throws Exception {
        String[] arguments = request.getJSONArray("arguments").toArray(new String[0]);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        PrintStream usualOut = System.out;
        PrintStream usualErrors = System.err;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(arguments, null);
        } finally {
            System.setOut(usualOut);
            System.setErr(usualErrors);
        }
        rows.add(Map.of("out", out.toString(StandardCharsets.UTF_8), "errors", errors.toString(StandardCharsets.UTF_8)));
    }
}
