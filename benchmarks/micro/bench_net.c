/* bench_net: requests through a loop of csrc/net: 300 bytes each way over loopback, 1, 8 and 64 connections, 1 and 32
 * requests in flight on each.
 *
 * The handler answers each request with its body, so the cost is sockets, framing, header parse and answer.
 * "bare echo" is a server that sends back what it reads, in the same run with the same client: the kernel's share. For
 * each both the time per request, and the CPU time of the server's thread per request. Every answer's number is
 * checked. The client has the process's first thread; on two cores or more each has one to itself. Then: how late a
 * loop's tick comes, and a wake from another thread, and what an idle connection takes of memory and CPU.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmq_bench.h"
#include "net/cmq_net_internal.h"

#define FRAME_BYTES 300u
#define CONNS_MAX 64
#define DEPTH_MAX 32u

typedef struct client {
    int fd;
    uint64_t asked, answered;
    size_t part;                       /* bytes that came of the next answer */
    uint8_t answer[4096];
    uint8_t requests[DEPTH_MAX * FRAME_BYTES];
} client;

/* ---- the servers ---- */

static cmq_net_verdict echo(void *state, cmq_conn *conn, const cmq_command *command, cmq_slice body, bool again)
{
    (void)state, (void)again;
    uint8_t *into = cmq_conn_reserve(conn, 256 + body.bytes);
    BENCH_CHECK(into != NULL);
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, 256, command->format, 0, command->opaque, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    const size_t bytes = cmq_command_end(&writer, body.bytes);
    memcpy(into + bytes, body.data, body.bytes);
    cmq_conn_commit(conn, bytes + body.bytes);
    return CMQ_NET_DONE;
}

typedef struct bare {
    int listener, epoll_fd;
    _Atomic bool ends;
} bare;

static void *bare_run(void *argument)
{
    bare *server = argument;
    static uint8_t buffer[NET_READ_BYTES];
    struct epoll_event events[NET_EVENTS];
    while (!atomic_load(&server->ends)) {
        const int count = epoll_wait(server->epoll_fd, events, NET_EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == server->listener) {
                const int fd = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK);
                struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
                BENCH_CHECK(fd >= 0 && epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
                continue;
            }
            const ssize_t got = recv(events[i].data.fd, buffer, sizeof buffer, 0);
            if (got <= 0) close(events[i].data.fd);
            else BENCH_CHECK(send(events[i].data.fd, buffer, (size_t)got, MSG_NOSIGNAL) == got);
        }
    }
    return NULL;
}

static uint16_t bare_begin(bare *server, pthread_t *thread_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    const int one = 1;
    server->listener = socket(AF_INET, SOCK_STREAM, 0);
    BENCH_CHECK(setsockopt(server->listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    BENCH_CHECK(bind(server->listener, (struct sockaddr *)&address, sizeof address) == 0 &&
                listen(server->listener, 128) == 0);
    BENCH_CHECK(getsockname(server->listener, (struct sockaddr *)&address, &bytes) == 0);
    server->epoll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server->listener};
    BENCH_CHECK(epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->listener, &event) == 0);
    BENCH_CHECK(pthread_create(thread_out, NULL, bare_run, server) == 0);
    return ntohs(address.sin_port);
}

static void bare_end(bare *server, pthread_t thread, uint16_t port)
{
    /* It sleeps: a last connection tells it. */
    atomic_store(&server->ends, true);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    BENCH_CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    BENCH_CHECK(pthread_join(thread, NULL) == 0);
    close(fd);
    close(server->listener);
    close(server->epoll_fd);
}

/* ---- the client ---- */

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A request of FRAME_BYTES whose last eight bytes are its number. */
static void make_request(uint8_t *into, uint64_t number)
{
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, FRAME_BYTES, CMQ_HEADER_JSON, 11, 1000000 + (int32_t)(number % 1000000), 0,
                      CMQ_SLICE_NONE);
    cmq_command_add_text(&writer, CMQ_NAME("consumerGroup"), CMQ_NAME("bench"));
    cmq_command_add_text(&writer, CMQ_NAME("topic"), CMQ_NAME("bench"));
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), 3);
    const size_t header_bytes = cmq_command_end(&writer, 0);
    BENCH_CHECK(header_bytes <= FRAME_BYTES - 8);
    cmq_store_u32(into, FRAME_BYTES - 4);
    memset(into + header_bytes, 0, FRAME_BYTES - 8 - header_bytes);
    cmq_store_u64(into + FRAME_BYTES - 8, number);
}

static void ask(client *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *request = from->requests + i * FRAME_BYTES;
        const uint64_t number = from->asked++;
        if (from->asked <= DEPTH_MAX) make_request(request, number);
        else cmq_store_u64(request + FRAME_BYTES - 8, number);
    }
    const ssize_t bytes = (ssize_t)(count * FRAME_BYTES);
    BENCH_CHECK(send(from->fd, from->requests, (size_t)bytes, MSG_NOSIGNAL) == bytes);
}

/* Take the answers that came; returns how many. */
static uint64_t take(client *to, const uint8_t *bytes, size_t count)
{
    uint64_t answers = 0;
    while (count > 0) {
        const size_t whole = to->part < 4 ? 4 : (size_t)cmq_load_u32(to->answer) + 4;
        const size_t wanted = whole - to->part, step = wanted < count ? wanted : count;
        BENCH_CHECK(whole <= sizeof to->answer);
        memcpy(to->answer + to->part, bytes, step);
        to->part += step;
        bytes += step;
        count -= step;
        if (to->part != whole || whole == 4) continue;
        BENCH_CHECK(cmq_load_u64(to->answer + whole - 8) == to->answered);
        to->answered++;
        to->part = 0;
        answers++;
    }
    return answers;
}

/* So many requests over these connections. */
static void drive(client *clients, int conns, uint64_t depth, uint64_t requests, int epoll_fd)
{
    static uint8_t buffer[256 << 10];
    const uint64_t each = requests / (uint64_t)conns;
    uint64_t done = 0;
    for (int c = 0; c < conns; c++) {
        clients[c].asked = clients[c].answered = 0;
        ask(&clients[c], depth < each ? depth : each);
    }
    while (done < each * (uint64_t)conns) {
        struct epoll_event events[CONNS_MAX];
        const int count = epoll_wait(epoll_fd, events, CONNS_MAX, 10000);
        BENCH_CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            client *one = events[i].data.ptr;
            const ssize_t got = recv(one->fd, buffer, sizeof buffer, 0);
            BENCH_CHECK(got > 0);
            const uint64_t answers = take(one, buffer, (size_t)got), left = each - one->asked;
            done += answers;
            if (answers > 0 && left > 0) ask(one, answers < left ? answers : left);
        }
    }
}

static double thread_cpu_s(pthread_t thread)
{
    clockid_t clock;
    struct timespec now;
    BENCH_CHECK(pthread_getcpuclockid(thread, &clock) == 0 && clock_gettime(clock, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void measure(const char *what, uint16_t port, pthread_t thread, int conns, uint32_t depth, uint64_t requests)
{
    static client clients[CONNS_MAX];
    const int epoll_fd = epoll_create1(0), one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    for (int c = 0; c < conns; c++) {
        clients[c].part = 0;
        clients[c].fd = socket(AF_INET, SOCK_STREAM, 0);
        BENCH_CHECK(connect(clients[c].fd, (struct sockaddr *)&address, sizeof address) == 0);
        BENCH_CHECK(setsockopt(clients[c].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[c]};
        BENCH_CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, clients[c].fd, &event) == 0);
    }
    requests = requests / (uint64_t)conns * (uint64_t)conns;
    double seconds[BENCH_REPEATS], cpu_seconds[BENCH_REPEATS];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = wall_s(), cpu_begin = thread_cpu_s(thread);
        drive(clients, conns, depth, requests, epoll_fd);
        seconds[repeat] = wall_s() - begin;
        cpu_seconds[repeat] = thread_cpu_s(thread) - cpu_begin;
    }
    char name[96];
    snprintf(name, sizeof name, "net/%s/%d conns/depth %u", what, conns, depth);
    bench_print(name, seconds, (double)requests, FRAME_BYTES);
    snprintf(name, sizeof name, "net/%s/%d conns/depth %u/server CPU", what, conns, depth);
    bench_print(name, cpu_seconds, (double)requests, FRAME_BYTES);
    for (int c = 0; c < conns; c++) close(clients[c].fd);
    close(epoll_fd);
}

/* ---- times ---- */

typedef struct timed {
    cmq_loop *loop;
    _Atomic int64_t due_ns, woken_ns, ticked_ns;
} timed;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static cmq_status timed_begin(void *context, cmq_loop *loop, uint32_t index, void **state_out)
{
    (void)index;
    ((timed *)context)->loop = loop;
    *state_out = context;
    return CMQ_OK;
}

static void timed_woken(void *state) { atomic_store(&((timed *)state)->woken_ns, now_ns()); }
static int64_t timed_due(void *state) { return atomic_load(&((timed *)state)->due_ns); }

static void timed_tick(void *state, int64_t now)
{
    (void)now;
    atomic_store(&((timed *)state)->due_ns, INT64_MAX);
    atomic_store(&((timed *)state)->ticked_ns, now_ns());
}

static int64_t wait_for(const _Atomic int64_t *time_ns)
{
    int64_t seen;
    while ((seen = atomic_load(time_ns)) == 0) continue;
    return seen;
}

/* One tick in 300 us, or one wake then, seconds behind its time. The loop sleeps meanwhile. */
static double measure_time(timed *one, bool wake)
{
    const int64_t due = now_ns() + 300000;
    atomic_store(&one->woken_ns, 0);
    atomic_store(&one->ticked_ns, 0);
    atomic_store(&one->due_ns, wake ? INT64_MAX : due);
    cmq_loop_wake(one->loop);   /* so that it looks at the time */
    (void)wait_for(&one->woken_ns);
    if (!wake) return (double)(wait_for(&one->ticked_ns) - due) * 1e-9;
    while (now_ns() < due) continue;
    atomic_store(&one->woken_ns, 0);
    const int64_t begin = now_ns();
    cmq_loop_wake(one->loop);
    return (double)(wait_for(&one->woken_ns) - begin) * 1e-9;
}

static void measure_times(int rounds)
{
    enum { ROUNDS_MAX = 500 };
    static timed one;
    double medians[2][BENCH_REPEATS], each[ROUNDS_MAX];
    const char *address = "127.0.0.1:0";
    const cmq_net_options options = {
        .addresses = &address,
        .address_count = 1,
        .handler = {
            .context = &one, .loop_begin = timed_begin, .woken = timed_woken, .due_ns = timed_due, .tick = timed_tick}};
    cmq_net *net;
    atomic_store(&one.due_ns, INT64_MAX);
    BENCH_CHECK(cmq_net_create(&net, &options) == CMQ_OK && cmq_net_start(net) == CMQ_OK);
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        for (int wake = 0; wake < 2; wake++) {
            for (int i = 0; i < rounds; i++) {
                each[i] = measure_time(&one, wake != 0);
                BENCH_CHECK(each[i] >= 0);
            }
            qsort(each, (size_t)rounds, sizeof each[0], bench_compare);
            medians[wake][repeat] = each[rounds / 2];
        }
    }
    bench_print("net/tick/late by", medians[0], 1, 0);
    bench_print("net/wake/of a sleeping loop", medians[1], 1, 0);
    cmq_net_destroy(net);
}

/* ---- idle connections ---- */

static double resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0, resident = 0;
    BENCH_CHECK(file != NULL && fscanf(file, "%lu %lu", &pages, &resident) == 2);
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* The clients are of this process, too, and have no memory but the kernel's. */
static void measure_idle(int conns)
{
    const char *address = "127.0.0.1:0";
    const cmq_net_options options = {.addresses = &address, .address_count = 1, .handler = {.request = echo}};
    cmq_net *net;
    cmq_net_counters counters;
    int *fds = bench_alloc((size_t)conns * sizeof *fds);
    uint8_t request[FRAME_BYTES], answer[FRAME_BYTES * 2];
    BENCH_CHECK(cmq_net_create(&net, &options) == CMQ_OK && cmq_net_start(net) == CMQ_OK);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(cmq_net_port(net, 0)), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const double before = resident_bytes();
    for (int i = 0; i < conns; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        BENCH_CHECK(fds[i] >= 0 && connect(fds[i], (struct sockaddr *)&to, sizeof to) == 0);
        make_request(request, (uint64_t)i);
        BENCH_CHECK(send(fds[i], request, sizeof request, MSG_NOSIGNAL) == sizeof request);
        BENCH_CHECK(recv(fds[i], answer, sizeof answer, 0) > 0);
    }
    const double each = (resident_bytes() - before) / conns;
    const double cpu = thread_cpu_s(net->loops[0].thread), begin = wall_s();
    while (wall_s() - begin < 0.5) usleep(1000);
    const double busy = (thread_cpu_s(net->loops[0].thread) - cpu) / (wall_s() - begin);
    cmq_net_count(net, &counters);
    BENCH_CHECK(counters.open == (uint64_t)conns && counters.buffered_bytes == 0 && busy < 0.001);
    printf("{\"name\": \"net/idle connection\", \"value\": %.1f, \"unit\": \"bytes\", \"connections\": %d, "
           "\"cpu_share\": %.6f}\n",
           each, conns, busy);
    for (int i = 0; i < conns; i++) close(fds[i]);
    cmq_net_destroy(net);
    free(fds);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    static const int conns[] = {1, 8, 64};
    static const uint32_t depths[] = {1, DEPTH_MAX};
    const char *address = "127.0.0.1:0";
    const cmq_net_options options = {.addresses = &address, .address_count = 1, .handler = {.request = echo}};
    cmq_net *net;
    BENCH_CHECK(cmq_net_create(&net, &options) == CMQ_OK && cmq_net_start(net) == CMQ_OK);
    bare server = {0};
    pthread_t bare_thread;
    const uint16_t bare_port = bare_begin(&server, &bare_thread);
    for (size_t d = 0; d < 2; d++) {
        for (size_t c = 0; c < 3; c++) {
            const uint64_t requests = quick ? 2000 : depths[d] == 1 ? (conns[c] == 1 ? 20000 : 100000) : 1000000;
            measure("bare echo", bare_port, bare_thread, conns[c], depths[d], requests);
            measure("loop", cmq_net_port(net, 0), net->loops[0].thread, conns[c], depths[d], requests);
        }
    }
    measure_times(quick ? 20 : 500);
    measure_idle(quick ? 400 : 9900);
    bare_end(&server, bare_thread, bare_port);
    cmq_net_destroy(net);
    return 0;
}
