/* h5_priv - what h5.c and h5_data.c share; the only file of the program that includes hdf5.h. */
#ifndef PDFLASH_DATA_H5_PRIV_H
#define PDFLASH_DATA_H5_PRIV_H

#include <hdf5.h>

#include "data/h5.h"
#include "data/hold.h"

struct h5 {
    hid_t id;
    int writable;
    char *path;
    void *image; /* bytes of the file at the last flush, kept to spare allocations */
    size_t image_bytes;
};

/* h5_why - the innermost entry of HDF5's error stack, i.e. what really went wrong, as text; returns text. */
const char *h5_why(char text[200]);
#define H5_WHY          h5_why((char[200]){0})
#define FAIL(f, name, what) ERR(ST_E_HDF5, "%s: %s: %s: %s", (f)->path, name, what, H5_WHY)

/* h5_drop - release any identifier: dataset, type, space, property list, attribute; negative is legal. */
void h5_drop(hid_t id);
const char *h5_kind_name(enum h5_kind k);
size_t h5_kind_bytes(enum h5_kind k); /* of one element; 0 for strings */
/* h5_mem_type, h5_file_type - predefined types of a numeric kind, not to be dropped; -1 for strings. */
hid_t h5_mem_type(enum h5_kind k);
hid_t h5_file_type(enum h5_kind k);
/* h5_string_type - a new string type; size: H5T_VARIABLE, or bytes including the final zero. */
hid_t h5_string_type(size_t size, H5T_cset_t cset);
/* h5_parents_lcpl - a new link creation list that creates missing parent groups, names in UTF-8. */
hid_t h5_parents_lcpl(void);

#endif
