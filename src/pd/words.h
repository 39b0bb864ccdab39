/* words - completion words and credits: 64-bit values, one writer each, 64 bytes apart.
 *
 * word = generation (24 bits) | state (4) | component (4) | count (32: parts settled so far).
 * A receiver ignores words of other generations. Order of writing: data puts, flush, word, flush. Local. */
#ifndef PDFLASH_PD_WORDS_H
#define PDFLASH_PD_WORDS_H

#include <stdint.h>

#include "plan/layout.h"

enum word_state { WORD_NONE, WORD_GRANT, WORD_PART, WORD_DONE, WORD_FAIL, WORD_ABORT, WORD_QUIET, WORD_FREED };
extern const char *const word_state_name[];

enum { WORD_GENERATION_MAX = (1 << 24) - 1 };

struct word_value { uint32_t generation; enum word_state state; enum comp comp; uint32_t count; };
uint64_t word_pack(struct word_value v);
struct word_value word_unpack(uint64_t w);

struct word_line { /* one 64-byte line of the notification window; word is written last, on its own */
    uint64_t word;
    uint64_t bytes;      /* moved so far by this source for this component */
    uint64_t runs;       /* puts so far */
    uint64_t checksum;   /* hash64 chained over the runs in plan order; 0 unless verifying */
    double seconds;      /* spent by the source in puts and flushes */
    double first_s;      /* run time of its first put */
    uint64_t pad[2];
};

#endif
