#include "suite.h"

#include <stddef.h>
#include <string.h>

#include "pd/words.h"

const char *const suite_name = "words";

START_TEST(fields_lie_where_the_protocol_says)
{
    static const struct {
        struct word_value v;
        uint64_t word;
    } row[] = {
        {{0, WORD_NONE, COMP_MLA, 0}, 0},
        {{1, WORD_GRANT, COMP_MLA, 5}, 0x0000011000000005u},
        {{WORD_GENERATION_MAX, WORD_DONE, COMP_DRAFT, UINT32_MAX}, 0xffffff33ffffffffu},
        {{0xabcdef, WORD_FREED, COMP_AUX, 0x01020304}, 0xabcdef7401020304u},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) ck_assert_uint_eq(word_pack(row[i].v), row[i].word);
}
END_TEST

START_TEST(unpack_is_the_inverse_of_pack)
{
    static const uint32_t gen[] = {0, 1, 255, 256, 0x800000, WORD_GENERATION_MAX},
                                  count[] = {0, 1, 0x80000000u, UINT32_MAX};
    for (size_t g = 0; g < sizeof gen / sizeof gen[0]; g++)
        for (size_t n = 0; n < sizeof count / sizeof count[0]; n++)
            for (int s = WORD_NONE; s <= WORD_FREED; s++)
                for (int c = 0; c < COMP_N; c++) {
                    struct word_value v = {gen[g], (enum word_state)s, (enum comp)c, count[n]};
                    struct word_value u = word_unpack(word_pack(v));
                    ck_assert(u.generation == v.generation && u.state == v.state && u.comp == v.comp &&
                              u.count == v.count);
                }
}
END_TEST

START_TEST(a_generation_too_large_cannot_touch_other_fields)
{
    struct word_value u = word_unpack(word_pack((struct word_value){0xff000001u, WORD_PART, COMP_KDA, 9}));
    ck_assert(u.generation == 1 && u.state == WORD_PART && u.comp == COMP_KDA && u.count == 9);
}
END_TEST

START_TEST(a_line_is_64_bytes_with_the_word_first)
{
    ck_assert_uint_eq(sizeof(struct word_line), 64);
    ck_assert_uint_eq(offsetof(struct word_line, word), 0);
    ck_assert_uint_eq(offsetof(struct word_line, bytes), 8);
    for (int s = WORD_NONE; s <= WORD_FREED; s++) ck_assert(strlen(word_state_name[s]) > 0);
    ck_assert_str_eq(word_state_name[WORD_FREED], "FREED");
    ck_assert_str_eq(word_state_name[WORD_PART], "PART");
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "words", 20);
    SUITE_TEST(tc, fields_lie_where_the_protocol_says);
    SUITE_TEST(tc, unpack_is_the_inverse_of_pack);
    SUITE_TEST(tc, a_generation_too_large_cannot_touch_other_fields);
    SUITE_TEST(tc, a_line_is_64_bytes_with_the_word_first);
}

int main(void)
{
    return suite_main_serial();
}
