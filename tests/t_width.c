/* The width of a verify step: arithmetic against simulated drafts and machines whose best width is known. */
#include "suite.h"

#include <math.h>

#include "base/rng.h"
#include "model/width.h"

const char *const suite_name = "width";

struct machine { /* what a step costs, and how often draft j is accepted after all before it */
    const char *name;
    double base, row, draft; /* seconds a step, a row, a sequence's draft block */
    double first, later;     /* acceptance of draft 0, of the others */
    int block, n;
    int least, most;         /* widths that are right */
};

static const struct machine machines[] = {
    {"rows are free", 1e-3, 0, 1e-5, 0.9, 0.9, 16, 4, 16, 16},
    {"rows are all", 1e-7, 1e-3, 1e-5, 0.5, 0.5, 16, 4, 1, 1},
    {"drafts never right, dear drafts", 1e-3, 1e-4, 1e-3, 0, 0, 16, 2, 1, 1},
    {"drafts always right", 1e-3, 1e-4, 1e-4, 1, 1, 16, 1, 16, 16},
    {"first two right, none after", 1e-3, 2e-4, 1e-4, 1, 0, 8, 1, 2, 2},
    {"one in two, middling rows", 1e-3, 1e-4, 1e-4, 0.5, 0.5, 16, 1, 3, 5},
    {"block of two", 1e-3, 1e-4, 1e-4, 0.8, 0.8, 2, 3, 2, 2},
};

/* tokens a second that width w gives on the machine */
static double true_rate(const struct machine *m, int w)
{
    double reach = 1, tokens = 1;
    for (int j = 0; j < w - 1; j++) {
        reach *= j == 0 ? m->first : m->later;
        tokens += reach;
    }
    return m->n * tokens / (m->base + m->row * m->n * w + (w > 1 ? m->draft * m->n : 0));
}

static int one_step(struct width *a, const struct machine *m, uint64_t step, double noise)
{
    int w = width_pick(a, m->n);
    double slow = 1 + noise * (rng_unit(3, step, 0) - 0.5);
    width_step(a, m->n, m->n * w, w > 1 ? m->draft * m->n * slow : 0, (m->base + m->row * m->n * w) * slow);
    for (int i = 0; i < m->n; i++) {
        int k = 0;
        while (k < w - 1 && rng_unit(7, step * 64 + (uint64_t)i, (uint64_t)k) < (k == 0 ? m->first : m->later)) k++;
        width_accept(a, w - 1, k);
    }
    return w;
}

START_TEST(the_best_width_is_found)
{
    const struct machine *m = &machines[_i];
    double top = 0, got = 0;
    int n = 0, within = 0;
    struct width a;
    width_init(&a, m->block);
    for (int w = 1; w <= m->block; w++) top = fmax(top, true_rate(m, w));
    for (uint64_t step = 0; step < 600; step++) {
        int w = one_step(&a, m, step, 0.1);
        ck_assert(w >= 1 && w <= m->block);
        if (step < 100 || step % WIDTH_PERIOD == 0) continue;
        n++;
        within += w >= m->least && w <= m->most;
        got += true_rate(m, w);
    }
    ck_assert_msg(within >= n * 9 / 10, "%s: %d of %d steps within %d..%d, mean %.2f", m->name, within, n, m->least, m->most, width_mean(&a));
    ck_assert_msg(got / n >= 0.93 * top, "%s: %.0f tokens a second of at most %.0f", m->name, got / n, top);
}
END_TEST

/* what was cut away comes back when it has become worth it, and goes when it no longer is */
START_TEST(a_change_is_followed)
{
    struct machine m = machines[0];
    struct width a;
    uint64_t step = 0;
    int w = 0;
    m.row = 2e-5;
    width_init(&a, m.block);
    for (int turn = 0; turn < 4; turn++) {
        m.first = m.later = turn % 2 ? 0.98 : 0.02;
        for (int i = 0; i < 3000; i++) w = one_step(&a, &m, step++, 0);
        if ((step - 1) % WIDTH_PERIOD == 0) w = one_step(&a, &m, step++, 0);
        ck_assert_msg(turn % 2 ? w >= 12 : w <= 2, "turn %d: width %d", turn, w);
    }
}
END_TEST

START_TEST(nothing_known_means_the_whole_block)
{
    struct width a;
    width_init(&a, 16);
    ck_assert(width_mean(&a) == 0 && width_cost(&a, 1, 16) == 0);
    for (int i = 0; i < 200; i++) { /* no step is ever reported */
        int w = width_pick(&a, 3);
        ck_assert(w == 16 || (w == 8 && i < WIDTH_WARM));
    }
    for (int i = 0; i < 200; i++) { /* one width only gives no slope */
        width_step(&a, 1, 16, 1e-3, 2e-3);
        ck_assert(width_cost(&a, 1, 4) == 0);
    }
}
END_TEST

/* clocks that stand still, run backwards or overflow, and more drafts than there are */
START_TEST(bad_times_teach_nothing)
{
    struct width a, b;
    width_init(&a, 8);
    for (uint64_t i = 0; i < 100; i++) one_step(&a, &machines[3], i, 0);
    b = a;
    const double bad[] = {NAN, -1, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        width_step(&b, 1, 8, bad[i], 1e-3);
        width_step(&b, 1, 8, 1e-3, bad[i]);
    }
    width_step(&b, 0, 8, 1, 1);
    width_step(&b, 1, 0, 1, 1);
    ck_assert(a.w == b.w && a.y == b.y && a.draft_s == b.draft_s && a.x == b.x);
    for (int i = 0; i < 1000; i++) width_accept(&b, 1000, 1000);
    for (int j = 0; j < 7; j++) ck_assert(width_rate(&b, j) > 0.9 && width_rate(&b, j) <= 1);
    for (int i = 0; i < 2000; i++) width_step(&b, 4, 32, 0, 0); /* a clock that stands still */
    int w = width_pick(&b, 4);
    ck_assert(w >= 1 && w <= 8);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "width", 60);
    tcase_add_loop_test(tc, the_best_width_is_found, 0, sizeof machines / sizeof machines[0]);
    SUITE_TEST(tc, a_change_is_followed);
    SUITE_TEST(tc, nothing_known_means_the_whole_block);
    SUITE_TEST(tc, bad_times_teach_nothing);
}

int main(void)
{
    return suite_main_serial();
}
