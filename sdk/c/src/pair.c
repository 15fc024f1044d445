/*
 * Pairs: memory by which this socket and another one of this user and address
 * exchange a busy flow without the daemon on the way (docs/pairs.md).
 *
 * Design notes. The daemon offers a pair by the control socket, which only
 * rdsdi_pump reads: everything that is said, mapped and unmapped is done there,
 * with ctl.mu held. A send finds the pair of its flow in tx, and goes there when
 * nothing of the flow is at the daemon. A receive takes a record at a time into
 * memory of its own, a lease like that of a slot: the sender can still write in
 * the pair. Pairs to read belong to the region of their link: what was in them
 * when the daemon died is read before what a later one brings.
 *
 * Each end keeps its place in private memory. It reads a word of the other one
 * once, checks it, and uses what it has read.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* Mapping */

void rdsdi_pair_unref(struct rdsdi_pair *p)
{
	if (atomic_fetch_sub(&p->refs, 1) != 1)
		return;
	if (p->process == rdsdi_process) { /* a forked child has nothing mapped there */
		if (p->words)
			munmap(p->words, PAIR_WORDS);
		if (p->data)
			munmap(p->data, p->bytes);
	}
	free(p);
}

static uint8_t *map(int fd, uint64_t bytes, int prot)
{
	void *at = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_DONTFORK);
	return at;
}

struct rdsdi_pair *rdsdi_pair_map(const struct rdsdi_server *m, const int *fds, const rdsd_addr *local)
{
	uint64_t bytes = m->pair_bytes;
	struct rdsdi_pair *p;

	if (bytes < PAIR_MIN || bytes > PAIR_MAX || bytes & (bytes - 1))
		return NULL;
	/* Sizes are those of the files: only they bound what may be touched. */
	if (rdsdi_part_size(fds[0]) != PAIR_WORDS || rdsdi_part_size(fds[1]) != (int64_t)bytes)
		return NULL;
	p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	atomic_init(&p->refs, 1);
	p->process = rdsdi_process;
	p->id = m->id;
	p->bytes = bytes;
	p->reads = !addr_equal(&m->source, local);
	p->peer = p->reads ? m->source : m->destination;
	p->words = map(fds[0], PAIR_WORDS, PROT_READ | PROT_WRITE);
	p->data = map(fds[1], bytes, p->reads ? PROT_READ : PROT_READ | PROT_WRITE);
	if (!p->words || !p->data) {
		rdsdi_pair_unref(p);
		return NULL;
	}
	return p;
}

/* sealed says whether the header is that of this pair. */
static bool sealed(const struct rdsdi_pair *p)
{
	uint8_t h[32];
	uint32_t version;
	uint64_t v[2];

	memcpy(h, p->words, sizeof h);
	memcpy(&version, h + 8, sizeof version);
	memcpy(v, h + 16, sizeof v);
	return !memcmp(h, PAIR_MAGIC, 8) && version == PAIR_VERSION && v[0] == p->bytes && v[1] == p->id;
}

/* What is said about pairs, with ctl.mu held */

static void say(struct rdsdi_ctl *c, uint64_t id, unsigned state)
{
	c->says[c->says_n].id = id; /* there is room: rdsdi_pairs_room */
	c->says[c->says_n++].state = state;
}

bool rdsdi_pairs_room(const struct rdsdi_ctl *c)
{
	return c->says_n < MAX_SAYS / 2; /* one for each step, and one for each pair that ends */
}

void rdsdi_pairs_say(struct rdsdi_ctl *c)
{
	uint8_t message[PB_CLIENT_MAX];
	unsigned done = 0;

	while (done < c->says_n && !rdsdi_control_send(c->link, message, rdsdi_pb_pair(message, c->says[done].id, c->says[done].state)))
		done++;
	memmove(c->says, c->says + done, (c->says_n - done) * sizeof *c->says);
	c->says_n -= done; /* the others at the next look */
}

/* offer_of takes an offer out of the list. */
static struct rdsdi_pair *offer_of(struct rdsdi_ctl *c, uint64_t id)
{
	for (struct rdsdi_pair **p = &c->offers; *p; p = &(*p)->next)
		if ((*p)->id == id) {
			struct rdsdi_pair *found = *p;

			*p = found->next;
			c->offers_n--;
			return found;
		}
	return NULL;
}

static bool offered(rdsd_socket *s, const struct rdsdi_server *m)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_pair *p;

	if (c->fds_n != 2 || c->offers_n >= MAX_PAIRS)
		return false;
	p = rdsdi_pair_map(m, c->fds, &s->local);
	if (!p)
		return false;
	p->next = c->offers;
	c->offers = p;
	c->offers_n++;
	return true;
}

/* use_out has sends use the pair from now on. It takes over the reference when it is true. */
static bool use_out(rdsd_socket *s, struct rdsdi_pair *p)
{
	struct rdsdi_tx *tx = &s->tx;
	unsigned n = 0;
	bool ok;

	pthread_mutex_lock(&tx->mu);
	ok = tx->reg && tx->reg == s->ctl.link->reg;
	for (struct rdsdi_pair *q = tx->pairs; q; q = q->next, n++)
		ok = ok && !addr_equal(&q->peer, &p->peer);
	ok = ok && n < MAX_PAIRS;
	if (ok) {
		p->next = tx->pairs;
		tx->pairs = p;
	}
	pthread_mutex_unlock(&tx->mu);
	return ok;
}

/* use_in has receives look there as well. It takes over the reference when it is true. */
static bool use_in(rdsd_socket *s, struct rdsdi_pair *p)
{
	struct rdsdi_region *r = s->ctl.link->reg;
	bool ok;

	pthread_mutex_lock(&s->rx.mu);
	pthread_mutex_lock(&s->sleep.mu); /* whoever sleeps says so in each of them */
	ok = r->pairs_n < MAX_PAIRS;
	for (unsigned i = 0; i < r->pairs_n; i++)
		ok = ok && !addr_equal(&r->pairs[i]->peer, &p->peer);
	if (ok)
		r->pairs[r->pairs_n++] = p;
	pthread_mutex_unlock(&s->sleep.mu);
	pthread_mutex_unlock(&s->rx.mu);
	return ok; /* the pump that read this wakes whoever waits */
}

static void opened(rdsd_socket *s, uint64_t id)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_pair *p = offer_of(c, id);

	if (!p)
		return;
	/* Sealed by now: before, an access might have had to wait for the other client. */
	if (!sealed(p) || !(p->reads ? use_in(s, p) : use_out(s, p))) {
		rdsdi_pair_unref(p);
		say(c, id, PAIR_STATE_GONE);
	} else if (p->reads) {
		/* Only now, when everything that comes is seen, may the sender use it. */
		say(c, id, PAIR_STATE_OPEN);
	}
}

static void closed(rdsd_socket *s, uint64_t id)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_pair *p = offer_of(c, id);

	pthread_mutex_lock(&s->tx.mu);
	for (struct rdsdi_pair **q = &s->tx.pairs; !p && *q; q = &(*q)->next)
		if ((*q)->id == id) {
			p = *q;
			*q = p->next;
			break;
		}
	pthread_mutex_unlock(&s->tx.mu);
	if (p) {
		rdsdi_pair_unref(p);
		say(c, id, PAIR_STATE_GONE);
		return;
	}
	pthread_mutex_lock(&s->rx.mu); /* what is in it is read first */
	for (unsigned i = 0; i < c->link->reg->pairs_n; i++)
		if (c->link->reg->pairs[i]->id == id) {
			c->link->reg->pairs[i]->closed = true;
			c->ending = true;
		}
	pthread_mutex_unlock(&s->rx.mu);
}

void rdsdi_pair_step(rdsd_socket *s, const struct rdsdi_server *m)
{
	switch (m->pair_state) {
	case PAIR_STATE_OFFERED:
		say(&s->ctl, m->id, offered(s, m) ? PAIR_STATE_MAPPED : PAIR_STATE_GONE);
		break;
	case PAIR_STATE_OPEN:
		opened(s, m->id);
		break;
	case PAIR_STATE_CLOSED:
		closed(s, m->id);
		break;
	}
}

void rdsdi_pairs_sweep(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_region *r = c->link->reg;

	if (!c->ending)
		return;
	c->ending = false;
	pthread_mutex_lock(&s->rx.mu);
	for (unsigned i = 0; i < r->pairs_n;) {
		struct rdsdi_pair *p = r->pairs[i];

		c->ending = c->ending || p->closed;
		if (!p->closed || c->says_n >= MAX_SAYS || !rdsdi_pair_read_out(p, load_acquire(at64(r, W_RECV_TAIL)))) {
			i++;
			continue;
		}
		pthread_mutex_lock(&s->sleep.mu);
		r->pairs[i] = r->pairs[--r->pairs_n];
		pthread_mutex_unlock(&s->sleep.mu);
		say(c, p->id, PAIR_STATE_GONE);
		rdsdi_pair_unref(p);
	}
	pthread_mutex_unlock(&s->rx.mu);
}

void rdsdi_pairs_forget(struct rdsdi_ctl *c)
{
	while (c->offers) {
		struct rdsdi_pair *p = c->offers;

		c->offers = p->next;
		rdsdi_pair_unref(p);
	}
	c->offers_n = c->says_n = 0;
	c->ending = false;
}
