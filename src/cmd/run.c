/* run - the main job: every rank reads the configs, finds its role, agrees with the others, and runs it. */
#include "pd/run.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/outfile.h"
#include "build_id.h"
#include "cmd/dump.h"
#include "cmd/evidence.h"
#include "cmd/facts.h"
#include "cmd/inject.h"
#include "cmd/progress.h"
#include "cmd/record.h"
#include "cmd/stop.h"
#include "pd/guard.h"

struct job {
    struct options o;
    struct setup s;          /* as this rank believes, injections included */
    struct setup told;       /* as the user said: what is recorded */
    struct world w;
    struct inject inj;
    struct ops ops;
    struct links links;
    struct safetensors *ckpt, *draft_ckpt;
    struct tokenizer *tok;   /* leader */
    struct prompts *prompts; /* leader */
    int64_t *offset;
    int32_t *token, *tokens;
    uint8_t *skip;
    int n, max_prompt;
    struct plan_options plan; /* as told */
    struct run_config rc;
    struct spans spans;
    struct facts facts;
    struct record *rec;
    struct dump *dump;
    struct descriptor *desc;
    int leader, complete, idle; /* idle: --resume of what is all there */
};

static int leader_rank(const struct job *j)
{
    return topology_decode_rank(&j->s.topo, 0);
}

/* ---- phases ---------------------------------------------------------------------------------------- */

static enum status load_files(struct job *j)
{
    TRY(safetensors_open(j->o.model, &j->ckpt));
    if (j->s.spec) TRY(safetensors_open(j->o.draft, &j->draft_ckpt));
    if (!j->leader) return ST_OK;
    TRY(tokenizer_open(j->o.model, j->s.c.vocab, &j->tok));
    TRY(prompts_read(j->o.prompts, &j->prompts));
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, tokenizer_hash(j->tok));
    int raw = strcmp(prompts_meta(j->prompts)->template_name, PROMPTS_RAW) == 0;
    struct prompts_meta want = {
        .template_name = raw ? PROMPTS_RAW : chat_template_name(), .shots = -1, .tokenizer_hash = hash};
    return prompts_match(j->prompts, &want, j->s.c.vocab);
}

/* Rows that do not fit into the model's positions are refused one by one later; a file without any that does is a mistake. */
static enum status check_lengths(struct job *j)
{
    int64_t total = 0;
    int fits = 0;
    for (int i = 0; i < j->n; i++) {
        const struct prompts_row *r = prompts_row(j->prompts, (size_t)i);
        fits += r->n_ids <= j->s.most_prompt;
        total += r->n_ids;
    }
    if (total > INT_MAX)
        return ERR(ST_E_CONFIG, "%s: %d rows of %" PRId64 " tokens; a run takes up to %d: use --limit, or several files", j->o.prompts, j->n, total, INT_MAX);
    if (fits || j->n == 0) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: no row fits: row 0 has %" PRId64 " tokens; with --max-new %d and a block of %d at most %d fit into %d "
               "positions; nothing is cut", j->o.prompts, prompts_row(j->prompts, 0)->n_ids, j->o.max_new, j->s.block,
               j->s.most_prompt, j->s.c.max_position);
}

static enum status take_prompts(struct job *j)
{
    j->n = (int)prompts_count(j->prompts);
    if (j->o.limit && j->o.limit < j->n) j->n = j->o.limit;
    TRY(options_shard(&j->o, j->n, &(int){0}, &(int){0}));
    TRY(check_lengths(j));
    j->offset = mem_alloc((size_t)j->n + 1, sizeof *j->offset, "prompt offsets");
    if (!j->offset) return ST_E_NOMEM;
    for (int i = 0; i < j->n; i++) j->offset[i + 1] = j->offset[i] + prompts_row(j->prompts, (size_t)i)->n_ids;
    j->token = mem_alloc((size_t)j->offset[j->n], sizeof *j->token, "prompt tokens");
    if (!j->token) return ST_E_NOMEM;
    for (int i = 0; i < j->n; i++) {
        const struct prompts_row *r = prompts_row(j->prompts, (size_t)i);
        memcpy(j->token + j->offset[i], r->id, (size_t)r->n_ids * sizeof *r->id);
    }
    return ST_OK;
}

static enum status share_prompts(struct job *j)
{
    int root = leader_rank(j);
    int64_t size[2] = {0, 0};
    if (j->leader) {
        size[0] = j->n;
        size[1] = j->offset[j->n];
    }
    TRY(mpi_check(MPI_Bcast(size, 2, MPI_INT64_T, root, j->w.all), "MPI_Bcast"));
    j->n = (int)size[0];
    if (!j->leader) {
        j->offset = mem_alloc((size_t)j->n + 1, sizeof *j->offset, "prompt offsets");
        j->token = mem_alloc((size_t)size[1], sizeof *j->token, "prompt tokens");
    }
    j->tokens = mem_alloc((size_t)j->n, sizeof *j->tokens, "prompt lengths");
    j->skip = mem_alloc((size_t)j->n, 1, "rows to skip");
    TRY(world_agree(&j->w, j->offset && j->token && j->tokens && j->skip ? ST_OK : ST_E_NOMEM));
    TRY(mpi_check(MPI_Bcast(j->offset, j->n + 1, MPI_INT64_T, root, j->w.all), "MPI_Bcast"));
    TRY(mpi_check(MPI_Bcast(j->token, (int)size[1], MPI_INT32_T, root, j->w.all), "MPI_Bcast"));
    for (int i = 0; i < j->n; i++) {
        j->tokens[i] = (int32_t)(j->offset[i + 1] - j->offset[i]);
        if (j->tokens[i] > j->max_prompt && j->tokens[i] <= j->s.most_prompt) j->max_prompt = j->tokens[i];
    }
    if (j->o.max_prompt > 0 && j->o.max_prompt < j->max_prompt) j->max_prompt = j->o.max_prompt; /* longer ones are refused */
    return ST_OK;
}

/* all ranks use the same kernels, so replicated values are the same bits everywhere: the best that all have */
static enum status open_ops(struct job *j)
{
    static const char *const order[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
    enum ops_act act = j->o.act == OPT_ACT_BF16 ? ACT_BF16 : ACT_FP32;
    if (j->o.device == DEVICE_CUDA)
        return world_agree(&j->w, ops_cuda_open(act, devices_choose(j->w.node_rank, ops_cuda_devices()), &j->ops));
    const char *isa = j->o.isa ? order[j->o.isa - 1] : NULL; /* the option says "auto" first */
    TRY(world_agree(&j->w, ops_cpu_open(act, isa, &j->ops)));
    int mine = 0, least = 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(order[i], j->ops.isa) == 0) mine = i;
    TRY(mpi_check(MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, j->w.all), "MPI_Allreduce"));
    if (least == mine) return ST_OK;
    log_info("using %s kernels, which every rank has, instead of %s", order[least], order[mine]);
    j->ops.close(&j->ops);
    return ops_cpu_open(act, order[least], &j->ops);
}

static enum status open_links(struct job *j)
{
    static const enum links_want want[] = {[OPT_COMM_AUTO] = LINKS_AUTO, [OPT_COMM_MPI] = LINKS_HOST,
                                           [OPT_COMM_SHM] = LINKS_HOST, [OPT_COMM_NCCL] = LINKS_NCCL};
    return world_agree(&j->w, links_open(&j->w, &j->ops, want[j->o.comm], &j->links));
}

/* in a group of several ranks every sum waits for the host, and there would be a graph between each two */
static int graphs_of(const struct job *j)
{
    if (j->o.device != DEVICE_CUDA || j->o.graphs == OPT_GRAPHS_OFF) return 0;
    return j->o.graphs == OPT_GRAPHS_ON || j->s.topo.decode.tp == 1;
}

static void fill_run_config(struct job *j)
{
    struct run_config *r = &j->rc;
    *r = (struct run_config){
        .c = &j->s.c,
        .d = j->s.spec ? &j->s.d : NULL,
        .ckpt = j->ckpt,
        .draft_ckpt = j->draft_ckpt,
        .o = &j->ops,
        .prompts = {j->n, j->offset, j->token, j->tokens},
        .skip = j->skip,
        .coll = j->o.comm == OPT_COMM_MPI ? COLL_MPI : j->o.comm == OPT_COMM_SHM ? COLL_SHM : COLL_AUTO,
        .links = &j->links,
        .block = j->s.block,
        .confidence = j->o.confidence,
        .adaptive = j->o.adaptive,
        .min_context = j->o.min_context,
        .graphs = graphs_of(j),
        .sampling = j->s.sampling,
        .max_new = j->o.max_new,
        .absorbed_prefill = j->o.mla_prefill == OPT_MLA_ABSORBED,
        .watchdog_s = j->o.watchdog,
        .interrupted = stop_signal(),
        .inject = j->inj.run,
        .spans = &j->spans,
    };
    r->transfer = (struct transfer_options){.transport = j->o.transport ? TRANSPORT_SENDRECV : TRANSPORT_RMA,
                                            .window = j->o.window ? WINDOW_CREATE : WINDOW_ALLOCATE,
                                            .verify = j->o.verify,
                                            .plan = j->plan,
                                            .drop_component = j->inj.drop_component,
                                            .drop_rank = j->inj.drop_rank,
                                            .flip_component = j->inj.flip_component,
                                            .flip_rank = j->inj.flip_rank};
    if (j->w.role.role == ROLE_PREFILL && j->w.role.stage == j->inj.delay_stage) r->transfer.delay_s = j->inj.delay_ms * 1e-3;
    if (j->o.dump_logits) {
        r->logits = dump_row;
        r->logits_ctx = j->dump;
    }
}

static enum status check_build(struct job *j)
{
    uint64_t build = facts_build_hash(&j->facts);
    if (j->inj.build_rank == j->w.rank) build ^= 1;
    log_line(LOG_INFO, "build %s binary %s host %s pid %d", PDFLASH_GIT, j->facts.f.binary_hash, j->facts.host, (int)getpid());
    return world_check_equal(&j->w, build, "build (source revision and binary)", ST_E_HANDSHAKE);
}

static enum status refuse_options(const struct job *j)
{
    if (j->o.graphs == OPT_GRAPHS_ON && j->o.device != DEVICE_CUDA)
        return ERR(ST_E_USAGE, "--graphs on has no meaning with --device cpu: CUDA graphs need --device cuda");
    if (j->o.dedupe && j->o.single) return ERR(ST_E_USAGE, "--dedupe has no meaning with --single: nothing moves");
    if (j->o.node_size && !j->o.dedupe) return ERR(ST_E_USAGE, "--node-size %d has no meaning without --dedupe", j->o.node_size);
    if (j->o.evidence && outfile_same(j->o.evidence, j->o.out))
        return ERR(ST_E_USAGE, "--evidence %s: the name of --out; name a directory of its own", j->o.evidence);
    if (j->o.resume && j->o.force_new) return ERR(ST_E_USAGE, "--resume and --force-new exclude each other");
    return options_shard(&j->o, INT_MAX, &(int){0}, &(int){0}); /* its form; the rows are not known yet */
}

/* A refusal comes before any window exists; the counters of all ranks say that nothing moved. */
static enum status shake_hands(struct job *j)
{
    enum status st = run_handshake(&j->w, &j->rc, facts_build_hash(&j->facts), 0, safetensors_hash(j->ckpt), &j->desc);
    if (st == ST_OK) return ST_OK;
    uint64_t mine = transfer_puts_issued(), all = 0;
    TRY(mpi_check(MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, j->w.all), "MPI_Allreduce"));
    if (j->leader) log_info("refused by the handshake: puts issued %" PRIu64 " on %d ranks", all, j->w.size);
    return st;
}

/* From here on the ranks know their roles. Everything that can be refused is refused before weights are read. */
static enum status prepare(struct job *j)
{
    TRY(world_agree(&j->w, load_files(j)));
    TRY(world_agree(&j->w, j->leader ? take_prompts(j) : ST_OK));
    TRY(share_prompts(j));
    if (j->n == 0) return ERR(ST_E_CONFIG, "%s: no prompts", j->o.prompts);
    TRY(world_agree(&j->w, open_ops(j)));
    TRY(open_links(j));
    TRY(world_agree(&j->w, spans_open(&j->spans)));
    setup_plan_options(&j->o, &j->s, j->max_prompt, j->n, &j->plan);
    if (j->o.dedupe) j->plan.share = (struct share){j->s.topo.n_decode, j->w.node_of};
    j->plan.sums = j->links.sums;
    TRY(world_agree(&j->w, devices_fit(&j->w, &j->links.devices, &j->s.c, j->s.spec ? &j->s.d : NULL, &j->plan)));
    j->told = j->s;
    struct plan_options told = j->plan;
    TRY(world_agree(&j->w, inject_apply(&j->o.inject, j->w.role.role, &j->s, &j->plan)));
    if (j->o.dump_logits) TRY(dump_open(j->o.dump_logits, j->tokens, &j->dump));
    fill_run_config(j);
    if (!j->s.topo.single) TRY(shake_hands(j));
    j->plan = told;
    return ST_OK;
}

static enum evidence_use evidence_use(const struct job *j)
{
    return j->o.resume ? EVIDENCE_ADD : j->o.force_new ? EVIDENCE_REPLACE : EVIDENCE_NEW;
}

static enum status open_evidence(struct job *j)
{
    TRY(world_agree(&j->w, j->leader ? evidence_claim(j->o.evidence, evidence_use(j)) : ST_OK));
    return world_agree(&j->w, evidence_log(j->o.evidence, j->w.rank, evidence_use(j)));
}

static enum status open_results(struct job *j)
{
    enum status st = ST_OK;
    if (j->leader) {
        j->facts.f.isa = j->ops.isa;
        facts_hashes(&j->facts, &j->o, &j->told, j->ckpt, j->draft_ckpt, j->tok, j->prompts, j->n);
        if (j->o.evidence)
            st = evidence_write(j->o.evidence, evidence_use(j), &j->told, &j->plan, &j->facts.f, j->desc, j->w.size);
        if (st == ST_OK)
            st = record_open(&j->o, &j->told, &j->facts.f, j->prompts, j->n, j->tok, j->skip, &j->rec);
    }
    TRY(world_agree(&j->w, st));
    j->idle = j->leader && record_idle(j->rec);
    TRY(mpi_check(MPI_Bcast(&j->idle, 1, MPI_INT, leader_rank(j), j->w.all), "MPI_Bcast"));
    return mpi_check(MPI_Bcast(j->skip, j->n, MPI_BYTE, leader_rank(j), j->w.all), "MPI_Bcast");
}

/* ---- the end --------------------------------------------------------------------------------------- */

static void print_ranks(const struct rank_stats *s, int n)
{
    fprintf(stderr, "\n rank  role     stage  chunks  rounds   put MiB  hand-off MiB  compute s  transfer s  waiting s  total s\n");
    for (int i = 0; i < n; i++) {
        uint64_t put = 0;
        for (int c = 0; c < COMP_N; c++) put += s[i].put_bytes[c];
        fprintf(stderr, "%5d  %-7s  %5d  %6lld  %6lld  %8.2f  %12.2f  %9.2f  %10.2f  %9.2f  %7.2f\n", i,
                s[i].role == ROLE_PREFILL ? "prefill" : "decode", s[i].stage, (long long)s[i].chunks, (long long)s[i].rounds,
                (double)put / 1048576, (double)s[i].stage_bytes / 1048576, s[i].compute_s, s[i].transfer_s, s[i].wait_s,
                s[i].total_s);
    }
}

/* with --dedupe: what came over the wire, and what ranks of a node read from one another instead */
/* what a request that failed was spared is not known: nobody read it */
static void print_shared(const struct rank_stats *s, int n, int unfinished)
{
    uint64_t wire[COMP_N] = {0}, shared[COMP_N] = {0};
    for (int i = 0; i < n; i++)
        for (int c = 0; c < COMP_N; c++) wire[c] += s[i].put_bytes[c], shared[c] += s[i].shared_bytes[c];
    for (int c = 0; c < COMP_N; c++)
        if (shared[c])
            log_info("%s: %" PRIu64 " bytes over the wire, %s%" PRIu64 " without --dedupe: the rest was read within nodes", comp_name[c],
                     wire[c], unfinished ? "at least " : "", wire[c] + shared[c]);
}

/* what must hold at the end of every run, whatever happened in it */
static enum status check_ranks(const struct rank_stats *s, int n)
{
    for (int i = 0; i < n; i++) {
        if (s[i].order_hash != s[0].order_hash || s[i].orders != s[0].orders)
            return ERR(ST_E_PROTOCOL, "rank %d applied another order log (%lld orders) than rank 0 (%lld)", i, (long long)s[i].orders, (long long)s[0].orders);
        if (s[i].free_pages_start != s[i].free_pages_end || s[i].free_slots_start != s[i].free_slots_end)
            return ERR(ST_E_INTERNAL, "rank %d leaks: %d of %d pages and %d of %d slots are free at the end", i, s[i].free_pages_end,
                       s[i].free_pages_start, s[i].free_slots_end, s[i].free_slots_start);
        if (s[i].free_staging_start != s[i].free_staging_end)
            return ERR(ST_E_INTERNAL, "rank %d leaks: %d of %d staging slots are free at the end", i, s[i].free_staging_end,
                       s[i].free_staging_start);
        if (s[i].role == ROLE_DECODE && s[i].batch_hash != s[n - 1].batch_hash)
            return ERR(ST_E_PROTOCOL, "decode rank %d ran other batches than decode rank %d", s[i].tp_rank, s[n - 1].tp_rank);
    }
    return ST_OK;
}

/* of both groups; check_ranks has compared them rank by rank */
static void print_free(const struct rank_stats *s, int n)
{
    for (int role = ROLE_PREFILL; role <= ROLE_DECODE; role++) {
        long long v[6] = {0};
        for (int i = 0; i < n; i++) {
            if (s[i].role != role) continue;
            v[0] += s[i].free_pages_end, v[1] += s[i].free_pages_start;
            v[2] += s[i].free_slots_end, v[3] += s[i].free_slots_start;
            v[4] += s[i].free_staging_end, v[5] += s[i].free_staging_start;
        }
        if (v[3] > 0)
            log_info("free at the end, %s ranks: %lld of %lld pages, %lld of %lld state slots, %lld of %lld staging slots",
                     role == ROLE_PREFILL ? "prefill" : "decode", v[0], v[1], v[2], v[3], v[4], v[5]);
    }
}

static void say_rows(const struct job *j)
{
    log_info("%s: %d of %d rows, %s", j->o.out, record_committed(j->rec) - record_unfinished(j->rec), record_rows(j->rec),
             j->complete ? "complete" : "not complete");
}

static enum status leader_end(struct job *j, const struct rank_stats *all, const struct span *span, size_t n_spans)
{
    int lead = leader_rank(j);
    char *plan = NULL, memory[256];
    log_status("");
    stop_speak_now();
    print_ranks(all, j->w.size);
    print_shared(all, j->w.size, record_unfinished(j->rec));
    print_free(all, j->w.size);
    uint64_t quiets = 0;
    for (int i = 0; i < j->w.size; i++) quiets += all[i].quiets;
    log_info("orders %lld, aborts %lld, words QUIET %llu, late reports %lld, starts %lld; start delay at most %lld ticks",
             (long long)all[lead].orders, (long long)all[lead].aborts, (unsigned long long)quiets, (long long)all[lead].stale,
             (long long)all[lead].starts, (long long)all[lead].start_delay_max);
    log_info("%s", progress_memory(all, j->w.size, memory, sizeof memory));
    TRY(facts_plan_json(&j->told, &j->plan, &plan));
    const char *osc = j->s.topo.single ? "none" : transfer_osc(j->rc.transfer.transport);
    enum status st = record_spans(j->rec, all, span, n_spans);
    if (st == ST_OK) st = record_finish(j->rec, all, j->w.size, plan, osc, *stop_signal() != 0, &j->complete);
    mem_free(plan);
    TRY(st);
    int unfinished = record_unfinished(j->rec);
    struct progress_state state = record_state(j->rec);
    progress_table(stderr, &state, all, j->w.size);
    say_rows(j);
    if (unfinished) log_warn("%d rows failed or were aborted; `pdflash grade` lists them, --resume tries them again", unfinished);
    return ST_OK;
}

static enum status finish(struct job *j, const struct rank_stats *mine)
{
    struct rank_stats *all = mem_alloc((size_t)j->w.size, sizeof *all, "rank figures");
    TRY(world_agree(&j->w, all ? ST_OK : ST_E_NOMEM));
    enum status st = mpi_check(MPI_Allgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE, j->w.all), "MPI_Allgather");
    if (st == ST_OK) st = check_ranks(all, j->w.size);
    struct span *span = NULL;
    size_t n_spans = 0;
    enum status rec = spans_gather(&j->w, &j->spans, leader_rank(j), &span, &n_spans);
    if (rec == ST_OK && j->leader) rec = leader_end(j, all, span, n_spans);
    mem_free(span);
    if (st == ST_OK) st = rec;
    if (j->dump && st == ST_OK) st = dump_write(j->dump);
    mem_free(all);
    TRY(world_agree(&j->w, st));
    int done[2] = {j->complete, *stop_signal() != 0};
    TRY(mpi_check(MPI_Bcast(done, 2, MPI_INT, leader_rank(j), j->w.all), "MPI_Bcast"));
    if (done[0]) return ST_OK;
    return done[1] ? ST_E_INTERRUPTED : ST_E_INCOMPLETE;
}

static enum status job_body(struct job *j)
{
    struct rank_stats st;
    TRY(world_agree(&j->w, refuse_options(j)));
    TRY(world_agree(&j->w, inject_parse(&j->o.inject, &j->inj)));
    TRY(world_agree(&j->w, setup_configs(&j->o, &j->s)));
    TRY(world_agree(&j->w, inject_check(&j->o.inject, &j->inj, &j->s.topo)));
    TRY(world_split(&j->w, &j->s.topo));
    if (j->o.dedupe) TRY(world_agree(&j->w, world_nodes(&j->w, j->o.node_size)));
    j->leader = j->w.rank == leader_rank(j);
    int prefill = j->w.role.role == ROLE_PREFILL;
    int talks = j->leader || (prefill && j->w.role.tp_rank == 0 && j->w.role.last_stage);
    const char *role = prefill ? "prefill" : j->s.topo.single ? "single" : "decode";
    int number = prefill ? j->w.rank : j->w.rank - j->s.topo.n_prefill;
    log_init(role, number, j->o.debug ? LOG_DEBUG : LOG_INFO);
    if (j->o.evidence) TRY(open_evidence(j));
    if (j->o.dump_logits) TRY(world_agree(&j->w, talks ? dump_check(&j->o) : ST_OK)); /* those that will have rows */
    TRY(facts_start(&j->facts, &j->w, &j->s, &j->o));
    TRY(check_build(j));
    if (!talks && !j->o.debug) log_init(role, number, LOG_WARN);
    TRY(prepare(j));
    if (j->leader) stop_speak(j->o.out, j->w.size); /* not before: a run that was refused has nothing to finish */
    TRY(open_results(j));
    if (j->idle) {
        j->complete = 1;
        if (j->leader) say_rows(j);
        if (j->leader && j->dump) log_warn("--dump-logits %s: not written, nothing was computed", j->o.dump_logits);
        guard_start("the end of the run", GUARD_FACTOR * j->o.watchdog);
        return ST_OK;
    }
    if (j->leader && j->o.temperature == 0 && (j->o.top_k > 0 || j->o.top_p < 1))
        log_warn("--top-k and --top-p mean nothing without --temperature T above 0: the likeliest token is taken");
    if (j->leader) log_info("run %s: %s, %d prompts, %s kernels, config %s", j->facts.f.run_id, j->facts.f.topology, j->n, j->ops.isa, j->facts.f.config_hash);
    if (prefill) {
        TRY(prefill_role(&j->w, &j->rc, &st));
    } else {
        struct run_sink sink = {0};
        if (j->leader) sink = record_sink(j->rec);
        TRY(decode_role(&j->w, &j->rc, &sink, &st));
    }
    return finish(j, &st);
}

static void job_close(struct job *j)
{
    dump_close(j->dump);
    spans_close(&j->spans);
    record_close(j->rec);
    mem_free(j->desc);
    links_close(&j->links);
    if (j->ops.close) j->ops.close(&j->ops);
    safetensors_close(j->ckpt);
    safetensors_close(j->draft_ckpt);
    tokenizer_close(j->tok);
    prompts_close(j->prompts);
    mem_free(j->offset);
    mem_free(j->token);
    mem_free(j->tokens);
    mem_free(j->skip);
    facts_end(&j->facts);
}

enum status cmd_run(int argc, char **argv)
{
    struct job *j = mem_alloc(1, sizeof *j, "run");
    int n, help;
    if (!j) return ST_E_NOMEM;
    enum status st = options_parse(CMD_RUN, argc, argv, &j->o, NULL, 0, &n, &help);
    if (st != ST_OK || help) {
        mem_free(j);
        return st;
    }
    log_terminal(progress_terminal() > 0);
    j->facts.argc = argc;
    j->facts.argv = argv;
    stop_watch();
    guard_start("start-up", GUARD_FACTOR * j->o.watchdog); /* MPI's own as well */
    st = world_start(NULL, NULL, &j->w);
    if (st == ST_OK) {
        st = job_body(j);
        if (st != ST_OK) stop_quiet();
        int code = err_exit_code(st);
        /* a refusal is known to all ranks; a fault may be known to this one only, and the others wait for it */
        if (code == 3 || st == ST_E_WATCHDOG) world_abort(&j->w, code);
    }
    job_close(j);
    world_stop(&j->w);
    mem_free(j);
    return st;
}
