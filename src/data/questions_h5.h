/* questions_h5 - questions out of HDF5: a prompts file, or two lists of strings /question and /answer of one length
 * (h5py: variable or fixed length, ASCII or UTF-8), and perhaps /id (strings or whole numbers). Other datasets do not
 * matter. Local. */
#ifndef PDFLASH_DATA_QUESTIONS_H5_H
#define PDFLASH_DATA_QUESTIONS_H5_H

#include "data/questions.h"

/* questions_h5 - at most limit rows (<= 0: all) added to q. Returns ST_OK, ST_E_FILE, ST_E_FORMAT, ST_E_NOMEM. */
enum status questions_h5(const char *path, int64_t limit, struct questions *q);

#endif
