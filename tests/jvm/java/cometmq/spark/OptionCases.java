package cometmq.spark;

import cometmq.engine.Store;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;

/**
 * Options read from standard input, one a line: "NAME VALUE"; prints its number, or "refused". Then, for each argument
 * behind a store with a topic "t", prints the mean bytes of that many first messages of its queue 0.
 */
public final class OptionCases {
    private OptionCases() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", 2);
            String found = "refused";
            try {
                found = String.valueOf(
                        number(ReadOptions.of(Map.of("path", "/", "topic", "t", parts[0], parts[1])), parts[0]));
            } catch (OptionException error) {
                System.err.println(error.getMessage());
            }
            System.out.println(found);
        }
        try (Store store = Store.open(arguments[0], List.of())) {
            for (int i = 1; i < arguments.length; i++) {
                System.out.println(store.meanBytes("t", 0, 0, Long.parseLong(arguments[i])));
            }
        }
    }

    private static long number(ReadOptions options, String name) {
        return switch (name) {
            case "minPartitions" -> options.minPartitions;
            case "batchRows" -> options.batchRows;
            case "maxOffsetsPerTrigger" -> options.maxOffsetsPerTrigger;
            case "maxTriggerDelay" -> options.maxTriggerDelayMs;
            default -> options.starting.timestamp();
        };
    }
}
