/*
 * Receiving. The daemon has put datagrams into the region; they are handed out
 * in place, or copied. A descriptor may hold thousands of them: its lease is
 * released with the last one.
 *
 * Requests: a waiting request takes the datagrams of its peer before everybody
 * else does, and puts what it meets of others aside (the stash), where receivers
 * find it first.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

static int64_t blocked(struct rdsdi_op *op)
{
	op->why = -EAGAIN;
	op->bits = WAITS_RECV;
	return BLOCKED;
}

static int broken(rdsd_socket *s)
{
	atomic_store(&s->fault, -EPROTO);
	return 0;
}

/* drop_pairs lets go of those of a region, as far as this end is concerned. */
static void drop_pairs(rdsd_socket *s, struct rdsdi_region *r)
{
	bool ours = s->process == rdsdi_process; /* a child may have inherited the lock locked */

	if (ours)
		pthread_mutex_lock(&s->sleep.mu);
	rdsdi_pairs_free(r);
	if (ours)
		pthread_mutex_unlock(&s->sleep.mu);
}

/* let_go takes the region of a dead daemon out of the chain. */
static void let_go(rdsd_socket *s, struct rdsdi_region **at)
{
	struct rdsdi_rx *rx = &s->rx;
	struct rdsdi_region *old = *at;

	drop_pairs(s, old);
	if (at == &rx->reg) {
		rx->head = rx->shown = 0;
		rx->one_by_one = false;
	}
	*at = old->next;
	rx->regions--;
	rdsdi_region_unref(old);
}

/* next_region goes on to the region of the daemon that came after a dead one. */
static bool next_region(rdsd_socket *s)
{
	if (!s->rx.reg || !s->rx.reg->next)
		return false;
	let_go(s, &s->rx.reg);
	return true;
}

static bool alive(const struct rdsdi_rx *rx)
{
	return !rx->reg->next && !rx->dead;
}

/* lease takes one for a descriptor: NULL when so many are out that the release ring may lack room. */
static struct rdsdi_lease *lease(struct rdsdi_rx *rx, bool *held)
{
	struct rdsdi_region *r = rx->reg;
	struct rdsdi_lease *l = NULL;
	uint64_t unread;

	pthread_mutex_lock(&r->mu);
	*held = r->live >= r->release_n;
	unread = r->release_tail - r->release_head;
	if (alive(rx) && r->live + unread >= r->release_n) {
		r->release_head = load_acquire(at64(r, W_RELEASE_HEAD));
		unread = r->release_tail - r->release_head;
	}
	if (!*held && (!alive(rx) || r->live + unread < r->release_n)) {
		if (r->free) {
			l = r->free;
			r->free = l->next;
		} else {
			l = &r->leases[r->leases_n++];
		}
		l->reg = r;
		r->live++;
	}
	pthread_mutex_unlock(&r->mu);
	if (l)
		rdsdi_region_ref(r);
	return l;
}

/*
 * next_source finds where the next descriptor is: 0 with *tail, the ring's, and r:
 * there, if anywhere; 1: a pair had one, which is the current one now; or an error.
 */
static int next_source(rdsd_socket *s, uint64_t *tail, bool lends)
{
	struct rdsdi_rx *rx = &s->rx;
	int more;

	for (;;) {
		struct rdsdi_region *r = rx->reg;

		if (!r)
			return 0;
		if (r->pairs_n && rx->run < PAIR_RUN) {
			more = rdsdi_pair_next(rx, rx->head, lends);
			if (more) {
				rx->run++;
				return more;
			}
		}
		*tail = load_acquire(at64(r, W_RECV_TAIL));
		if (*tail != rx->head)
			return 0;
		if (r->pairs_n) {
			/* Behind everything that a daemon that is gone has placed, there is nothing to wait for. */
			more = rdsdi_pair_next(rx, alive(rx) ? rx->head : UINT64_MAX, lends);
			if (more)
				return more;
		}
		if (!next_region(s))
			return 0;
	}
}

/* next_desc takes the next descriptor: 1, 0 when there is none, -ENOBUFS, -ENOMEM. lends: what it holds is not copied at once. */
static int next_desc(rdsd_socket *s, bool lends)
{
	struct rdsdi_rx *rx = &s->rx;
	struct rdsdi_region *r;
	const uint8_t *e;
	uint64_t word, slot, tail = 0;
	uint32_t bytes, n, kind;
	uint8_t family;
	rdsd_addr from;
	bool held;
	int more;

	rx->lack = false;
	more = next_source(s, &tail, lends);
	r = rx->reg;
	if (more || !r || tail == rx->head)
		return more;
	if (tail - rx->head > r->recv_n || atomic_load_explicit(&s->fault, memory_order_relaxed))
		return broken(s);
	e = r->base + r->recv_ring + (rx->head & (r->recv_n - 1)) * RECV_SIZE;
	word = load_relaxed((_Atomic uint64_t *)(void *)(uintptr_t)e);
	memcpy(&slot, e + RECV_SLOT, 8);
	family = e[RECV_FAMILY];
	bytes = WORD_BYTES(word);
	n = WORD_COUNT(word);
	kind = WORD_KIND(word);
	if (!n || n > TRAIN_DATAGRAMS || bytes > RDSD_MAX_DATAGRAM || slot > r->recv_arena_bytes ||
	    bytes > r->recv_arena_bytes - slot || (family != 4 && family != 6) ||
	    !((kind == KIND_SAME && bytes % n == 0) || (kind == KIND_TABLE && bytes >= 4 * n)))
		return broken(s);
	from = (rdsd_addr){.family = family};
	memcpy(from.ip, e + RECV_IP, family == 4 ? 4 : 16);
	memcpy(&from.port, e + RECV_PORT, 2);
	/* The source had put into its pair what may be taken there by now, before it sent this. The pair is looked at after the ring. */
	more = rdsdi_pair_before(rx, &from, lends);
	if (more)
		return more;
	rx->run = 0;
	rx->lease = lease(rx, &held);
	rx->lack = !rx->lease;
	if (rx->lack)
		return held ? rdsdi_fail(-ENOBUFS, "%u received pieces are unreleased: release some", r->release_n) : 0;
	atomic_store_explicit(&rx->lease->refs, n, memory_order_relaxed);
	rx->lease->slot = slot;
	rx->head++;
	rx->data = r->base + r->recv_arena + slot;
	rx->table = NULL;
	rx->left = n;
	rx->len = bytes / n;
	if (kind == KIND_TABLE) {
		rx->table = rx->data;
		rx->data += 4 * n;
		bytes -= 4 * n;
	}
	rx->bytes = bytes;
	rx->from = from;
	return 1;
}

/* show tells the daemon what was taken. */
static void show(struct rdsdi_rx *rx)
{
	if (!rx->reg || rx->shown == rx->head)
		return;
	rx->shown = rx->head;
	atomic_store(at64(rx->reg, W_RECV_HEAD), rx->head);
	if (alive(rx))
		rdsdi_ring(rx->reg, rx->bell, DAEMON_WAITS_ROOM);
}

/* next_len is the length of the next datagram of the current descriptor, as its table says it. */
static uint32_t next_len(const struct rdsdi_rx *rx)
{
	uint32_t len = rx->len;

	if (rx->table) {
		const uint8_t *t = rx->table;

		len = (uint32_t)t[0] << 24 | (uint32_t)t[1] << 16 | (uint32_t)t[2] << 8 | t[3];
		if (len > rx->bytes)
			len = rx->bytes;
	}
	return len;
}

/* hand fills in one datagram; there is a current descriptor. */
static void hand(struct rdsdi_rx *rx, rdsd_msg *m)
{
	uint32_t len = next_len(rx);

	m->data = rx->data;
	m->len = len;
	m->from = rx->from;
	m->zero = 0;
	m->lease = rx->lease;
	rx->data += len;
	rx->bytes -= len;
	if (rx->table)
		rx->table += 4;
	rx->left--;
}

/* for_waiter gives a datagram to the first request that waits for its source. */
static bool for_waiter(rdsd_socket *s, const rdsd_msg *m)
{
	for (struct rdsdi_waiter **w = &s->rx.waiters; *w; w = &(*w)->next)
		if (addr_equal(&(*w)->from, &m->from)) {
			struct rdsdi_waiter *found = *w;

			*w = found->next;
			found->msg = *m;
			atomic_store(&found->done, true);
			return true;
		}
	return false;
}

/* take hands out up to n datagrams: how many, or -ENOBUFS. *given: requests got some. */
static int64_t take(rdsd_socket *s, rdsd_msg *msgs, size_t n, bool lends, bool *given)
{
	struct rdsdi_rx *rx = &s->rx;
	size_t got = 0;
	int more = 1;

	while (got < n && rx->stash_n) {
		msgs[got++] = rx->stash[rx->stash_head];
		rx->stash_head = (rx->stash_head + 1) % MAX_STASH;
		rx->stash_n--;
	}
	while (got < n) {
		if (!rx->left) {
			more = next_desc(s, lends);
			if (more <= 0)
				break;
		}
		while (got < n && rx->left) {
			hand(rx, &msgs[got]);
			if (rx->waiters && for_waiter(s, &msgs[got]))
				*given = true;
			else
				got++;
		}
	}
	show(rx);
	return got ? (int64_t)got : more < 0 ? more : 0;
}

static void one_by_one(struct rdsdi_rx *rx, bool on)
{
	if (rx->one_by_one == on || !rx->reg)
		return;
	rx->one_by_one = on;
	store_relaxed(at32(rx->reg, W_ONE_BY_ONE), on);
}

/*
 * rdsdi_rx_starved: nothing can come until something that was lent is released. The
 * ring is empty, and the daemon, which has taken all releases, lacks room.
 * rx.mu is held.
 */
bool rdsdi_rx_starved(struct rdsdi_rx *rx)
{
	struct rdsdi_region *r = rx->reg;
	bool starved;

	if (!r || !alive(rx) || rx->left || rx->stash_n)
		return false;
	pthread_mutex_lock(&r->mu);
	starved = r->live && atomic_load(at64(r, W_ROOM_WANTED)) == 1 + r->release_tail;
	pthread_mutex_unlock(&r->mu);
	/* After the word: it changes behind what was placed before. */
	return starved && atomic_load(at64(r, W_RECV_TAIL)) == rx->head && !rdsdi_pairs_ready(r, rx->head);
}

struct receive {
	struct rdsdi_op op;
	rdsd_msg *msgs;
	size_t n;
	bool single;
	bool copies; /* the caller keeps nothing: somebody else has to release */
	bool fits;   /* what has more than size bytes is not taken */
	size_t size;
};

static bool have_stash(struct rdsdi_rx *rx)
{
	if (!rx->stash)
		rx->stash = malloc(MAX_STASH * sizeof *rx->stash);
	return rx->stash;
}

/* untake puts back the datagram that take has just handed out. There is room: it came from the stash, or found it empty. */
static void untake(struct rdsdi_rx *rx, const rdsd_msg *m)
{
	rx->stash_head = (rx->stash_head + MAX_STASH - 1) % MAX_STASH;
	rx->stash[rx->stash_head] = *m;
	rx->stash_n++;
}

/*
 * ended says that the socket was closed, or is over and nothing more can come, by a pair either.
 * Read before what has come is looked for: that is handed out before the error. rx.mu is held.
 */
static bool ended(rdsd_socket *s)
{
	int over = atomic_load(&s->over);

	return over && (s->rx.dead || over == -EBADF);
}

static int64_t receive_step(struct rdsdi_op *op)
{
	struct receive *r = (struct receive *)op;
	rdsd_socket *s = op->s;
	bool given = false, large = false, end;
	int64_t got;
	bool starved;

	if (atomic_load(&s->over) == -EBADF)
		return rdsdi_errno(-EBADF);
	pthread_mutex_lock(&s->rx.mu);
	if (r->fits && !have_stash(&s->rx)) { /* for untake, which cannot fail */
		pthread_mutex_unlock(&s->rx.mu);
		return rdsdi_errno(-ENOMEM);
	}
	end = ended(s);
	got = take(s, r->msgs, r->n, !r->copies, &given);
	if (got == 1 && r->fits && r->msgs->len > r->size) {
		untake(&s->rx, r->msgs);
		large = true;
	}
	op->soon = got <= 0 && s->rx.lack;
	if (op->soon && r->copies)
		got = 0; /* somebody else has to release */
	starved = !got && !r->copies && rdsdi_rx_starved(&s->rx);
	one_by_one(&s->rx, r->single);
	pthread_mutex_unlock(&s->rx.mu);
	if (given)
		rdsdi_notify(s);
	if (large)
		return rdsdi_because(-EMSGSIZE, "the next datagram is larger than the buffer: it was left where it is");
	if (got)
		return got;
	if (end)
		return rdsdi_over(s);
	if (starved)
		return rdsdi_because(-ENOBUFS, "what is unreleased takes the room for what is to come: release some");
	return blocked(op);
}

static ssize_t batch(rdsd_socket *s, rdsd_msg *msgs, size_t n, bool copies, int64_t timeout)
{
	struct receive r = {.op = {.step = receive_step, .s = s}, .msgs = msgs, .n = n, .copies = copies};
	int err = rdsdi_usable(s);

	if (err)
		return err;
	rdsdi_check(s);
	return n ? rdsdi_run(&r.op, timeout) : 0;
}

ssize_t rdsd_recv_batch(rdsd_socket *s, rdsd_msg *msgs, size_t n, int64_t timeout)
{
	return batch(s, msgs, n, false, timeout);
}

ssize_t rdsdi_recv_copied(rdsd_socket *s, rdsd_msg *msgs, size_t n, int64_t timeout)
{
	return batch(s, msgs, n, true, timeout);
}

ssize_t rdsdi_recv_fitting(rdsd_socket *s, rdsd_msg *msg, size_t size, int64_t timeout)
{
	struct receive r = {.op = {.step = receive_step, .s = s}, .msgs = msg, .n = 1, .single = true, .copies = true, .fits = true, .size = size};
	int err = rdsdi_usable(s);

	if (err)
		return err;
	rdsdi_check(s);
	return rdsdi_run(&r.op, timeout);
}

size_t rdsdi_copy_out(const rdsd_msg *m, void *buf, size_t size, rdsd_addr *from)
{
	if (from)
		*from = m->from;
	if (m->len < size)
		size = m->len;
	if (size)
		memcpy(buf, m->data, size);
	return m->len;
}

ssize_t rdsd_recv(rdsd_socket *s, void *buf, size_t size, rdsd_addr *from, int64_t timeout)
{
	rdsd_msg m;
	struct receive r = {.op = {.step = receive_step, .s = s}, .msgs = &m, .n = 1, .single = true, .copies = true};
	int64_t got = rdsdi_usable(s);

	if (got)
		return got;
	rdsdi_check(s);
	got = rdsdi_run(&r.op, timeout);
	if (got < 0)
		return got;
	got = (int64_t)rdsdi_copy_out(&m, buf, size, from);
	rdsdi_lease_drop(m.lease, 1);
	return got;
}

void rdsd_release(rdsd_msg *msgs, size_t n)
{
	for (size_t i = 0, k; i < n; i += k) {
		struct rdsdi_lease *l = msgs[i].lease;

		for (k = 1; i + k < n && msgs[i + k].lease == l; k++)
			;
		if (l)
			rdsdi_lease_drop(l, (uint32_t)k);
	}
}

bool rdsdi_rx_ready(rdsd_socket *s)
{
	struct rdsdi_rx *rx = &s->rx;

	if (rx->stash_n || rx->left)
		return true;
	for (struct rdsdi_region *r = rx->reg; r; r = r->next) {
		uint64_t head = r == rx->reg ? rx->head : 0;

		if (load_acquire(at64(r, W_RECV_TAIL)) != head || rdsdi_pairs_ready(r, r->next || rx->dead ? UINT64_MAX : head))
			return true;
	}
	return false;
}

int rdsd_peek(rdsd_socket *s, size_t *size)
{
	struct rdsdi_rx *rx = &s->rx;
	int err = rdsdi_usable(s), found = 1;
	bool end;

	if (err)
		return err;
	if (atomic_load(&s->over) == -EBADF)
		return rdsdi_errno(-EBADF);
	rdsdi_check(s);
	pthread_mutex_lock(&rx->mu);
	end = ended(s);
	if (rx->stash_n) {
		*size = rx->stash[rx->stash_head].len;
	} else {
		if (!rx->left)
			found = next_desc(s, false);
		show(rx);
		if (found > 0)
			*size = next_len(rx);
	}
	pthread_mutex_unlock(&rx->mu);
	return found || !end ? found : rdsdi_over(s);
}

/* Requests */

/* set_aside keeps what a request meets and does not want; on a reply port nobody does. */
static void set_aside(rdsd_socket *s, const rdsd_msg *m)
{
	struct rdsdi_rx *rx = &s->rx;

	if (s->replies)
		rdsdi_lease_drop(m->lease, 1);
	else
		rx->stash[(rx->stash_head + rx->stash_n++) % MAX_STASH] = *m;
}

/* drop_strays empties a reply port: nothing that came before a request is its answer. */
static void drop_strays(rdsd_socket *s)
{
	struct rdsdi_rx *rx = &s->rx;
	rdsd_msg m;

	while (rx->left || next_desc(s, false) > 0) {
		hand(rx, &m);
		if (!for_waiter(s, &m))
			rdsdi_lease_drop(m.lease, 1);
	}
	show(rx);
}

static int64_t request_step(struct rdsdi_op *op)
{
	struct rdsdi_request *q = (struct rdsdi_request *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_rx *rx = &s->rx;
	bool others = false, end;
	int64_t result = 0;
	int more = 1;

	pthread_mutex_lock(&rx->mu);
	end = ended(s);
	while (!atomic_load(&q->w.done) && atomic_load(&s->over) != -EBADF) {
		rdsd_msg m;

		if (!have_stash(rx)) {
			more = rdsdi_errno(-ENOMEM);
			break;
		}
		if (rx->stash_n == MAX_STASH)
			break; /* somebody must receive before there is room for a reply */
		if (!rx->left) {
			more = next_desc(s, true);
			if (more <= 0)
				break;
		}
		hand(rx, &m);
		others = true;
		if (!for_waiter(s, &m))
			set_aside(s, &m);
	}
	show(rx);
	op->soon = !more && rx->lack;
	if (!atomic_load(&q->w.done))
		result = more < 0 ? more : end ? rdsdi_over(s) : blocked(op);
	pthread_mutex_unlock(&rx->mu);
	if (others)
		rdsdi_notify(s);
	return result;
}

void rdsdi_request_begin(struct rdsdi_request *q, rdsd_socket *s, const rdsd_addr *to)
{
	struct rdsdi_waiter **w;

	*q = (struct rdsdi_request){.op = {.step = request_step, .s = s, .bits = WAITS_RECV}};
	rdsdi_addr_plain(to, &q->w.from); /* as the source of the reply will be written */
	pthread_mutex_lock(&s->rx.mu);
	if (s->replies)
		drop_strays(s);
	for (w = &s->rx.waiters; *w; w = &(*w)->next)
		;
	*w = &q->w;
	pthread_mutex_unlock(&s->rx.mu);
}

int64_t rdsdi_request_wait(struct rdsdi_request *q, int64_t timeout)
{
	q->sent = true;
	return rdsdi_run(&q->op, timeout);
}

int64_t rdsdi_request_end(struct rdsdi_request *q, int64_t result, rdsd_msg *reply)
{
	rdsd_socket *s = q->op.s;
	struct rdsdi_waiter **w;
	rdsd_cancelled c = {0};
	char text[256];

	pthread_mutex_lock(&s->rx.mu);
	for (w = &s->rx.waiters; *w; w = &(*w)->next)
		if (*w == &q->w) {
			*w = q->w.next;
			break;
		}
	pthread_mutex_unlock(&s->rx.mu);
	if (atomic_load(&q->w.done)) { /* perhaps at the last moment */
		*reply = q->w.msg;
		return 0;
	}
	q->late = q->sent;
	if (q->sent && result == -EADDRINUSE)
		return rdsdi_fail(-ESHUTDOWN, "the daemon was restarted, and somebody else has the port the reply was to come to");
	memcpy(text, "", 1);
	strncat(text, rdsd_errmsg(), sizeof text - 1);
	if (q->sent && result != -EBADF && !rdsd_cancel_sent_to(s, &q->w.from, &c, CANCEL_GRACE))
		q->late = !c.cancelled || c.in_flight;
	return rdsdi_fail((int)result, "%s", text);
}

/* Sessions */

/*
 * let_go_of_empty leaves the regions with something unread. All their daemons are dead. A socket that
 * only sends never comes to next_region, and an empty region may stand behind one that is not.
 */
static void let_go_of_empty(rdsd_socket *s)
{
	struct rdsdi_rx *rx = &s->rx;
	struct rdsdi_region **at = &rx->reg;

	while (*at) {
		bool front = at == &rx->reg;

		if ((front && rx->left) || load_acquire(at64(*at, W_RECV_TAIL)) != (front ? rx->head : 0) ||
		    rdsdi_pairs_ready(*at, UINT64_MAX))
			at = &(*at)->next;
		else
			let_go(s, at);
	}
}

/* room says whether there is some for one more region; rx.mu is held. */
static int room(rdsd_socket *s)
{
	let_go_of_empty(s);
	if (s->rx.regions < MAX_REGIONS)
		return 0;
	return rdsdi_fail(-ENOMEM, "what came while %u daemons before were there is unread: receive it", MAX_REGIONS);
}

int rdsdi_rx_room(rdsd_socket *s)
{
	int err;

	pthread_mutex_lock(&s->rx.mu);
	err = room(s);
	pthread_mutex_unlock(&s->rx.mu);
	return err;
}

int rdsdi_rx_start(rdsd_socket *s, struct rdsdi_link *l)
{
	struct rdsdi_rx *rx = &s->rx;
	struct rdsdi_region **last = &rx->reg;
	int err;

	pthread_mutex_lock(&rx->mu);
	err = room(s);
	if (err) {
		pthread_mutex_unlock(&rx->mu);
		return err;
	}
	while (*last)
		last = &(*last)->next;
	rdsdi_region_ref(l->reg);
	*last = l->reg;
	rx->regions++;
	rx->dead = false;
	rx->bell = l->bell_daemon;
	pthread_mutex_lock(&l->reg->mu);
	l->reg->bell = l->bell_daemon;
	pthread_mutex_unlock(&l->reg->mu);
	pthread_mutex_unlock(&rx->mu);
	return 0;
}

/* drop_all forgets what is unread: the socket was closed. */
static void drop_all(rdsd_socket *s)
{
	struct rdsdi_rx *rx = &s->rx;

	if (rx->left)
		rdsdi_lease_drop(rx->lease, rx->left);
	rx->left = 0;
	for (; rx->stash_n; rx->stash_n--) {
		rdsdi_lease_drop(rx->stash[rx->stash_head].lease, 1);
		rx->stash_head = (rx->stash_head + 1) % MAX_STASH;
	}
	while (next_region(s))
		;
	if (rx->reg) {
		drop_pairs(s, rx->reg);
		rdsdi_region_unref(rx->reg);
	}
	rx->reg = NULL;
	rx->regions = 0;
}

void rdsdi_rx_stop(rdsd_socket *s)
{
	struct rdsdi_rx *rx = &s->rx;
	struct rdsdi_region *last;

	pthread_mutex_lock(&rx->mu);
	rx->dead = true;
	for (last = rx->reg; last && last->next; last = last->next)
		;
	if (last) {
		rdsdi_pairs_shut(last); /* what got in so far is kept */
		pthread_mutex_lock(&last->mu);
		last->bell = -1; /* releases lead nowhere from here on */
		pthread_mutex_unlock(&last->mu);
	}
	if (atomic_load(&s->over) == -EBADF)
		drop_all(s);
	pthread_mutex_unlock(&rx->mu);
}

void rdsdi_rx_destroy(rdsd_socket *s)
{
	drop_all(s);
	free(s->rx.stash);
}
