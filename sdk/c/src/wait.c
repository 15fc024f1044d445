/*
 * How a call waits.
 *
 * Design notes. Seeing a word change costs 0.1 us, waking a thread on another
 * core 20 us and more. So a call first tries, then tries again between calls of
 * sched_yield for the socket's spin time, and only then sleeps.
 *
 * One word and one doorbell say for the whole socket that somebody sleeps. So
 * one thread, the leader, sleeps on the doorbell for all; the others wait for
 * the futex sleep.turn, which changes whenever the leader leaves or something
 * else happened that they may wait for. A thread reads the turn before it looks
 * at what it waits for, and sleeps only while the turn is still the same, so
 * nothing falls between looking and sleeping. Whoever comes up first becomes the
 * next leader.
 *
 * A loop that polls rdsd_fd sleeps beside the leader: both have declared it
 * (leading, armed). Draining the doorbell would hide a ring from the other, so
 * whoever drains passes it on: to the leader by the kick, to the loop by its
 * timer, which is readable until rdsd_disarm.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define SOON INT64_C(200000) /* ns; the pause of a call that nothing wakes */
#define LONG RDSD_SEC(3600)
#define SLICE RDSD_MS(200)   /* of a sleep that no signal ends which came just before it */

int64_t rdsdi_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t rdsdi_deadline(int64_t timeout)
{
	int64_t now = rdsdi_now();

	if (timeout < 0 || timeout > INT64_MAX - now)
		return INT64_MAX;
	return now + timeout;
}

static struct timespec *relative(struct timespec *t, int64_t until)
{
	int64_t left;

	if (until == INT64_MAX)
		return NULL;
	left = until - rdsdi_now();
	if (left < 0)
		left = 0;
	t->tv_sec = left / 1000000000;
	t->tv_nsec = left % 1000000000;
	return t;
}

static void add_one(int fd)
{
	static const uint64_t one = 1;
	ssize_t n = rdsdi_write(fd, &one, sizeof one);

	(void)n;
}

static bool drain_fd(int fd)
{
	uint64_t n;

	return fd >= 0 && rdsdi_read(fd, &n, sizeof n) == sizeof n;
}

/*
 * drain_bell takes what the daemon has rung, and says whether it did. The doorbell
 * is a socket; when the daemon is gone it is readable for ever, which the end of
 * the control connection explains.
 */
static bool drain_bell(int fd)
{
	char rings[64];
	bool any = false;
	ssize_t n;

	if (fd < 0)
		return false;
	do {
		n = rdsdi_recv(fd, rings, sizeof rings, MSG_DONTWAIT);
		any = any || n > 0;
	} while (n == sizeof rings || (n < 0 && errno == EINTR));
	return any;
}

/* fire makes the event loop's descriptor readable at a time (ns, monotonic). */
static void fire(struct rdsdi_sleep *w, int64_t when)
{
	struct itimerspec t = {.it_value = {.tv_sec = when / 1000000000, .tv_nsec = when % 1000000000}};

	timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

/* bell_of is the client's doorbell, -1 while the connection is being made (bound in session.c). */
static int bell_of(struct rdsdi_sleep *w, const struct rdsdi_link *l)
{
	int fd;

	pthread_mutex_lock(&w->mu);
	fd = l->bell_client;
	pthread_mutex_unlock(&w->mu);
	return fd;
}

/* drain empties the client's doorbell and passes what it said on to the other sleeper. */
static void drain(rdsd_socket *s, struct rdsdi_link *l, bool as_leader)
{
	struct rdsdi_sleep *w = &s->sleep;

	if (!l || !drain_bell(bell_of(w, l)))
		return;
	pthread_mutex_lock(&w->mu);
	if (as_leader && w->armed)
		fire(w, 1);
	if (!as_leader && w->leading)
		add_one(w->kick);
	pthread_mutex_unlock(&w->mu);
}

/* word is what the client waits for, of all who sleep. */
static void store_word(struct rdsdi_sleep *w, struct rdsdi_link *l)
{
	uint32_t bits = 0;

	if (!l || !l->reg)
		return;
	if (w->leading) {
		bits |= w->lead_bits;
		for (unsigned i = 0; i < 4; i++)
			bits |= w->follow[i] ? 1u << i : 0;
	}
	if (w->armed)
		bits |= w->arm_bits;
	atomic_store(at32(l->reg, W_CLIENT_SLEEPS), bits);
	rdsdi_pairs_sleep(l->reg, bits & WAITS_RECV);
	atomic_thread_fence(memory_order_seq_cst); /* before the caller looks once more */
}

static void set_leading(struct rdsdi_sleep *w, struct rdsdi_link *l, bool on, uint32_t bits)
{
	pthread_mutex_lock(&w->mu);
	w->leading = on;
	w->link = on ? l : NULL;
	w->lead_bits = bits;
	store_word(w, l);
	pthread_mutex_unlock(&w->mu);
}

static void set_armed(struct rdsdi_sleep *w, struct rdsdi_link *l, bool on, uint32_t bits)
{
	pthread_mutex_lock(&w->mu);
	w->armed = on;
	w->arm_bits = bits;
	store_word(w, l);
	pthread_mutex_unlock(&w->mu);
}

/* set_following adds (or takes off) a thread that sleeps behind the leader. */
static void set_following(struct rdsdi_sleep *w, bool on, uint32_t bits)
{
	pthread_mutex_lock(&w->mu);
	for (unsigned i = 0; i < 4; i++)
		if (bits & 1u << i)
			w->follow[i] += on ? 1 : UINT32_MAX;
	if (on && w->leading)
		store_word(w, w->link);
	pthread_mutex_unlock(&w->mu);
}

/*
 * With a time, however long: the kernel takes a wait without one up again after a
 * handler with SA_RESTART, and the caller would never hear of the signal.
 */
int rdsdi_futex_wait(_Atomic uint32_t *word, uint32_t was, int64_t until)
{
	struct timespec t;

	if (until == INT64_MAX)
		until = rdsdi_now() + LONG;
	return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, was, relative(&t, until), NULL, 0) < 0 ? errno : 0;
}

void rdsdi_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void next_turn(struct rdsdi_sleep *w)
{
	atomic_fetch_add(&w->turn, 1);
	if (atomic_load(&w->followers))
		rdsdi_futex_wake(&w->turn);
}

void rdsdi_notify(rdsd_socket *s)
{
	struct rdsdi_sleep *w = &s->sleep;

	next_turn(w);
	pthread_mutex_lock(&w->mu);
	if (w->leading)
		add_one(w->kick);
	if (w->armed)
		fire(w, 1);
	pthread_mutex_unlock(&w->mu);
}

void rdsdi_kick(rdsd_socket *s)
{
	add_one(s->sleep.kick);
}

/*
 * missing: the step has found something else than when the sleep was declared. It waits
 * for more (its ring was full, now its buffer is), or for something else: the daemon has
 * answered a call that only waited for that.
 */
static bool missing(const struct rdsdi_op *op, const struct rdsdi_op *declared)
{
	return op->bits & ~declared->bits || op->patient != declared->patient || op->soon != declared->soon;
}

/* lead sleeps for all threads of the socket. Returns the errno of poll. */
static int lead(struct rdsdi_op *op, uint32_t turn, int64_t until, int64_t *result)
{
	rdsd_socket *s = op->s;
	struct rdsdi_sleep *w = &s->sleep;
	struct rdsdi_link *l = rdsdi_link_get(s);
	struct pollfd fds[3] = {{.fd = w->kick, .events = POLLIN}, {.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
	struct timespec t;
	int64_t due = rdsdi_session_due(s);
	const struct rdsdi_op declared = *op;
	int err = 0;

	if (l) {
		fds[1].fd = bell_of(w, l);
		fds[2].fd = l->control;
	}
	if (due < until)
		until = due;
	drain_fd(w->kick);
	drain(s, l, true);
	set_leading(w, l, true, declared.bits);
	*result = op->step(op);
	if (*result == BLOCKED && !missing(op, &declared) && atomic_load(&w->turn) == turn &&
	    rdsdi_ppoll(fds, 3, relative(&t, until)) < 0)
		err = errno;
	set_leading(w, l, false, 0);
	if (l)
		rdsdi_link_put(l);
	atomic_store(&w->leader, false);
	next_turn(w);
	return err;
}

static int follow(struct rdsdi_op *op, uint32_t turn, int64_t until, int64_t *result)
{
	struct rdsdi_sleep *w = &op->s->sleep;
	const struct rdsdi_op declared = *op;
	int err = 0;

	atomic_fetch_add(&w->followers, 1);
	set_following(w, true, declared.bits);
	*result = op->step(op);
	if (*result == BLOCKED && !missing(op, &declared))
		err = rdsdi_futex_wait(&w->turn, turn, until);
	set_following(w, false, declared.bits);
	atomic_fetch_sub(&w->followers, 1);
	return err;
}

/* sleep_once sleeps until there may be something new. */
static int sleep_once(struct rdsdi_op *op, uint32_t turn, int64_t until, int64_t *result)
{
	bool nobody = false;

	*result = BLOCKED;
	if (atomic_compare_exchange_strong(&op->s->sleep.leader, &nobody, true))
		return lead(op, turn, until, result);
	return follow(op, turn, until, result);
}

const char *rdsdi_cause(const struct rdsdi_op *op)
{
	if (op->why != -EAGAIN)
		return op->why ? rdsd_strerror(op->why) : "no answer yet";
	if (op->bits & WAITS_RECV)
		return "nothing has come";
	if (op->patient)
		return "the daemon has not looked at the destination yet";
	if (op->bits & WAITS_SEND_ROOM)
		return "the send ring is full";
	return op->reads ? "nothing has happened" : "the send buffer is full";
}

static int timed_out(struct rdsdi_op *op, int64_t timeout)
{
	if (timeout)
		return rdsdi_fail(-ETIMEDOUT, "the deadline passed: %s", rdsdi_cause(op));
	return rdsdi_fail(-ETIMEDOUT, "the daemon does not answer");
}

/* blocked goes on with an op whose first step has found something missing. */
static int64_t blocked(struct rdsdi_op *op, int64_t timeout, struct rdsdi_jam *jam)
{
	rdsd_socket *s = op->s;
	int64_t result, deadline, now;
	uint32_t turn;

	rdsdi_check(s);
	if (timeout == RDSD_NOWAIT) {
		result = op->step(op); /* what the check has brought */
		if (result != BLOCKED)
			return result;
		if (!op->patient) {
			rdsdi_jam_failed(op);
			return op->why == -ESHUTDOWN ? rdsdi_away(s) : rdsdi_because(op->why, rdsdi_cause(op));
		}
	}
	now = rdsdi_now();
	deadline = timeout == RDSD_NOWAIT ? now + PATIENCE : rdsdi_deadline(timeout);
	if (!op->asks && s->spin > 0) {
		int64_t until = now + s->spin;

		while (now < until && now < deadline) {
			sched_yield();
			result = op->step(op);
			if (result != BLOCKED)
				return result;
			now = rdsdi_now();
		}
	}
	for (;;) {
		int64_t until = deadline;
		int err;

		turn = atomic_load(&s->sleep.turn);
		result = op->step(op);
		if (result != BLOCKED)
			return result;
		if (timeout == RDSD_NOWAIT && !op->patient) {
			rdsdi_jam_failed(op);
			return op->why == -ESHUTDOWN ? rdsdi_away(s) : rdsdi_because(op->why, rdsdi_cause(op));
		}
		rdsdi_jam_begin(jam, op);
		if (rdsdi_pump(s))
			continue;
		now = rdsdi_now();
		if (now >= deadline)
			return timed_out(op, timeout);
		if (op->soon && deadline - now > SOON)
			until = now + SOON;
		err = sleep_once(op, turn, rdsdi_slice(until), &result);
		if (result != BLOCKED)
			return result;
		if (rdsdi_ends(s, err)) {
			result = op->step(op);
			return result != BLOCKED ? result : rdsdi_errno(-EINTR);
		}
	}
}

int64_t rdsdi_run(struct rdsdi_op *op, int64_t timeout)
{
	struct rdsdi_jam mine = {0}, *jam;
	int64_t result = op->step(op);

	if (result != BLOCKED)
		return result;
	jam = op->sends && rdsdi_jam_whole ? rdsdi_jam_whole : &mine;
	result = blocked(op, timeout, jam);
	rdsdi_jam_end(jam, &op->s->tx);
	return result;
}

_Thread_local bool (*rdsdi_interrupted)(int err);

int64_t rdsdi_slice(int64_t until)
{
	int64_t soon;

	if (!rdsdi_interrupted)
		return until;
	soon = rdsdi_now() + SLICE;
	return soon < until ? soon : until;
}

bool rdsdi_ends(const rdsd_socket *s, int err)
{
	if (!(s->flags & RDSD_INTERRUPTIBLE))
		return false;
	return rdsdi_interrupted ? !rdsdi_interrupted(err) : err == EINTR;
}

int rdsdi_sleep_init(struct rdsdi_sleep *w)
{
	w->poll_fd = w->timer_fd = -1;
	pthread_mutex_init(&w->mu, NULL);
	w->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return w->kick < 0 ? -errno : 0;
}

void rdsdi_sleep_destroy(struct rdsdi_sleep *w)
{
	if (w->kick >= 0)
		rdsdi_close(w->kick);
	if (w->poll_fd >= 0)
		rdsdi_close(w->poll_fd);
	if (w->timer_fd >= 0)
		rdsdi_close(w->timer_fd);
	pthread_mutex_destroy(&w->mu);
}

/* Event loops */

void rdsdi_sleep_watch(rdsd_socket *s, struct rdsdi_link *l, bool on)
{
	struct rdsdi_sleep *w = &s->sleep;
	struct epoll_event ev = {.events = EPOLLIN};
	int op = on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;

	pthread_mutex_lock(&w->mu);
	if (w->poll_fd >= 0) {
		epoll_ctl(w->poll_fd, op, l->control, &ev); /* EEXIST, ENOENT: it is as it should be */
		if (l->bell_client >= 0)
			epoll_ctl(w->poll_fd, op, l->bell_client, &ev);
	}
	pthread_mutex_unlock(&w->mu);
}

int rdsd_fd(rdsd_socket *s)
{
	struct rdsdi_sleep *w = &s->sleep;
	struct epoll_event ev = {.events = EPOLLIN};
	int err = rdsdi_usable(s), poll_fd, timer_fd;

	if (err)
		return err;
	pthread_mutex_lock(&w->mu);
	if (w->poll_fd >= 0) {
		poll_fd = w->poll_fd;
		pthread_mutex_unlock(&w->mu);
		return poll_fd;
	}
	poll_fd = epoll_create1(EPOLL_CLOEXEC);
	timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (poll_fd < 0 || timer_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, &ev)) {
		err = -errno;
		if (poll_fd >= 0)
			rdsdi_close(poll_fd);
		if (timer_fd >= 0)
			rdsdi_close(timer_fd);
		pthread_mutex_unlock(&w->mu);
		return rdsdi_fail(err, "a descriptor for poll: %s", strerror(-err));
	}
	w->timer_fd = timer_fd;
	w->poll_fd = poll_fd;
	pthread_mutex_unlock(&w->mu);
	pthread_mutex_lock(&s->ctl.mu); /* who drops the link then takes it out again */
	if (s->ctl.link)
		rdsdi_sleep_watch(s, s->ctl.link, true);
	pthread_mutex_unlock(&s->ctl.mu);
	return poll_fd;
}

static int ready(rdsd_socket *s, unsigned what)
{
	struct rdsdi_tx *tx = &s->tx;
	bool over = atomic_load(&s->over); /* before the looks: what had come is handed out before the error */
	int got = 0;

	if (what & (RDSD_WRITABLE | RDSD_OUTCOME | RDSD_CONGESTION)) {
		pthread_mutex_lock(&tx->mu);
		rdsdi_events(s);
		if (what & RDSD_WRITABLE && tx->reg && tx->used <= tx->sndbuf / 2 && !rdsdi_outcomes_full(tx))
			got |= RDSD_WRITABLE;
		if (what & RDSD_OUTCOME && tx->outcome_n)
			got |= RDSD_OUTCOME;
		if (what & RDSD_OUTCOME && tx->reg)
			over = false; /* its end is about to decide the others, and notifies then */
		if (what & RDSD_CONGESTION && tx->changes)
			rdsdi_flow_cleared(tx);
		if (what & RDSD_CONGESTION && tx->any_change)
			got |= RDSD_CONGESTION;
		pthread_mutex_unlock(&tx->mu);
	}
	if (what & (RDSD_READABLE | RDSD_BORROWED)) {
		pthread_mutex_lock(&s->rx.mu);
		if (!s->rx.dead)
			over = false; /* what gets in by a pair is not shut off yet */
		if (what & RDSD_READABLE && rdsdi_rx_ready(s))
			got |= RDSD_READABLE;
		if (what & RDSD_BORROWED && rdsdi_rx_starved(&s->rx))
			got |= RDSD_BORROWED;
		pthread_mutex_unlock(&s->rx.mu);
	}
	return got || !over ? got : rdsdi_over(s);
}

/* linked says whether the socket still has this link. */
static bool linked(rdsd_socket *s, const struct rdsdi_link *l)
{
	bool same;

	pthread_mutex_lock(&s->ctl.mu);
	same = s->ctl.link == l;
	pthread_mutex_unlock(&s->ctl.mu);
	return same;
}

static uint32_t bits_of(unsigned what)
{
	return (what & (RDSD_READABLE | RDSD_BORROWED) ? WAITS_RECV : 0) |
	       (what & (RDSD_WRITABLE | RDSD_OUTCOME | RDSD_CONGESTION) ? WAITS_EVENT : 0) |
	       (what & RDSD_CONGESTION ? WAITS_FLOW : 0); /* of the refused ones */
}

int rdsd_arm(rdsd_socket *s, unsigned what)
{
	struct rdsdi_sleep *w = &s->sleep;
	struct rdsdi_link *l;
	int fd = rdsd_fd(s), got;
	int64_t due;

	if (fd < 0)
		return fd;
	while (rdsdi_pump(s))
		;
	l = rdsdi_link_get(s);
	drain(s, l, false);
	pthread_mutex_lock(&w->mu);
	drain_fd(w->timer_fd);
	due = rdsdi_session_due(s);
	fire(w, due == INT64_MAX ? 0 : due); /* 0 disarms a timer */
	pthread_mutex_unlock(&w->mu);
	set_armed(w, l, true, bits_of(what));
	/* Another thread that has changed the link before that has woken nobody: the loop looks again. */
	if (!linked(s, l)) {
		pthread_mutex_lock(&w->mu);
		fire(w, 1);
		pthread_mutex_unlock(&w->mu);
	}
	got = ready(s, what);
	if (got)
		set_armed(w, l, false, 0);
	if (l)
		rdsdi_link_put(l);
	return got;
}

void rdsd_disarm(rdsd_socket *s)
{
	struct rdsdi_link *l;

	if (s->process != rdsdi_process)
		return;
	l = rdsdi_link_get(s);
	set_armed(&s->sleep, l, false, 0);
	if (l)
		rdsdi_link_put(l);
}
