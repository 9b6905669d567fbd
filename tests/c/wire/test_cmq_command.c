/* Tests csrc/wire/cmq_command*.c: the worked examples of the specification, frames of real clients and brokers read and
 * written again with the same bytes, what is accepted beyond Java's own output, what is refused, and limits. */
#include "wire/cmq_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_frame_kit.h"
#include "support/cmq_test.h"

static void check_text(int line, cmq_slice actual, const char *expected)
{
    if (actual.bytes != strlen(expected) || (actual.bytes > 0 && memcmp(actual.data, expected, actual.bytes) != 0))
        cmq_test_fail(__FILE__, line, "`%.*s` is not `%s`", (int)actual.bytes, (const char *)actual.data, expected);
}
#define CHECK_TEXT(actual, expected) check_text(__LINE__, actual, expected)

static void check_field(int line, const cmq_command *command, const char *name, const char *expected)
{
    cmq_slice value;
    if (!cmq_command_find(command, name, &value)) cmq_test_fail(__FILE__, line, "there is no field `%s`", name);
    check_text(line, value, expected);
}
#define CHECK_FIELD(command, name, expected) check_field(__LINE__, command, name, expected)

/* ---- real frames ---- */

static void frame_is_written_again(const char *name, cmq_slice whole)
{
    cmq_frame frame;
    size_t needed, bytes;
    CHECK_OK(cmq_frame_next(whole, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    cmq_kit_command kit;
    CHECK_OK(cmq_kit_parse(&kit, frame.format, frame.header));
    CHECK(kit.command.has_opaque);
    uint8_t *again = cmq_kit_write(&kit.command, frame.body.bytes, &bytes);
    if (bytes != CMQ_FRAME_PREFIX_BYTES + frame.header.bytes || memcmp(again, whole.data, bytes) != 0)
        cmq_test_fail(__FILE__, __LINE__, "%s comes out as `%.*s`", name, (int)bytes - 8, (const char *)again + 8);
    free(again);
    cmq_kit_command_free(&kit);
}

static void test_captured_frames(void) { CHECK(cmq_kit_golden_frames(frame_is_written_again) >= 100); }

static const char send_json[] = "{\"code\":310,\"extFields\":{\"a\":\"PG\",\"b\":\"TopicTest\",\"c\":\"TBW102\",\"d\":"
                                "\"4\",\"e\":\"1\",\"f\":\"0\",\"g\":\"1700000000000\","
                                "\"h\":\"0\",\"i\":\"TAGS\\u0001TagA\\u0002\",\"j\":\"0\",\"k\":\"false\",\"m\":"
                                "\"false\",\"n\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\","
                                "\"opaque\":5,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";
static const char send_rocketmq[] =
    "0136 00 01df 00000005 00000000 00000000 0000009a 0001 61 00000002 5047 0001 62 00000009 546f70696354657374 0001 "
    "63 00000006 544257313032"
    "0001 64 00000001 34 0001 65 00000001 31 0001 66 00000001 30 0001 67 0000000d 31373030303030303030303030 0001 68 "
    "00000001 30"
    "0001 69 0000000a 54414753015461674102 0001 6a 00000001 30 0001 6b 00000005 66616c7365 0001 6d 00000005 66616c7365"
    "0001 6e 00000008 62726f6b65722d61";

static void check_send(const cmq_command *command)
{
    CHECK_INT(command->code, 310);
    CHECK_INT(command->language, CMQ_LANGUAGE_JAVA);
    CHECK_INT(command->version, 479);
    CHECK_INT(command->opaque, 5);
    CHECK_INT(command->flag, 0);
    CHECK(command->remark.data == NULL);
    CHECK_INT(command->field_count, 13);
    CHECK_FIELD(command, "a", "PG");
    CHECK_FIELD(command, "g", "1700000000000");
    CHECK_FIELD(command, "i", "TAGS\1TagA\2");
    CHECK_FIELD(command, "n", "broker-a");
    cmq_slice value;
    CHECK(!cmq_command_find(command, "l", &value));
    CHECK(value.data == NULL);
}

static void test_worked_examples(void)
{
    cmq_kit_command kit;
    CHECK_OK(cmq_kit_parse(&kit, CMQ_HEADER_JSON, cmq_slice_of_text(send_json)));
    check_send(&kit.command);
    size_t bytes;
    uint8_t *frame = cmq_kit_write(&kit.command, 5, &bytes);
    CHECK_BYTES(frame, 8, "\0\0\x01\x1C\0\0\x01\x13", 8);
    CHECK_BYTES(frame + 8, bytes - 8, send_json, sizeof send_json - 1);
    free(frame);

    size_t header_bytes;
    uint8_t *header = cmq_kit_hex(send_rocketmq, &header_bytes);
    kit.command.format = CMQ_HEADER_ROCKETMQ;   /* the same command in the other format */
    frame = cmq_kit_write(&kit.command, 5, &bytes);
    CHECK_BYTES(frame, 8, "\0\0\0\xB8\x01\0\0\xAF", 8);
    CHECK_BYTES(frame + 8, bytes - 8, header, header_bytes);
    free(frame);
    cmq_kit_command_free(&kit);

    CHECK_OK(cmq_kit_parse(&kit, CMQ_HEADER_ROCKETMQ, (cmq_slice){.data = header, .bytes = header_bytes}));
    check_send(&kit.command);
    cmq_kit_command_free(&kit);
    free(header);
}

/* The frames of 8.1 (an answer to a heartbeat) and 8.5 (the head of an answer to a pull, here without its body). */
static void test_worked_frames(void)
{
    static const struct {
        const char *digits;
        const char *name;
        const char *value;
        const char *remark;
    } cases[] = {
        {"000000aa000000a6"
         "7b22636f6465223a302c226578744669656c6473223a7b2249535f535550504f52545f48454152545f424541545f5632223a227472756"
         "5222c2249535f5355425f4348"
         "414e4745223a2274727565227d2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a372c22736"
         "57269616c697a655479706543"
         "757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d",
         "IS_SUPPORT_HEART_BEAT_V2", "true", ""},
        {"000000710100006d 0000 00 01df 00000009 00000001 00000005 464f554e44 00000053"
         "0014 73756767657374576869636842726f6b65724964 00000001 30 000f 6e657874426567696e4f6666736574 00000002 3132"
         "0009 6d696e4f6666736574 00000001 30 0009 6d61784f6666736574 00000002 3132",
         "nextBeginOffset", "12", "FOUND"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes, needed, again_bytes;
        uint8_t *whole = cmq_kit_hex(cases[i].digits, &bytes);
        cmq_frame frame;
        cmq_kit_command kit;
        CHECK_OK(cmq_frame_next((cmq_slice){.data = whole, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, &frame, &needed));
        CHECK_INT(frame.bytes, bytes);
        CHECK_OK(cmq_kit_parse(&kit, frame.format, frame.header));
        CHECK_INT(kit.command.flag, CMQ_COMMAND_RESPONSE);
        CHECK_FIELD(&kit.command, cases[i].name, cases[i].value);
        CHECK_TEXT(kit.command.remark, cases[i].remark);
        uint8_t *again = cmq_kit_write(&kit.command, 0, &again_bytes);
        CHECK_BYTES(again, again_bytes, whole, bytes);
        free(again);
        cmq_kit_command_free(&kit);
        free(whole);
    }
}

static void test_pull_answer_in_both_formats(void)
{
    static const char json[] =
        "{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"12\",\"x\":\"true\","
        "\"min\":\"-9223372036854775808\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":9,\"remark\":\"FOUND\","
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";
    static const char digits[] = "0000 00 01df 00000009 00000001 00000005 464f554e44 0000005a"
                                 "0014 73756767657374576869636842726f6b65724964 00000001 30"
                                 "000f 6e657874426567696e4f6666736574 00000002 3132 0001 78 00000004 74727565"
                                 "0003 6d696e 00000014 2d39323233333732303336383534373735383038";
    size_t header_bytes;
    uint8_t *rocketmq = cmq_kit_hex(digits, &header_bytes);
    for (int format = CMQ_HEADER_JSON; format <= CMQ_HEADER_ROCKETMQ; format++) {
        const uint8_t *expected = format == CMQ_HEADER_JSON ? (const uint8_t *)json : rocketmq;
        const size_t expected_bytes = format == CMQ_HEADER_JSON ? sizeof json - 1 : header_bytes;
        for (size_t capacity = 0; capacity <= expected_bytes + CMQ_FRAME_PREFIX_BYTES; capacity++) {
            uint8_t *into = malloc(capacity > 0 ? capacity : 1);
            cmq_command_writer writer;
            cmq_command_begin(&writer, into, capacity, (cmq_header_format)format, 0, 9, CMQ_COMMAND_RESPONSE,
                              CMQ_NAME("FOUND"));
            cmq_command_add_i64(&writer, CMQ_NAME("suggestWhichBrokerId"), 0);
            cmq_command_add_i64(&writer, CMQ_NAME("nextBeginOffset"), 12);
            cmq_command_add_bool(&writer, CMQ_NAME("x"), true);
            cmq_command_add_text(&writer, CMQ_NAME("left out"), CMQ_SLICE_NONE);
            cmq_command_add_i64(&writer, CMQ_NAME("min"), INT64_MIN);
            CHECK_INT(cmq_command_end(&writer, 240), expected_bytes + CMQ_FRAME_PREFIX_BYTES);
            if (capacity >= expected_bytes + CMQ_FRAME_PREFIX_BYTES) {
                CHECK_INT(cmq_load_u32(into), 4 + expected_bytes + 240);
                CHECK_BYTES(into + CMQ_FRAME_PREFIX_BYTES, expected_bytes, expected, expected_bytes);
            }
            free(into);
        }
    }
    free(rocketmq);
}

/* ---- JSON beyond Java's own ---- */

static cmq_kit_command parsed(const char *json)
{
    cmq_kit_command kit;
    CHECK_OK(cmq_kit_parse(&kit, CMQ_HEADER_JSON, cmq_slice_of_text(json)));
    return kit;
}

static void test_lenient_json(void)
{
    cmq_kit_command kit = parsed(
        " \r\n{ \"version\" : 401 , 'opaque':\"-7\", flag:2,\t\"unknown\":[1,{\"a\":[],'b':{ c : \"]\\\"\"}},null, "
        "\"}\",],"
        "\"extFields\" : { \"n\" : 12 , 't':true,f: false , \"x\":null,\"e\":\"\",\"o\":{\"p\":[1,2]}, \"d\":-1.5E3 ,},"
        "\"remark\":null,\"language\":9,\"code\":105,\"body\":\"AAAA\"} \n");
    const cmq_command *command = &kit.command;
    CHECK_INT(command->code, 105);
    CHECK_INT(command->version, 401);
    CHECK_INT(command->opaque, -7);
    CHECK_INT(command->flag, 2);
    CHECK_INT(command->language, 9);
    CHECK(command->remark.data == NULL);
    CHECK_INT(command->field_count, 7);
    CHECK_FIELD(command, "n", "12");
    CHECK_FIELD(command, "t", "true");
    CHECK_FIELD(command, "f", "false");
    CHECK_FIELD(command, "e", "");
    CHECK_FIELD(command, "o", "{\"p\":[1,2]}");
    CHECK_FIELD(command, "d", "-1.5E3");
    cmq_slice value;
    CHECK(!cmq_command_find(command, "x", &value));
    cmq_kit_command_free(&kit);
}

static void test_members_that_are_missing(void)
{
    cmq_kit_command kit = parsed("{}");
    CHECK_INT(kit.command.code, 0);
    CHECK_INT(kit.command.language, CMQ_LANGUAGE_JAVA);
    CHECK_INT(kit.command.version, 0);
    CHECK_INT(kit.command.flag, 0);
    CHECK(!kit.command.has_opaque);
    CHECK(!kit.command.has_fields);
    CHECK_INT(kit.command.field_count, 0);
    cmq_kit_command_free(&kit);

    kit = parsed("{\"extFields\":{},\"opaque\":0,\"remark\":\"\",\"code\":null}");
    CHECK(kit.command.has_opaque);
    CHECK(kit.command.has_fields);
    CHECK(kit.command.remark.data != NULL && kit.command.remark.bytes == 0);
    cmq_kit_command_free(&kit);
}

static void test_names_that_come_twice(void)
{
    cmq_kit_command kit = parsed("{\"code\":1,\"extFields\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"},\"code\":2}");
    CHECK_INT(kit.command.code, 2);
    CHECK_FIELD(&kit.command, "a", "3");
    cmq_kit_command_free(&kit);

    kit = parsed("{\"extFields\":{\"a\":\"1\"},\"extFields\":{\"b\":\"2\",\"c\":\"4\",\"c\":null}}");
    cmq_slice value;
    CHECK(!cmq_command_find(&kit.command, "a", &value));
    CHECK_FIELD(&kit.command, "b", "2");
    CHECK(!cmq_command_find(&kit.command, "c", &value));
    cmq_kit_command_free(&kit);
}

static void test_languages(void)
{
    static const struct {
        const char *json;
        int32_t language;
    } cases[] = {{"\"CPP\"", 1},
                 {"\"NODE_JS\"", 13},
                 {"\"PYTHON\"", 3},
                 {"\"COBOL\"", CMQ_LANGUAGE_OTHER},
                 {"null", CMQ_LANGUAGE_OTHER},
                 {"12", 12},
                 {"14", CMQ_LANGUAGE_OTHER},
                 {"-1", CMQ_LANGUAGE_OTHER},
                 {"\"\"", CMQ_LANGUAGE_OTHER}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[64];
        snprintf(json, sizeof json, "{\"language\":%s}", cases[i].json);
        cmq_kit_command kit = parsed(json);
        CHECK_INT(kit.command.language, cases[i].language);
        cmq_kit_command_free(&kit);
    }
    CHECK_TEXT(cmq_command_language_name(99), "OTHER");
    CHECK_TEXT(cmq_command_language_name(-1), "OTHER");
}

static void test_escapes(void)
{
    cmq_kit_command kit =
        parsed("{\"remark\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\v\\'\\x41\\u0041\\u00e9\\u4e2d\\ud83d\\ude00|\\ud83d|"
               "\\ude00\\ud83dx\\ud83d\\u0041\",'extFields':"
               "{\"a\\u0062c\":\"long enough that a run is not a block \\u0001\\u0002\\u0009\\u000A"
               " end of a long run, too long\",'q':'it\\'s \"'}}");
    CHECK_TEXT(kit.command.remark, "\"\\/\b\f\n\r\t\v'AA\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80|?|??x?A");
    CHECK_FIELD(&kit.command, "abc", "long enough that a run is not a block \1\2\t\n end of a long run, too long");
    CHECK_FIELD(&kit.command, "q", "it's \"");
    cmq_kit_command_free(&kit);

    static const char zero[] = "{\"remark\":\"a\\u0000b\\0\"}";
    kit = parsed(zero);
    CHECK_BYTES(kit.command.remark.data, kit.command.remark.bytes, "a\0b\0", 4);
    cmq_kit_command_free(&kit);
}

/* Escapes at every distance from the ends of blocks, and whatever was cut off. */
static void test_escapes_at_every_place(void)
{
    for (size_t padding = 0; padding < 200; padding++) {
        char json[512], expected[512];
        snprintf(json, sizeof json, "{\"extFields\":{\"p\":\"%0*d\\u0001x\\\\\\\"\"},\"remark\":\"\\\\\"}",
                 (int)padding + 1, 7);
        snprintf(expected, sizeof expected, "%0*d\1x\\\"", (int)padding + 1, 7);
        cmq_kit_command kit = parsed(json);
        CHECK_FIELD(&kit.command, "p", expected);
        CHECK_TEXT(kit.command.remark, "\\");
        cmq_kit_command_free(&kit);
        for (size_t bytes = 0; bytes < strlen(json); bytes += 1 + padding % 5) {
            CHECK_STATUS(
                cmq_kit_parse(&kit, CMQ_HEADER_JSON, (cmq_slice){.data = (const uint8_t *)json, .bytes = bytes}),
                CMQ_ERR_CORRUPT);
            cmq_kit_command_free(&kit);
        }
    }
}

static void test_no_json_header(void)
{
    static const char *const refused[] = {
        "",
        " ",
        "null",
        "[]",
        "\"\"",
        "{",
        "{}}",
        "{} x",
        "{\"code\"}",
        "{\"code\":}",
        "{\"code\":1",
        "{\"code\":1,",
        "{\"code\":x}",
        "{\"code\":1.5}",
        "{\"code\":2147483648}",
        "{\"code\":\"\"}",
        "{\"code\":1 \"flag\":2}",
        "{\"code\":true}",
        "{\"code\":{}}",
        "{,}",
        "{\"code\":1,,\"flag\":2}",
        "{\"extFields\":[]}",
        "{\"extFields\":1}",
        "{\"extFields\":{\"a\":}}",
        "{\"extFields\":{\"a\":b}}",
        "{\"extFields\":{\"a\" \"b\"}}",
        "{\"extFields\":{\"a\":\"b\"}",
        "{\"extFields\":{\"a\":\"b\"]}",
        "{\"remark\":\"\\\"}",
        "{\"remark\":\"\\q\"}",
        "{\"remark\":\"\\u12g4\"}",
        "{\"remark\":\"\\x4\"}",
        "{\"remark\":'",
        "{\"a\":[1}",
        "{\"a\":[1 2]}",
        "{\"a\":-}x",
        "{\"a\":nul}",
        "{\"a\":]}",
        "{:1}",
        "{\"\\u00",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cmq_kit_command kit;
        const cmq_status status = cmq_kit_parse(&kit, CMQ_HEADER_JSON, cmq_slice_of_text(refused[i]));
        if (status != CMQ_ERR_CORRUPT)
            cmq_test_fail(__FILE__, __LINE__, "`%s` gave %s", refused[i], cmq_status_name(status));
        CHECK(strstr(cmq_last_error()->text, "at byte") != NULL);
        cmq_kit_command_free(&kit);
    }
}

static void test_nesting_has_a_limit(void)
{
    char json[4096];
    for (int depth = 60; depth < 70; depth++) {
        const size_t bytes =
            (size_t)snprintf(json, sizeof json, "{\"a\":%s%s}",
                             "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[" + (70 - depth),
                             "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]" + (70 - depth));
        cmq_kit_command kit;
        CHECK_STATUS(cmq_kit_parse(&kit, CMQ_HEADER_JSON, (cmq_slice){.data = (const uint8_t *)json, .bytes = bytes}),
                     depth <= 64 ? CMQ_OK : CMQ_ERR_CORRUPT);
        cmq_kit_command_free(&kit);
    }
}

/* ---- ROCKETMQ format ---- */

static cmq_status parse_hex(cmq_kit_command *kit, const char *digits)
{
    size_t bytes;
    uint8_t *header = cmq_kit_hex(digits, &bytes);
    const cmq_status status = cmq_kit_parse(kit, CMQ_HEADER_ROCKETMQ, (cmq_slice){.data = header, .bytes = bytes});
    free(header);
    return status;
}

static void test_null_in_rocketmq_format(void)
{
    cmq_kit_command kit;
    cmq_slice value;
    CHECK_OK(parse_hex(
        &kit,
        "0011 63 01df fffffffe 00000002 00000000 00000016 0001 61 00000000 0000 00000001 78 0001 62 00000001 79"));
    CHECK_INT(kit.command.language, CMQ_LANGUAGE_OTHER);
    CHECK_INT(kit.command.opaque, -2);
    CHECK(kit.command.remark.data == NULL);
    CHECK_INT(kit.command.field_count, 2);   /* the one without a name is dropped */
    CHECK(!cmq_command_find(&kit.command, "a", &value));
    CHECK_FIELD(&kit.command, "b", "y");
    cmq_kit_command_free(&kit);

    CHECK_OK(parse_hex(&kit, "0000 00 01df 00000001 00000001 00000000 00000000"));
    CHECK(!kit.command.has_fields);
    cmq_kit_command_free(&kit);
}

static void test_codes_cut_to_16_bits(void)
{
    static const struct {
        const char *digits;
        int32_t code;
    } cases[] = {{"0d72", 200050}, {"0d78", 200056}, {"0dd7", 200151}, {"0d71", 3441},
                 {"0d79", 3449},   {"ffff", -1},     {"0136", 310}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char digits[128];
        cmq_kit_command kit;
        snprintf(digits, sizeof digits, "%s 00 01df 00000001 00000000 00000000 00000000", cases[i].digits);
        CHECK_OK(parse_hex(&kit, digits));
        CHECK_INT(kit.command.code, cases[i].code);
        cmq_kit_command_free(&kit);
    }
    cmq_kit_command kit;
    CHECK_OK(parse_hex(&kit, "0d72 00 01df 00000001 00000001 00000000 00000000"));
    CHECK_INT(kit.command.code, 3442);   /* an answer's code is what it is */
    cmq_kit_command_free(&kit);
}

static void test_no_rocketmq_header(void)
{
    static const char *const refused[] = {
        "", "0136 00 01df 00000005 00000000 00000000 000000",
        "0136 00 01df 00000005 00000000 00000001 00000000", "0136 00 01df 00000005 00000000 ffffffff 00000000",
        "0136 00 01df 00000005 00000000 00000000 00000001", "0136 00 01df 00000005 00000000 00000000 ffffffff",
        "0136 00 01df 00000005 00000000 00000000 00000000 00",
        "0136 00 01df 00000005 00000000 00000000 00000001 00",
        "0136 00 01df 00000005 00000000 00000000 00000003 0002 61",
        "0136 00 01df 00000005 00000000 00000000 00000003 ffff 61",
        "0136 00 01df 00000005 00000000 00000000 00000006 0001 61 000000",
        "0136 00 01df 00000005 00000000 00000000 00000008 0001 61 00000002 61",
        "0136 00 01df 00000005 00000000 00000000 00000008 0001 61 80000000 61",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cmq_kit_command kit;
        const cmq_status status = parse_hex(&kit, refused[i]);
        if (status != CMQ_ERR_CORRUPT)
            cmq_test_fail(__FILE__, __LINE__, "`%s` gave %s", refused[i], cmq_status_name(status));
        cmq_kit_command_free(&kit);
    }
}

/* ---- limits ---- */

static void test_too_many_fields(void)
{
    for (int format = CMQ_HEADER_JSON; format <= CMQ_HEADER_ROCKETMQ; format++) {
        for (unsigned count = CMQ_COMMAND_FIELDS_MAX; count <= CMQ_COMMAND_FIELDS_MAX + 1; count++) {
            uint8_t frame[4096];
            cmq_command_writer writer;
            cmq_command_begin(&writer, frame, sizeof frame, (cmq_header_format)format, 11, 77, CMQ_COMMAND_ONEWAY,
                              CMQ_SLICE_NONE);
            for (unsigned i = 0; i < count; i++) cmq_command_add_i64(&writer, CMQ_NAME("name"), i);
            const size_t bytes = cmq_command_end(&writer, 0);
            cmq_kit_command kit;
            const cmq_status status =
                cmq_kit_parse(&kit, (cmq_header_format)format, (cmq_slice){.data = frame + 8, .bytes = bytes - 8});
            CHECK_STATUS(status, count <= CMQ_COMMAND_FIELDS_MAX ? CMQ_OK : CMQ_ERR_LIMIT);
            CHECK_INT(kit.command.field_count, CMQ_COMMAND_FIELDS_MAX);
            CHECK_INT(kit.command.code, 11);
            CHECK_INT(kit.command.opaque, 77);
            CHECK_INT(kit.command.flag, CMQ_COMMAND_ONEWAY);
            cmq_kit_command_free(&kit);
        }
    }
}

static void test_headers_beyond_a_frame_are_refused(void)
{
    const size_t bytes = 0x1000000;
    uint8_t *text = malloc(bytes), frame[64];
    memset(text, 'x', bytes);
    for (int format = CMQ_HEADER_JSON; format <= CMQ_HEADER_ROCKETMQ; format++) {
        cmq_command_writer writer;
        cmq_command_begin(&writer, frame, sizeof frame, (cmq_header_format)format, 1, 1, 1,
                          (cmq_slice){.data = text, .bytes = bytes});
        CHECK_INT(cmq_command_end(&writer, 0), 0);
        cmq_command_begin(&writer, frame, sizeof frame, (cmq_header_format)format, 1, 1, 1, CMQ_SLICE_NONE);
        CHECK_INT(cmq_command_end(&writer, CMQ_FRAME_BYTES_MAX), 0);
        cmq_command_begin(&writer, frame, sizeof frame, (cmq_header_format)format, 1, 1, 1, CMQ_SLICE_NONE);
        cmq_command_add_text(&writer, (cmq_slice){.data = text, .bytes = 32768}, CMQ_NAME("v"));
        CHECK((cmq_command_end(&writer, 0) == 0) == (format == CMQ_HEADER_ROCKETMQ));
    }
    free(text);
}

/* All characters of a text are escaped as fastjson does it, in names, values and remarks alike. */
static void test_written_escapes(void)
{
    static const char text[] = "a\"b\\c/\b\t\n\f\r\1\x0B\x1F\x7F\xC2\x80\xC2\x9F\xC2\xA0\xC3\xA9"
                               "\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA\xE2\xF0\x9F\x98\x80\xC2";
    static const char escaped[] = "a\\\"b\\\\c/\\b\\t\\n\\f\\r\\u0001\\u000B\\u001F\\u007F\\u0080\\u009F"
                                  "\xC2\xA0\xC3\xA9\\u2028\\u2029\xE2\x80\xAA\xE2"
                                  "\xF0\x9F\x98\x80\xC2";
    uint8_t frame[1024];
    char expected[1024];
    cmq_command_writer writer;
    cmq_command_begin(&writer, frame, sizeof frame, CMQ_HEADER_JSON, 1, 2, 1, cmq_slice_of_text(text));
    cmq_command_add_text(&writer, cmq_slice_of_text(text), cmq_slice_of_text(text));
    const size_t bytes = cmq_command_end(&writer, 0);
    const int expected_bytes = snprintf(
        expected, sizeof expected,
        "{\"code\":1,\"extFields\":{\"%s\":\"%s\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":2,\"remark\":\"%s\","
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        escaped, escaped, escaped);
    CHECK_BYTES(frame + 8, bytes - 8, expected, (size_t)expected_bytes);
}

/* ---- random commands ---- */

static cmq_slice random_text(uint8_t *into, size_t bytes_max)
{
    static const char *const pieces[] = {
        "\"",       "\\",       "\1",           "\2",           "/",    "x",  "topic-",
        "12345678", "\xC3\xA9", "\xE4\xB8\xAD", "\xE2\x80\xA8", "\x7F", "\n", "\xF0\x9F\x98\x80",
    };
    size_t used = 0;
    for (size_t count = cmq_test_random_below(12); count > 0; count--) {
        const char *piece = pieces[cmq_test_random_below(sizeof pieces / sizeof pieces[0])];
        if (strlen(piece) > bytes_max - used) break;
        memcpy(into + used, piece, strlen(piece));
        used += strlen(piece);
    }
    return (cmq_slice){.data = into, .bytes = used};
}

static void test_random_commands_come_back(void)
{
    for (int round = 0; round < 3000; round++) {
        uint8_t texts[30][64];
        cmq_command command = {
            .format = (cmq_header_format)cmq_test_random_below(2),
            .code = (int16_t)cmq_test_random(),
            .language = (int32_t)cmq_test_random_below(CMQ_LANGUAGE_MAX + 1),
            .version = (int16_t)cmq_test_random(),
            .opaque = (int32_t)cmq_test_random(),
            .flag = (int32_t)cmq_test_random() | CMQ_COMMAND_RESPONSE,
            .remark = random_text(texts[0], sizeof texts[0]),
            .field_count = (uint32_t)cmq_test_random_below(14),
        };
        for (uint32_t i = 0; i < command.field_count; i++) {
            command.fields[i].name = random_text(texts[1 + 2 * i], sizeof texts[0]);
            command.fields[i].value = random_text(texts[2 + 2 * i], sizeof texts[0]);
            if (command.fields[i].name.bytes == 0) command.fields[i].name = CMQ_NAME("n");
        }
        size_t bytes;
        uint8_t *frame = cmq_kit_write(&command, 3, &bytes);
        cmq_kit_command kit;
        CHECK_OK(cmq_kit_parse(&kit, command.format, (cmq_slice){.data = frame + 8, .bytes = bytes - 8}));
        CHECK_INT(kit.command.code, command.code);
        CHECK_INT(kit.command.language, command.language);
        CHECK_INT(kit.command.version, command.version);
        CHECK_INT(kit.command.opaque, command.opaque);
        CHECK_INT(kit.command.flag, command.flag);
        CHECK(cmq_slice_equal(kit.command.remark, command.remark));
        CHECK_INT(kit.command.field_count, command.field_count);
        for (uint32_t i = 0; i < command.field_count; i++) {
            CHECK(cmq_slice_equal(kit.command.fields[i].name, command.fields[i].name));
            CHECK(cmq_slice_equal(kit.command.fields[i].value, command.fields[i].value));
        }
        free(frame);
        cmq_kit_command_free(&kit);
    }
}

/* ---- values ---- */

static void test_numbers(void)
{
    static const char *const refused[] = {"",
                                          "-",
                                          "+",
                                          " 1",
                                          "1 ",
                                          "1.0",
                                          "0x1",
                                          "--1",
                                          "9223372036854775808",
                                          "-9223372036854775809",
                                          "1e3",
                                          "99999999999999999999999"};
    int64_t number;
    int32_t small;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        CHECK_STATUS(cmq_field_i64(cmq_slice_of_text(refused[i]), &number), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_field_i64(CMQ_SLICE_NONE, &number), CMQ_ERR_ARGUMENT);
    CHECK_OK(cmq_field_i64(cmq_slice_of_text("9223372036854775807"), &number));
    CHECK(number == INT64_MAX);
    CHECK_OK(cmq_field_i64(cmq_slice_of_text("-9223372036854775808"), &number));
    CHECK(number == INT64_MIN);
    CHECK_OK(cmq_field_i64(cmq_slice_of_text("+0000000000000000000000000012"), &number));
    CHECK_INT(number, 12);
    CHECK_OK(cmq_field_i32(cmq_slice_of_text("-2147483648"), &small));
    CHECK_INT(small, INT32_MIN);
    CHECK_OK(cmq_field_i32(cmq_slice_of_text("2147483647"), &small));
    CHECK_INT(small, INT32_MAX);
    CHECK_STATUS(cmq_field_i32(cmq_slice_of_text("2147483648"), &small), CMQ_ERR_ARGUMENT);
    CHECK_INT(small, 0);
    CHECK(strstr(cmq_last_error()->text, "`2147483648` is not an int") != NULL);
    CHECK_STATUS(cmq_field_i32(cmq_slice_of_text("-2147483649"), &small), CMQ_ERR_ARGUMENT);
}

static void test_booleans(void)
{
    CHECK(cmq_field_bool(cmq_slice_of_text("true")));
    CHECK(cmq_field_bool(cmq_slice_of_text("TrUe")));
    CHECK(!cmq_field_bool(cmq_slice_of_text("false")));
    CHECK(!cmq_field_bool(cmq_slice_of_text("true ")));
    CHECK(!cmq_field_bool(cmq_slice_of_text("1")));
    CHECK(!cmq_field_bool(CMQ_SLICE_NONE));
}

CMQ_TEST_MAIN(CMQ_TEST(test_captured_frames), CMQ_TEST(test_worked_examples), CMQ_TEST(test_worked_frames),
              CMQ_TEST(test_pull_answer_in_both_formats), CMQ_TEST(test_lenient_json),
              CMQ_TEST(test_members_that_are_missing), CMQ_TEST(test_names_that_come_twice), CMQ_TEST(test_languages),
              CMQ_TEST(test_escapes), CMQ_TEST(test_escapes_at_every_place), CMQ_TEST(test_no_json_header),
              CMQ_TEST(test_nesting_has_a_limit), CMQ_TEST(test_null_in_rocketmq_format),
              CMQ_TEST(test_codes_cut_to_16_bits), CMQ_TEST(test_no_rocketmq_header), CMQ_TEST(test_too_many_fields),
              CMQ_TEST(test_headers_beyond_a_frame_are_refused), CMQ_TEST(test_written_escapes),
              CMQ_TEST(test_random_commands_come_back), CMQ_TEST(test_numbers), CMQ_TEST(test_booleans))
