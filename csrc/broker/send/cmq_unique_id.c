/* cmq_unique_id: see cmq_unique_id.h. */
#include "broker/send/cmq_unique_id.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"

/* The month that is cached: [begin, end) in ms. Two threads that compute it at once write the same. */
static _Atomic int64_t month_begin_ms, month_end_ms;
static _Atomic uint32_t counter;

static int64_t month_after(struct tm month, int months)
{
    month.tm_mon += months;
    month.tm_mday = 1;
    month.tm_hour = month.tm_min = month.tm_sec = 0;
    month.tm_isdst = -1;
    return (int64_t)mktime(&month) * 1000;
}

static int64_t ms_of_month(int64_t now_ms)
{
    if (now_ms < atomic_load(&month_begin_ms) || now_ms >= atomic_load(&month_end_ms)) {
        const time_t seconds = (time_t)(now_ms / 1000);
        struct tm month;
        localtime_r(&seconds, &month);
        atomic_store(&month_begin_ms, month_after(month, 0));
        atomic_store(&month_end_ms, month_after(month, 1));
    }
    return now_ms - atomic_load(&month_begin_ms);
}

/* Tells processes of one id apart, one after the other. Upstream has a class loader's hash here; an address would tell
 * clients where we lie in memory. */
static uint32_t process_number(void)
{
    static _Atomic uint32_t drawn;
    uint32_t number = atomic_load_explicit(&drawn, memory_order_relaxed);
    if (number != 0) return number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) {
        const cmq_clock clock = cmq_clock_system();
        number = (uint32_t)cmq_clock_now_ms(&clock) * UINT32_C(0x9E3779B1);
    }
    uint32_t none = 0;
    number |= 1u;
    return atomic_compare_exchange_strong(&drawn, &none, number) ? number : none;
}

size_t cmq_unique_id_make(const cmq_record_host *host, char id_out[CMQ_UNIQUE_ID_BYTES_MAX])
{
    static const char digits[] = "0123456789ABCDEF";
    const cmq_clock clock = cmq_clock_system();
    const size_t address = host->ipv6 ? 16 : 4, bytes = address + 12;
    uint8_t raw[28];
    memcpy(raw, host->address, address);
    cmq_store_u16(raw + address, (uint16_t)getpid());
    cmq_store_u32(raw + address + 2, process_number());
    cmq_store_u32(raw + address + 6, (uint32_t)ms_of_month(cmq_clock_now_ms(&clock)));
    cmq_store_u16(raw + address + 10, (uint16_t)atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed));
    for (size_t i = 0; i < bytes; i++) {
        id_out[2 * i] = digits[raw[i] >> 4];
        id_out[2 * i + 1] = digits[raw[i] & 15];
    }
    return 2 * bytes;
}
