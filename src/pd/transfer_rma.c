/* Transfer through MPI windows: put, flush, word. See transfer.h and words.h for the order of writing. */
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"

struct window {
    MPI_Win win;
    struct buf mem; /* of a created window whose memory is made here */
};

struct rma {
    struct window data, words, credit;
    int *puts; /* [n_peers] since the last flush */
};

/* ---- windows ----------------------------------------------------------------------------------------------- */

/* Data in created windows, by --window create or because the slots lie in memory a node shares, needs words in created
 * windows too. Open MPI 4.1's osc/rdma carries puts to such memory by messages that the target must take, and its flush
 * may return before the target has taken them (seen on 4.1.4: always for puts of 16 KiB, under load for 1.5 KiB). Words
 * that take the same way come after the data; words in allocated memory, which are plain stores, overtake it. */
static int created(const struct transfer *t)
{
    return t->opt.window == WINDOW_CREATE || t->opt.plan.share.n > 0;
}

/* given: the memory exists already (it may be of no bytes); else it is made */
static enum status make_win(struct transfer *t, struct window *w, int64_t bytes, int given, const char *name, char **base_p)
{
    void *base = given ? *base_p : NULL;
    int rc;
    if (!given && created(t)) {
        TRY(world_agree(t->w, buf_alloc(&w->mem, (size_t)bytes, name)));
        base = w->mem.p;
    }
    if (created(t)) rc = MPI_Win_create(base, (MPI_Aint)bytes, 1, MPI_INFO_NULL, t->w->xfer, &w->win);
    else rc = MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, t->w->xfer, (void *)&base, &w->win);
    if (rc != MPI_SUCCESS) {
        w->win = MPI_WIN_NULL;
        int class = MPI_ERR_UNKNOWN;
        MPI_Error_class(rc, &class);
        if (created(t) && class == MPI_ERR_WIN)
            return ERR(
                ST_E_CONFIG,
                "MPI_Win_create of %s, %lld bytes: this MPI's one-sided component cannot take memory it did not allocate; "
                "use %s or --transport sendrecv",
                name, (long long)bytes, t->opt.plan.share.n > 0 ? "no --dedupe" : "--window allocate");
        if (class == MPI_ERR_WIN && t->w->node_size < t->w->size) /* Debian's Open MPI over Ethernet, for one */
            return ERR(ST_E_CONFIG,
                       "MPI_Win_allocate of %s, %lld bytes: this MPI has no one-sided component for the network between the "
                       "hosts; allow another (mpirun --mca osc ^ucx, or --mca osc ucx), or use --transport sendrecv",
                       name, (long long)bytes);
        return mpi_check(rc, t->opt.plan.share.n > 0 ? "MPI_Win_create (use no --dedupe, or --transport sendrecv)"
                             : created(t) ? "MPI_Win_create (use --window allocate or --transport sendrecv)"
                                          : "MPI_Win_allocate (use --window create or --transport sendrecv)");
    }
    TRY(mpi_check(MPI_Win_set_errhandler(w->win, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler"));
    TRY(mpi_check(MPI_Win_set_name(w->win, name), "MPI_Win_set_name"));
    if (bytes > 0) memset(base, 0, (size_t)bytes);
    if (bytes > 0 && (uintptr_t)base % 8 != 0)
        return ERR(ST_E_INTERNAL, "%s: window at %p is not aligned to 8 bytes", name, base);
    *base_p = base;
    return ST_OK;
}

/* Loads see what puts wrote only in the unified model; all components of Open MPI have it. */
static enum status check_model(const struct window *w, const char *name)
{
    int *model, flag = 0;
    TRY(mpi_check(MPI_Win_get_attr(w->win, MPI_WIN_MODEL, (void *)&model, &flag), "MPI_Win_get_attr"));
    if (flag && *model == MPI_WIN_UNIFIED) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: the window's memory model is not MPI_WIN_UNIFIED; use --transport sendrecv", name);
}

static enum status open_win(struct transfer *t, struct window *w, int64_t bytes, int given, const char *name, char **base_p)
{
    enum status st = make_win(t, w, bytes, given, name, base_p);
    if (st == ST_OK) st = check_model(w, name);
    TRY(world_agree(t->w, st));
    return mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, w->win), "MPI_Win_lock_all");
}

static void close_win(struct window *w)
{
    if (w->win != MPI_WIN_NULL) {
        MPI_Win_unlock_all(w->win);
        MPI_Win_free(&w->win);
    }
    buf_free(&w->mem);
}

static void rma_close(struct transfer *t)
{
    struct rma *m = t->impl;
    close_win(&m->credit);
    close_win(&m->words);
    close_win(&m->data);
    mem_free(m->puts);
    mem_free(m);
    t->impl = NULL;
}

static enum status rma_sync(struct transfer *t)
{
    struct rma *m = t->impl;
    if (t->source) return mpi_check(MPI_Win_sync(m->credit.win), "MPI_Win_sync");
    TRY(mpi_check(MPI_Win_sync(m->words.win), "MPI_Win_sync"));
    return mpi_check(MPI_Win_sync(m->data.win), "MPI_Win_sync");
}

static enum status own_memory(struct transfer *t)
{
    struct rma *m = t->impl = mem_alloc(1, sizeof *m, "windows");
    if (!m) return ST_E_NOMEM;
    m->data.win = m->words.win = m->credit.win = MPI_WIN_NULL;
    m->puts = mem_alloc((size_t)t->n_peers, sizeof *m->puts, "counts of puts");
    return m->puts ? ST_OK : ST_E_NOMEM;
}

static enum status rma_open(struct transfer *t)
{
    TRY(world_agree(t->w, own_memory(t))); /* before a collective call that a rank would miss */
    struct rma *m = t->impl;
    TRY(open_win(t, &m->data, t->data_bytes, t->opt.plan.share.n > 0, "pdflash data", &t->data));
    TRY(open_win(t, &m->words, t->words_bytes, 0, "pdflash words", &t->words));
    TRY(open_win(t, &m->credit, t->credit_bytes, 0, "pdflash credit", &t->credit));
    TRY(rma_sync(t));
    return mpi_check(MPI_Barrier(t->w->xfer), "MPI_Barrier"); /* nobody writes before all have cleared */
}

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

static enum status rma_flush(struct transfer *t, int d)
{
    struct rma *m = t->impl;
    m->puts[d] = 0;
    return mpi_check(MPI_Win_flush(t->peer[d].rank, m->data.win), "MPI_Win_flush");
}

static enum status rma_put(struct transfer *t, int d, int64_t off, const void *from, int64_t bytes, int64_t *took_p, int *puts_p)
{
    struct rma *m = t->impl;
    int64_t done = 0, limit = t->n_slots * t->peer[d].layout.bytes;
    int puts = 0;
    if (off < 0 || bytes < 0 || off > limit || bytes > limit - off)
        return ERR(ST_E_RANGE, "put of %lld bytes to %lld of decode rank %d: outside of its window of %lld",
                   (long long)bytes, (long long)off, d, (long long)limit);
    while (done < bytes) {
        int64_t n = bytes - done < t->piece_bytes ? bytes - done : t->piece_bytes;
        if (m->puts[d] >= t->most_puts) TRY(rma_flush(t, d));
        TRY(mpi_check(MPI_Put((const char *)from + done, (int)n, MPI_BYTE, t->peer[d].rank, (MPI_Aint)(off + done), (int)n, MPI_BYTE, m->data.win),
                      "MPI_Put"));
        m->puts[d]++;
        puts++;
        done += n;
    }
    *took_p = done;
    *puts_p = puts;
    return ST_OK;
}

static enum status put_flushed(MPI_Win win, int rank, unsigned mask, const struct word_line *line, const int64_t *at,
                               int fields)
{
    for (int c = 0; c < COMP_N; c++) {
        if (!(mask >> c & 1)) continue;
        int rc = fields ? MPI_Put((const char *)&line[c] + 8, LINE - 8, MPI_BYTE, rank, (MPI_Aint)(at[c] + 8), LINE - 8,
                                  MPI_BYTE, win)
                        : MPI_Put(&line[c].word, 1, MPI_UINT64_T, rank, (MPI_Aint)at[c], 1, MPI_UINT64_T, win);
        TRY(mpi_check(rc, "MPI_Put"));
    }
    return mpi_check(MPI_Win_flush(rank, win), "MPI_Win_flush");
}

static enum status rma_words(struct transfer *t, int d, int slot, unsigned mask, const struct word_line line[COMP_N])
{
    struct rma *m = t->impl;
    int64_t at[COMP_N];
    for (int c = 0; c < COMP_N; c++) at[c] = words_at(t, slot, t->w->rank, (enum comp)c);
    TRY(put_flushed(m->words.win, t->peer[d].rank, mask, line, at, 1));
    return put_flushed(m->words.win, t->peer[d].rank, mask, line, at, 0);
}

static enum status rma_credit(struct transfer *t, int s, int slot, uint64_t word)
{
    struct rma *m = t->impl;
    int rank = t->peer[s].rank;
    MPI_Aint at = (MPI_Aint)credit_at(t, t->w->role.tp_rank, slot);
    TRY(mpi_check(MPI_Put(&word, 1, MPI_UINT64_T, rank, at, 1, MPI_UINT64_T, m->credit.win), "MPI_Put"));
    return mpi_check(MPI_Win_flush(rank, m->credit.win), "MPI_Win_flush");
}

static enum status rma_progress(struct transfer *t)
{
    (void)t; /* as target this rank may have to help */
    return wait_progress();
}

const struct transport transfer_rma = {.name = "rma",
                                       .open = rma_open,
                                       .close = rma_close,
                                       .progress = rma_progress,
                                       .put = rma_put,
                                       .flush = rma_flush,
                                       .words = rma_words,
                                       .credit = rma_credit,
                                       .sync = rma_sync};
