package io.cometmq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Answers of upstream's SQL92 evaluator. Input: {"expressions": [...], "properties": [{...}, ...]}. Output: for each
 * expression one letter per set of properties, T, F, N (null), O (another value) or E (an exception); "refused" where
 * it does not compile.
 */
public final class Selectors {
    private Selectors() {
    }

    private record Properties(Map<String, Object> values) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }

    private static char evaluate(Expression expression, Map<String, Object> properties) {
        try {
            Object value = expression.evaluate(new Properties(properties));
            return value == null ? 'N' : value == Boolean.TRUE ? 'T' : value == Boolean.FALSE ? 'F' : 'O';
        } catch (Exception e) {
            return 'E';
        }
    }

    private static String answers(String text, List<Map<String, Object>> sets) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (MQFilterException e) {
            return "refused";
        }
        StringBuilder letters = new StringBuilder();
        for (Map<String, Object> set : sets) {
            letters.append(evaluate(expression, set));
        }
        return letters.toString();
    }

    public static void main(String[] arguments) throws IOException {
        JSONObject input = JSON.parseObject(new String(System.in.readAllBytes(), StandardCharsets.UTF_8));
        List<Map<String, Object>> sets = new ArrayList<>();
        for (Object set : input.getJSONArray("properties")) {
            sets.add((JSONObject) set);
        }
        Map<String, String> answers = new LinkedHashMap<>();
        for (Object text : input.getJSONArray("expressions")) {
            answers.put((String) text, answers((String) text, sets));
        }
        System.out.write((JSON.toJSONString(answers) + "\n").getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }
}
