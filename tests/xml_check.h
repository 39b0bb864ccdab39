/* xml_check - a strict reader of well-formed XML without DTD, for pages that are HTML as well: elements nest and close,
 * attributes are quoted and single, the only entities are the five of XML and numbers, no control characters, UTF-8.
 * Calls back for each element; the text directly inside comes with its end. */
#ifndef PDFLASH_TESTS_XML_CHECK_H
#define PDFLASH_TESTS_XML_CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/utf8.h"

enum { XML_DEPTH = 40, XML_ATTRS = 12, XML_NAME = 40, XML_VALUE = 4096 };
struct xml_attr {
    char name[XML_NAME], value[XML_VALUE]; /* value: entities resolved, cut at its size */
};
struct xml_element {
    char name[XML_NAME];
    struct xml_attr attr[XML_ATTRS];
    int n_attrs;
    char text[XML_VALUE]; /* resolved; of this element alone */
    size_t n_text;
};
struct xml {
    const char *s, *begin;
    const char *error; /* NULL: well so far */
    struct xml_element *stack; /* [XML_DEPTH] */
    int depth, roots;
    void (*element)(void *ctx, const struct xml_element *e, int depth); /* at its end */
    void *ctx;
};

static void xml_bad(struct xml *x, const char *why)
{
    if (!x->error) x->error = why;
}

static int xml_name(struct xml *x, char out[XML_NAME])
{
    size_t n = strspn(x->s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:");
    if (n == 0 || n >= XML_NAME || strchr("0123456789-", x->s[0])) return xml_bad(x, "no name"), 0;
    memcpy(out, x->s, n);
    out[n] = 0;
    x->s += n;
    return 1;
}

/* one character of text or of a value, entities resolved, appended to out when there is room */
static void xml_char(struct xml *x, char *out, size_t *n, size_t room)
{
    static const struct {
        const char *name;
        char c;
    } entity[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    if (*x->s == '&') {
        for (size_t i = 0; i < sizeof entity / sizeof entity[0]; i++) {
            size_t len = strlen(entity[i].name);
            if (strncmp(x->s, entity[i].name, len) != 0) continue;
            if (*n + 1 < room) out[(*n)++] = entity[i].c;
            x->s += len;
            return;
        }
        char *end = NULL;
        long c = x->s[1] == '#' ? strtol(x->s + 2, &end, 10) : 0;
        if (c < 0x20 || !end || *end != ';') {
            xml_bad(x, "unknown entity");
            x->s++;
            return;
        }
        if (*n + 1 < room) out[(*n)++] = c < 128 ? (char)c : '?';
        x->s = end + 1;
        return;
    }
    uint32_t c;
    size_t used = utf8_next(x->s, strlen(x->s) < 4 ? strlen(x->s) : 4, &c);
    if (used == 0) {
        xml_bad(x, "no UTF-8");
        used = 1;
    } else if ((c < 0x20 && c != '\n' && c != '\t' && c != '\r') || (c >= 0x7f && c < 0xa0) || (c & 0xfffe) == 0xfffe) {
        xml_bad(x, "a control character");
    }
    if (*n + used < room) {
        memcpy(out + *n, x->s, used);
        *n += used;
    }
    x->s += used;
}

static void xml_attribute(struct xml *x, struct xml_element *e)
{
    if (e->n_attrs == XML_ATTRS) {
        xml_bad(x, "too many attributes");
        return;
    }
    struct xml_attr *a = &e->attr[e->n_attrs++];
    size_t n = 0;
    if (!xml_name(x, a->name)) return;
    for (int i = 0; i + 1 < e->n_attrs; i++)
        if (strcmp(e->attr[i].name, a->name) == 0) xml_bad(x, "an attribute twice");
    if (x->s[0] != '=' || x->s[1] != '"') {
        xml_bad(x, "a value without quotes");
        return;
    }
    x->s += 2;
    while (*x->s && *x->s != '"' && !x->error) {
        if (*x->s == '<') xml_bad(x, "< in a value");
        xml_char(x, a->value, &n, sizeof a->value);
    }
    a->value[n] = 0;
    if (*x->s == '"')
        x->s++;
    else
        xml_bad(x, "a value without end");
}

static void xml_end(struct xml *x)
{
    struct xml_element *e = &x->stack[--x->depth];
    e->text[e->n_text] = 0;
    x->element(x->ctx, e, x->depth);
}

static void xml_tag(struct xml *x)
{
    char name[XML_NAME];
    if (x->s[1] == '/') {
        x->s += 2;
        if (!xml_name(x, name)) return;
        if (*x->s++ != '>') xml_bad(x, "an end tag without >");
        if (x->depth == 0 || strcmp(x->stack[x->depth - 1].name, name) != 0)
            xml_bad(x, "an end tag that closes nothing");
        else
            xml_end(x);
        return;
    }
    if (x->depth == XML_DEPTH) {
        xml_bad(x, "too deep");
        return;
    }
    struct xml_element *e = &x->stack[x->depth];
    memset(e, 0, sizeof *e);
    x->s++;
    if (!xml_name(x, e->name)) return;
    if (x->depth == 0 && x->roots++) xml_bad(x, "a second root");
    while (!x->error && (*x->s == ' ' || *x->s == '\n')) {
        x->s++;
        xml_attribute(x, e);
    }
    x->depth++;
    if (x->s[0] == '/' && x->s[1] == '>') {
        x->s += 2;
        xml_end(x);
    } else if (*x->s++ != '>') {
        xml_bad(x, "a tag without >");
    }
}

/* xml_check - NULL when text is well-formed, else what is wrong; *at_p: where. */
static const char *xml_check(const char *text, void (*element)(void *, const struct xml_element *, int), void *ctx,
                             size_t *at_p)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    struct xml x = {.s = text, .begin = text, .element = element, .ctx = ctx};
    x.stack = calloc(XML_DEPTH, sizeof *x.stack);
    if (strncmp(text, doctype, sizeof doctype - 1) == 0)
        x.s += sizeof doctype - 1;
    else
        xml_bad(&x, "no doctype");
    while (*x.s && !x.error) {
        if (*x.s == '<') {
            xml_tag(&x);
        } else if (x.depth == 0) {
            if (*x.s++ != '\n') xml_bad(&x, "text outside the root");
        } else {
            struct xml_element *e = &x.stack[x.depth - 1];
            if (strncmp(x.s, "]]>", 3) == 0) xml_bad(&x, "]]> in text");
            xml_char(&x, e->text, &e->n_text, sizeof e->text);
        }
    }
    if (!x.error && x.depth) xml_bad(&x, "elements left open");
    if (!x.error && !x.roots) xml_bad(&x, "no root");
    *at_p = (size_t)(x.s - text);
    free(x.stack);
    return x.error;
}

#endif
