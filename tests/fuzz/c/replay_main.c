/* replay_main: runs a fuzz target over the files of a corpus folder, and over seeded mutations of them, with plain gcc.
 *
 *   fuzz_record CORPUS_FOLDER [MUTATIONS]
 *
 * Every input is in a heap block of its exact size, so that the address sanitizer sees one byte read too far. The
 * seed comes from CMQ_SEED, else with CMQ_LONG from the clock, and is printed first: with it a run repeats exactly.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

#define INPUTS_MAX 256
#define INPUT_BYTES_MAX (64 * 1024)
#define MUTATIONS_USUAL 20000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    uint8_t *data;
    size_t bytes;
} input;

static input inputs[INPUTS_MAX];
static size_t input_count;
static uint64_t random_state;

static size_t random_below(size_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % bound);
}

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "%s: %s\n", path, what);
    exit(2);
}

static void read_input(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) give_up("cannot be opened", path);
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    if (data == NULL) give_up("no memory", path);
    inputs[input_count].bytes = fread(data, 1, INPUT_BYTES_MAX, file);
    inputs[input_count].data = data;
    input_count++;
    fclose(file);
}

static void read_corpus(const char *folder)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);   /* sorted: the same order wherever it runs */
    if (count < 0) give_up("cannot be listed", folder);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && input_count < INPUTS_MAX) read_input(path);
        free(entries[i]);
    }
    free(entries);
    if (input_count == 0) give_up("holds no input", folder);
}

static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes);
    if (exact == NULL && bytes > 0) give_up("no memory", "input");
    if (bytes > 0) memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

/* Change `data` in one of the ways that files and programs do; returns the new size, at most INPUT_BYTES_MAX. */
static size_t mutate(uint8_t *data, size_t bytes)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF};
    if (bytes == 0) return 0;
    const size_t at = random_below(random_below(2) ? bytes : bytes < 128 ? bytes : 128);
    switch (random_below(6)) {
    case 0: data[at] = (uint8_t)(data[at] ^ 1u << random_below(8)); break;
    case 1: data[at] = edges[random_below(sizeof edges)]; break;
    case 2: data[at] = (uint8_t)(data[at] + random_below(9) - 4); break;
    case 3: return at;                                              /* cut */
    case 4: memset(data + at, 0, 1 + random_below(bytes - at)); break;
    default: {
        const input *other = &inputs[random_below(input_count)];   /* a piece of another input */
        const size_t from = other->bytes > 0 ? random_below(other->bytes) : 0;
        size_t piece = other->bytes - from;
        if (piece > bytes - at) piece = bytes - at;
        memcpy(data + at, other->data + from, piece);
    }
    }
    return bytes;
}

int main(int argc, char **argv)
{
    if (argc < 2) give_up("CORPUS_FOLDER [MUTATIONS]", argv[0]);
    const uint64_t seed = cmq_test_chosen_seed();
    random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    printf("repeat with CMQ_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);

    read_corpus(argv[1]);
    for (size_t i = 0; i < input_count; i++) run(inputs[i].data, inputs[i].bytes);
    const long mutations = argc > 2 ? atol(argv[2]) : MUTATIONS_USUAL;
    uint8_t *changed = malloc(INPUT_BYTES_MAX);
    if (changed == NULL) give_up("no memory", argv[0]);
    for (long i = 0; i < mutations; i++) {
        const input *base = &inputs[random_below(input_count)];
        size_t bytes = base->bytes;
        memcpy(changed, base->data, bytes);
        for (size_t changes = 1 + random_below(4); changes > 0; changes--) bytes = mutate(changed, bytes);
        run(changed, bytes);
    }
    printf("%zu inputs and %ld mutations\n", input_count, mutations);
    free(changed);
    for (size_t i = 0; i < input_count; i++) free(inputs[i].data);
    return 0;
}
