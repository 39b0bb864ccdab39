/* report_svg - escaped text, numbers, and the few SVG shapes that the charts are made of. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "data/report_page.h"
#include "data/utf8.h"

/* XML 1.0 knows no control characters but these three, and no U+FFFE, U+FFFF */
static int is_allowed(uint32_t c)
{
    if (c < 0x20) return c == '\t' || c == '\n' || c == '\r';
    return !(c >= 0x7f && c < 0xa0) && (c & 0xfffe) != 0xfffe;
}

void page_clip(FILE *f, const char *s, size_t n)
{
    size_t bytes = strlen(s), used;
    for (size_t i = 0; i < bytes; i += used) {
        uint32_t c = 0;
        if (n-- == 0) {
            fputs("\xe2\x80\xa6", f);
            return;
        }
        used = utf8_next(s + i, bytes - i, &c);
        if (used == 0 || !is_allowed(c)) {
            if (used == 0) used = 1;
            fputs("\xef\xbf\xbd", f);
            continue;
        }
        switch (c) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        case '\'': fputs("&#39;", f); break;
        default: fwrite(s + i, 1, used, f);
        }
    }
}

void page_text(FILE *f, const char *s)
{
    page_clip(f, s, (size_t)-1);
}

static void escaped(FILE *f, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void escaped(FILE *f, const char *fmt, va_list ap)
{
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    page_text(f, text);
}

void page_printf(FILE *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    escaped(f, fmt, ap);
    va_end(ap);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static void grouped(double v, char buf[48])
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(v)), at = 0;
    if (v < 0) buf[at++] = '-';
    for (int i = 0; i < n && at < 46; i++) {
        if (i > 0 && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
}

/* four digits, and no exponent where people do not expect one */
static void plain(double v, const char *unit, char buf[48])
{
    double a = fabs(v);
    int decimals = a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : 3;
    if (a > 0 && a < 0.001)
        snprintf(buf, 48, "%.3g%s", v, unit);
    else if (a < 1e9)
        snprintf(buf, 48, "%.*f%s", decimals, v, unit);
    else
        snprintf(buf, 48, "%.4g%s", v, unit);
}

const char *page_format(double v, enum page_unit u, char buf[48])
{
    if (!isfinite(v)) return strcpy(buf, "not measured");
    switch (u) {
    case PAGE_COUNT: grouped(v, buf); break;
    case PAGE_PLAIN: plain(v, "", buf); break;
    case PAGE_SECONDS: plain(v, " s", buf); break;
    case PAGE_RATE: plain(v, " tokens/s", buf); break;
    case PAGE_TIMES: plain(v, " \xc3\x97", buf); break;
    case PAGE_PERCENT: snprintf(buf, 48, "%.2f %%", 100 * v); break;
    case PAGE_BYTES:
        if (fabs(v) >= 1073741824.0)
            snprintf(buf, 48, "%.2f GiB", v / 1073741824);
        else if (fabs(v) >= 1048576)
            snprintf(buf, 48, "%.2f MiB", v / 1048576);
        else if (fabs(v) >= 1024)
            snprintf(buf, 48, "%.2f KiB", v / 1024);
        else
            snprintf(buf, 48, "%.0f B", v);
        break;
    }
    return buf;
}

void page_number(const struct page *p, double v, enum page_unit u, const char *key, ...)
{
    char buf[48];
    va_list ap;
    fprintf(p->f, "<span class=\"n%s\" data-k=\"%zu:", isfinite(v) ? "" : " none", p->at);
    va_start(ap, key);
    escaped(p->f, key, ap);
    va_end(ap);
    fputs("\" data-v=\"", p->f);
    if (isfinite(v)) fprintf(p->f, "%.15g", v);
    fprintf(p->f, "\">%s</span>", page_format(v, u, buf));
}

/* ---- SVG ----------------------------------------------------------------------------------------------- */

void svg_open(FILE *f, double w, double h, const char *label)
{
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.6g %.6g\" width=\"%.6g\" height=\"%.6g\" "
               "role=\"img\" aria-label=\"", w, h, w, h);
    page_text(f, label);
    fputs("\">\n", f);
}

void svg_close(FILE *f)
{
    fputs("</svg>\n", f);
}

static void with_tip(FILE *f, const char *element, const char *tip, va_list ap) __attribute__((format(printf, 3, 0)));
static void with_tip(FILE *f, const char *element, const char *tip, va_list ap)
{
    if (!tip[0]) {
        fputs("/>\n", f);
        return;
    }
    fputs("><title>", f);
    escaped(f, tip, ap);
    fprintf(f, "</title></%s>\n", element);
}

void svg_rect(FILE *f, double x, double y, double w, double h, const char *cls, const char *tip, ...)
{
    va_list ap;
    fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"%s\"", x, y, w > 0.75 ? w : 0.75,
            h > 0 ? h : 0, cls);
    va_start(ap, tip);
    with_tip(f, "rect", tip, ap);
    va_end(ap);
}

void svg_faint(FILE *f, double opacity)
{
    if (opacity < 1)
        fprintf(f, "<g fill-opacity=\"%.2f\">", opacity);
    else
        fputs("</g>\n", f);
}

void svg_dot(FILE *f, double x, double y, double r, const char *cls, const char *tip, ...)
{
    va_list ap;
    fprintf(f, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%.2f\" class=\"%s\"", x, y, r, cls);
    va_start(ap, tip);
    with_tip(f, "circle", tip, ap);
    va_end(ap);
}

void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *cls)
{
    fprintf(f, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" class=\"%s\"/>\n", x1, y1, x2, y2, cls);
}

void svg_text(FILE *f, double x, double y, const char *anchor, const char *cls, const char *fmt, ...)
{
    va_list ap;
    fprintf(f, "<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, cls);
    va_start(ap, fmt);
    escaped(f, fmt, ap);
    va_end(ap);
    fputs("</text>\n", f);
}

void svg_path_open(FILE *f, const char *cls)
{
    fprintf(f, "<polyline class=\"%s\" points=\"", cls);
}

void svg_path_point(FILE *f, double x, double y)
{
    fprintf(f, "%.2f,%.2f ", x, y);
}

void svg_path_close(FILE *f)
{
    fputs("\"/>\n", f);
}

/* ---- axes ---------------------------------------------------------------------------------------------- */

double axis_at(const struct axis *x, double v)
{
    return x->a + (v - x->lo) / (x->hi - x->lo) * (x->b - x->a);
}

double axis_step(double span, int ticks)
{
    double raw = span / ticks, power = pow(10, floor(log10(raw))), m = raw / power;
    double step = power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
    return step > 0 && isfinite(step) ? step : span; /* a damaged file may hold any number */
}

void axis_nice(struct axis *x, int ticks)
{
    if (!(x->hi > x->lo)) x->hi = x->lo + 1;
    double step = axis_step(x->hi - x->lo, ticks);
    x->hi = x->lo + ceil((x->hi - x->lo) / step - 1e-9) * step;
}

/* tick labels: as short as the step allows */
static void label(double v, double step, enum page_unit u, char buf[48])
{
    if (u == PAGE_BYTES) {
        page_format(v, u, buf);
    } else if (u == PAGE_PERCENT) {
        snprintf(buf, 48, "%.3g %%", 100 * v);
    } else {
        int decimals = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
        if (step < 0.001)
            snprintf(buf, 48, "%.3g", v);
        else
            snprintf(buf, 48, "%.*f", decimals, v);
    }
}

void svg_axis_x(FILE *f, const struct axis *x, double y0, double y1, int ticks, enum page_unit u, const char *title)
{
    char buf[48];
    double step = axis_step(x->hi - x->lo, ticks);
    for (int i = 0; x->lo + i * step <= x->hi + step * 1e-6 && i <= 4 * ticks; i++) {
        double v = x->lo + i * step, at = axis_at(x, v);
        label(v, step, u, buf);
        svg_line(f, at, y0, at, y1, "grid");
        svg_text(f, at, y0 + 15, "middle", "tick", "%s", buf);
    }
    svg_line(f, x->a, y0, x->b, y0, "axis");
    if (title[0]) svg_text(f, x->b, y0 + 31, "end", "tick", "%s", title);
}

void svg_axis_y(FILE *f, const struct axis *y, double x0, double x1, int ticks, enum page_unit u)
{
    char buf[48];
    double step = axis_step(y->hi - y->lo, ticks);
    for (int i = 0; y->lo + i * step <= y->hi + step * 1e-6 && i <= 4 * ticks; i++) {
        double v = y->lo + i * step, at = axis_at(y, v);
        label(v, step, u, buf);
        svg_line(f, x0, at, x1, at, "grid");
        svg_text(f, x0 - 6, at + 4, "end", "tick", "%s", buf);
    }
}
