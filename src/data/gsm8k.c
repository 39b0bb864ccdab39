#include "data/gsm8k.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "data/utf8.h"

/* Python reads at most this many digits as one integer literal; a longer one is a syntax error there */
enum { LITERAL_MAX_DIGITS = 4300 };

static const char *const rule_name[GSM8K_N] = {"openai", "lm_eval_strict", "lm_eval_flexible", "sglang"};

const char *gsm8k_rule_name(enum gsm8k_rule rule)
{
    return (unsigned)rule < GSM8K_N ? rule_name[rule] : "?";
}

/* ---- pieces of the patterns ----------------------------------------------------------------------- */

struct span { /* bytes at..at+n-1 of a text; n == 0: nothing */
    size_t at, n;
};

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* [0-9.,] */
static int is_number(char c)
{
    return is_digit(c) || c == '.' || c == ',';
}

/* first "#### (-?[0-9.,]+)": the group */
static struct span scan_strict(const char *s, size_t n)
{
    for (size_t i = 0; i + 5 < n; i++) {
        if (memcmp(s + i, "#### ", 5) != 0) continue;
        size_t from = i + 5, at = from;
        if (s[at] == '-') at++;
        size_t run = at;
        while (run < n && is_number(s[run])) run++;
        if (run > at) return (struct span){from, run - from};
    }
    return (struct span){0, 0};
}

/* last of the successive matches of (-?[$0-9.,]{2,})|(-?[0-9]+) */
static struct span scan_flexible(const char *s, size_t n)
{
    struct span last = {0, 0};
    size_t i = 0;
    while (i < n) {
        size_t at = i + (s[i] == '-'), run = at;
        while (run < n && (is_number(s[run]) || s[run] == '$')) run++;
        if (run - at >= 2 || (run - at == 1 && is_digit(s[at]))) {
            last = (struct span){i, run - i};
            i = run;
        } else {
            i++;
        }
    }
    return last;
}

/* ---- normalisation -------------------------------------------------------------------------------- */

static char *copy_without(const char *s, size_t n, const char *unwanted)
{
    char *out = mem_alloc(n + 1, 1, "an extracted answer");
    if (!out) return NULL;
    size_t o = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] == 0 || !strchr(unwanted, s[i])) out[o++] = s[i];
    out[o] = 0;
    return out;
}

/* lm-eval's regexes_to_ignore in their order: "," "$" ".*#### " "\.$" (the end or before a final newline),
 * then lower case */
static char *normalise(const char *s, size_t n)
{
    char *out = copy_without(s, n, ",$");
    if (!out) return NULL;
    char *from = out, *mark;
    while ((mark = strstr(from, "#### ")) != NULL) from = mark + 1; /* overlapping marks count */
    if (from != out) from += 4;
    memmove(out, from, strlen(from) + 1);
    size_t len = strlen(out), end = len;
    if (end > 0 && out[end - 1] == '\n') end--;
    if (end > 0 && out[end - 1] == '.') memmove(out + end - 1, out + end, len - end + 1);
    for (char *c = out; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    return out;
}

/* ---- sglang: the last run of digits as an integer literal ------------------------------------------ */

/* code points of the zeros of all decimal digits (general category Nd) of Unicode 14, 10 each */
static const uint32_t zeros[] = {
    0x30,    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,   0xc66,
    0xce6,   0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,  0x1810,  0x1946,
    0x19d0,  0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,  0xa900,  0xa9d0,
    0xa9f0,  0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0,
    0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};

static int is_unicode_digit(uint32_t cp)
{
    for (size_t i = 0; i < sizeof zeros / sizeof zeros[0] && zeros[i] <= cp; i++)
        if (cp < zeros[i] + 10) return 1;
    return 0;
}

/* last run of digits of s; *plain_p: all of them ASCII */
static struct span scan_digits(const char *s, size_t n, int *plain_p)
{
    struct span last = {0, 0}, run = {0, 0};
    int plain = 1;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(s + i, n - i, &cp);
        if (len == 0 || !is_unicode_digit(cp)) {
            run.n = 0;
            i += len ? len : 1;
            continue;
        }
        if (run.n == 0) {
            run.at = i;
            plain = 1;
        }
        plain = plain && len == 1;
        run.n += len;
        i += len;
        last = run;
        *plain_p = plain;
    }
    return last;
}

static char *extract_sglang(const char *text, size_t n)
{
    char *s = mem_alloc(n + 1, 1, "a reply");
    if (!s) return NULL;
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != ',') s[len++] = text[i];
    int plain = 1;
    struct span d = scan_digits(s, len, &plain);
    size_t lead = 0;
    while (lead < d.n && s[d.at + lead] == '0') lead++;
    char *out;
    if (d.n == 0 || !plain || (lead > 0 && lead < d.n) || (lead == 0 && d.n > LITERAL_MAX_DIGITS))
        out = mem_strdup(GSM8K_INVALID);
    else if (lead == d.n) /* 0, 00, ... */
        out = mem_strdup("0");
    else
        out = copy_without(s + d.at, d.n, "");
    mem_free(s);
    return out;
}

/* ---- the rules ------------------------------------------------------------------------------------ */

enum status gsm8k_extract(enum gsm8k_rule rule, const char *text, size_t n, char **out_p)
{
    struct span m;
    char *out;
    switch (rule) {
    case GSM8K_OPENAI:
        m = scan_strict(text, n);
        out = m.n ? copy_without(text + m.at, m.n, ",") : mem_strdup(GSM8K_INVALID);
        break;
    case GSM8K_LM_EVAL_STRICT:
    case GSM8K_LM_EVAL_FLEXIBLE:
        m = rule == GSM8K_LM_EVAL_STRICT ? scan_strict(text, n) : scan_flexible(text, n);
        out = m.n ? normalise(text + m.at, m.n) : mem_strdup(GSM8K_INVALID);
        break;
    case GSM8K_SGLANG: out = extract_sglang(text, n); break;
    default: return ERR(ST_E_RANGE, "grading rule %d, there are %d", (int)rule, (int)GSM8K_N);
    }
    if (!out) return ST_E_NOMEM;
    *out_p = out;
    return ST_OK;
}

enum status gsm8k_reference(enum gsm8k_rule rule, const char *gold, size_t n, char **out_p)
{
    if (rule != GSM8K_LM_EVAL_STRICT && rule != GSM8K_LM_EVAL_FLEXIBLE) return gsm8k_extract(rule, gold, n, out_p);
    char *out = normalise(gold, n);
    if (!out) return ST_E_NOMEM;
    *out_p = out;
    return ST_OK;
}

enum status gsm8k_truth(const char *gold, char **out_p)
{
    char *out;
    TRY(gsm8k_extract(GSM8K_OPENAI, gold, strlen(gold), &out));
    if (strcmp(out, GSM8K_INVALID) == 0) {
        mem_free(out);
        return ERR(ST_E_FORMAT, "gold answer of %zu bytes has no final '#### N'", strlen(gold));
    }
    *out_p = out;
    return ST_OK;
}

enum status gsm8k_grade(const char *reply, size_t n, const char *gold, struct gsm8k_grade *g_p)
{
    struct gsm8k_grade g = {{NULL}, {0}};
    enum status st = ST_OK;
    size_t n_gold = strlen(gold);
    struct span final = scan_strict(gold, n_gold);
    for (int r = 0; r < GSM8K_N && st == ST_OK; r++) {
        char *want = NULL;
        st = gsm8k_extract((enum gsm8k_rule)r, reply, n, &g.extracted[r]);
        if (st == ST_OK) st = gsm8k_reference((enum gsm8k_rule)r, gold, n_gold, &want);
        if (st == ST_OK)
            g.correct[r] =
                final.n > 0 && strcmp(g.extracted[r], GSM8K_INVALID) != 0 && strcmp(g.extracted[r], want) == 0;
        mem_free(want);
    }
    if (st == ST_OK)
        *g_p = g;
    else
        gsm8k_grade_free(&g);
    return st;
}

void gsm8k_grade_free(struct gsm8k_grade *g)
{
    if (!g) return;
    for (int r = 0; r < GSM8K_N; r++) mem_free(g->extracted[r]);
    memset(g, 0, sizeof *g);
}

void gsm8k_wilson(int64_t k, int64_t n, double *low_p, double *high_p)
{
    const double z = 1.959963984540054; /* 97.5 % point of the normal distribution */
    if (n <= 0) {
        *low_p = *high_p = NAN;
        return;
    }
    double p = (double)k / (double)n, zz = z * z / (double)n;
    double mid = (p + zz / 2) / (1 + zz);
    double half = z / (1 + zz) * sqrt(p * (1 - p) / (double)n + zz / (4 * (double)n));
    *low_p = mid - half < 0 || k == 0 ? 0 : mid - half;
    *high_p = mid + half > 1 || k == n ? 1 : mid + half;
}
