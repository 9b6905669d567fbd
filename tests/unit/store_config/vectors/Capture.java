import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;

/** Asks the real libraries; README.md says how. Every text is base64 of UTF-8, columns are separated by tabs. */
public class Capture {
    public static class Inner {
        private final int x;

        Inner(int x) {
            this.x = x;
        }

        public int getX() {
            return x;
        }

        public String getMissing() {
            return null;
        }
    }

    public static class Bean {
        public Map<Integer, Inner> getMap() {
            Map<Integer, Inner> map = new LinkedHashMap<>();
            map.put(0, new Inner(5));
            map.put(7, new Inner(6));
            return map;
        }

        public Set<Inner> getSet() {
            return new LinkedHashSet<>(Arrays.asList(new Inner(1), new Inner(2)));
        }

        public List<Inner> getBeans() {
            return Arrays.asList(new Inner(3), new Inner(4));
        }

        public List<Integer> getList() {
            return Arrays.asList(1, 2);
        }

        public int[] getArray() {
            return new int[] {1, 2};
        }

        public long[] getEmpty() {
            return new long[0];
        }

        public boolean isFlag() {
            return true;
        }
    }

    private static String base64(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static void write(String name, Object value) throws Exception {
        StringWriter browser = new StringWriter();
        JSON.writeJSONString(browser, value, SerializerFeature.BrowserCompatible);
        System.out.println(name + "\t" + base64(JSON.toJSONString(value, true)) + "\t"
            + base64(JSON.toJSONString(value, false)) + "\t" + base64(browser.toString()));
    }

    private static void writeAll() throws Exception {
        StringBuilder chars = new StringBuilder();
        for (int i = 0; i < 0x180; i++) {
            chars.append((char) i);
        }
        for (int i = 0x2020; i < 0x2030; i++) {
            chars.append((char) i);
        }
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("chars", chars.toString());
        map.put("beyond", "\uD83D\uDE00 \uFEFF\uFFFD");
        map.put("a\u0001\"\\/\u4e2d\t'", 1);
        map.put("", 2);
        write("text", map);
        write("bean", new Bean());
        map = new LinkedHashMap<>();
        map.put("null", null);
        map.put("onlyNull", Collections.singletonMap("x", null));
        map.put("emptyList", new ArrayList<>());
        map.put("list", new ArrayList<>(Arrays.asList(new ArrayList<>(), new HashMap<>(), null, true, "s")));
        write("empty", map);
        Map<Object, Object> mixed = new LinkedHashMap<>();
        mixed.put(1, "a");
        mixed.put("k", "b");
        mixed.put(2L, "c");
        mixed.put(-3, null);
        mixed.put(4, new LinkedHashMap<>(Collections.singletonMap(5L, 6)));
        write("mixed", mixed);
        map = new LinkedHashMap<>();
        map.put("scaled", new BigDecimal("1.50"));
        map.put("large", new BigDecimal("1E+3"));
        map.put("small", new BigDecimal("1.5E-10"));
        map.put("big", new BigInteger("123456789012345678901234567890"));
        map.put("least", Long.MIN_VALUE);
        map.put("most", Long.MAX_VALUE);
        map.put("safe", 9007199254740991L);
        map.put("unsafe", 9007199254740992L);
        write("numbers", map);
    }

    private static String read(String text) {
        try {
            return "ok\t" + base64(String.valueOf(JSON.toJSONString(JSON.parse(text))));
        } catch (RuntimeException error) {
            return "error\t";
        }
    }

    private static String properties(String text) {
        Properties properties = new Properties();
        try {
            properties.load(new ByteArrayInputStream(text.getBytes(StandardCharsets.ISO_8859_1)));
        } catch (Exception error) {
            return "error\t";
        }
        return "ok\t" + base64(JSON.toJSONString(new TreeMap<>(properties)));
    }

    private static String order(String text) {
        Map<String, Integer> map = new HashMap<>(128);
        Set<String> set = new HashSet<>(8);
        for (String key : text.split(",")) {
            map.put(key, 1);
            set.add(key);
        }
        return base64(String.join(",", map.keySet())) + "\t" + base64(String.join(",", set));
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("write")) {
            writeAll();
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String column = line.split("\t")[0];
            String text = new String(Base64.getDecoder().decode(column), StandardCharsets.UTF_8);
            String answer = arguments[0].equals("read") ? read(text)
                : arguments[0].equals("properties") ? properties(text) : order(text);
            System.out.println(column + "\t" + answer);
        }
    }
}
