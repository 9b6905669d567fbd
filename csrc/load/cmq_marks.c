/* cmq_marks: see cmq_marks.h. */
#include "load/cmq_marks.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 64, WORDS_LEAST = 64 };

static cmq_status grow_to(cmq_marks *marks, uint64_t word)
{
    uint64_t wanted = marks->word_count > 0 ? 2 * marks->word_count : WORDS_LEAST;
    if (wanted <= word) wanted = word + 1;
    uint64_t *words = realloc(marks->words, wanted * sizeof *words);
    if (words == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for %llu marks", (unsigned long long)(wanted * WORD_BITS));
    memset(words + marks->word_count, 0, (wanted - marks->word_count) * sizeof *words);
    marks->words = words;
    marks->word_count = wanted;
    return CMQ_OK;
}

cmq_status cmq_marks_set(cmq_marks *marks, uint64_t number, bool *first_out)
{
    *first_out = false;
    if (number >= CMQ_MARKS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%llu cannot be marked: it is too large", (unsigned long long)number);
    const uint64_t word = number / WORD_BITS, bit = UINT64_C(1) << number % WORD_BITS;
    if (word >= marks->word_count) {
        const cmq_status status = grow_to(marks, word);
        if (status != CMQ_OK) return status;
    }
    if ((marks->words[word] & bit) != 0) return CMQ_OK;
    marks->words[word] |= bit;
    marks->count++;
    if (number >= marks->end) marks->end = number + 1;
    *first_out = true;
    return CMQ_OK;
}

void cmq_marks_free(cmq_marks *marks)
{
    free(marks->words);
    *marks = (cmq_marks){0};
}
