/*
 * Calls that end at any moment, over restarts of the daemon: by small timeouts, signals, forks of the process, and
 * each way to send and to receive. The books must balance: each accepted datagram has one outcome, none that was
 * not has one, what was delivered is read once and in order, and nothing else is.
 *
 * $RDSD_CHAOS: how many datagrams, 8,000 by default. $RDSD_SEED: a seed that was printed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

enum { FROM = 1, INTO = 2, STUCK = 3, READERS = 2, LENT = 20, BATCH = 50 };

struct tagged {
	uint64_t tag;
	uint32_t n; /* the number of the datagram, 0 for those to STUCK; of outcomes the kind */
};

struct book {
	pthread_mutex_t mu; /* guards all of it */
	struct tagged *of;
	size_t n, cap;
};

static struct fake *f;
static rdsd_socket *a, *b;
static struct book sent = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0}, decided = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0},
		   got = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0};
static _Atomic bool stop, enough;
static uint64_t seed;

static uint64_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * UINT64_C(0x2545f4914f6cdd1d) >> 33;
}

static void enter(struct book *k, uint64_t tag, uint32_t n)
{
	pthread_mutex_lock(&k->mu);
	if (k->n == k->cap) {
		k->cap = k->cap ? 2 * k->cap : 1024;
		k->of = realloc(k->of, k->cap * sizeof *k->of);
		CHECK(k->of);
	}
	k->of[k->n++] = (struct tagged){tag, n};
	pthread_mutex_unlock(&k->mu);
}

static size_t entries(struct book *k)
{
	size_t n;

	pthread_mutex_lock(&k->mu);
	n = k->n;
	pthread_mutex_unlock(&k->mu);
	return n;
}

/* ends is a result that a call may have here. */
static void ends(const char *call, ssize_t err)
{
	if (err == -ETIMEDOUT || err == -EAGAIN || err == -ESHUTDOWN || err == -EINTR || err == -ENOBUFS)
		return;
	fprintf(stderr, "%s: %zd, %s (seed %llu)\n", call, err, rdsd_errmsg(), (unsigned long long)seed);
	exit(1);
}

/* brief is a timeout that ends anywhere, or RDSD_NOWAIT. */
static int64_t brief(uint64_t *r) { return rnd(r) % 4 ? (int64_t)(rnd(r) % 400000) : RDSD_NOWAIT; }

static rdsd_addr at(uint16_t port)
{
	rdsd_addr to = {{127, 0, 0, 2}, port, 4, 0};

	return to;
}

static void numbered(uint8_t *p, uint32_t n) { memcpy(p, &n, sizeof n); }

static size_t length(uint64_t *r) { return 4 + rnd(r) % 3 * (rnd(r) % 60); }

static void send_batch(uint64_t *r, uint32_t *n)
{
	static uint8_t room[BATCH][200];
	rdsd_dgram d[BATCH];
	size_t k = 1 + rnd(r) % BATCH;
	ssize_t took, accepted = 0;
	int error = 0;

	for (size_t i = 0; i < k; i++) {
		numbered(room[i], *n + (uint32_t)i);
		d[i] = (rdsd_dgram){.data = room[i], .len = length(r), .to = at(INTO)};
	}
	took = rdsd_send_batch(a, d, k, &error, brief(r));
	for (size_t i = 0; i < k; i++)
		if (!d[i].error) {
			enter(&sent, d[i].tag, *n + (uint32_t)i);
			accepted++;
		} else {
			ends("batch", d[i].error);
		}
	CHECK(took == accepted || (took < 0 && !accepted && took == error));
	CHECK((took < (ssize_t)k) == (error != 0));
	*n += (uint32_t)k;
}

static void send_run(uint64_t *r, uint32_t *n)
{
	static uint8_t room[BATCH * 200];
	rdsd_addr to = at(INTO);
	size_t k = 1 + rnd(r) % BATCH, len = length(r);
	uint64_t tag;
	ssize_t took;

	for (size_t i = 0; i < k; i++)
		numbered(room + i * len, *n + (uint32_t)i);
	took = rdsd_send_run(a, &to, room, len, k, &tag, brief(r));
	for (ssize_t i = 0; i < took; i++)
		enter(&sent, tag + (uint64_t)i, *n + (uint32_t)i);
	if (took < 0)
		ends("run", took);
	*n += (uint32_t)k;
}

static void send_slot(uint64_t *r, uint32_t n)
{
	rdsd_addr to = at(INTO);
	rdsd_slot slot;
	uint64_t tag;
	int err = rdsd_reserve(a, &to, 100, &slot, brief(r));

	if (err) {
		ends("reserve", err);
		return;
	}
	if (rnd(r) % 4 == 0) {
		rdsd_abort(a, &slot);
		return;
	}
	if (rnd(r) % 8 == 0)
		fake_kill(f); /* a slot of a life that has ended */
	numbered(slot.data, n);
	err = rdsd_commit(a, &slot, 4 + rnd(r) % 97, &tag);
	if (!err)
		enter(&sent, tag, n);
	else
		ends("commit", err);
}

/* sender is the only one: numbers rise, and those that are not accepted are left out. */
static void *sender(void *arg)
{
	uint64_t r = seed + 1;
	uint32_t count = getenv("RDSD_CHAOS") ? (uint32_t)atoi(getenv("RDSD_CHAOS")) : 8000;
	rdsd_addr to = at(INTO);

	(void)arg;
	for (uint32_t n = 1; n <= count;) {
		uint8_t one[200];
		uint64_t tag;
		int err;

		switch (rnd(&r) % 8) {
		case 0:
		case 1:
			numbered(one, n);
			err = rdsd_send(a, &to, one, length(&r), &tag, brief(&r));
			if (err)
				ends("send", err);
			else
				enter(&sent, tag, n);
			n++;
			break;
		case 2:
			send_slot(&r, n++);
			break;
		case 3:
		case 4:
			send_run(&r, &n);
			break;
		default:
			send_batch(&r, &n);
		}
		if (rnd(&r) % 100 == 0)
			fake_kill(f);
	}
	return NULL;
}

static void read_one(const void *data, size_t len, const rdsd_addr *from)
{
	uint32_t n;

	CHECK(len >= 4 && from->port == FROM);
	memcpy(&n, data, 4);
	enter(&got, 0, n);
}

/* receiver is the only one, by every way there is. */
static void *receiver(void *arg)
{
	uint64_t r = seed + 2;
	rdsd_msg lent[LENT + BATCH];
	size_t lent_n = 0;

	(void)arg;
	while (!atomic_load(&enough)) {
		uint8_t buf[200];
		rdsd_addr from;
		size_t size;
		ssize_t n;

		if (rnd(&r) % 100 == 0) /* over some lives */
			nanosleep(&(struct timespec){0, (long)(rnd(&r) % 20000000)}, NULL);
		switch (rnd(&r) % 3) {
		case 0:
			n = rdsd_recv(b, buf, 4, &from, brief(&r));
			if (n >= 0)
				read_one(buf, (size_t)n, &from);
			break;
		case 1:
			n = rdsd_recv_batch(b, lent + lent_n, 1 + rnd(&r) % BATCH, brief(&r));
			for (ssize_t i = 0; i < n; i++)
				read_one(lent[lent_n + (size_t)i].data, lent[lent_n + (size_t)i].len, &lent[lent_n + (size_t)i].from);
			lent_n += n > 0 ? (size_t)n : 0;
			break;
		default:
			n = rdsd_peek(b, &size);
			CHECK(n <= 0 || (size >= 4 && size < 200));
		}
		if (n < 0)
			ends("receive", n);
		while (lent_n && (lent_n > LENT || n == -ENOBUFS || rnd(&r) % 16 == 0)) { /* in any order */
			size_t i = rnd(&r) % lent_n;

			rdsd_release(&lent[i], 1);
			lent[i] = lent[--lent_n];
		}
	}
	rdsd_release(lent, lent_n);
	return NULL;
}

static void *decider(void *arg)
{
	uint64_t r = seed + 3 + (uintptr_t)arg;

	while (!atomic_load(&enough)) {
		rdsd_outcome o[5];
		ssize_t n = rdsd_outcomes(a, o, 1 + rnd(&r) % 5, brief(&r));

		if (n < 0)
			ends("outcomes", n);
		for (ssize_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < o[i].count; k++)
				enter(&decided, o[i].tag + k, o[i].kind);
	}
	return NULL;
}

/* disturber asks everything else, and makes requests that nobody answers. */
static void *disturber(void *arg)
{
	uint64_t r = seed + 9;
	rdsd_addr stuck = at(STUCK);

	(void)arg;
	while (!atomic_load(&stop)) {
		struct timespec t = {0, 100000};
		rdsd_congestion event;
		ssize_t err = 0;
		uint64_t tag;
		pid_t child;
		int status;

		switch (rnd(&r) % 9) {
		case 0: err = rdsd_flush(rnd(&r) % 2 ? a : b, brief(&r)); break;
		case 1: err = rdsd_congested(a, &stuck, brief(&r)); break;
		case 2: err = rdsd_cancel_sent_to(a, &stuck, NULL, brief(&r)); break;
		case 3: err = rdsd_request(a, &stuck, "x", 1, NULL, 0, brief(&r)); break;
		case 4: err = rdsd_watch(a, 1, rnd(&r)); break;
		case 5: err = rdsd_next_congestion(a, &event, brief(&r)); break;
		case 6:
			err = rdsd_try_send(a, &stuck, "x", 1, &tag);
			if (!err)
				enter(&sent, tag, 0);
			break;
		case 7:
			err = rdsd_arm(b, RDSD_READABLE | RDSD_BORROWED);
			rdsd_disarm(b);
			break;
		default:
			if (rnd(&r) % 20)
				break;
			child = fork();
			if (!child) {
				CHECK_IS(rdsd_shutdown(a), -EBADF);
				rdsd_close(a);
				rdsd_close(b);
				_exit(0);
			}
			CHECK(child > 0);
			while (waitpid(child, &status, 0) < 0)
				CHECK(errno == EINTR);
			CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
		}
		if (err < 0)
			ends("question", err);
		nanosleep(&t, NULL);
	}
	return NULL;
}

static void on_signal(int sig) { (void)sig; }

static int by_tag(const void *x, const void *y)
{
	uint64_t p = ((const struct tagged *)x)->tag, q = ((const struct tagged *)y)->tag;

	return p < q ? -1 : p > q;
}

static int by_number(const void *x, const void *y)
{
	uint32_t p = ((const struct tagged *)x)->n, q = ((const struct tagged *)y)->n;

	return p < q ? -1 : p > q;
}

/* unread counts what was delivered and has not been read; sorts the books. */
static size_t unread(void)
{
	struct tagged *s;
	size_t n = 0, delivered = 0, at_outcome = 0;

	pthread_mutex_lock(&decided.mu);
	pthread_mutex_lock(&got.mu);
	qsort(decided.of, decided.n, sizeof *decided.of, by_tag);
	qsort(sent.of, sent.n, sizeof *sent.of, by_tag);
	s = malloc((sent.n + 1) * sizeof *s);
	CHECK(s);
	for (size_t i = 0; i < sent.n; i++) {
		while (at_outcome < decided.n && decided.of[at_outcome].tag < sent.of[i].tag)
			at_outcome++;
		if (sent.of[i].n && at_outcome < decided.n && decided.of[at_outcome].tag == sent.of[i].tag &&
		    decided.of[at_outcome].n == RDSD_DELIVERED)
			s[delivered++] = sent.of[i];
	}
	qsort(s, delivered, sizeof *s, by_number);
	for (size_t i = 0, k = 0; i < delivered; i++) {
		while (k < got.n && got.of[k].n < s[i].n)
			k++; /* in order, which audit sees */
		n += k == got.n || got.of[k].n != s[i].n;
	}
	free(s);
	pthread_mutex_unlock(&got.mu);
	pthread_mutex_unlock(&decided.mu);
	return n;
}

/* audit closes the books, which unread has sorted. */
static void audit(void)
{
	size_t read_of = 0;

	CHECK_IS(decided.n, sent.n);
	for (size_t i = 0; i < sent.n; i++) /* one for each, and no other */
		CHECK_IS(decided.of[i].tag, sent.of[i].tag);
	qsort(sent.of, sent.n, sizeof *sent.of, by_number);
	for (size_t i = 0; i < got.n; i++) {
		CHECK(!i || got.of[i].n > got.of[i - 1].n);
		while (read_of < sent.n && sent.of[read_of].n < got.of[i].n)
			read_of++;
		CHECK(read_of < sent.n && sent.of[read_of].n == got.of[i].n); /* accepted */
	}
}

static void chaos(void)
{
	struct sigaction sa = {.sa_handler = on_signal};
	pthread_t t[4 + READERS];
	char path[64];
	rdsd_client *client;
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	rdsd_addr from = at(FROM), into = at(INTO), stuck = at(STUCK);
	rdsd_socket *c;
	uint64_t r;
	int fds;
	time_t until;

	seed = getenv("RDSD_SEED") ? strtoull(getenv("RDSD_SEED"), NULL, 10) : (uint64_t)rdsdi_now();
	r = seed + 20;
	printf("      seed %llu\n", (unsigned long long)seed);
	sigaction(SIGUSR1, &sa, NULL);
	snprintf(path, sizeof path, "%s/rdsd-c-%d.sock", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid());
	f = fake_start(path, NULL);
	fds = open_fds();
	CHECK_IS(rdsd_client_open(path, &client), 0);
	o.flags = RDSD_OUTCOMES | RDSD_INTERRUPTIBLE;
	o.send_buffer = 20000;
	CHECK_IS(rdsd_bind(client, &from, &o, &a), 0);
	o.flags = RDSD_INTERRUPTIBLE;
	o.recv_buffer = 30000;
	CHECK_IS(rdsd_bind(client, &into, &o, &b), 0);
	CHECK_IS(rdsd_bind(client, &stuck, NULL, &c), 0); /* answers nothing */
	CHECK_IS(rdsd_watch(a, 1, 0), 0);
	CHECK(!pthread_create(&t[0], NULL, sender, NULL));
	CHECK(!pthread_create(&t[1], NULL, receiver, NULL));
	CHECK(!pthread_create(&t[2], NULL, disturber, NULL));
	for (uintptr_t i = 0; i < READERS; i++)
		CHECK(!pthread_create(&t[3 + i], NULL, decider, (void *)i));
	while (pthread_tryjoin_np(t[0], NULL)) {
		struct timespec pause = {0, 300000};

		pthread_kill(t[1 + rnd(&r) % (2 + READERS)], SIGUSR1);
		nanosleep(&pause, NULL);
	}
	atomic_store(&stop, true);
	pthread_join(t[2], NULL);
	until = time(NULL) + 60;
	/* Their outcomes are told by the calls of a, their datagrams by those of b. */
	while ((entries(&decided) < entries(&sent) || unread()) && time(NULL) < until)
		nanosleep(&(struct timespec){0, 2000000}, NULL);
	CHECK_IS(unread(), 0);
	atomic_store(&enough, true);
	pthread_join(t[1], NULL);
	for (int i = 0; i < READERS; i++)
		pthread_join(t[3 + i], NULL);
	CHECK_IS(unread(), 0);
	audit();
	printf("      %zu accepted, %zu read, %llu lives\n", sent.n, got.n, (unsigned long long)f->instance);
	rdsd_client_close(client);
	for (int i = 0; i < 2000 && open_fds() > fds; i++)
		nanosleep(&(struct timespec){0, 5000000}, NULL); /* the fake closes its ends in its thread */
	CHECK_IS(open_fds(), fds);
	fake_stop(f);
	free(sent.of);
	free(decided.of);
	free(got.of);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {{"chaos", chaos}};

	return run_tests(argc, argv, tests, 1);
}
