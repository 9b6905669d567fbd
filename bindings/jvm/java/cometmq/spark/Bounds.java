package cometmq.spark;

import cometmq.engine.ScanRequest.Range;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Or;

/**
 * The part of the messages that filters leave to be read. A null set is no bound. A filter's bounds hold for every row
 * that passes it; unless the filter is exact, other rows may be within them, too.
 */
record Bounds(Set<String> topics, Set<Integer> queueIds, long queueLow, long queueHigh, long offsetLow, long offsetHigh,
        Long timeLowMs, Long timeHighMs, Set<String> tags, Set<String> keys) {
    static final Bounds NONE = new Bounds(null, null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null, null, null, null);

    /** Store times fall where a broker's clock was set back. Larger steps than this are not expected. */
    private static final long CLOCK_STEP_MS = 60_000;
    private static final char MENDED = '\ufffd'; // stands in a row for bytes that are not UTF-8

    static Bounds of(Filter filter) {
        if (filter instanceof And and) {
            return of(and.left()).and(of(and.right()));
        }
        if (filter instanceof Or or) {
            return of(or.left()).or(of(or.right()));
        }
        if (filter instanceof EqualTo equal) {
            return among(equal.attribute(), new Object[] {equal.value()});
        }
        if (filter instanceof EqualNullSafe equal && equal.value() != null) {
            return among(equal.attribute(), new Object[] {equal.value()});
        }
        if (filter instanceof In in) {
            return among(in.attribute(), in.values());
        }
        if (filter instanceof GreaterThan greater) {
            return from(greater.attribute(), greater.value(), 1);
        }
        if (filter instanceof GreaterThanOrEqual greater) {
            return from(greater.attribute(), greater.value(), 0);
        }
        if (filter instanceof LessThan less) {
            return upTo(less.attribute(), less.value(), 1);
        }
        if (filter instanceof LessThanOrEqual less) {
            return upTo(less.attribute(), less.value(), 0);
        }
        return NONE;
    }

    /** Return whether the bounds let through what the filter does and nothing else, where no topic is a light one. */
    static boolean isExact(Filter filter) {
        if (filter instanceof And and) {
            return isExact(and.left()) && isExact(and.right());
        }
        if (filter instanceof IsNotNull notNull) {
            return Columns.isNeverNull(notNull.attribute());
        }
        if (filter instanceof EqualTo equal) {
            int kind = Columns.kindOf(equal.attribute());
            return equal.value() != null
                    && (kind == Columns.TOPIC || kind == Columns.QUEUE_ID || kind == Columns.QUEUE_OFFSET);
        }
        if (filter instanceof In in) {
            int kind = Columns.kindOf(in.attribute());
            return kind == Columns.TOPIC || kind == Columns.QUEUE_ID;
        }
        return filter instanceof GreaterThan greater && isNumber(greater.attribute())
                || filter instanceof GreaterThanOrEqual greaterEqual && isNumber(greaterEqual.attribute())
                || filter instanceof LessThan less && isNumber(less.attribute())
                || filter instanceof LessThanOrEqual lessEqual && isNumber(lessEqual.attribute());
    }

    private static boolean isNumber(String attribute) {
        int kind = Columns.kindOf(attribute);
        return kind == Columns.QUEUE_ID || kind == Columns.QUEUE_OFFSET;
    }

    // --- Single filters

    private static Bounds among(String attribute, Object[] values) {
        List<Object> given = new ArrayList<>();
        for (Object value : values) {
            if (value != null) {
                given.add(value);
            }
        }
        switch (Columns.kindOf(attribute)) {
            case Columns.TOPIC:
                return new Bounds(texts(given), null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null, null, null, null);
            case Columns.TAGS:
                return given.stream().allMatch(one -> isPlainTag((String) one))
                        ? new Bounds(null, null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null, null, texts(given), null)
                        : NONE;
            case Columns.KEYS:
                return given.stream().allMatch(one -> isOneKey((String) one))
                        ? new Bounds(null, null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null, null, null, texts(given))
                        : NONE;
            case Columns.QUEUE_ID:
                Set<Integer> ids = new HashSet<>();
                given.forEach(one -> ids.add(((Number) one).intValue()));
                return new Bounds(null, ids, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null, null, null, null);
            case Columns.QUEUE_OFFSET:
                long low = given.stream().mapToLong(one -> ((Number) one).longValue()).min().orElse(Long.MAX_VALUE);
                long high = given.stream().mapToLong(one -> ((Number) one).longValue()).max().orElse(Long.MIN_VALUE);
                return new Bounds(null, null, 0, Long.MAX_VALUE, low, high, null, null, null, null);
            case Columns.STORE_TIMESTAMP:
                Bounds found = null;
                for (Object one : given) {
                    Bounds at = from(attribute, one, 0).and(upTo(attribute, one, 0));
                    found = found == null ? at : found.or(at);
                }
                return found == null ? NONE : found;
            default:
                return NONE;
        }
    }

    private static Bounds from(String attribute, Object value, int step) {
        return switch (Columns.kindOf(attribute)) {
            case Columns.QUEUE_ID -> new Bounds(null, null, up(value, step), Long.MAX_VALUE, 0, Long.MAX_VALUE, null,
                    null, null, null);
            case Columns.QUEUE_OFFSET -> new Bounds(null, null, 0, Long.MAX_VALUE, up(value, step), Long.MAX_VALUE,
                    null, null, null, null);
            case Columns.STORE_TIMESTAMP -> new Bounds(null, null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE,
                    milliseconds(value) - CLOCK_STEP_MS, null, null, null);
            default -> NONE;
        };
    }

    private static Bounds upTo(String attribute, Object value, int step) {
        return switch (Columns.kindOf(attribute)) {
            case Columns.QUEUE_ID -> new Bounds(null, null, 0, down(value, step), 0, Long.MAX_VALUE, null, null, null,
                    null);
            case Columns.QUEUE_OFFSET -> new Bounds(null, null, 0, Long.MAX_VALUE, 0, down(value, step), null, null,
                    null, null);
            case Columns.STORE_TIMESTAMP -> new Bounds(null, null, 0, Long.MAX_VALUE, 0, Long.MAX_VALUE, null,
                    milliseconds(value) + CLOCK_STEP_MS, null, null);
            default -> NONE;
        };
    }

    /** More than the highest number is none of the rows, so it stays there. */
    private static long up(Object value, int step) {
        long number = ((Number) value).longValue();
        return number == Long.MAX_VALUE ? number : number + step;
    }

    private static long down(Object value, int step) {
        long number = ((Number) value).longValue();
        return number == Long.MIN_VALUE ? number : number - step;
    }

    private static long milliseconds(Object value) {
        Instant moment = value instanceof java.sql.Timestamp old ? old.toInstant() : (Instant) value;
        return moment.toEpochMilli();
    }

    private static Set<String> texts(List<Object> values) {
        Set<String> found = new HashSet<>();
        values.forEach(one -> found.add((String) one));
        return found;
    }

    /** Return whether a subscription can name the tag as it is. */
    private static boolean isPlainTag(String tag) {
        return !tag.isEmpty() && tag.indexOf('|') < 0 && tag.equals(tag.strip()) && !tag.equals("*")
                && tag.indexOf(MENDED) < 0 && tag.indexOf(0) < 0;
    }

    /** Return whether the column has one key: blanks divide several. */
    private static boolean isOneKey(String keys) {
        return !keys.isEmpty() && keys.chars().noneMatch(letter -> Character.isWhitespace(letter)
                || Character.isSpaceChar(letter) || letter == MENDED || letter == 0);
    }

    // --- Together

    Bounds and(Bounds other) {
        return new Bounds(both(topics, other.topics), both(queueIds, other.queueIds),
                Math.max(queueLow, other.queueLow), Math.min(queueHigh, other.queueHigh),
                Math.max(offsetLow, other.offsetLow), Math.min(offsetHigh, other.offsetHigh),
                timeLowMs == null ? other.timeLowMs
                        : other.timeLowMs == null ? timeLowMs : Long.valueOf(Math.max(timeLowMs, other.timeLowMs)),
                timeHighMs == null ? other.timeHighMs
                        : other.timeHighMs == null ? timeHighMs : Long.valueOf(Math.min(timeHighMs, other.timeHighMs)),
                both(tags, other.tags), both(keys, other.keys));
    }

    Bounds or(Bounds other) {
        return new Bounds(either(topics, other.topics), either(queueIds, other.queueIds),
                Math.min(queueLow, other.queueLow), Math.max(queueHigh, other.queueHigh),
                Math.min(offsetLow, other.offsetLow), Math.max(offsetHigh, other.offsetHigh),
                timeLowMs == null || other.timeLowMs == null ? null
                        : Long.valueOf(Math.min(timeLowMs, other.timeLowMs)),
                timeHighMs == null || other.timeHighMs == null ? null
                        : Long.valueOf(Math.max(timeHighMs, other.timeHighMs)),
                either(tags, other.tags), either(keys, other.keys));
    }

    private static <T> Set<T> both(Set<T> one, Set<T> other) {
        if (one == null || other == null) {
            return one == null ? other : one;
        }
        Set<T> found = new HashSet<>(one);
        found.retainAll(other);
        return found;
    }

    private static <T> Set<T> either(Set<T> one, Set<T> other) {
        if (one == null || other == null) {
            return null;
        }
        Set<T> found = new HashSet<>(one);
        found.addAll(other);
        return found;
    }

    /** Return the part of a range that can match, which may be empty. */
    Range narrowed(Range range) {
        boolean isLight = Topics.isLight(range.topic()); // its rows are of other topics
        boolean keeps = (topics == null || isLight || topics.contains(range.topic()))
                && (queueIds == null || isLight || queueIds.contains(range.queueId()))
                && (isLight || queueLow <= range.queueId() && range.queueId() <= queueHigh);
        long start = Math.max(range.start(), offsetLow);
        long end = offsetHigh < range.end() ? Math.max(offsetHigh + 1, start) : range.end();
        return keeps && start < end ? new Range(range.topic(), range.queueId(), start, end)
                : new Range(range.topic(), range.queueId(), range.start(), range.start());
    }
}
