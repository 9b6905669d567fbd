package cometmq.engine;

import com.github.luben.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.zip.InflaterInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;

/** Decompresses bodies for the engine: zlib by the JDK, LZ4 and ZSTD frames by the codecs that Spark brings. */
final class Inflating {
    private static final int INFLATED = 0;
    private static final int IS_CORRUPT = 1;
    private static final int IS_LIMIT = 2;
    private static final int PIECE_BYTES = 64 * 1024;
    private static final int FIRST_BYTES = 1 << 20;

    private Inflating() {}

    /**
     * Return an outcome in the first byte, and behind it the body or the text of the failure.
     *
     * <p>{@code stored} is valid during the call only.
     */
    static byte[] inflate(int sysFlag, ByteBuffer stored, int limit) {
        byte[] packed = new byte[stored.remaining()];
        stored.get(packed);
        int kind = sysFlag >> 8 & 7;
        String name = kind == 1 ? "LZ4" : kind == 2 ? "ZSTD" : "ZLIB";
        if (kind > 3) {
            return failure(IS_CORRUPT,
                    String.format("the system flag 0x%x names the unknown compression %d", sysFlag, kind));
        }
        if (packed.length == 0) {
            return failure(IS_CORRUPT, "an empty body is no " + name + " data");
        }
        ByteArrayOutputStream plain = new ByteArrayOutputStream(Math.min(packed.length, FIRST_BYTES) * 4);
        plain.write(INFLATED);
        try (InputStream stream = opened(kind, new ByteArrayInputStream(packed))) {
            byte[] piece = new byte[PIECE_BYTES];
            for (int read = stream.read(piece); read >= 0; read = stream.read(piece)) {
                if (read > limit - (plain.size() - 1)) {
                    return failure(IS_LIMIT, "a body of " + packed.length + " bytes unfolds to more than the limit of "
                            + limit + " bytes (" + name + ")");
                }
                plain.write(piece, 0, read);
            }
            return plain.toByteArray();
        } catch (OutOfMemoryError error) {
            // A small body may unfold to more than the heap holds: its row fails, and the executor goes on.
            return failure(IS_LIMIT, "a body of " + packed.length + " bytes unfolds to more than Java's heap has room for ("
                    + name + ")");
        } catch (IOException | RuntimeException error) {
            return failure(IS_CORRUPT,
                    "a body of " + packed.length + " bytes is not whole " + name + " data: " + error.getMessage());
        }
    }

    private static InputStream opened(int kind, InputStream packed) throws IOException {
        if (kind == 1) {
            return Lz4.opened(packed);
        }
        return kind == 2 ? Zstd.opened(packed) : new InflaterInputStream(packed);
    }

    /** Apart, so that the codec's class is looked for by the first LZ4 body. */
    private static final class Lz4 {
        static InputStream opened(InputStream packed) throws IOException {
            return new LZ4FrameInputStream(packed);
        }
    }

    /** The same for ZSTD. */
    private static final class Zstd {
        static InputStream opened(InputStream packed) throws IOException {
            return new ZstdInputStream(packed);
        }
    }

    private static byte[] failure(int outcome, String text) {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        byte[] made = new byte[utf8.length + 1];
        made[0] = (byte) outcome;
        System.arraycopy(utf8, 0, made, 1, utf8.length);
        return made;
    }
}
