/* fuzz_journal: hostile bytes as the journal of committed offsets, `cometmq/progress`, behind a head that says whether
 * they count.
 *
 * Input: a byte, then the file. Bit 0 of the byte: the file's head is the input's, too; else a sound one comes before
 *        it. Bit 1: sums of records are as the input says; else they are made right, so that what stands behind a sum
 *        is reached.
 *
 * Properties: reading ends and never fails; each entry lies inside the file and has a queue and an offset that could
 *             be; a second reading from the cursor finds nothing more.
 * Run:        by replay_main.c over corpus/journal and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/marks/cmq_offset_journal.h"
#include "support/cmq_store_kit.h"

enum { HEAD_BYTES = 512, HEAD_CRC_AT = 40, RECORD_HEAD_BYTES = 16, INPUT_BYTES_MAX = 65536 };
enum { OWN_HEAD = 1, OWN_SUMS = 2 };

static const cmq_offset_journal_basis basis = {.crc = 7, .bytes = 9};
static char root[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
static uint8_t head[HEAD_BYTES];
static const char *directory;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void clean_up(void) { kit_remove_tree(directory); }

static void prepare(void)
{
    cmq_offset_journal *journal;
    directory = kit_directory();
    CHECK_OK(cmq_path_join(root, directory, "store"));
    CHECK_OK(cmq_path_join(path, root, "cometmq/progress"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    CHECK_OK(cmq_offset_journal_create(cmq_fs_posix(), root, &basis, 1, false, &journal));
    kit_read_bytes(path, 0, head, sizeof head);
    cmq_offset_journal_close(journal);
    CMQ_ASSERT(atexit(clean_up) == 0);
}

static void write_file(const uint8_t *bytes, size_t count)
{
    kit_write_bytes(path, 0, bytes, count);
    CMQ_ASSERT(truncate(path, (off_t)count) == 0);
}

/* Make the sum of each record right that lies whole in the bytes. */
static void mend_sums(uint8_t *records, size_t bytes, uint32_t chain)
{
    for (size_t at = 0; bytes - at >= RECORD_HEAD_BYTES;) {
        const uint32_t record_bytes = cmq_load_u32(records + at);
        if (record_bytes < RECORD_HEAD_BYTES || record_bytes > bytes - at) return;
        chain = cmq_crc32_extend(cmq_crc32_extend(chain, records + at, 4), records + at + 8, record_bytes - 8);
        cmq_store_u32(records + at + 4, chain);
        at += record_bytes;
    }
}

static cmq_status visit(void *context, cmq_slice group, const cmq_offset_journal_entry *entry)
{
    uint64_t *seen = context;
    CMQ_ASSERT(group.bytes <= INPUT_BYTES_MAX && entry->topic.bytes <= INPUT_BYTES_MAX);
    (void)cmq_crc32(group.data, group.bytes);
    (void)cmq_crc32(entry->topic.data, entry->topic.bytes);
    (*seen)++;
    return CMQ_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t file[HEAD_BYTES + INPUT_BYTES_MAX];
    if (size < 2 || size > INPUT_BYTES_MAX) return 0;
    if (directory == NULL) prepare();
    const uint8_t how = data[0];
    const size_t head_bytes = (how & OWN_HEAD) != 0 ? 0 : HEAD_BYTES, bytes = head_bytes + size - 1;
    memcpy(file, head, head_bytes);
    memcpy(file + head_bytes, data + 1, size - 1);
    if ((how & OWN_SUMS) == 0 && head_bytes > 0)
        mend_sums(file + HEAD_BYTES, size - 1, cmq_load_u32(head + HEAD_CRC_AT));
    write_file(file, bytes);

    cmq_offset_journal_cursor cursor = {0};
    cmq_offset_journal_found found;
    uint64_t seen = 0, again = 0;
    CHECK_OK(cmq_offset_journal_read(cmq_fs_posix(), root, &basis, &cursor, visit, &seen, &found));
    CMQ_ASSERT(found == CMQ_OFFSETLOG_READ || seen == 0);
    CHECK_OK(cmq_offset_journal_read(cmq_fs_posix(), root, &basis, &cursor, visit, &again, &found));
    CMQ_ASSERT(again == 0);
    return 0;
}
