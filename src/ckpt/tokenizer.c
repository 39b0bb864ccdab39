#include "ckpt/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "ckpt/bpe.h"
#include "ckpt/text_file.h"

enum { N_SPECIAL = 256, MAX_CHARS = 400000, MAX_RUN = 25000 };

struct tokenizer {
    struct bpe *bpe;
    int n;                    /* ranks; special ids are n .. n + N_SPECIAL - 1 */
    char *special[N_SPECIAL]; /* names */
    pcre2_code *re;
    pcre2_match_data *match;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack; /* NULL without JIT */
    uint64_t hash;
};

/* K3's pre-tokenisation, rewritten for PCRE2, which has no set intersection:
 * - X minus Han, for a union X of general categories, is the negated class of all other categories and Han;
 * - Han is the script property (sc:); plain \p{Han} would be script extensions and take 。「」 along;
 * - HAN_NEW are ideographs of Unicode 15 and 15.1, which tiktoken knows and PCRE2 10.42 (Unicode 14) does not;
 * - \s is written out: under UCP, PCRE2 counts U+180E, which the original does not. */
#define HAN_NEW    "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define HAN        "\\p{sc:Han}" HAN_NEW
#define LETTER     "\\p{L}" HAN_NEW
#define SPACE      "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define OTHER      "\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN
#define UPPER_LIKE "[^\\p{Ll}" OTHER "]"       /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] */
#define LOWER_LIKE "[^\\p{Lu}\\p{Lt}" OTHER "]" /* [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] */
#define LEAD       "[^\\r\\n" LETTER "\\p{N}]?"
#define SUFFIX     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

static const char pattern[] = "[" HAN "]+"
                              "|" LEAD UPPER_LIKE "*" LOWER_LIKE "+" SUFFIX
                              "|" LEAD UPPER_LIKE "+" LOWER_LIKE "*" SUFFIX
                              "|\\p{N}{1,3}"
                              "| ?[^" SPACE LETTER "\\p{N}]+[\\r\\n]*"
                              "|[" SPACE "]*[\\r\\n]+"
                              "|[" SPACE "]+(?![^" SPACE "])"
                              "|[" SPACE "]+";

enum status ids_push(struct ids *v, int32_t id)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 64;
        int32_t *p = mem_grow(v->id, v->n, cap, sizeof *p, "token ids");
        if (!p) return ST_E_NOMEM;
        v->id = p;
        v->cap = cap;
    }
    v->id[v->n++] = id;
    return ST_OK;
}

void ids_free(struct ids *v)
{
    if (!v) return;
    mem_free(v->id);
    *v = (struct ids){NULL, 0, 0};
}

static enum status compile(struct tokenizer *t)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR text[128];
    t->re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!t->re) {
        pcre2_get_error_message(code, text, sizeof text);
        return ERR(ST_E_INTERNAL,
                   "PCRE2 refuses the pre-tokenisation pattern at %zu: %s; PCRE2 10.40 or newer is needed", (size_t)at,
                   (const char *)text);
    }
    t->match = pcre2_match_data_create(1, NULL);
    t->ctx = pcre2_match_context_create(NULL);
    if (!t->match || !t->ctx) return ERR(ST_E_NOMEM, "the tokenizer: not enough memory");
    pcre2_set_match_limit(t->ctx, UINT32_MAX);
    pcre2_set_depth_limit(t->ctx, UINT32_MAX);
    pcre2_set_heap_limit(t->ctx, UINT32_MAX);
    if (pcre2_jit_compile(t->re, PCRE2_JIT_COMPLETE) == 0) {
        t->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
        if (t->stack) pcre2_jit_stack_assign(t->ctx, NULL, t->stack);
    }
    return ST_OK;
}

/* One member of added_tokens_decoder: "ID": {"content": NAME, ...}. */
static enum status add_special(struct tokenizer *t, const char *file, const char *key, const json_t *value)
{
    int64_t id = 0;
    for (const char *c = key; *c; c++) {
        if (*c < '0' || *c > '9' || id > INT32_MAX)
            return ERR(ST_E_FORMAT, "%s: added_tokens_decoder: \"%s\" is not a token id", file, key);
        id = id * 10 + (*c - '0');
    }
    if (id < t->n || id >= t->n + N_SPECIAL)
        return ERR(ST_E_FORMAT,
                   "%s: added_tokens_decoder: id %s is outside the special slots %d..%d that follow the %d ranks; the "
                   "file belongs to another tokenizer",
                   file, key, t->n, t->n + N_SPECIAL - 1, t->n);
    const char *name = json_string_value(json_object_get(value, "content"));
    if (!name || !*name)
        return ERR(ST_E_FORMAT, "%s: added_tokens_decoder.%s: no string \"content\"", file, key);
    if (t->special[id - t->n])
        return ERR(ST_E_FORMAT, "%s: added_tokens_decoder: id %d occurs twice", file, (int)id);
    if (tokenizer_special(t, name) >= 0)
        return ERR(ST_E_FORMAT, "%s: added_tokens_decoder: ids %d and %d are both named %s", file,
                   (int)tokenizer_special(t, name), (int)id, name);
    t->special[id - t->n] = mem_strdup(name);
    return t->special[id - t->n] ? ST_OK : ST_E_NOMEM;
}

static enum status name_specials(struct tokenizer *t, const char *file, const char *text, size_t n)
{
    enum status st = ST_OK;
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) return ERR(ST_E_FORMAT, "%s:%d: not usable as JSON: %s", file, why.line, why.text);
    json_t *map = json_object_get(root, "added_tokens_decoder"), *value;
    const char *key;
    if (!json_is_object(map)) {
        st = ERR(ST_E_FORMAT, "%s: no object added_tokens_decoder, which names the special tokens", file);
        goto drop_root;
    }
    json_object_foreach(map, key, value) TRY_GO(st, add_special(t, file, key, value), drop_root);
    for (int i = 0; i < N_SPECIAL; i++) {
        char name[48];
        if (t->special[i]) continue;
        snprintf(name, sizeof name, "<|reserved_token_%d|>", t->n + i);
        if (tokenizer_special(t, name) >= 0) {
            st = ERR(ST_E_FORMAT, "%s: id %d carries the name %s, which belongs to another slot", file,
                     (int)tokenizer_special(t, name), name);
            goto drop_root;
        }
        t->special[i] = mem_strdup(name);
        if (!t->special[i]) {
            st = ST_E_NOMEM;
            goto drop_root;
        }
    }
drop_root:
    json_decref(root);
    return st;
}

static enum status load(struct tokenizer *t, const char *dir, int vocab)
{
    enum status st = ST_OK;
    char path[2][4096];
    char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    TRY(text_file_path(dir, "tiktoken.model", path[0], sizeof path[0]));
    TRY(text_file_path(dir, "tokenizer_config.json", path[1], sizeof path[1]));
    for (int i = 0; i < 2; i++) TRY_GO(st, text_file_read(path[i], &text[i], &n[i]), free_text);
    TRY_GO(st, bpe_open(path[0], text[0], n[0], &t->bpe), free_text);
    t->n = bpe_ranks(t->bpe);
    if (vocab >= 0 && vocab != t->n + N_SPECIAL) {
        st = ERR(ST_E_FORMAT, "%s: %d ranks and %d special ids make %d tokens, but the model's vocab_size is %d; give "
                              "the tokenizer that belongs to the model",
                 path[0], t->n, N_SPECIAL, t->n + N_SPECIAL, vocab);
        goto free_text;
    }
    TRY_GO(st, name_specials(t, path[1], text[1], n[1]), free_text);
    t->hash = hash64(text[1], n[1], hash64(text[0], n[0], 0));
    st = compile(t);
free_text:
    mem_free(text[0]);
    mem_free(text[1]);
    return st;
}

enum status tokenizer_open(const char *dir, int vocab, struct tokenizer **t_p)
{
    struct tokenizer *t = mem_alloc(1, sizeof *t, "tokenizer");
    if (!t) return ST_E_NOMEM;
    enum status st = load(t, dir, vocab);
    if (st == ST_OK)
        *t_p = t;
    else
        tokenizer_close(t);
    return st;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    bpe_close(t->bpe);
    for (int i = 0; i < N_SPECIAL; i++) mem_free(t->special[i]);
    pcre2_jit_stack_free(t->stack);
    pcre2_match_context_free(t->ctx);
    pcre2_match_data_free(t->match);
    pcre2_code_free(t->re);
    mem_free(t);
}

/* Bytes of the UTF-8 character at p (n >= 1 bytes left), its code point to *c_p; 0 when it is none: truncated,
 * overlong, a surrogate or above U+10FFFF. */
static size_t utf8_char(const uint8_t *p, size_t n, uint32_t *c_p)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *c_p = c;
    return len;
}

/* White space as Python's str.isspace sees it, which decides where the original cuts long runs: unlike the
 * pattern's \s it contains U+001C..U+001F. */
static int is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Cut valid UTF-8 by the pattern and encode the pieces. */
static enum status encode_slice(struct tokenizer *t, const uint8_t *p, size_t n, struct ids *out)
{
    const uint32_t how = PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK;
    for (size_t at = 0; at < n;) {
        int rc = pcre2_match(t->re, p, n, at, how, t->match, t->ctx);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(t->re, p, n, at, how | PCRE2_NO_JIT, t->match, t->ctx);
        if (rc <= 0) /* the alternatives cover every character, so only a limit can end up here */
            return ERR(ST_E_INTERNAL, "PCRE2 error %d at byte %zu of %zu of the text", rc, at, n);
        size_t end = pcre2_get_ovector_pointer(t->match)[1];
        TRY(bpe_encode(t->bpe, p + at, end - at, out));
        at = end;
    }
    return ST_OK;
}

/* Valid UTF-8 of any length: cut at MAX_CHARS characters, and within such a part wherever a run of (non-)white
 * space characters exceeds MAX_RUN. */
static enum status encode_valid(struct tokenizer *t, const uint8_t *p, size_t n, struct ids *out)
{
    size_t start = 0, chars = 0, run = 0;
    int run_is_space = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c = 0;
        size_t len = utf8_char(p + at, n - at, &c);
        int space = is_space(c), cut = 0;
        if (chars == MAX_CHARS) {
            cut = 1;
            chars = 0;
            run = 0;
        }
        if (run > 0 && space == run_is_space)
            run++;
        else
            run = 1;
        run_is_space = space;
        if (run > MAX_RUN) {
            cut = 1;
            run = 1;
        }
        if (cut && at > start) {
            TRY(encode_slice(t, p + start, at - start, out));
            start = at;
        }
        chars++;
        at += len;
    }
    return encode_slice(t, p + start, n - start, out);
}

enum status tokenizer_encode(struct tokenizer *t, const char *text, size_t n, struct ids *out)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t at = 0; at < n;) {
        size_t end = at, len;
        uint32_t c;
        while (end < n && (len = utf8_char(p + end, n - end, &c)) > 0) end += len;
        TRY(encode_valid(t, p + at, end - at, out));
        if (end < n) TRY(ids_push(out, bpe_byte_rank(t->bpe, p[end++])));
        at = end;
    }
    return ST_OK;
}

/* Bytes of one id; NULL with *n_p == 0 for a special id when with_special is 0. */
static const void *id_bytes(const struct tokenizer *t, int32_t id, int with_special, size_t *n_p)
{
    if (id < t->n) return bpe_bytes(t->bpe, id, n_p);
    const char *name = t->special[id - t->n];
    *n_p = with_special ? strlen(name) : 0;
    return with_special ? name : NULL;
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n, int with_special,
                             char **text_p, size_t *n_p)
{
    size_t bytes = 0, len, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= t->n + N_SPECIAL)
            return ERR(ST_E_RANGE, "token id %d at position %zu is outside the vocabulary 0..%d", (int)id[i], i,
                       t->n + N_SPECIAL - 1);
        id_bytes(t, id[i], with_special, &len);
        bytes += len;
    }
    char *text = mem_alloc(bytes + 1, 1, "decoded text");
    if (!text) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const void *p = id_bytes(t, id[i], with_special, &len);
        if (len) memcpy(text + at, p, len);
        at += len;
    }
    *text_p = text;
    *n_p = bytes;
    return ST_OK;
}

int32_t tokenizer_special(const struct tokenizer *t, const char *name)
{
    for (int i = 0; i < N_SPECIAL; i++)
        if (t->special[i] && strcmp(t->special[i], name) == 0) return t->n + i;
    return -1;
}

int tokenizer_ranks(const struct tokenizer *t)
{
    return t->n;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return t->hash;
}
