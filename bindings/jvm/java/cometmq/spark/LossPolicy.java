package cometmq.spark;

import java.io.Serializable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The action where messages are missing: fail, or log a warning and go on. */
record LossPolicy(boolean fails) implements Serializable {
    static final Logger LOG = LoggerFactory.getLogger("cometmq.spark");

    void lost(String text) {
        if (fails) {
            throw new DataLossException(text + "; option failOnDataLoss=false reads what is left");
        }
        LOG.warn("{}; what is left is read, as failOnDataLoss=false says", text);
    }
}
