package cometmq.spark;

import java.io.Serializable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The action where messages are missing: fail, or log a warning and continue. */
record LossPolicy(boolean fails) implements Serializable {
    static final Logger LOG = LoggerFactory.getLogger("cometmq.spark");

    void lost(String text) {
        if (fails) {
            throw new DataLossException(text + "; set the option failOnDataLoss=false to read the remaining messages");
        }
        LOG.warn("{}; reading the remaining messages (failOnDataLoss=false)", text);
    }
}
