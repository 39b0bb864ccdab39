/* h5 - thin helpers over HDF5: files, attributes, number arrays, UTF-8 strings, tables of structs.
 *
 * This module alone knows hdf5.h (h5_priv.h includes it for h5.c and h5_data.c). Every function returns enum status;
 * HDF5's own error stack is silent and its last line is folded into our message.
 *
 * Files opened for reading are read in place. A file being written lives in memory and reaches the disk only
 * by h5_flush, which writes PATH.pdflash-tmp, fsyncs it and renames it over PATH: whoever looks at PATH, at any
 * moment and after any kill, sees a whole, closed HDF5 file (the state of the last flush), without locks.
 * The price is one write of the whole file per flush; result files are a few MB. Default format bounds.
 *
 * Object names are absolute paths ("/x/layer00/state"); "/" is the root group. Missing parent groups are
 * created. Extendible datasets grow along their first dimension. Arrays are row-major host memory. Arrays
 * handed out are released with mem_free unless said otherwise. Out-parameters are set only on success.
 * Errors: ST_E_FILE (missing, exists, not HDF5), ST_E_FORMAT (absent object, wrong type or shape; names file,
 * object, found and wanted), ST_E_HDF5 (a call failed), ST_E_IO, ST_E_NOMEM. Local; one thread. */
#ifndef PDFLASH_DATA_H5_H
#define PDFLASH_DATA_H5_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { H5_MAX_RANK = 8, H5_MAX_NAME = 128, H5_MAX_FIELDS = 32 };

/* kind of an element; H5_KIND_STR: fixed-size zero-terminated UTF-8 (table fields), or a string attribute */
enum h5_kind {
    H5_KIND_I8, H5_KIND_I32, H5_KIND_I64, H5_KIND_U64, H5_KIND_F32, H5_KIND_F64, H5_KIND_STR,
    H5_KIND_N
};

struct h5; /* opaque: an open file */

/* h5_create - start a new file for path (nothing on disk before the first h5_flush). An existing path is
 * refused (ST_E_FILE) unless overwrite. */
enum status h5_create(const char *path, int overwrite, struct h5 **f_p);
/* h5_check_folder - ST_E_FILE, naming the directory, unless a file can be made beside path and h5_flush finds its
 * temporary name free. */
enum status h5_check_folder(const char *path);
/* h5_open - open an existing file; writable: load it into memory for further writing (see above). */
enum status h5_open(const char *path, int writable, struct h5 **f_p);
/* h5_is_hdf5 - 1 when the file exists and begins as an HDF5 file. */
int h5_is_hdf5(const char *path);
/* h5_flush - make everything written so far durable under the file's path: write, fsync, rename, fsync of
 * the folder. On failure the former file is untouched. */
enum status h5_flush(struct h5 *f);
/* h5_close - release; what was not flushed is dropped. NULL is legal; keeps errno. */
void h5_close(struct h5 *f);
const char *h5_path(const struct h5 *f);

enum status h5_group(struct h5 *f, const char *name); /* create if absent */
/* h5_delete - unlink a dataset or group; its space in the file is not reused after the next flush. */
enum status h5_delete(struct h5 *f, const char *name);
int h5_exists(const struct h5 *f, const char *name);  /* 1: a group or dataset of this name */
/* h5_dims - shape of a dataset: dim[0..rank-1]. */
enum status h5_dims(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p);

/* ---- what is in a file ---------------------------------------------------------------------------- */
/* one group, dataset or field of a table */
struct h5_object {
    char name[H5_MAX_NAME]; /* "/accept", "/accept/round", "/requests.index" */
    char type[24];          /* "group", "table", "text" (UTF-8 of variable length), "char[8]", "int32", "float64", "?" */
    int rank;               /* of a dataset, otherwise -1 */
    int grows;              /* 1: its first dimension is unlimited */
};
/* h5_list - everything below "/", parents first, names of a group sorted; *o_p: mem_free. ST_E_FORMAT: a name too
 * long. */
enum status h5_list(const struct h5 *f, struct h5_object **o_p, size_t *n_p);

/* ---- attributes of a group or dataset; setting replaces ------------------------------------------- */
struct h5_attr {
    char name[H5_MAX_NAME];
    enum h5_kind kind; /* H5_KIND_STR, H5_KIND_I64 or H5_KIND_F64 */
    char *s;           /* H5_KIND_STR: allocated, otherwise NULL */
    int64_t i;
    double d;
};
enum status h5_set_str(struct h5 *f, const char *object, const char *attr, const char *value);
enum status h5_set_int(struct h5 *f, const char *object, const char *attr, int64_t value);
enum status h5_set_real(struct h5 *f, const char *object, const char *attr, double value);
int h5_has_attr(const struct h5 *f, const char *object, const char *attr);
enum status h5_get_str(const struct h5 *f, const char *object, const char *attr, char **value_p);
enum status h5_get_int(const struct h5 *f, const char *object, const char *attr, int64_t *value_p);
enum status h5_get_real(const struct h5 *f, const char *object, const char *attr, double *value_p);
/* h5_list_attrs - every scalar string, integer and float attribute in name order; others are skipped. */
enum status h5_list_attrs(const struct h5 *f, const char *object, struct h5_attr **a_p, size_t *n_p);
void h5_free_attrs(struct h5_attr *a, size_t n);

/* ---- arrays of numbers ---------------------------------------------------------------------------- */
/* h5_write - a new dataset of fixed shape dim[rank] (rank 0..H5_MAX_RANK), data contiguous. */
enum status h5_write(struct h5 *f, const char *name, enum h5_kind kind, int rank, const int64_t *dim,
                     const void *data);
/* h5_make - a new empty extendible dataset [0][width]; width 0 makes it 1-D. chunk: rows per chunk. */
enum status h5_make(struct h5 *f, const char *name, enum h5_kind kind, int64_t width, int64_t chunk);
/* h5_append - n more rows of an extendible dataset. */
enum status h5_append(struct h5 *f, const char *name, enum h5_kind kind, int64_t n, const void *data);
/* h5_put - overwrite rows first..first+n-1 of a dataset; they must exist. */
enum status h5_put(struct h5 *f, const char *name, enum h5_kind kind, int64_t first, int64_t n,
                   const void *data);
/* h5_read - a whole dataset of any rank as kind. The stored type must be of the same class (integer, float)
 * and not wider, so nothing is clipped; anything else is refused. data_p: NULL-safe even for 0 elements. */
enum status h5_read(const struct h5 *f, const char *name, enum h5_kind kind, int64_t dim[H5_MAX_RANK],
                    int *rank_p, void **data_p);
enum status h5_read_f32(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p,
                        float **data_p);
enum status h5_read_i32(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p,
                        int32_t **data_p);
/* h5_read_vec - the same for a 1-D dataset of n elements; another rank is refused. */
enum status h5_read_vec(const struct h5 *f, const char *name, enum h5_kind kind, void **data_p, size_t *n_p);

/* ---- variable-length UTF-8 strings, 1-D ----------------------------------------------------------- */
enum status h5_make_str(struct h5 *f, const char *name, int64_t chunk);
/* h5_is_text - 1: a dataset of strings, of variable or fixed length. */
int h5_is_text(const struct h5 *f, const char *name);
/* h5_append_str - n more strings; s[i] must be valid UTF-8 (ST_E_FORMAT; see utf8_clean), NULL counts as "". */
enum status h5_append_str(struct h5 *f, const char *name, size_t n, const char *const *s);
/* h5_read_str - all strings of a list of strings, also one of fixed length (without its padding; ST_E_FORMAT when a
 * zero character is inside); release with h5_free_str. */
enum status h5_read_str(const struct h5 *f, const char *name, char ***s_p, size_t *n_p);
void h5_free_str(char **s, size_t n);

/* ---- tables: 1-D extendible datasets of compound type, from and to arrays of C structs ------------- */
struct h5_field {
    const char *name;  /* name in the file, with unit where there is one ("seconds", "host_peak_bytes") */
    enum h5_kind kind;
    size_t offset;     /* offsetof in the C struct */
    size_t size;       /* H5_KIND_STR: bytes of the char array; other kinds: 0 */
};
struct h5_table {      /* how a C struct looks in the file */
    const struct h5_field *field;
    int n_fields;      /* <= H5_MAX_FIELDS */
    size_t row_bytes;  /* sizeof the C struct */
};
enum status h5_make_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t chunk);
enum status h5_append_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t n, const void *row);
enum status h5_put_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t first, int64_t n,
                        const void *row);
/* h5_read_rows - the whole table; a field absent from the file is refused by name. */
enum status h5_read_rows(const struct h5 *f, const char *name, const struct h5_table *t, void **row_p,
                         size_t *n_p);

#endif
