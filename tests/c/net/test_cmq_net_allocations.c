/* test_cmq_net_allocations: a loop that has warmed up serves requests without asking for memory: one by one, pipelined,
 * cut anywhere, answered later.
 *
 * This program has a malloc of its own that counts while a turn is made; under a sanitizer, which has one too, it
 * skips.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

int main(void)
{
    puts("a sanitizer has a malloc of its own");
    return 77;
}

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

static bool counting;
static uint64_t allocations;

void *malloc(size_t bytes)
{
    allocations += counting;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += counting;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    allocations += counting;
    return __libc_realloc(memory, bytes);
}

static netkit_server server;

static void turn(void)
{
    counting = true;
    cmq_net_turn(server.net);
    counting = false;
}

/* Read answers until so many have come; the client's side of the connection may allocate what it likes. */
static void take(int fd, uint32_t count, int32_t code)
{
    static uint8_t bytes[1 << 16];
    cmq_frame frame;
    cmq_command command;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(netkit_read(fd, bytes, &frame, &command));
        CHECK_INT(command.code, code);
    }
}

static void round_of(const int *fds, uint32_t conns, uint32_t depth)
{
    uint8_t stream[32 * 400], body[100] = {0};
    size_t bytes = 0;
    for (uint32_t i = 0; i < depth; i++)
        bytes += netkit_frame(stream + bytes, ASK_ECHO, (int32_t)i, 0, (cmq_slice){.data = body, .bytes = sizeof body});
    for (uint32_t c = 0; c < conns; c++) {
        const size_t cut = cmq_test_random_below(bytes + 1);
        netkit_write(fds[c], stream, cut);
        turn();
        netkit_write(fds[c], stream + cut, bytes - cut);
    }
    for (int i = 0; i < 20; i++) turn();
    for (uint32_t c = 0; c < conns; c++) take(fds[c], depth, 0);
    /* Kept, and answered at a tick. */
    for (uint32_t c = 0; c < conns; c++) netkit_request(fds[c], ASK_KEEP, 1, CMQ_SLICE_NONE);
    while (server.states[0]->kept_count < conns) turn();
    server.states[0]->due_ns = server.now_ns;
    for (int i = 0; i < 20; i++) turn();
    for (uint32_t c = 0; c < conns; c++) take(fds[c], 1, 9);
}

static void requests_allocate_nothing(void)
{
    enum { CONNS = 16 };
    int fds[CONNS];
    netkit_prepare(&server);
    netkit_start(&server);
    for (int c = 0; c < CONNS; c++) fds[c] = netkit_connect(&server);
    round_of(fds, CONNS, 32);
    round_of(fds, CONNS, 32);
    CHECK(allocations > 0);   /* it does count */
    allocations = 0;
    for (int i = 0; i < 20; i++) round_of(fds, CONNS, 32);
    for (int i = 0; i < 200; i++) round_of(fds, 1, 1);
    CHECK_INT(allocations, 0);
    for (int c = 0; c < CONNS; c++) close(fds[c]);
    netkit_stop(&server);
}

CMQ_TEST_MAIN(CMQ_TEST(requests_allocate_nothing))

#endif
