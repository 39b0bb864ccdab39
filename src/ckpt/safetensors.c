#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "ckpt/text_file.h"

enum { MAX_DIMS = 8, VIEW_DIMS = 4, SAMPLE = 4096, PATH_BYTES = 4096, TEXT = 128 };
#define MAX_HEADER (100u << 20) /* bytes; the format's own limit */

/* dtype names of the format and their bytes; the first three are enum st_dtype */
static const struct {
    const char *name;
    int bytes;
} dtypes[] = {{"BF16", 2}, {"F32", 4},     {"U8", 1},      {"F16", 2},    {"F64", 8}, {"I8", 1},
              {"I16", 2},  {"I32", 4},     {"I64", 8},     {"U16", 2},    {"U32", 4}, {"U64", 8},
              {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

struct shard {
    char *path;
    int fd;
    uint64_t bytes;      /* of the file */
    uint64_t data;       /* offset of the data section */
    void *map;           /* whole file, NULL until first use */
    size_t first, count; /* its entries */
};

struct entry {
    char *name;
    uint64_t begin, end; /* in the data section */
    int64_t dim[MAX_DIMS];
    int n_dims;
    int dtype; /* index into dtypes */
    size_t shard;
};

struct safetensors {
    struct shard *shard;
    size_t n_shards;
    struct entry *entry;
    size_t n, cap;
    size_t *slot; /* [mask + 1] open addressing by name: entry + 1, 0 empty */
    size_t mask;
    uint64_t bytes, hash;
};

static const char *shape_text(int dtype, int n_dims, const int64_t *dim, char out[TEXT])
{
    size_t at = (size_t)snprintf(out, TEXT, "%s [", dtype >= 0 && dtype < N_DTYPES ? dtypes[dtype].name : "?");
    for (int i = 0; i < n_dims && at < TEXT - 24; i++)
        at += (size_t)snprintf(out + at, TEXT - at, dim[i] < 0 ? "%sany" : "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(out + at, TEXT - at, "]");
    return out;
}

static size_t lookup(const struct safetensors *s, const char *name)
{
    if (!s->slot) return SIZE_MAX;
    for (size_t i = (size_t)hash64(name, strlen(name), 0) & s->mask; s->slot[i]; i = (i + 1) & s->mask)
        if (strcmp(s->entry[s->slot[i] - 1].name, name) == 0) return s->slot[i] - 1;
    return SIZE_MAX;
}

static void file_entry(struct safetensors *s, size_t e)
{
    const char *name = s->entry[e].name;
    size_t i = (size_t)hash64(name, strlen(name), 0) & s->mask;
    while (s->slot[i]) i = (i + 1) & s->mask;
    s->slot[i] = e + 1;
}

/* Room for one more entry, and a lookup table at most half full. */
static enum status reserve(struct safetensors *s)
{
    if (s->n < s->cap) return ST_OK;
    size_t cap = s->cap ? 2 * s->cap : 64;
    struct entry *e = mem_grow(s->entry, s->n, cap, sizeof *e, "tensor list");
    if (!e) return ST_E_NOMEM;
    s->entry = e;
    s->cap = cap;
    mem_free(s->slot);
    s->slot = mem_alloc(2 * cap, sizeof *s->slot, "tensor lookup table");
    if (!s->slot) return ST_E_NOMEM;
    s->mask = 2 * cap - 1;
    for (size_t i = 0; i < s->n; i++) file_entry(s, i);
    return ST_OK;
}

static int dtype_of(const char *name)
{
    for (int i = 0; name && i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return -1;
}

/* One member of a header: dtype, shape and offsets, checked against each other and the data section. */
static enum status parse_entry(const struct shard *sh, const char *name, const json_t *v, struct entry *e)
{
    const json_t *shape = json_object_get(v, "shape"), *off = json_object_get(v, "data_offsets");
    const json_t *b = json_array_get(off, 0), *end = json_array_get(off, 1);
    uint64_t want, room = sh->bytes - sh->data;
    char text[TEXT];
    e->dtype = dtype_of(json_string_value(json_object_get(v, "dtype")));
    if (e->dtype < 0) return ERR(ST_E_FORMAT, "%s: tensor %s: missing or unknown dtype", sh->path, name);
    if (!json_is_array(shape) || json_array_size(shape) > MAX_DIMS)
        return ERR(ST_E_FORMAT, "%s: tensor %s: shape is not a list of at most %d sizes", sh->path, name, MAX_DIMS);
    want = (uint64_t)dtypes[e->dtype].bytes;
    e->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < e->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        e->dim[i] = json_integer_value(d);
        if (!json_is_integer(d) || e->dim[i] < 0 || __builtin_mul_overflow(want, (uint64_t)e->dim[i], &want))
            return ERR(ST_E_FORMAT, "%s: tensor %s: size %d of the shape is negative, not an integer or too large",
                       sh->path, name, i);
    }
    if (json_array_size(off) != 2 || !json_is_integer(b) || !json_is_integer(end) || json_integer_value(b) < 0 ||
        json_integer_value(end) < json_integer_value(b))
        return ERR(ST_E_FORMAT, "%s: tensor %s: data_offsets are not [begin, end] with 0 <= begin <= end", sh->path,
                   name);
    e->begin = (uint64_t)json_integer_value(b);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end > room)
        return ERR(ST_E_FORMAT, "%s: tensor %s: data_offsets [%llu, %llu] leave the data section of %llu bytes; the "
                                "file is truncated or damaged",
                   sh->path, name, (unsigned long long)e->begin, (unsigned long long)e->end, (unsigned long long)room);
    if (e->end - e->begin != want)
        return ERR(ST_E_FORMAT, "%s: tensor %s: %llu bytes between data_offsets, but %s takes %llu", sh->path, name,
                   (unsigned long long)(e->end - e->begin), shape_text(e->dtype, e->n_dims, e->dim, text),
                   (unsigned long long)want);
    return ST_OK;
}

static enum status add_entry(struct safetensors *s, size_t shard, const char *name, const json_t *v)
{
    const struct shard *sh = &s->shard[shard];
    size_t twin = lookup(s, name);
    if (twin != SIZE_MAX)
        return ERR(ST_E_FORMAT, "%s: tensor %s is in %s too", sh->path, name, s->shard[s->entry[twin].shard].path);
    TRY(reserve(s));
    struct entry e = {.shard = shard};
    TRY(parse_entry(sh, name, v, &e));
    e.name = mem_strdup(name);
    if (!e.name) return ST_E_NOMEM;
    s->entry[s->n] = e;
    file_entry(s, s->n++);
    s->bytes += e.end - e.begin;
    return ST_OK;
}

static int by_offset(const void *x, const void *y)
{
    const struct entry *a = *(const struct entry *const *)x, *b = *(const struct entry *const *)y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

/* The tensors of a shard must cover its data section without overlap and without holes. */
static enum status check_cover(const struct safetensors *s, const struct shard *sh)
{
    enum status st = ST_OK;
    uint64_t at = 0, room = sh->bytes - sh->data;
    const struct entry **order = mem_alloc(sh->count, sizeof *order, "tensor order");
    if (!order) return ST_E_NOMEM;
    for (size_t i = 0; i < sh->count; i++) order[i] = &s->entry[sh->first + i];
    qsort(order, sh->count, sizeof *order, by_offset);
    for (size_t i = 0; i < sh->count; i++) {
        const struct entry *e = order[i];
        if (e->begin < at) {
            st = ERR(ST_E_FORMAT, "%s: tensors %s and %s overlap (the second begins at %llu, the first ends at %llu)",
                     sh->path, order[i - 1]->name, e->name, (unsigned long long)e->begin, (unsigned long long)at);
            goto free_order;
        }
        if (e->begin > at) break;
        at = e->end;
    }
    if (at != room)
        st = ERR(ST_E_FORMAT,
                 "%s: no tensor owns the bytes from %llu on (the data section has %llu); the file is damaged", sh->path,
                 (unsigned long long)at, (unsigned long long)room);
free_order:
    mem_free(order);
    return st;
}

static enum status read_at(const struct shard *sh, void *p, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(sh->fd, (char *)p + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return ERR(ST_E_FILE, "%s: cannot read %zu bytes at %llu: %s", sh->path, n, (unsigned long long)at,
                       got < 0 ? strerror(errno) : "end of file");
        done += (size_t)got;
    }
    return ST_OK;
}

/* Chain the header, the size and three samples of the data into the identity of the checkpoint. */
static enum status add_hash(struct safetensors *s, const struct shard *sh, const char *header)
{
    char sample[SAMPLE];
    uint64_t room = sh->bytes - sh->data;
    size_t n = room < SAMPLE ? (size_t)room : SAMPLE;
    const uint64_t at[3] = {0, (room - n) / 2, room - n};
    s->hash = hash64(header, (size_t)(sh->data - 8), s->hash);
    s->hash = hash64(&sh->bytes, sizeof sh->bytes, s->hash);
    for (int i = 0; i < 3; i++) {
        TRY(read_at(sh, sample, n, sh->data + at[i]));
        s->hash = hash64(sample, n, s->hash);
    }
    return ST_OK;
}

static enum status parse_header(struct safetensors *s, size_t shard, const char *text, size_t n)
{
    struct shard *sh = &s->shard[shard];
    enum status st = ST_OK;
    const char *name;
    json_error_t why;
    json_t *v, *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return ERR(ST_E_FORMAT, "%s: the header is not usable as JSON: %s (at byte %d)", sh->path, why.text,
                   why.position);
    if (!json_is_object(root)) {
        st = ERR(ST_E_FORMAT, "%s: the header is not a JSON object", sh->path);
        goto drop_root;
    }
    sh->first = s->n;
    json_object_foreach(root, name, v)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        TRY_GO(st, add_entry(s, shard, name, v), drop_root);
    }
    sh->count = s->n - sh->first;
drop_root:
    json_decref(root);
    return st;
}

static enum status read_header(struct safetensors *s, size_t shard)
{
    struct shard *sh = &s->shard[shard];
    uint8_t le[8];
    uint64_t n = 0;
    if (sh->bytes < 8)
        return ERR(ST_E_FORMAT, "%s: %llu bytes are too few for a safetensors file", sh->path,
                   (unsigned long long)sh->bytes);
    TRY(read_at(sh, le, 8, 0));
    for (int i = 7; i >= 0; i--) n = n << 8 | le[i];
    if (n > sh->bytes - 8 || n > MAX_HEADER)
        return ERR(ST_E_FORMAT, "%s: header length %llu, but the file has %llu bytes (limit %u); truncated or not a "
                                "safetensors file",
                   sh->path, (unsigned long long)n, (unsigned long long)sh->bytes, MAX_HEADER);
    char *text = mem_alloc((size_t)n, 1, "a safetensors header");
    if (!text) return ST_E_NOMEM;
    sh->data = 8 + n;
    enum status st;
    TRY_GO(st, read_at(sh, text, (size_t)n, 8), free_text);
    TRY_GO(st, parse_header(s, shard, text, (size_t)n), free_text);
    TRY_GO(st, check_cover(s, sh), free_text);
    st = add_hash(s, sh, text);
free_text:
    mem_free(text);
    return st;
}

static enum status open_shard(struct safetensors *s, size_t i, const char *path)
{
    struct shard *sh = &s->shard[i];
    struct stat sb;
    sh->path = mem_strdup(path);
    if (!sh->path) return ST_E_NOMEM;
    sh->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (sh->fd < 0) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(sh->fd, &sb) != 0 || !S_ISREG(sb.st_mode)) return ERR(ST_E_FILE, "%s: not a regular file", path);
    sh->bytes = (uint64_t)sb.st_size;
    return read_header(s, i);
}

static int by_name(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Distinct file names of the index, sorted, into file (at least as long as the map); their number to *n_p. */
static enum status shard_names(const char *index, const json_t *map, const char **file, size_t *n_p)
{
    const char *name;
    const json_t *v;
    size_t n = 0, kept = 0;
    json_object_foreach((json_t *)map, name, v)
    {
        const char *f = json_string_value(v);
        if (!f || !*f || strchr(f, '/') || f[0] == '.')
            return ERR(ST_E_FORMAT, "%s: weight_map.%s: \"%s\" is not the name of a file beside the index", index, name,
                       f ? f : "(no string)");
        file[n++] = f;
    }
    if (n) qsort(file, n, sizeof *file, by_name);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(file[kept - 1], file[i]) != 0) file[kept++] = file[i];
    *n_p = kept;
    return ST_OK;
}

static enum status alloc_shards(struct safetensors *s, size_t n)
{
    s->shard = mem_alloc(n, sizeof *s->shard, "shard list");
    if (!s->shard) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++) s->shard[i].fd = -1;
    s->n_shards = n;
    return ST_OK;
}

/* Index and headers must tell the same story. */
static enum status check_index(const struct safetensors *s, const char *index, const json_t *map)
{
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)map, name, v)
    {
        size_t e = lookup(s, name);
        const char *slash = e == SIZE_MAX ? NULL : strrchr(s->shard[s->entry[e].shard].path, '/');
        if (!slash || strcmp(slash + 1, json_string_value(v)) != 0)
            return ERR(ST_E_FORMAT, "%s: tensor %s should be in %s, but %s%s", index, name, json_string_value(v),
                       slash ? "it is in " : "it is in no shard", slash ? slash + 1 : "");
    }
    for (size_t i = 0; i < s->n; i++)
        if (!json_object_get(map, s->entry[i].name))
            return ERR(ST_E_FORMAT, "%s: tensor %s is in %s but not in the index", index, s->entry[i].name,
                       s->shard[s->entry[i].shard].path);
    return ST_OK;
}

static enum status open_indexed(struct safetensors *s, const char *dir, const char *index, const json_t *root)
{
    const json_t *map = json_object_get(root, "weight_map");
    char path[PATH_BYTES];
    size_t n = 0;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return ERR(ST_E_FORMAT, "%s: no weight_map, or an empty one", index);
    const char **file = mem_alloc(json_object_size(map), sizeof *file, "shard names");
    if (!file) return ST_E_NOMEM;
    enum status st;
    TRY_GO(st, shard_names(index, map, file, &n), free_names);
    TRY_GO(st, alloc_shards(s, n), free_names);
    for (size_t i = 0; i < n; i++) {
        TRY_GO(st, text_file_path(dir, file[i], path, sizeof path), free_names);
        TRY_GO(st, open_shard(s, i, path), free_names);
    }
    st = check_index(s, index, map);
free_names:
    mem_free(file);
    return st;
}

static enum status open_all(struct safetensors *s, const char *dir)
{
    char path[PATH_BYTES], *text;
    size_t n;
    json_error_t why;
    TRY(text_file_path(dir, "model.safetensors.index.json", path, sizeof path));
    if (access(path, F_OK) != 0) {
        TRY(text_file_path(dir, "model.safetensors", path, sizeof path));
        TRY(alloc_shards(s, 1));
        return open_shard(s, 0, path);
    }
    TRY(text_file_read(path, &text, &n));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    mem_free(text);
    if (!root) return ERR(ST_E_FORMAT, "%s:%d: not usable as JSON: %s", path, why.line, why.text);
    enum status st = open_indexed(s, dir, path, root);
    json_decref(root);
    return st;
}

enum status safetensors_open(const char *dir, struct safetensors **s_p)
{
    struct safetensors *s = mem_alloc(1, sizeof *s, "checkpoint");
    if (!s) return ST_E_NOMEM;
    enum status st = open_all(s, dir);
    if (st == ST_OK)
        *s_p = s;
    else
        safetensors_close(s);
    return st;
}

void safetensors_close(struct safetensors *s)
{
    if (!s) return;
    int saved = errno;
    for (size_t i = 0; i < s->n_shards; i++) {
        if (s->shard[i].map) munmap(s->shard[i].map, (size_t)s->shard[i].bytes);
        if (s->shard[i].fd >= 0) close(s->shard[i].fd);
        mem_free(s->shard[i].path);
    }
    for (size_t i = 0; i < s->n; i++) mem_free(s->entry[i].name);
    mem_free(s->entry);
    mem_free(s->slot);
    mem_free(s->shard);
    mem_free(s);
    errno = saved;
}

static enum status map_shard(struct shard *sh)
{
    if (sh->map) return ST_OK;
    void *p = mmap(NULL, (size_t)sh->bytes, PROT_READ, MAP_PRIVATE, sh->fd, 0);
    if (p == MAP_FAILED) return ERR(ST_E_FILE, "%s: cannot map %llu bytes: %s", sh->path,
                                    (unsigned long long)sh->bytes, strerror(errno));
    sh->map = p;
    return ST_OK;
}

enum status safetensors_get(const struct safetensors *s, const char *name, enum st_dtype dtype, int n_dims,
                            const int64_t *dim, struct tensor *t_p)
{
    char want[TEXT], found[TEXT];
    size_t i = lookup(s, name);
    int same = n_dims >= 0 && n_dims <= VIEW_DIMS;
    if (i == SIZE_MAX)
        return ERR(ST_E_FORMAT, "%s: no tensor %s, expected %s", s->shard[0].path, name,
                   shape_text((int)dtype, n_dims, dim, want));
    const struct entry *e = &s->entry[i];
    same = same && e->dtype == (int)dtype && e->n_dims == n_dims;
    for (int d = 0; same && d < n_dims; d++) same = dim[d] == -1 || dim[d] == e->dim[d];
    if (!same)
        return ERR(ST_E_FORMAT, "%s: tensor %s is %s, expected %s", s->shard[e->shard].path, name,
                   shape_text(e->dtype, e->n_dims, e->dim, found), shape_text((int)dtype, n_dims, dim, want));
    struct shard *sh = &s->shard[e->shard];
    TRY(map_shard(sh));
    struct tensor t = {(const char *)sh->map + sh->data + e->begin, dtype, n_dims, {0}};
    memcpy(t.dim, e->dim, (size_t)n_dims * sizeof t.dim[0]);
    *t_p = t;
    return ST_OK;
}

int safetensors_has(const struct safetensors *s, const char *name)
{
    return lookup(s, name) != SIZE_MAX;
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const char *safetensors_name(const struct safetensors *s, size_t i)
{
    return s->entry[i].name;
}

uint64_t safetensors_bytes_total(const struct safetensors *s)
{
    return s->bytes;
}

uint64_t safetensors_hash(const struct safetensors *s)
{
    return s->hash;
}
