/* report_page - what the parts of the HTML report share: escaped text, numbers that carry their key, SVG primitives.
 * Private to report_html*.c and report_svg.c. Everything goes to a FILE whose errors the caller finds in ferror. Local.
 *
 * report_html.c      the page: head, decision, key figures, tables, provenance
 * report_charts.c    accuracy, acceptance, transfer, memory
 * report_timeline.c  throughput over time, requests, ranks
 * report_compare.c   several files side by side
 * report_svg.c       text, numbers and SVG */
#ifndef PDFLASH_DATA_REPORT_PAGE_H
#define PDFLASH_DATA_REPORT_PAGE_H

#include "data/report.h"

enum page_unit { PAGE_COUNT, PAGE_PLAIN, PAGE_SECONDS, PAGE_PERCENT, PAGE_BYTES, PAGE_RATE, PAGE_TIMES };

struct page {
    FILE *f;
    const struct report_file *file; /* [n] */
    size_t n;
    size_t at; /* the file whose numbers are printed */
};

/* page_text - text of any origin as HTML text or attribute value: markup characters escaped, what XML does not allow
 * and what is no UTF-8 replaced by U+FFFD. page_clip - the same, at most n characters and an ellipsis. */
void page_text(FILE *f, const char *s);
void page_clip(FILE *f, const char *s, size_t n);
/* page_printf - printf, escaped. */
void page_printf(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* page_number - a number for a person, with its key in the JSON summary (printf) and its value; not finite:
 * "not measured". */
void page_number(const struct page *p, double v, enum page_unit u, const char *key, ...)
    __attribute__((format(printf, 4, 5)));
/* page_format - the number alone, as page_number shows it. */
const char *page_format(double v, enum page_unit u, char buf[48]);

/* ---- SVG, in user units; y grows downwards; cls: CSS classes ------------------------------------------- */
void svg_open(FILE *f, double w, double h, const char *label);
void svg_close(FILE *f);
/* svg_rect - tip (printf) is shown when the pointer rests on it; "" for none. Narrow ones are drawn 0.75 wide. */
void svg_rect(FILE *f, double x, double y, double w, double h, const char *cls, const char *tip, ...)
    __attribute__((format(printf, 7, 8)));
/* svg_faint - opacity (0..1) of the shapes up to the next svg_faint(f, 1); calls pair. */
void svg_faint(FILE *f, double opacity);
void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *cls);
void svg_dot(FILE *f, double x, double y, double r, const char *cls, const char *tip, ...)
    __attribute__((format(printf, 6, 7)));
/* svg_text - anchor: "start", "middle", "end". */
void svg_text(FILE *f, double x, double y, const char *anchor, const char *cls, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* svg_path_open, _point, _close - a polyline, point by point. */
void svg_path_open(FILE *f, const char *cls);
void svg_path_point(FILE *f, double x, double y);
void svg_path_close(FILE *f);

struct axis { /* values lo..hi on places a..b */
    double lo, hi, a, b;
};
double axis_at(const struct axis *x, double v);
double axis_step(double span, int ticks); /* 1, 2 or 5 times a power of ten, at most that many steps */
/* axis_nice - hi raised to a whole step; hi == lo becomes lo + 1. */
void axis_nice(struct axis *x, int ticks);
/* svg_axis_x - ticks and labels below y0, grid lines up to y1. svg_axis_y - the same left of x0, grid to x1. */
void svg_axis_x(FILE *f, const struct axis *x, double y0, double y1, int ticks, enum page_unit u, const char *title);
void svg_axis_y(FILE *f, const struct axis *y, double x0, double x1, int ticks, enum page_unit u);

/* ---- charts of one file (p->at) ------------------------------------------------------------------------ */
void page_accuracy(const struct page *p);
void page_acceptance(const struct page *p);
void page_transfer(const struct page *p);
void page_memory(const struct page *p);
void page_throughput(const struct page *p);
enum status page_requests(const struct page *p); /* ST_E_NOMEM */
enum status page_ranks(const struct page *p);    /* ST_E_NOMEM */
/* page_comparison - all files. */
void page_comparison(const struct page *p);

#endif
