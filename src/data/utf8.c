#include "data/utf8.h"

#include <string.h>

#include "base/buf.h"

size_t utf8_next(const char *s, size_t n, uint32_t *cp_p)
{
    if (n == 0) return 0;
    const uint8_t *p = (const uint8_t *)s;
    uint8_t b = p[0];
    size_t len = b < 0x80                 ? 1
                 : b >= 0xc2 && b <= 0xdf ? 2
                 : b >= 0xe0 && b <= 0xef ? 3
                 : b >= 0xf0 && b <= 0xf4 ? 4
                                          : 0;
    if (len == 0 || len > n) return 0;
    uint32_t cp = len == 1 ? b : b & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        cp = cp << 6 | (p[i] & 0x3fu);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (cp < least[len] || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) return 0;
    *cp_p = cp;
    return len;
}

size_t utf8_bad_at(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        size_t len = utf8_next(s + i, n - i, &cp);
        if (len == 0) return i;
        i += len;
    }
    return n;
}

char *utf8_clean(const char *s, size_t n)
{
    char *out = mem_alloc(n * 3 + 1, 1, "a text");
    if (!out) return NULL;
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = utf8_next(s + i, n - i, &cp);
        if (len > 0 && cp != 0) {
            memcpy(out + o, s + i, len);
            o += len;
            i += len;
        } else {
            memcpy(out + o, "\xef\xbf\xbd", 3);
            o += 3;
            i++;
        }
    }
    out[o] = 0;
    return out;
}
