/* cmq_jvm: the engine's functions as Java's class cometmq.engine.Native declares them.
 *
 * Owns:      nothing but the numbers of cmq_jvm_handles; a batch's memory and pins live until its number is released.
 * Invariant: no argument can crash the JVM: numbers are looked up, arrays are copied by their own lengths, texts come
 *            and go as UTF-8 bytes (JNI's own strings are another encoding), and addresses leave in nextBatch only.
 * Failures:  a status becomes the exception that EngineException.of makes of it.
 * Threads:   any; see cmq_jvm_handles.h.
 */
#include <jni.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_map_guard.h"
#include "cmq_jvm_handles.h"
#include "export/cmq_scan_request.h"
#include "export/cmq_spark_rows.h"

#define SAMPLES 8
#define UNITS_PER_SAMPLE 16u
#define ROW_BYTES_UNKNOWN 1024   /* where no unit can be read: Spark would take 0 for a table to broadcast */
#define INFLATED 0   /* the first byte that Inflating.inflate returns; the body follows … */
#define IS_LIMIT 2   /* … or, behind this and all other values, a text */

#define NATIVE(name) JNIEXPORT JNICALL Java_cometmq_engine_Native_##name

static jclass exception_class, inflating_class;
static jmethodID exception_of, inflate_method;

static jclass class_of(JNIEnv *env, const char *name)
{
    jclass local = (*env)->FindClass(env, name);
    jclass global = local == NULL ? NULL : (*env)->NewGlobalRef(env, local);
    if (local != NULL) (*env)->DeleteLocalRef(env, local);
    return global;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved)
{
    JNIEnv *env;
    (void)reserved;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_1_8) != JNI_OK) return JNI_ERR;
    exception_class = class_of(env, "cometmq/engine/EngineException");
    inflating_class = exception_class == NULL ? NULL : class_of(env, "cometmq/engine/Inflating");
    if (inflating_class == NULL) return JNI_ERR;
    exception_of = (*env)->GetStaticMethodID(env, exception_class, "of", "(IJ[B)Lcometmq/engine/EngineException;");
    if (exception_of == NULL) return JNI_ERR;
    inflate_method = (*env)->GetStaticMethodID(env, inflating_class, "inflate", "(ILjava/nio/ByteBuffer;I)[B");
    return inflate_method == NULL ? JNI_ERR : JNI_VERSION_1_8;
}

/* ---- failures ---- */

/* NULL: an exception is pending. */
static jbyteArray bytes_of(JNIEnv *env, const void *data, size_t bytes)
{
    jbyteArray array = bytes > INT32_MAX ? NULL : (*env)->NewByteArray(env, (jsize)bytes);
    if (array != NULL) (*env)->SetByteArrayRegion(env, array, 0, (jsize)bytes, data);
    return array;
}

/* Throw the thread's last error; an exception that is pending already stays. */
static void raise(JNIEnv *env, cmq_status status)
{
    if ((*env)->ExceptionCheck(env)) return;
    if (status == CMQ_AGAIN) status = cmq_fail(CMQ_ERR_ARGUMENT, "another thread is inside this call's object");
    const cmq_error error = *cmq_last_error();
    jbyteArray text = bytes_of(env, error.text, strlen(error.text));
    if (text == NULL) return;
    jobject made =
        (*env)->CallStaticObjectMethod(env, exception_class, exception_of, (jint)status, (jlong)error.offset, text);
    if (!(*env)->ExceptionCheck(env)) (void)(*env)->Throw(env, made);
}

/* ---- arguments ---- */

/* A copy of a byte array, with a NUL behind it; free it. NULL: an exception is pending. */
static char *copy_of(JNIEnv *env, jbyteArray array, size_t *bytes_out)
{
    *bytes_out = 0;
    if (array == NULL) {
        raise(env, cmq_fail(CMQ_ERR_ARGUMENT, "a byte array is null"));
        return NULL;
    }
    const jsize bytes = (*env)->GetArrayLength(env, array);
    char *copy = malloc((size_t)bytes + 1);
    if (copy == NULL) {
        raise(env, cmq_fail(CMQ_ERR_MEMORY, "no memory for %d bytes of arguments", bytes));
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, array, 0, bytes, (jbyte *)copy);
    copy[bytes] = '\0';
    *bytes_out = (size_t)bytes;
    return copy;
}

/* The same of a text, in which no NUL may be. */
static char *text_of(JNIEnv *env, jbyteArray array)
{
    size_t bytes;
    char *text = copy_of(env, array, &bytes);
    if (text == NULL || strlen(text) == bytes) return text;
    free(text);
    raise(env, cmq_fail(CMQ_ERR_ARGUMENT, "a text holds a NUL"));
    return NULL;
}

static void *enter(JNIEnv *env, jlong number, cmq_handle_kind kind)
{
    void *object = NULL;
    const cmq_status status = cmq_handles_enter(number, kind, &object);
    if (status != CMQ_OK) raise(env, status);
    return object;
}

/* ---- stores ---- */

static void destroy_store(void *store)
{
    const cmq_status status = cmq_store_close(store);   /* a reader's has nothing to lose */
    (void)status;
}

/* Each topic of `topics` ends with a NUL. */
static const char **split_topics(char *topics, size_t bytes, uint32_t *count_out)
{
    *count_out = 0;
    const char **found = malloc((bytes + 1) * sizeof *found);
    for (size_t at = 0; found != NULL && at < bytes; at += strlen(topics + at) + 1) found[(*count_out)++] = topics + at;
    return found;
}

jlong NATIVE(openStore)(JNIEnv *env, jclass class, jbyteArray path, jbyteArray batch_topics, jboolean extended)
{
    (void)class;
    size_t topic_bytes = 0;
    cmq_store *store = NULL;
    jlong number = 0;
    char *root = text_of(env, path);
    char *names = root == NULL ? NULL : copy_of(env, batch_topics, &topic_bytes);
    cmq_store_options options = {.path = root, .read_only = true, .ext_enabled = extended};
    const char **topics = names == NULL ? NULL : split_topics(names, topic_bytes, &options.batch_topic_count);
    options.batch_topics = topics;
    cmq_status status = topics == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory to open a store") : CMQ_OK;
    if (status == CMQ_OK) status = cmq_store_open(&store, &options);
    if (status == CMQ_OK) {
        number = cmq_handles_add(CMQ_HANDLE_STORE, store, destroy_store, 0);
        if (number == 0) {
            status = CMQ_ERR_MEMORY;
            destroy_store(store);
        }
    }
    if (status != CMQ_OK) raise(env, status);
    free(topics);
    free(names);
    free(root);
    return number;
}

void NATIVE(closeStore)(JNIEnv *env, jclass class, jlong number)
{
    (void)env, (void)class;
    cmq_handles_close(number, CMQ_HANDLE_STORE);
}

void NATIVE(checkEnd)(JNIEnv *env, jclass class, jlong number)
{
    (void)class;
    cmq_store *store = enter(env, number, CMQ_HANDLE_STORE);
    if (store == NULL) return;
    const cmq_status status = cmq_store_check_end(store);
    cmq_handles_leave(number);
    if (status != CMQ_OK) raise(env, status);
}

/* ---- queues ---- */

static bool is_shown(const cmq_queue *queue) { return !cmq_queue_deleted(queue) && cmq_queue_begun(queue); }

static size_t queue_bytes(const cmq_queue *queue) { return 4 + cmq_queue_topic_bytes(queue) + 4 + 8 + 8; }

static uint8_t *put_queue(uint8_t *at, const cmq_queue *queue, int64_t confirmed)
{
    const uint32_t topic_bytes = cmq_queue_topic_bytes(queue);
    const int32_t id = cmq_queue_id(queue);
    const int64_t ends[2] = {cmq_queue_min(queue), cmq_queue_max(queue, confirmed)};
    memcpy(at, &topic_bytes, sizeof topic_bytes);
    memcpy(at + 4, cmq_queue_topic(queue), topic_bytes);
    at += 4 + topic_bytes;
    memcpy(at, &id, sizeof id);
    memcpy(at + 4, ends, sizeof ends);
    return at + 4 + sizeof ends;
}

/* Of each queue: u32 bytes of the topic, the topic, i32 id, i64 first offset, i64 end; little-endian. */
jbyteArray NATIVE(queues)(JNIEnv *env, jclass class, jlong number)
{
    (void)class;
    jbyteArray packed = NULL;
    cmq_store *store = enter(env, number, CMQ_HANDLE_STORE);
    if (store == NULL) return NULL;
    cmq_status status = cmq_store_refresh(store);
    const cmq_queues *queues = cmq_store_queues(store);
    const int64_t confirmed = cmq_store_confirmed(store);
    const uint32_t count = cmq_queues_count(queues);
    size_t bytes = 1;
    for (uint32_t i = 0; i < count; i++) bytes += queue_bytes(cmq_queues_at(queues, i));
    uint8_t *into = malloc(bytes), *at = into;
    if (status == CMQ_OK && into == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for a list of queues");
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
        const cmq_queue *queue = cmq_queues_at(queues, i);
        if (is_shown(queue)) at = put_queue(at, queue, confirmed);
    }
    cmq_handles_leave(number);
    if (status == CMQ_OK) packed = bytes_of(env, into, (size_t)(at - into));
    else raise(env, status);
    free(into);
    return packed;
}

/* The mean of some units that are spread over the range. */
static double mean_bytes(cmq_queue *queue, int64_t confirmed, int64_t start, int64_t end)
{
    const int64_t step = (end - start) / SAMPLES > 0 ? (end - start) / SAMPLES : 1;
    int64_t size = 0, messages = 0;
    for (int64_t from = start, i = 0; i < SAMPLES && from < end; i++, from += step) {
        cmq_unit units[UNITS_PER_SAMPLE];
        uint32_t count = 0;
        int64_t next;
        const uint32_t most = end - from < UNITS_PER_SAMPLE ? (uint32_t)(end - from) : UNITS_PER_SAMPLE;
        const cmq_status status = cmq_queue_read(queue, from, confirmed, units, most, &count, &next);
        if (status != CMQ_OK) continue;   /* it expired just now: a sample is missing, no more */
        for (uint32_t at = 0; at < count; at++) {
            size += units[at].bytes;
            messages += units[at].count > 1 ? units[at].count : 1;
        }
    }
    return messages == 0 ? ROW_BYTES_UNKNOWN : (double)size / (double)messages;
}

jdouble NATIVE(meanBytes)(JNIEnv *env, jclass class, jlong number, jbyteArray topic, jint id, jlong start, jlong end)
{
    (void)class;
    double mean = 0;
    char *name = text_of(env, topic);
    cmq_store *store = name == NULL ? NULL : enter(env, number, CMQ_HANDLE_STORE);
    if (store != NULL) {
        cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), cmq_slice_of_text(name), id);
        const int64_t confirmed = cmq_store_confirmed(store);
        if (queue != NULL && start >= 0 && end > start) mean = mean_bytes(queue, confirmed, start, end);
        cmq_handles_leave(number);
    }
    free(name);
    return mean;
}

jlong NATIVE(offsetAt)(JNIEnv *env, jclass class, jlong number, jbyteArray topic, jint id, jlong time_ms)
{
    (void)class;
    int64_t offset = 0;
    char *name = text_of(env, topic);
    cmq_store *store = name == NULL ? NULL : enter(env, number, CMQ_HANDLE_STORE);
    if (store != NULL) {
        const cmq_status status =
            cmq_store_offset_at(store, cmq_slice_of_text(name), id, time_ms, CMQ_BOUNDARY_LOWER, &offset);
        cmq_handles_leave(number);
        if (status != CMQ_OK) raise(env, status);
    }
    free(name);
    return offset;
}

/* When the message at an offset was stored; INT64_MIN: none can be read there. */
jlong NATIVE(storedMs)(JNIEnv *env, jclass class, jlong number, jbyteArray topic, jint id, jlong offset)
{
    (void)class;
    int64_t stored = INT64_MIN;
    char *name = text_of(env, topic);
    cmq_store *store = name == NULL ? NULL : enter(env, number, CMQ_HANDLE_STORE);
    if (store != NULL) {
        cmq_found item;
        cmq_found_batch one = {.items = &item, .capacity = 1};
        cmq_record_view view;
        if (cmq_store_read_offset(store, cmq_slice_of_text(name), id, offset, &one) == CMQ_OK && one.count == 1 &&
            cmq_record_parse(item.record, item.record_bytes, item.physical_offset, 0, &view) == CMQ_OK)
            stored = view.store_timestamp_ms;
        cmq_found_batch_release(&one);
        cmq_handles_leave(number);
    }
    free(name);
    return stored;
}

/* Throw where an SQL92 expression cannot be used. */
void NATIVE(checkSelector)(JNIEnv *env, jclass class, jbyteArray expression)
{
    (void)class;
    size_t bytes;
    char *text = copy_of(env, expression, &bytes);
    if (text == NULL) return;
    cmq_selector *selector = NULL;
    const cmq_status status =
        cmq_selector_compile((cmq_slice){.data = (const uint8_t *)text, .bytes = bytes}, &selector, NULL);
    cmq_selector_free(selector);
    free(text);
    if (status != CMQ_OK) raise(env, status);
}

/* ---- scans ---- */

typedef struct jvm_scan {
    cmq_scan *scan;
    cmq_selector *where;   /* NULL: no expression */
    JNIEnv *env;   /* of the thread inside nextBatch */
} jvm_scan;

static void destroy_scan(void *object)
{
    jvm_scan *scan = object;
    cmq_scan_close(scan->scan);
    cmq_selector_free(scan->where);
    free(scan);
}

/* The engine's hook: through Java's own codecs. An exception that it leaves pending is thrown by nextBatch. */
static cmq_status inflate(void *context, int32_t sys_flag, cmq_slice stored, cmq_scan_room *room)
{
    JNIEnv *env = ((jvm_scan *)context)->env;
    /* It needs an address, also for no bytes. */
    void *data = (void *)(uintptr_t)(stored.bytes > 0 ? stored.data : (const uint8_t *)room);
    jobject buffer = (*env)->NewDirectByteBuffer(env, data, (jlong)stored.bytes);
    jbyteArray made = buffer == NULL ? NULL
                                     : (*env)->CallStaticObjectMethod(env, inflating_class, inflate_method,
                                                                      (jint)sys_flag, buffer,
                                                                      (jint)CMQ_SCAN_BODY_BYTES_MAX);
    if (buffer != NULL) (*env)->DeleteLocalRef(env, buffer);
    const jsize bytes = made == NULL || (*env)->ExceptionCheck(env) ? 0 : (*env)->GetArrayLength(env, made);
    if (bytes == 0) return cmq_fail(CMQ_ERR_IO, "decompression failed in Java");
    cmq_status status = CMQ_OK;
    jbyte outcome;
    (*env)->GetByteArrayRegion(env, made, 0, 1, &outcome);
    if (outcome == INFLATED) {
        uint8_t *into = cmq_scan_room_take(room, (size_t)bytes - 1);
        if (into == NULL) status = cmq_last_error()->status;
        else (*env)->GetByteArrayRegion(env, made, 1, bytes - 1, (jbyte *)into);
    } else {
        char text[CMQ_ERROR_TEXT_BYTES] = {0};
        const jsize shown = bytes - 1 < (jsize)sizeof text - 1 ? bytes - 1 : (jsize)sizeof text - 1;
        (*env)->GetByteArrayRegion(env, made, 1, shown, (jbyte *)text);
        status = cmq_fail(outcome == IS_LIMIT ? CMQ_ERR_LIMIT : CMQ_ERR_CORRUPT, "%s", text);
    }
    (*env)->DeleteLocalRef(env, made);
    return status;
}

/* `request`: see cmq_scan_request.h. */
jlong NATIVE(openScan)(JNIEnv *env, jclass class, jlong number, jbyteArray request)
{
    (void)class;
    size_t bytes;
    jlong scan_number = 0;
    cmq_scan_request asked = {0};
    uint8_t *packed = (uint8_t *)copy_of(env, request, &bytes);
    cmq_store *store = packed == NULL ? NULL : enter(env, number, CMQ_HANDLE_STORE);
    if (store == NULL) {
        free(packed);
        return 0;
    }
    jvm_scan *scan = calloc(1, sizeof *scan);
    cmq_status status = scan == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory for a scan")
                                     : cmq_scan_request_read((cmq_slice){.data = packed, .bytes = bytes}, &asked);
    if (status == CMQ_OK && asked.has_where) status = cmq_selector_compile(asked.where, &scan->where, NULL);
    if (status == CMQ_OK) {
        asked.options.read.where = scan->where;
        asked.options.decompress = inflate;
        asked.options.decompress_context = scan;
        status = cmq_scan_open(store, &asked.options, &scan->scan);
    }
    cmq_scan_request_free(&asked);
    free(packed);
    if (status == CMQ_OK) {
        scan_number = cmq_handles_add(CMQ_HANDLE_SCAN, scan, destroy_scan, number);
        if (scan_number != 0) return scan_number;
        status = CMQ_ERR_MEMORY;
        cmq_scan_close(scan->scan);
    }
    if (scan != NULL) cmq_selector_free(scan->where);
    free(scan);
    cmq_handles_leave(number);
    raise(env, status);
    return 0;
}

void NATIVE(closeScan)(JNIEnv *env, jclass class, jlong number)
{
    (void)env, (void)class;
    cmq_handles_close(number, CMQ_HANDLE_SCAN);
}

/* ---- batches ---- */

static void destroy_batch(void *object)
{
    struct ArrowArray *batch = object;
    batch->release(batch);
    free(batch);
}

/* Numbers of an array and its children, in order: null count, buffers, their addresses, children, those. */
static size_t words_of(const struct ArrowArray *array)
{
    size_t words = 3 + (size_t)array->n_buffers;
    for (int64_t i = 0; i < array->n_children; i++) words += words_of(array->children[i]);
    return words;
}

static jlong *put_words(jlong *at, const struct ArrowArray *array)
{
    *at++ = array->null_count;
    *at++ = array->n_buffers;
    for (int64_t i = 0; i < array->n_buffers; i++) *at++ = (jlong)(uintptr_t)array->buffers[i];
    *at++ = array->n_children;
    for (int64_t i = 0; i < array->n_children; i++) at = put_words(at, array->children[i]);
    return at;
}

/* The batch as longs: its number, its rows, and the numbers of its array. NULL: an exception is pending. */
static jlongArray longs_of(JNIEnv *env, const struct ArrowArray *array, jlong number)
{
    const size_t words = 2 + words_of(array);
    jlong *packed = malloc(words * sizeof *packed);
    if (packed == NULL) {
        raise(env, cmq_fail(CMQ_ERR_MEMORY, "no memory for a batch"));
        return NULL;
    }
    packed[0] = number;
    packed[1] = array->length;
    (void)put_words(packed + 2, array);
    jlongArray made = (*env)->NewLongArray(env, (jsize)words);
    if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, (jsize)words, packed);
    free(packed);
    return made;
}

static jlongArray give_batch(JNIEnv *env, struct ArrowArray *array)
{
    struct ArrowArray *kept = malloc(sizeof *kept);
    const jlong number = kept == NULL ? 0 : cmq_handles_add(CMQ_HANDLE_BATCH, kept, destroy_batch, 0);
    if (number == 0) {
        free(kept);
        array->release(array);
        raise(env, cmq_fail(CMQ_ERR_MEMORY, "no memory for a batch"));
        return NULL;
    }
    *kept = *array;   /* the move that Arrow defines; nobody knows the number yet */
    jlongArray made = longs_of(env, kept, number);
    if (made == NULL) cmq_handles_close(number, CMQ_HANDLE_BATCH);
    return made;
}

/* null: the end. No longs: the filters took tenths of a second and passed no row; call again. */
jlongArray NATIVE(nextBatch)(JNIEnv *env, jclass class, jlong number)
{
    (void)class;
    jvm_scan *scan = enter(env, number, CMQ_HANDLE_SCAN);
    if (scan == NULL) return NULL;
    struct ArrowArray array;
    bool ended = false;
    scan->env = env;
    const cmq_status status = cmq_scan_next(scan->scan, &array, &ended);
    scan->env = NULL;
    cmq_handles_leave(number);
    /* A codec's: nothing of JNI may be called before it is thrown. Rows before its record go with it. */
    if ((*env)->ExceptionCheck(env)) {
        if (array.release != NULL) array.release(&array);
        return NULL;
    }
    if (status != CMQ_OK && status != CMQ_AGAIN) {
        raise(env, status);
        return NULL;
    }
    if (array.release != NULL) return give_batch(env, &array);
    return status == CMQ_AGAIN ? (*env)->NewLongArray(env, 0) : NULL;
}

void NATIVE(releaseBatch)(JNIEnv *env, jclass class, jlong number)
{
    (void)env, (void)class;
    cmq_handles_close(number, CMQ_HANDLE_BATCH);
}

/* ---- lost pages ---- */

/* The word of cmq_map_guard.h that is 0 until the process loses a page: one buffer for all. */
jobject NATIVE(lostPages)(JNIEnv *env, jclass class)
{
    (void)class;
    return (*env)->NewDirectByteBuffer(env, &cmq_map_guard_runs, sizeof cmq_map_guard_runs);
}

/* Throw where bytes that were copied came from a page that was lost. The address is compared, not read. */
void NATIVE(checkRead)(JNIEnv *env, jclass class, jlong address, jlong bytes)
{
    (void)class;
    if (bytes <= 0 || !cmq_map_guard_search((const void *)(uintptr_t)address, (size_t)bytes)) return;
    raise(env, cmq_fail(CMQ_ERR_CORRUPT,
                        "a part of a message's body was lost after the message was found: a bad sector, or the file "
                        "was cut. Run `cometmq verify`, and read again"));
}

/* Counts of cmq_scan_skipped (records, invalid texts, clamped times, expired), then physical offsets of records. */
jlongArray NATIVE(skipped)(JNIEnv *env, jclass class, jlong number)
{
    (void)class;
    jvm_scan *scan = enter(env, number, CMQ_HANDLE_SCAN);
    if (scan == NULL) return NULL;
    cmq_scan_skipped found;
    int64_t words[4 + CMQ_SCAN_SKIPPED_MAX];
    uint32_t count = 0;
    cmq_scan_skipped_of(scan->scan, &found, words + 4, CMQ_SCAN_SKIPPED_MAX, &count);
    cmq_handles_leave(number);
    words[0] = (int64_t)found.records;
    words[1] = (int64_t)found.invalid_texts;
    words[2] = (int64_t)found.clamped_times;
    words[3] = (int64_t)found.expired;
    jlongArray made = (*env)->NewLongArray(env, (jsize)(4 + count));
    if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, (jsize)(4 + count), (const jlong *)words);
    return made;
}

/* ---- rows to stage ---- */

static void destroy_rows(void *rows) { cmq_spark_rows_close(rows); }

/* `kinds`: a cmq_spark_kind for each column of the rows. */
jlong NATIVE(openRows)(JNIEnv *env, jclass class, jbyteArray path, jbyteArray kinds, jint body_bytes_max,
                       jboolean has_topic)
{
    (void)class;
    size_t count = 0;
    jlong number = 0;
    cmq_spark_rows *rows = NULL;
    char *name = text_of(env, path);
    char *columns = name == NULL ? NULL : copy_of(env, kinds, &count);
    if (columns != NULL) {
        const cmq_spark_options options = {.fs = cmq_fs_posix(),
                                           .path = name,
                                           .kinds = (const uint8_t *)columns,
                                           .count = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count,
                                           .body_bytes_max = body_bytes_max < 0 ? 0 : (uint32_t)body_bytes_max,
                                           .has_topic = has_topic};
        cmq_status status = cmq_spark_rows_create(&options, &rows);
        if (status == CMQ_OK) {
            number = cmq_handles_add(CMQ_HANDLE_ROWS, rows, destroy_rows, 0);
            if (number == 0) {
                status = CMQ_ERR_MEMORY;
                destroy_rows(rows);
            }
        }
        if (status != CMQ_OK) raise(env, status);
    }
    free(columns);
    free(name);
    return number;
}

/* Take the remaining rows, or as many as fill a batch. No function of JNI may be called in between, and nothing
 * that waits: the collector does. */
static cmq_status take_rows(JNIEnv *env, cmq_spark_rows *rows, jbyteArray packed, size_t bytes, size_t *taken)
{
    size_t now = 0;
    uint8_t *at = (*env)->GetPrimitiveArrayCritical(env, packed, NULL);
    if (at == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an array of rows");
    const cmq_status status =
        cmq_spark_rows_take(rows, (cmq_slice){.data = at + *taken, .bytes = bytes - *taken}, &now);
    (*env)->ReleasePrimitiveArrayCritical(env, packed, at, JNI_ABORT);   /* nothing was changed */
    *taken += now;
    return status;
}

/* The first `bytes` of `packed`: rows, each behind its length. */
void NATIVE(addRows)(JNIEnv *env, jclass class, jlong number, jbyteArray packed, jint bytes)
{
    (void)class;
    cmq_spark_rows *rows = enter(env, number, CMQ_HANDLE_ROWS);
    if (rows == NULL) return;
    cmq_status status = CMQ_OK;
    if (packed == NULL || bytes < 0 || bytes > (*env)->GetArrayLength(env, packed))
        status = cmq_fail(CMQ_ERR_ARGUMENT, "there is no array with %d bytes of rows", bytes);
    for (size_t taken = 0; status == CMQ_OK && taken < (size_t)bytes;) {
        status = take_rows(env, rows, packed, (size_t)bytes, &taken);
        if (status == CMQ_OK && taken < (size_t)bytes) status = cmq_spark_rows_flush(rows);   /* the batch is full */
    }
    cmq_handles_leave(number);
    if (status != CMQ_OK) raise(env, status);
}

/* Rows, bytes and checksum of the file, which stays if it has rows. */
jlongArray NATIVE(finishRows)(JNIEnv *env, jclass class, jlong number)
{
    (void)class;
    cmq_spark_file file;
    cmq_spark_rows *rows = enter(env, number, CMQ_HANDLE_ROWS);
    if (rows == NULL) return NULL;
    const cmq_status status = cmq_spark_rows_finish(rows, &file);
    cmq_handles_leave(number);
    if (status != CMQ_OK) {
        raise(env, status);
        return NULL;
    }
    const jlong words[3] = {file.rows, (jlong)file.bytes, file.crc32};
    jlongArray made = (*env)->NewLongArray(env, 3);
    if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, 3, words);
    return made;
}

void NATIVE(closeRows)(JNIEnv *env, jclass class, jlong number)
{
    (void)env, (void)class;
    cmq_handles_close(number, CMQ_HANDLE_ROWS);
}

jlong NATIVE(openHandles)(JNIEnv *env, jclass class)
{
    (void)env, (void)class;
    return cmq_handles_count();
}
