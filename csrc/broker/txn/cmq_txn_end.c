/* cmq_txn_end: see cmq_txn_end.h. Order and texts of the checks are upstream's; the topic and the place in the half
 * queue are checked besides, and a second end of a transaction does nothing. */
#include "broker/txn/cmq_txn_end.h"

#include <stdio.h>
#include <stdlib.h>

#include "broker/tables/cmq_system_topics.h"
#include "broker/txn/cmq_txn_internal.h"
#include "wire/cmq_end_header.h"

#define RUN_MAX 32u

typedef struct ending {
    cmq_end_header header;       /* slices point into the request */
    cmq_conn_id conn;
    int32_t opaque, flag;
    cmq_header_format format;
    bool has_opaque;
    bool checked;                /* no reason to refuse it was found: `parked` and `half` are valid */
    int32_t code;
    char remark[CMQ_ERROR_TEXT_BYTES + 256];
    cmq_parked_record parked;
    cmq_txn_half half;
} ending;

struct cmq_txn_end_run {
    uint32_t count;
    uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES];
    ending ends[RUN_MAX];
};

cmq_status cmq_txn_end_run_create(cmq_txn_end_run **run_out)
{
    *run_out = calloc(1, sizeof **run_out);
    return *run_out != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for the ends of a turn");
}

void cmq_txn_end_run_destroy(cmq_txn_end_run *run) { free(run); }

/* ---- checks ---- */

static void refuse(ending *end, int32_t code, const char *remark)
{
    end->code = code;
    snprintf(end->remark, sizeof end->remark, "%s", remark);
}

static void refuse_by_store(cmq_broker_loop *l, ending *end, cmq_status status)
{
    const char *why = cmq_last_error()->text;
    end->code = cmq_broker_code_of(status);
    switch (status) {
    case CMQ_AGAIN: refuse(end, end->code, CMQ_SEND_OVERLOAD); break;
    case CMQ_ERR_ARGUMENT:
    case CMQ_ERR_TOPIC:
    case CMQ_ERR_TOO_LARGE:
        end->code = CMQ_RESPONSE_MESSAGE_ILLEGAL;
        snprintf(end->remark, sizeof end->remark,
                 "The message is illegal, maybe msg body or properties length not matched. msg body length limit %uB, "
                 "msg properties length limit 32KB. %s",
                 l->broker->options.message_bytes_max, why);
        break;
    default:
        snprintf(end->remark, sizeof end->remark, "%s%s",
                 end->code == CMQ_RESPONSE_SERVICE_NOT_AVAILABLE ? "Service not available now. " : "", why);
        break;
    }
}

/* Is it too late, because the message asked for so long without checks that they have begun? */
static bool is_late(const ending *end, int64_t now_ms, int64_t timeout_ms)
{
    if (end->header.from_check || !end->half.has_immunity) return false;
    int64_t immunity_ms;
    const int64_t seconds = end->half.immunity_s > 0 ? end->half.immunity_s : 0;
    if (__builtin_mul_overflow(seconds, INT64_C(1000), &immunity_ms)) immunity_ms = INT64_MAX;
    const int64_t allowed_ms = immunity_ms > timeout_ms ? immunity_ms : timeout_ms;
    return cmq_txn_age_ms(now_ms, end->parked.view.born_timestamp_ms) > allowed_ms;
}

static void check(cmq_txn *txn, ending *end, int64_t now_ms, int64_t timeout_ms)
{
    cmq_status status = cmq_parked_read(txn->store, end->header.physical_offset, &end->parked);
    if (status == CMQ_OK) status = cmq_txn_verify_half(txn, &end->parked.view);
    if (status == CMQ_OK) status = cmq_txn_half_of(txn, &end->parked.view, &end->half);
    if (status != CMQ_OK && !cmq_parked_is_hopeless(status)) {
        refuse(end, cmq_broker_code_of(status), cmq_last_error()->text);
    } else if (status != CMQ_OK) {
        refuse(end, CMQ_RESPONSE_SYSTEM_ERROR, "Find prepared transaction message failed");
    } else if (is_late(end, now_ms, timeout_ms)) {
        refuse(end, CMQ_RESPONSE_ILLEGAL_OPERATION, "");
    } else if (end->half.group.bytes == 0 || !cmq_slice_equal(end->half.group, end->header.group)) {
        refuse(end, CMQ_RESPONSE_SYSTEM_ERROR, "The producer group wrong");
    } else if (end->parked.view.queue_offset != end->header.queue_offset) {
        refuse(end, CMQ_RESPONSE_SYSTEM_ERROR, "The transaction state table offset wrong");
    } else {
        end->checked = true;
    }
}

/* ---- ends ---- */

/* A target that is no more does not lose the message. */
static bool takes(cmq_broker_loop *l, const cmq_txn_half *half)
{
    if (cmq_topic_is_reserved(half->topic)) return false;
    const cmq_topic_entry *topic = cmq_tables_topic(cmq_broker_tables(l), half->topic);
    return topic != NULL && (half->queue_id < topic->read_queues || half->queue_id < topic->write_queues);
}

static cmq_status CMQ_MUST_CHECK commit(cmq_broker_loop *l, const ending *end)
{
    const cmq_record_view *record = &end->parked.view;
    const bool taken = takes(l, &end->half);
    cmq_append append;
    cmq_appended appended;
    cmq_status status = cmq_delay_make_append(
        record, taken ? end->half.topic : cmq_slice_of_text(CMQ_TOPIC_UNDELIVERED), taken ? end->half.queue_id : 0,
        l->ends->scratch, &append);
    if (status != CMQ_OK) return status;
    append.common.sys_flag = (record->sys_flag & ~CMQ_SYS_TRANSACTION_MASK) | CMQ_SYS_TRANSACTION_COMMIT;
    append.common.prepared_transaction_offset = record->physical_offset;
    append.never_wait = true;
    status = cmq_send_store_own(l->broker, &append, &appended);
    if (status != CMQ_OK) return status;
    cmq_send_note_appended(l, append.common.topic, &appended);
    if (!taken) cmq_bump(&l->counters.commits_undelivered, 1);
    return CMQ_OK;
}

/* Under the mutex. */
static cmq_status CMQ_MUST_CHECK end_one(cmq_broker_loop *l, cmq_txn *txn, ending *end)
{
    const bool commits = end->header.outcome == CMQ_END_COMMIT;
    const int64_t offset = end->parked.view.queue_offset;
    int64_t target;
    const cmq_txn_standing standing = cmq_txn_standing_of(txn, offset, &end->half, &target);
    if (standing == CMQ_TXN_ENDED) return CMQ_OK;
    if (standing == CMQ_TXN_GONE) {
        refuse(end, CMQ_RESPONSE_SYSTEM_ERROR, "Find prepared transaction message failed");
        return CMQ_OK;
    }
    cmq_status status = cmq_txn_reserve_end(txn, target);
    if (status == CMQ_OK && commits) status = commit(l, end);
    if (status != CMQ_OK) return status;
    cmq_txn_note_end(txn, offset, &end->half, target);
    cmq_bump(commits ? &l->counters.commits : &l->counters.rollbacks, 1);
    /* Texts that cannot be written stay, and are tried again by the next step. */
    if (cmq_txn_write_texts(txn, false) != CMQ_OK) cmq_bump(&l->counters.ends_unwritten, 1);
    return CMQ_OK;
}

static void answer(cmq_broker_loop *l, const ending *end)
{
    const cmq_command request = {
        .format = end->format, .opaque = end->opaque, .has_opaque = end->has_opaque, .flag = end->flag};
    cmq_conn *conn = cmq_loop_conn(l->loop, end->conn);
    if (end->code != CMQ_RESPONSE_SUCCESS) cmq_bump(&l->counters.ends_refused, 1);
    if (conn != NULL)
        cmq_conn_answer(conn, &request, end->code,
                        end->remark[0] != 0 ? cmq_slice_of_text(end->remark) : CMQ_SLICE_NONE);
}

void cmq_txn_end_run_flush(cmq_broker_loop *l)
{
    cmq_txn_end_run *run = l->ends;
    cmq_txn *txn = l->broker->options.txn;
    if (run->count == 0) return;
    cmq_txn_lock(txn);
    const int64_t timeout_ms = txn->rules.timeout_ms;
    cmq_txn_unlock(txn);
    const int64_t now_ms = cmq_txn_now_ms(txn);
    for (uint32_t i = 0; i < run->count; i++) check(txn, &run->ends[i], now_ms, timeout_ms);
    cmq_txn_lock(txn);
    for (uint32_t i = 0; i < run->count; i++) {
        if (!run->ends[i].checked) continue;
        const cmq_status status = end_one(l, txn, &run->ends[i]);
        if (status != CMQ_OK) refuse_by_store(l, &run->ends[i], status);
    }
    cmq_txn_unlock(txn);
    for (uint32_t i = 0; i < run->count; i++) {
        answer(l, &run->ends[i]);
        cmq_parked_release(&run->ends[i].parked);
    }
    run->count = 0;
}

/* ---- the door ---- */

cmq_net_verdict cmq_txn_end_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command)
{
    cmq_txn_end_run *run = l->ends;
    cmq_end_header header;
    if (l->broker->options.txn == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "this broker has no transactions");
    } else if (cmq_end_header_read(command, &header) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
    } else if (header.outcome == CMQ_END_UNKNOWN) {
        /* Upstream answers nothing, and a client that waits runs into its time-out. */
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
    } else {
        if (run->count == RUN_MAX) cmq_txn_end_run_flush(l);
        ending *end = &run->ends[run->count++];
        end->header = header;
        end->conn = cmq_conn_id_of(conn);
        end->opaque = command->opaque;
        end->flag = command->flag;
        end->format = command->format;
        end->has_opaque = command->has_opaque;
        end->checked = false;
        end->code = CMQ_RESPONSE_SUCCESS;
        end->remark[0] = 0;
        end->parked.batch = (cmq_found_batch){0};
    }
    return CMQ_NET_DONE;
}
