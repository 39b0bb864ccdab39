/* The figures of bench transfer: medians, ratios, a table or JSON. */
#include <stdio.h>
#include <string.h>

#include "build_id.h"
#include "cmd/bench_transfer.h"

static double median(const double *v, int n)
{
    double s[BENCH_REPS_MAX];
    memcpy(s, v, (size_t)n * sizeof *s);
    bench_sort(s, n);
    return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}

/* median of the repetitions' own ratios: what loads the machine loads both legs of a repetition */
static double median_ratio(const double *above, const double *below, int n)
{
    double s[BENCH_REPS_MAX];
    for (int i = 0; i < n; i++) s[i] = above[i] / below[i];
    return median(s, n);
}

struct figures {
    double bytes, put_bytes;               /* of all sources a repetition; of a put of draft pages, mean */
    double queue, put, copy, pack, unpack; /* GB/s; pack 0: in place */
    double ratio, cpu_ratio;               /* cpu 0: packing cannot be taken out of it */
    double d2h, h2d;                       /* plain copies, GB/s of one rank; 0: no device */
    double pack_ratio, unpack_ratio;       /* of packing and unpacking to them */
};

/* median of the repetitions' own rates: bytes in a leg over those of the plain copy */
static double plain_ratio(const double *plain, const double *leg, double bytes, int n)
{
    double s[BENCH_REPS_MAX];
    for (int i = 0; i < n; i++) s[i] = bytes * plain[i] / leg[i];
    return median(s, n);
}

static struct figures figures_of(const struct transfer_bench *b)
{
    int n = b->o.reps, p = b->w.topo.n_prefill;
    double all = (double)b->bytes * p,
           slots = (double)b->bytes / b->w.topo.n_decode * p * p; /* p destinations unpack at once */
    struct figures f = {.bytes = all, .put_bytes = (double)b->draft_bytes / (double)b->draft_runs};
    f.queue = all / median(b->leg[LEG_QUEUE], n) * 1e-9;
    f.put = all / median(b->leg[LEG_PUT], n) * 1e-9;
    f.copy = all / median(b->leg[LEG_COPY], n) * 1e-9;
    if (b->packed) f.pack = all / median(b->leg[LEG_PACK], n) * 1e-9;
    f.unpack = slots / median(b->leg[LEG_UNPACK], n) * 1e-9;
    f.ratio = median_ratio(b->leg[LEG_COPY], b->leg[LEG_PUT], n);
    if (!b->packed) f.cpu_ratio = median_ratio(b->leg[LEG_COPY_CPU], b->leg[LEG_PUT_CPU], n);
    if (b->o.device != DEVICE_CUDA) return f;
    f.d2h = 1e-9 / median(b->leg[LEG_PLAIN_OUT], n);
    f.h2d = 1e-9 / median(b->leg[LEG_PLAIN_IN], n);
    f.pack_ratio = plain_ratio(b->leg[LEG_PLAIN_OUT], b->leg[LEG_PACK], (double)b->bytes, n);
    f.unpack_ratio = plain_ratio(b->leg[LEG_PLAIN_IN], b->leg[LEG_UNPACK], all / b->w.topo.n_decode, n);
    return f;
}

void bench_transfer_head(const struct transfer_bench *b)
{
    const struct topology *t = &b->w.topo;
    const char *via = b->o.transport ? "sendrecv" : "rma", *win = b->o.window ? "create" : "allocate";
    if (b->o.json) {
        printf("{\"build\": \"%s\", \"transport\": \"%s\", \"window\": \"%s\", \"osc\": \"%s\", \"sources\": %d, "
               "\"destinations\": %d, \"mib\": %d, \"reps\": %d, \"cases\": [",
               PDFLASH_GIT, via, win, transfer_osc(b->opt.transport), t->n_prefill, t->n_decode, b->o.mib,
               b->o.reps);
        return;
    }
    printf("%d sources at once to %d destinations, %d MiB each; transport %s, window %s, osc %s; medians of %d\n",
           t->n_prefill, t->n_decode, b->o.mib, via, win, transfer_osc(b->opt.transport), b->o.reps);
    printf("GB/s of all sources together; ratio: put over memcpy by wall and by processor time; a packed source's puts "
           "include its packing%s\n\n",
           b->o.device == DEVICE_CUDA ? "; D2H, H2D: a plain copy of one rank, and the share of it that pack and unpack reach" : "");
    printf("%-24s %-8s %9s %9s %8s %8s %7s %7s %8s %8s %8s", "pages", "source", "page KiB", "put B", "put", "memcpy",
           "ratio", "cpu", "queue", "pack", "unpack");
    if (b->o.device == DEVICE_CUDA) printf(" %7s %6s %7s %6s", "D2H", "of it", "H2D", "of it");
    printf("\n");
}

/* a figure, or `none` where there is none */
static const char *figure(char text[16], int there, double v, const char *none)
{
    if (there) snprintf(text, 16, "%.3f", v);
    else snprintf(text, 16, "%s", none);
    return text;
}

void bench_transfer_case(const struct transfer_bench *b, int first)
{
    struct figures f = figures_of(b);
    const char *how = b->packed ? "packed" : "in place";
    char pack[16], cpu[16], d2h[16], h2d[16], p[16], u[16];
    int cuda = b->o.device == DEVICE_CUDA;
    if (b->o.json)
        printf(
            "%s\n {\"pages\": \"%s\", \"source\": \"%s\", \"page_bytes\": %lld, \"bytes\": %.0f, \"put_bytes\": %.1f, "
            "\"put_gbps\": %.4f, \"memcpy_gbps\": %.4f, \"ratio\": %.4f, \"cpu_ratio\": %s, \"queue_gbps\": %.4f, "
            "\"pack_gbps\": %s, \"unpack_gbps\": %.4f, \"d2h_gbps\": %s, \"h2d_gbps\": %s, \"pack_ratio\": %s, "
            "\"unpack_ratio\": %s}",
            first ? "" : ",", b->shape->name, how, (long long)b->page_bytes, f.bytes, f.put_bytes, f.put, f.copy,
            f.ratio, figure(cpu, !b->packed, f.cpu_ratio, "null"), f.queue, figure(pack, b->packed, f.pack, "null"),
            f.unpack, figure(d2h, cuda, f.d2h, "null"), figure(h2d, cuda, f.h2d, "null"), figure(p, cuda, f.pack_ratio, "null"),
            figure(u, cuda, f.unpack_ratio, "null"));
    else
        printf("%-24s %-8s %9.0f %9.0f %8.3f %8.3f %7.3f %7s %8.1f %8s %8.3f", b->shape->name, how,
               (double)b->page_bytes / 1024, f.put_bytes, f.put, f.copy, f.ratio,
               figure(cpu, !b->packed, f.cpu_ratio, "-"), f.queue, figure(pack, b->packed, f.pack, "-"), f.unpack);
    if (!b->o.json && cuda) printf(" %7.2f %6.3f %7.2f %6.3f", f.d2h, f.pack_ratio, f.h2d, f.unpack_ratio);
    if (!b->o.json) printf("\n");
    fflush(stdout);
}
