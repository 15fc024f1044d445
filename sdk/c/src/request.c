/*
 * Requests, and the ports that they leave from.
 *
 * Design notes. A request must not be given the answer to another one, above all
 * not the late answer to one that gave up. Payloads are the application's and a
 * responder may be anybody, so only the port that a request leaves from, with the
 * source of the answer, tells whose an answer is. A socket has a few reply ports
 * beside its own: sockets with the same options that receive answers and drop
 * everything else. One serves requests to many destinations, one at a time to
 * each. It is used again for a destination only when the answer has come, or when
 * the request has provably not left. A port that may be sent a late answer is
 * spoiled: it takes no request any more and is closed with its last one, so that
 * the answer ends as "no such port" at the responder and fills no buffer that
 * nobody reads. The daemon gives the number of a port that was closed to nobody
 * soon who asks for any.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct rdsdi_port {
	struct rdsdi_port *next;
	rdsd_socket *sock;
	rdsd_addr asked[MAX_ASKED];
	unsigned asked_n;
	bool spoiled; /* a late answer may come */
};

void rdsdi_requests_init(struct rdsdi_requests *r)
{
	pthread_mutex_init(&r->mu, NULL);
}

/* changed wakes the requests that wait for a port; with mu held. */
static void changed(struct rdsdi_requests *r)
{
	atomic_fetch_add(&r->changed, 1);
	if (r->waiting)
		rdsdi_futex_wake(&r->changed);
}

/* end_begun has a port that is being bound given up when the socket is over: the daemon may not answer; with mu held. */
static void end_begun(struct rdsdi_requests *r)
{
	if (!r->over || !r->begun)
		return;
	atomic_store(&r->begun->over, -EBADF);
	rdsdi_kick(r->begun);
}

void rdsdi_requests_shutdown(struct rdsdi_requests *r)
{
	pthread_mutex_lock(&r->mu);
	r->over = true;
	/* Whoever waits for an answer returns; the ports stay until the last one has. */
	for (struct rdsdi_port *p = r->ports; p; p = p->next)
		atomic_store(&p->sock->over, -EBADF);
	for (struct rdsdi_port *p = r->ports; p; p = p->next)
		rdsdi_notify(p->sock);
	end_begun(r);
	changed(r);
	pthread_mutex_unlock(&r->mu);
}

void rdsdi_requests_begin(struct rdsdi_requests *r, rdsd_socket *s)
{
	pthread_mutex_lock(&r->mu);
	r->begun = s;
	end_begun(r);
	pthread_mutex_unlock(&r->mu);
}

void rdsdi_requests_destroy(struct rdsdi_requests *r, bool forked)
{
	struct rdsdi_port *next;

	for (struct rdsdi_port *p = r->ports; p; p = next) {
		next = p->next;
		rdsd_close(p->sock);
		free(p);
	}
	r->ports = NULL;
	if (!forked)
		pthread_mutex_destroy(&r->mu);
}

static bool asks(const struct rdsdi_port *p, const rdsd_addr *to)
{
	for (unsigned i = 0; i < p->asked_n; i++)
		if (addr_equal(&p->asked[i], to))
			return true;
	return false;
}

/* lost: no request can leave from the port. A new daemon may have given its number to who asked for any (-EADDRINUSE). */
static bool lost(const struct rdsdi_port *p)
{
	return atomic_load(&p->sock->over);
}

/* pick puts a request on a port that has none to this destination; with mu held. */
static struct rdsdi_port *pick(struct rdsdi_requests *r, const rdsd_addr *to)
{
	for (struct rdsdi_port *p = r->ports; p; p = p->next)
		if (!p->spoiled && !lost(p) && p->asked_n < MAX_ASKED && !asks(p, to)) {
			p->asked[p->asked_n++] = *to;
			return p;
		}
	return NULL;
}

/* unused takes ports without a request out of the list that are not kept; with mu held. */
static struct rdsdi_port *unused(struct rdsdi_requests *r)
{
	struct rdsdi_port *out = NULL, **p = &r->ports;
	unsigned kept = 0;

	while (*p) {
		struct rdsdi_port *q = *p;

		if (q->asked_n || (!q->spoiled && !lost(q) && kept++ < KEEP_PORTS)) {
			p = &q->next;
			continue;
		}
		*p = q->next;
		q->next = out;
		out = q;
		r->n--;
	}
	return out;
}

/* close_ports keeps the text of the last error, which is the request's. */
static void close_ports(struct rdsdi_port *p)
{
	char text[256] = "";

	if (!p)
		return;
	strncat(text, rdsd_errmsg(), sizeof text - 1);
	while (p) {
		struct rdsdi_port *next = p->next;

		rdsd_close(p->sock);
		free(p);
		p = next;
	}
	rdsdi_fail(0, "%s", text);
}

static void release(struct rdsdi_requests *r, struct rdsdi_port *p, const rdsd_addr *to, bool late)
{
	struct rdsdi_port *out;

	pthread_mutex_lock(&r->mu);
	for (unsigned i = 0; i < p->asked_n; i++)
		if (addr_equal(&p->asked[i], to)) {
			p->asked[i] = p->asked[--p->asked_n];
			break;
		}
	p->spoiled |= late;
	out = r->over ? NULL : unused(r); /* at its end a socket closes them itself */
	changed(r);
	pthread_mutex_unlock(&r->mu);
	close_ports(out);
}

/* bind_port opens one more: 0 or why not. */
static int bind_port(rdsd_socket *s, int64_t deadline)
{
	struct rdsdi_requests *r = &s->requests;
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	struct rdsdi_port *p = calloc(1, sizeof *p);
	rdsd_addr local = s->local;
	int err;

	if (!p)
		return rdsdi_errno(-ENOMEM);
	local.port = 0;
	o.send_buffer = s->want_send;
	o.recv_buffer = s->want_recv;
	o.label = s->label;
	o.flags = s->flags & ~RDSD_OUTCOMES;
	o.spin = s->spin;
	o.timeout = deadline - rdsdi_now();
	if (o.timeout <= 0)
		o.timeout = 1;
	if (o.timeout > rdsdi_attempt_timeout) /* then it looks whether the socket is still there */
		o.timeout = rdsdi_attempt_timeout;
	err = rdsdi_bind(s->client, &local, &o, r, &p->sock);
	if (err) {
		free(p);
		return err;
	}
	pthread_mutex_lock(&r->mu);
	p->next = r->ports;
	r->ports = p;
	r->n++;
	if (r->over)
		atomic_store(&p->sock->over, -EBADF);
	pthread_mutex_unlock(&r->mu);
	return 0;
}

/* wait_changed sleeps until a port may be free, or so long; with mu held. Returns the errno of the wait. */
static int wait_changed(struct rdsdi_requests *r, int64_t until)
{
	uint32_t was = atomic_load(&r->changed);
	int err;

	r->waiting++;
	pthread_mutex_unlock(&r->mu);
	err = rdsdi_futex_wait(&r->changed, was, until);
	pthread_mutex_lock(&r->mu);
	r->waiting--;
	return err;
}

/* retry says whether a port that could not be bound may be had later. */
static bool retry(const rdsd_socket *s, int err, bool used)
{
	switch (err) {
	case -ETIMEDOUT: /* of the attempt, not of the caller */
		return true;
	case -EMFILE:
	case -ENOMEM:
	case -EADDRINUSE:
		return used;
	}
	return rdsdi_worth_retry(err) && !(s->flags & RDSD_NO_RECONNECT);
}

/* acquire finds or binds a port for a request: 0 or why there is none. */
static int acquire(rdsd_socket *s, const rdsd_addr *to, int64_t timeout, int64_t deadline, struct rdsdi_port **port)
{
	struct rdsdi_requests *r = &s->requests;
	int64_t pause = BACKOFF_MIN, until;
	bool turn = false;
	int err = 0;

	pthread_mutex_lock(&r->mu);
	for (;;) {
		err = r->over ? rdsdi_errno(-EBADF) : rdsdi_over(s);
		*port = err ? NULL : pick(r, to);
		if (err || *port)
			break;
		until = deadline;
		/* One thread at a time binds: its port may do for all who wait. */
		if (turn || (!r->binding && r->n < MAX_PORTS)) {
			turn = r->binding = true;
			pthread_mutex_unlock(&r->mu);
			err = bind_port(s, timeout == RDSD_NOWAIT ? rdsdi_now() + PATIENCE : deadline);
			pthread_mutex_lock(&r->mu);
			if (!err) {
				turn = r->binding = false;
				changed(r);
				continue;
			}
			if (timeout == RDSD_NOWAIT || !retry(s, err, r->n > 0))
				break;
			until = rdsdi_now() + pause < deadline ? rdsdi_now() + pause : deadline;
			pause = pause * 2 < BACKOFF_MAX ? pause * 2 : BACKOFF_MAX;
		} else if (timeout == RDSD_NOWAIT) {
			err = rdsdi_fail(-EAGAIN, "%u requests to this destination are under way: wait for one of them", MAX_PORTS);
			break;
		}
		if (rdsdi_now() >= deadline) {
			err = rdsdi_fail(-ETIMEDOUT, err ? "the deadline passed: no port for the reply could be bound"
							 : "the deadline passed: all ports for replies are in use");
			break;
		}
		if (wait_changed(r, until) == EINTR && s->flags & RDSD_INTERRUPTIBLE) {
			err = rdsdi_errno(-EINTR);
			break;
		}
	}
	if (turn) {
		r->binding = false;
		changed(r);
	}
	pthread_mutex_unlock(&r->mu);
	return err;
}

static int64_t left(int64_t timeout, int64_t deadline)
{
	if (timeout <= 0)
		return timeout;
	return deadline - rdsdi_now() > 0 ? deadline - rdsdi_now() : 1;
}

ssize_t rdsd_request(rdsd_socket *s, const rdsd_addr *to, const void *data, size_t len, void *buf, size_t size,
		     int64_t timeout)
{
	struct rdsdi_request q;
	struct rdsdi_port *port;
	rdsd_addr plain;
	int64_t deadline, result = rdsdi_usable(s);
	rdsd_msg reply;

	if (result)
		return result;
	result = rdsdi_addr_plain(to, &plain);
	if (result)
		return rdsdi_errno((int)result);
	deadline = rdsdi_deadline(timeout);
	do { /* -EADDRINUSE: the port is lost, and this has not left; it leaves from another one */
		result = acquire(s, &plain, timeout, deadline, &port);
		if (result)
			return result;
		rdsdi_request_begin(&q, port->sock, &plain);
		result = rdsd_send(port->sock, &plain, data, len, NULL, left(timeout, deadline));
		if (!result)
			result = rdsdi_request_wait(&q, left(timeout, deadline));
		result = rdsdi_request_end(&q, result, &reply);
		if (!result) {
			result = (int64_t)rdsdi_copy_out(&reply, buf, size, NULL);
			rdsdi_lease_drop(reply.lease, 1);
		}
		release(&s->requests, port, &plain, q.late);
	} while (result == -EADDRINUSE);
	return result;
}

int rdsd_reply(rdsd_socket *s, const rdsd_addr *from, const void *data, size_t len, int64_t timeout)
{
	return rdsd_send(s, from, data, len, NULL, timeout);
}
