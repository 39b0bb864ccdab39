/* safetensors - find tensors of a (sharded) checkpoint by name, mapped read-only, never copied whole.
 *
 * Opens DIR/model.safetensors.index.json (or the single DIR/model.safetensors), maps each shard on first
 * use, and hands out views. The getter takes the expected dtype and shape, so a wrong tensor is caught at
 * binding. Only the pages a rank reads are ever resident. Mapping on first use is not locked: bind from one
 * thread; views may then be read from any. Local.
 * Source: safetensors format: u64 little-endian header length, JSON header, data. */
#ifndef PDFLASH_CKPT_SAFETENSORS_H
#define PDFLASH_CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum st_dtype { ST_DT_BF16, ST_DT_F32, ST_DT_U8 };

struct safetensors; /* opaque */

struct tensor {
    const void *data;     /* host, mapped read-only; valid until safetensors_close; may be unaligned */
    enum st_dtype dtype;
    int n_dims;
    int64_t dim[4];       /* row-major */
};

/* safetensors_open - parse index and headers. Refuses: missing shard, header past the end of the file,
 * overlapping or out-of-range offsets, bytes that belong to no tensor, size that differs from dtype x shape,
 * duplicate names, a name of the index absent from its shard, a tensor absent from the index. Tensors of other
 * dtypes than enum st_dtype are listed and counted but cannot be got. Returns ST_OK, ST_E_FILE, ST_E_FORMAT. */
enum status safetensors_open(const char *dir, struct safetensors **s_p);
void safetensors_close(struct safetensors *s); /* NULL is legal */

/* safetensors_get - view of a tensor that must have this dtype and shape (n_dims, dim...; a dim of -1
 * accepts any size; n_dims <= 4). ST_E_FORMAT names file, tensor, expected and found dtype and shape;
 * ST_E_FILE when the shard cannot be mapped. */
enum status safetensors_get(const struct safetensors *s, const char *name, enum st_dtype dtype, int n_dims,
                            const int64_t *dim, struct tensor *t_p);
/* safetensors_has - 1 if the checkpoint holds name. */
int safetensors_has(const struct safetensors *s, const char *name);
size_t safetensors_count(const struct safetensors *s);
/* safetensors_name - i-th name, i < count; order is that of the headers. */
const char *safetensors_name(const struct safetensors *s, size_t i);
/* safetensors_bytes_total - sum of all tensor bytes. */
uint64_t safetensors_bytes_total(const struct safetensors *s);
/* safetensors_hash - hash64 chained over the headers (names, dtypes, shapes, offsets), the shard sizes and
 * a sample of 4 KiB at the head, middle and tail of every shard's data: cheap identity for provenance and handshake. */
uint64_t safetensors_hash(const struct safetensors *s);

#endif
