/*
 * Events of the daemon: outcomes give slots and room in the send buffer back,
 * and are kept for rdsd_outcomes where the socket asked for them. They are taken
 * in when somebody needs what they bring: nobody has to wake up for them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof v);
	return v;
}

static rdsd_outcome *outcome_at(struct rdsdi_tx *tx, uint32_t i)
{
	return &tx->outcomes[(tx->outcome_head + i) & (tx->outcome_cap - 1)];
}

bool rdsdi_outcome_room(struct rdsdi_tx *tx)
{
	uint32_t cap = tx->outcome_cap ? 2 * tx->outcome_cap : 256;
	rdsd_outcome *bigger;

	if (tx->outcome_n < tx->outcome_cap)
		return true;
	bigger = malloc(cap * sizeof *bigger);
	if (!bigger)
		return false;
	for (uint32_t i = 0; i < tx->outcome_n; i++)
		bigger[i] = *outcome_at(tx, i);
	free(tx->outcomes);
	tx->outcomes = bigger;
	tx->outcome_cap = cap;
	tx->outcome_head = 0;
	return true;
}

void rdsdi_outcome_add(struct rdsdi_tx *tx, uint64_t tag, uint32_t n, uint8_t kind, uint8_t reason, uint16_t error)
{
	if (tx->outcome_n) {
		rdsd_outcome *last = outcome_at(tx, tx->outcome_n - 1);

		if (last->tag + last->count == tag && last->kind == kind && last->reason == reason && last->error == error &&
		    last->count <= UINT32_MAX - n) {
			last->count += n;
			return;
		}
	}
	if (rdsdi_outcome_room(tx)) /* room is kept ahead of events: see rdsdi_events */
		*outcome_at(tx, tx->outcome_n++) =
			(rdsd_outcome){.tag = tag, .count = n, .kind = kind, .reason = reason, .error = error};
}

/* body_bytes is what count datagrams from the at-th on take of the send buffer. */
static uint64_t body_bytes(const struct rdsdi_tx *tx, const struct rdsdi_desc *d, uint32_t at, uint32_t count)
{
	const uint8_t *table = tx->reg->base + tx->reg->send_arena + d->slot;
	uint64_t sum = 0;

	if (!d->table && !d->mixed)
		return (uint64_t)d->len * count;
	for (uint32_t i = at; i < at + count; i++) {
		/* Of mixed ones the first stands last. */
		const uint8_t *e = table + (d->mixed ? d->room - TABLE_ENTRY * (i + 1) : TABLE_ENTRY * i);

		sum += (uint32_t)e[0] << 24 | (uint32_t)e[1] << 16 | (uint32_t)e[2] << 8 | e[3];
	}
	return sum < d->undecided ? sum : d->undecided;
}

/* finish_desc frees the slot of a descriptor whose last event has come. */
static void finish_desc(struct rdsdi_tx *tx, struct rdsdi_desc *d, uint32_t cookie)
{
	struct rdsdi_flow *f = &tx->flows[d->flow];

	if (f->open == cookie) {
		rdsdi_mixed_learn(f, d);
		f->open = 0;
		tx->opens--;
	}
	if (f->refs)
		f->refs--;
	tx->used -= d->undecided;
	tx->undecided -= d->n;
	if (d->size)
		rdsdi_arena_free(&tx->arena, d->slot, d->size);
	rdsdi_desc_free(tx, d);
}

/* outcome takes in an event of kind outcome or refused; false when it makes no sense. */
static bool outcome(rdsd_socket *s, const uint8_t *e)
{
	struct rdsdi_tx *tx = &s->tx;
	uint32_t cookie = get32(e + EVENT_COOKIE), n = get32(e + EVENT_COUNT), at;
	struct rdsdi_desc *d = rdsdi_desc_of(tx, cookie);
	uint64_t tag = get64(e + EVENT_TAG), bytes;
	bool refused = e[EVENT_KIND] == EV_REFUSED, last = e[EVENT_FLAGS] & EV_LAST;
	uint8_t kind = refused ? RDSD_FAILED : e[EVENT_OUTCOME];

	if (!d)
		return cookie == NO_COOKIE;
	if (!n || tag < d->tag || tag - d->tag >= d->n || n > d->n - (tag - d->tag) || kind < RDSD_DELIVERED || kind > RDSD_UNKNOWN)
		return false;
	at = (uint32_t)(tag - d->tag);
	if (n > d->left || !rdsdi_desc_decide(d, at, n))
		return false;
	bytes = body_bytes(tx, d, at, n);
	d->left -= n;
	d->undecided -= bytes;
	tx->used -= bytes;
	if (s->flags & RDSD_OUTCOMES)
		rdsdi_outcome_add(tx, tag, n, kind, e[EVENT_REASON], refused ? (uint16_t)get32(e + EVENT_ERRNO) : 0);
	if (!last)
		return true;
	if (d->left)
		return false;
	finish_desc(tx, d, cookie);
	return true;
}

void rdsdi_change_note(struct rdsdi_tx *tx, const rdsd_addr *addr, bool congested)
{
	if (!tx->changes) /* nobody watches */
		return;
	for (uint32_t i = 0; i < tx->changes_n; i++)
		if (addr_equal(&tx->changes[i].addr, addr)) {
			memmove(&tx->changes[i], &tx->changes[i + 1], (tx->changes_n - i - 1) * sizeof *tx->changes);
			tx->changes_n--;
			break;
		}
	if (tx->changes_n == MAX_CHANGES) {
		memmove(tx->changes, tx->changes + 1, (MAX_CHANGES - 1) * sizeof *tx->changes);
		tx->changes_n--;
		tx->freed = UINT64_MAX;
	}
	tx->changes[tx->changes_n++] = (struct rdsdi_change){*addr, congested};
	tx->any_change = true;
}

void rdsdi_changes_lost(struct rdsdi_tx *tx)
{
	if (!tx->changes)
		return;
	tx->changes_n = 0;
	tx->freed = UINT64_MAX;
	tx->any_change = true;
}

static bool congestion(struct rdsdi_tx *tx, const uint8_t *e)
{
	rdsd_addr a = {.family = e[EVENT_FAMILY]};

	if (a.family != 4 && a.family != 6)
		return false;
	memcpy(a.ip, e + EVENT_IP, a.family == 4 ? 4 : 16);
	memcpy(&a.port, e + EVENT_PORT, 2);
	if (rdsdi_flow_changed(tx, &a, e[EVENT_FLAGS] & EV_CONGESTED))
		rdsdi_change_note(tx, &a, e[EVENT_FLAGS] & EV_CONGESTED);
	return true;
}

static bool event(rdsd_socket *s, const uint8_t *e)
{
	struct rdsdi_tx *tx = &s->tx;

	switch (e[EVENT_KIND]) {
	case EV_OUTCOME:
	case EV_REFUSED:
		return outcome(s, e);
	case EV_CONGESTION:
		return congestion(tx, e);
	case EV_FREED:
		if (tx->changes) {
			tx->freed |= get64(e + EVENT_TAG);
			tx->any_change = true;
		}
		return true;
	}
	return false;
}

/* take_events handles what is there; all: also beyond MAX_OUTCOMES. */
static bool take_events(rdsd_socket *s, bool all)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_region *r = tx->reg;
	uint64_t tail = load_acquire(at64(r, W_EVENT_TAIL)), from = tx->event_head;
	uint8_t e[EVENT_SIZE];

	if (tail == from)
		return false;
	if (tail - from > r->event_n || atomic_load_explicit(&s->fault, memory_order_relaxed)) {
		atomic_store(&s->fault, -EPROTO);
		return false;
	}
	while (tx->event_head != tail) {
		if (s->flags & RDSD_OUTCOMES && ((!all && rdsdi_outcomes_full(tx)) || !rdsdi_outcome_room(tx)))
			break;
		memcpy(e, r->base + r->event_ring + (tx->event_head & (r->event_n - 1)) * EVENT_SIZE, sizeof e);
		tx->event_head++;
		if (!event(s, e)) {
			atomic_store(&s->fault, -EPROTO);
			break;
		}
	}
	atomic_store(at64(r, W_EVENT_HEAD), tx->event_head);
	rdsdi_ring(r, tx->bell, DAEMON_WAITS_ROOM);
	return tx->event_head != from;
}

bool rdsdi_events(rdsd_socket *s)
{
	return s->tx.reg && take_events(s, false);
}

/* decide_rest gives what nobody will report any more its outcome. */
static void decide_rest(rdsd_socket *s, uint8_t why)
{
	struct rdsdi_tx *tx = &s->tx;

	for (uint32_t i = 0; i < tx->descs_n; i++) {
		struct rdsdi_desc *d = &tx->descs[i];

		if (!d->used)
			continue; /* a reserved one has no datagrams yet */
		for (uint32_t at = d->front; d->left && at < d->n; at++) {
			uint32_t n = 0;

			while (at + n < d->n && !rdsdi_desc_decided(d, at + n))
				n++;
			if (n && s->flags & RDSD_OUTCOMES)
				rdsdi_outcome_add(tx, d->tag + at, n, RDSD_UNKNOWN, why, 0);
			at += n;
		}
		rdsdi_desc_free(tx, d);
	}
}

static void free_tables(struct rdsdi_tx *tx)
{
	for (uint32_t i = 0; i < tx->descs_n; i++)
		if (tx->descs[i].used)
			free(tx->descs[i].map);
	free(tx->flows);
	free(tx->buckets);
	free(tx->descs);
	rdsdi_arena_destroy(&tx->arena);
	tx->flows = NULL;
	tx->buckets = NULL;
	tx->descs = NULL;
	tx->descs_n = tx->descs_cap = tx->desc_free = 0;
	tx->last = NULL;
	tx->opens = 0;
	tx->refused = 0;
}

int rdsdi_tx_start(rdsd_socket *s, struct rdsdi_link *l)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_region *r = l->reg;
	uint32_t buckets = 16;
	int err;

	while (buckets < r->flows)
		buckets *= 2;
	pthread_mutex_lock(&tx->mu);
	free_tables(tx);
	tx->flows = calloc(r->flows, sizeof *tx->flows);
	tx->buckets = calloc(buckets, sizeof *tx->buckets);
	err = rdsdi_arena_init(&tx->arena, r->send_arena_bytes);
	if (!tx->flows || !tx->buckets || err) {
		free_tables(tx);
		pthread_mutex_unlock(&tx->mu);
		return err ? err : -ENOMEM;
	}
	tx->bucket_mask = buckets - 1;
	tx->flow_hand = 0;
	tx->bell = l->bell_daemon;
	tx->tail = tx->published = tx->head = tx->event_head = 0;
	tx->used = tx->touched = 0;
	tx->undecided = tx->held = 0;
	tx->sndbuf = r->sndbuf;
	tx->max_datagram = r->sndbuf < r->max_datagram ? (uint32_t)r->sndbuf : r->max_datagram;
	rdsdi_region_ref(r);
	tx->reg = r;
	tx->life++;
	pthread_mutex_unlock(&tx->mu);
	return 0;
}

void rdsdi_tx_stop(rdsd_socket *s, uint8_t why)
{
	struct rdsdi_tx *tx = &s->tx;
	int over = atomic_load(&s->over);

	pthread_mutex_lock(&tx->mu);
	if (tx->reg) {
		if (!atomic_load(&s->fault))
			take_events(s, true);
		decide_rest(s, why);
		rdsdi_pairs_stop(tx);
		free_tables(tx);
		pthread_mutex_lock(&s->why_mu);
		memcpy(tx->reg->why, s->why, sizeof s->why);
		pthread_mutex_unlock(&s->why_mu);
		atomic_store(&tx->reg->ended, over ? over : -ESHUTDOWN);
		rdsdi_region_unref(tx->reg);
		tx->reg = NULL;
		tx->bell = -1;
	}
	pthread_mutex_unlock(&tx->mu);
}

void rdsdi_tx_destroy(struct rdsdi_tx *tx)
{
	rdsdi_pairs_stop(tx);
	free_tables(tx);
	if (tx->reg) /* in a forked child */
		rdsdi_region_unref(tx->reg);
	free(tx->outcomes);
	free(tx->changes);
}
