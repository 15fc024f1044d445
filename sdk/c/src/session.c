/*
 * The session with the daemon: binding, noticing its end, binding again.
 *
 * Design notes. There is no thread: rdsdi_pump is called by whoever waits, and
 * now and then by calls that succeed. It never blocks, so a call that does not
 * wait may drive a reconnection, too. States:
 *
 *	DOWN        until due; then an attempt
 *	CONNECTING  Bind was sent, and RingMapped when the region came; due is
 *	            when the attempt is given up
 *	UP
 *	OVER        for good; over says why
 *
 * A region lives on when its session ends: what was received is still handed
 * out. What was accepted has its last outcomes read and the others decided
 * here, because nobody else can tell any more.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct rdsdi_link *rdsdi_link_get(rdsd_socket *s)
{
	struct rdsdi_link *l;

	pthread_mutex_lock(&s->ctl.mu);
	l = s->ctl.link;
	if (l)
		atomic_fetch_add(&l->refs, 1);
	pthread_mutex_unlock(&s->ctl.mu);
	return l;
}

void rdsdi_link_put(struct rdsdi_link *l)
{
	if (atomic_fetch_sub(&l->refs, 1) != 1)
		return;
	if (l->control >= 0)
		rdsdi_close(l->control);
	if (l->offered)
		rdsdi_region_unref(l->offered);
	if (l->reg) {
		store_release(&l->reg->left, true);
		rdsdi_region_unref(l->reg);
	}
	free(l);
}

int64_t rdsdi_session_due(rdsd_socket *s)
{
	int state = atomic_load(&s->state);

	return state == SESSION_DOWN || state == SESSION_CONNECTING ? atomic_load(&s->ctl.due) : INT64_MAX;
}

static void set_why(rdsd_socket *s, const char *format, const char *a, const char *b)
{
	pthread_mutex_lock(&s->why_mu);
	snprintf(s->why, sizeof s->why, format, a, b);
	pthread_mutex_unlock(&s->why_mu);
}

/* why_nobody is what is wrong with a path where no daemon answers, and what would be right. */
static const char *why_nobody(int err)
{
	switch (err) {
	case ENOENT:
		return "there is no such socket; start the daemon (rdsd serve), or name its socket by the client's target or $RDSD_SOCKET";
	case ECONNREFUSED:
		return "its daemon has ended; start it again (rdsd serve)";
	case EACCES:
	case EPERM:
		return "this user may not connect to it; the daemon's api.socket_group says who may";
	}
	return strerror(err);
}

static int say_why(rdsd_socket *s, int err, const char *prefix)
{
	pthread_mutex_lock(&s->why_mu);
	rdsdi_fail(err, "%s%s", prefix, s->why[0] ? s->why : rdsd_strerror(err));
	pthread_mutex_unlock(&s->why_mu);
	return err;
}

int rdsdi_usable(const rdsd_socket *s)
{
	if (s->process != rdsdi_process)
		return rdsdi_fail(-EBADF, "the socket belongs to the process that forked this one; bind another one here");
	return 0;
}

int rdsdi_over(rdsd_socket *s)
{
	int over = atomic_load(&s->over);

	if (!over)
		return 0;
	return over == -EBADF ? rdsdi_errno(-EBADF) : say_why(s, over, "");
}

int rdsdi_away(rdsd_socket *s)
{
	return say_why(s, -ESHUTDOWN, "not connected to the daemon: ");
}

_Atomic int64_t rdsdi_attempt_timeout = BIND_TIMEOUT;

/* The daemon is away, or still has the old socket, or has not got what it needs yet. */
bool rdsdi_worth_retry(int err)
{
	switch (-err) {
	case ESHUTDOWN:
	case ECANCELED:
	case ETIMEDOUT:
	case ECONNRESET:
	case EIO:
	case EADDRINUSE:
	case EADDRNOTAVAIL:
	case ENOMEM:
	case EMFILE:
	case EUSERS:
	case EHOSTUNREACH:
	case ECONNREFUSED:
		return true;
	}
	return false;
}

/* pause_after is between half of and the whole of 20 ms doubled n times, at most 2 s. */
static int64_t pause_after(unsigned n)
{
	int64_t pause = n < 7 ? BACKOFF_MIN << n : BACKOFF_MAX;
	uint64_t x = (uint64_t)rdsdi_now() * UINT64_C(0x9e3779b97f4a7c15);

	if (pause > BACKOFF_MAX)
		pause = BACKOFF_MAX;
	return pause / 2 + (int64_t)((x >> 33) % (uint64_t)(pause / 2));
}

static void drop_link(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;

	rdsdi_control_reset(c);
	rdsdi_pairs_forget(c);
	if (!c->link)
		return;
	rdsdi_sleep_watch(s, c->link, false);
	shutdown(c->link->control, SHUT_RDWR); /* the daemon learns of it, whoever still polls the descriptor */
	rdsdi_link_put(c->link);
	c->link = NULL;
}

static void finish(rdsd_socket *s, int err)
{
	int none = 0;

	atomic_compare_exchange_strong(&s->over, &none, err);
	atomic_store(&s->state, SESSION_OVER);
}

/* failed ends an attempt to bind. */
static void failed(rdsd_socket *s, int err, bool busy)
{
	struct rdsdi_ctl *c = &s->ctl;

	drop_link(s);
	/* A reply port whose number somebody else was given meanwhile: requests leave from another one. */
	if (!busy && (c->first || !rdsdi_worth_retry(err) || (s->replies && err == -EADDRINUSE))) {
		finish(s, err);
		return;
	}
	atomic_store(&c->due, rdsdi_now() + (busy ? RDSD_MS(1) : pause_after(c->attempt)));
	if (!busy && c->attempt < 30)
		c->attempt++;
	atomic_store(&s->state, SESSION_DOWN);
}

/* path_text shows an abstract name with its @. */
static const char *path_text(const rdsd_client *c, char *text, size_t size)
{
	snprintf(text, size, "%s%s", c->path[0] ? "" : "@", c->path[0] ? c->path : c->path + 1);
	return text;
}

/* say sends a message of the handshake. Where the daemon has closed, it may have said why: that is read next. */
static void say(struct rdsdi_link *l, const uint8_t *message, size_t n)
{
	if (rdsdi_control_send(l, message, n))
		shutdown(l->control, SHUT_WR);
}

static void attempt(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct rdsdi_bind b = {.local = s->local, .send_buffer = s->want_send, .recv_buffer = s->want_recv, .label = s->label};
	struct rdsdi_link *l;
	uint8_t message[PB_CLIENT_MAX];
	char path[120];
	int err = rdsdi_rx_room(s);

	rdsdi_regions_quiet();
	if (err) { /* before the Bind: what came for it would be thrown away */
		set_why(s, "%s%s", rdsd_errmsg(), "");
		failed(s, err, false);
		return;
	}
	l = calloc(1, sizeof *l);
	if (!l) {
		set_why(s, "no memory%s%s", "", "");
		failed(s, -ENOMEM, false);
		return;
	}
	atomic_init(&l->refs, 1);
	l->bell_daemon = l->bell_client = -1;
	l->control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	c->link = l;
	c->closed = false;
	if (l->control < 0) {
		err = errno == ENFILE ? -EMFILE : -errno;
		set_why(s, "a socket to the daemon: %s%s", strerror(errno), "");
		failed(s, err, false);
		return;
	}
	memcpy(un.sun_path, s->client->path, s->client->path_len);
	if (rdsdi_connect(l->control, (struct sockaddr *)&un,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + s->client->path_len))) {
		err = errno;
		set_why(s, "no daemon answers at %s: %s", path_text(s->client, path, sizeof path), why_nobody(err));
		/* EAGAIN: its queue of connections is full. */
		failed(s, err == EACCES || err == EPERM ? -EACCES : -ESHUTDOWN, err == EAGAIN);
		return;
	}
	say(l, message, rdsdi_pb_bind(message, &b));
	atomic_store(&c->due, c->first ? INT64_MAX : rdsdi_now() + rdsdi_attempt_timeout);
	atomic_store(&s->state, SESSION_CONNECTING);
	rdsdi_sleep_watch(s, l, true);
}

static void nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0 && !(flags & O_NONBLOCK))
		fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

/*
 * offered maps the region, which the daemon then seals: it cannot be mapped to
 * write afterwards. 0 or why it cannot be used.
 */
static int offered(rdsd_socket *s, const struct rdsdi_server *m)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_link *l = c->link;
	uint8_t message[PB_CLIENT_MAX];
	int err;

	if (m->ring_version == SHM_VERSION && c->fds_n < 4 && c->fds_lost)
		return rdsdi_fail(-EMFILE, "of the 4 descriptors of rings %u could be received: this process has too many open (ulimit -n)",
				  c->fds_n);
	if (m->ring_version != SHM_VERSION || c->fds_n != 4)
		return rdsdi_fail(-EPROTONOSUPPORT, "the daemon has no rings of layout %u", SHM_VERSION);
	if (l->offered)
		return rdsdi_fail(-EPROTO, "the daemon offered a second region");
	err = rdsdi_region_map(c->fds[0], c->fds[1], m->region_bytes, &l->offered);
	if (!err)
		say(l, message, rdsdi_pb_mapped(message));
	return err;
}

/* bound takes the region and the doorbells; 0 or why they cannot be used. */
static int bound(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_link *l = c->link;
	int err;

	if (!l->offered)
		return rdsdi_fail(-EPROTONOSUPPORT, "the daemon has no rings of layout %u", SHM_VERSION);
	err = rdsdi_region_begin(l->offered);
	if (err)
		return err;
	/* A thread that waits for the connection looks at them under this lock. */
	pthread_mutex_lock(&s->sleep.mu);
	l->reg = l->offered;
	l->offered = NULL;
	l->bell_daemon = l->reg->doorbells[0] = c->fds[2];
	l->bell_client = l->reg->doorbells[1] = c->fds[3];
	pthread_mutex_unlock(&s->sleep.mu);
	rdsdi_close(c->fds[0]);
	rdsdi_close(c->fds[1]);
	c->fds_n = 0;
	nonblocking(l->bell_daemon);
	nonblocking(l->bell_client);
	if (!c->first && !addr_equal(&l->reg->local, &s->local))
		return rdsdi_fail(-EPROTO, "the daemon bound another address than was asked for");
	err = rdsdi_tx_start(s, l);
	err = err ? rdsdi_errno(err) : rdsdi_rx_start(s, l);
	if (err) {
		rdsdi_tx_stop(s, WHY_DAEMON_RESTARTED);
		return err;
	}
	if (c->first) /* other threads read it from then on */
		s->local = l->reg->local;
	rdsdi_sleep_watch(s, l, true);
	c->attempt = 0;
	c->monitor_due = c->watch;
	if (!c->first) {
		pthread_mutex_lock(&s->tx.mu);
		rdsdi_changes_lost(&s->tx);
		pthread_mutex_unlock(&s->tx.mu);
	}
	c->first = false;
	atomic_store(&s->state, SESSION_UP);
	if (c->monitor_due)
		rdsdi_monitor(s);
	return 0;
}

static bool connecting(rdsd_socket *s)
{
	struct rdsdi_server m;
	int more = rdsdi_control_next(s, &m), err;
	char path[120];

	if (more < 0) {
		set_why(s, "the daemon at %s ended the connection%s", path_text(s->client, path, sizeof path), "");
		failed(s, more, false);
		return true;
	}
	if (more == 0) {
		if (rdsdi_now() < atomic_load(&s->ctl.due))
			return false;
		set_why(s, "the daemon at %s does not answer%s", path_text(s->client, path, sizeof path), "");
		failed(s, -ETIMEDOUT, false);
		return true;
	}
	switch (m.body) {
	case SERVER_CLOSING:
		err = m.error > 0 ? -m.error : -ESHUTDOWN;
		set_why(s, "%s%s", m.text[0] ? m.text : rdsd_strerror(err), "");
		failed(s, err, false);
		return true;
	case SERVER_REGION:
	case SERVER_BOUND:
		err = m.body == SERVER_REGION ? offered(s, &m) : bound(s);
		if (err) {
			set_why(s, "%s%s", rdsd_errmsg(), "");
			failed(s, err, false);
		}
		return true;
	}
	set_why(s, "the daemon's answer to Bind is none%s%s", "", "");
	failed(s, -EPROTO, false);
	return true;
}

static void lose_asks(struct rdsdi_ctl *c)
{
	struct rdsdi_ask *next;

	for (struct rdsdi_ask *a = c->asks; a; a = next) {
		next = a->next; /* the asker may be gone as soon as it sees the state */
		atomic_store(&a->state, ASK_LOST);
	}
	c->asks = NULL;
}

/* lost ends a session that was up. */
static void lost(rdsd_socket *s, int err)
{
	struct rdsdi_ctl *c = &s->ctl;
	int over = 0, fault = atomic_load(&s->fault);

	if (fault) {
		set_why(s, "the daemon wrote something into the rings that does not follow their layout%s%s", "", "");
		over = fault;
	} else if (c->closed && c->closing && c->closing != ESHUTDOWN) {
		set_why(s, "the daemon closed the socket: %s%s",
			c->closing_text[0] ? c->closing_text : rdsd_strerror(c->closing), "");
		over = -c->closing;
	} else if (err != -ESHUTDOWN) {
		set_why(s, "a message of the daemon does not follow the protocol%s%s", "", "");
		over = err;
	} else {
		set_why(s, "the daemon went away%s%s", c->closing_text[0] ? ": " : "", c->closing_text);
		if (s->flags & RDSD_NO_RECONNECT)
			over = -ESHUTDOWN;
	}
	if (over)
		finish(s, over);
	rdsdi_tx_stop(s, WHY_DAEMON_RESTARTED);
	rdsdi_rx_stop(s);
	lose_asks(c);
	drop_link(s);
	c->closing_text[0] = 0;
	if (!over) {
		c->attempt = 0;
		atomic_store(&c->due, rdsdi_now() + pause_after(c->attempt++));
		atomic_store(&s->state, SESSION_DOWN);
	}
}

static void dispatch(rdsd_socket *s, const struct rdsdi_server *m)
{
	struct rdsdi_ctl *c = &s->ctl;

	switch (m->body) {
	case SERVER_CLOSING:
		c->closed = true;
		c->closing = m->error;
		memcpy(c->closing_text, m->text, sizeof c->closing_text);
		break;
	case SERVER_CANCEL_RESULT:
	case SERVER_FLUSH_RESULT:
	case SERVER_CONGESTED_RESULT:
		for (struct rdsdi_ask **a = &c->asks; *a; a = &(*a)->next)
			if ((*a)->id == m->id) {
				struct rdsdi_ask *found = *a;

				*a = found->next;
				found->answer = *m;
				atomic_store(&found->state, ASK_ANSWERED);
				break;
			}
		break;
	case SERVER_PAIR:
		rdsdi_pair_step(s, m);
		break;
	}
	rdsdi_control_close_fds(c); /* an offer has mapped them */
}

static bool up(rdsd_socket *s)
{
	struct rdsdi_server m;
	bool any = false;
	int more = 0;

	if (atomic_load(&s->fault)) {
		lost(s, -EPROTO);
		return true;
	}
	while (rdsdi_pairs_room(&s->ctl) && (more = rdsdi_control_next(s, &m)) > 0) {
		dispatch(s, &m);
		any = true;
	}
	if (more < 0) {
		lost(s, more);
		return true;
	}
	rdsdi_pairs_sweep(s);
	rdsdi_pairs_say(&s->ctl);
	if (s->ctl.monitor_due)
		rdsdi_monitor(s);
	return any;
}

/* pump_locked, with ctl.mu held. */
static bool pump_locked(rdsd_socket *s)
{
	switch (atomic_load(&s->state)) {
	case SESSION_DOWN:
		if (rdsdi_now() < atomic_load(&s->ctl.due))
			return false;
		attempt(s);
		return true;
	case SESSION_CONNECTING:
		return connecting(s);
	case SESSION_UP:
		return up(s);
	}
	return false;
}

bool rdsdi_pump(rdsd_socket *s)
{
	bool any;

	if (pthread_mutex_trylock(&s->ctl.mu))
		return false; /* somebody is at it */
	any = pump_locked(s);
	pthread_mutex_unlock(&s->ctl.mu);
	if (any)
		rdsdi_notify(s);
	return any;
}

void rdsdi_check(rdsd_socket *s)
{
	struct timespec t;
	int64_t now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
	if (atomic_load(&s->state) == SESSION_UP && !atomic_load_explicit(&s->fault, memory_order_relaxed) &&
	    now - load_relaxed(&s->checked) < CHECK_EVERY)
		return;
	store_relaxed(&s->checked, now);
	rdsdi_pump(s);
}

int rdsdi_session_first(rdsd_socket *s, int64_t timeout)
{
	int64_t deadline = rdsdi_deadline(timeout), until, now;

	for (;;) {
		struct pollfd fds[2] = {{.fd = -1, .events = POLLIN}, {.fd = s->sleep.kick, .events = POLLIN}};
		struct timespec t;

		pthread_mutex_lock(&s->ctl.mu);
		while (pump_locked(s))
			;
		if (s->ctl.link)
			fds[0].fd = s->ctl.link->control;
		pthread_mutex_unlock(&s->ctl.mu);
		switch (atomic_load(&s->state)) {
		case SESSION_UP:
			return 0;
		case SESSION_OVER:
			return rdsdi_over(s);
		}
		if (atomic_load(&s->over)) /* of a reply port: so is the socket that has it */
			return rdsdi_over(s);
		now = rdsdi_now();
		if (now >= deadline)
			return say_why(s, -ETIMEDOUT, "the deadline passed before the daemon answered: ");
		until = rdsdi_session_due(s);
		until = rdsdi_slice(until < deadline ? until : deadline) - now;
		if (until < 0)
			until = 0;
		t.tv_sec = until / 1000000000;
		t.tv_nsec = until % 1000000000;
		if (rdsdi_ends(s, rdsdi_ppoll(fds, 2, &t) < 0 ? errno : 0))
			return rdsdi_errno(-EINTR);
	}
}

/* await_end reads until the daemon has ended the connection: then the port is free. */
static void await_end(const struct rdsdi_link *l)
{
	int64_t deadline = rdsdi_now() + CLOSE_GRACE, left;
	uint8_t packet[512];

	while ((left = deadline - rdsdi_now()) > 0) {
		struct pollfd fd = {.fd = l->control, .events = POLLIN};
		struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
		ssize_t n;

		if (rdsdi_ppoll(&fd, 1, &t) < 0 && errno != EINTR)
			return;
		n = rdsdi_recv(l->control, packet, sizeof packet, MSG_DONTWAIT); /* descriptors in it are not taken */
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return;
	}
}

void rdsdi_session_close(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_link *l = NULL;

	pthread_mutex_lock(&c->mu);
	atomic_store(&s->over, -EBADF);
	rdsdi_tx_stop(s, WHY_CLOSED);
	rdsdi_rx_stop(s);
	lose_asks(c);
	if (c->link) { /* where it is over, another thread closes it too, and both wait */
		l = c->link;
		atomic_fetch_add(&l->refs, 1);
		shutdown(l->control, SHUT_WR);
	}
	atomic_store(&s->state, SESSION_OVER);
	pthread_mutex_unlock(&c->mu);
	rdsdi_notify(s);
	if (l) {
		/* Nobody binds the port of a reply port again, and a request must not wait longer than it may. */
		if (!s->owned)
			await_end(l);
		rdsdi_link_put(l);
	}
	pthread_mutex_lock(&c->mu);
	drop_link(s);
	pthread_mutex_unlock(&c->mu);
}
