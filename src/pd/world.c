#include "pd/world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "pd/wait.h"

enum status mpi_check(int rc, const char *call)
{
    if (rc == MPI_SUCCESS) return ST_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (MPI_Error_string(rc, text, &n) != MPI_SUCCESS) snprintf(text, sizeof text, "error code %d", rc);
    return ERR(ST_E_MPI, "%s: %s", call, text);
}

/* ---- start --------------------------------------------------------------------------------------------- */

/* Tasks the launcher announced to this process. mpirun's own word decides; a Slurm variable alone may only say how
 * large the allocation is, and then starting without mpirun is the very mistake. */
static int announced_tasks(const char **name_p)
{
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        const char *v = getenv(name[i]);
        if (!v || !*v) continue;
        *name_p = name[i];
        return atoi(v);
    }
    return 0;
}

/* what was typed after mpirun, as far as it fits */
static const char *typed(void)
{
    static char text[512];
    FILE *f = fopen("/proc/self/cmdline", "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    for (size_t i = 0; i + 1 < n; i++)
        if (text[i] == 0) text[i] = ' ';
    text[n] = 0;
    return n ? text : "pdflash ...";
}

static enum status check_launch(int size)
{
    const char *name = NULL;
    int n = announced_tasks(&name);
    if (size > 1 || n <= 1) return ST_OK;
    /* a batch script has the variables of its allocation, not of a step: there --single may run beside mpirun */
    if (strcmp(name, "SLURM_NTASKS") == 0 && strstr(typed(), " --single")) return ST_OK;
    return ERR(ST_E_LAUNCH,
               "%s is %d but this process is alone (MPI world size 1): the launcher does not speak to this MPI; start with "
               "`mpirun -n %d %s` inside the allocation, or add --single for one rank",
               name, n, n, typed());
}

static enum status make_dup(MPI_Comm from, const char *name, MPI_Comm *c_p)
{
    TRY(mpi_check(MPI_Comm_dup(from, c_p), "MPI_Comm_dup"));
    TRY(mpi_check(MPI_Comm_set_errhandler(*c_p, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    return mpi_check(MPI_Comm_set_name(*c_p, name), "MPI_Comm_set_name");
}

static enum status make_split(MPI_Comm from, int color, int key, const char *name, MPI_Comm *c_p)
{
    TRY(mpi_check(MPI_Comm_split(from, color, key, c_p), "MPI_Comm_split"));
    if (*c_p == MPI_COMM_NULL) return ST_OK;
    TRY(mpi_check(MPI_Comm_set_errhandler(*c_p, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    return mpi_check(MPI_Comm_set_name(*c_p, name), "MPI_Comm_set_name");
}

static enum status make_node(struct world *w)
{
    TRY(mpi_check(MPI_Comm_split_type(w->all, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &w->node),
                  "MPI_Comm_split_type"));
    TRY(mpi_check(MPI_Comm_set_errhandler(w->node, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    TRY(mpi_check(MPI_Comm_set_name(w->node, "pdflash node"), "MPI_Comm_set_name"));
    TRY(mpi_check(MPI_Comm_rank(w->node, &w->node_rank), "MPI_Comm_rank"));
    return mpi_check(MPI_Comm_size(w->node, &w->node_size), "MPI_Comm_size");
}

/* Time zero is one moment on all ranks: leaving a barrier can differ by a scheduling turn, and clocks of hosts by
 * anything. Each rank asks rank 0 for its clock a few times; the quickest answer gives the offset, with an error of half
 * its round trip. */
static enum status sync_clocks(struct world *w)
{
    enum { ASKS = 4 };
    double zero = 0, offset = 0, best = 1e9;
    for (int r = 1; r < w->size; r++)
        for (int i = 0; i < ASKS; i++) {
            double clock = 0, asked = MPI_Wtime();
            if (w->rank == 0) {
                TRY(mpi_check(MPI_Recv(NULL, 0, MPI_BYTE, r, 0, w->all, MPI_STATUS_IGNORE), "MPI_Recv"));
                clock = MPI_Wtime();
                TRY(mpi_check(MPI_Send(&clock, 1, MPI_DOUBLE, r, 0, w->all), "MPI_Send"));
            } else if (w->rank == r) {
                TRY(mpi_check(MPI_Send(NULL, 0, MPI_BYTE, 0, 0, w->all), "MPI_Send"));
                TRY(mpi_check(MPI_Recv(&clock, 1, MPI_DOUBLE, 0, 0, w->all, MPI_STATUS_IGNORE), "MPI_Recv"));
                double now = MPI_Wtime();
                if (now - asked >= best) continue;
                best = now - asked;
                offset = clock - (now + asked) / 2;
            }
        }
    zero = MPI_Wtime();
    TRY(mpi_check(MPI_Bcast(&zero, 1, MPI_DOUBLE, 0, w->all), "MPI_Bcast"));
    w->t0 = zero - offset;
    return ST_OK;
}

static enum status start(struct world *w)
{
    TRY(make_dup(MPI_COMM_WORLD, "pdflash all", &w->all));
    TRY(mpi_check(MPI_Comm_rank(w->all, &w->rank), "MPI_Comm_rank"));
    TRY(mpi_check(MPI_Comm_size(w->all, &w->size), "MPI_Comm_size"));
    TRY(check_launch(w->size));
    TRY(make_dup(w->all, "pdflash ctrl", &w->ctrl));
    TRY(make_dup(w->all, "pdflash xfer", &w->xfer));
    TRY(make_node(w));
    return sync_clocks(w);
}

enum status world_start(int *argc, char ***argv, struct world *w)
{
    struct world x = {.all = MPI_COMM_NULL, .ctrl = MPI_COMM_NULL, .xfer = MPI_COMM_NULL, .node = MPI_COMM_NULL,
                      .share = MPI_COMM_NULL, .tp = MPI_COMM_NULL, .pp = MPI_COMM_NULL};
    int running = 0;
    TRY(mpi_check(MPI_Initialized(&running), "MPI_Initialized"));
    if (!running) {
        TRY(mpi_check(MPI_Init(argc, argv), "MPI_Init"));
        x.started = 1;
    }
    enum status st = start(&x);
    if (st != ST_OK) {
        world_stop(&x);
        return st;
    }
    *w = x;
    return ST_OK;
}

enum status world_split(struct world *w, const struct topology *t)
{
    if (w->size != t->n_ranks) {
        char text[96];
        topology_text(t, text, sizeof text);
        return ERR(ST_E_LAUNCH, "topology %s needs %d ranks, MPI started %d; use `mpirun -n %d %s`", text, t->n_ranks,
                   w->size, t->n_ranks, typed());
    }
    w->topo = *t;
    w->role = topology_role(t, w->rank);
    int decode = w->role.role == ROLE_DECODE;
    int stage = decode ? t->prefill.pp : w->role.stage; /* a number of its own for the decode group */
    TRY(make_split(w->all, stage, w->role.tp_rank, "pdflash tp", &w->tp));
    return make_split(w->all, decode ? MPI_UNDEFINED : w->role.tp_rank, w->role.stage, "pdflash pp", &w->pp);
}

enum status world_nodes(struct world *w, int node_size)
{
    int decode = w->role.role == ROLE_DECODE, part = node_size > 0 ? w->role.tp_rank / node_size : 0, mine = w->role.tp_rank;
    TRY(make_split(w->node, decode ? part : MPI_UNDEFINED, w->role.tp_rank, "pdflash share", &w->share));
    if (decode) TRY(mpi_check(MPI_Bcast(&mine, 1, MPI_INT, 0, w->share), "MPI_Bcast")); /* a node is its lowest tp rank */
    int *all = mem_alloc((size_t)w->size, sizeof *all, "nodes of all ranks");
    w->node_of = mem_alloc((size_t)w->topo.n_decode, sizeof *w->node_of, "nodes of decode ranks");
    enum status st = world_agree(w, all && w->node_of ? ST_OK : ST_E_NOMEM);
    if (st == ST_OK) st = mpi_check(MPI_Allgather(&mine, 1, MPI_INT, all, 1, MPI_INT, w->all), "MPI_Allgather");
    for (int q = 0; q < w->topo.n_decode && st == ST_OK; q++) w->node_of[q] = all[topology_decode_rank(&w->topo, q)];
    mem_free(all);
    return st;
}

/* ---- agreement ------------------------------------------------------------------------------------------- */

/* The buffers of a collective outlive a function that gives up on it (watchdog), so they are not on the stack. */
enum status world_agree(struct world *w, enum status st)
{
    static int mine, worst;
    MPI_Request r;
    mine = err_exit_code(st) * (ST_N + 1) + (int)st;
    worst = 0;
    TRY(mpi_check(MPI_Iallreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, w->all, &r), "MPI_Iallreduce"));
    TRY(wait_all(&r, 1, NULL, NULL));
    return (enum status)(worst % (ST_N + 1));
}

enum status world_check_equal(struct world *w, uint64_t hash, const char *what, enum status st_if_not)
{
    static uint64_t mine;
    MPI_Request r;
    uint64_t *all = mem_alloc((size_t)w->size, sizeof *all, "hashes of all ranks");
    if (!all) return ST_E_NOMEM;
    mine = hash;
    enum status st = mpi_check(MPI_Iallgather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, w->all, &r), "MPI_Iallgather");
    if (st == ST_OK) st = wait_all(&r, 1, NULL, NULL);
    if (st != ST_OK) return st; /* all stays: MPI may still write to it */
    for (int i = 1; i < w->size && st == ST_OK; i++)
        if (all[i] != all[0])
            st = ERR(st_if_not,
                     "%s differs: rank 0 has %016" PRIx64 ", rank %d has %016" PRIx64 "; give every rank the same", what,
                     all[0], i, all[i]);
    mem_free(all);
    return st;
}

double world_now(const struct world *w)
{
    return MPI_Wtime() - w->t0;
}

/* ---- stop -------------------------------------------------------------------------------------------------- */

static void drop(MPI_Comm *c)
{
    if (*c && *c != MPI_COMM_NULL) MPI_Comm_free(c); /* a cleared struct is legal */
}

void world_stop(struct world *w)
{
    if (!w) return;
    int running = 0, over = 0;
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    if (!running || over) return;
    wait_stop();
    drop(&w->share);
    mem_free(w->node_of);
    w->node_of = NULL;
    drop(&w->pp);
    drop(&w->tp);
    drop(&w->node);
    drop(&w->xfer);
    drop(&w->ctrl);
    drop(&w->all);
    if (w->started) MPI_Finalize();
    w->started = 0;
}

void world_abort(struct world *w, int code)
{
    MPI_Comm c = w && w->all && w->all != MPI_COMM_NULL ? w->all : MPI_COMM_WORLD;
    MPI_Abort(c, code);
    exit(code); /* MPI_Abort does not come back; the compiler and a broken launcher may not know */
}
