package cometmq.spark;

import cometmq.engine.Batch;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Columns over the engine's memory. Each checks the row's number: behind a closed batch there are no rows. A column that
 * was not cleared keeps its batch, so that a thread that reads it never reads memory that another one let go.
 */
final class Vectors {
    private Vectors() {}

    /** The empty array of a column that the engine does not have. */
    static final Batch.Array NO_ARRAY = new Batch.Array(0, new long[] {0, 0, 0}, new Batch.Array[0]);

    /** Return a vector for a column, as yet without rows. */
    static EngineVector of(Columns.Column column) {
        DataType type = column.type();
        if (!column.isScanned()) {
            return new LogAppendTimeVector(type);
        }
        if (type.equals(DataTypes.BinaryType)) {
            return column.isBody() ? new ViewVector(type) : new TextVector(type);
        }
        if (type.equals(DataTypes.StringType)) {
            return new TextVector(type);
        }
        return type instanceof MapType || type instanceof ArrayType ? new PairsVector(type) : new NumberVector(type);
    }

    /** The common part of the vectors. */
    abstract static class EngineVector extends ColumnVector {
        private static final int VALIDITY = 0;

        protected long[] buffers = {0, 0, 0};
        @SuppressWarnings("unused") // holds the memory behind the addresses
        private Batch batch;
        private int rows;
        private int nulls;

        EngineVector(DataType type) {
            super(type);
        }

        /** Show the rows of an array of the batch. */
        void show(Batch from, Batch.Array array, int count) {
            batch = from;
            buffers = array.buffers();
            nulls = Math.toIntExact(array.nullCount());
            rows = count;
        }

        /** Show nothing any more. */
        void clear() {
            rows = 0;
        }

        protected final long checked(int row) {
            if (row < 0 || row >= rows) {
                throw new IndexOutOfBoundsException("row " + row + " of a batch of " + rows);
            }
            return row;
        }

        @Override
        public void close() {
            clear();
        }

        @Override
        public boolean hasNull() {
            return nulls > 0;
        }

        @Override
        public int numNulls() {
            return nulls;
        }

        @Override
        public boolean isNullAt(int row) {
            return nulls > 0
                    && (Platform.getByte(null, buffers[VALIDITY] + (checked(row) >> 3)) >> (row & 7) & 1) == 0;
        }

        @Override
        public boolean getBoolean(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte getByte(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public short getShort(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public int getInt(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long getLong(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public float getFloat(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public double getDouble(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarArray getArray(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarMap getMap(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            throw new UnsupportedOperationException();
        }

        @Override
        public UTF8String getUTF8String(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte[] getBinary(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnVector getChild(int at) {
            throw new UnsupportedOperationException();
        }
    }

    /** 32- and 64-bit integers, and times. */
    private static final class NumberVector extends EngineVector {
        NumberVector(DataType type) {
            super(type);
        }

        @Override
        public int getInt(int row) {
            return Platform.getInt(null, buffers[1] + 4 * checked(row));
        }

        @Override
        public long getLong(int row) {
            return Platform.getLong(null, buffers[1] + 8 * checked(row));
        }
    }

    /** Kafka's number for "the time at which it was stored". */
    private static final class LogAppendTimeVector extends EngineVector {
        private static final int LOG_APPEND_TIME = 1;

        LogAppendTimeVector(DataType type) {
            super(type);
        }

        @Override
        public int getInt(int row) {
            checked(row);
            return LOG_APPEND_TIME;
        }
    }

    /** Texts: a row's is read where it lies, or copied where bytes are wanted. */
    private static final class TextVector extends EngineVector {
        TextVector(DataType type) {
            super(type);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            if (isNullAt(row)) {
                return null;
            }
            long at = buffers[1] + 4 * checked(row);
            int start = Platform.getInt(null, at);
            return UTF8String.fromAddress(null, buffers[2] + start, Platform.getInt(null, at + 4) - start);
        }

        @Override
        public byte[] getBinary(int row) {
            UTF8String text = getUTF8String(row);
            return text == null ? null : text.getBytes();
        }
    }

    /** Bodies as Arrow's views into the log: the length, then the bytes themselves or prefix, buffer and offset. */
    private static final class ViewVector extends EngineVector {
        private static final int INLINE_BYTES = 12;

        ViewVector(DataType type) {
            super(type);
        }

        @Override
        public byte[] getBinary(int row) {
            if (isNullAt(row)) {
                return null;
            }
            long view = buffers[1] + 16 * checked(row);
            byte[] body = new byte[Platform.getInt(null, view)];
            long from = body.length <= INLINE_BYTES ? view + 4
                    : buffers[2 + Platform.getInt(null, view + 8)] + Platform.getInt(null, view + 12);
            Platform.copyMemory(null, from, body, Platform.BYTE_ARRAY_OFFSET, body.length);
            Batch.checkRead(from, body.length);
            return body;
        }
    }

    /** Properties: as a map, or as Kafka's headers, an array of pairs. */
    private static final class PairsVector extends EngineVector {
        private final TextVector keys = new TextVector(DataTypes.StringType);
        private final TextVector values;
        private final PairVector pairs;

        PairsVector(DataType type) {
            super(type);
            DataType pair = type instanceof ArrayType array ? array.elementType() : null;
            values = new TextVector(pair == null ? DataTypes.StringType : DataTypes.BinaryType);
            pairs = pair == null ? null : new PairVector(pair, keys, values);
        }

        @Override
        void show(Batch from, Batch.Array array, int count) {
            super.show(from, array, count);
            Batch.Array entries = array.children()[0];
            int all = Platform.getInt(null, buffers[1] + 4L * count);
            keys.show(from, entries.children()[0], all);
            values.show(from, entries.children()[1], all);
            if (pairs != null) {
                pairs.show(from, NO_ARRAY, all);
            }
        }

        @Override
        void clear() {
            super.clear();
            keys.clear();
            values.clear();
            if (pairs != null) {
                pairs.clear();
            }
        }

        private int start(int row) {
            return Platform.getInt(null, buffers[1] + 4 * checked(row));
        }

        private int count(int row) {
            return Platform.getInt(null, buffers[1] + 4 * (checked(row) + 1)) - start(row);
        }

        @Override
        public ColumnarMap getMap(int row) {
            return isNullAt(row) ? null : new ColumnarMap(keys, values, start(row), count(row));
        }

        @Override
        public ColumnarArray getArray(int row) {
            return isNullAt(row) ? null : new ColumnarArray(pairs, start(row), count(row));
        }
    }

    /** A header: key and value. */
    private static final class PairVector extends EngineVector {
        private final ColumnVector[] children;

        PairVector(DataType type, ColumnVector... children) {
            super(type);
            this.children = children;
        }

        @Override
        public ColumnVector getChild(int at) {
            return children[at];
        }
    }
}
