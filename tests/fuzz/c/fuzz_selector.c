/* fuzz_selector: hostile bytes as an SQL92 expression, and, behind the first 0xFF, as the properties that it reads.
 *
 * Properties: a refusal says why and where, and leaves nothing behind; a program answers the same twice, and reads no
 *             byte outside the properties; a text cut at its reported tail compiles to the same answer.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "filter/cmq_selector.h"

/* A copy without a byte to spare, so that a sanitizer sees a read beyond it. */
static cmq_slice copied(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    CMQ_ASSERT(copy != NULL);
    if (bytes > 0) memcpy(copy, data, bytes);
    return (cmq_slice){.data = copy, .bytes = bytes};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, 0xFF, size) : NULL;
    const size_t text_bytes = end != NULL ? (size_t)(end - data) : size;
    const cmq_slice text = copied(data, text_bytes);
    const cmq_slice properties =
        end != NULL ? copied(end + 1, size - text_bytes - 1) : copied((const uint8_t *)"a\0015\002", 4);
    cmq_selector *selector, *shorter;
    size_t tail;
    const cmq_status status = cmq_selector_compile(text, &selector, &tail);
    if (status == CMQ_OK) {
        const cmq_selector_answer answer = cmq_selector_evaluate(selector, properties);
        CMQ_ASSERT(answer <= CMQ_SELECTOR_ERROR && cmq_selector_evaluate(selector, properties) == answer);
        CMQ_ASSERT(tail <= text.bytes && cmq_selector_cost(selector) > 0);
        const cmq_slice head = {.data = text.data, .bytes = tail};
        CMQ_ASSERT(cmq_selector_compile(head, &shorter, &tail) == CMQ_OK);
        CMQ_ASSERT(cmq_selector_evaluate(shorter, properties) == answer);
        cmq_selector_free(shorter);
        cmq_selector_free(selector);
    } else {
        CMQ_ASSERT(status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_LIMIT);
        CMQ_ASSERT(selector == NULL && cmq_last_error()->text[0] != 0);
        CMQ_ASSERT(cmq_last_error()->offset >= 0 && (size_t)cmq_last_error()->offset <= text.bytes);
    }
    free((void *)(uintptr_t)text.data);
    free((void *)(uintptr_t)properties.data);
    return 0;
}
