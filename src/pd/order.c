#include "pd/order.h"

#include "base/hash.h"

const char *const order_name[ORDER_N] = {"ADMIT", "CHUNK", "START", "FREE", "STOP"};

enum status order_next(struct order_log *l, const struct order *o)
{
    if (o->seq != l->applied + 1)
        return ERR(ST_E_INTERNAL, "order %lld (%s) arrived after order %lld: the log must be applied in sequence",
                   (long long)o->seq, o->kind >= 0 && o->kind < ORDER_N ? order_name[o->kind] : "?",
                   (long long)l->applied);
    l->applied = o->seq;
    l->hash = hash64(o, sizeof *o, l->hash);
    return ST_OK;
}
