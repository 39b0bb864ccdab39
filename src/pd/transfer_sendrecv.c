/* Transfer in messages: the same runs, words and credits, packed into messages that are applied in order.
 *
 * A message is a head and, for runs, records of (offset, bytes, data). One sender's messages are matched in the order in
 * which they were sent and applied one at a time, so a word is seen behind the data it speaks of. */
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"

enum { TAG = 1, DATA_BYTES = 64 << 10, N_DATA = 8, SMALL_BYTES = 128, N_SMALL = 64, TURNS = 32 };

enum kind { KIND_RUNS, KIND_WORD, KIND_CREDIT };

struct head {
    uint32_t kind, n; /* n: records */
    int32_t slot, comp;
    uint64_t word;    /* credit */
    uint64_t pad;
};
struct record {
    int64_t off, bytes; /* in the data memory of the receiver; the bytes follow */
};
_Static_assert(sizeof(struct head) + sizeof(struct word_line) <= SMALL_BYTES, "a word fits a small message");

struct messages {
    struct buf mem;                  /* data, words or credits: what a window would be */
    struct buf send, small, receive; /* message buffers */
    MPI_Request data_req[N_DATA], small_req[N_SMALL];
    int open, open_peer;  /* data buffer being filled and its peer; -1: none */
    size_t used;          /* bytes in it */
    int next_small;
    size_t receive_bytes; /* of one peer */
    MPI_Request *receive_req; /* [n_peers] */
    int *receiving;           /* [n_peers] */
    uint64_t *sent, *got;     /* [size of xfer] messages, by rank */
};

static char *data_buffer(struct messages *m, int i)
{
    return (char *)m->send.p + (size_t)i * DATA_BYTES;
}

/* ---- sending -------------------------------------------------------------------------------------------------- */

static enum status send_data(struct transfer *t)
{
    struct messages *m = t->impl;
    if (m->open < 0) return ST_OK;
    int rank = t->peer[m->open_peer].rank, i = m->open;
    m->open = -1;
    m->sent[rank]++;
    return mpi_check(MPI_Isend(data_buffer(m, i), (int)m->used, MPI_BYTE, rank, TAG, t->w->xfer, &m->data_req[i]),
                     "MPI_Isend");
}

/* a data buffer with room for a record to peer d; none free: open stays -1 */
static enum status open_data(struct transfer *t, int d)
{
    struct messages *m = t->impl;
    if (m->open >= 0 && (m->open_peer != d || m->used + sizeof(struct record) + 1 > DATA_BYTES)) TRY(send_data(t));
    for (int i = 0; i < N_DATA && m->open < 0; i++) {
        int free_now = 0;
        TRY(mpi_check(MPI_Test(&m->data_req[i], &free_now, MPI_STATUS_IGNORE), "MPI_Test"));
        if (!free_now) continue;
        struct head h = {.kind = KIND_RUNS};
        memcpy(data_buffer(m, i), &h, sizeof h);
        m->used = sizeof h;
        m->open = i;
        m->open_peer = d;
    }
    return ST_OK;
}

static enum status msg_put(struct transfer *t, int d, int64_t off, const void *from, int64_t bytes, int64_t *took_p, int *puts_p)
{
    struct messages *m = t->impl;
    int64_t done = 0;
    int puts = 0;
    while (done < bytes) {
        TRY(open_data(t, d));
        if (m->open < 0) break;
        char *b = data_buffer(m, m->open);
        struct head h;
        int64_t room = (int64_t)(DATA_BYTES - m->used - sizeof(struct record)),
                n = bytes - done < room ? bytes - done : room;
        struct record r = {off + done, n};
        memcpy(b + m->used, &r, sizeof r);
        memcpy(b + m->used + sizeof r, (const char *)from + done, (size_t)n);
        m->used += sizeof r + (size_t)n;
        memcpy(&h, b, sizeof h);
        h.n++;
        memcpy(b, &h, sizeof h);
        done += n;
        puts++;
    }
    *took_p = done;
    *puts_p = puts;
    return ST_OK;
}

static enum status msg_flush(struct transfer *t, int d)
{
    struct messages *m = t->impl;
    return m->open >= 0 && m->open_peer == d ? send_data(t) : ST_OK;
}

static enum status msg_progress(struct transfer *t);

static enum status idle(void *ctx)
{
    return msg_progress(ctx);
}

/* Small messages leave at once in any MPI; a receiver that is behind by all of them is waited for. */
static enum status send_small(struct transfer *t, int peer, const struct head *h, const struct word_line *line)
{
    struct messages *m = t->impl;
    int i = m->next_small, rank = t->peer[peer].rank;
    TRY(wait_all(&m->small_req[i], 1, idle, t));
    char *b = (char *)m->small.p + (size_t)i * SMALL_BYTES;
    m->next_small = (i + 1) % N_SMALL;
    memcpy(b, h, sizeof *h);
    if (line) memcpy(b + sizeof *h, line, sizeof *line);
    m->sent[rank]++;
    return mpi_check(MPI_Isend(b, SMALL_BYTES, MPI_BYTE, rank, TAG, t->w->xfer, &m->small_req[i]), "MPI_Isend");
}

static enum status msg_words(struct transfer *t, int d, int slot, unsigned mask, const struct word_line line[COMP_N])
{
    for (int c = 0; c < COMP_N; c++) {
        struct head h = {.kind = KIND_WORD, .slot = slot, .comp = c};
        if (mask >> c & 1) TRY(send_small(t, d, &h, &line[c]));
    }
    return ST_OK;
}

static enum status msg_credit(struct transfer *t, int s, int slot, uint64_t word)
{
    struct head h = {.kind = KIND_CREDIT, .slot = slot, .word = word};
    return send_small(t, s, &h, NULL);
}

/* ---- receiving ------------------------------------------------------------------------------------------------- */

static enum status apply_runs(struct transfer *t, int rank, const char *b, size_t n, uint32_t records)
{
    size_t at = sizeof(struct head);
    for (uint32_t i = 0; i < records; i++) {
        struct record r;
        if (n - at < sizeof r) return ERR(ST_E_FAULT, "message of rank %d ends inside record %u of %u", rank, i, records);
        memcpy(&r, b + at, sizeof r);
        at += sizeof r;
        if (r.bytes < 0 || (size_t)r.bytes > n - at || r.off < 0 || r.off > t->data_bytes || r.bytes > t->data_bytes - r.off)
            return ERR(ST_E_RANGE, "message of rank %d: record of %lld bytes at %lld leaves the slots of %lld bytes", rank,
                       (long long)r.bytes, (long long)r.off, (long long)t->data_bytes);
        memcpy(t->data + r.off, b + at, (size_t)r.bytes);
        at += (size_t)r.bytes;
    }
    return ST_OK;
}

static enum status apply(struct transfer *t, int peer, const char *b, size_t n)
{
    struct head h;
    int rank = t->peer[peer].rank;
    if (n < sizeof h) return ERR(ST_E_FAULT, "message of rank %d has %zu bytes", rank, n);
    memcpy(&h, b, sizeof h);
    if (h.kind == KIND_RUNS && !t->source) return apply_runs(t, rank, b, n, h.n);
    if (h.slot < 0 || h.slot >= t->n_slots || h.comp < 0 || h.comp >= COMP_N || n < SMALL_BYTES)
        return ERR(ST_E_FAULT, "message of rank %d: kind %u, slot %d, component %d, %zu bytes", rank, h.kind, h.slot,
                   h.comp, n);
    if (h.kind == KIND_WORD && !t->source) {
        memcpy(t->words + words_at(t, h.slot, rank, (enum comp)h.comp), b + sizeof h, LINE);
        return ST_OK;
    }
    if (h.kind != KIND_CREDIT || !t->source) return ERR(ST_E_FAULT, "message of rank %d: unexpected kind %u", rank, h.kind);
    memcpy(t->credit + credit_at(t, peer, h.slot), &h.word, sizeof h.word);
    return ST_OK;
}

/* one step of one peer: *did_p 1 when a message was applied or begun */
static enum status receive(struct transfer *t, int peer, int *did_p)
{
    struct messages *m = t->impl;
    char *b = (char *)m->receive.p + (size_t)peer * m->receive_bytes;
    int flag = 0, n = 0, rank = t->peer[peer].rank;
    MPI_Status s;
    if (m->receiving[peer]) {
        TRY(mpi_check(MPI_Test(&m->receive_req[peer], &flag, &s), "MPI_Test"));
        if (!flag) return ST_OK;
        m->receiving[peer] = 0;
        m->got[rank]++;
        *did_p = 1;
        TRY(mpi_check(MPI_Get_count(&s, MPI_BYTE, &n), "MPI_Get_count"));
        return apply(t, peer, b, (size_t)n);
    }
    TRY(mpi_check(MPI_Iprobe(rank, TAG, t->w->xfer, &flag, &s), "MPI_Iprobe"));
    if (!flag) return ST_OK;
    TRY(mpi_check(MPI_Irecv(b, (int)m->receive_bytes, MPI_BYTE, rank, TAG, t->w->xfer, &m->receive_req[peer]), "MPI_Irecv"));
    m->receiving[peer] = 1;
    *did_p = 1;
    return ST_OK;
}

static enum status msg_progress(struct transfer *t)
{
    for (int p = 0; p < t->n_peers; p++) {
        int did = 1;
        for (int i = 0; i < TURNS && did; i++) {
            did = 0;
            TRY(receive(t, p, &did));
        }
    }
    return ST_OK;
}

static enum status msg_sync(struct transfer *t)
{
    (void)t; /* only this process writes its memory */
    return ST_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static enum status msg_open(struct transfer *t)
{
    struct messages *m = t->impl = mem_alloc(1, sizeof *m, "messages");
    if (!m) return ST_E_NOMEM;
    size_t peers = (size_t)t->n_peers, size = (size_t)t->w->size;
    m->open = -1;
    for (int i = 0; i < N_DATA; i++) m->data_req[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < N_SMALL; i++) m->small_req[i] = MPI_REQUEST_NULL;
    m->receive_bytes = t->source ? SMALL_BYTES : DATA_BYTES;
    m->receive_req = mem_alloc(peers, sizeof *m->receive_req, "requests");
    m->receiving = mem_alloc(peers, sizeof *m->receiving, "flags");
    m->sent = mem_alloc(size, sizeof *m->sent, "message counts");
    m->got = mem_alloc(size, sizeof *m->got, "message counts");
    if (!m->receive_req || !m->receiving || !m->sent || !m->got) return ST_E_NOMEM;
    int64_t data_bytes = t->sharing ? 0 : t->data_bytes; /* that of a node which shares exists */
    TRY(buf_alloc(&m->mem, (size_t)(data_bytes + t->words_bytes + t->credit_bytes), "staging slots"));
    TRY(buf_alloc(&m->receive, peers * m->receive_bytes, "message buffers"));
    TRY(buf_alloc(&m->small, (size_t)N_SMALL * SMALL_BYTES, "message buffers"));
    if (t->source) TRY(buf_alloc(&m->send, (size_t)N_DATA * DATA_BYTES, "message buffers"));
    if (!t->sharing) t->data = m->mem.p;
    t->words = (char *)m->mem.p + data_bytes;
    t->credit = t->words + t->words_bytes;
    return ST_OK;
}

/* Every message is received before the communicator serves anything else. */
static enum status drain(struct transfer *t)
{
    struct messages *m = t->impl;
    uint64_t *due = mem_alloc((size_t)t->w->size, sizeof *due, "message counts");
    MPI_Request r;
    struct waiter w = {0, 0};
    if (!due) return ST_E_NOMEM;
    TRY(send_data(t));
    TRY(mpi_check(MPI_Ialltoall(m->sent, 1, MPI_UINT64_T, due, 1, MPI_UINT64_T, t->w->xfer, &r), "MPI_Ialltoall"));
    TRY(wait_all(&r, 1, idle, t));
    for (int p = 0; p < t->n_peers;) {
        if (m->got[t->peer[p].rank] == due[t->peer[p].rank]) {
            p++;
            continue;
        }
        TRY(msg_progress(t));
        TRY(wait_pause(&w));
    }
    mem_free(due);
    TRY(wait_all(m->data_req, N_DATA, idle, t));
    return wait_all(m->small_req, N_SMALL, idle, t);
}

static void msg_close(struct transfer *t)
{
    struct messages *m = t->impl;
    if (m->got && t->data && drain(t) != ST_OK) return; /* MPI may still use the buffers */
    buf_free(&m->mem);
    buf_free(&m->send);
    buf_free(&m->small);
    buf_free(&m->receive);
    mem_free(m->receive_req);
    mem_free(m->receiving);
    mem_free(m->sent);
    mem_free(m->got);
    mem_free(m);
    t->impl = NULL;
}

const struct transport transfer_sendrecv = {.name = "sendrecv",
                                            .open = msg_open,
                                            .close = msg_close,
                                            .progress = msg_progress,
                                            .put = msg_put,
                                            .flush = msg_flush,
                                            .words = msg_words,
                                            .credit = msg_credit,
                                            .sync = msg_sync};
