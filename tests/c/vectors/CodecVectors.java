/* Prints the numbers that tests/c/base/test_cmq_hash.c, test_cmq_bloom.c and tests/c/store/record/test_cmq_property.c expect: what the
 * JDK, Guava and RocketMQ's own classes make of the inputs which those tests generate in the same way.
 *
 * Not part of any build. Run it with rocketmq-common, rocketmq-filter (5.3.3) and what they need on the class path:
 *   java -cp 'lib/*' tests/c/vectors/CodecVectors.java
 */
import com.google.common.hash.Hashing;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.util.BloomFilter;

public class CodecVectors {
    private static long state;
    private static long sum;

    private static void begin(long seed) {
        state = seed;
        sum = 0;
    }

    private static int next(int bound) {
        state = state * 6364136223846793005L + 1442695040888963407L;
        return (int) ((state >>> 33) % bound);
    }

    private static void add(long value) {
        sum = sum * 1000003 + value;
    }

    private static void print(String name) {
        System.out.printf("%s 0x%016x%n", name, sum);
    }

    private static final int[] LEADS_AND_TAILS = {
        0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2,
        0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xf8, 0xff};

    private static void hashes() {
        begin(1);
        for (int i = 0; i < 200000; i++) {
            byte[] text = new byte[next(24)];
            for (int j = 0; j < text.length; j++)
                text[j] = (byte) (next(4) == 0 ? next(128) : LEADS_AND_TAILS[next(LEADS_AND_TAILS.length)]);
            add(new String(text, StandardCharsets.UTF_8).hashCode() & 0xffffffffL);
        }
        print("jhash");
        begin(2);
        for (int i = 0; i < 20000; i++) {
            byte[] data = new byte[next(68)];
            for (int j = 0; j < data.length; j++) data[j] = (byte) next(256);
            add(Hashing.murmur3_128().hashBytes(data).asLong());
        }
        print("murmur3");
    }

    private static void blooms() {
        begin(0);
        for (int percent = 1; percent < 100; percent++) {
            for (int entries : new int[] {1, 2, 7, 32, 100, 1000, 99999}) {
                BloomFilter filter = BloomFilter.createByFn(percent, entries);
                add(filter.getK());
                add(filter.getM());
            }
        }
        print("bloom sizes");
        BloomFilter usual = BloomFilter.createByFn(20, 32), large = BloomFilter.createByFn(1, 1000);
        begin(3);
        for (int i = 0; i < 5000; i++) {
            String entry = "group" + next(1000) + "#Topic" + next(1000000);
            for (int position : usual.calcBitPositions(entry)) add(position);
            for (int position : large.calcBitPositions(entry)) add(position);
        }
        print("bloom positions");
    }

    private static final String[] PIECES = {
        "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_NUM", "X", "xTAGS", "\u0001", "\u0001", "\u0001", "\u0002",
        "\u0002", "\u0002", "a", "value", "some longer value of a property that passes a block"};

    private static void properties() {
        begin(4);
        for (int i = 0; i < 100000; i++) {
            StringBuilder text = new StringBuilder();
            int pieces = next(20);
            for (int j = 0; j < pieces; j++) text.append(PIECES[next(PIECES.length)]);
            Map<String, String> map = MessageDecoder.string2messageProperties(text.toString());
            long all = 0;
            for (Map.Entry<String, String> pair : map.entrySet())
                all += (pair.getKey().hashCode() * 31 + pair.getValue().hashCode()) & 0xffffffffL;
            add(all);
            for (String name : new String[] {"TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_NUM"}) {
                String value = map.get(name);
                add(value == null ? 0 : (value.hashCode() & 0xffffffffL) + 1);
            }
        }
        print("properties");
    }

    public static void main(String[] arguments) {
        hashes();
        blooms();
        properties();
    }
}
