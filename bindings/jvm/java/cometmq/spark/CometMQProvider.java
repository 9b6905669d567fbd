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
    private static final String AUTO = "auto";

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
        Choice choice = choose(given);
        return choice.options == null ? python().inferSchema(given) : Columns.chosen(new ReadOptions(choice.options));
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap(properties);
        String engine = engine(given);
        // Whether the table is read or written is known by the later calls only: options that Python must read may be
        // written with.
        boolean decidesLater = !engine.equals(PYTHON) && !given.containsKey("nameServer") && Store.unavailable() == null;
        if (!decidesLater) {
            Choice choice = choose(given);
            Table table = python().getTable(schema, partitioning, properties);
            return choice.reason == null ? table : new PythonsTable(table, choice.reason);
        }
        Options options = new Options(properties);
        return new CometMQTable(schema, options, ReadOptions.unsupported(options),
                engine.equals(JVM) ? null : () -> python().getTable(schema, partitioning, properties));
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
        String engine = given.getOrDefault("engine", AUTO).strip().toLowerCase(Locale.ROOT);
        if (!engine.equals(PYTHON) && !engine.equals(JVM) && !engine.equals(AUTO)) {
            throw new OptionException("engine", "'" + engine + "' is not one of auto, jvm, python");
        }
        return engine;
    }

    /**
     * The engine that reads.
     *
     * @param options the options where the JVM does, or null
     * @param reason why Python does although the JVM might, or null
     */
    record Choice(Options options, String reason) {}

    static Choice choose(CaseInsensitiveStringMap given) {
        String engine = engine(given);
        if (engine.equals(PYTHON)) {
            return new Choice(null, null);
        }
        Options options = new Options(given.asCaseSensitiveMap());
        String reason = ReadOptions.unsupported(options);
        if (reason == null) {
            reason = Store.unavailable();
            if (reason == null) {
                return new Choice(options, null);
            }
            LossPolicy.LOG.warn("{}; Python reads", reason);
        }
        if (engine.equals(JVM)) {
            throw new OptionException("engine", reason + "; engine=auto lets Python do it");
        }
        LossPolicy.LOG.info("engine=python: {}", reason);
        return new Choice(null, reason);
    }
}
