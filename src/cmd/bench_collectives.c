/* bench collectives - what ranks exchange while they compute, at K3's width: the sum of a TP group over all ranks, and
 * the hand-off of a chunk between the stages of a pipeline of all ranks, each by every path there is, beside NCCL's own
 * all-reduce.
 *
 * A sum adds one partial a rank of rows x 7168 FP32 values along the fixed tree; NCCL's own adds in an order of its
 * own, in FP32 and in BF16, and is only measured. A hand-off is the prefix, 4 bank rows and the accumulator of rows x
 * 7168; chunks flow through all stages without computing, so the time of a chunk is that of one hop, all hops at once.
 * Times: batches of calls between two meetings of all ranks, the queue run empty; the median batch, the slowest rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "build_id.h"
#include "cmd/bench.h"
#include "pd/coll.h"
#include "pd/links.h"
#include "pd/stage.h"

enum { WIDTH = 7168, BANK = 4, MAX_ROWS = 16, BATCHES = 5, DEPTH = 2 };
static const double batch_s = 0.05; /* seconds of a batch, about */

struct coll_bench {
    struct options o;
    struct world w;
    struct ops ops;
    struct links links;
    int n_rows, rows[MAX_ROWS], most;
    int n_printed;
    struct buf x; /* bmem: partials */
    float *host;  /* their values, and results */
    /* what is being timed */
    struct tp_comm tp;
    struct nccl_comm *own; /* for NCCL's own sums */
    int bf16;
    struct stage_link *link;
    int64_t values;
    int chunk;
};

/* ---- timing --------------------------------------------------------------------------------------------------- */

static enum status drain(struct coll_bench *b)
{
    float one;
    b->ops.get(&b->ops, &one, b->x.p, sizeof one);
    return ops_check(&b->ops);
}

static enum status batch(struct coll_bench *b, enum status (*call)(struct coll_bench *),
                         enum status (*over)(struct coll_bench *), int n, double *s_p)
{
    TRY(bench_meet(&b->w));
    double mine = MPI_Wtime();
    for (int i = 0; i < n; i++) TRY(call(b));
    TRY(over(b));
    mine = (MPI_Wtime() - mine) / n;
    return mpi_check(MPI_Allreduce(&mine, s_p, 1, MPI_DOUBLE, MPI_MAX, b->w.all), "MPI_Allreduce");
}

/* seconds a call */
static enum status timed(struct coll_bench *b, enum status (*call)(struct coll_bench *),
                         enum status (*over)(struct coll_bench *), double *s_p)
{
    double s[BATCHES];
    TRY(batch(b, call, over, 2, &s[0])); /* warm */
    TRY(batch(b, call, over, 2, &s[0]));
    int n = s[0] > 0 ? (int)(batch_s / s[0]) : 1; /* the same on all ranks */
    if (n > b->o.reps) n = b->o.reps;
    if (n < 1) n = 1;
    for (int i = 0; i < BATCHES; i++) TRY(batch(b, call, over, n, &s[i]));
    bench_sort(s, BATCHES);
    *s_p = s[BATCHES / 2];
    return ST_OK;
}

/* ---- figures --------------------------------------------------------------------------------------------------- */

static void head(const struct coll_bench *b)
{
    char nccl[64] = "none";
    if (b->links.nccl)
        snprintf(nccl, sizeof nccl, "%d.%d.%d", nccl_version(b->links.nccl) / 10000,
                 nccl_version(b->links.nccl) / 100 % 100, nccl_version(b->links.nccl) % 100);
    if (b->o.json) {
        printf("{\"build\": \"%s\", \"backend\": \"%s\", \"isa\": \"%s\", \"ranks\": %d, \"nccl\": \"%s\", \"width\": "
               "%d, \"cases\": [",
               PDFLASH_GIT, b->ops.name, b->ops.isa, b->w.size, nccl, WIDTH);
        return;
    }
    printf("%d ranks, %s %s, NCCL %s; sums of %d values a row, hand-off of prefix, %d bank rows and accumulator\n"
           "bus: bytes that cross a rank's link, 2 (n - 1) / n of those of a sum; * same bits as over the host\n\n",
           b->w.size, b->ops.name, b->ops.isa, nccl, WIDTH, BANK);
    printf("%-10s %-22s %7s %10s %12s %10s %10s\n", "what", "path", "rows", "MiB", "us", "GB/s", "bus GB/s");
}

static void line(struct coll_bench *b, const char *what, const char *path, int rows, double bytes, double bus, double s)
{
    if (b->w.rank) return;
    if (b->o.json)
        printf("%s\n {\"what\": \"%s\", \"path\": \"%s\", \"rows\": %d, \"bytes\": %.0f, \"us\": %.2f, \"gbps\": %.3f, "
               "\"bus_gbps\": %.3f}",
               b->n_printed++ ? "," : "", what, path, rows, bytes, s * 1e6, bytes / s * 1e-9, bytes * bus / s * 1e-9);
    else
        printf("%-10s %-22s %7d %10.2f %12.1f %10.2f %10.2f\n", what, path, rows, bytes / 1048576, s * 1e6,
               bytes / s * 1e-9, bytes * bus / s * 1e-9);
    fflush(stdout);
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/* magnitudes over decades, so that another order of adding gives other bits */
static void fill(struct coll_bench *b, int64_t n)
{
    uint32_t v = 1u + 2654435761u * (uint32_t)(b->w.rank + 1);
    for (int64_t i = 0; i < n; i++) {
        v = v * 1664525u + 1013904223u;
        b->host[i] = ((float)(v >> 8) - 8388608.0f) * (v & 64 ? 1e-3f : v & 32 ? 1e-6f : 1.0f);
    }
    b->ops.put(&b->ops, b->x.p, b->host, (size_t)n * sizeof(float));
}

static enum status sum_call(struct coll_bench *b)
{
    return b->tp.sum(b->tp.ctx, &b->ops, b->x.p, b->values, 1, NULL, 1, b->values);
}

static enum status own_call(struct coll_bench *b)
{
    nccl_begin(b->own);
    nccl_all_reduce(b->own, b->x.p, b->values, b->bf16, b->ops.queues ? b->ops.queues->main(&b->ops) : NULL);
    return nccl_end(b->own, NULL, NULL);
}

static enum status hash_sum(struct coll_bench *b, uint64_t *h_p)
{
    fill(b, b->values);
    TRY(sum_call(b));
    b->ops.get(&b->ops, b->host, b->x.p, (size_t)b->values * sizeof(float));
    *h_p = hash64(b->host, (size_t)b->values * sizeof(float), 1);
    return ops_check(&b->ops);
}

/* by NCCL (via 1) or the host; the bits of the first path are those of all */
static enum status sums(struct coll_bench *b, int via, uint64_t *bits)
{
    struct coll *c;
    char why[NCCL_WHY], path[32];
    int64_t most = (int64_t)b->most * WIDTH;
    enum status st = via ? coll_open_nccl(b->w.tp, b->links.nccl, &b->ops, most, &c, &b->tp, why)
                         : coll_open(b->w.tp, COLL_AUTO, most, &c, &b->tp);
    if (st == ST_E_DEVICE && via) return ERR(st, "sums over NCCL: %s", why);
    TRY(st);
    for (int i = 0; i < b->n_rows && st == ST_OK; i++) {
        uint64_t h = 0;
        double s = 1;
        b->values = (int64_t)b->rows[i] * WIDTH;
        st = hash_sum(b, &h);
        if (st == ST_OK) st = world_check_equal(&b->w, h, "a sum of all ranks", ST_E_FAULT);
        if (st == ST_OK && bits[i] && bits[i] != h)
            st = ERR(ST_E_FAULT, "the sum of %d rows over %s has other bits than over the host", b->rows[i],
                     coll_name(c));
        int same = bits[i] == h;
        bits[i] = h;
        if (st == ST_OK) st = timed(b, sum_call, drain, &s);
        snprintf(path, sizeof path, "tree fp32, %s%s", coll_name(c), same ? " *" : "");
        double n = b->w.size;
        if (st == ST_OK) line(b, "sum", path, b->rows[i], (double)b->values * 4, 2 * (n - 1) / n, s);
    }
    coll_close(c);
    return st;
}

static enum status own_sums(struct coll_bench *b)
{
    char why[NCCL_WHY];
    enum status st = nccl_join(b->links.nccl, b->w.tp, &b->own, why);
    if (st != ST_OK) return ERR(st, "NCCL's own sums: %s", why);
    for (b->bf16 = 0; b->bf16 < 2; b->bf16++)
        for (int i = 0; i < b->n_rows && st == ST_OK; i++) {
            double s = 1, n = b->w.size;
            b->values = (int64_t)b->rows[i] * WIDTH;
            b->ops.zero(&b->ops, b->x.p, (size_t)b->values * sizeof(float));
            st = timed(b, own_call, drain, &s);
            if (st == ST_OK)
                line(b, "sum", b->bf16 ? "ncclAllReduce bf16" : "ncclAllReduce fp32", b->rows[i],
                     (double)b->values * (b->bf16 ? 2 : 4), 2 * (n - 1) / n, s);
        }
    nccl_leave(b->own);
    return st;
}

/* ---- hand-off ---------------------------------------------------------------------------------------------------- */

static float mark_of(int chunk)
{
    return (float)(chunk % 4096) + 0.5f;
}

static enum status hop_call(struct coll_bench *b)
{
    struct flow *f;
    struct stage_header h = {0};
    struct order o = {.seq = b->chunk, .kind = ORDER_CHUNK, .generation = 1, .n = (int)(b->values / WIDTH)};
    float mark = mark_of(b->chunk++), got = 0;
    TRY(stage_flow(b->link, &f, NULL, NULL));
    if (b->w.rank > 0) {
        TRY(stage_receive(b->link, &o, f, &h, NULL, NULL));
    } else {
        f->n_bank = BANK;
        f->taps = 1;
        b->ops.put(&b->ops, f->acc + b->values - 1, &mark, sizeof mark);
    }
    TRY(stage_send(b->link, &o, f, o.n, 0, 0, NULL, NULL));
    if (b->w.rank < b->w.size - 1 || b->chunk % 16 != 1) return ST_OK;
    b->ops.get(&b->ops, &got, f->acc + b->values - 1, sizeof got);
    return got == mark
               ? ops_check(&b->ops)
               : ERR(ST_E_FAULT, "chunk %d arrived as %g, %g was sent", b->chunk - 1, (double)got, (double)mark);
}

static enum status hop_drain(struct coll_bench *b)
{
    TRY(stage_drain(b->link));
    return drain(b);
}

static enum status hops(struct coll_bench *b, int via)
{
    static struct config c; /* as much as a flow needs */
    c.hidden = WIDTH;
    c.res_block = 12;
    c.n_layers = BANK * c.res_block;
    enum status st = ST_OK;
    for (int i = 0; i < b->n_rows && st == ST_OK; i++) {
        double s = 1;
        TRY(stage_open(b->w.tp, &b->ops, &c, b->rows[i], DEPTH, via ? b->links.nccl : NULL, 1, &b->link));
        b->values = (int64_t)b->rows[i] * WIDTH;
        b->chunk = 0;
        st = timed(b, hop_call, hop_drain, &s);
        if (st == ST_OK) line(b, "hand-off", stage_name(b->link), b->rows[i], (double)b->values * 4 * (2 + BANK), 1, s);
        stage_close(b->link);
    }
    return st;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static enum status parse_rows(struct coll_bench *b)
{
    const char *p = b->o.rows;
    do {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < 1 || v > 16384 || (*end && *end != ',') || b->n_rows == MAX_ROWS)
            return ERR(ST_E_USAGE, "--rows %s: up to %d numbers, 1 to 16384, with commas between", b->o.rows, MAX_ROWS);
        b->rows[b->n_rows++] = (int)v;
        if (v > b->most) b->most = (int)v;
        p = *end ? end + 1 : end;
    } while (*p);
    return ST_OK;
}

static enum status body(void *ctx)
{
    struct coll_bench *b = ctx;
    static const enum links_want want[] = {[OPT_COMM_AUTO] = LINKS_AUTO,
                                           [OPT_COMM_MPI] = LINKS_HOST,
                                           [OPT_COMM_SHM] = LINKS_HOST,
                                           [OPT_COMM_NCCL] = LINKS_NCCL};
    struct topology t = {.single = 1, .decode = {1, b->w.size, 1}, .n_decode = b->w.size, .n_ranks = b->w.size};
    static uint64_t bits[MAX_ROWS];
    TRY(parse_rows(b));
    TRY(world_split(&b->w, &t));
    log_init("bench", b->w.rank, b->w.rank ? LOG_WARN : LOG_INFO);
    TRY(bench_backend(&b->o, &b->w, &b->ops));
    TRY(world_agree(&b->w, links_open(&b->w, &b->ops, want[b->o.comm], &b->links)));
    size_t bytes = (size_t)b->most * WIDTH * sizeof(float);
    b->host = mem_alloc(bytes, 1, "values");
    TRY(world_agree(&b->w, b->host ? b->ops.mem_new(&b->ops, &b->x, bytes, "partials") : ST_E_NOMEM));
    if (b->w.rank == 0) head(b);
    TRY(sums(b, 0, bits));
    if (b->links.tp) TRY(sums(b, 1, bits));
    if (b->links.tp) TRY(own_sums(b));
    if (b->w.size > 1) TRY(hops(b, 0));
    if (b->links.tp) TRY(hops(b, 1));
    if (b->w.rank == 0 && b->o.json) printf("\n]}\n");
    return ST_OK;
}

enum status bench_collectives(int argc, char **argv)
{
    struct coll_bench *b = mem_alloc(1, sizeof *b, "bench");
    if (!b) return ST_E_NOMEM;
    enum status st = bench_under_mpi(CMD_BENCH_COLL, argc, argv, &b->o, &b->w, body, b);
    if (b->x.p) b->ops.mem_free(&b->ops, &b->x);
    mem_free(b->host);
    links_close(&b->links);
    bench_end(&b->w, &b->ops);
    mem_free(b);
    return st;
}
