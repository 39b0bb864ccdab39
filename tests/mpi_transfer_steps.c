#include "suite.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "transfer_bench.h"

/* Single steps of the protocol with barriers between them: what must be refused, missed, found and named. */
/* np: 2 3 5 8 */
const char *const suite_name = "mpi_transfer_steps";

/* begin a request and queue all of it */
static enum status source_queue(struct bench *b, int slot, uint32_t generation, int request, int *state_slot)
{
    struct layout_aux aux = aux_for(request, generation);
    TRY(state_admit(&b->st, tokens_of(request), state_slot));
    walk_state(b, *state_slot, request, 0);
    TRY(transfer_begin(b->t, slot, generation, request, *state_slot, pages_of(request)));
    TRY(transfer_pages(b->t, slot, 0, pages_of(request)));
    return transfer_final(b->t, slot, last_stage(b) ? &aux : NULL);
}

static enum status source_finish(struct bench *b, int state_slot)
{
    struct waiter w = {0, 0};
    for (int idle = 0;;) {
        TRY(transfer_push(b->t, 1, &idle));
        if (idle) break;
        TRY(wait_pause(&w));
    }
    return state_release(&b->st, state_slot);
}

static enum status source_all(struct bench *b, int slot, uint32_t generation, int request)
{
    int s;
    TRY(source_queue(b, slot, generation, request, &s));
    return source_finish(b, s);
}

static enum status dest_wait(struct bench *b, int slot, int want)
{
    struct waiter w = {0, 0};
    for (int ready = 0;;) {
        TRY(transfer_ready(b->t, slot, &ready));
        if (ready == want) return ST_OK;
        if (ready) return ERR(ST_E_FAULT, "ready is %d, %d is wanted", ready, want);
        TRY(wait_pause(&w));
    }
}

static enum status dest_all(struct bench *b, int slot, uint32_t generation, int request)
{
    TRY(transfer_grant(b->t, slot, generation, request, pages_of(request)));
    TRY(dest_wait(b, slot, 1));
    return dest_take(b, slot, request);
}

/* run fn on one transfer per transport */
static void each_transport(void (*fn)(struct bench *b), struct transfer_options opt)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    for (int k = TRANSPORT_RMA; k <= TRANSPORT_SENDRECV; k++) {
        struct bench b;
        failures = 0;
        opt.transport = (enum transport_kind)k;
        enum status st = bench_open(&b, &topo, &opt, PLACE_HOST);
        EXPECT(st == ST_OK);
        if (st == ST_OK) fn(&b);
        int all = suite_all(failures == 0);
        if (all) bench_close(&b);
        ck_assert_msg(all, "transport %d", k);
    }
}

/* the line of the first expected word of a component; NULL: this rank does not expect it */
static struct word_line *line_for(struct bench *b, int slot, enum comp comp)
{
    for (int i = 0; i < b->t->n_expected; i++) {
        const struct expected *e = &b->t->expected[i];
        if (e->comp == comp) return (void *)(b->t->words + words_at(b->t, slot, b->t->peer[e->peer].rank, comp));
    }
    return NULL;
}

static void old_words(struct bench *b)
{
    int ready = -9;
    EXPECT((b->prefill ? source_all(b, 0, 1, 0) : dest_all(b, 0, 1, 0)) == ST_OK);
    meet(b);
    if (!b->prefill) { /* all sources late; by hand: DONE of generation 1, with the bytes of the new request */
        EXPECT(transfer_grant(b->t, 0, 2, 1, pages_of(1)) == ST_OK);
        for (int i = 0; i < b->t->n_expected; i++) {
            const struct expected *e = &b->t->expected[i];
            struct word_line *l = (void *)(b->t->words + words_at(b->t, 0, b->t->peer[e->peer].rank, e->comp));
            l->bytes = (uint64_t)b->t->to[0].want[i];
            l->word = word_pack((struct word_value){1, WORD_DONE, e->comp, 1});
        }
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
        for (int i = 0; i < b->t->n_expected; i++) { /* nor do words of a generation to come */
            const struct expected *e = &b->t->expected[i];
            struct word_line *l = (void *)(b->t->words + words_at(b->t, 0, b->t->peer[e->peer].rank, e->comp));
            l->word = word_pack((struct word_value){3, WORD_DONE, e->comp, 1});
        }
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
        EXPECT(transfer_unpack(b->t, 0, &b->st, 0, NULL) == ST_E_INTERNAL);
        EXPECT(transfer_grant(b->t, 0, 3, 2, 1) == ST_E_INTERNAL); /* sources of generation 2 are not quiet */
    }
    meet(b);
    EXPECT((b->prefill ? source_all(b, 0, 2, 1) : dest_wait(b, 0, 1)) == ST_OK);
    if (!b->prefill) EXPECT(dest_take(b, 0, 1) == ST_OK);
}

START_TEST(words_of_other_generations_say_nothing)
{
    each_transport(old_words, options());
}
END_TEST

static int table_says(struct bench *b, const char *a, const char *c)
{
    char text[8192] = "", name[64];
    snprintf(name, sizeof name, "table-%d", b->rank);
    const char *path = suite_tmp(name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return 0;
    log_to(fd);
    transfer_table(b->t);
    log_to(-1);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    unlink(path);
    return n > 0 && strstr(text, a) && strstr(text, c);
}

/* rank 0 never writes its KDA words (--inject drop:kda@0) */
static void dropped(struct bench *b)
{
    int ready = 0, quiet = 0;
    if (b->prefill) {
        EXPECT(source_all(b, 0, 1, 3) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, 3, pages_of(3)) == ST_OK);
    }
    meet(b);
    int expects = !b->prefill && b->t->peer[0].plan.has[COMP_KDA];
    for (int i = 0; i < 50 && !b->prefill; i++) EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK);
    if (expects) {
        EXPECT(ready == 0);
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 0);
        EXPECT(table_says(b, "    0    0 kda", "      3    0          1"));
    } else if (!b->prefill) {
        EXPECT(ready == 1);
    }
}

START_TEST(a_dropped_word_is_missed_and_named)
{
    struct transfer_options opt = options();
    opt.drop_component = COMP_KDA;
    opt.drop_rank = 0;
    each_transport(dropped, opt);
}
END_TEST

static void wrong_count(struct bench *b)
{
    int ready = -9;
    EXPECT((b->prefill ? source_all(b, 1, 1, 2) : transfer_grant(b->t, 1, 1, 2, pages_of(2))) == ST_OK);
    meet(b);
    if (!b->prefill) {
        EXPECT(dest_wait(b, 1, 1) == ST_OK);
        for (int c = 0; c < COMP_N; c++) {
            struct word_line *l = line_for(b, 1, (enum comp)c);
            if (!l) continue;
            l->bytes -= 2;
            EXPECT(transfer_ready(b->t, 1, &ready) == ST_E_FAULT && strstr(err_last(), comp_name[c]));
            l->bytes += 2;
        }
        EXPECT(transfer_ready(b->t, 1, &ready) == ST_OK && ready == 1);
        EXPECT(dest_take(b, 1, 2) == ST_OK);
    }
}

START_TEST(a_wrong_byte_count_is_a_fault)
{
    each_transport(wrong_count, options());
}
END_TEST

/* one byte of each component turned in the slot; checksums must name it */
static void flipped(struct bench *b)
{
    struct layout_aux aux;
    int s;
    EXPECT((b->prefill ? source_all(b, 0, 1, 4) : transfer_grant(b->t, 0, 1, 4, pages_of(4))) == ST_OK);
    meet(b);
    if (b->prefill) return;
    EXPECT(dest_wait(b, 0, 1) == ST_OK);
    EXPECT(state_admit(&b->st, tokens_of(4), &s) == ST_OK);
    for (int i = 0; i < b->t->slot.n; i++) {
        const struct layout_entry *e = &b->t->slot.entry[i];
        int64_t items = comp_paged(e->comp) ? pages_of(4) : 1, in = e->comp == COMP_AUX ? 60 : e->item_bytes - 1;
        char *p = b->t->data + e->base + (items - 1) * e->stride + in;
        *p ^= 1;
        char where[64]; /* the entry and the page are named */
        snprintf(where, sizeof where, "checksum of %s layer %d%s, page %d,", comp_name[e->comp], e->layer,
                 e->comp != COMP_DRAFT ? "" : e->kv ? " V" : " K", (int)items - 1);
        EXPECT(transfer_unpack(b->t, 0, &b->st, s, &aux) == ST_E_FAULT && strstr(err_last(), where));
        *p ^= 1;
    }
    EXPECT(state_release(&b->st, s) == ST_OK);
    EXPECT(dest_take(b, 0, 4) == ST_OK);
}

START_TEST(a_flipped_byte_is_a_fault)
{
    each_transport(flipped, options());
}
END_TEST

/* the source's own state holds a NaN: sums agree, the scan must find it; and the pre-fill is a NaN everywhere */
static void nan_left(struct bench *b)
{
    enum { REQUEST = 4 };
    int s, comps[] = {COMP_MLA, COMP_KDA, COMP_CONV, COMP_DRAFT};
    for (int k = 0; k < 4; k++) {
        uint32_t generation = (uint32_t)k + 1;
        if (b->prefill) {
            struct layout_aux aux = aux_for(REQUEST, generation);
            EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
            walk_state(b, s, REQUEST, 0);
            for (int i = 0; i < b->st.layout.n; i++) {
                const struct layout_entry *e = &b->st.layout.entry[i];
                int64_t id = comp_paged(e->comp) ? state_pages(&b->st, s)[pages_of(REQUEST) - 1] : s;
                uint16_t *bad = state_item(&b->st, e->comp, e->layer, e->kv, id); /* whole: every destination gets a share */
                for (int64_t v = 0; v < e->item_bytes / 2 && (int)e->comp == comps[k]; v++) bad[v] = NAN_FILL;
            }
            EXPECT(transfer_begin(b->t, 0, generation, REQUEST, s, pages_of(REQUEST)) == ST_OK);
            EXPECT(transfer_pages(b->t, 0, 0, pages_of(REQUEST)) == ST_OK);
            EXPECT(transfer_final(b->t, 0, last_stage(b) ? &aux : NULL) == ST_OK);
        } else {
            EXPECT(transfer_grant(b->t, 0, generation, REQUEST, pages_of(REQUEST)) == ST_OK);
            const uint16_t *p = (const void *)b->t->data;
            const struct layout_entry *last = &b->t->slot.entry[b->t->slot.n - 1];
            for (int64_t i = 0; i < last->base / 2; i += 1)
                if (p[i] != NAN_FILL) EXPECT(!"pre-filled");
        }
        meet(b); /* nothing moves before the pre-fill was looked at: sources push below */
        if (b->prefill) EXPECT(source_finish(b, s) == ST_OK);
        meet(b);
        if (b->prefill) continue;
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, s, NULL) == ST_E_FAULT && strstr(err_last(), comp_name[comps[k]]) &&
               strstr(err_last(), "NaN"));
        EXPECT(state_release(&b->st, s) == ST_OK);
    }
}

START_TEST(a_nan_is_a_fault)
{
    each_transport(nan_left, options());
}
END_TEST

static uint64_t all_puts(struct bench *b)
{
    uint64_t n = 0;
    for (int c = 0; c < COMP_N; c++) n += transfer_counts(b->t, (enum comp)c).puts;
    return n;
}

/* a page id outside the pool: refused when it is queued, and nothing of that call is ever put */
static void bad_page(struct bench *b)
{
    enum { REQUEST = 4 };
    int s, idle;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, REQUEST, pages_of(REQUEST)) == ST_OK);
    meet(b);
    if (b->prefill) {
        int n = pages_of(REQUEST), has_pages = 0;
        for (int d = 0; d < b->t->n_peers; d++)
            has_pages |= b->t->peer[d].plan.has[COMP_MLA] || b->t->peer[d].plan.has[COMP_DRAFT];
        EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
        walk_state(b, s, REQUEST, 0);
        int32_t *page = b->st.page_table + s * b->st.max_pages, kept = page[n - 1];
        EXPECT(transfer_begin(b->t, 0, 1, REQUEST, s, n) == ST_OK);
        const int32_t bad[] = {-1, 1 << 30, b->st.layout.spec.n_pages};
        for (int i = 0; i < 3; i++) {
            page[n - 1] = bad[i];
            if (!has_pages) break; /* a stage without MLA and draft sends none */
            EXPECT(transfer_pages(b->t, 0, 0, n) == ST_E_RANGE);
            EXPECT(transfer_push(b->t, 1, &idle) == ST_OK);
            EXPECT(all_puts(b) == 0 && idle);
        }
        page[n - 1] = kept;
        EXPECT(transfer_pages(b->t, 0, 0, n) == ST_OK);
        struct layout_aux aux = aux_for(REQUEST, 1);
        EXPECT(transfer_final(b->t, 0, last_stage(b) ? &aux : NULL) == ST_OK);
        EXPECT(source_finish(b, s) == ST_OK);
    } else {
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(dest_take(b, 0, REQUEST) == ST_OK);
    }
}

START_TEST(a_page_outside_the_pool_is_never_put)
{
    struct transfer_options opt = options();
    opt.plan.stripe = 0; /* the last page is everybody's who sends pages */
    each_transport(bad_page, opt);
}
END_TEST

/* one source gives up half-way; the slot is given away again only when all are quiet; then the next request passes */
static void failing(struct bench *b)
{
    int s, idle, quiet = 0, before = 0;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, 0, pages_of(0)) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(state_admit(&b->st, tokens_of(0), &s) == ST_OK);
        EXPECT(transfer_begin(b->t, 0, 1, 0, s, pages_of(0)) == ST_OK);
        EXPECT(transfer_pages(b->t, 0, 0, 1) == ST_OK);
        EXPECT(transfer_push(b->t, 0, &idle) == ST_OK);
        if (b->rank == 0) {
            EXPECT(transfer_fail(b->t, 0) == ST_OK);
            EXPECT(source_finish(b, s) == ST_OK);
        }
    }
    meet(b);
    int hears = !b->prefill && b->t->peer[0].expected;
    if (hears) EXPECT(dest_wait(b, 0, -1) == ST_OK);
    if (hears && b->w.topo.n_prefill > 1) {
        for (int p = 1; p < b->t->n_peers; p++) before |= b->t->peer[p].expected;
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == !before);
        if (before) EXPECT(transfer_grant(b->t, 0, 2, 1, 1) == ST_E_INTERNAL);
    }
    meet(b);
    if (b->prefill && b->rank > 0) {
        EXPECT(transfer_fail(b->t, 0) == ST_OK);
        EXPECT(source_finish(b, s) == ST_OK);
    }
    meet(b);
    if (!b->prefill) {
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 1);
        EXPECT(dest_all(b, 0, 2, 1) == ST_OK);
    } else {
        EXPECT(source_all(b, 0, 2, 1) == ST_OK);
    }
}

START_TEST(after_a_failure_the_next_request_passes)
{
    each_transport(failing, options());
}
END_TEST

/* A destination without GRANT only holds back its own runs. Push without settling writes no word in the same call. */
static void one_withholds(struct bench *b)
{
    enum { REQUEST = 4 };
    int s = -1, idle = 1, late = b->w.topo.n_decode - 1, is_late = !b->prefill && b->w.role.tp_rank == late;
    if (!b->prefill && !is_late) EXPECT(transfer_grant(b->t, 0, 1, REQUEST, pages_of(REQUEST)) == ST_OK);
    if (is_late) canary(b, 0, 0);
    meet(b);
    if (b->prefill) {
        uint64_t words = 0, other = word_pack((struct word_value){1, WORD_FREED, COMP_MLA, 0});
        memcpy(b->t->credit + credit_at(b->t, late, 0), &other, sizeof other); /* a credit, but not GRANT */
        EXPECT(source_queue(b, 0, 1, REQUEST, &s) == ST_OK);
        EXPECT(transfer_push(b->t, 0, &idle) == ST_OK);
        for (int c = 0; c < COMP_N; c++) words += transfer_counts(b->t, (enum comp)c).words;
        EXPECT(words == 0); /* issued only */
        EXPECT(!idle || b->t->peer[late].expected == 0);
        for (int i = 0; i < 20; i++) EXPECT(transfer_push(b->t, i % 2, &idle) == ST_OK);
        EXPECT(idle == (b->t->peer[late].expected == 0));
        for (int d = 0; d < late; d++) EXPECT(b->t->from[0].out[d].done);
    } else if (!is_late) {
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(dest_take(b, 0, REQUEST) == ST_OK);
    }
    meet(b);
    if (is_late) {
        canary(b, 0, 1);
        EXPECT(dest_all(b, 0, 1, REQUEST) == ST_OK);
    }
    if (b->prefill) EXPECT(source_finish(b, s) == ST_OK);
}

START_TEST(credits_gate_every_destination_on_its_own)
{
    each_transport(one_withholds, options());
}
END_TEST

/* tens of thousands of runs in one request, queued at once */
static void many(struct bench *b)
{
    EXPECT((b->prefill ? source_all(b, 0, 1, LONG_REQUEST) : dest_all(b, 0, 1, LONG_REQUEST)) == ST_OK);
    if (last_stage(b)) EXPECT(transfer_counts(b->t, COMP_DRAFT).bytes > 0);
    if (last_stage(b) && b->opt.transport == TRANSPORT_RMA && b->w.topo.n_prefill < 3 && b->w.topo.n_decode > 1)
        EXPECT(transfer_counts(b->t, COMP_DRAFT).puts > 10000);
}

START_TEST(ten_thousand_pieces_pass)
{
    struct transfer_options opt = options();
    opt.plan.order = PAGE_TOKEN_MAJOR;
    opt.plan.max_prompt = LONG_PROMPT;
    opt.plan.max_tokens = LONG_PROMPT + 16;
    opt.plan.prefill_slots = opt.plan.concurrency = opt.plan.staging_slots = 1;
    each_transport(many, opt);
}
END_TEST

static void misuse(struct bench *b)
{
    struct layout_aux aux = aux_for(0, 1), *a = last_stage(b) ? &aux : NULL;
    int s, idle, most = (MAX_PROMPT + PAGE - 1) / PAGE;
    if (!b->prefill) {
        EXPECT(transfer_push(b->t, 1, &idle) == ST_E_INTERNAL);
        EXPECT(transfer_begin(b->t, 0, 1, 0, 0, 1) == ST_E_INTERNAL);
        EXPECT(transfer_ready(b->t, 0, &idle) == ST_E_INTERNAL);
        EXPECT(transfer_grant(b->t, 2, 1, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 0, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 1u << 24, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 1, 0, most + 1) == ST_E_RANGE); /* a prompt too long for a slot */
        EXPECT(transfer_grant(b->t, 0, 1, 0, 0) == ST_E_RANGE);
        return;
    }
    EXPECT(transfer_grant(b->t, 0, 1, 0, 1) == ST_E_INTERNAL);
    EXPECT(transfer_pages(b->t, 0, 0, 1) == ST_E_INTERNAL); /* not begun */
    EXPECT(transfer_fail(b->t, 0) == ST_E_INTERNAL);
    EXPECT(state_admit(&b->st, tokens_of(0), &s) == ST_OK);
    EXPECT(transfer_begin(b->t, -1, 1, 0, s, 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 0, 0, s, 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 1, 0, -1, 1) == ST_E_RANGE); /* a negative slot is not a success */
    EXPECT(transfer_begin(b->t, 0, 1, 0, s, most + 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 1, 0, s, pages_of(0)) == ST_OK);
    EXPECT(transfer_final(b->t, 0, a) == ST_E_INTERNAL); /* pages missing */
    EXPECT(transfer_pages(b->t, 0, 1, pages_of(0)) == ST_E_RANGE);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0) + 1) == ST_E_RANGE);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0)) == ST_OK);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0)) == ST_E_RANGE); /* twice */
    if (a) {
        EXPECT(transfer_final(b->t, 0, NULL) == ST_E_INTERNAL);
        aux.generation = 9;
        EXPECT(transfer_final(b->t, 0, a) == ST_E_INTERNAL);
    } else {
        EXPECT(transfer_final(b->t, 0, &aux) == ST_E_INTERNAL);
    }
    EXPECT(all_puts(b) == 0);
}

START_TEST(misuse_is_refused)
{
    each_transport(misuse, options());
}
END_TEST

/* refused before a window exists, on all ranks alike, with the numbers or the remedy in the message */
START_TEST(windows_that_cannot_be_are_refused)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    struct bench b;
    struct transfer_options opt = options();
    opt.plan.staging_slots = 4000000;
    failures = 0;
    EXPECT(bench_open(&b, &topo, &opt, PLACE_HOST) == ST_E_CONFIG && strstr(err_last(), "/dev/shm") &&
           strstr(err_last(), "available"));
    bench_close(&b);
    char kept[64];
    snprintf(kept, sizeof kept, "%s", forced_osc());
    setenv("OMPI_MCA_osc", "sm", 1);
    opt = options();
    opt.window = WINDOW_CREATE;
    EXPECT(bench_open(&b, &topo, &opt, PLACE_HOST) == ST_E_CONFIG && strstr(err_last(), "--window allocate"));
    bench_close(&b);
    if (*kept) setenv("OMPI_MCA_osc", kept, 1);
    else unsetenv("OMPI_MCA_osc");
    ck_assert(suite_all(failures == 0));
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer steps", 100);
    SUITE_TEST(tc, words_of_other_generations_say_nothing);
    SUITE_TEST(tc, a_dropped_word_is_missed_and_named);
    SUITE_TEST(tc, a_wrong_byte_count_is_a_fault);
    SUITE_TEST(tc, a_flipped_byte_is_a_fault);
    SUITE_TEST(tc, a_nan_is_a_fault);
    SUITE_TEST(tc, a_page_outside_the_pool_is_never_put);
    SUITE_TEST(tc, after_a_failure_the_next_request_passes);
    SUITE_TEST(tc, credits_gate_every_destination_on_its_own);
    SUITE_TEST(tc, ten_thousand_pieces_pass);
    SUITE_TEST(tc, misuse_is_refused);
    SUITE_TEST(tc, windows_that_cannot_be_are_refused);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
