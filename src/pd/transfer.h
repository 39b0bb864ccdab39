/* transfer - moves a request's state from the prefill ranks' arenas into the decode ranks' staging slots.
 *
 * Windows (MPI_Win_allocate or _create, host memory, disp_unit 1, lock_all for the whole run): data = staging
 * slots on decode ranks; words = [slot][source index][component] lines on decode ranks; credit =
 * [decode tp rank][slot] words on prefill ranks. --transport sendrecv carries the same runs in messages and
 * keeps words and credits in local memory: an independent path. The transports are a table; what is sent,
 * counted and checked is shared code.
 *
 * A source sends only under a GRANT of the slot's current generation. A slot's generation only changes when
 * every expected word of the old one is DONE or QUIET. Every run is bounds-checked against both entries.
 *
 * With plan.share (--dedupe, after world_nodes) decode ranks of a node keep their slots in memory the node shares; one of
 * them receives MLA rows (draft K/V of the same heads) for all, and the others unpack them from its slot. A slot is then
 * granted to the sources anew when all who read it have unpacked or dropped it.
 * Never started in single mode. */
#ifndef PDFLASH_PD_TRANSFER_H
#define PDFLASH_PD_TRANSFER_H

#include "model/state.h"
#include "pd/handshake.h"
#include "pd/moves.h"
#include "pd/words.h"
#include "pd/world.h"
#include "plan/memory.h"

enum transport_kind { TRANSPORT_RMA, TRANSPORT_SENDRECV };
enum window_kind { WINDOW_ALLOCATE, WINDOW_CREATE };

struct transfer_options {
    enum transport_kind transport;
    enum window_kind window;
    int verify;              /* checksums, NaN pre-fill (0x7FC1 / NaN), scan at unpack */
    struct plan_options plan;
    int drop_component, drop_rank; /* --inject drop:COMP@RANK: that source never writes that word; -1, -1: off */
    int flip_component, flip_rank; /* --inject flip:COMP@RANK: that destination finds one bit turned, once; -1: off */
    double delay_s;                /* --inject delay:STAGE@MS: this source takes so long over every run; 0: off */
};

struct transfer_count { uint64_t bytes, puts, flushes, words, quiets; }; /* quiets: words that say QUIET */

struct transfer; /* opaque */

/* transfer_open - make plans and windows after the handshake passed. pools: this rank's state; on prefill what is sent, on
 * decode what slots will be unpacked to (NULL: slots are not pinned for it). What lies on a device goes through pinned
 * host memory, asynchronously; memory that cannot be pinned is said once and moves wait for it. Checks free space of
 * /dev/shm first and names needed and available bytes. `--window create` while the osc component is forced to sm is
 * refused (ST_E_CONFIG). Collective on w->xfer. */
enum status transfer_open(struct world *w, const struct config *c, const struct draft_config *d,
                          const struct transfer_options *opt, const struct state *pools, struct transfer **t_p);
/* transfer_close - free windows. Collective. */
void transfer_close(struct transfer *t);
/* transfer_shared - with --dedupe: bytes of the component this rank has read from slots of other ranks of its node. */
uint64_t transfer_shared(const struct transfer *t, enum comp comp);
/* transfer_progress - drive MPI, the transport and unpacking; cheap. Local. */
enum status transfer_progress(struct transfer *t);
/* transfer_record - the sources' packs and puts go to m from now on (NULL: nowhere). */
void transfer_record(struct transfer *t, struct moves *m);
int64_t transfer_window_bytes(const struct transfer *t);
/* transfer_pack_bytes - host memory of the ring of packed state; 0: nothing is packed here. */
int64_t transfer_pack_bytes(const struct transfer *t);
/* transfer_osc - the osc component as far as it can be known: what mpirun was told ("sm", ...), else "default"; "none"
 * with a transport that has no windows. */
const char *transfer_osc(enum transport_kind transport);
struct transfer_count transfer_counts(const struct transfer *t, enum comp comp);
/* transfer_plan_all_hash - hash over all pair plans of the run, for the descriptor; pure. */
enum status transfer_plan_all_hash(const struct config *c, const struct draft_config *d, const struct topology *topo,
                                   const struct plan_options *o, uint64_t *hash_p);

/* transfer_puts_issued - puts (or data messages) this process ever issued; 0 after a refused handshake. */
uint64_t transfer_puts_issued(void);

/* ---- source side (prefill ranks) ---- */
/* transfer_begin - the request has staging slot `slot` with this generation; its state is in source slot
 * `state_slot` and has n_pages pages. */
enum status transfer_begin(struct transfer *t, int slot, uint32_t generation, int request, int state_slot, int n_pages);
/* transfer_pages - logical pages [p0, p1) are final: queue them (MLA, draft) for every destination. */
enum status transfer_pages(struct transfer *t, int slot, int p0, int p1);
/* transfer_final - all pages are queued and KDA, conv are final: queue them; aux NULL except on the last stage.
 * After it every expected component ends with a DONE word. */
enum status transfer_final(struct transfer *t, int slot, const struct layout_aux *aux);
/* transfer_fail - this source gives up on the slot: FAIL word on every component to every destination that is not yet
 * complete, after a flush, so FAIL also says that nothing is outstanding. */
enum status transfer_fail(struct transfer *t, int slot);
/* transfer_abort - the request was aborted: nothing queued is put any more; what was put is flushed, and QUIET on every
 * component to every destination that is not yet complete says that nothing is outstanding and nothing will start. A slot
 * with nothing to send any more is legal. An ABORT credit of a destination does the same towards that destination alone,
 * before this rank has come to the order. */
enum status transfer_abort(struct transfer *t, int slot);
/* transfer_sending - 1 while something of the slot is queued, unsettled or unsaid. Local. */
int transfer_sending(const struct transfer *t, int slot);
/* transfer_push - issue queued runs to destinations that granted; settle (flush, words) what was issued by an
 * earlier call, or at once when settle_now. Runs on a device are packed behind the operations that had been given when
 * they were queued, and put by a later call; this one does not wait, and may be called while the backend does
 * (ops.idle). *idle_p: 1 when nothing is queued, packed or unsettled. Local. */
enum status transfer_push(struct transfer *t, int settle_now, int *idle_p);

/* ---- destination side (decode ranks) ---- */
/* transfer_grant - slot free, its words zeroed, pre-filled when verifying; expects a prompt of n_pages pages. */
enum status transfer_grant(struct transfer *t, int slot, uint32_t generation, int request, int n_pages);
/* transfer_ready - *ready_p: 1 every expected word of every source is DONE with the planned byte count, 0 not yet,
 * -1 a source reported FAIL. A DONE with a wrong count is ST_E_FAULT. */
enum status transfer_ready(struct transfer *t, int slot, int *ready_p);
/* transfer_quiet - *quiet_p: 1 when no source writes to the slot any more (free, or every expected word is DONE, FAIL or
 * QUIET), so that it may be granted again. transfer_grant refuses other slots (ST_E_INTERNAL). */
enum status transfer_quiet(struct transfer *t, int slot, int *quiet_p);
/* transfer_seen - changes whenever a word of a granted slot does: progress that is not yet the end of anything. */
uint64_t transfer_seen(const struct transfer *t);
/* transfer_blame - after ready said -1: the world rank of the first source that reports FAIL. */
int transfer_blame(const struct transfer *t, int slot);
/* transfer_stop - tell all sources of the granted slot to start no put any more (ABORT); transfer_quiet follows. */
enum status transfer_stop(struct transfer *t, int slot);
/* transfer_drop - the slot is free again without having been unpacked; ST_E_PROTOCOL while a source is not quiet. */
enum status transfer_drop(struct transfer *t, int slot);
/* transfer_free_slots - slots of this rank that hold nothing: granted (decode), being sent (prefill). */
int transfer_free_slots(const struct transfer *t);
/* transfer_unpack - copy the slot into the pools of `state_slot`, check aux (request, generation, state position)
 * and, when verifying, checksums and NaN scan (ST_E_FAULT naming entry and page). Operations given afterwards see the
 * state; the host does not wait for it. The slot may be granted at once; its sources hear of that when it was read. */
enum status transfer_unpack(struct transfer *t, int slot, struct state *s, int state_slot, struct layout_aux *aux_p);
struct transfer_request { uint64_t bytes[COMP_N], puts[COMP_N], checksum[COMP_N]; double seconds[COMP_N];
                          double first_s, done_s; };
/* transfer_request_stats - what this rank received for the slot's current request; valid between ready and the next grant. */
void transfer_request_stats(const struct transfer *t, int slot, struct transfer_request *r);
/* transfer_table - print (request, slot, source, component, expected, seen) of every unfinished slot to stderr. */
void transfer_table(const struct transfer *t);

#endif
