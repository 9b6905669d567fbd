/* cmq_fake_broker: a broker of one topic in memory, on a thread of its own, with faults on request.
 *
 * Serves sends (310, 320), half messages and their commits (37), pulls (11; held ones are answered when something
 * comes), last offsets (30), pops of all queues (200050, never held), acks of one message (200051) and a group's
 * offsets (14), in the format of the request.
 * It stores records as a broker does.
 *
 * Threads: yes: start and stop from the test, the rest is its own.
 */
#ifndef CMQ_FAKE_BROKER_H
#define CMQ_FAKE_BROKER_H

#include <stdint.h>

typedef enum cmq_fake_fault {
    CMQ_FAKE_SOUND = 0,
    CMQ_FAKE_LOSES,          /* one message is accepted, and not kept: its offset stays empty */
    CMQ_FAKE_LOSES_OFFSET,   /* the same, and the next message gets its offset */
    CMQ_FAKE_SKIPS,          /* an offset is given to nobody */
    CMQ_FAKE_DOUBLES,        /* one message is kept twice */
    CMQ_FAKE_CHANGES,        /* one body has a bit changed; its record's CRC agrees */
    CMQ_FAKE_OTHER_QUEUE,    /* an answer names another queue */
    CMQ_FAKE_REFUSES_SOME,   /* each fourth send is answered with code 2 */
    CMQ_FAKE_REFUSES_ALL,    /* every one */
    CMQ_FAKE_REFUSES_PULLS,  /* code 24 */
    CMQ_FAKE_FORGETS,        /* some request is never answered */
    CMQ_FAKE_CLOSES,         /* the connection is closed after some requests */
    CMQ_FAKE_BABBLES,        /* an answer is no frame */
    CMQ_FAKE_NO_FIELDS,      /* an answer to a send has no fields */
    CMQ_FAKE_POPS_TWICE,     /* one batch is given to two pops */
    CMQ_FAKE_POPS_BARE,      /* an answer to a pop says nothing beside the messages */
    CMQ_FAKE_REFUSES_ACKS,   /* code 4 */
    CMQ_FAKE_FORGETS_ACK,    /* one ack is answered, and forgotten */
    CMQ_FAKE_REFUSES_ENDS    /* each fourth commit is answered with code 1 */
} cmq_fake_fault;

typedef struct cmq_fake_broker cmq_fake_broker;

/* Listens on 127.0.0.1, on a free port. */
cmq_fake_broker *cmq_fake_broker_start(uint32_t queues, cmq_fake_fault fault);
uint16_t cmq_fake_broker_port(const cmq_fake_broker *broker);
void cmq_fake_broker_stop(cmq_fake_broker *broker);

#endif
