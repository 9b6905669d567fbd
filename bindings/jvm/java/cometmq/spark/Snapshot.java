package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import cometmq.engine.Store;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The messages of a loaded frame: ranges whose ends are fixed when its first query is planned, and their sizes. */
final class Snapshot {
    final Tasks.Sized sized;
    final List<String> batchTopics;

    private final ReadOptions options;

    Snapshot(ReadOptions options) {
        this.options = options;
        try (Catalog catalog = new Catalog(options)) {
            Map<QueueKey, Catalog.Ends> queues = catalog.selected(true);
            catalog.checkEnd();
            Map<QueueKey, Long> starts = catalog.starts(queues, Catalog.EARLIEST);
            Map<QueueKey, Long> ends = catalog.ends(queues);
            List<Range> ranges = new ArrayList<>();
            starts.forEach((key, start) -> ranges.add(
                    new Range(key.topic(), key.id(), start, Math.max(start, ends.get(key)))));
            sized = catalog.sized(ranges);
            batchTopics = catalog.batchTopics();
        }
    }

    /** Fail where messages of ranges that were fixed before have expired since. */
    void requireAll(List<Range> fixed) {
        try (Store store = Catalog.open(options.path, batchTopics)) {
            Catalog.rowsThere(store, fixed, new LossPolicy(options.failOnDataLoss));
        }
    }
}
