package cometmq.spark;

import java.math.BigInteger;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Options under their documented names. Refuses unknown ones, and one given under two names. */
final class Options {
    static final List<String> STREAM_ONLY = List.of("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger",
            "maxTriggerDelay", "groupId", "commitOffsets");
    static final List<String> WRITE_ONLY = List.of("topicQueues", "jobId", "commitTimeoutMs", "deliveryGuarantee");
    private static final List<String> READ = List.of("path", "nameServer", "config", "engine", "topic",
            "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
            "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "tags", "keys", "where", "minPartitions",
            "maxPartitionBytes", "failOnDataLoss", "columns", "includeProperties", "schema", "brokerName", "pushdown",
            "batchRows", "batchBytes", "onCorrupt", "pullTimeoutMs");
    private static final Map<String, String> ALIASES =
            Map.of("subscribe", "topic", "subExpression", "tags", "includeHeaders", "includeProperties");
    private static final List<String> SPARKS_OWN =
            List.of("checkpointLocation", "queryName", "outputMode", "mergeSchema", "pathOptionBeforeLoad");
    private static final Map<String, String> SPELLING = new HashMap<>();
    private static final Pattern SIZE = Pattern.compile("\\s*(\\d{1,18})\\s*([kmgt]?)i?b?\\s*", Pattern.CASE_INSENSITIVE);

    static {
        for (List<String> names : List.of(READ, STREAM_ONLY, WRITE_ONLY, SPARKS_OWN, List.copyOf(ALIASES.keySet()))) {
            names.forEach(name -> SPELLING.put(name.toLowerCase(Locale.ROOT), name));
        }
    }

    private final Map<String, String> values = new HashMap<>();

    Options(Map<String, String> given) {
        given.forEach((name, value) -> {
            String spelled = SPELLING.get(name.toLowerCase(Locale.ROOT));
            if (spelled == null) {
                String close = closest(name, SPELLING.values());
                throw new OptionException(name, "there is no such option"
                        + (close == null ? "; known are " + String.join(", ", READ) : "; did you mean " + close + "?"));
            }
            if (SPARKS_OWN.contains(spelled)) {
                return;
            }
            String target = ALIASES.getOrDefault(spelled, spelled);
            String before = values.putIfAbsent(target, value);
            if (before != null && !before.equals(value)) {
                throw new OptionException(target, "given twice: " + spelled + " is another name of it");
            }
        });
    }

    void refuse(Collection<String> names, String why) {
        for (String name : names) {
            if (values.containsKey(name)) {
                throw new OptionException(name, why);
            }
        }
    }

    /** Return a value without blanks around it, or null. */
    String text(String name) {
        String value = values.get(name);
        return value == null ? null : value.strip();
    }

    /** Return a value through {@code parse}, which returns null for what it cannot take. */
    <T> T parsed(String name, Function<String, T> parse, T otherwise, String wanted) {
        String value = text(name);
        if (value == null) {
            return otherwise;
        }
        T found = parse.apply(value);
        if (found == null) {
            throw new OptionException(name, "'" + value + "' " + wanted);
        }
        return found;
    }

    /** Return a number from 1 up; one that no long holds is the largest. */
    Long whole(String name, Long otherwise) {
        return parsed(name, value -> value.matches("\\+?0*[1-9]\\d*") ? Long.valueOf(most(new BigInteger(value))) : null,
                otherwise, "is not a whole number from 1 up");
    }

    /** Return a number, or the largest long where it is above that. */
    static long most(BigInteger number) {
        return number.min(BigInteger.valueOf(Long.MAX_VALUE)).longValueExact();
    }

    long size(String name, long otherwise, long maximum) {
        return parsed(name, value -> sized(value, maximum), otherwise,
                "is not a size such as 4m or 256m, from 1 to " + maximum + " bytes");
    }

    boolean flag(String name, boolean otherwise) {
        return parsed(name, value -> value.equalsIgnoreCase("true") ? Boolean.TRUE
                : value.equalsIgnoreCase("false") ? Boolean.FALSE : null, otherwise, "is neither true nor false");
    }

    String choice(String name, String... choices) {
        return parsed(name, value -> {
            String lower = value.toLowerCase(Locale.ROOT);
            return List.of(choices).contains(lower) ? lower : null;
        }, choices[0], "is not one of " + String.join(", ", choices));
    }

    private static Long sized(String value, long maximum) {
        Matcher match = SIZE.matcher(value);
        if (!match.matches()) {
            return null;
        }
        long number = Long.parseLong(match.group(1));
        int shift = "kmgt".indexOf(match.group(2).toLowerCase(Locale.ROOT) + "") * 10 + 10;
        shift = match.group(2).isEmpty() ? 0 : shift;
        return number == 0 || number > maximum >> shift ? null : Long.valueOf(number << shift);
    }

    /** Return the known name that is nearest to a mistyped one, or null where none is near. */
    static String closest(String name, Collection<String> known) {
        String best = null;
        int least = name.length() / 3 + 1;
        for (String one : known) {
            int far = distance(name.toLowerCase(Locale.ROOT), one.toLowerCase(Locale.ROOT));
            if (far < least || far == least && best != null && one.compareTo(best) < 0) {
                least = far;
                best = one;
            }
        }
        return best;
    }

    private static int distance(String one, String other) {
        int[] row = new int[other.length() + 1];
        for (int j = 0; j <= other.length(); j++) {
            row[j] = j;
        }
        for (int i = 1; i <= one.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j <= other.length(); j++) {
                int changed = diagonal + (one.charAt(i - 1) == other.charAt(j - 1) ? 0 : 1);
                diagonal = row[j];
                row[j] = Math.min(changed, Math.min(row[j], row[j - 1]) + 1);
            }
        }
        return row[other.length()];
    }
}
