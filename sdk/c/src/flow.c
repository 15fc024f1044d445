/*
 * Flows: the destinations of a socket. The first use of one asks the daemon and
 * waits for its verdict, so that a destination that cannot be sent to is an
 * error of the call. Later uses look at one word.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "internal.h"

static uint32_t hash(const rdsd_addr *a)
{
	uint64_t x[2];
	uint32_t p;

	memcpy(x, a->ip, 16);
	memcpy(&p, (const uint8_t *)a + 16, 4);
	x[0] = (x[0] ^ p) * UINT64_C(0x9e3779b97f4a7c15);
	x[0] = (x[0] ^ x[0] >> 29 ^ x[1]) * UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(x[0] >> 32);
}

int rdsdi_addr_plain(const rdsd_addr *to, rdsd_addr *out)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, none[16];
	bool four = to && to->family == 4;

	if (!to)
		return -EDESTADDRREQ;
	*out = (rdsd_addr){.port = to->port, .family = to->family};
	if (to->family == 6 && !memcmp(to->ip, mapped, sizeof mapped)) {
		out->family = 4;
		memcpy(out->ip, to->ip + 12, 4);
	} else {
		memcpy(out->ip, to->ip, four ? 4 : 16);
	}
	if ((to->family != 4 && to->family != 6) || !memcmp(out->ip, none, sizeof none))
		return -EDESTADDRREQ;
	return 0;
}

static struct rdsdi_flow *find(struct rdsdi_tx *tx, const rdsd_addr *to)
{
	uint32_t i = tx->buckets[hash(to) & tx->bucket_mask];

	while (i && !addr_equal(&tx->flows[i - 1].to, to))
		i = tx->flows[i - 1].next;
	return i ? &tx->flows[i - 1] : NULL;
}

struct rdsdi_flow *rdsdi_flow_find(struct rdsdi_tx *tx, const rdsd_addr *to)
{
	struct rdsdi_flow *f = find(tx, to);
	rdsd_addr form;

	return f || rdsdi_addr_plain(to, &form) ? f : find(tx, &form);
}

/*
 * Refusals. A flow that is congested refuses sends by the word that the daemon
 * keeps up to date, without asking the daemon. The daemon reports congestion from
 * the moment it has heard of the watch, which may be after the flow has become
 * clear again. So a refusal is remembered here, and its end is found in the same
 * word: whoever was refused and watches hears of it, whatever came first.
 */

void rdsdi_flow_refused(struct rdsdi_tx *tx, struct rdsdi_flow *f)
{
	f->told = false;
	if (f->refused)
		return;
	f->refused = true;
	f->refused_next = tx->refused;
	tx->refused = (uint32_t)(f - tx->flows) + 1;
}

/* accepted takes a flow off the list of refused ones. */
static void accepted(struct rdsdi_tx *tx, struct rdsdi_flow *f)
{
	uint32_t *p = &tx->refused, index = (uint32_t)(f - tx->flows) + 1;

	if (!f->refused)
		return;
	while (*p != index)
		p = &tx->flows[*p - 1].refused_next;
	*p = f->refused_next;
	f->refused = false;
}

bool rdsdi_flow_cleared(struct rdsdi_tx *tx)
{
	uint32_t *p = &tx->refused;
	int error;

	if (!tx->reg)
		return false;
	while (*p) {
		struct rdsdi_flow *f = &tx->flows[*p - 1];

		if (rdsdi_flow_state(tx, f, &error) == STATE_CONGESTED) {
			p = &f->refused_next;
			continue;
		}
		*p = f->refused_next;
		f->refused = false;
		f->told = true;
		rdsdi_change_note(tx, &f->to, false);
	}
	return tx->refused;
}

bool rdsdi_flow_changed(struct rdsdi_tx *tx, const rdsd_addr *to, bool congested)
{
	struct rdsdi_flow *f = find(tx, to);
	bool known = f && f->told && !congested;

	if (!f)
		return true;
	f->told = false;
	if (!congested)
		accepted(tx, f);
	return !known;
}

static void forget(struct rdsdi_tx *tx, struct rdsdi_flow *f)
{
	uint32_t index = (uint32_t)(f - tx->flows) + 1;
	uint32_t *p = &tx->buckets[hash(&f->to) & tx->bucket_mask];

	if (f->refused) { /* nobody looks at its state any more: whoever was refused is to try again */
		accepted(tx, f);
		rdsdi_change_note(tx, &f->to, false);
	}
	while (*p != index)
		p = &tx->flows[*p - 1].next;
	*p = f->next;
	f->used = false;
	if (tx->last == f)
		tx->last = NULL;
}

/* spare finds an entry that nothing undecided was sent by and nobody asks about. */
static struct rdsdi_flow *spare(struct rdsdi_tx *tx)
{
	int error;

	for (uint32_t i = 0; i < tx->reg->flows; i++) {
		struct rdsdi_flow *f = &tx->flows[tx->flow_hand];

		tx->flow_hand = (tx->flow_hand + 1) % tx->reg->flows;
		if (f->used && (f->refs || (tx->pinned && f->skip == tx->pinned) || rdsdi_flow_state(tx, f, &error) == STATE_NEW))
			continue;
		if (f->used)
			forget(tx, f);
		return f;
	}
	return NULL;
}

/* open_flow fills an entry in and asks the daemon to look at it. */
static int open_flow(rdsd_socket *s, const rdsd_addr *to)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f;
	uint32_t *bucket;
	uint8_t *entry;

	if (!rdsdi_ring_room(s))
		return -EAGAIN;
	rdsdi_events(s);
	f = spare(tx);
	if (!f)
		return -EAGAIN;
	*f = (struct rdsdi_flow){.to = *to, .used = true, .generation = f->generation ? f->generation + 2 : 1};
	bucket = &tx->buckets[hash(to) & tx->bucket_mask];
	f->next = *bucket;
	*bucket = (uint32_t)(f - tx->flows) + 1;
	entry = tx->reg->base + tx->reg->flow_table + (uint64_t)(f - tx->flows) * FLOW_SIZE;
	memset(entry, 0, FLOW_GENERATION);
	memset(entry + FLOW_REFUSED, 0, FLOW_SIZE - FLOW_REFUSED);
	memcpy(entry + FLOW_IP, to->ip, sizeof to->ip);
	memcpy(entry + FLOW_PORT, &to->port, sizeof to->port);
	entry[FLOW_FAMILY] = to->family;
	store_release((_Atomic uint32_t *)(void *)(entry + FLOW_GENERATION), f->generation);
	rdsdi_ring_put(tx, WORD_MAKE(0, 0, KIND_OPEN), 0, 0, f, NO_COOKIE, 0);
	rdsdi_publish(tx);
	return -EINPROGRESS;
}

uint32_t rdsdi_flow_state(const struct rdsdi_tx *tx, const struct rdsdi_flow *f, int *error)
{
	uint64_t w = load_acquire(at64(tx->reg, tx->reg->flow_states + (uint64_t)(f - tx->flows) * 8));

	if (STATE_GENERATION(w) != f->generation)
		return STATE_NEW;
	*error = STATE_ERRNO(w) ? -(int)STATE_ERRNO(w) : -EIO;
	return STATE_STATE(w);
}

int rdsdi_flow_get(rdsd_socket *s, const rdsd_addr *to, struct rdsdi_flow **flow)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f = tx->last;
	int error = 0;

	if (!to)
		return -EDESTADDRREQ;
	if (!f || !addr_equal(&f->to, to)) {
		f = rdsdi_flow_find(tx, to);
		if (!f) {
			rdsd_addr form;

			error = rdsdi_addr_plain(to, &form);
			return error ? error : open_flow(s, &form);
		}
	}
	switch (rdsdi_flow_state(tx, f, &error)) {
	case STATE_NEW:
		return -EINPROGRESS;
	case STATE_REFUSED:
		if (tx->keeps)
			tx->kept = true; /* what follows in the batch has the same answer */
		else if (!f->refs)
			forget(tx, f); /* the next call asks again */
		return error;
	}
	tx->last = f;
	*flow = f;
	return 0;
}

void rdsdi_flow_keep_refused(struct rdsdi_tx *tx, bool on)
{
	bool kept = tx->kept;
	int error;

	tx->keeps = on;
	tx->kept = false;
	for (uint32_t i = 0; kept && tx->reg && i < tx->reg->flows; i++) {
		struct rdsdi_flow *f = &tx->flows[i];

		if (f->used && !f->refs && rdsdi_flow_state(tx, f, &error) == STATE_REFUSED)
			forget(tx, f);
	}
}

void rdsdi_flow_close(struct rdsdi_tx *tx, struct rdsdi_flow *f)
{
	struct rdsdi_desc *d;

	if (!f->open)
		return;
	d = rdsdi_desc_of(tx, f->open);
	f->open = 0;
	tx->opens--;
	if (!d)
		return;
	rdsdi_mixed_learn(f, d);
	if (d->size)
		d->size = rdsdi_arena_shrink(&tx->arena, d->slot, d->size, d->room + d->body);
}

void rdsdi_flow_close_all(struct rdsdi_tx *tx)
{
	for (uint32_t i = 0; tx->opens && i < tx->reg->flows; i++)
		rdsdi_flow_close(tx, &tx->flows[i]);
}
