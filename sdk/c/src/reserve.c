/* Sending without a copy: the application writes where the daemon reads. */
#define _GNU_SOURCE
#include <errno.h>

#include "send.h"

struct reservation {
	struct rdsdi_op op;
	const rdsd_addr *to;
	size_t size;
	rdsd_slot *slot;
};

enum { SLOT_REGION, SLOT_OFFSET, SLOT_SIZE, SLOT_FLOW, SLOT_COOKIE };

static uint32_t cookie_of(const rdsd_slot *slot)
{
	return (uint32_t)(uintptr_t)slot->priv[SLOT_COOKIE];
}

/* hold_slot takes what a descriptor will need, so that commit cannot fail: 0 or BLOCKED. */
static int64_t hold_slot(struct reservation *r, struct rdsdi_flow *f)
{
	rdsd_socket *s = r->op.s;
	struct rdsdi_tx *tx = &s->tx;
	uint64_t need = r->size ? r->size : 1, at, size;
	uint32_t cookie;

	if (!rdsdi_ring_room(s))
		return rdsdi_send_blocked(&r->op, -EAGAIN, WAITS_SEND_ROOM);
	at = rdsdi_room_for(s, need, need, &size);
	if (at == ARENA_NONE)
		return rdsdi_send_blocked(&r->op, -EAGAIN, WAITS_EVENT);
	if (!rdsdi_desc_new(tx, &cookie)) {
		rdsdi_arena_free(&tx->arena, at, size);
		return rdsdi_send_blocked(&r->op, -EAGAIN, WAITS_EVENT);
	}
	*r->slot = (rdsd_slot){.data = rdsdi_slot_at(tx, at), .size = r->size};
	r->slot->priv[SLOT_REGION] = tx->reg;
	r->slot->priv[SLOT_OFFSET] = (void *)(uintptr_t)at;
	r->slot->priv[SLOT_SIZE] = (void *)(uintptr_t)size;
	r->slot->priv[SLOT_FLOW] = f;
	r->slot->priv[SLOT_COOKIE] = (void *)(uintptr_t)cookie;
	rdsdi_region_ref(tx->reg);
	f->refs++;
	tx->held++;
	tx->undecided++;
	tx->used += r->size;
	return 0;
}

static int64_t reserve_step(struct rdsdi_op *op)
{
	struct reservation *r = (struct reservation *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f;
	int64_t result;

	pthread_mutex_lock(&tx->mu);
	result = rdsdi_sendable(op);
	if (!result && r->size > tx->max_datagram)
		result = rdsdi_too_large(s, r->size);
	if (!result) {
		rdsdi_send_look(s);
		result = rdsdi_destination(op, r->to, &f);
	}
	if (!result && !rdsdi_allowed(s, r->size, 1) && (!rdsdi_events(s) || !rdsdi_allowed(s, r->size, 1)))
		result = rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT);
	if (!result)
		result = hold_slot(r, f);
	pthread_mutex_unlock(&tx->mu);
	return result;
}

int rdsd_reserve(rdsd_socket *s, const rdsd_addr *to, size_t size, rdsd_slot *slot, int64_t timeout)
{
	struct reservation r = {.op = {.step = reserve_step, .s = s}, .to = to, .size = size, .slot = slot};
	int err = rdsdi_usable(s);

	if (err)
		return err;
	rdsdi_check(s);
	return (int)rdsdi_explain(s, to, rdsdi_run(&r.op, timeout), timeout);
}

/* post_slot turns a reservation into a descriptor, which takes over its hold on the flow. */
static void post_slot(rdsd_socket *s, rdsd_slot *slot, size_t len, uint64_t *tag)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f = slot->priv[SLOT_FLOW];
	struct rdsdi_desc *d = rdsdi_desc_of(tx, cookie_of(slot));

	rdsdi_flow_close(tx, f);
	d->tag = tx->next_tag++;
	d->slot = (uintptr_t)slot->priv[SLOT_OFFSET];
	d->size = rdsdi_arena_shrink(&tx->arena, d->slot, (uintptr_t)slot->priv[SLOT_SIZE], len);
	d->len = d->body = (uint32_t)len;
	d->undecided = len;
	d->n = d->left = 1;
	d->flow = (uint32_t)(f - tx->flows);
	tx->held--;
	tx->used -= slot->size - len;
	rdsdi_ring_put(tx, WORD_MAKE(len, 1, KIND_SAME), d->tag, d->slot, f, cookie_of(slot), rdsdi_soon(s));
	rdsdi_publish(tx);
	if (tag)
		*tag = d->tag;
}

static void give_back(struct rdsdi_tx *tx, rdsd_slot *slot)
{
	struct rdsdi_flow *f = slot->priv[SLOT_FLOW];

	rdsdi_arena_free(&tx->arena, (uintptr_t)slot->priv[SLOT_OFFSET], (uintptr_t)slot->priv[SLOT_SIZE]);
	rdsdi_desc_free(tx, rdsdi_desc_of(tx, cookie_of(slot)));
	tx->used -= slot->size;
	tx->undecided--;
	tx->held--;
	f->refs--;
}

/* ended is why a slot is nothing any more, or 0, without a look at its socket, which may be closed. */
static int ended(const struct rdsdi_region *r)
{
	return r->process == rdsdi_process ? atomic_load(&r->ended) : -EBADF;
}

static int say_ended(const struct rdsdi_region *r, int err)
{
	if (r->process != rdsdi_process)
		return rdsdi_fail(err, "the slot belongs to the process that forked this one");
	return err == -EBADF || !r->why[0] ? rdsdi_errno(err) : rdsdi_fail(err, "%s", r->why);
}

int rdsd_commit(rdsd_socket *s, rdsd_slot *slot, size_t len, uint64_t *tag)
{
	struct rdsdi_region *r = slot->priv[SLOT_REGION];
	int err;

	if (!r)
		return rdsdi_fail(-EINVAL, "the slot was committed or given back before");
	err = ended(r);
	if (err) {
		say_ended(r, err);
	} else {
		pthread_mutex_lock(&s->tx.mu);
		err = rdsdi_over(s);
		if (!err && (s->tx.reg != r || load_relaxed(at32(r, W_CLOSED))))
			err = rdsdi_away(s);
		if (!err && len > slot->size)
			err = rdsdi_fail(-EMSGSIZE, "%zu bytes were reserved, not %zu", slot->size, len);
		if (!err)
			post_slot(s, slot, len, tag);
		else if (s->tx.reg == r)
			give_back(&s->tx, slot);
		pthread_mutex_unlock(&s->tx.mu);
		if (err)
			rdsdi_notify(s);
	}
	rdsdi_region_unref(r);
	memset(slot, 0, sizeof *slot);
	return err;
}

void rdsd_abort(rdsd_socket *s, rdsd_slot *slot)
{
	struct rdsdi_region *r = slot->priv[SLOT_REGION];

	if (!r)
		return;
	if (!ended(r)) {
		pthread_mutex_lock(&s->tx.mu);
		if (s->tx.reg == r)
			give_back(&s->tx, slot);
		pthread_mutex_unlock(&s->tx.mu);
		rdsdi_notify(s);
	}
	rdsdi_region_unref(r);
	memset(slot, 0, sizeof *slot);
}
