package cometmq.spark;

import cometmq.engine.Store;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Who answers a query where the native library cannot be loaded, and with which error. */
public final class WithoutLibrary {
    private WithoutLibrary() {}

    public static void main(String[] arguments) {
        for (String engine : List.of("auto", "jvm", "python")) {
            Map<String, String> options = Map.of("engine", engine, "path", arguments[0], "topic", "t");
            try {
                Options chosen = CometMQProvider.choose(new CaseInsensitiveStringMap(options)).options();
                System.out.println(engine + ": " + (chosen == null ? "Python" : "JVM"));
            } catch (OptionException error) {
                System.out.println(engine + ": " + error.getMessage());
            }
        }
        try {
            Store.open(arguments[0], List.of()).close();
        } catch (UnsatisfiedLinkError error) {
            System.out.println("open: " + error.getMessage());
        }
    }
}
