package cometmq.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.TreeMap;

/**
 * Limits read from standard input, one a line: "rows MOST START END" or "bytes MOST START END", positions as
 * "orders/0=5,orders/1=7" or "-". Prints the end of each. A message has as many bytes as its queue's number and 1.
 */
public final class AdmissionCases {
    private AdmissionCases() {}

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            long most = Long.parseLong(parts[1]);
            Map<QueueKey, Long> start = position(parts[2]);
            Map<QueueKey, Long> end = position(parts[3]);
            System.out.println(new StreamOffset(parts[0].equals("rows") ? Admission.limitRows(start, end, most)
                    : Admission.limitBytes(start, end, most, (key, low, high) -> key.id() + 1), Map.of()).json());
        }
    }

    private static Map<QueueKey, Long> position(String text) {
        Map<QueueKey, Long> found = new TreeMap<>();
        for (String one : text.equals("-") ? new String[0] : text.split(",")) {
            String[] pair = one.split("=");
            found.put(QueueKey.parsed(pair[0]), Long.valueOf(pair[1]));
        }
        return found;
    }
}
