/*
 * The two ends of a pair: what is put into one, and what is taken out
 * (pair.c has the notes).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "send.h"

#define PATIENCE_FULL INT64_C(200000) /* ns; how long a send that may wait looks for room: the daemon is slower than a reader that reads */

static _Atomic uint64_t *word64(const struct rdsdi_pair *p, unsigned off)
{
	return (_Atomic uint64_t *)(void *)(p->words + off);
}

static _Atomic uint32_t *word32(const struct rdsdi_pair *p, unsigned off)
{
	return (_Atomic uint32_t *)(void *)(p->words + off);
}

static void shut(struct rdsdi_pair *p)
{
	atomic_fetch_or(word64(p, PAIR_TAIL), PAIR_CLOSED);
}

/* Records */

static uint64_t record(uint64_t body)
{
	return 8 + ((body + 7) & ~UINT64_C(7));
}

/* padding is what has to be left out at a position so that a record of size bytes does not pass the end of the ring. */
static uint64_t padding(const struct rdsdi_pair *p, uint64_t at, uint64_t size)
{
	uint64_t rest = p->bytes - (at & (p->bytes - 1));

	return rest < size ? rest : 0;
}

static void store(struct rdsdi_pair *p, uint64_t at, uint64_t v)
{
	store_relaxed((_Atomic uint64_t *)(void *)(p->data + (at & (p->bytes - 1))), v);
}

static void pad(struct rdsdi_pair *p, uint64_t at, uint64_t n)
{
	if (n)
		store(p, at, WORD_MAKE(n - 8, 0, PAIR_PAD));
}

/* Sending, with tx.mu held */

static bool has_room(struct rdsdi_pair *p, uint64_t want)
{
	uint64_t head;

	if (p->bytes - (p->tail - p->head) >= want)
		return true;
	/* The reader's word: a value that cannot be is as if nothing had been read. */
	head = load_acquire(word64(p, PAIR_HEAD));
	if (head - p->head <= p->tail - p->head)
		p->head = head;
	return p->bytes - (p->tail - p->head) >= want;
}

static size_t most(const struct rdsdi_pair *p)
{
	return p->bytes / 2 - 8 - PAIR_MARK_BYTES; /* two of them fit */
}

/* begin takes room for a record with a body of n bytes, which nobody sees before put. NULL: there is none. */
static uint8_t *begin(struct rdsdi_pair *p, uint32_t n)
{
	uint64_t mark = load_acquire(word64(p, PAIR_MARK)) + 1, mark_at = p->tail, at = p->tail, pads[2] = {0, 0}, body;

	if (mark != p->marked) {
		pads[0] = padding(p, at, PAIR_MARK_BYTES);
		mark_at += pads[0];
		at = mark_at + PAIR_MARK_BYTES;
	}
	pads[1] = padding(p, at, record(n));
	body = at + pads[1];
	if (!has_room(p, body + record(n) - p->tail))
		return NULL;
	pad(p, p->tail, pads[0]);
	if (mark != p->marked) {
		store(p, mark_at, WORD_MAKE(8, 1, PAIR_MARK_KIND));
		store(p, mark_at + 8, mark - 1);
	}
	pad(p, at, pads[1]);
	p->next_tail = body + record(n);
	p->mark = mark;
	return p->data + (body & (p->bytes - 1)) + 8;
}

static void figures(struct rdsdi_pair *p, unsigned off, uint64_t n, uint64_t bytes)
{
	p->count += n;
	p->sum += bytes;
	store_relaxed(word64(p, off), p->count);
	store_relaxed(word64(p, off + PAIR_WORD_APART), p->sum);
}

/* put shows the record that was begun: false, the pair is closed, and it has to go another way. */
static bool put(struct rdsdi_pair *p, uint32_t bytes, uint32_t n)
{
	uint64_t was = p->tail;

	store(p, p->next_tail - record(bytes), WORD_MAKE(bytes, n, PAIR_DATAGRAMS));
	figures(p, PAIR_SENT, n, bytes); /* first: whoever sees the record finds it counted */
	if (!atomic_compare_exchange_strong(word64(p, PAIR_TAIL), &was, p->next_tail)) {
		p->over = true;
		figures(p, PAIR_SENT, 0 - (uint64_t)n, 0 - (uint64_t)bytes);
		return false;
	}
	p->tail = p->next_tail;
	p->marked = p->mark;
	return true;
}

/* awaken tells the daemon when the reader has to be rung. */
static void awaken(struct rdsdi_tx *tx, struct rdsdi_pair *p)
{
	_Atomic uint32_t *sleeps = word32(p, PAIR_SLEEPS);

	if (!atomic_load(sleeps) || !atomic_exchange(sleeps, 0))
		return;
	atomic_store(word32(p, PAIR_NUDGE), 1);
	atomic_fetch_add(at64(tx->reg, W_NUDGES), 1);
	rdsdi_ring(tx->reg, tx->bell, DAEMON_WAITS_SEND);
}

/* await_room looks for a quarter of the pair to be free, for a moment. tx.mu is let go of meanwhile. */
static void await_room(struct rdsdi_tx *tx, struct rdsdi_pair *p)
{
	int64_t until = rdsdi_now() + PATIENCE_FULL;

	atomic_fetch_add(&p->refs, 1);
	pthread_mutex_unlock(&tx->mu);
	do {
		uint64_t head = atomic_load(word64(p, PAIR_HEAD)), tail = atomic_load(word64(p, PAIR_TAIL));

		if (tail & PAIR_CLOSED || tail - head <= p->bytes - p->bytes / 4)
			break;
		sched_yield();
	} while (rdsdi_now() < until);
	pthread_mutex_lock(&tx->mu);
	rdsdi_pair_unref(p);
}

/* usable finds the pair that datagrams of len bytes to f may go by now; NULL: they go by the daemon. */
static struct rdsdi_pair *usable(rdsd_socket *s, const struct rdsdi_flow *f, size_t len)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_pair *p = tx->pairs;

	while (p && !addr_equal(&p->peer, &f->to))
		p = p->next;
	if (!p || p->over || len > most(p))
		return NULL;
	/* Which would be read first is not known for what the daemon has not placed yet: the mark is that of the last it has. */
	if (f->refs)
		rdsdi_events(s);
	if (f->refs)
		return NULL;
	/* Once without room it is left alone until a quarter is free, so that few changes of the way are made. */
	if (p->full && has_room(p, p->bytes / 4))
		p->full = false;
	return p->full ? NULL : p;
}

uint32_t rdsdi_pair_put(struct rdsdi_op *op, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, size_t n,
			uint64_t *tag, bool tag_given, bool *again)
{
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	bool outcomes = s->flags & RDSD_OUTCOMES;
	size_t max = TRAIN_DATAGRAMS, len = src->len;
	struct rdsdi_pair *p;
	uint8_t *body;

	*again = false;
	if (!tx->pairs)
		return 0;
	p = usable(s, f, len);
	if (!p || (outcomes && (rdsdi_outcomes_full(tx) || !rdsdi_outcome_room(tx))))
		return 0;
	if (len) {
		max = (most(p) < TRAIN_BYTES ? most(p) : TRAIN_BYTES) / len;
		max = max < 1 ? 1 : max < TRAIN_DATAGRAMS ? max : TRAIN_DATAGRAMS;
	}
	if (n > max)
		n = max;
	body = begin(p, (uint32_t)(n * len));
	if (!body) {
		if (op->waits && !op->looked) {
			op->looked = *again = true;
			await_room(tx, p);
		} else {
			p->full = true;
		}
		return 0;
	}
	rdsdi_copy_same(body, src, from, n);
	if (!put(p, (uint32_t)(n * len), (uint32_t)n))
		return 0;
	op->looked = false;
	awaken(tx, p);
	if (!tag_given) {
		*tag = tx->next_tag;
		tx->next_tag += n;
	}
	if (outcomes) { /* delivered is: placed where the receiver can read it */
		rdsdi_outcome_add(tx, *tag, (uint32_t)n, RDSD_DELIVERED, 0, 0);
		rdsdi_notify(s);
	}
	return (uint32_t)n;
}

void rdsdi_pairs_stop(struct rdsdi_tx *tx)
{
	while (tx->pairs) {
		struct rdsdi_pair *p = tx->pairs;

		tx->pairs = p->next;
		if (p->process == rdsdi_process)
			shut(p); /* what was put is still read */
		rdsdi_pair_unref(p);
	}
}

/* Receiving, with rx.mu held */

struct found {
	const uint8_t *body;
	uint32_t bytes, n;
};

/* spoil gives up a pair whose sender wrote what no sender writes. What was left in it was the sender's own. */
static bool spoil(struct rdsdi_pair *p)
{
	p->over = true;
	p->tail = p->head;
	shut(p);
	return false;
}

/* look reads the tail: whether there is more than was known. */
static bool look(struct rdsdi_pair *p)
{
	uint64_t tail;

	p->raw = load_acquire(word64(p, PAIR_TAIL));
	tail = p->raw & ~PAIR_CLOSED;
	if (tail - p->head > p->bytes || tail & 7)
		return spoil(p);
	p->tail = tail;
	return tail != p->head;
}

/* peek finds the next datagrams, if their turn has come: so many descriptors were taken from the receive ring. */
static bool peek(struct rdsdi_pair *p, uint64_t taken, struct found *f)
{
	/* Before a record with datagrams stand at most padding, a mark and padding. */
	for (int between = 0; !p->over && between <= 3; between++) {
		uint64_t off = p->head & (p->bytes - 1), word, size;
		uint32_t n, count;

		if (p->head == p->tail && !look(p))
			return false;
		word = load_relaxed((_Atomic uint64_t *)(void *)(p->data + off));
		n = WORD_BYTES(word);
		count = WORD_COUNT(word);
		size = record(n);
		/* Within what is shown and within the ring: nothing else is touched. */
		if (size > p->tail - p->head || size > p->bytes - off)
			return spoil(p);
		switch (WORD_KIND(word)) {
		case PAIR_PAD:
			p->head += size;
			continue;
		case PAIR_MARK_KIND:
			if (n != 8)
				return spoil(p);
			p->mark = load_relaxed((_Atomic uint64_t *)(void *)(p->data + off + 8));
			p->head += size;
			continue;
		case PAIR_DATAGRAMS:
			if (!count || count > TRAIN_DATAGRAMS || n % count || n > RDSD_MAX_DATAGRAM)
				return spoil(p);
			if (p->mark > taken)
				return false;
			*f = (struct found){p->data + off + 8, n, count};
			return true;
		}
		return spoil(p);
	}
	return p->over ? false : spoil(p);
}

/* take copies what was found to memory of this process, where it stays as it is, and gives its room back. */
static struct rdsdi_lease *take(struct rdsdi_region *r, struct rdsdi_pair *p, const struct found *f)
{
	struct rdsdi_lease *l = malloc(sizeof *l + f->bytes);

	if (!l)
		return NULL;
	*l = (struct rdsdi_lease){.reg = r, .own = true, .bytes = f->bytes};
	atomic_init(&l->refs, f->n);
	if (f->bytes)
		memcpy(l + 1, f->body, f->bytes);
	rdsdi_region_ref(r);
	atomic_fetch_add_explicit(&r->kept, f->bytes, memory_order_relaxed);
	p->head += record(f->bytes);
	figures(p, PAIR_READ, f->n, f->bytes);
	store_release(word64(p, PAIR_HEAD), p->head);
	return l;
}

void rdsdi_lease_own_drop(struct rdsdi_lease *l)
{
	struct rdsdi_region *r = l->reg;

	atomic_fetch_sub_explicit(&r->kept, l->bytes, memory_order_relaxed);
	free(l);
	rdsdi_region_unref(r);
}

/* from_pair makes a record the current descriptor: 1, -ENOBUFS, -ENOMEM. */
static int from_pair(struct rdsdi_rx *rx, struct rdsdi_pair *p, const struct found *f, bool lends)
{
	struct rdsdi_region *r = rx->reg;

	if (lends && load_relaxed(&r->kept) >= MAX_KEPT)
		return rdsdi_fail(-ENOBUFS, "%u bytes that were received are unreleased: release some", MAX_KEPT);
	rx->lease = take(r, p, f);
	if (!rx->lease)
		return rdsdi_errno(-ENOMEM);
	rx->data = (const uint8_t *)(rx->lease + 1);
	rx->table = NULL;
	rx->left = f->n;
	rx->len = f->bytes / f->n;
	rx->bytes = f->bytes;
	rx->from = p->peer;
	return 1;
}

int rdsdi_pair_next(struct rdsdi_rx *rx, uint64_t taken, bool lends)
{
	struct rdsdi_region *r = rx->reg;
	struct found f;
	unsigned from, i;

	if (!r->pairs_n)
		return 0;
	from = rx->pair_turn % r->pairs_n; /* behind the last one, so that none waits for the others */
	for (i = 0; i < r->pairs_n; i++) {
		unsigned at = (from + i) % r->pairs_n;

		if (!peek(r->pairs[at], taken, &f))
			continue;
		rx->pair_turn = at + 1;
		return from_pair(rx, r->pairs[at], &f, lends);
	}
	return 0;
}

int rdsdi_pair_before(struct rdsdi_rx *rx, const rdsd_addr *from, bool lends)
{
	struct rdsdi_region *r = rx->reg;
	struct found f;

	for (unsigned i = 0; i < r->pairs_n; i++)
		if (addr_equal(&r->pairs[i]->peer, from) && peek(r->pairs[i], rx->head, &f))
			return from_pair(rx, r->pairs[i], &f, lends);
	return 0;
}

bool rdsdi_pairs_ready(struct rdsdi_region *r, uint64_t taken)
{
	struct found f;

	for (unsigned i = 0; i < r->pairs_n; i++)
		if (peek(r->pairs[i], taken, &f))
			return true;
	return false;
}

void rdsdi_pairs_shut(struct rdsdi_region *r)
{
	for (unsigned i = 0; i < r->pairs_n; i++)
		shut(r->pairs[i]);
}

void rdsdi_pairs_free(struct rdsdi_region *r)
{
	while (r->pairs_n)
		rdsdi_pair_unref(r->pairs[--r->pairs_n]);
}

void rdsdi_pairs_sleep(struct rdsdi_region *r, bool on)
{
	for (unsigned i = 0; i < r->pairs_n; i++)
		atomic_store(word32(r->pairs[i], PAIR_SLEEPS), on);
}

bool rdsdi_pair_read_out(struct rdsdi_pair *p, uint64_t placed)
{
	struct found f;

	/* The daemon has closed it: behind a mark beyond what it has placed stands nothing of an honest sender's, and no turn would come. */
	if (!peek(p, placed, &f) && p->head != p->tail)
		spoil(p);
	return p->over || (p->raw & PAIR_CLOSED && p->head == p->tail);
}
