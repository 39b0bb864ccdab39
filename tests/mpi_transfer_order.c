#include "suite.h"

#include <mpi.h>
#include <string.h>

#include "transfer_bench.h"

/* The one promise everything rests on: whatever carries the data, a word is never seen before it. */
/* np: 2 3 5 8 */
const char *const suite_name = "mpi_transfer_order";

/* what the first source put in turn i: big puts are the ones whose flush may return early */
enum { BIG = 1 << 16, BIG_PUTS = 4, TURNS = 120 };

/* what fits the arena of the source and every slot, in equal pieces */
static int64_t piece_bytes(struct bench *b)
{
    int64_t n = b->prefill ? (b->rank ? BIG : b->st.layout.bytes) : b->t->slot_bytes;
    if (n > BIG) n = BIG;
    MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_INT64_T, MPI_MIN, b->w.all);
    return n / BIG_PUTS;
}

static enum status put_turns(struct bench *b, int64_t piece)
{
    struct word_line line[COMP_N] = {0};
    int64_t took;
    int puts;
    for (uint64_t i = 1; i <= TURNS; i++) {
        memset(b->st.arena.p, (int)(i & 0x7f), (size_t)(piece * BIG_PUTS));
        for (int d = 0; d < b->t->n_peers; d++) {
            for (int k = 0; k < BIG_PUTS; k++) TRY(b->t->via->put(b->t, d, k * piece, (char *)b->st.arena.p + k * piece, piece, &took, &puts));
            TRY(b->t->via->flush(b->t, d));
            line[COMP_KDA].word = i;
            TRY(b->t->via->words(b->t, d, 0, 1u << COMP_KDA, line));
        }
        meet(b);
    }
    return ST_OK;
}

/* A word is looked at after every single step of progress, and whenever it is there all data must be. */
static enum status see_turns(struct bench *b, int64_t n)
{
    const char *word = b->t->words + words_at(b->t, 0, 0, COMP_KDA);
    int64_t late = 0;
    for (uint64_t i = 1; i <= TURNS; i++) {
        struct waiter w = {0, 0};
        while (word_load(word) != i) {
            TRY(wait_pause(&w));
            TRY(b->t->via->sync(b->t));
        }
        int64_t bad = 0;
        for (int64_t k = 0; k < n; k++) bad += b->t->data[k] != (char)(i & 0x7f);
        late += bad != 0;
        meet(b);
    }
    EXPECT(late == 0);
    return ST_OK;
}

static void turns(struct bench *b)
{
    int64_t piece = piece_bytes(b);
    if (b->rank == 0) EXPECT(put_turns(b, piece) == ST_OK);
    else if (!b->prefill) EXPECT(see_turns(b, piece * BIG_PUTS) == ST_OK);
    else
        for (int i = 0; i < TURNS; i++) meet(b);
}

/* allocated, created, and in memory that the node shares: whatever carries the data, its word comes after it */
START_TEST(a_word_never_comes_before_its_data)
{
    const char *osc = forced_osc();
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    for (int k = 0; k < 3; k++) {
        struct bench b;
        struct transfer_options opt = options();
        opt.plan.max_prompt = LONG_PROMPT;
        opt.plan.max_tokens = LONG_PROMPT + 16;
        opt.plan.prefill_slots = opt.plan.concurrency = opt.plan.staging_slots = 1;
        opt.window = k == 1 ? WINDOW_CREATE : WINDOW_ALLOCATE;
        if (k && strcmp(osc, "sm") == 0) continue; /* it takes no memory but its own */
        if (k == 2 && *osc && !strstr(osc, "sm")) continue;
        bench_node_size = k == 2 ? -1 : 0;
        failures = 0;
        enum status st = bench_open(&b, &topo, &opt, PLACE_HOST);
        EXPECT(st == ST_OK);
        if (st == ST_OK) turns(&b);
        bench_node_size = 0;
        int all = suite_all(failures == 0);
        if (all) bench_close(&b);
        ck_assert_msg(all, "window %s", k == 0 ? "allocated" : k == 1 ? "created" : "shared by a node");
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer order", 100);
    SUITE_TEST(tc, a_word_never_comes_before_its_data);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
