package cometmq.spark;

import cometmq.engine.Store;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("cometmq")} where the jar is present: Spark finds this class before the Python source of the same name.
 * The option {@code engine} says who answers; see docs/decisions/0035.
 */
public final class CometMQProvider implements TableProvider, DataSourceRegister, SessionConfigSupport {
    static final String NAME = "cometmq";

    private static final String PYTHON = "python";
    private static final String JVM = "jvm";

    private PythonDataSourceV2 python;

    @Override
    public String shortName() {
        return NAME;
    }

    /** Options of {@code spark.datasource.cometmq.*} are every query's. */
    @Override
    public String keyPrefix() {
        return NAME;
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap given) {
        Options options = jvmOptions(given);
        return options == null ? python().inferSchema(given) : Columns.chosen(new ReadOptions(options));
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(properties);
        // Whether the table is read or written is known by the later calls only.
        String reason = given.containsKey("nameServer") ? null : ReadOptions.unsupported(new Options(properties));
        Options options = reason == null || engine(given).equals(PYTHON) || Store.unavailable() != null ? jvmOptions(given)
                : new Options(properties);
        if (options == null) {
            return python().getTable(schema, partitioning, properties);
        }
        boolean onlyJvm = engine(given).equals(JVM);
        return new CometMQTable(schema, options, reason,
                onlyJvm ? null : () -> python().getTable(schema, partitioning, properties));
    }

    /** The source in Python, one for all calls: it keeps what it learnt of the options. */
    private PythonDataSourceV2 python() {
        if (python == null) {
            python = new PythonDataSourceV2();
            python.setShortName(NAME);
        }
        return python;
    }

    private static String engine(CaseInsensitiveStringMap given) {
        String engine = given.getOrDefault("engine", PYTHON).strip().toLowerCase(Locale.ROOT);
        if (!engine.equals(PYTHON) && !engine.equals(JVM) && !engine.equals("auto")) {
            throw new OptionException("engine", "'" + engine + "' is not one of auto, jvm, python");
        }
        return engine;
    }

    /** Return the options where the JVM is to read, or null. */
    static Options jvmOptions(CaseInsensitiveStringMap given) {
        String engine = engine(given);
        if (engine.equals(PYTHON)) {
            return null;
        }
        Options options = new Options(given.asCaseSensitiveMap());
        String reason = ReadOptions.unsupported(options);
        if (reason == null) {
            reason = Store.unavailable();
            if (reason == null) {
                return options;
            }
            LossPolicy.LOG.warn("{}; Python reads", reason);
        }
        if (engine.equals(JVM)) {
            throw new OptionException("engine", reason + "; engine=auto lets Python do it");
        }
        return null;
    }
}
