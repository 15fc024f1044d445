/*
 * Sending. Every call is a step (wait.c) that posts what may go now.
 *
 * Design notes. A descriptor costs far more than a datagram, so datagrams of
 * one call to one destination share descriptors (trains), and single sends are
 * appended to the last descriptor of their flow while the daemon has not
 * claimed it. Such a descriptor takes a larger slot and a block of tags ahead;
 * how large is learnt: fourfold when one was full before it was claimed, half
 * when it was claimed nearly empty. Where lengths differ it has room for a table
 * in front (mixed.c). What it does not use of its slot is given
 * back when the next one of the flow is posted, or when memory is short.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "send.h"

#define COPY_PIECE (128u << 10) /* larger copies leave the cache and are slower */

uint8_t *rdsdi_send_copy(uint8_t *to, const void *from, size_t n)
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

void rdsdi_copy_same(uint8_t *to, const struct rdsdi_source *src, size_t from, size_t n)
{
	if (!src->dgrams) {
		rdsdi_send_copy(to, src->data + from * src->len, n * src->len);
		return;
	}
	for (size_t i = from; i < from + n; i++)
		to = rdsdi_send_copy(to, src->dgrams[i].data, src->len);
}

/* sendable says whether anything can be posted now; with tx.mu held. 0, BLOCKED or an error. */
int64_t rdsdi_sendable(struct rdsdi_op *op)
{
	rdsd_socket *s = op->s;
	int over = rdsdi_over(s);

	op->patient = false;
	op->sends = true;
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

int64_t rdsdi_send_blocked(struct rdsdi_op *op, int why, uint32_t bits)
{
	op->why = why;
	op->bits = bits;
	return BLOCKED;
}

/* destination finds the flow and whether it takes datagrams: 0, BLOCKED or an error. */
int64_t rdsdi_destination(struct rdsdi_op *op, const rdsd_addr *to, struct rdsdi_flow **flow)
{
	struct rdsdi_tx *tx = &op->s->tx;
	int err = rdsdi_flow_get(op->s, to, flow), ignored;

	switch (err) {
	case 0:
		break;
	case -EINPROGRESS:
		op->patient = true;
		return rdsdi_send_blocked(op, -EAGAIN, WAITS_FLOW);
	case -EAGAIN:
		return rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT | WAITS_SEND_ROOM);
	case -EINVAL: /* the flow has the errno alone, and these are its two reasons; see rdsdi_explain */
		return rdsdi_because(err, to->port == 1 ? "destination port 1 is reserved for the RDS handshake"
							: "the destination is a multicast or broadcast address; RDS sends to one node");
	default:
		return rdsdi_errno(err);
	}
	if (rdsdi_flow_state(tx, *flow, &ignored) == STATE_CONGESTED) {
		rdsdi_flow_refused(tx, *flow);
		op->jam = *flow;
		op->jam_life = tx->life;
		return rdsdi_send_blocked(op, -ENOBUFS, WAITS_FLOW);
	}
	return 0;
}

int rdsdi_too_large(const rdsd_socket *s, size_t len)
{
	return rdsdi_fail(-EMSGSIZE, "%zu bytes: a datagram of this socket has at most %u", len, s->tx.max_datagram);
}

/* look takes events in when there is a use for it. */
void rdsdi_send_look(rdsd_socket *s)
{
	struct rdsdi_tx *tx = &s->tx;

	if (tx->used >= tx->sndbuf / 2 || (++tx->lazy & 63) == 0)
		rdsdi_events(s);
}

/* allowed is how many of n datagrams of len bytes the send buffer takes. */
uint32_t rdsdi_allowed(const rdsd_socket *s, size_t len, size_t n)
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

void rdsdi_send_claimed(struct rdsdi_tx *tx, struct rdsdi_flow *f)
{
	const struct rdsdi_desc *d = rdsdi_desc_of(tx, f->open);

	if (d->body < d->size / 4)
		f->hint = (uint32_t)d->size / 2;
	rdsdi_flow_close(tx, f);
}

void rdsdi_send_wider(struct rdsdi_flow *f, const struct rdsdi_desc *d)
{
	f->hint = lesser((uint32_t)(d->size < 256 ? 1024 : 4 * d->size), TRAIN_BYTES);
}

/* grow appends up to n datagrams to the flow's last descriptor and returns how many; *tag is the first one's. */
static uint32_t grow(rdsd_socket *s, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, uint32_t n, uint64_t *tag)
{
	struct rdsdi_tx *tx = &s->tx;
	uint32_t len = (uint32_t)src->len, room, bytes;
	struct rdsdi_desc *d;
	uint64_t word;

	if (!f->open || tx->tail - f->open_entry > tx->reg->send_n)
		return 0;
	d = rdsdi_desc_of(tx, f->open);
	if (f->open_len != len || d->mixed)
		return rdsdi_grow_mixed(s, f, src, from, n, tag);
	room = f->open_max - d->n;
	if (len)
		room = lesser(room, (uint32_t)((d->size - d->room < TRAIN_BYTES ? d->size - d->room : TRAIN_BYTES) - d->body) / len);
	if (!room) {
		/* Full before it was claimed: there is a use for more room. */
		if (!(load_relaxed(rdsdi_ring_word(tx, f->open_entry)) & WORD_CLAIMED) && d->size < TRAIN_BYTES && len <= TRAIN_BYTES / 2)
			rdsdi_send_wider(f, d);
		return 0;
	}
	n = lesser(n, room);
	bytes = d->body + n * len;
	rdsdi_copy_same(rdsdi_slot_at(tx, d->slot) + d->room + d->body, src, from, n);
	word = WORD_MAKE(bytes, d->n + n, KIND_SAME);
	if (!atomic_compare_exchange_strong(rdsdi_ring_word(tx, f->open_entry), &f->open_word, word)) {
		rdsdi_send_claimed(tx, f);
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

/* reached touches what of the arena has not been used before: a slot may be sent that nobody has written whole. */
static uint64_t reached(struct rdsdi_tx *tx, uint64_t slot, uint64_t size)
{
	uint64_t end = slot + size;

	if (slot != ARENA_NONE && end > tx->touched) {
		end = (end + SHM_TOUCH - 1) / SHM_TOUCH * SHM_TOUCH;
		rdsdi_region_touch(tx->reg, tx->reg->send_arena + tx->touched, tx->reg->send_arena + end);
		tx->touched = end;
	}
	return slot;
}

/* room_for finds a slot of want bytes, or of at least need. ARENA_NONE: there is none. */
uint64_t rdsdi_room_for(rdsd_socket *s, uint64_t want, uint64_t need, uint64_t *size)
{
	struct rdsdi_tx *tx = &s->tx;
	uint64_t slot = rdsdi_arena_alloc(&tx->arena, want);

	*size = rdsdi_arena_size(want);
	if (slot != ARENA_NONE)
		return reached(tx, slot, *size);
	rdsdi_flow_close_all(tx);
	rdsdi_events(s);
	*size = rdsdi_arena_size(need);
	return reached(tx, rdsdi_arena_alloc(&tx->arena, need), *size);
}

uint32_t rdsdi_soon(const rdsd_socket *s)
{
	return s->flags & RDSD_OUTCOMES || s->tx.used >= s->tx.sndbuf / 2 ? SEND_SOON : 0;
}

/* post_new puts up to n datagrams of one length into a descriptor of their own. */
static uint32_t post_new(struct rdsdi_op *op, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, uint32_t n,
			 uint64_t *tag, bool tag_given)
{
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	uint32_t len = (uint32_t)src->len, max = TRAIN_DATAGRAMS, room = 0, cookie;
	uint64_t slot = 0, size = 0, want, need, word;
	struct rdsdi_desc *d;

	if (!rdsdi_ring_room(s)) {
		rdsdi_send_blocked(op, -EAGAIN, WAITS_SEND_ROOM);
		return 0;
	}
	if (len)
		max = len > TRAIN_BYTES ? 1 : lesser(TRAIN_BYTES / len, TRAIN_DATAGRAMS);
	n = lesser(n, max);
	while (len) {
		want = need = (uint64_t)n * len;
		room = 0;
		if (max > 1 && !tag_given) {
			if (want < f->hint)
				want = f->hint;
			room = rdsdi_table_for(tx, f, want);
		}
		slot = rdsdi_room_for(s, room + want, need, &size);
		if (slot != ARENA_NONE) {
			if (size < room + need)
				room = 0;
			break;
		}
		if (n == 1) {
			rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT);
			return 0;
		}
		n /= 2;
	}
	d = rdsdi_desc_new(tx, &cookie);
	if (!d) {
		if (size)
			rdsdi_arena_free(&tx->arena, slot, size);
		rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT);
		return 0;
	}
	rdsdi_copy_same(rdsdi_slot_at(tx, slot) + room, src, from, n);
	rdsdi_flow_close(tx, f);
	if (len && (size - room) / len < max)
		max = (uint32_t)((size - room) / len);
	if (max < room / TABLE_ENTRY)
		max = lesser(room / TABLE_ENTRY, TRAIN_DATAGRAMS);
	if (tag_given)
		max = n;
	else {
		*tag = tx->next_tag;
		tx->next_tag += max; /* those it does not come to have are left out */
	}
	d->tag = *tag;
	d->slot = slot;
	d->size = size;
	d->room = room;
	d->len = len;
	d->n = d->left = n;
	d->body = n * len;
	d->undecided = d->body;
	d->flow = (uint32_t)(f - tx->flows);
	f->refs++;
	word = WORD_MAKE(d->body, n, KIND_SAME);
	rdsdi_ring_put(tx, word, *tag, slot + room, f, cookie, rdsdi_soon(s));
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
uint32_t rdsdi_post_same(struct rdsdi_op *op, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, size_t n,
			  uint64_t *tag, bool tag_given)
{
	uint32_t may = rdsdi_allowed(op->s, src->len, n), done;

	if (!may) {
		rdsdi_send_blocked(op, -EAGAIN, WAITS_EVENT);
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
	struct rdsdi_source src;
	size_t n, done;
	uint64_t tag;
	bool tag_given; /* tags count up from tag: no appending */
};

/* post_run posts what may go now; *again: it has to begin anew. */
static int64_t post_run(struct run *r, bool *again)
{
	struct rdsdi_op *op = &r->op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	struct rdsdi_flow *f;
	int64_t result = rdsdi_sendable(op);

	*again = false;
	if (!result && r->src.len > tx->max_datagram)
		result = rdsdi_too_large(s, r->src.len);
	if (!result) {
		rdsdi_send_look(s);
		result = rdsdi_destination(op, r->to, &f);
	}
	if (!result && r->tag_given && !r->tag) {
		r->tag = tx->next_tag;
		tx->next_tag += r->n;
	}
	while (!result && r->done < r->n) {
		uint64_t tag = r->tag + r->done;
		uint32_t n = rdsdi_pair_put(op, f, &r->src, r->done, r->n - r->done, &tag, r->tag_given, again);

		if (*again)
			return 0;
		if (!n)
			n = rdsdi_post_same(op, f, &r->src, r->done, r->n - r->done, &tag, r->tag_given);
		if (n && !r->tag_given)
			r->tag = tag;
		r->done += n;
		if (!n) {
			rdsdi_publish(tx);
			if (!rdsdi_events(s))
				result = BLOCKED;
		}
	}
	return result;
}

static int64_t run_step(struct rdsdi_op *op)
{
	struct rdsdi_tx *tx = &op->s->tx;
	int64_t result;
	bool again;

	pthread_mutex_lock(&tx->mu);
	do
		result = post_run((struct run *)op, &again);
	while (again);
	if (tx->reg)
		rdsdi_publish(tx);
	pthread_mutex_unlock(&tx->mu);
	return result;
}

int rdsdi_no_data(size_t len)
{
	return rdsdi_fail(-EINVAL, "%zu bytes at NULL: a datagram without data has length 0", len);
}

static int send_one(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag, int64_t timeout)
{
	struct run r = {.op = {.step = run_step, .s = s, .waits = timeout != RDSD_NOWAIT}, .to = to, .src = {.data = data, .len = len}, .n = 1};
	int64_t result = rdsdi_usable(s);

	if (!result && len && !data)
		result = rdsdi_no_data(len);
	if (result)
		return (int)result;
	rdsdi_check(s);
	result = rdsdi_run(&r.op, timeout);
	if (!result && tag)
		*tag = r.tag;
	return (int)rdsdi_explain(s, to, result, timeout);
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
	struct run r = {.op = {.step = run_step, .s = s, .waits = timeout != RDSD_NOWAIT},
			.to = to,
			.src = {.data = data, .len = len},
			.n = count,
			.tag_given = tag != NULL};
	int64_t result = rdsdi_usable(s);

	if (!result && count && len && !data)
		result = rdsdi_no_data(len);
	if (result)
		return result;
	if (!count)
		return 0;
	rdsdi_check(s);
	result = rdsdi_run(&r.op, timeout);
	if (tag)
		*tag = r.tag;
	return r.done ? (ssize_t)r.done : rdsdi_explain(s, to, result, timeout);
}
