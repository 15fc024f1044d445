/*
 * Sending. Every call is a step (wait.c) that posts what may go now.
 *
 * Design notes. A descriptor costs far more than a datagram, so datagrams of
 * one call to one destination share descriptors (trains), and single sends are
 * appended to the last descriptor of their flow while the daemon has not
 * claimed it. Such a descriptor takes a larger slot and a block of tags ahead;
 * how large is learnt: fourfold when one was full before it was claimed, half
 * when it was claimed nearly empty. What it does not use of its slot is given
 * back when the next one of the flow is posted, or when memory is short.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

#define PENDING 1               /* rdsd_dgram.error: not decided yet */
#define OPENING (UINT64_C(1) << 63) /* rdsdi_flow.skip: the daemon is being asked */
#define COPY_PIECE (128u << 10) /* larger copies leave the cache and are slower */

/* Where payloads come from: an array of datagrams, or one behind the other. */
struct source {
	const rdsd_dgram *dgrams;
	const uint8_t *data;
	size_t len; /* of each, when they have one length */
};

static uint8_t *copy(uint8_t *to, const void *from, size_t n)
{
	const uint8_t *p = from;

	while (n) {
		size_t piece = n < COPY_PIECE ? n : COPY_PIECE;

		memcpy(to, p, piece);
		to += piece;
		p += piece;
		n -= piece;
	}
	return to;
}

static void copy_same(uint8_t *to, const struct source *src, size_t from, size_t n)
{
	if (!src->dgrams) {
		copy(to, src->data + from * src->len, n * src->len);
		return;
	}
	for (size_t i = from; i < from + n; i++)
		to = copy(to, src->dgrams[i].data, src->len);
}

/* sendable says whether anything can be posted now; with tx.mu held. 0, BLOCKED or an error. */
static int64_t sendable(struct rdsdi_op *op)
{
	rdsd_socket *s = op->s;
	int over = rdsdi_over(s);

	op->patient = false;
	if (over)
		return over;
	if (!s->tx.reg || atomic_load_explicit(&s->fault, memory_order_relaxed) ||
	    load_relaxed(at32(s->tx.reg, W_CLOSED))) {
		op->why = -ESHUTDOWN;
		op->bits = 0;
		return BLOCKED;
	}
	return 0;
}

static int64_t blocked(struct rdsdi_op *op, int why, uint32_t bits)
{
	op->why = why;
	op->bits = bits;
	return BLOCKED;
}

/* destination finds the flow and whether it takes datagrams: 0, BLOCKED or an error. */
static int64_t destination(struct rdsdi_op *op, const rdsd_addr *to, struct rdsdi_flow **flow)
{
	struct rdsdi_tx *tx = &op->s->tx;
	int err = rdsdi_flow_get(op->s, to, flow), ignored;

	switch (err) {
	case 0:
		break;
	case -EINPROGRESS:
		op->patient = true;
		return blocked(op, -EAGAIN, WAITS_FLOW);
	case -EAGAIN:
		return blocked(op, -EAGAIN, WAITS_EVENT | WAITS_SEND_ROOM);
	default:
		return rdsdi_errno(err);
	}
	if (rdsdi_flow_state(tx, *flow, &ignored) == STATE_CONGESTED)
		return blocked(op, -ENOBUFS, WAITS_FLOW);
	return 0;
}

static int too_large(const rdsd_socket *s, size_t len)
{
	return rdsdi_fail(-EMSGSIZE, "%zu bytes: a datagram of this socket has at most %u", len, s->tx.max_datagram);
}

/* look takes events in when there is a use for it. */
static void look(rdsd_socket *s)
{
	struct rdsdi_tx *tx = &s->tx;

	if (tx->used >= tx->sndbuf / 2 || (++tx->lazy & 63) == 0)
		rdsdi_events(s);
}

/* allowed is how many of n datagrams of len bytes the send buffer takes. */
static uint32_t allowed(const rdsd_socket *s, size_t len, size_t n)
{
	const struct rdsdi_tx *tx = &s->tx;
	uint64_t room;

	if (tx->used >= tx->sndbuf || (s->flags & RDSD_OUTCOMES && rdsdi_outcomes_full(tx)))
		return 0;
	if (n > TRAIN_DATAGRAMS)
		n = TRAIN_DATAGRAMS;
	if (n > MAX_UNDECIDED - tx->undecided)
		n = MAX_UNDECIDED - tx->undecided;
	if (!len)
		return (uint32_t)n;
	room = (tx->sndbuf - tx->used + len - 1) / len; /* the last one may pass it */
	return room < n ? (uint32_t)room : (uint32_t)n;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint8_t *slot_at(const struct rdsdi_tx *tx, uint64_t slot)
{
	return tx->reg->base + tx->reg->send_arena + slot;
}

/* grow appends up to n datagrams to the flow's last descriptor and returns how many; *tag is the first one's. */
static uint32_t grow(rdsd_socket *s, struct rdsdi_flow *f, const struct source *src, size_t from, uint32_t n, uint64_t *tag)
{
	struct rdsdi_tx *tx = &s->tx;
	uint32_t len = (uint32_t)src->len, room, bytes;
	struct rdsdi_desc *d;
	uint64_t word;

	if (!f->open || f->open_len != len || tx->tail - f->open_entry > tx->reg->send_n)
		return 0;
	d = rdsdi_desc_of(tx, f->open);
	room = f->open_max - d->n;
	if (!room) {
		/* Full before it was claimed: there is a use for more room. */
		if (!(load_relaxed(rdsdi_ring_word(tx, f->open_entry)) & WORD_CLAIMED) && d->size < TRAIN_BYTES && len <= TRAIN_BYTES / 2)
			f->hint = lesser((uint32_t)(d->size < 256 ? 1024 : 4 * d->size), TRAIN_BYTES);
		return 0;
	}
	n = lesser(n, room);
	bytes = d->body + n * len;
	copy_same(slot_at(tx, d->slot) + d->body, src, from, n);
	word = WORD_MAKE(bytes, d->n + n, KIND_SAME);
	if (!atomic_compare_exchange_strong(rdsdi_ring_word(tx, f->open_entry), &f->open_word, word)) {
		if (d->body < d->size / 4)
			f->hint = (uint32_t)d->size / 2;
		rdsdi_flow_close(tx, f);
		return 0;
	}
	*tag = d->tag + d->n;
	f->open_word = word;
	d->n += n;
	d->left += n;
	d->body = bytes;
	d->undecided += (uint64_t)n * len;
	tx->used += (uint64_t)n * len;
	tx->undecided += n;
	rdsdi_ring(tx->reg, tx->bell, DAEMON_WAITS_SEND);
	return n;
}

/* room_for finds a slot of want bytes, or of at least need. ARENA_NONE: there is none. */
static uint64_t room_for(rdsd_socket *s, uint64_t want, uint64_t need, uint64_t *size)
{
	struct rdsdi_tx *tx = &s->tx;
	uint64_t slot = rdsdi_arena_alloc(&tx->arena, want);

	*size = rdsdi_arena_size(want);
	if (slot != ARENA_NONE)
		return slot;
	rdsdi_flow_close_all(tx);
	rdsdi_events(s);
	*size = rdsdi_arena_size(need);
	return rdsdi_arena_alloc(&tx->arena, need);
}

static uint32_t soon(const rdsd_socket *s)
{
	return s->flags & RDSD_OUTCOMES || s->tx.used >= s->tx.sndbuf / 2 ? SEND_SOON : 0;
}

/* post_new puts up to n datagrams of one length into a descriptor of their own. */
static uint32_t post_new(struct rdsdi_op *op, struct rdsdi_flow *f, const struct source *src, size_t from, uint32_t n,
			 uint64_t *tag, bool tag_given)
{
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	uint32_t len = (uint32_t)src->len, max = TRAIN_DATAGRAMS, cookie;
	uint64_t slot = 0, size = 0, want, word;
	struct rdsdi_desc *d;

	if (!rdsdi_ring_room(s)) {
		blocked(op, -EAGAIN, WAITS_SEND_ROOM);
		return 0;
	}
	if (len)
		max = len > TRAIN_BYTES ? 1 : lesser(TRAIN_BYTES / len, TRAIN_DATAGRAMS);
	n = lesser(n, max);
	while (len) {
		want = (uint64_t)n * len;
		slot = room_for(s, want < f->hint && max > 1 && !tag_given ? f->hint : want, want, &size);
		if (slot != ARENA_NONE)
			break;
		if (n == 1) {
			blocked(op, -EAGAIN, WAITS_EVENT);
			return 0;
		}
		n /= 2;
	}
	d = rdsdi_desc_new(tx, &cookie);
	if (!d) {
		if (size)
			rdsdi_arena_free(&tx->arena, slot, size);
		blocked(op, -EAGAIN, WAITS_EVENT);
		return 0;
	}
	copy_same(slot_at(tx, slot), src, from, n);
	rdsdi_flow_close(tx, f);
	if (len && size / len < max)
		max = (uint32_t)(size / len);
	if (tag_given)
		max = n;
	else {
		*tag = tx->next_tag;
		tx->next_tag += max; /* those it does not come to have are left out */
	}
	d->tag = *tag;
	d->slot = slot;
	d->size = size;
	d->len = len;
	d->n = d->left = n;
	d->body = n * len;
	d->undecided = d->body;
	d->flow = (uint32_t)(f - tx->flows);
	f->refs++;
	word = WORD_MAKE(d->body, n, KIND_SAME);
	rdsdi_ring_put(tx, word, *tag, slot, f, cookie, soon(s));
	tx->used += d->body;
	tx->undecided += n;
	if (!tag_given) {
		f->open = cookie;
		f->open_len = len;
		f->open_max = max;
		f->open_entry = tx->tail - 1;
		f->open_word = word;
		tx->opens++;
	}
	return n;
}

/* post_same posts up to n datagrams of one length: how many; fewer than n with op->why set. */
static uint32_t post_same(struct rdsdi_op *op, struct rdsdi_flow *f, const struct source *src, size_t from, size_t n,
			  uint64_t *tag, bool tag_given)
{
	uint32_t may = allowed(op->s, src->len, n), done;

	if (!may) {
		blocked(op, -EAGAIN, WAITS_EVENT);
		return 0;
	}
	if (!tag_given) {
		done = grow(op->s, f, src, from, may, tag);
		if (done)
			return done;
	}
	return post_new(op, f, src, from, may, tag, tag_given);
}

/* Single datagrams and runs */

struct run {
	struct rdsdi_op op;
	const rdsd_addr *to;
	struct source src;
	size_t n, done;
	uint64_t tag;
	bool tag_given; /* tags count up from tag: no appending */
};

static int64_t run_step(struct rdsdi_op *op)
{
	struct run *r = (struct run *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f;
	int64_t result;

	pthread_mutex_lock(&tx->mu);
	result = sendable(op);
	if (!result && r->src.len > tx->max_datagram)
		result = too_large(s, r->src.len);
	if (!result) {
		look(s);
		result = destination(op, r->to, &f);
	}
	if (!result && r->tag_given && !r->tag) {
		r->tag = tx->next_tag;
		tx->next_tag += r->n;
	}
	while (!result && r->done < r->n) {
		uint64_t tag = r->tag + r->done;
		uint32_t n = post_same(op, f, &r->src, r->done, r->n - r->done, &tag, r->tag_given);

		if (n && !r->tag_given)
			r->tag = tag;
		r->done += n;
		if (!n) {
			rdsdi_publish(tx);
			if (!rdsdi_events(s))
				result = BLOCKED;
		}
	}
	if (tx->reg)
		rdsdi_publish(tx);
	pthread_mutex_unlock(&tx->mu);
	return result;
}

static int send_one(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag, int64_t timeout)
{
	struct run r = {.op = {.step = run_step, .s = s}, .to = to, .src = {.data = data, .len = len}, .n = 1};
	int64_t result = rdsdi_usable(s);

	if (result)
		return (int)result;
	rdsdi_check(s);
	result = rdsdi_run(&r.op, timeout);
	if (!result && tag)
		*tag = r.tag;
	return (int)result;
}

int rdsd_send(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag, int64_t timeout)
{
	return send_one(s, to, data, len, tag, timeout);
}

int rdsd_try_send(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag)
{
	return send_one(s, to, data, len, tag, RDSD_NOWAIT);
}

ssize_t rdsd_send_run(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, size_t count, uint64_t *tag,
		      int64_t timeout)
{
	struct run r = {.op = {.step = run_step, .s = s},
			.to = to,
			.src = {.data = data, .len = len},
			.n = count,
			.tag_given = tag != NULL};
	int64_t result = rdsdi_usable(s);

	if (result)
		return result;
	if (!count)
		return 0;
	rdsdi_check(s);
	result = rdsdi_run(&r.op, timeout);
	if (tag)
		*tag = r.tag;
	return r.done ? (ssize_t)r.done : result;
}

/* Batches */

struct batch {
	struct rdsdi_op op;
	rdsd_dgram *d;
	size_t n, first; /* all before first are decided */
	uint64_t pass;
	bool nowait;
};

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

/* post_table posts n datagrams of different lengths as one descriptor, all or none. */
static uint32_t post_table(struct rdsdi_op *op, struct rdsdi_flow *f, rdsd_dgram *dgrams, uint32_t n, uint32_t body)
{
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	uint64_t size, slot;
	struct rdsdi_desc *d;
	uint8_t *table, *to;
	uint32_t cookie;

	if (!rdsdi_ring_room(s)) {
		blocked(op, -EAGAIN, WAITS_SEND_ROOM);
		return 0;
	}
	slot = room_for(s, body, body, &size);
	d = slot == ARENA_NONE ? NULL : rdsdi_desc_new(tx, &cookie);
	if (!d) {
		if (slot != ARENA_NONE)
			rdsdi_arena_free(&tx->arena, slot, size);
		blocked(op, -EAGAIN, WAITS_EVENT);
		return 0;
	}
	rdsdi_flow_close(tx, f);
	table = slot_at(tx, slot);
	to = table + 4 * n;
	for (uint32_t i = 0; i < n; i++, table += 4) {
		uint32_t len = (uint32_t)dgrams[i].len;

		table[0] = (uint8_t)(len >> 24);
		table[1] = (uint8_t)(len >> 16);
		table[2] = (uint8_t)(len >> 8);
		table[3] = (uint8_t)len;
		to = copy(to, dgrams[i].data, len);
		dgrams[i].tag = tx->next_tag + i;
		dgrams[i].error = 0;
	}
	d->tag = tx->next_tag;
	tx->next_tag += n;
	d->slot = slot;
	d->size = size;
	d->table = true;
	d->n = d->left = n;
	d->body = body;
	d->undecided = body - 4 * n;
	d->flow = (uint32_t)(f - tx->flows);
	f->refs++;
	rdsdi_ring_put(tx, WORD_MAKE(body, n, KIND_TABLE), d->tag, slot, f, cookie, soon(s));
	tx->used += d->undecided;
	tx->undecided += n;
	return n;
}

/* post_stretch posts some datagrams from b->d[i] on, to one destination: how many, 0 with op->why set. */
static size_t post_stretch(struct batch *b, struct rdsdi_flow *f, size_t i)
{
	rdsd_dgram *d = &b->d[i];
	struct rdsdi_op *op = &b->op;
	size_t same = same_length(d, b->n - i), k;
	uint32_t body;
	uint64_t tag;

	if (same < 64 && i + same < b->n && !stretch_ends(d, d + same)) {
		k = allowed(op->s, 0, 1) ? mixed(op->s, d, b->n - i, &body) : 0;
		if (k > same)
			return post_table(op, f, d, (uint32_t)k, body);
	}
	k = post_same(op, f, &(struct source){.dgrams = d, .len = d->len}, 0, same, &tag, false);
	for (size_t j = 0; j < k; j++) {
		d[j].error = 0;
		d[j].tag = tag + j;
	}
	return k;
}

/* pass posts what may go now of what is not decided. */
static void pass(struct batch *b)
{
	struct rdsdi_op *op = &b->op;
	rdsd_socket *s = op->s;
	uint32_t bits = 0;
	bool full = false, patient = false;
	int why = 0;

	for (size_t i = b->first, n; i < b->n; i += n) {
		rdsd_dgram *d = &b->d[i];
		struct rdsdi_flow *f = NULL;
		int64_t result;

		n = 1;
		if (d->error != PENDING)
			continue;
		if (d->len > s->tx.max_datagram) {
			d->error = too_large(s, d->len);
			continue;
		}
		f = s->tx.last;
		if (!f || !addr_equal(&f->to, &d->to))
			f = rdsdi_flow_find(&s->tx, &d->to);
		if (f && f->skip == (b->pass | OPENING))
			continue;
		if (full || (f && f->skip == b->pass)) {
			if (b->nowait)
				d->error = full ? -EAGAIN : -ENOBUFS;
			continue;
		}
		op->patient = false;
		result = destination(op, &d->to, &f);
		if (result != BLOCKED && result) {
			d->error = (int32_t)result;
			continue;
		}
		if (!result) {
			n = post_stretch(b, f, i);
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
		if (b->nowait)
			d->error = why;
	}
	op->why = why;
	op->bits = bits;
	op->patient = patient;
	while (b->first < b->n && b->d[b->first].error != PENDING)
		b->first++;
}

static int64_t batch_step(struct rdsdi_op *op)
{
	struct batch *b = (struct batch *)op;
	struct rdsdi_tx *tx = &op->s->tx;
	int64_t result;

	pthread_mutex_lock(&tx->mu);
	result = sendable(op);
	if (!result) {
		look(op->s);
		b->pass = ++tx->passes;
		pass(b);
		rdsdi_publish(tx);
		if (b->first < b->n)
			result = BLOCKED;
	}
	pthread_mutex_unlock(&tx->mu);
	return result;
}

ssize_t rdsd_send_batch(rdsd_socket *s, rdsd_dgram *dgrams, size_t n, int *error, int64_t timeout)
{
	struct batch b = {.op = {.step = batch_step, .s = s}, .d = dgrams, .n = n, .nowait = timeout == RDSD_NOWAIT};
	int64_t result = rdsdi_usable(s);
	int first = 0;
	size_t accepted = 0;

	for (size_t i = 0; i < n; i++)
		dgrams[i].error = PENDING;
	if (!result && n) {
		rdsdi_check(s);
		result = rdsdi_run(&b.op, timeout);
	}
	for (size_t i = 0; i < n; i++) {
		if (dgrams[i].error == PENDING)
			dgrams[i].error = (int32_t)result;
		if (!dgrams[i].error)
			accepted++;
		else if (!first)
			first = dgrams[i].error;
	}
	if (error)
		*error = first;
	if (first && first != result && first != -EMSGSIZE)
		rdsdi_errno(first);
	return accepted || !first ? (ssize_t)accepted : first;
}

/* Without a copy */

struct reservation {
	struct rdsdi_op op;
	const rdsd_addr *to;
	size_t size;
	rdsd_slot *slot;
};

enum { SLOT_REGION, SLOT_OFFSET, SLOT_SIZE, SLOT_FLOW };

static int64_t reserve_step(struct rdsdi_op *op)
{
	struct reservation *r = (struct reservation *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f;
	uint64_t at = 0, size = 0;
	int64_t result;

	pthread_mutex_lock(&tx->mu);
	result = sendable(op);
	if (!result && r->size > tx->max_datagram)
		result = too_large(s, r->size);
	if (!result) {
		look(s);
		result = destination(op, r->to, &f);
	}
	if (!result && !allowed(s, r->size, 1) && (!rdsdi_events(s) || !allowed(s, r->size, 1)))
		result = blocked(op, -EAGAIN, WAITS_EVENT);
	if (!result) {
		uint64_t need = r->size ? r->size : 1;

		at = room_for(s, need, need, &size);
		if (at == ARENA_NONE)
			result = blocked(op, -EAGAIN, WAITS_EVENT);
	}
	if (!result) {
		*r->slot = (rdsd_slot){.data = slot_at(tx, at), .size = r->size};
		r->slot->priv[SLOT_REGION] = tx->reg;
		r->slot->priv[SLOT_OFFSET] = (void *)(uintptr_t)at;
		r->slot->priv[SLOT_SIZE] = (void *)(uintptr_t)size;
		r->slot->priv[SLOT_FLOW] = f;
		rdsdi_region_ref(tx->reg);
		f->refs++;
		tx->used += r->size;
	}
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
	return (int)rdsdi_run(&r.op, timeout);
}

/* commit_locked posts the slot; what it returns it has not posted. */
static int commit_locked(rdsd_socket *s, rdsd_slot *slot, size_t len, uint64_t *tag)
{
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f = slot->priv[SLOT_FLOW];
	uint64_t at = (uintptr_t)slot->priv[SLOT_OFFSET], size = (uintptr_t)slot->priv[SLOT_SIZE];
	struct rdsdi_desc *d;
	uint32_t cookie;

	if (len > slot->size)
		return rdsdi_fail(-EMSGSIZE, "%zu bytes were reserved, not %zu", slot->size, len);
	if (!rdsdi_ring_room(s) || tx->undecided >= MAX_UNDECIDED)
		return rdsdi_errno(-EAGAIN);
	d = rdsdi_desc_new(tx, &cookie);
	if (!d)
		return rdsdi_errno(-EAGAIN);
	rdsdi_flow_close(tx, f);
	size = rdsdi_arena_shrink(&tx->arena, at, size, len);
	d->tag = tx->next_tag++;
	d->slot = at;
	d->size = size;
	d->len = d->body = (uint32_t)len;
	d->undecided = len;
	d->n = d->left = 1;
	d->flow = (uint32_t)(f - tx->flows); /* which takes over the slot's hold on the flow */
	tx->used -= slot->size - len;
	tx->undecided++;
	rdsdi_ring_put(tx, WORD_MAKE(len, 1, KIND_SAME), d->tag, at, f, cookie, soon(s));
	rdsdi_publish(tx);
	if (tag)
		*tag = d->tag;
	return 0;
}

static void give_back(struct rdsdi_tx *tx, rdsd_slot *slot)
{
	struct rdsdi_flow *f = slot->priv[SLOT_FLOW];

	rdsdi_arena_free(&tx->arena, (uintptr_t)slot->priv[SLOT_OFFSET], (uintptr_t)slot->priv[SLOT_SIZE]);
	tx->used -= slot->size;
	f->refs--;
}

int rdsd_commit(rdsd_socket *s, rdsd_slot *slot, size_t len, uint64_t *tag)
{
	struct rdsdi_region *r = slot->priv[SLOT_REGION];
	int err = rdsdi_usable(s);

	if (!r)
		return rdsdi_fail(-EINVAL, "the slot was committed or given back before");
	if (!err) {
		pthread_mutex_lock(&s->tx.mu);
		err = rdsdi_over(s);
		if (!err && (s->tx.reg != r || load_relaxed(at32(r, W_CLOSED))))
			err = rdsdi_away(s);
		if (!err)
			err = commit_locked(s, slot, len, tag);
		if (err && s->tx.reg == r)
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
	if (s->process == rdsdi_process) {
		pthread_mutex_lock(&s->tx.mu);
		if (s->tx.reg == r)
			give_back(&s->tx, slot);
		pthread_mutex_unlock(&s->tx.mu);
		rdsdi_notify(s);
	}
	rdsdi_region_unref(r);
	memset(slot, 0, sizeof *slot);
}
