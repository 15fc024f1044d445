/*
 * Batches: stretches to one destination become trains, with a table of lengths
 * where they differ. What has no room waits for a later pass; a destination
 * that has none is skipped for the rest of the pass, so that its order holds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>

#include "send.h"

#define PENDING 1                   /* rdsd_dgram.error: not decided yet */
#define OPENING (UINT64_C(1) << 63) /* rdsdi_flow.skip: the daemon is being asked */
#define WORDS 256                   /* bytes of batch.words */

struct batch {
	struct rdsdi_op op;
	rdsd_dgram *d;
	size_t n, first; /* all before first are decided */
	uint64_t pass;
	bool nowait;
	size_t refused; /* the first one that was; n: none */
	char *words;    /* why */
};

/* refuse decides a datagram whose error has just got its words. */
static void refuse(struct batch *b, size_t i, int error)
{
	b->d[i].error = error;
	if (i < b->refused) {
		b->refused = i;
		snprintf(b->words, WORDS, "%s", rdsd_errmsg());
	}
}

static bool stretch_ends(const rdsd_dgram *first, const rdsd_dgram *d)
{
	return d->error != PENDING || !addr_equal(&d->to, &first->to);
}

/* same_length counts datagrams from d on that have one length and destination. */
static size_t same_length(const rdsd_dgram *d, size_t n)
{
	size_t k = 1, most = TRAIN_DATAGRAMS;

	if (d->len)
		most = d->len > TRAIN_BYTES ? 1 : TRAIN_BYTES / d->len;
	if (most > TRAIN_DATAGRAMS)
		most = TRAIN_DATAGRAMS;
	while (k < n && k < most && d[k].len == d->len && !stretch_ends(d, &d[k]))
		k++;
	return k;
}

/* mixed counts datagrams from d on that fit into a train with a table; *bytes is its body. */
static size_t mixed(const rdsd_socket *s, const rdsd_dgram *d, size_t n, uint32_t *bytes)
{
	uint64_t used = s->tx.used;
	uint32_t body = 0;
	size_t k = 0;

	if (n > MAX_UNDECIDED - s->tx.undecided)
		n = MAX_UNDECIDED - s->tx.undecided;
	while (k < n && k < TRAIN_DATAGRAMS && used < s->tx.sndbuf && !stretch_ends(d, &d[k]) &&
	       d[k].len <= s->tx.max_datagram && body + 4 + d[k].len <= TRAIN_BYTES) {
		body += 4 + (uint32_t)d[k].len;
		used += d[k].len;
		k++;
	}
	*bytes = body;
	return k;
}

/* fill_table copies n datagrams behind each other, and their lengths into the table in front of them. */
static void fill_table(struct rdsdi_tx *tx, const rdsd_dgram *dgrams, uint32_t n, const struct rdsdi_desc *d)
{
	uint8_t *to = rdsdi_slot_at(tx, d->slot) + d->room;
	uint8_t *table = d->mixed ? to : to + TABLE_ENTRY * n;

	if (!d->mixed)
		to = table;
	for (uint32_t i = 0; i < n; i++) {
		rdsdi_put_length(table, d->mixed ? i : n - 1 - i, (uint32_t)dgrams[i].len);
		to = rdsdi_send_copy(to, dgrams[i].data, dgrams[i].len);
	}
}

/* post_table posts n datagrams of different lengths as one descriptor, all or none; body is the bytes of them and their table. */
static uint32_t post_table(struct rdsdi_op *op, struct rdsdi_flow *f, rdsd_dgram *dgrams, uint32_t n, uint32_t body, uint64_t *tag)
{
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	bool mixed = tx->reg->takes & TAKES_MIXED;
	uint32_t payload = body - TABLE_ENTRY * n, least = (TABLE_ENTRY * n + 63) / 64 * 64, room = 0, tags = n, cookie;
	uint64_t size, slot, want = body, need = body;
	struct rdsdi_desc *d;

	if (!rdsdi_ring_room(s)) {
		rdsdi_send_blocked(op, -EAGAIN, WAITS_SEND_ROOM);
		return 0;
	}
	if (mixed) {
		want = payload > f->hint ? payload : f->hint;
		room = rdsdi_table_for(tx, f, want);
		if (room < least)
			room = least;
		want += room;
		need = (uint64_t)least + payload;
	}
	slot = rdsdi_room_for(s, want, need, &size);
	d = slot == ARENA_NONE ? NULL : rdsdi_desc_new(tx, &cookie);
	if (!d) {
		if (slot != ARENA_NONE)
			rdsdi_arena_free(&tx->arena, slot, size);
		rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT);
		return 0;
	}
	rdsdi_flow_close(tx, f);
	if (mixed) {
		if (size < want)
			room = least;
		if (room / TABLE_ENTRY > n)
			tags = room / TABLE_ENTRY < TRAIN_DATAGRAMS ? room / TABLE_ENTRY : TRAIN_DATAGRAMS;
	}
	d->tag = *tag = tx->next_tag;
	tx->next_tag += tags; /* those it does not come to have are left out */
	d->slot = slot;
	d->size = size;
	d->room = room;
	d->table = !mixed;
	d->mixed = mixed;
	d->n = d->left = n;
	d->body = mixed ? payload : body;
	d->undecided = payload;
	d->flow = (uint32_t)(f - tx->flows);
	f->refs++;
	fill_table(tx, dgrams, n, d);
	if (mixed) {
		f->open = cookie;
		f->open_max = tags;
		f->open_entry = tx->tail;
		f->open_word = WORD_MAKE(payload, n, KIND_MIXED);
		tx->opens++;
	}
	rdsdi_ring_put(tx, mixed ? f->open_word : WORD_MAKE(body, n, KIND_TABLE), d->tag, slot + room, f, cookie, rdsdi_soon(s));
	tx->used += d->undecided;
	tx->undecided += n;
	return n;
}

static void accepted(rdsd_dgram *d, size_t n, uint64_t tag)
{
	for (size_t i = 0; i < n; i++) {
		d[i].error = 0;
		d[i].tag = tag + i;
	}
}

/* post_stretch posts some datagrams from b->d[i] on, to one destination: how many, 0 with op->why set. */
static size_t post_stretch(struct batch *b, struct rdsdi_flow *f, size_t i, bool *again)
{
	rdsd_dgram *d = &b->d[i];
	struct rdsdi_op *op = &b->op;
	size_t same = same_length(d, b->n - i), k;
	uint32_t body;
	uint64_t tag;

	k = rdsdi_pair_put(op, f, &(struct rdsdi_source){.dgrams = d, .len = d->len}, 0, same, &tag, false, again);
	if (k || *again) {
		accepted(d, k, tag);
		return k;
	}
	if (same < 64 && i + same < b->n && !stretch_ends(d, d + same)) {
		k = rdsdi_allowed(op->s, 0, 1) ? mixed(op->s, d, b->n - i, &body) : 0;
		if (k > same) {
			struct rdsdi_source src = {.dgrams = d, .mixed = true};
			uint32_t done = rdsdi_grow_mixed(op->s, f, &src, 0, (uint32_t)k, &tag);

			if (!done)
				done = post_table(op, f, d, (uint32_t)k, body, &tag);
			accepted(d, done, tag);
			return done;
		}
	}
	k = rdsdi_post_same(op, f, &(struct rdsdi_source){.dgrams = d, .len = d->len}, 0, same, &tag, false);
	accepted(d, k, tag);
	return k;
}

/* pass posts what may go now of what is not decided; false: another one has to begin. */
static bool pass(struct batch *b)
{
	struct rdsdi_op *op = &b->op;
	rdsd_socket *s = op->s;
	uint32_t bits = 0;
	bool full = false, patient = false;
	bool again = false;
	int why = 0;

	for (size_t i = b->first, n; i < b->n; i += n) {
		rdsd_dgram *d = &b->d[i];
		struct rdsdi_flow *f = NULL;
		int64_t result;

		n = 1;
		if (d->error != PENDING)
			continue;
		if (d->len > s->tx.max_datagram) {
			refuse(b, i, rdsdi_too_large(s, d->len));
			continue;
		}
		f = s->tx.last;
		if (!f || !addr_equal(&f->to, &d->to))
			f = rdsdi_flow_find(&s->tx, &d->to);
		if (f && f->skip == (b->pass | OPENING))
			continue;
		if (full || (f && f->skip == b->pass)) {
			if (b->nowait) { /* the first one had the words */
				d->error = full ? -EAGAIN : -ENOBUFS;
				rdsdi_jam_tried(&s->tx, f, d->error);
			}
			continue;
		}
		op->patient = false;
		result = rdsdi_destination(op, &d->to, &f);
		if (result != BLOCKED && result) {
			refuse(b, i, (int)result);
			continue;
		}
		if (!result) {
			n = post_stretch(b, f, i, &again);
			if (again)
				return false;
			if (n)
				continue;
			rdsdi_publish(&s->tx);
			if (rdsdi_events(s)) /* that may have made room */
				continue;
			n = 1;
		}
		why = op->why;
		bits |= op->bits;
		patient |= op->patient;
		f = rdsdi_flow_find(&s->tx, &d->to);
		if (f)
			f->skip = op->patient ? b->pass | OPENING : b->pass;
		if (op->patient)
			continue;
		full = !f || why == -EAGAIN;
		if (b->nowait) {
			refuse(b, i, rdsdi_because(why, rdsdi_cause(op)));
			rdsdi_jam_tried(&s->tx, f, why);
		}
	}
	op->why = why;
	op->bits = bits;
	op->patient = patient;
	while (b->first < b->n && b->d[b->first].error != PENDING)
		b->first++;
	return true;
}

static int64_t batch_step(struct rdsdi_op *op)
{
	struct batch *b = (struct batch *)op;
	struct rdsdi_tx *tx = &op->s->tx;
	int64_t result;
	bool whole;

	pthread_mutex_lock(&tx->mu);
	for (;;) {
		result = rdsdi_sendable(op);
		if (result)
			break;
		rdsdi_send_look(op->s);
		b->pass = ++tx->passes;
		rdsdi_flow_keep_refused(tx, true);
		tx->pinned = b->nowait ? b->pass : 0;
		whole = pass(b);
		tx->pinned = 0;
		rdsdi_flow_keep_refused(tx, false);
		if (!whole)
			continue;
		if (b->first < b->n)
			result = BLOCKED;
		break;
	}
	if (tx->reg)
		rdsdi_publish(tx);
	pthread_mutex_unlock(&tx->mu);
	return result;
}

ssize_t rdsd_send_batch(rdsd_socket *s, rdsd_dgram *dgrams, size_t n, int *error, int64_t timeout)
{
	char words[WORDS];
	struct batch b = {.op = {.step = batch_step, .s = s, .waits = timeout != RDSD_NOWAIT},
			  .d = dgrams,
			  .n = n,
			  .nowait = timeout == RDSD_NOWAIT,
			  .refused = n,
			  .words = words};
	int64_t result;
	int first = 0;
	size_t accepted = 0, pending = 0;

	for (size_t i = 0; i < n; i++) {
		dgrams[i].error = PENDING;
		if (dgrams[i].len && !dgrams[i].data)
			refuse(&b, i, rdsdi_no_data(dgrams[i].len));
		else
			pending++;
	}
	result = rdsdi_usable(s);
	if (!result && pending) {
		rdsdi_check(s);
		result = rdsdi_run(&b.op, timeout);
	}
	for (size_t i = 0; i < n; i++) {
		if (dgrams[i].error == PENDING)
			dgrams[i].error = (int32_t)result;
		if (!dgrams[i].error) {
			accepted++;
		} else if (!first) {
			first = dgrams[i].error;
			if (i != b.refused)
				continue;
			rdsdi_fail(first, "%s", words);
			if (dgrams[i].data || !dgrams[i].len)
				(void)rdsdi_explain(s, &dgrams[i].to, first, timeout);
		}
	}
	if (error)
		*error = first;
	return accepted || !first ? (ssize_t)accepted : first;
}
