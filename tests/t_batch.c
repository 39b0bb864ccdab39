#include "suite.h"

#include <stdint.h>
#include <string.h>

#include "model/batch.h"

const char *const suite_name = "batch";

enum { MOST = 4 };

struct shape { /* one batch of the table */
    const char *what;
    enum batch_kind kind;
    int n_rows, n_seq;
    struct batch_seq seq[MOST]; /* slot, row0, n_rows, pos0, n_draft, want_logits */
    enum status want;
    const char *names; /* part of the message of a refusal */
};

static const struct shape shapes[] = {
    {"a prompt chunk", BATCH_PREFILL, 7, 1, {{0, 0, 7, 0, 0, 0}}, ST_OK, NULL},
    {"the last chunk wants one row", BATCH_PREFILL, 7, 1, {{3, 0, 7, 64, 0, 1}}, ST_OK, NULL},
    {"chunks of two requests", BATCH_PREFILL, 9, 2, {{3, 0, 7, 64, 0, 1}, {0, 7, 2, 0, 0, 0}}, ST_OK, NULL},
    {"a decode step", BATCH_DECODE, 2, 2, {{0, 0, 1, 9, 0, 1}, {1, 1, 1, 5, 0, 1}}, ST_OK, NULL},
    {"a verify step", BATCH_VERIFY, 16, 1, {{0, 0, 16, 37, 15, 16}}, ST_OK, NULL},
    {"verify rows may differ per request", BATCH_VERIFY, 5, 2, {{0, 0, 1, 37, 0, 1}, {2, 1, 4, 3, 3, 4}}, ST_OK, NULL},
    {"idle", BATCH_IDLE, 0, 0, {{0}}, ST_OK, NULL},
    {"warm-up", BATCH_WARMUP, 16, 1, {{0, 0, 16, 0, 0, 1}}, ST_OK, NULL},
    /* verify metadata where it does not belong */
    {"warm-up with drafts", BATCH_WARMUP, 16, 1, {{0, 0, 16, 0, 15, 1}}, ST_E_INTERNAL, "n_draft"},
    {"warm-up with one draft", BATCH_WARMUP, 16, 1, {{0, 0, 16, 0, 1, 0}}, ST_E_INTERNAL, "n_draft"},
    {"warm-up that wants verify logits", BATCH_WARMUP, 16, 1, {{0, 0, 16, 0, 0, 16}}, ST_E_INTERNAL, "want_logits"},
    {"prefill with drafts", BATCH_PREFILL, 16, 1, {{0, 0, 16, 0, 15, 0}}, ST_E_INTERNAL, "n_draft"},
    {"prefill that wants all logits", BATCH_PREFILL, 16, 1, {{0, 0, 16, 0, 0, 16}}, ST_E_INTERNAL, "want_logits"},
    {"decode with drafts", BATCH_DECODE, 16, 1, {{0, 0, 16, 0, 15, 16}}, ST_E_INTERNAL, "n_draft"},
    {"drafts on the second decode row only", BATCH_DECODE, 2, 2, {{0, 0, 1, 9, 0, 1}, {1, 1, 1, 5, 1, 1}},
     ST_E_INTERNAL,
     "sequence 1: n_draft"},
    {"decode without logits", BATCH_DECODE, 1, 1, {{0, 0, 1, 9, 0, 0}}, ST_E_INTERNAL, "want_logits"},
    /* verify that is not one */
    {"verify without drafts", BATCH_VERIFY, 16, 1, {{0, 0, 16, 37, 0, 16}}, ST_E_INTERNAL, "n_draft"},
    {"verify with the row count as drafts", BATCH_VERIFY, 16, 1, {{0, 0, 16, 37, 16, 16}}, ST_E_INTERNAL, "n_draft"},
    {"verify that wants the last row only", BATCH_VERIFY, 16, 1, {{0, 0, 16, 37, 15, 1}}, ST_E_INTERNAL, "want_logits"},
    /* rows */
    {"idle with rows", BATCH_IDLE, 1, 0, {{0}}, ST_E_INTERNAL, "n_rows 1"},
    {"idle with a sequence", BATCH_IDLE, 0, 1, {{0, 0, 0, 0, 0, 0}}, ST_E_INTERNAL, "n_seq 1"},
    {"nothing, but not idle", BATCH_DECODE, 0, 0, {{0}}, ST_E_INTERNAL, "idle"},
    {"hole between sequences", BATCH_PREFILL, 9, 2, {{3, 0, 6, 0, 0, 0}, {0, 7, 2, 0, 0, 0}}, ST_E_INTERNAL, "row0"},
    {"overlapping sequences", BATCH_PREFILL, 9, 2, {{3, 0, 7, 0, 0, 0}, {0, 6, 3, 0, 0, 0}}, ST_E_INTERNAL, "row0"},
    {"first row missing", BATCH_PREFILL, 7, 1, {{0, 1, 6, 0, 0, 0}}, ST_E_INTERNAL, "row0"},
    {"last row missing", BATCH_PREFILL, 7, 1, {{0, 0, 6, 0, 0, 0}}, ST_E_INTERNAL, "n_rows"},
    {"more rows than the batch", BATCH_PREFILL, 7, 1, {{0, 0, 8, 0, 0, 0}}, ST_E_INTERNAL, "n_rows"},
    {"a sequence without rows", BATCH_PREFILL, 7, 2, {{0, 0, 0, 0, 0, 0}, {1, 0, 7, 0, 0, 0}}, ST_E_INTERNAL, "n_rows"},
    {"no slot", BATCH_PREFILL, 7, 1, {{-1, 0, 7, 0, 0, 0}}, ST_E_INTERNAL, "slot"},
    {"negative position", BATCH_PREFILL, 7, 1, {{0, 0, 7, -1, 0, 0}}, ST_E_INTERNAL, "pos0"},
    {"positions that overflow", BATCH_PREFILL, 7, 1, {{0, 0, 7, INT32_MAX - 3, 0, 0}}, ST_E_INTERNAL, "pos0"},
    {"one slot twice", BATCH_DECODE, 3, 3, {{4, 0, 1, 9, 0, 1}, {1, 1, 1, 5, 0, 1}, {4, 2, 1, 5, 0, 1}}, ST_E_INTERNAL,
     "slot 4"},
    {"a kind that is none", (enum batch_kind)9, 1, 1, {{0, 0, 1, 0, 0, 1}}, ST_E_INTERNAL, "kind 9"},
};

START_TEST(fields_follow_the_kind)
{
    const struct shape *p = &shapes[_i];
    struct batch_seq seq[MOST];
    memcpy(seq, p->seq, sizeof seq);
    struct batch b = {.kind = p->kind, .n_rows = p->n_rows, .n_seq = p->n_seq, .seq = seq};
    enum status st = batch_check(&b);
    ck_assert_msg(st == p->want, "%s: %s", p->what, err_name(st));
    if (p->names)
        ck_assert_msg(strstr(err_last(), p->names) != NULL, "%s: message \"%s\" lacks \"%s\"", p->what, err_last(),
                      p->names);
    ck_assert_mem_eq(seq, p->seq, sizeof seq);
}
END_TEST

/* The regression: an ordinary warm-up batch once carried verify metadata and broke a service start. */
START_TEST(warmup_batch_carries_no_verify_metadata)
{
    for (int rows = 1; rows <= 64; rows *= 2) {
        struct batch_seq seq = {.slot = 0, .row0 = 0, .n_rows = rows, .pos0 = 0, .n_draft = 0, .want_logits = 1};
        struct batch b = {.kind = BATCH_WARMUP, .n_rows = rows, .n_seq = 1, .seq = &seq};
        ck_assert_int_eq(batch_check(&b), ST_OK);
        for (int drafts = -1; drafts <= rows; drafts++) { /* the shape of VERIFY included: rows - 1 */
            if (drafts == 0) continue;
            seq.n_draft = drafts;
            ck_assert_int_eq(batch_check(&b), ST_E_INTERNAL);
            ck_assert_ptr_nonnull(strstr(err_last(), "warmup"));
            ck_assert_ptr_nonnull(strstr(err_last(), "n_draft"));
        }
        seq.n_draft = 0;
        seq.want_logits = rows > 1 ? rows : 2;
        ck_assert_int_eq(batch_check(&b), ST_E_INTERNAL);
        /* the same rows are a good batch once they are typed as what they are */
        seq.n_draft = rows - 1;
        seq.want_logits = rows;
        b.kind = BATCH_VERIFY;
        ck_assert_int_eq(batch_check(&b), ST_OK);
        b.kind = BATCH_WARMUP;
        ck_assert_int_eq(batch_check(&b), rows == 1 ? ST_OK : ST_E_INTERNAL); /* one row has nothing of verify */
    }
}
END_TEST

START_TEST(no_sequences_is_refused_without_reading_them)
{
    struct batch b = {.kind = BATCH_DECODE, .n_rows = 1, .n_seq = 1, .seq = NULL};
    ck_assert_int_eq(batch_check(&b), ST_E_INTERNAL);
    b = (struct batch){.kind = BATCH_IDLE};
    ck_assert_int_eq(batch_check(&b), ST_OK);
    b = (struct batch){.kind = (enum batch_kind)-1};
    ck_assert_int_eq(batch_check(&b), ST_E_INTERNAL);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "batch", 20);
    tcase_add_loop_test(tc, fields_follow_the_kind, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_test(tc, warmup_batch_carries_no_verify_metadata);
    tcase_add_test(tc, no_sequences_is_refused_without_reading_them);
}

int main(void)
{
    return suite_main_serial();
}
