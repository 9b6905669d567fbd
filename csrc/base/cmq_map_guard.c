/* cmq_map_guard: see cmq_map_guard.h.
 *
 * Mappings stand in slots of chunks that are never freed; runs of lost pages in one table. Once that is full, a mapping
 * keeps the range of its lost pages in its own slot: the pages between count as lost, too. The handler reads both
 * without a lock. A mapping stays while somebody reads it, so a page that faults is one of its own, and replacing it
 * hits nobody else.
 */
#include "base/cmq_map_guard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define CHUNK_SLOTS 1024u
#define RUNS_MAX 1024u
#define SLOT_FREE ((uintptr_t)0)
#define SLOT_TAKEN ((uintptr_t)1)   /* being filled */
#define X86_FAULT_WRITES 2

typedef struct slot {
    _Atomic uintptr_t start, end;
    _Atomic bool writable;
    _Atomic uintptr_t lost_from, lost_end;   /* lost_from 0: no such range */
} slot;

typedef struct chunk {
    slot slots[CHUNK_SLOTS];
    _Atomic(struct chunk *) next;
} chunk;

/* Lost pages that lie side by side in one mapping. */
typedef struct run {
    _Atomic uintptr_t start, end;
} run;

_Atomic uint32_t cmq_map_guard_runs;
static chunk first_chunk;
static run runs[RUNS_MAX];
static _Atomic bool slots_lose;   /* a slot had a range of lost pages once */
static _Atomic uintptr_t page_bytes;

/* The handler before ours, in two places that take turns: a signal may come while a new one is noted. */
static struct sigaction before[2];
static _Atomic unsigned before_now;
static _Atomic bool installing;

/* The one before our first installation never leads back to ours. The later ones may: two copies of this file in a
 * process (Python's and the JVM's, or of two class loaders) find each other on top and chain in a ring. */
static struct sigaction first;
static _Thread_local const void *passing __attribute__((tls_model("initial-exec")));   /* the fault being passed on */

/* ---- lost pages ---- */

/* The end first: a range with a start is whole. */
static void lose_in_slot(uintptr_t page, uintptr_t step, slot *in)
{
    uintptr_t from = atomic_load(&in->lost_from), end = atomic_load(&in->lost_end);
    while (page + step > end && !atomic_compare_exchange_weak(&in->lost_end, &end, page + step)) continue;
    while ((from == 0 || page < from) && !atomic_compare_exchange_weak(&in->lost_from, &from, page)) continue;
    atomic_store(&slots_lose, true);
}

static void lose_page(uintptr_t page, uintptr_t step, slot *in)
{
    const uintptr_t start = atomic_load(&in->start);
    for (uint32_t i = 0, count = atomic_load(&cmq_map_guard_runs); i < count; i++) {
        const uintptr_t from = atomic_load(&runs[i].start);
        uintptr_t end = atomic_load(&runs[i].end);
        if (from < start || page < from || page > end) continue;
        if (page < end || atomic_compare_exchange_strong(&runs[i].end, &end, page + step)) return;
    }
    for (uint32_t i = 0; i < RUNS_MAX; i++) {
        uintptr_t none = SLOT_FREE;
        if (!atomic_compare_exchange_strong(&runs[i].start, &none, SLOT_TAKEN)) continue;
        atomic_store(&runs[i].end, page + step);
        atomic_store(&runs[i].start, page);
        uint32_t count = atomic_load(&cmq_map_guard_runs);
        while (count <= i && !atomic_compare_exchange_weak(&cmq_map_guard_runs, &count, i + 1)) continue;
        return;
    }
    /* The table is full: extend a run of the same mapping; the pages in between count as lost, too. */
    for (uint32_t i = 0; i < RUNS_MAX; i++) {
        uintptr_t from = atomic_load(&runs[i].start), end = atomic_load(&runs[i].end);
        if (from < start || from >= atomic_load(&in->end)) continue;
        while (page < from && !atomic_compare_exchange_weak(&runs[i].start, &from, page)) continue;
        while (page + step > end && !atomic_compare_exchange_weak(&runs[i].end, &end, page + step)) continue;
        return;
    }
    lose_in_slot(page, step, in);
}

static bool search_slots(uintptr_t from, uintptr_t end)
{
    for (const chunk *of = &first_chunk; of != NULL; of = atomic_load(&of->next)) {
        for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
            const uintptr_t start = atomic_load(&of->slots[i].lost_from);
            if (start != 0 && start < end && atomic_load(&of->slots[i].lost_end) > from) return true;
        }
    }
    return false;
}

bool cmq_map_guard_search(const void *address, size_t bytes)
{
    const uintptr_t from = (uintptr_t)address, end = from + bytes;
    for (uint32_t i = 0, count = atomic_load(&cmq_map_guard_runs); i < count; i++) {
        const uintptr_t start = atomic_load(&runs[i].start);
        if (start > SLOT_TAKEN && start < end && atomic_load(&runs[i].end) > from) return true;
    }
    return atomic_load(&slots_lose) && search_slots(from, end);
}

cmq_status cmq_map_guard_check(const void *address, size_t bytes, int64_t physical_offset)
{
    if (bytes == 0 || cmq_map_guard_touch(address, bytes)) return CMQ_OK;
    return cmq_fail_at(
        CMQ_ERR_CORRUPT, physical_offset,
        "a part of the record at physical offset %lld cannot be read: a bad sector, or the file was cut. Run "
        "`cometmq verify`",
        (long long)physical_offset);
}

static void forget_pages(uintptr_t from, uintptr_t end)
{
    for (uint32_t i = 0, count = atomic_load(&cmq_map_guard_runs); i < count; i++) {
        const uintptr_t start = atomic_load(&runs[i].start);
        if (start >= from && start < end) atomic_store(&runs[i].start, SLOT_FREE);
    }
}

/* ---- the handler ---- */

static slot *slot_of(uintptr_t address)
{
    for (chunk *of = &first_chunk; of != NULL; of = atomic_load(&of->next)) {
        for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
            const uintptr_t start = atomic_load(&of->slots[i].start);
            if (start > SLOT_TAKEN && start <= address && address < atomic_load(&of->slots[i].end))
                return &of->slots[i];
        }
    }
    return NULL;
}

/* Where the machine says whether it was a write, a signal for one ends the process at once; else the page of zeros
 * does, which cannot be written. */
static bool is_write(const void *context)
{
#if defined(__x86_64__)
    return (((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & X86_FAULT_WRITES) != 0;
#else
    (void)context;
    return false;
#endif
}

static bool replace_page(uintptr_t address, const void *context)
{
    slot *in = slot_of(address);
    if (in == NULL || (atomic_load(&in->writable) && is_write(context))) return false;
    const uintptr_t step = atomic_load(&page_bytes), page = address - address % step;
    lose_page(page, step, in);   /* before the zeros can be read */
    return mmap((void *)page, step, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
           MAP_FAILED;   // NOLINT(performance-no-int-to-ptr)
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    const bool ring = passing == context;
    const struct sigaction *to = ring ? &first : &before[atomic_load(&before_now) % 2];
    /* A handler that was put over ours sends the signal again to reach the one below: ours, which would call it for
     * ever. */
    const bool repeated = info->si_code == SI_TKILL && info->si_pid == getpid();
    if (repeated) {
        signal(number, SIG_DFL);
        raise(number);
    } else if ((to->sa_flags & SA_SIGINFO) != 0) {
        passing = context;
        to->sa_sigaction(number, info, context);
        if (!ring) passing = NULL;
    } else if (to->sa_handler != SIG_DFL && to->sa_handler != SIG_IGN) {
        to->sa_handler(number);
    } else {
        /* The instruction is met again, without us; a signal that somebody sent is sent again. */
        const struct sigaction plain = {.sa_handler = to->sa_handler};
        sigaction(number, &plain, NULL);
        if (info->si_code <= 0) raise(number);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const int failed = errno;
    if (info->si_code <= 0 || !replace_page((uintptr_t)info->si_addr, context)) pass_on(number, info, context);
    errno = failed;
}

/* At each mapping: others may have put their handlers over ours since. */
static void install(void)
{
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0 || ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault))
        return;
    if (atomic_exchange(&installing, true)) return;   /* another thread is at it */
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    const unsigned next = atomic_load(&before_now) + 1;
    if (next == 1) first = now;
    before[next % 2] = now;
    atomic_store(&before_now, next);
    (void)sigaction(SIGBUS, &ours, NULL);
    atomic_store(&installing, false);
}

/* ---- mappings ---- */

static bool fill_slot(chunk *of, uintptr_t start, uintptr_t end, bool writable)
{
    for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
        slot *at = &of->slots[i];
        uintptr_t none = SLOT_FREE;
        if (atomic_load_explicit(&at->start, memory_order_relaxed) != SLOT_FREE ||
            !atomic_compare_exchange_strong(&at->start, &none, SLOT_TAKEN))
            continue;
        atomic_store(&at->end, end);
        atomic_store(&at->writable, writable);
        atomic_store(&at->start, start);
        return true;
    }
    return false;
}

static chunk *next_chunk(chunk *of)
{
    chunk *next = atomic_load(&of->next);
    if (next != NULL) return next;
    chunk *made = calloc(1, sizeof *made);
    if (made == NULL || atomic_compare_exchange_strong(&of->next, &next, made)) return made;
    free(made);
    return next;
}

void cmq_map_guard_add(const void *address, size_t bytes, bool writable)
{
    if (atomic_load(&page_bytes) == 0) atomic_store(&page_bytes, (uintptr_t)sysconf(_SC_PAGESIZE));
    install();
    const uintptr_t step = atomic_load(&page_bytes), start = (uintptr_t)address / step * step,
                    end = ((uintptr_t)address + bytes + step - 1) / step * step;
    for (chunk *of = &first_chunk; of != NULL && !fill_slot(of, start, end, writable); of = next_chunk(of)) continue;
}

void cmq_map_guard_remove(const void *address, size_t bytes)
{
    const uintptr_t step = atomic_load(&page_bytes);
    if (step == 0) return;
    const uintptr_t start = (uintptr_t)address / step * step,
                    end = ((uintptr_t)address + bytes + step - 1) / step * step;
    for (chunk *of = &first_chunk; of != NULL; of = atomic_load(&of->next)) {
        for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
            if (atomic_load_explicit(&of->slots[i].start, memory_order_relaxed) != start) continue;
            atomic_store(&of->slots[i].lost_from, 0);
            atomic_store(&of->slots[i].lost_end, 0);
            atomic_store(&of->slots[i].start, SLOT_FREE);
            if (cmq_map_guard_any()) forget_pages(start, end);
            return;
        }
    }
}
