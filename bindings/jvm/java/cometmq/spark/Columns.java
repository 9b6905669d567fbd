package cometmq.spark;

import cometmq.engine.ScanRequest;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of the source: names, Spark's types, and the engine's columns behind them. */
final class Columns {
    static final int TOPIC = 0;
    static final int QUEUE_ID = 1;
    static final int QUEUE_OFFSET = 2;
    static final int BODY = 3;
    static final int TAGS = 5;
    static final int KEYS = 6;
    static final int STORE_TIMESTAMP = 9;
    private static final int UNIQUE_ID = 7;
    private static final int PROPERTIES = 10;
    private static final int PROPERTY = 11;
    private static final int CONSTANT = 21;
    private static final int LOG_APPEND_TIME = -1; // not the engine's: a number that is the same in every row
    private static final int DEFAULT = 0;
    private static final int VIEW = 1;
    private static final int PLAIN = 2;
    private static final int MICROS = 5;
    private static final String PROPERTY_PREFIX = "prop:";

    private static final DataType MAP = DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType, true);
    private static final DataType HEADERS = DataTypes.createArrayType(new StructType()
            .add("key", DataTypes.StringType).add("value", DataTypes.BinaryType));
    private static final Map<String, Column> NATIVE = new LinkedHashMap<>();
    /** The columns of Spark's Kafka source. None has the name of another column above. */
    private static final Map<String, Column> KAFKA = new LinkedHashMap<>();
    private static final List<String> DEFAULTS = List.of("topic", "queueId", "queueOffset", "body", "tags", "keys",
            "bornTimestamp", "storeTimestamp");

    static {
        add("topic", DataTypes.StringType, TOPIC);
        add("queueId", DataTypes.IntegerType, QUEUE_ID);
        add("queueOffset", DataTypes.LongType, QUEUE_OFFSET);
        add("body", DataTypes.BinaryType, BODY);
        add("tags", DataTypes.StringType, TAGS);
        add("keys", DataTypes.StringType, KEYS);
        add("bornTimestamp", DataTypes.TimestampType, 8);
        add("storeTimestamp", DataTypes.TimestampType, STORE_TIMESTAMP);
        add("properties", MAP, PROPERTIES);
        add("bodyBytes", DataTypes.LongType, 4);
        add("flag", DataTypes.IntegerType, 12);
        add("sysFlag", DataTypes.IntegerType, 13);
        add("reconsumeTimes", DataTypes.IntegerType, 14);
        add("msgId", DataTypes.StringType, 15);
        add("uniqueId", DataTypes.StringType, UNIQUE_ID);
        add("commitLogOffset", DataTypes.LongType, 16);
        add("bornHost", DataTypes.StringType, 17);
        add("storeHost", DataTypes.StringType, 18);
        add("bodyCrc", DataTypes.IntegerType, 19);
        add("preparedTransactionOffset", DataTypes.LongType, 20);
        addKafka("key", DataTypes.BinaryType, KEYS);
        addKafka("value", DataTypes.BinaryType, BODY);
        addKafka("topic", DataTypes.StringType, TOPIC);
        addKafka("partition", DataTypes.IntegerType, QUEUE_ID);
        addKafka("offset", DataTypes.LongType, QUEUE_OFFSET);
        addKafka("timestamp", DataTypes.TimestampType, STORE_TIMESTAMP);
        addKafka("timestampType", DataTypes.IntegerType, LOG_APPEND_TIME);
        addKafka("headers", HEADERS, PROPERTIES);
    }

    /** A column; {@code kind} is a number of cmq_scan_kind. */
    record Column(String name, DataType type, int kind, String property) implements java.io.Serializable {
        ScanRequest.Column scanned() {
            int form = kind == BODY ? VIEW
                    : type.equals(DataTypes.TimestampType) ? MICROS
                            : kind == KEYS || type.equals(DataTypes.StringType) ? PLAIN : DEFAULT;
            return new ScanRequest.Column(kind, form, property);
        }

        /** Return whether the engine has the column; else every row has the same number there. */
        boolean isScanned() {
            return kind != LOG_APPEND_TIME;
        }

        boolean isBody() {
            return kind == BODY;
        }

        boolean mayBeNull() {
            return kind == TAGS || kind == KEYS || kind == UNIQUE_ID || kind == PROPERTY;
        }
    }

    private Columns() {}

    private static void add(String name, DataType type, int kind) {
        NATIVE.put(name, new Column(name, type, kind, ""));
    }

    private static void addKafka(String name, DataType type, int kind) {
        KAFKA.put(name, new Column(name, type, kind, ""));
    }

    /** Return the schema that the options choose. */
    static StructType chosen(ReadOptions options) {
        if (options.isKafka) {
            StructType schema = new StructType();
            for (Column column : KAFKA.values()) {
                schema = column.kind() != PROPERTIES || options.includeProperties
                        ? schema.add(column.name(), column.type(), true) : schema;
            }
            return schema;
        }
        List<String> names = new ArrayList<>(options.columns.isEmpty() ? DEFAULTS : options.columns);
        if (options.includeProperties && !names.contains("properties")) {
            names.add("properties");
        }
        StructType schema = new StructType();
        for (String name : names) {
            schema = schema.add(name, named(name, "columns", options).type(), true);
        }
        return schema;
    }

    /** Return the columns of Spark's schema: ours, or one that was narrowed. */
    static List<Column> of(StructType schema, ReadOptions options) {
        List<Column> columns = new ArrayList<>();
        for (StructField field : schema.fields()) {
            Column column = named(field.name(), "schema", options);
            if (!field.dataType().simpleString().equals(column.type().simpleString())) {
                throw new OptionException("schema", "the column " + field.name() + " is " + column.type().simpleString()
                        + ", not " + field.dataType().simpleString());
            }
            if (!field.nullable() && column.mayBeNull()) {
                throw new OptionException("schema",
                        "the column " + field.name() + " may have nulls: leave NOT NULL out");
            }
            columns.add(column);
        }
        return columns;
    }

    /** Return the kind of a column by its name, or -1 where filters and aggregates cannot use it. */
    static int kindOf(String name) {
        Column column = byName(name);
        return column == null || column.type().equals(DataTypes.BinaryType) || !column.isScanned() ? -1 : column.kind();
    }

    /** Return whether every message has a value there. */
    static boolean isNeverNull(String name) {
        Column column = byName(name);
        return column != null && !column.mayBeNull();
    }

    private static Column byName(String name) {
        return NATIVE.getOrDefault(name, KAFKA.get(name));
    }

    private static Column named(String name, String option, ReadOptions options) {
        if (options.isKafka) {
            return known(name, option, KAFKA, "");
        }
        if (name.startsWith(PROPERTY_PREFIX) && name.length() > PROPERTY_PREFIX.length()) {
            return new Column(name, DataTypes.StringType, PROPERTY, name.substring(PROPERTY_PREFIX.length()));
        }
        if (name.equals("brokerName")) {
            if (options.brokerName == null) {
                throw new OptionException("brokerName",
                        "a store does not know its broker's name: give it for this column");
            }
            return new Column(name, DataTypes.StringType, CONSTANT, options.brokerName);
        }
        return known(name, option, NATIVE, ", and prop:NAME for a property");
    }

    private static Column known(String name, String option, Map<String, Column> columns, String more) {
        Column found = columns.get(name);
        if (found == null) {
            String close = Options.closest(name, columns.keySet());
            throw new OptionException(option, "there is no column '" + name + "'; "
                    + (close != null ? "did you mean " + close + "?"
                            : "there are " + String.join(", ", columns.keySet()) + more));
        }
        return found;
    }
}
