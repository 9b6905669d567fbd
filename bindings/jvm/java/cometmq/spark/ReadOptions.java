package cometmq.spark;

import cometmq.engine.EngineException;
import cometmq.engine.Store;
import java.math.BigInteger;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** Options of reading a store's files, in batches and streams; as src/cometmq/spark/options.py, which documents them. */
final class ReadOptions {
    private static final Pattern PLAIN_TAG = Pattern.compile("[^\\s|=<>!,()'\"&]+");
    /** Regular expressions that mean the same in Java and Python, for the letters that topics have. */
    private static final Pattern COMMON_PATTERN = Pattern.compile("(?:[A-Za-z0-9_.*?|)^$%\\]-]|\\+(?!\\+)|\\[(?!\\^?\\[)"
            + "|\\((?!\\?)|\\(\\?:|\\\\[dDwW.+*?|()\\[\\]$^-]){0,400}");
    private static final List<String> STARTS =
            List.of("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp");
    private static final List<String> ENDS = List.of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp");
    private static final int BATCH_ROWS_MAX = 1 << 20;
    private static final long TRIGGER_DELAY_MS = 15 * 60_000;
    private static final Pattern DURATION =
            Pattern.compile("(\\d+)\\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?)", Pattern.CASE_INSENSITIVE);
    private static final Pattern TIME = Pattern.compile(
            "(\\d{4}-\\d\\d-\\d\\d)[T ](\\d\\d)(:[\\d:.]+)?([zZ]|([+-]\\d\\d)(?::?(\\d\\d))?)?", Pattern.CASE_INSENSITIVE);

    final String path;
    final List<String> topics;
    final Pattern pattern;
    final String assigned;
    final Side starting;
    final Side ending;
    final List<String> tags;
    final List<String> keys;
    final String where;
    final Long minPartitions;
    final long maxPartitionBytes;
    final boolean failOnDataLoss;
    final boolean skipCorrupt;
    final List<String> columns;
    final boolean includeProperties;
    final boolean isKafka;
    final String brokerName;
    final int batchRows;
    final int batchBytes;
    final Long maxOffsetsPerTrigger;
    final Long minOffsetsPerTrigger;
    final Long maxBytesPerTrigger;
    final long maxTriggerDelayMs;

    private final Options given;

    /** Where reading begins or ends. At most one is given. */
    record Side(String name, String offsets, Long timestamp, String offsetsByTimestamp) {}

    /** Return why the JVM cannot answer these options, or null. Nothing is checked that it can. */
    static String unsupported(Options options) {
        if (options.text("nameServer") != null) {
            return "brokers are reached through Python (nameServer)";
        }
        if (options.text("config") != null) {
            return "a broker's settings file is read through Python (config)";
        }
        if (options.text("commitOffsets") != null || options.text("groupId") != null) {
            return "consumer groups' offsets are committed by Python (commitOffsets)";
        }
        String pattern = options.text("subscribePattern");
        if (pattern != null && !COMMON_PATTERN.matcher(pattern).matches()) {
            return "such regular expressions are Python's (subscribePattern)";
        }
        String tags = options.text("tags");
        if (tags != null && !tags.isEmpty()) {
            for (String part : tags.split("\\|\\|")) {
                if (!PLAIN_TAG.matcher(part.strip()).matches()) {
                    return "Python checks such tags (" + tags + ")";
                }
            }
        }
        return null;
    }

    ReadOptions(Options options) {
        given = options;
        options.refuse(Options.WRITE_ONLY, "is an option of writing, not of reading");
        path = options.parsed("path", ReadOptions::localPath, null,
                "is not a local path; the store must be a directory that this machine and every executor see");
        if (path == null) {
            throw new OptionException("path", "is missing; it is the store's directory, the one that holds commitlog; "
                    + "or give nameServer, host:port, to go through brokers");
        }
        options.refuse(List.of("pullTimeoutMs"), "belongs to nameServer: files are not waited for");
        List<String> given = new ArrayList<>(List.of("topic", "subscribePattern", "assign"));
        given.removeIf(name -> options.text(name) == null);
        if (given.size() != 1) {
            throw new OptionException(given.isEmpty() ? "topic" : given.get(0),
                    (given.isEmpty() ? "is missing" : "cannot be given together with " + given.get(1))
                            + "; give one of topic (a comma list), subscribePattern and assign");
        }
        topics = names(options, "topic");
        pattern = options.parsed("subscribePattern", ReadOptions::regex, null, "is not a regular expression");
        assigned = options.text("assign");
        starting = side(options, "starting", STARTS);
        ending = side(options, "ending", ENDS);
        tags = tags(options.text("tags"));
        keys = names(options, "keys");
        where = selecting(options);
        minPartitions = options.whole("minPartitions", null);
        maxPartitionBytes = options.size("maxPartitionBytes", 256 << 20, Long.MAX_VALUE);
        failOnDataLoss = options.flag("failOnDataLoss", true);
        skipCorrupt = options.choice("onCorrupt", "fail", "skip").equals("skip");
        columns = names(options, "columns");
        includeProperties = options.flag("includeProperties", false);
        isKafka = options.choice("schema", "cometmq", "kafka").equals("kafka");
        options.flag("pushdown", false); // the JVM always pushes
        brokerName = options.text("brokerName");
        long rows = options.whole("batchRows", 8192L);
        if (rows > BATCH_ROWS_MAX) {
            throw new OptionException("batchRows", rows + " is above " + BATCH_ROWS_MAX);
        }
        batchRows = (int) rows;
        batchBytes = (int) options.size("batchBytes", 4 << 20, 1 << 30);
        if (isKafka && !columns.isEmpty()) {
            throw new OptionException("columns", "cannot be given together with schema=kafka");
        }
        maxOffsetsPerTrigger = options.whole("maxOffsetsPerTrigger", null);
        minOffsetsPerTrigger = options.whole("minOffsetsPerTrigger", null);
        maxBytesPerTrigger = options.text("maxBytesPerTrigger") == null ? null
                : Long.valueOf(options.size("maxBytesPerTrigger", 0, Long.MAX_VALUE));
        maxTriggerDelayMs = options.parsed("maxTriggerDelay", ReadOptions::durationMs, TRIGGER_DELAY_MS,
                "is not a time such as 30s or 15m");
        if (!keys.isEmpty() && pattern != null) {
            throw new OptionException("keys", "are looked up topic by topic: give topic, not subscribePattern");
        }
    }

    /** Refuse options of streams, in a batch. */
    void requireBatch() {
        given.refuse(Options.STREAM_ONLY, "is an option of readStream; a batch reads what is there once");
    }

    /** Refuse options of batches, in a stream. */
    void requireStream() {
        given.refuse(ENDS, "is an option of read; a stream has no end");
        given.refuse(List.of("keys"), "is an option of read; in a stream filter the column keys");
        given.refuse(List.of("pushdown"), "is an option of read; Spark pushes no filters into streams");
    }

    /** Return an SQL92 expression that compiles, or null; executors compile it again. */
    private static String selecting(Options options) {
        String value = options.text("where");
        if (value == null) {
            return null;
        }
        try {
            Store.checkSelector(value);
        } catch (EngineException.InvalidArgument | EngineException.LimitReached error) {
            throw new OptionException("where", "'" + value + "' cannot be used: " + error.getMessage(), error);
        }
        return value;
    }

    private static Long durationMs(String value) {
        Matcher match = DURATION.matcher(value);
        if (!match.matches()) {
            return null;
        }
        String unit = match.group(2).toLowerCase(Locale.ROOT);
        long each = unit.equals("ms") ? 1 : unit.startsWith("s") ? 1000 : unit.startsWith("m") ? 60_000 : 3_600_000;
        return Options.most(new BigInteger(match.group(1)).multiply(BigInteger.valueOf(each)));
    }

    private static Side side(Options options, String name, List<String> choices) {
        List<String> given = new ArrayList<>(choices);
        given.removeIf(choice -> options.text(choice) == null);
        if (given.size() > 1) {
            throw new OptionException(given.get(1),
                    "cannot be given together with " + given.get(0) + ": both say where the " + name + " is");
        }
        return new Side(name, options.text(choices.get(0)), options.parsed(choices.get(1), ReadOptions::timeMs, null,
                "is neither milliseconds since 1970 nor a time (2026-11-21, 2026-11-21T10:00:00+00:00)"),
                options.text(choices.get(2)));
    }

    private static List<String> names(Options options, String option) {
        return options.parsed(option, value -> {
            LinkedHashSet<String> found = new LinkedHashSet<>();
            for (String part : value.split(",")) {
                if (!part.isBlank()) {
                    found.add(part.strip());
                }
            }
            return found.isEmpty() ? null : List.copyOf(found);
        }, List.of(), "names nothing");
    }

    private static List<String> tags(String expression) {
        LinkedHashSet<String> found = new LinkedHashSet<>();
        for (String part : expression == null ? new String[0] : expression.split("\\|\\|")) {
            if (!part.isBlank()) {
                found.add(part.strip());
            }
        }
        return found.contains("*") ? List.of() : List.copyOf(found);
    }

    private static Pattern regex(String value) {
        try {
            return Pattern.compile(value);
        } catch (PatternSyntaxException error) {
            return null;
        }
    }

    private static String localPath(String value) {
        try {
            if (value.startsWith("file:")) {
                return new URI(value).getPath();
            }
        } catch (URISyntaxException error) {
            return null;
        }
        return value.isEmpty() || value.contains("://") ? null : Path.of(value).toAbsolutePath().normalize().toString();
    }

    private static Long timeMs(String value) {
        try {
            if (value.matches("-?\\d{1,18}")) {
                return Long.valueOf(value);
            }
            if (value.matches("\\d{4}-\\d\\d-\\d\\d")) {
                return LocalDate.parse(value).atStartOfDay(ZoneId.systemDefault()).toInstant().toEpochMilli();
            }
            Matcher match = TIME.matcher(value);
            if (!match.matches()) {
                return null;
            }
            // java.time wants minutes, in a time and in its distance from UTC, which ISO 8601 and Python do without.
            String time = match.group(1) + "T" + match.group(2) + (match.group(3) == null ? ":00" : match.group(3));
            if (match.group(4) == null) {
                return LocalDateTime.parse(time).atZone(ZoneId.systemDefault()).toInstant().toEpochMilli();
            }
            String offset = match.group(5) == null ? "Z"
                    : match.group(5) + ":" + (match.group(6) == null ? "00" : match.group(6));
            return OffsetDateTime.parse(time + offset).toInstant().toEpochMilli();
        } catch (DateTimeException error) {
            return null;
        }
    }

    static ReadOptions of(Map<String, String> given) {
        return new ReadOptions(new Options(given));
    }
}
