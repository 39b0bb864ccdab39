/* bench transfer - how fast state moves: the transfer's own plan, window, puts, flushes and words, against a memcpy
 * loop over the same runs by the same processes in the same repetition.
 *
 * The state is that of a small model whose draft pages are as large as asked: P sources and D destinations, two layers,
 * K and V, heads of 128 BF16 values. Pages of the pool are scattered, so a put is one page.
 *   in order    (CUDA only) whole source pages that lie in the pool as they will in the slot
 *   contiguous  as many heads as sources: a destination takes whole source pages
 *   head slice  as many heads as destinations: a destination takes one head out of D / P of a source page
 * A source that works in place puts from its pool; `packed` takes every run to page-locked host memory first, as an arena
 * on a device must, and puts it from there: its put leg is both. Packing is also timed alone, over the same runs. With CUDA
 * both ways are held against plain copies of as many bytes between the device and page-locked memory. Destinations wait
 * asleep meanwhile, and unpack P at a time. All times are the slowest rank's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "build_id.h"
#include "cmd/bench_transfer.h"
#include "pd/wait.h"

enum { WARMUP = 3, FILL = 1 << 20 };

static const struct shape shapes[] = {{"in order", 0, 1, PAGE_HEAD_MAJOR},
                                      {"contiguous", 0, 0, PAGE_HEAD_MAJOR},
                                      {"head slice", 1, 0, PAGE_HEAD_MAJOR},
                                      {"head slice, token-major", 1, 0, PAGE_TOKEN_MAJOR}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---- the model ------------------------------------------------------------------------------------------ */

static void make_model(struct transfer_bench *b)
{
    const struct topology *t = &b->w.topo;
    int heads = b->shape->sliced ? t->n_decode : t->n_prefill, page = (int)(b->page_bytes / (DIM * ELEMENT));
    b->n_pages = (int)((int64_t)b->o.mib * 1048576 / (LAYERS * 2 * b->page_bytes));
    memset(&b->c, 0, sizeof b->c);
    memset(&b->d, 0, sizeof b->d);
    /* one small KDA layer: every component but MLA exists, and the draft is what counts */
    b->c.n_layers = b->c.n_kda = b->c.is_kda[0] = 1;
    b->c.kda_heads = t->n_decode;
    b->c.kda_dim = 1;
    b->c.conv_kernel = 4;
    b->d.n_layers = LAYERS;
    b->d.kv_heads = b->d.q_heads = heads;
    b->d.head_dim = DIM;
    b->opt = (struct transfer_options){.transport = b->o.transport ? TRANSPORT_SENDRECV : TRANSPORT_RMA,
                                       .window = b->o.window ? WINDOW_CREATE : WINDOW_ALLOCATE,
                                       .drop_component = -1,
                                       .drop_rank = -1,
                                       .plan = {.page = page,
                                                .max_tokens = b->n_pages * page,
                                                .max_prompt = b->n_pages * page,
                                                .concurrency = 1,
                                                .prefill_slots = 1,
                                                .staging_slots = 1,
                                                .chunk = b->n_pages * page,
                                                .order = b->shape->order,
                                                .kv = KV_BF16,
                                                .draft_kv = KV_BF16,
                                                .stripe = 1}};
}

/* host memory that calls itself a device's: the transfer then packs */
static enum status packed_new(struct ops *o, struct buf *m, size_t bytes, const char *what)
{
    struct marked_ops *x = (struct marked_ops *)o;
    TRY(x->inner->mem_new(x->inner, m, bytes, what));
    m->place = PLACE_DEVICE;
    return ST_OK;
}

static struct ops *case_ops(struct transfer_bench *b)
{
    b->marked = (struct marked_ops){b->backend, &b->backend};
    if (b->packed && b->source) b->marked.ops.mem_new = packed_new;
    return &b->marked.ops;
}

static int fill_of(const struct transfer_bench *b, int source)
{
    return 1 + source * 7 + b->packed;
}

static enum status fill_arena(struct transfer_bench *b)
{
    struct ops *o = &b->marked.ops;
    struct buf piece;
    TRY(buf_alloc(&piece, FILL, "pattern"));
    memset(piece.p, fill_of(b, b->w.role.tp_rank), FILL);
    for (int64_t at = 0; at < b->s.layout.bytes; at += FILL) {
        int64_t n = b->s.layout.bytes - at < FILL ? b->s.layout.bytes - at : FILL;
        o->put(o, (char *)b->s.arena.p + at, piece.p, (size_t)n);
    }
    buf_free(&piece);
    return ST_OK;
}

/* ---- the runs, as memcpy sees them ------------------------------------------------------------------------- */

struct listing {
    struct transfer_bench *b;
    enum comp comp;
    int64_t slot0; /* of the destination, in the copy */
    int64_t room;
};

static enum status list_run(void *ctx, const struct plan_run *r)
{
    struct listing *x = ctx;
    struct transfer_bench *b = x->b;
    struct plan_run *last = b->n_runs ? &b->run[b->n_runs - 1] : NULL;
    int draft = x->comp == COMP_DRAFT;
    b->bytes += r->bytes;
    if (draft) b->draft_bytes += r->bytes;
    if (last && last->src + last->bytes == r->src && last->dst + last->bytes == x->slot0 + r->dst) {
        last->bytes += r->bytes;
        return ST_OK;
    }
    if (b->n_runs == x->room) {
        int64_t room = x->room ? 2 * x->room : 1024;
        struct plan_run *more = mem_grow(b->run, (size_t)b->n_runs, (size_t)room, sizeof *more, "runs of memcpy");
        if (!more) return ST_E_NOMEM;
        b->run = more;
        x->room = room;
    }
    b->run[b->n_runs++] = (struct plan_run){r->src, x->slot0 + r->dst, r->bytes};
    b->draft_runs += draft;
    return ST_OK;
}

static enum status list_pair(struct listing *x, const struct pair_plan *p, const struct layout *dst)
{
    const struct transfer_bench *b = x->b;
    const int32_t *page = state_pages(&b->s, b->slot);
    for (int paged = 1; paged >= 0; paged--) /* the order in which a source queues them */
        for (int k = 0; k < p->n; k++) {
            x->comp = p->copy[k].comp;
            int is = x->comp == COMP_MLA || x->comp == COMP_DRAFT;
            for (int i = 0; is == paged && i < (paged ? b->n_pages : 1); i++)
                TRY(transfer_plan_runs(p, &p->copy[k], &b->s.layout, dst, paged ? page[i] : b->slot, i, list_run, x));
        }
    return ST_OK;
}

/* where memcpy and plain copies write, page-locked as the transfer's own memory is */
static enum status copy_open(struct transfer_bench *b, int64_t bytes)
{
    const char *why = NULL;
    TRY(buf_alloc(&b->copy, (size_t)bytes, "destination of memcpy"));
    enum status st = b->backend.pin(&b->backend, b->copy.p, b->copy.bytes, &why);
    if (st == ST_E_DEVICE) log_warn("memory is not page-locked (%s)", why);
    return st == ST_E_DEVICE ? ST_OK : st;
}

static enum status list_runs(struct transfer_bench *b)
{
    const struct topology *t = &b->w.topo;
    struct listing x = {b, COMP_DRAFT, 0, 0};
    enum status st = ST_OK;
    for (int d = 0; d < t->n_decode && st == ST_OK; d++) {
        struct layout dst;
        struct pair_plan p;
        TRY(memory_slot_layout(&b->c, &b->d, t, &b->opt.plan, d, &dst));
        st = transfer_plan_pair(&b->c, &b->d, &b->s.layout, 0, 1, &dst, 1, &p);
        if (st == ST_OK) {
            st = list_pair(&x, &p, &dst);
            transfer_plan_free(&p);
        }
        x.slot0 += dst.bytes;
        layout_free(&dst);
    }
    TRY(st);
    if (b->s.arena.place == PLACE_DEVICE && b->o.device == DEVICE_CUDA)
        TRY(buf_alloc(&b->host, (size_t)b->s.layout.bytes, "source of memcpy"));
    return copy_open(b, x.slot0);
}

/* ---- a case ------------------------------------------------------------------------------------------------ */

static void case_close(struct transfer_bench *b)
{
    transfer_close(b->t);
    state_close(&b->s);
    if (b->copy.p) b->backend.unpin(&b->backend, b->copy.p);
    buf_free(&b->host);
    buf_free(&b->copy);
    mem_free(b->run);
    b->t = NULL;
    b->run = NULL;
    b->n_runs = b->bytes = b->draft_bytes = b->draft_runs = 0;
}

static enum status case_open(struct transfer_bench *b)
{
    struct layout l;
    const struct topology *t = &b->w.topo;
    make_model(b);
    TRY(b->source ? memory_source_layout(&b->c, &b->d, t, &b->opt.plan, 0, b->w.role.tp_rank, &l)
                  : memory_decode_layout(&b->c, &b->d, t, &b->opt.plan, b->w.role.tp_rank, &l));
    enum status st = state_open(case_ops(b), &l, b->n_pages, &b->s);
    if (st != ST_OK) {
        layout_free(&l);
        return st;
    }
    TRY(state_admit(&b->s, b->n_pages * b->opt.plan.page, &b->slot));
    if (b->slot < 0) return ERR(ST_E_INTERNAL, "bench: %d pages do not fit their own pool", b->n_pages);
    for (int i = 0; i < b->n_pages && b->shape->in_order; i++) b->s.page_table[(int64_t)b->slot * b->s.max_pages + i] = i;
    if (!b->source) return b->o.device == DEVICE_CUDA ? copy_open(b, (int64_t)b->o.mib * 1048576) : ST_OK;
    TRY(fill_arena(b));
    return list_runs(b);
}

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* the sources start together */
static enum status line_up(struct transfer_bench *b)
{
    return mpi_check(MPI_Barrier(b->w.tp), "MPI_Barrier");
}

static enum status copy_leg(struct transfer_bench *b, int rep)
{
    const char *from = b->host.p ? b->host.p : b->s.arena.p;
    char *to = b->copy.p;
    TRY(line_up(b));
    double t = MPI_Wtime(), cpu = cpu_now();
    for (int64_t i = 0; i < b->n_runs; i++) memcpy(to + b->run[i].dst, from + b->run[i].src, (size_t)b->run[i].bytes);
    b->leg[LEG_COPY_CPU][rep] = cpu_now() - cpu;
    b->leg[LEG_COPY][rep] = MPI_Wtime() - t;
    return ST_OK;
}

static enum status put_leg(struct transfer_bench *b, int rep)
{
    int idle = 0;
    TRY(line_up(b));
    double t = MPI_Wtime(), cpu = cpu_now();
    while (!idle) TRY(transfer_push(b->t, 1, &idle));
    b->leg[LEG_PUT_CPU][rep] = cpu_now() - cpu;
    b->leg[LEG_PUT][rep] = MPI_Wtime() - t;
    return ST_OK;
}

/* the runs of memcpy as moves no larger than those of the transfer, begun as fast as the backend takes them */
static enum status pack_leg(struct transfer_bench *b, int rep)
{
    struct ops *o = &b->marked.ops;
    uint64_t ticket = 0;
    if (!b->packed) return ST_OK;
    TRY(line_up(b));
    double t = MPI_Wtime();
    for (int64_t i = 0; i < b->n_runs;) {
        int64_t bytes = 0;
        int n = 0;
        while (i + n < b->n_runs && n < OPS_MOVE_RUNS && (n == 0 || bytes + b->run[i + n].bytes <= PACK_MOST)) {
            const struct plan_run *r = &b->run[i + n];
            b->move[n++] = (struct ops_run){(char *)b->copy.p + r->dst, (void *)((uintptr_t)b->s.arena.p + (uintptr_t)r->src), r->bytes};
            bytes += r->bytes;
        }
        while (!(ticket = o->pack(o, b->move, n, 0))) {}
        i += n;
    }
    while (!o->moved(o, ticket)) {}
    b->leg[LEG_PACK][rep] = MPI_Wtime() - t;
    return ST_OK;
}

/* as many bytes as the slot has for this rank, in one plain copy from or to page-locked memory */
static void plain_leg(struct transfer_bench *b, int rep)
{
    struct ops *o = &b->backend;
    size_t bytes = b->copy.bytes < (size_t)b->s.layout.bytes ? b->copy.bytes : (size_t)b->s.layout.bytes;
    if (b->o.device != DEVICE_CUDA) return;
    double t = MPI_Wtime();
    if (b->source) o->get(o, b->copy.p, b->s.arena.p, bytes);
    else o->put(o, b->s.arena.p, b->copy.p, bytes);
    b->leg[b->source ? LEG_PLAIN_OUT : LEG_PLAIN_IN][rep] = (MPI_Wtime() - t) / (double)bytes;
}

static enum status source_rep(struct transfer_bench *b, uint32_t generation, int rep)
{
    int tokens = b->n_pages * b->opt.plan.page;
    struct layout_aux aux = {.request = generation,
                             .generation = generation,
                             .first_token = 1,
                             .prompt_tokens = tokens,
                             .state_position = tokens,
                             .draft_rows = tokens};
    double t = MPI_Wtime();
    TRY(transfer_begin(b->t, 0, generation, (int)generation, b->slot, b->n_pages));
    TRY(transfer_pages(b->t, 0, 0, b->n_pages));
    TRY(transfer_final(b->t, 0, &aux));
    b->leg[LEG_QUEUE][rep] = MPI_Wtime() - t;
    TRY(bench_meet(&b->w)); /* granted */
    /* in turn, so that neither always finds the caches as the other left them */
    TRY(generation % 2 ? put_leg(b, rep) : copy_leg(b, rep));
    TRY(generation % 2 ? copy_leg(b, rep) : put_leg(b, rep));
    TRY(pack_leg(b, rep));
    TRY(line_up(b));
    plain_leg(b, rep);
    TRY(bench_meet(&b->w)); /* arrived */
    for (int d = 0; d < b->w.topo.n_decode; d += b->w.topo.n_prefill) TRY(bench_meet(&b->w));
    return bench_meet(&b->w);
}

static enum status dest_rep(struct transfer_bench *b, uint32_t generation, int rep)
{
    struct waiter wait = {0};
    struct layout_aux aux;
    int ready = 0, mine = b->w.role.tp_rank / b->w.topo.n_prefill;
    TRY(transfer_grant(b->t, 0, generation, (int)generation, b->n_pages));
    TRY(bench_meet(&b->w));
    while (ready == 0) {
        TRY(transfer_ready(b->t, 0, &ready));
        if (ready == 0) TRY(wait_pause(&wait));
    }
    if (ready < 0) return ERR(ST_E_FAULT, "bench: a source failed");
    TRY(bench_meet(&b->w));
    for (int d = 0; d < b->w.topo.n_decode; d += b->w.topo.n_prefill) {
        TRY(bench_meet(&b->w));
        if (d / b->w.topo.n_prefill != mine) continue;
        plain_leg(b, rep); /* what it spoils is unpacked next */
        double t = MPI_Wtime();
        TRY(transfer_unpack(b->t, 0, &b->s, b->slot, &aux));
        while (transfer_free_slots(b->t) == 0) TRY(transfer_progress(b->t));
        b->leg[LEG_UNPACK][rep] = MPI_Wtime() - t;
    }
    return bench_meet(&b->w);
}

/* what was timed did arrive: every byte of the draft pages is its source's */
static enum status check_arrived(struct transfer_bench *b)
{
    struct ops *o = &b->backend;
    int source = b->w.role.tp_rank * b->w.topo.n_prefill / b->w.topo.n_decode, want = fill_of(b, source);
    struct buf item;
    TRY(buf_alloc(&item, (size_t)b->page_bytes, "a page"));
    enum status st = ST_OK;
    for (int e = 0; e < b->s.layout.n; e++) {
        const struct layout_entry *x = &b->s.layout.entry[e];
        for (int i = 0; x->comp == COMP_DRAFT && i < b->n_pages && st == ST_OK; i++) {
            o->get(o, item.p, state_item(&b->s, COMP_DRAFT, x->layer, x->kv, state_pages(&b->s, b->slot)[i]),
                   (size_t)b->page_bytes);
            const unsigned char *p = item.p;
            for (int64_t k = 0; k < b->page_bytes && st == ST_OK; k++)
                if (p[k] != want)
                    st = ERR(ST_E_FAULT, "bench: draft layer %d page %d byte %lld is %d, source %d sent %d", x->layer,
                             i, (long long)k, p[k], source, want);
        }
    }
    buf_free(&item);
    return st;
}

static enum status run_case(struct transfer_bench *b)
{
    TRY(world_agree(&b->w, case_open(b)));
    TRY(transfer_open(&b->w, &b->c, &b->d, &b->opt, &b->s, &b->t));
    memset(b->leg, 0, sizeof b->leg);
    for (int i = 0; i < WARMUP + b->o.reps; i++) {
        int rep = i < WARMUP ? 0 : i - WARMUP; /* overwritten by the first that counts */
        TRY(b->source ? source_rep(b, (uint32_t)i + 1, rep) : dest_rep(b, (uint32_t)i + 1, rep));
    }
    TRY(world_agree(&b->w, b->source ? ST_OK : check_arrived(b)));
    static double slowest[N_LEGS][BENCH_REPS_MAX];
    TRY(mpi_check(MPI_Allreduce(b->leg, slowest, N_LEGS * BENCH_REPS_MAX, MPI_DOUBLE, MPI_MAX, b->w.all),
                  "MPI_Allreduce"));
    memcpy(b->leg, slowest, sizeof b->leg);
    return ST_OK;
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static enum status parse_sizes(struct transfer_bench *b)
{
    const char *p = b->o.sizes;
    do {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < 1 || v > 65536 || (*end && *end != ',') || b->n_sizes == MAX_SIZES)
            return ERR(ST_E_USAGE, "--sizes %s: up to %d numbers of KiB, 1 to 65536, with commas between", b->o.sizes,
                       MAX_SIZES);
        if (v * 1024 * LAYERS * 2 > (int64_t)b->o.mib * 1048576)
            return ERR(ST_E_USAGE, "--sizes %s: a page of %ld KiB for K and V of %d layers is more than --mib %d",
                       b->o.sizes, v, LAYERS, b->o.mib);
        b->kib[b->n_sizes++] = (int)v;
        p = *end ? end + 1 : end;
    } while (*p);
    return ST_OK;
}

static enum status make_topology(const struct transfer_bench *b, struct topology *t_p)
{
    struct group p, d;
    TRY(group_parse(b->o.prefill, "--prefill", &p));
    TRY(group_parse(b->o.decode, "--decode", &d));
    if (p.pp != 1 || d.pp != 1)
        return ERR(ST_E_CONFIG, "bench transfer: pp %d and %d; the last stage alone sends, so pp is 1", p.pp, d.pp);
    if (d.tp % p.tp)
        return ERR(ST_E_CONFIG,
                   "bench transfer: --decode tp %d is no multiple of --prefill tp %d; sources must have equal work",
                   d.tp, p.tp);
    p.ep = d.ep = 1;
    *t_p = (struct topology){.prefill = p, .decode = d, .n_prefill = p.tp, .n_decode = d.tp, .n_ranks = p.tp + d.tp};
    return ST_OK;
}

static enum status all_cases(struct transfer_bench *b)
{
    int leader = b->w.rank == 0, n = 0;
    if (leader) bench_transfer_head(b);
    for (int s = 0; s < N_SHAPES; s++) {
        if (shapes[s].sliced && b->w.topo.n_decode == b->w.topo.n_prefill)
            continue; /* one head each: nothing to slice */
        if (shapes[s].in_order && b->o.device != DEVICE_CUDA) continue; /* memcpy and puts are what it would compare */
        for (int packed = b->o.device == DEVICE_CUDA; packed < 2; packed++)
            for (int i = 0; i < b->n_sizes; i++) {
                b->shape = &shapes[s];
                b->packed = packed;
                b->page_bytes = (int64_t)b->kib[i] * 1024;
                TRY(run_case(b));
                if (leader) bench_transfer_case(b, n++ == 0);
                case_close(b);
            }
    }
    if (leader && b->o.json) printf("\n]}\n");
    return ST_OK;
}

static enum status body(void *ctx)
{
    struct transfer_bench *b = ctx;
    struct topology t;
    TRY(parse_sizes(b));
    TRY(make_topology(b, &t));
    TRY(world_split(&b->w, &t));
    b->source = b->w.role.role == ROLE_PREFILL;
    log_init(b->source ? "source" : "destination", b->w.role.tp_rank, LOG_WARN);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (b->w.rank == 0 && t.n_prefill > cores)
        log_warn("%d sources at once on %ld processors: their turns are measured too", t.n_prefill, cores);
    TRY(bench_backend(&b->o, &b->w, &b->backend));
    return all_cases(b);
}

enum status bench_transfer(int argc, char **argv)
{
    struct transfer_bench *b = mem_alloc(1, sizeof *b, "bench");
    if (!b) return ST_E_NOMEM;
    enum status st = bench_under_mpi(CMD_BENCH_TRANSFER, argc, argv, &b->o, &b->w, body, b);
    bench_end(&b->w, &b->backend);
    mem_free(b);
    return st;
}
