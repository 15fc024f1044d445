/* Sockets against the fake daemon: every call, every error, restarts, fork, threads. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

static struct fake *f;
static rdsd_client *client;
static char path[64];

static void begin_with(const struct fake_sizes *sizes)
{
	f = fake_start(path, sizes);
	CHECK_IS(rdsd_client_open(path, &client), 0);
}

static void begin(void) { begin_with(NULL); }

static void end(void)
{
	rdsd_client_close(client);
	CHECK_IS(f->missed, 0); /* the daemon slept and nobody rang */
	fake_stop(f);
}

static rdsd_addr at(uint16_t port)
{
	rdsd_addr a = {{127, 0, 0, 2}, port, 4, 0};

	return a;
}

/* mapped is the same address in IPv6 clothes. */
static rdsd_addr mapped(uint16_t port)
{
	rdsd_addr a = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2}, port, 6, 0};

	return a;
}

static rdsd_socket *bound_with(uint16_t port, rdsd_bind_options o)
{
	rdsd_addr a = at(port);
	rdsd_socket *s;

	o.size = sizeof o;
	CHECK_IS(rdsd_bind(client, &a, &o, &s), 0);
	return s;
}

static rdsd_socket *bound(uint16_t port) { return bound_with(port, (rdsd_bind_options){0}); }

static void nap(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&t, NULL);
}

static void hold(bool sends, bool outcomes)
{
	fake_lock(f);
	f->hold_sends = sends;
	f->hold_outcomes = outcomes;
	fake_unlock(f);
}

static void send_text(rdsd_socket *s, uint16_t port, const char *text)
{
	rdsd_addr to = at(port);

	CHECK_IS(rdsd_send(s, &to, text, strlen(text), NULL, RDSD_SEC(10)), 0);
}

static void expect_text(rdsd_socket *s, uint16_t port, const char *text)
{
	char buf[100] = "";
	rdsd_addr from;

	CHECK_IS(rdsd_recv(s, buf, sizeof buf - 1, &from, RDSD_SEC(10)), strlen(text));
	CHECK_IS(from.port, port);
	CHECK(!memcmp(buf, text, strlen(text)));
}

/* Binding */

static void bind_errors(void)
{
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	rdsd_addr a = at(5), bad = {.family = 9};
	rdsd_socket *s, *t;
	char label[80];

	CHECK_IS(rdsd_client_open("/nonexistent/x.sock", &client), 0);
	CHECK_IS(rdsd_bind(client, &a, NULL, &s), -ESHUTDOWN);
	CHECK(strstr(rdsd_errmsg(), "/nonexistent/x.sock.rings"));
	rdsd_client_close(client);
	begin();
	CHECK_IS(rdsd_bind(client, &bad, NULL, &s), -EINVAL);
	o.size = 3;
	CHECK_IS(rdsd_bind(client, &a, &o, &s), -EINVAL);
	o.size = sizeof o;
	o.flags = 1 << 20;
	CHECK_IS(rdsd_bind(client, &a, &o, &s), -EINVAL);
	o.flags = 0;
	memset(label, 'x', sizeof label);
	label[79] = 0;
	o.label = label;
	CHECK_IS(rdsd_bind(client, &a, &o, &s), -EINVAL);
	label[64] = 0;
	CHECK_IS(rdsd_bind(client, &a, &o, &s), 0);
	CHECK_IS(rdsd_bind(client, &a, NULL, &t), -EADDRINUSE);
	CHECK(strstr(rdsd_errmsg(), "another socket owns"));
	rdsd_close(s);
	f->refuse = EACCES;
	CHECK_IS(rdsd_bind(client, &a, NULL, &s), -EACCES);
	CHECK(strstr(rdsd_errmsg(), "refused by the fake"));
	f->grants = true; /* it has closed before it hears that the region is mapped */
	CHECK_IS(rdsd_bind(client, &a, NULL, &s), -EACCES);
	CHECK(strstr(rdsd_errmsg(), "refused by the fake"));
	f->grants = false;
	f->refuse = 0;
	f->no_rings = true;
	CHECK_IS(rdsd_bind(client, &a, NULL, &s), -EPROTONOSUPPORT);
	f->no_rings = false;
	f->mute = true;
	o.label = NULL;
	o.timeout = RDSD_MS(50);
	CHECK_IS(rdsd_bind(client, &a, &o, &s), -ETIMEDOUT);
	f->mute = false;
	end();
}

static unsigned spoil_at;

static void spoil(struct fake_socket *s) { s->r.base[spoil_at] ^= 0x40; }

static void spoiled_headers(void)
{
	static const unsigned offsets[] = {0, 8, 12, 16, 66, 76, 96, 100, 120, 136, 168, 176, 2000, 4092};
	rdsd_addr a = at(5);
	rdsd_socket *s;

	begin();
	f->spoil = spoil;
	for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
		spoil_at = offsets[i];
		CHECK_IS(rdsd_bind(client, &a, NULL, &s), -EPROTO);
		CHECK(strstr(rdsd_errmsg(), "the region of the daemon has"));
	}
	end();
}

/* at_most lets this process open so many descriptors more, -1: as many as before. */
static void at_most(int more)
{
	static struct rlimit was;
	struct rlimit now;
	int last = 0;

	if (more < 0) {
		CHECK(!setrlimit(RLIMIT_NOFILE, &was));
		return;
	}
	CHECK(!getrlimit(RLIMIT_NOFILE, &was));
	now = was;
	for (; more >= 0; last++)
		more -= fcntl(last, F_GETFD) < 0;
	now.rlim_cur = (rlim_t)last - 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &now));
}

/* without_room is a client that cannot receive the descriptors of a region: it may have to wait for them, and has its rings then. */
static void without_room(void)
{
	rdsd_addr a = at(1);
	rdsd_socket *s;

	CHECK_IS(rdsd_client_open(path, &client), 0);
	at_most(4); /* eventfd and socket, and two of four */
	CHECK_IS(rdsd_bind(client, &a, NULL, &s), -EMFILE);
	CHECK(strstr(rdsd_errmsg(), "ulimit"));
	at_most(-1);
	s = bound(1);
	at_most(0); /* and what its end leaves: a socket, and two of four */
	send_text(s, 9, "kill"); /* the daemon ends at this */
	CHECK_IS(rdsd_recv(s, NULL, 0, NULL, RDSD_MS(200)), -ETIMEDOUT);
	CHECK(!atomic_load(&s->over));
	at_most(-1);
	send_text(s, 1, "again");
	expect_text(s, 1, "again");
	rdsd_client_close(client);
	_exit(0);
}

static void no_descriptors(void)
{
	rdsd_socket *killer;
	int status;
	pid_t child;

	begin();
	killer = bound(9);
	child = fork();
	CHECK(child >= 0);
	if (!child)
		without_room();
	expect_text(killer, 1, "kill");
	fake_kill(f);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	end();
}

/* Without descriptors for a pair that is offered its datagrams go on by the daemon. */
static void no_descriptors_for_a_pair(void)
{
	rdsd_socket *a;

	begin();
	a = bound(1);
	fake_lock(f);
	fake_offer(f, 1);
	at_most(0);
	CHECK(rdsdi_pump(a));
	at_most(-1);
	fake_unlock(f);
	send_text(a, 1, "by the daemon");
	expect_text(a, 1, "by the daemon");
	CHECK_IS(f->gone, 1);
	end();
}

static void binding(void)
{
	rdsd_bind_options o = {.send_buffer = 10000, .recv_buffer = 20000};
	rdsd_socket *s, *t;
	rdsd_info info;
	rdsd_addr a;

	begin();
	s = bound(0);
	t = bound_with(0, o);
	rdsd_local_addr(s, &a);
	CHECK(a.family == 4 && a.port >= 1000 && a.ip[3] == 2);
	rdsd_get_info(t, &info);
	CHECK(info.local.port && info.local.port != a.port && info.connected);
	CHECK(info.send_buffer == 10000 && info.recv_buffer == 20000 && info.max_datagram == 10000 && info.daemon_instance == 7);
	rdsd_close(s);
	s = bound(a.port); /* free again as soon as close returns */
	end();             /* the client closes what is left */
}

/* Sending and receiving */

/* EXPLAINED is for a call that is refused in the daemon's words, for which it may have no time once. */
#define EXPLAINED(call)                                                                                                \
	do {                                                                                                           \
		int left = 200;                                                                                        \
                                                                                                                       \
		do                                                                                                     \
			CHECK_IS(call, -EOPNOTSUPP);                                                                   \
		while (!strstr(rdsd_errmsg(), "not of a family") && --left);                                           \
		CHECK(left);                                                                                           \
	} while (0)

static void echo(void)
{
	static uint8_t big[RDSD_MAX_DATAGRAM], back[RDSD_MAX_DATAGRAM];
	rdsd_bind_options o = {.send_buffer = 4 << 20, .recv_buffer = 4 << 20};
	rdsd_socket *a, *b;
	rdsd_addr to = at(2), six = {.family = 6, .port = 7}, none = at(7), clothed = mapped(2);
	rdsd_slot slot;
	char buf[8];

	begin();
	a = bound_with(1, o);
	b = bound_with(2, o);
	send_text(a, 2, "hello");
	expect_text(b, 1, "hello");
	send_text(b, 1, "hello yourself");
	expect_text(a, 2, "hello yourself");
	send_text(a, 2, ""); /* an empty datagram is one */
	send_text(a, 2, "after");
	expect_text(b, 1, "");
	expect_text(b, 1, "after");
	send_text(a, 1, "to myself");
	expect_text(a, 1, "to myself");
	CHECK_IS(rdsd_send(a, &clothed, "m", 1, NULL, RDSD_SEC(5)), 0); /* ::ffff:127.0.0.2 is 127.0.0.2 */
	expect_text(b, 1, "m");
	for (size_t i = 0; i < sizeof big; i++)
		big[i] = (uint8_t)(i % 251);
	CHECK_IS(rdsd_send(a, &to, big, sizeof big, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_recv(b, back, sizeof back, NULL, RDSD_SEC(5)), sizeof big);
	CHECK(!memcmp(big, back, sizeof big));
	CHECK_IS(rdsd_send(a, &to, big, sizeof big + 1, NULL, RDSD_SEC(5)), -EMSGSIZE);
	CHECK(strstr(rdsd_errmsg(), "1048577") && strstr(rdsd_errmsg(), "at most"));
	memset(none.ip, 0, 16);
	CHECK_IS(rdsd_try_send(a, &none, "x", 1, NULL), -EDESTADDRREQ);
	none.family = 0;
	CHECK_IS(rdsd_try_send(a, &none, "x", 1, NULL), -EDESTADDRREQ);
	CHECK_IS(rdsd_send(a, NULL, "x", 1, NULL, RDSD_SEC(5)), -EDESTADDRREQ);
	CHECK_IS(rdsd_send_run(a, NULL, "x", 1, 1, NULL, RDSD_SEC(5)), -EDESTADDRREQ);
	CHECK_IS(rdsd_request(a, NULL, "x", 1, buf, sizeof buf, RDSD_SEC(5)), -EDESTADDRREQ);
	CHECK_IS(rdsd_cancel_sent_to(a, NULL, NULL, RDSD_SEC(5)), -EDESTADDRREQ);
	CHECK_IS(rdsd_congested(a, NULL, RDSD_SEC(5)), -EDESTADDRREQ);
	CHECK_IS(rdsd_send(a, &to, NULL, 1, NULL, RDSD_SEC(5)), -EINVAL);
	CHECK(strstr(rdsd_errmsg(), "1 bytes at NULL"));
	CHECK_IS(rdsd_send_run(a, &to, NULL, 1, 1, NULL, RDSD_SEC(5)), -EINVAL);
	six.ip[0] = 0x20;
	/* The daemon's words, in the time that they may take: asked anew, refused again. */
	EXPLAINED(rdsd_try_send(a, &six, "x", 1, NULL));
	EXPLAINED(rdsd_send_run(a, &six, "xy", 1, 2, NULL, RDSD_SEC(5)));
	EXPLAINED(rdsd_reserve(a, &six, 1, &slot, RDSD_SEC(5)));
	CHECK_IS(rdsd_congested(a, &six, RDSD_SEC(5)), -EOPNOTSUPP);
	CHECK(strstr(rdsd_errmsg(), "not of a family"));
	send_text(a, 2, "longer than eight");
	CHECK_IS(rdsd_recv(b, buf, sizeof buf, NULL, RDSD_SEC(5)), 17);
	CHECK(!memcmp(buf, "longer t", 8));
	CHECK_IS(rdsd_recv(b, buf, sizeof buf, NULL, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_recv(b, buf, sizeof buf, NULL, RDSD_MS(20)), -ETIMEDOUT);
	end();
}

static void order(void)
{
	rdsd_socket *a, *b;
	rdsd_addr to = at(2);

	begin();
	a = bound(1);
	b = bound(2);
	for (uint32_t i = 0; i < 10000; i++) {
		uint32_t body[2] = {i, 0};

		CHECK_IS(rdsd_send(a, &to, body, 4 + i % 3, NULL, RDSD_SEC(5)), 0);
	}
	for (uint32_t i = 0, got[2]; i < 10000; i++) {
		CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_SEC(5)), 4 + i % 3);
		CHECK_IS(got[0], i);
	}
	end();
}

static void send_buffer(void)
{
	static const uint8_t kb[1000];
	rdsd_bind_options o = {.send_buffer = 65536};
	rdsd_socket *a, *b;
	rdsd_addr to = at(2);
	int n = 0, err;

	begin();
	a = bound_with(1, o);
	b = bound(2);
	hold(false, true);
	while (!(err = rdsd_try_send(a, &to, kb, sizeof kb, NULL)))
		n++;
	CHECK_IS(err, -EAGAIN);
	CHECK_IS(n, 66); /* the last datagram may pass the buffer */
	CHECK_IS(rdsd_send(a, &to, kb, sizeof kb, NULL, RDSD_MS(20)), -ETIMEDOUT);
	CHECK(strstr(rdsd_errmsg(), "send buffer is full"));
	hold(false, false);
	CHECK_IS(rdsd_send(a, &to, kb, sizeof kb, NULL, RDSD_SEC(5)), 0);
	for (int i = 0; i < 67; i++)
		CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), 1000);
	end();
}

/* Single sends become trains while the daemon is busy, also to several destinations in turn. */
static void trains(void)
{
	rdsd_socket *a, *b, *c;
	struct fake_socket *s;
	rdsd_addr to[2] = {at(2), at(3)};
	uint64_t tags[4000], k = 0;

	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	b = bound(2);
	c = bound(3);
	send_text(a, 2, "open");
	send_text(a, 3, "open");
	expect_text(b, 1, "open");
	expect_text(c, 1, "open");
	hold(true, false);
	for (uint32_t i = 0; i < 4000; i++)
		CHECK_IS(rdsd_try_send(a, &to[i & 1], &i, 4, &tags[i]), 0);
	fake_lock(f);
	s = fake_at(f, 1);
	s->taken = s->datagrams = 0;
	fake_unlock(f);
	hold(false, false);
	for (uint32_t i = 0, got; i < 4000; i++) {
		CHECK_IS(rdsd_recv(i & 1 ? c : b, &got, 4, NULL, RDSD_SEC(5)), 4);
		CHECK_IS(got, i);
	}
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	fake_lock(f);
	CHECK_IS(s->datagrams, 4000);
	CHECK(s->taken <= 14); /* 1, 256, 1024 ... each way */
	fake_unlock(f);
	for (rdsd_outcome o; k < 4002;) {
		CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
		CHECK_IS(o.kind, RDSD_DELIVERED);
		k += o.count;
	}
	CHECK_IS(k, 4002);
	CHECK(!a->tx.used && !a->tx.opens && !a->tx.arena.used);
	end();
}

/* mixed_with sends datagrams of changing lengths, one by one and in batches, to two destinations in turn: they are few descriptors if the daemon takes such. */
static void mixed_with(bool takes, bool split)
{
	static const struct fake_sizes sizes = {.sends = 2048};
	static const char text[] = "The quick brown fox jumps over the lazy dog";
	uint64_t taken, mixed, decided = 0;
	rdsd_addr to[2] = {at(2), at(3)};
	rdsd_socket *a, *r[2];
	rdsd_dgram d[60];
	size_t len = 0;
	int err;

	begin_with(&sizes);
	f->no_mixed = !takes;
	f->split = split;
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	r[0] = bound(2);
	r[1] = bound(3);
	for (int i = 0; i < 2; i++) {
		send_text(a, (uint16_t)(2 + i), "open");
		expect_text(r[i], 1, "open");
	}
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	fake_lock(f);
	fake_at(f, 1)->taken = fake_at(f, 1)->mixed = 0;
	fake_unlock(f);
	hold(true, false);
	for (unsigned i = 0; i < 600; i++)
		CHECK_IS(rdsd_try_send(a, &to[i & 1], text, i * 7 % sizeof text, NULL), 0);
	for (unsigned k = 0; k < 10; k++) {
		for (unsigned i = 0; i < 60; i++)
			d[i] = (rdsd_dgram){.data = text, .len = (k + i * 5) % sizeof text, .to = to[k & 1]};
		CHECK_IS(rdsd_send_batch(a, d, 60, &err, RDSD_NOWAIT), 60);
		for (unsigned i = 1; i < 60; i++)
			CHECK(d[i].tag > d[i - 1].tag);
	}
	hold(false, false);
	for (unsigned i = 0; i < 1200; i++) {
		unsigned k = (i - 600) / 60;
		rdsd_socket *s = r[(i < 600 ? i : k) & 1];
		char buf[sizeof text] = "";

		len = (i < 600 ? i * 7 : k + (i - 600) % 60 * 5) % sizeof text;
		CHECK_IS(rdsd_recv(s, buf, sizeof buf, NULL, RDSD_SEC(5)), len);
		CHECK(!memcmp(buf, text, len));
	}
	for (rdsd_outcome o; decided < 1202; decided += o.count) {
		CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
		CHECK_IS(o.kind, RDSD_DELIVERED);
	}
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	CHECK_IS(decided, 1202);
	CHECK(!a->tx.used && !a->tx.undecided && !a->tx.opens && !a->tx.arena.used);
	fake_lock(f);
	taken = fake_at(f, 1)->taken;
	mixed = fake_at(f, 1)->mixed;
	fake_unlock(f);
	CHECK(takes ? mixed > 0 && taken <= 30 : !mixed && taken > 600);
	end();
}

static void mixed_trains(void)
{
	mixed_with(true, false);
	mixed_with(true, true);
	mixed_with(false, false);
}

/* A flow whose train was claimed nearly empty does not keep the memory planned for it. */
static void slack_is_given_back(void)
{
	static const struct fake_sizes sizes = {.send_arena = 1 << 20};
	static uint8_t big[400 << 10];
	rdsd_addr to = at(2);
	rdsd_socket *a;

	begin_with(&sizes);
	a = bound(1);
	(void)bound(2);
	send_text(a, 2, "open");
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	hold(true, false);
	for (int i = 0; i < 9000; i++)
		CHECK_IS(rdsd_try_send(a, &to, "12345678", 8, NULL), 0);
	CHECK(a->tx.flows[0].hint >= 60000);
	CHECK_IS(rdsd_try_send(a, &to, big, sizeof big, NULL), 0); /* closes the train before it */
	hold(false, false);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	end();
}

static void batches(void)
{
	static uint8_t big[RDSD_MAX_DATAGRAM + 1];
	static const char *const texts[] = {"one", "two", "three", "", "five"};
	rdsd_dgram d[200];
	rdsd_socket *a, *b, *c;
	char want[32];
	int err;

	begin();
	a = bound_with(1, (rdsd_bind_options){.send_buffer = 4 << 20, .flags = RDSD_OUTCOMES});
	b = bound(2);
	c = bound(3);
	CHECK_IS(rdsd_send_batch(a, d, 0, &err, RDSD_NOWAIT), 0);
	for (int i = 0; i < 5; i++)
		d[i] = (rdsd_dgram){.data = texts[i], .len = strlen(texts[i]), .to = at(i & 1 ? 3 : 2)};
	CHECK_IS(rdsd_send_batch(a, d, 5, &err, RDSD_SEC(5)), 5);
	CHECK_IS(err, 0);
	expect_text(b, 1, "one");
	expect_text(b, 1, "three");
	expect_text(b, 1, "five");
	expect_text(c, 1, "two");
	expect_text(c, 1, "");
	d[1] = (rdsd_dgram){.data = big, .len = sizeof big, .to = at(2)};
	d[2].to = (rdsd_addr){.family = 4}; /* no address */
	CHECK_IS(rdsd_send_batch(a, d, 5, &err, RDSD_NOWAIT), 3);
	CHECK_IS(err, -EMSGSIZE);
	CHECK(!d[0].error && d[1].error == -EMSGSIZE && d[2].error == -EDESTADDRREQ && !d[3].error && !d[4].error);
	expect_text(b, 1, "one");
	expect_text(b, 1, "five");
	expect_text(c, 1, "");
	CHECK_IS(rdsd_send_batch(a, &d[1], 1, &err, RDSD_NOWAIT), -EMSGSIZE);
	/* A stretch to one destination is one descriptor, also of different lengths. */
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	fake_lock(f);
	fake_at(f, 1)->taken = 0;
	fake_unlock(f);
	for (int i = 0; i < 200; i++)
		d[i] = (rdsd_dgram){.data = "0123456789", .len = (size_t)(i % 11), .to = at(2)};
	CHECK_IS(rdsd_send_batch(a, d, 200, &err, RDSD_SEC(5)), 200);
	for (int i = 0; i < 200; i++) {
		snprintf(want, sizeof want, "%.*s", i % 11, "0123456789");
		expect_text(b, 1, want);
		CHECK(!i || d[i].tag == d[i - 1].tag + 1);
	}
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	fake_lock(f);
	CHECK_IS(fake_at(f, 1)->taken, 1);
	fake_unlock(f);
	end();
}

/* Where a keeps what it says of its flow to a port. */
static uint64_t entry_of(rdsd_socket *a, uint16_t port)
{
	rdsd_addr to = at(port);
	struct rdsdi_flow *flow = rdsdi_flow_find(&a->tx, &to);

	CHECK(flow);
	return a->tx.reg->flow_table + (uint64_t)(flow - a->tx.flows) * FLOW_SIZE;
}

/* How many calls of a wait for a port, as the daemon sees it. */
static uint64_t waiting_for(rdsd_socket *a, uint16_t port)
{
	return load_relaxed(at64(a->tx.reg, entry_of(a, port) + FLOW_WAITING));
}

/* What a says of itself to the daemon: sends refused, sends that waited; nobody waits for port 2 now. */
static void says(rdsd_socket *a, uint64_t refused, uint64_t waited)
{
	uint64_t entry = entry_of(a, 2);

	CHECK_IS(load_relaxed(at64(a->tx.reg, W_SENDS_REFUSED)), refused);
	CHECK_IS(load_relaxed(at64(a->tx.reg, W_SENDS_WAITED)), waited);
	CHECK_IS(load_relaxed(at64(a->tx.reg, entry + FLOW_REFUSED)), refused);
	CHECK_IS(load_relaxed(at64(a->tx.reg, entry + FLOW_WAITED)), waited);
	CHECK_IS(waiting_for(a, 2), 0);
}

/* A congested destination holds up its own datagrams alone, and the daemon can see that it does. */
static void batch_and_congestion(void)
{
	static uint8_t kb[1000];
	rdsd_dgram d[4];
	rdsd_socket *a, *b, *c;
	rdsd_addr to = at(2);
	struct rdsdi_jam whole = {0};
	int err, n = 0;

	begin();
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.recv_buffer = 16384});
	c = bound(3);
	CHECK_IS(rdsd_congested(a, &to, RDSD_NOWAIT), 0);
	while (!(err = rdsd_try_send(a, &to, kb, sizeof kb, NULL)) || (err == -EAGAIN && n < 100000)) {
		n += !err;
		if (n > 100)
			nap(1);
	}
	CHECK_IS(err, -ENOBUFS);
	CHECK_IS(rdsd_congested(a, &to, RDSD_NOWAIT), 1);
	says(a, 1, 0);
	CHECK_IS(rdsd_send(a, &to, kb, sizeof kb, NULL, RDSD_MS(20)), -ETIMEDOUT);
	CHECK(strstr(rdsd_errmsg(), "congested"));
	says(a, 1, 1);
	for (int i = 0; i < 3; i++) { /* one send that waits in three calls */
		rdsdi_jam_whole = &whole;
		CHECK_IS(rdsd_send(a, &to, kb, sizeof kb, NULL, i ? RDSD_MS(5) : RDSD_NOWAIT), i ? -ETIMEDOUT : -ENOBUFS);
		rdsdi_jam_whole = NULL;
		CHECK_IS(waiting_for(a, 2), i > 0);
	}
	rdsdi_jam_end(&whole, &a->tx);
	says(a, 1, 2);
	for (int i = 0; i < 4; i++)
		d[i] = (rdsd_dgram){.data = "abcd", .len = (size_t)i + 1, .to = at(i & 1 ? 3 : 2)};
	d[2].to = mapped(2); /* the same destination */
	CHECK_IS(rdsd_congested(a, &d[2].to, RDSD_NOWAIT), 1);
	CHECK_IS(rdsd_send_batch(a, d, 4, &err, RDSD_NOWAIT), 2);
	CHECK_IS(err, -ENOBUFS);
	CHECK(d[0].error == -ENOBUFS && !d[1].error && d[2].error == -ENOBUFS && !d[3].error);
	says(a, 3, 2);
	CHECK_IS(rdsd_send_batch(a, d, 4, &err, RDSD_MS(20)), 2);
	CHECK(d[0].error == -ETIMEDOUT && !d[1].error && d[2].error == -ETIMEDOUT && !d[3].error);
	says(a, 3, 3);
	for (int i = 0; i < 2; i++) {
		expect_text(c, 1, "ab");
		expect_text(c, 1, "abcd");
	}
	for (int i = 0; i < n; i++)
		CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), 1000);
	CHECK_IS(rdsd_send_batch(a, d, 4, &err, RDSD_SEC(5)), 4);
	expect_text(b, 1, "a");
	expect_text(b, 1, "abc");
	end();
}

static void runs(void)
{
	static uint32_t numbers[100000], got[3];
	rdsd_socket *a, *b;
	rdsd_addr to = at(2);
	rdsd_outcome o;
	uint64_t tag, sum = 0;

	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .send_buffer = 4096});
	b = bound(2);
	for (uint32_t i = 0; i < 100000; i++)
		numbers[i] = i;
	CHECK_IS(rdsd_send_run(a, &to, numbers, 4, 10000, NULL, RDSD_SEC(5)), 10000);
	for (uint32_t i = 0; i < 10000; i++) {
		CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_SEC(5)), 4);
		CHECK_IS(got[0], i);
	}
	while (sum < 10000) {
		CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
		sum += o.count;
	}
	CHECK_IS(rdsd_send_run(a, &to, numbers, 4, 5000, &tag, RDSD_SEC(5)), 5000);
	for (uint32_t i = 0; i < 5000; i += o.count) { /* tags count up from the first */
		CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
		CHECK_IS(o.tag, tag + i);
	}
	hold(false, true);
	CHECK_IS(rdsd_send_run(a, &to, numbers, 4, 100000, NULL, RDSD_NOWAIT), 1024); /* what the buffer takes */
	CHECK_IS(rdsd_send_run(a, &to, numbers, 4, 1, NULL, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_send_run(a, &to, numbers, 4, 0, NULL, RDSD_NOWAIT), 0);
	hold(false, false);
	end();
}

static void reservations(void)
{
	rdsd_socket *a, *b;
	rdsd_addr to = at(2);
	rdsd_slot one, two, three, big;
	uint64_t tag;

	begin();
	a = bound_with(1, (rdsd_bind_options){.send_buffer = 10000});
	b = bound(2);
	CHECK_IS(rdsd_reserve(a, &to, 100, &one, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_reserve(a, &to, 5000, &two, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_reserve(a, &to, 0, &three, RDSD_SEC(5)), 0);
	CHECK(one.size == 100 && ((uintptr_t)one.data & 63) == 0);
	memcpy(one.data, "first reserved", 14);
	memcpy(two.data, "first committed", 15);
	CHECK_IS(rdsd_commit(a, &two, 15, &tag), 0);
	CHECK(tag > 0);
	CHECK_IS(rdsd_commit(a, &one, 14, NULL), 0);
	CHECK_IS(rdsd_commit(a, &three, 0, NULL), 0);
	expect_text(b, 1, "first committed");
	expect_text(b, 1, "first reserved");
	expect_text(b, 1, "");
	CHECK_IS(rdsd_commit(a, &one, 14, NULL), -EINVAL); /* twice */
	rdsd_abort(a, &one);                               /* nothing */
	CHECK_IS(rdsd_reserve(a, &to, 10000, &big, RDSD_NOWAIT), 0);
	CHECK_IS(rdsd_reserve(a, &to, 1, &one, RDSD_NOWAIT), -EAGAIN); /* it counts */
	CHECK_IS(rdsd_reserve(a, &to, 10001, &one, RDSD_NOWAIT), -EMSGSIZE);
	rdsd_abort(a, &big);
	CHECK_IS(rdsd_reserve(a, &to, 4, &one, RDSD_NOWAIT), 0);
	CHECK_IS(rdsd_commit(a, &one, 5, NULL), -EMSGSIZE);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	send_text(a, 2, "x"); /* takes the events in */
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_arm(a, RDSD_WRITABLE), RDSD_WRITABLE);
	CHECK(!a->tx.used && !a->tx.arena.used);
	end();
}

/* A slot outlives its socket and its daemon: giving it up touches neither. */
static void slots_that_are_left(void)
{
	rdsd_info before, now;
	rdsd_slot slot[5];
	rdsd_addr to = at(1);
	rdsd_socket *a;

	begin();
	a = bound(1);
	for (int i = 0; i < 2; i++)
		CHECK_IS(rdsd_reserve(a, &to, 100, &slot[i], RDSD_SEC(30)), 0);
	rdsd_get_info(a, &before);
	fake_kill(f);
	do {
		rdsd_flush(a, RDSD_SEC(30));
		rdsd_get_info(a, &now);
	} while (!now.connected || now.daemon_instance == before.daemon_instance);
	for (int i = 2; i < 5; i++)
		CHECK_IS(rdsd_reserve(a, &to, 100, &slot[i], RDSD_SEC(30)), 0);
	rdsd_shutdown(a);
	CHECK_IS(rdsd_commit(a, &slot[4], 1, NULL), -EBADF);
	rdsd_close(a);
	for (int i = 0; i < 4; i++)
		memset(slot[i].data, i, slot[i].size);
	CHECK_IS(rdsd_commit(a, &slot[0], 1, NULL), -ESHUTDOWN);
	rdsd_abort(a, &slot[1]);
	CHECK_IS(rdsd_commit(a, &slot[2], 1, NULL), -EBADF);
	rdsd_abort(a, &slot[3]);
	/* Of a socket that was ended: why. Giving one back fails in nothing and leaves the words. */
	a = bound(1);
	for (int i = 0; i < 2; i++)
		CHECK_IS(rdsd_reserve(a, &to, 100, &slot[i], RDSD_SEC(30)), 0);
	fake_dismiss(f, 1, ECONNRESET, "closed by an administrator");
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(30)), -ECONNRESET);
	rdsdi_fail(-EIO, "the disk is full");
	rdsd_abort(a, &slot[1]);
	CHECK(!strcmp(rdsd_errmsg(), "the disk is full"));
	rdsd_close(a);
	CHECK_IS(rdsd_commit(a, &slot[0], 1, NULL), -ECONNRESET);
	CHECK(strstr(rdsd_errmsg(), "closed by an administrator"));
	end();
}

static void no_data(void)
{
	static uint8_t kb[6000];
	rdsd_addr six = {.ip = {0x20, 1}, .port = 5, .family = 6};
	rdsd_dgram d[4] = {{.data = "a", .len = 1, .to = at(1)}, {.len = 1, .to = at(1)}, {.to = at(1)}, {.data = kb, .len = 1 << 21, .to = at(1)}};
	rdsd_socket *a;
	int error;

	begin();
	a = bound_with(1, (rdsd_bind_options){.send_buffer = 10000});
	/* The words are those of the first that was refused, whatever was refused when. */
	CHECK_IS(rdsd_send_batch(a, d, 4, &error, RDSD_SEC(30)), 2);
	CHECK_IS(error, -EINVAL);
	CHECK(strstr(rdsd_errmsg(), "NULL"));
	CHECK(!d[0].error && d[1].error == -EINVAL && !d[2].error && d[3].error == -EMSGSIZE);
	d[0].to = six;
	CHECK_IS(rdsd_send_batch(a, d, 4, &error, RDSD_SEC(30)), 1);
	CHECK_IS(error, -EOPNOTSUPP);
	CHECK(strstr(rdsd_errmsg(), "not of a family"));
	CHECK_IS(rdsd_send_batch(a, d + 3, 1, NULL, RDSD_SEC(30)), -EMSGSIZE);
	CHECK(strstr(rdsd_errmsg(), "2097152 bytes"));
	CHECK_IS(rdsd_send_batch(a, d + 1, 1, NULL, RDSD_FOREVER), -EINVAL);
	CHECK_IS(rdsd_send(a, &d[1].to, NULL, 1, NULL, RDSD_SEC(30)), -EINVAL);
	CHECK_IS(rdsd_send_run(a, &d[1].to, NULL, 1, 1, NULL, RDSD_SEC(30)), -EINVAL);
	hold(true, true);
	for (int i = 0; i < 4; i++)
		d[i] = (rdsd_dgram){.data = kb, .len = sizeof kb, .to = at(1)};
	CHECK_IS(rdsd_send_batch(a, d, 4, &error, RDSD_NOWAIT), 2);
	CHECK_IS(error, -EAGAIN);
	CHECK(!strcmp(rdsd_errmsg(), "the send buffer is full"));
	CHECK_IS(rdsd_send_batch(a, d + 3, 1, &error, RDSD_MS(5)), -ETIMEDOUT);
	CHECK(strstr(rdsd_errmsg(), "the send buffer is full"));
	end();
}

static void in_place(void)
{
	static const struct fake_sizes sizes = {.recvs = 4, .releases = 8};
	rdsd_socket *a, *b;
	rdsd_msg m[64], more;
	rdsd_addr to = at(2);
	size_t got = 0, size;
	char text[16];

	begin_with(&sizes);
	a = bound(1);
	b = bound(2);
	CHECK_IS(rdsd_peek(b, &size), 0);
	for (int i = 0; i < 20; i++) { /* each its own descriptor: different lengths, one by one */
		memset(text, 'a' + i, sizeof text);
		CHECK_IS(rdsd_send(a, &to, text, (size_t)(1 + i % 16), NULL, RDSD_SEC(5)), 0);
		if (i < 8)
			CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
		while (i < 8 && got <= (size_t)i)
			got += (size_t)rdsd_recv_batch(b, m + got, 1, RDSD_SEC(5));
	}
	CHECK_IS(got, 8);
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_SEC(5)), -ENOBUFS); /* all are out */
	CHECK(strstr(rdsd_errmsg(), "release"));
	for (int i = 0; i < 8; i++)
		CHECK(m[i].len == (size_t)(1 + i) && *(const char *)m[i].data == 'a' + i && m[i].from.port == 1);
	for (int i = 0; i < 8; i += 2)
		rdsd_release(&m[i], 1);
	while (got < 20) {
		ssize_t n = rdsd_recv_batch(b, m + got, 64 - got, RDSD_SEC(5));

		CHECK(n > 0);
		for (ssize_t k = 0; k < n; k++)
			CHECK(m[got + (size_t)k].len == 1 + (got + (size_t)k) % 16);
		got += (size_t)n;
		rdsd_release(m + got - (size_t)n, (size_t)n);
	}
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_NOWAIT), -EAGAIN);
	send_text(a, 2, "peeked");
	while (!rdsd_peek(b, &size))
		;
	CHECK_IS(size, 6);
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_NOWAIT), 1);
	rdsd_close(b);
	CHECK(!memcmp(more.data, "peeked", 6)); /* stays valid after close */
	rdsd_release(&more, 1);
	for (int i = 1; i < 8; i += 2)
		rdsd_release(&m[i], 1);
	end();
}

static void *release_soon(void *arg)
{
	nap(50);
	rdsd_release(arg, 1);
	return NULL;
}

/* What is lent takes the room for what is to come: who lends is told, who copies waits. */
static void borrowed(void)
{
	static const struct fake_sizes sizes = {.recv_arena = 65536};
	static char body[20000], got[20000];
	rdsd_socket *a, *b;
	rdsd_msg m[2], more;
	rdsd_addr to = at(2);
	pthread_t releaser;

	begin_with(&sizes);
	a = bound(1);
	b = bound(2);
	for (int i = 0; i < 2; i++) {
		CHECK_IS(rdsd_send(a, &to, body, sizeof body, NULL, RDSD_SEC(5)), 0);
		CHECK_IS(rdsd_recv_batch(b, &m[i], 1, RDSD_SEC(5)), 1);
	}
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_MS(20)), -ETIMEDOUT); /* the daemon lacks nothing yet */
	CHECK_IS(rdsd_send(a, &to, body, sizeof body, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_SEC(5)), -ENOBUFS); /* it woke this call */
	CHECK(strstr(rdsd_errmsg(), "release"));
	CHECK_IS(rdsd_arm(b, RDSD_READABLE), 0);
	rdsd_disarm(b);
	CHECK_IS(rdsd_arm(b, RDSD_READABLE | RDSD_BORROWED), RDSD_BORROWED);
	CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_MS(20)), -ETIMEDOUT);
	CHECK(!pthread_create(&releaser, NULL, release_soon, &m[0]));
	CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_SEC(5)), sizeof got);
	pthread_join(releaser, NULL);
	CHECK_IS(rdsd_arm(b, RDSD_READABLE | RDSD_BORROWED), 0);
	rdsd_disarm(b);
	rdsd_release(&m[1], 1);
	end();
}

static void *receive_one(void *sock)
{
	static char got[16];

	return (void *)(intptr_t)rdsd_recv(sock, got, sizeof got, NULL, RDSD_SEC(5));
}

/* A datagram is there and all leases are out: a call that keeps nothing waits for who has them, or for the daemon. */
static void no_lease(void)
{
	static const struct fake_sizes sizes = {.recvs = 4, .releases = 8};
	rdsd_socket *a, *b;
	rdsd_msg m[8], more;
	rdsd_addr to = at(2);
	pthread_t other;
	char got[16];
	void *len;

	begin_with(&sizes);
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.spin = -1});
	for (int i = 0; i < 8; i++) {
		CHECK_IS(rdsd_send(a, &to, "kept", 4, NULL, RDSD_SEC(5)), 0);
		CHECK_IS(rdsd_recv_batch(b, &m[i], 1, RDSD_SEC(5)), 1);
	}
	CHECK_IS(rdsd_send(a, &to, "first", 5, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0); /* it is there */
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_SEC(5)), -ENOBUFS);
	CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_MS(5)), -ETIMEDOUT);
	CHECK(!pthread_create(&other, NULL, release_soon, &m[0]));
	CHECK_IS(rdsd_recv(b, got, sizeof got, NULL, RDSD_SEC(5)), 5);
	pthread_join(other, NULL);
	/* All are back, and the daemon has not taken them. */
	CHECK_IS(rdsd_send(a, &to, "kept", 4, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_recv_batch(b, &m[0], 1, RDSD_SEC(5)), 1);
	CHECK_IS(rdsd_send(a, &to, "second", 6, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	pthread_mutex_lock(&f->mu);
	rdsd_release(m, 8);
	CHECK_IS(rdsd_recv_batch(b, &more, 1, RDSD_NOWAIT), -EAGAIN);
	CHECK(!pthread_create(&other, NULL, receive_one, b));
	nap(50);
	pthread_mutex_unlock(&f->mu);
	pthread_join(other, &len);
	CHECK_IS((intptr_t)len, 6);
	end();
}

/* Outcomes */

static void outcomes(void)
{
	rdsd_addr to = at(2), nobody = at(99);
	rdsd_socket *a;
	rdsd_outcome o[10];
	rdsd_cancelled gone;
	uint64_t tag, seen = 0;
	uint8_t marks[3000] = {0};

	begin();
	a = bound(1);
	CHECK_IS(rdsd_outcomes(a, o, 1, RDSD_NOWAIT), -EINVAL);
	rdsd_close(a);
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	(void)bound(2);
	CHECK_IS(rdsd_outcomes(a, o, 1, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_outcomes(a, o, 1, RDSD_MS(10)), -ETIMEDOUT);
	CHECK_IS(rdsd_send(a, &to, "x", 1, &tag, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_outcomes(a, o, 10, RDSD_SEC(5)), 1);
	CHECK(o->tag == tag && o->count == 1 && o->kind == RDSD_DELIVERED && !o->reason && !o->error);
	CHECK_IS(rdsd_send(a, &nobody, "x", 1, &tag, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_outcomes(a, o, 10, RDSD_SEC(5)), 1);
	CHECK(o->tag == tag && o->kind == RDSD_FAILED && !strcmp(rdsd_reason_text(o->reason), "no such port"));
	/* A train whose datagrams are decided one by one and last to first. */
	f->split = true;
	hold(true, false);
	for (int i = 0; i < 3000; i++) {
		uint64_t t;

		CHECK_IS(rdsd_try_send(a, &nobody, "0123", 4, &t), 0);
		if (!i)
			tag = t;
	}
	hold(false, false);
	while (seen < 3000) {
		ssize_t n = rdsd_outcomes(a, o, 10, RDSD_SEC(5));

		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++) {
			CHECK_IS(o[i].kind, RDSD_FAILED);
			for (uint64_t t = o[i].tag; t < o[i].tag + o[i].count; t++) {
				CHECK(t >= tag);
				marks[(t - tag) % 3000]++;
			}
			seen += o[i].count;
		}
	}
	CHECK_IS(seen, 3000);
	CHECK(!a->tx.used);
	/* Cancel. */
	f->split = false;
	hold(false, true);
	for (int i = 0; i < 5; i++)
		CHECK_IS(rdsd_send(a, &to, "stuck", 5, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_send(a, &nobody, "stuck", 5, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_flush(a, RDSD_MS(20)), -ETIMEDOUT);
	CHECK_IS(rdsd_cancel_sent_to(a, &to, &gone, RDSD_SEC(5)), 0);
	CHECK(gone.cancelled == 5 && gone.in_flight == 0);
	nobody.port = 0;
	CHECK_IS(rdsd_cancel_sent_to(a, &nobody, &gone, RDSD_SEC(5)), 0);
	CHECK_IS(gone.cancelled, 1);
	for (seen = 0; seen < 6; seen += o->count) {
		CHECK_IS(rdsd_outcomes(a, o, 1, RDSD_SEC(5)), 1);
		CHECK_IS(o->kind, RDSD_CANCELLED);
	}
	nobody.family = 0;
	CHECK_IS(rdsd_cancel_sent_to(a, &nobody, NULL, RDSD_SEC(5)), -EDESTADDRREQ);
	hold(false, false);
	end();
}

/* A flush that does not wait has the daemon's answer: what is undecided, and not that there is none. */
static void flush_without_waiting(void)
{
	rdsd_socket *a;
	int64_t t;

	begin();
	a = bound(90);
	CHECK_IS(rdsd_flush(a, RDSD_NOWAIT), 0);
	send_text(a, 91, "to nobody");
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_flush(a, RDSD_NOWAIT), 0);
	hold(false, true);
	send_text(a, 91, "to nobody");
	t = rdsdi_now();
	CHECK_IS(rdsd_flush(a, RDSD_NOWAIT), -EAGAIN);
	CHECK(rdsdi_now() - t < RDSD_SEC(4));
	CHECK(!strcmp(rdsd_errmsg(), "1 datagrams are undecided"));
	hold(false, false);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	end();
}

/* Who does not read his outcomes cannot send for ever. */
static void unread_outcomes(void)
{
	static const struct fake_sizes sizes = {.events = 64};
	rdsd_addr to[2] = {at(98), at(99)};
	rdsd_socket *a;
	static rdsd_outcome o[70000];
	uint64_t sent = 0, seen = 0;
	int err = 0;

	begin_with(&sizes);
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	fake_lock(f);
	f->split = true;
	fake_unlock(f);
	for (int quiet = 0; quiet < 200;) {
		err = rdsd_try_send(a, &to[sent & 1], "x", 1, NULL);
		if (!err)
			sent++, quiet = 0;
		else
			nap(1), quiet++;
		CHECK(sent < 1000000);
	}
	CHECK_IS(err, -EAGAIN);
	CHECK(sent >= MAX_OUTCOMES);
	CHECK(a->tx.outcome_n <= MAX_OUTCOMES + 64);
	while (seen < sent) {
		ssize_t n = rdsd_outcomes(a, o, 70000, RDSD_SEC(5));

		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++)
			seen += o[i].count;
	}
	CHECK_IS(seen, sent);
	CHECK_IS(rdsd_send(a, &to[0], "x", 1, NULL, RDSD_SEC(5)), 0);
	end();
}

static void watching(void)
{
	static uint8_t kb[1000];
	rdsd_congestion ev;
	rdsd_addr to = at(2);
	rdsd_socket *a, *b;
	int n = 0;

	begin();
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.recv_buffer = 16384});
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_NOWAIT), -EINVAL);
	CHECK_IS(rdsd_watch(a, 1, 0), 0);
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_MS(10)), -ETIMEDOUT);
	CHECK(!strcmp(rdsd_errmsg(), "the deadline passed: nothing has happened"));
	CHECK_IS(rdsd_recv(a, kb, 1, NULL, RDSD_MS(1)), -ETIMEDOUT);
	CHECK(!strcmp(rdsd_errmsg(), "the deadline passed: nothing has come"));
	CHECK_IS(rdsd_recv(a, kb, 1, NULL, RDSD_NOWAIT), -EAGAIN);
	CHECK(!strcmp(rdsd_errmsg(), "nothing has come"));
	while (!rdsd_send(a, &to, kb, sizeof kb, NULL, RDSD_MS(50)))
		n++;
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_SEC(5)), 0);
	CHECK(ev.congested == 1 && ev.addr.port == 2 && !ev.freed);
	while (n--)
		CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), 1000);
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_SEC(5)), 0);
	CHECK(!ev.congested && ev.addr.port == 2);
	fake_kill(f); /* afterwards: events may have been missed */
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_SEC(5)), 0);
	CHECK(ev.freed == UINT64_MAX && !ev.addr.family);
	for (int i = 0; i < 1000 && !fake_watched(f, 1); i++)
		nap(1); /* the new daemon was told again */
	CHECK(fake_watched(f, 1));
	CHECK_IS(rdsd_watch(a, 0, 0), 0);
	CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_NOWAIT), -EINVAL);
	end();
}

static int answers_after; /* looks of a step at a destination until the daemon has answered */

static int64_t asking_step(struct rdsdi_op *op)
{
	op->patient = answers_after-- > 0;
	op->why = op->patient ? -EAGAIN : -ENOBUFS;
	op->bits = WAITS_FLOW;
	return BLOCKED;
}

/* A call that does not wait ends when the daemon has answered, at whichever of its looks that is found. */
static void answered_meanwhile(void)
{
	rdsd_socket *s;

	begin();
	s = bound(1);
	for (int i = 0; i < 4; i++) { /* the fourth is between declaring the sleep and sleeping */
		struct rdsdi_op op = {.step = asking_step, .s = s, .asks = true}; /* no spinning: each look counts */
		struct timespec from, to;

		answers_after = i;
		clock_gettime(CLOCK_MONOTONIC, &from);
		CHECK_IS(rdsdi_run(&op, RDSD_NOWAIT), -ENOBUFS);
		clock_gettime(CLOCK_MONOTONIC, &to);
		CHECK(to.tv_sec - from.tv_sec < 4); /* it has 5 s */
	}
	end();
}

/*
 * The first datagram to a port is refused: the watcher hears when the port is
 * clear, also when the daemon did not know of the watch in time and tells of
 * nothing. Three ways to wait, and the watch may come after the refusal.
 */
/* What a batch has for a destination that is refused costs one answer of the daemon. */
static void refused_in_a_batch(void)
{
	rdsd_addr six = {.ip = {0x20, 1}, .port = 5, .family = 6};
	rdsd_dgram d[200];
	rdsd_socket *s;
	int error;

	begin();
	s = bound(1);
	send_text(s, 1, "known");
	for (int wait = 0; wait < 2; wait++) {
		uint64_t opens;

		for (int i = 0; i < 200; i++)
			d[i] = (rdsd_dgram){.data = "x", .len = 1, .to = i % 4 ? six : at(1)};
		fake_lock(f);
		opens = fake_at(f, 1)->opens;
		fake_unlock(f);
		CHECK_IS(rdsd_send_batch(s, d, 200, &error, wait ? RDSD_SEC(30) : RDSD_NOWAIT), 50);
		CHECK_IS(error, -EOPNOTSUPP);
		for (int i = 0; i < 200; i++)
			CHECK_IS(d[i].error, i % 4 ? -EOPNOTSUPP : 0);
		fake_lock(f);
		CHECK_IS(fake_at(f, 1)->opens - opens, 1); /* and one in the next batch: it asks again */
		fake_unlock(f);
	}
	end();
}

/*
 * Once a destination had no room it has none for what stands behind it in a batch, also where
 * the batch opens more flows than there are and the daemon finds it clear meanwhile.
 */
static void nothing_overtakes(void)
{
	static const struct fake_sizes sizes = {.flows = 4};
	rdsd_dgram d[3];
	rdsd_socket *s;
	struct fake_socket *there;

	begin_with(&sizes);
	s = bound(1);
	for (uint16_t port = 1; port < 5; port++) {
		if (port > 1)
			bound(port);
		send_text(s, port, "known");
	}
	CHECK_IS(rdsd_flush(s, RDSD_SEC(30)), 0);
	CHECK_IS(rdsd_arm(s, RDSD_WRITABLE), RDSD_WRITABLE); /* takes the events in */
	rdsd_disarm(s);
	CHECK_IS(s->tx.flow_hand, 0); /* the next one takes the entry of port 1 */
	CHECK(s->tx.flows[0].to.port == 1 && !s->tx.flows[0].refs);
	fake_lock(f);
	there = fake_at(f, 1);
	atomic_store(at64(&there->r, there->r.flow_states), (uint64_t)s->tx.flows[0].generation << 32 | STATE_CONGESTED << 16);
	fake_unlock(f);
	for (int i = 0; i < 3; i++)
		d[i] = (rdsd_dgram){.data = "x", .len = 1, .to = at(i == 1 ? 9 : 1)};
	CHECK_IS(rdsd_send_batch(s, d, 3, NULL, RDSD_NOWAIT), 1);
	CHECK(d[0].error == -ENOBUFS && !d[1].error && d[2].error == -ENOBUFS);
	end();
}

/* congest sends datagrams of 1,000 bytes until the port is congested: how many. */
static int congest(rdsd_socket *s, rdsd_addr to)
{
	static uint8_t kb[1000];
	int n = 0, err;

	while ((err = rdsd_try_send(s, &to, kb, sizeof kb, NULL)) != -ENOBUFS) {
		if (!err)
			n++;
		else
			nap(1); /* the fake has to take some */
	}
	return n;
}

/* A send that waits for a flow of a region knows it from that of a later one at the same place. */
static void jam_of_a_former_region(void)
{
	struct rdsdi_jam whole = {0};
	rdsd_addr to = at(2);
	rdsd_socket *a, *b;
	_Atomic uint64_t *waiting;
	uint32_t flow;

	begin();
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.recv_buffer = 16384});
	congest(a, to);
	rdsdi_jam_whole = &whole;
	CHECK_IS(rdsd_send(a, &to, "x", 1, NULL, RDSD_MS(5)), -ETIMEDOUT);
	rdsdi_jam_whole = NULL;
	CHECK_IS(waiting_for(a, 2), 1);
	waiting = at64(a->tx.reg, entry_of(a, 2) + FLOW_WAITING);
	flow = (uint32_t)(whole.flow - a->tx.flows);
	rdsdi_tx_stop(a, WHY_DAEMON_RESTARTED);
	CHECK_IS(rdsdi_tx_start(a, a->ctl.link), 0);
	a->tx.flows[flow].generation = whole.generation;
	rdsdi_jam_end(&whole, &a->tx);
	CHECK_IS(load_relaxed(waiting), 1);
	rdsd_close(a);
	rdsd_close(b);
	end();
}

static void refused_at_once(void)
{
	rdsd_congestion ev;
	rdsd_addr to = at(2);
	rdsd_socket *a[4], *b, *filler;
	struct pollfd p;
	int n;

	begin();
	b = bound_with(2, (rdsd_bind_options){.recv_buffer = 16384});
	filler = bound(1);
	for (int i = 0; i < 4; i++) {
		a[i] = bound((uint16_t)(10 + i));
		if (i < 3)
			CHECK_IS(rdsd_watch(a[i], 1, 0), 0);
	}
	n = congest(filler, to);
	f->unwatched = true;
	for (int i = 0; i < 4; i++)
		CHECK_IS(rdsd_try_send(a[i], &to, "first", 5, NULL), -ENOBUFS);
	for (int i = 0; i < 3; i++)
		CHECK_IS(rdsd_next_congestion(a[i], &ev, RDSD_NOWAIT), -EAGAIN);
	CHECK_IS(rdsd_arm(a[1], RDSD_CONGESTION), 0);
	while (n--)
		CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), 1000);
	CHECK_IS(rdsd_next_congestion(a[0], &ev, RDSD_SEC(5)), 0);
	CHECK(!ev.congested && ev.addr.port == 2);
	p = (struct pollfd){.fd = rdsd_fd(a[1]), .events = POLLIN};
	CHECK_IS(poll(&p, 1, 5000), 1);
	rdsd_disarm(a[1]);
	CHECK_IS(rdsd_next_congestion(a[1], &ev, RDSD_NOWAIT), 0);
	CHECK(!ev.congested && ev.addr.port == 2);
	fake_lock(f); /* until it has told them all */
	fake_unlock(f);
	CHECK_IS(rdsd_arm(a[2], RDSD_CONGESTION), RDSD_CONGESTION); /* it is there already */
	CHECK_IS(rdsd_watch(a[3], 1, 0), 0);
	CHECK_IS(rdsd_next_congestion(a[3], &ev, RDSD_NOWAIT), 0); /* was refused before it watched */
	CHECK(!ev.congested && ev.addr.port == 2);
	for (int i = 0; i < 4; i++) {
		if (i != 2)
			CHECK_IS(rdsd_next_congestion(a[i], &ev, RDSD_NOWAIT), -EAGAIN); /* told once */
		CHECK_IS(rdsd_try_send(a[i], &to, "first", 5, NULL), 0);
	}
	end();
}

/* Told by the state and by the event, a change is one change. */
static void told_once(void)
{
	rdsd_congestion ev;
	rdsd_addr to = at(2);
	rdsd_socket *a, *b;
	int n, clear;

	begin();
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.recv_buffer = 16384});
	CHECK_IS(rdsd_watch(a, 1, 0), 0);
	for (int round = 0; round < 20; round++) {
		n = congest(a, to);
		while (n--)
			CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), 1000);
		for (clear = 0; !clear;) {
			CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_SEC(5)), 0);
			CHECK(ev.addr.port == 2 && !ev.freed);
			clear = !ev.congested;
		}
		CHECK_IS(rdsd_next_congestion(a, &ev, RDSD_MS(5)), -ETIMEDOUT);
	}
	end();
}

/* Requests */

static void *answer(void *arg)
{
	rdsd_socket *b = arg;
	char buf[100];
	rdsd_addr from;

	for (;;) {
		ssize_t n = rdsd_recv(b, buf, sizeof buf, &from, RDSD_FOREVER);

		if (n < 0)
			return NULL;
		CHECK_IS(rdsd_send(b, &from, buf, (size_t)n, NULL, RDSD_SEC(5)), 0);
	}
}

static rdsd_socket *requester;

static void *ask_many(void *arg)
{
	rdsd_addr to = at(2);
	char buf[8];

	(void)arg;
	for (int i = 0; i < 300; i++)
		CHECK_IS(rdsd_request(requester, &to, "pong?", 5, buf, sizeof buf, RDSD_SEC(20)), 5);
	return NULL;
}

static void requests(void)
{
	rdsd_addr to = at(2), nobody = at(3);
	rdsd_socket *b, *c;
	pthread_t t, many[3];
	char buf[4];

	begin();
	requester = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	b = bound(2);
	c = bound(3);
	CHECK(!pthread_create(&t, NULL, answer, b));
	send_text(c, 1, "for others"); /* is put aside, not lost */
	CHECK_IS(rdsd_flush(c, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_request(requester, &to, "ping?", 5, buf, sizeof buf, RDSD_SEC(5)), 5);
	CHECK(!memcmp(buf, "ping", 4));
	to = mapped(2);
	CHECK_IS(rdsd_request(requester, &to, "ping?", 5, buf, sizeof buf, RDSD_SEC(5)), 5);
	expect_text(requester, 3, "for others");
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&many[i], NULL, ask_many, NULL));
	for (int i = 0; i < 3; i++)
		pthread_join(many[i], NULL);
	hold(false, true);
	CHECK_IS(rdsd_request(requester, &nobody, "anyone?", 7, buf, sizeof buf, RDSD_MS(30)), -ETIMEDOUT);
	hold(false, false);
	CHECK_IS(rdsd_recv(c, buf, 4, NULL, RDSD_MS(30)), -ETIMEDOUT); /* it was taken back */
	CHECK(!requester->rx.waiters);
	rdsd_shutdown(b);
	pthread_join(t, NULL);
	end();
}

struct question {
	rdsd_socket *s;
	char ask, got;
	ssize_t result;
};

static void *put_question(void *arg)
{
	struct question *q = arg;
	rdsd_addr to = at(2);

	q->result = rdsd_request(q->s, &to, &q->ask, 1, &q->got, 1, RDSD_SEC(20));
	return NULL;
}

/* ports is how many ports requests of s have now; they come and go in other threads. */
static unsigned ports(rdsd_socket *s)
{
	unsigned n;

	pthread_mutex_lock(&s->requests.mu);
	n = s->requests.n;
	pthread_mutex_unlock(&s->requests.mu);
	return n;
}

static void reply(rdsd_socket *b, const rdsd_addr *from, char c)
{
	CHECK_IS(rdsd_reply(b, from, &c, 1, RDSD_SEC(5)), 0);
}

/*
 * The answer to a request that timed out comes late, while others are under way:
 * they get their own. Nobody else gets it, and a port that may be sent it is let
 * go of.
 */
static void late_replies(void)
{
	rdsd_addr to = at(2), late[4], from;
	struct question q[4];
	rdsd_socket *a, *b;
	pthread_t t;
	char c;

	begin();
	a = bound(1);
	b = bound(2);
	for (int i = 0; i < 4; i++) {
		/* On a busy machine the time may be over before it has left: then it was taken back. */
		for (int64_t time = RDSD_MS(30);; time *= 2) {
			c = (char)('0' + i);
			CHECK_IS(rdsd_request(a, &to, &c, 1, &c, 1, time), -ETIMEDOUT);
			if (rdsd_recv(b, &c, 1, &late[i], RDSD_MS(100)) == 1)
				break;
		}
		CHECK(c == '0' + i && late[i].port != 1 && late[i].port > 2);
		CHECK(ports(a) <= 1); /* one that it was taken back from stays */
		q[i] = (struct question){.s = a, .ask = (char)('a' + i)};
		CHECK(!pthread_create(&t, NULL, put_question, &q[i]));
		CHECK_IS(rdsd_recv(b, &c, 1, &from, RDSD_SEC(5)), 1);
		CHECK(c == 'a' + i);
		for (int k = 0; k <= i; k++) {
			CHECK(!rdsd_addr_equal(&from, &late[k]));
			reply(b, &late[k], '!');
		}
		reply(b, &from, (char)('A' + i));
		pthread_join(t, NULL);
		CHECK_IS(q[i].result, 1);
		CHECK(q[i].got == 'A' + i);
		CHECK(ports(a) == 1);
	}
	/* Twice answered: the second one waits at the port, and is not the answer to the next request. */
	q[0] = (struct question){.s = a, .ask = 'x'};
	CHECK(!pthread_create(&t, NULL, put_question, &q[0]));
	CHECK_IS(rdsd_recv(b, &c, 1, &from, RDSD_SEC(5)), 1);
	reply(b, &from, 'X');
	pthread_join(t, NULL);
	reply(b, &from, 'Z');
	CHECK_IS(rdsd_flush(b, RDSD_SEC(5)), 0);
	q[1] = (struct question){.s = a, .ask = 'y'};
	CHECK(!pthread_create(&t, NULL, put_question, &q[1]));
	CHECK_IS(rdsd_recv(b, &c, 1, &from, RDSD_SEC(5)), 1);
	reply(b, &from, 'Y');
	pthread_join(t, NULL);
	CHECK(q[0].got == 'X' && q[1].got == 'Y');
	CHECK_IS(rdsd_recv(a, &c, 1, NULL, RDSD_NOWAIT), -EAGAIN);
	end();
}

static void *ask_silent(void *sock)
{
	rdsd_addr to = at(4);
	int64_t result = rdsd_request(sock, &to, "?", 1, NULL, 0, RDSD_FOREVER);

	CHECK(strstr(rdsd_errmsg(), "somebody else has the port"));
	return (void *)(intptr_t)result;
}

/* A reply port whose number somebody else has after a restart is let go of: the next request has another one. */
static void taken_port(void)
{
	rdsd_socket *a, *silent;
	pthread_t t, left, waits;
	struct question q;
	rdsd_addr from;
	void *result;

	begin();
	a = bound(1);
	silent = bound(4);
	requester = bound(2);
	CHECK(!pthread_create(&t, NULL, answer, requester));
	q = (struct question){.s = a, .ask = 'a'};
	put_question(&q);
	CHECK_IS(q.result, 1);
	CHECK_IS(ports(a), 1);
	/* One that has left ends when the port is lost, one that waits to leave does so from another port. */
	CHECK(!pthread_create(&left, NULL, ask_silent, a));
	CHECK_IS(rdsd_recv(silent, NULL, 0, &from, RDSD_SEC(20)), 1);
	CHECK_IS(ports(a), 1);
	f->taken = from.port;
	f->mute = true;
	rdsdi_attempt_timeout = RDSD_MS(30);
	fake_kill(f);
	nap(100);
	q.ask = 'b';
	CHECK(!pthread_create(&waits, NULL, put_question, &q));
	nap(100);
	hold(true, false); /* until there is somebody to answer */
	f->mute = false;
	for (time_t until = time(NULL) + 30; time(NULL) < until && !fake_bound(f, 2);)
		usleep(1000);
	hold(false, false);
	pthread_join(left, &result);
	CHECK_IS((intptr_t)result, -ESHUTDOWN);
	pthread_join(waits, NULL);
	CHECK_IS(q.result, 1);
	CHECK(q.got == 'b');
	CHECK_IS(ports(a), 1);
	rdsdi_attempt_timeout = BIND_TIMEOUT;
	q.ask = 'c';
	put_question(&q);
	CHECK_IS(q.result, 1);
	CHECK(q.got == 'c');
	rdsd_shutdown(requester);
	pthread_join(t, NULL);
	end();
}

/* Many requests to one destination: each has a port, the last ones wait for theirs, and few are kept. */
static void many_requests(void)
{
	enum { MANY = MAX_PORTS + 4 };
	static struct question q[MANY];
	static pthread_t t[MANY];
	static rdsd_addr from[MANY];
	static char asked[MANY];
	rdsd_socket *a, *b;
	int first = 0, n = 0;

	begin();
	a = bound(1);
	b = bound(2);
	for (int i = 0; i < MANY; i++) {
		q[i] = (struct question){.s = a, .ask = (char)i};
		CHECK(!pthread_create(&t[i], NULL, put_question, &q[i]));
	}
	for (; n < (int)MAX_PORTS; n++)
		CHECK_IS(rdsd_recv(b, &asked[n], 1, &from[n], RDSD_SEC(20)), 1);
	CHECK_IS(rdsd_recv(b, &asked[n], 1, &from[n], RDSD_MS(20)), -ETIMEDOUT);
	CHECK_IS(ports(a), MAX_PORTS);
	for (; first < MANY; first++) {
		reply(b, &from[first], (char)(asked[first] + 100));
		if (n < MANY) {
			CHECK_IS(rdsd_recv(b, &asked[n], 1, &from[n], RDSD_SEC(20)), 1);
			n++;
		}
	}
	for (int i = 0; i < MANY; i++) {
		pthread_join(t[i], NULL);
		CHECK_IS(q[i].result, 1);
		CHECK(q[i].got == (char)(i + 100));
	}
	CHECK(ports(a) <= KEEP_PORTS);
	/* One that waits for its answer and is ended by the socket's end. */
	CHECK(!pthread_create(&t[0], NULL, put_question, &q[0]));
	CHECK_IS(rdsd_recv(b, &asked[0], 1, &from[0], RDSD_SEC(20)), 1);
	rdsd_shutdown(a);
	pthread_join(t[0], NULL);
	CHECK_IS(q[0].result, -EBADF);
	CHECK_IS(rdsd_request(a, &from[0], "x", 1, NULL, 0, RDSD_SEC(1)), -EBADF);
	end();
}

/* Event loops */

static void *bind_patiently(void *sock)
{
	*(rdsd_socket **)sock = bound_with(3, (rdsd_bind_options){.timeout = RDSD_SEC(30)});
	return NULL;
}

static void *request_patiently(void *sock)
{
	rdsd_addr to = at(2);

	return (void *)(intptr_t)rdsd_request(sock, &to, "?", 1, NULL, 0, RDSD_FOREVER);
}

/* bind and request wait as long as their callers say, and not as long as an attempt to bind again may take. */
static void patience(void)
{
	rdsd_socket *a, *b, *s;
	pthread_t binds, asks;
	rdsd_addr from;
	void *result;

	begin();
	rdsdi_attempt_timeout = RDSD_MS(30);
	a = bound(1);
	b = bound(2);
	fake_lock(f);
	CHECK(!pthread_create(&binds, NULL, bind_patiently, &s));
	CHECK(!pthread_create(&asks, NULL, request_patiently, a));
	nap(150);
	fake_unlock(f);
	pthread_join(binds, NULL);
	CHECK_IS(rdsd_recv(b, NULL, 0, &from, RDSD_SEC(20)), 1);
	reply(b, &from, '!');
	pthread_join(asks, &result);
	CHECK_IS((intptr_t)result, 1);
	/* What may be there later is waited for, what is refused is not. */
	fake_kill(f);
	f->refuse = EADDRNOTAVAIL;
	CHECK_IS(rdsd_request(a, &from, "?", 1, NULL, 0, RDSD_MS(100)), -ETIMEDOUT);
	rdsd_close(s);
	rdsdi_attempt_timeout = BIND_TIMEOUT;
	end();
}

/* A reply port is closed without waiting for the daemon: a request that gives up does it. */
static void ports_of_a_still_daemon(void)
{
	rdsd_bind_options o = {.size = sizeof o, .timeout = RDSD_SEC(30)};
	rdsd_addr local = at(0);
	struct rdsdi_requests none = {.over = false};
	rdsd_socket *port[12];
	int64_t begun;

	begin();
	rdsdi_requests_init(&none);
	for (int i = 0; i < 12; i++)
		CHECK_IS(rdsdi_bind(client, &local, &o, &none, &port[i]), 0);
	fake_lock(f);
	begun = rdsdi_now();
	for (int i = 0; i < 12; i++)
		rdsd_close(port[i]);
	CHECK(rdsdi_now() - begun < 6 * CLOSE_GRACE);
	fake_unlock(f);
	end();
}

static bool binds_port(rdsd_socket *s)
{
	bool begun;

	pthread_mutex_lock(&s->requests.mu);
	begun = s->requests.begun;
	pthread_mutex_unlock(&s->requests.mu);
	return begun;
}

static void *shut_patiently(void *s) { return (void *)(intptr_t)rdsd_shutdown(s); }

/* The end of a socket ends a request that waits for the daemon to give it a port, or for its answer, and does so first. */
static void shutdown_of_a_still_daemon(void)
{
	pthread_t asks[2], shuts;
	rdsd_socket *a, *b;
	unsigned binds;
	int64_t begun;
	void *result;

	begin();
	a = bound(1);
	b = bound(2);
	CHECK(!pthread_create(&asks[0], NULL, request_patiently, a));
	CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(20)), 1);
	fake_lock(f);
	binds = f->binds;
	CHECK(!pthread_create(&asks[1], NULL, request_patiently, a));
	while (!binds_port(a))
		nap(1);
	nap(50); /* and the other one waits for the daemon */
	CHECK_IS(f->binds, binds);
	begun = rdsdi_now();
	CHECK(!pthread_create(&shuts, NULL, shut_patiently, a));
	for (int i = 0; i < 2; i++) {
		pthread_join(asks[i], &result);
		CHECK_IS((intptr_t)result, -EBADF);
	}
	CHECK(rdsdi_now() - begun < CLOSE_GRACE / 2);
	fake_unlock(f);
	pthread_join(shuts, NULL);
	end();
}

static void event_loop(void)
{
	rdsd_socket *a, *b;
	struct pollfd p = {.events = POLLIN};
	char buf[10];
	int fd;

	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	b = bound(2);
	fd = rdsd_fd(b);
	CHECK(fd >= 0);
	CHECK_IS(rdsd_fd(b), fd);
	p.fd = fd;
	for (int i = 0; i < 200; i++) {
		CHECK_IS(rdsd_arm(b, RDSD_READABLE), 0);
		if (i % 3 == 0)
			send_text(a, 2, "wake");
		CHECK_IS(poll(&p, 1, i % 3 == 0 ? 5000 : 0), i % 3 == 0);
		rdsd_disarm(b);
		if (i % 3 == 0)
			expect_text(b, 1, "wake");
		CHECK_IS(rdsd_recv(b, buf, 10, NULL, RDSD_NOWAIT), -EAGAIN);
	}
	send_text(a, 2, "there");
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_arm(b, RDSD_READABLE), RDSD_READABLE);
	expect_text(b, 1, "there");
	CHECK_IS(rdsd_arm(a, RDSD_OUTCOME | RDSD_WRITABLE), RDSD_OUTCOME | RDSD_WRITABLE);
	/* The descriptor outlives a daemon, and a loop alone binds again. */
	CHECK_IS(rdsd_arm(b, RDSD_READABLE), 0);
	fake_kill(f);
	/* How many turns that takes is the scheduler's: the daemon comes back in another thread. */
	for (time_t until = time(NULL) + 20; time(NULL) < until && !fake_bound(f, 2);) {
		CHECK_IS(poll(&p, 1, 5000), 1);
		rdsd_disarm(b);
		CHECK(rdsd_arm(b, RDSD_READABLE) == 0);
	}
	CHECK(fake_bound(f, 2));
	send_text(a, 2, "again");
	CHECK_IS(poll(&p, 1, 5000), 1);
	rdsd_disarm(b);
	expect_text(b, 1, "again");
	rdsd_shutdown(b);
	CHECK_IS(rdsd_arm(b, RDSD_READABLE), -EBADF);
	end();
}

/* A loop and waiting threads on one socket: each is woken. */
static void *loop_reader(void *arg)
{
	rdsd_socket *b = arg;
	struct pollfd p = {.fd = rdsd_fd(b), .events = POLLIN};

	for (;;) {
		int got = rdsd_arm(b, RDSD_READABLE);

		if (got < 0)
			return NULL;
		if (!got)
			poll(&p, 1, -1);
		rdsd_disarm(b);
		while (rdsd_recv(b, NULL, 0, NULL, RDSD_NOWAIT) >= 0)
			;
	}
}

static void loop_and_threads(void)
{
	rdsd_socket *a, *b;
	pthread_t t;
	rdsd_outcome o;

	begin();
	a = bound(1);
	b = bound_with(2, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .spin = -1});
	CHECK(!pthread_create(&t, NULL, loop_reader, b));
	for (int i = 0; i < 500; i++) {
		send_text(b, 1, "out");
		CHECK_IS(rdsd_outcomes(b, &o, 1, RDSD_SEC(5)), 1);
		expect_text(a, 2, "out");
	}
	rdsd_shutdown(b);
	pthread_join(t, NULL);
	end();
}

/* recv is the system's. Before the next one of this thread it makes the call that a test has set. */
static _Thread_local void (*before_recv)(void);

ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	void (*call)(void) = before_recv;

	before_recv = NULL;
	if (call)
		call();
	return recvfrom(fd, buf, n, flags, NULL, NULL);
}

static void restarted(rdsd_socket *s);
static rdsd_socket *looping;
static void restart_looping(void)
{
	restarted(looping);
	CHECK_IS(rdsd_recv(looping, NULL, 0, NULL, RDSD_MS(20)), -ETIMEDOUT); /* leaves the doorbell silent */
}

/* The link that a loop is about to arm is replaced: it must not sleep on a daemon that is gone. */
static void armed_too_late(void)
{
	struct pollfd p = {.events = POLLIN};
	rdsd_socket *a;

	begin();
	a = bound(1);
	looping = bound(2);
	p.fd = rdsd_fd(looping);
	before_recv = restart_looping;
	CHECK_IS(rdsd_arm(looping, RDSD_READABLE), 0);
	CHECK(!before_recv);
	send_text(a, 2, "after");
	do {
		CHECK_IS(poll(&p, 1, 30000), 1);
		rdsd_disarm(looping);
	} while (!rdsd_arm(looping, RDSD_READABLE));
	expect_text(looping, 1, "after");
	end();
}

/* Restarts */

static void restart(void)
{
	rdsd_addr to = at(2), where;
	rdsd_socket *a, *b;
	rdsd_slot slot;
	rdsd_outcome o;
	uint64_t tag, sum = 0;
	rdsd_msg kept;
	size_t size;
	int err;

	begin();
	a = bound_with(0, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	b = bound(2);
	rdsd_local_addr(a, &where);
	send_text(a, 2, "kept");
	send_text(a, 2, "unread 1");
	send_text(a, 2, "unread 2");
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_recv_batch(b, &kept, 1, RDSD_SEC(5)), 1);
	hold(true, false);
	CHECK_IS(rdsd_send(a, &to, "lost 1", 6, NULL, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_send(a, &to, "lost 2", 6, &tag, RDSD_SEC(5)), 0);
	CHECK_IS(rdsd_reserve(a, &to, 10, &slot, RDSD_SEC(5)), 0);
	fake_lock(f);
	f->refuse = ESHUTDOWN; /* it is away for a while */
	fake_unlock(f);
	fake_kill(f);
	nap(10);
	while ((err = rdsd_try_send(a, &to, "now", 3, NULL)) == 0)
		nap(2); /* accepted: the loss is not noticed at once */
	CHECK_IS(err, -ESHUTDOWN);
	CHECK(strstr(rdsd_errmsg(), "not connected to the daemon"));
	CHECK_IS(rdsd_commit(a, &slot, 10, NULL), -ESHUTDOWN);
	CHECK_IS(rdsd_flush(a, RDSD_NOWAIT), -ESHUTDOWN);
	CHECK_IS(rdsd_send(a, &to, "late", 4, NULL, RDSD_MS(30)), -ETIMEDOUT);
	while (sum < 3) { /* those that were delivered */
		CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
		CHECK_IS(o.kind, RDSD_DELIVERED);
		sum += o.count;
	}
	CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(5)), 1);
	CHECK(o.kind == RDSD_UNKNOWN && !strcmp(rdsd_reason_text(o.reason), "daemon restarted") && o.tag + 1 <= tag);
	fake_lock(f);
	f->refuse = 0;
	f->hold_sends = false;
	fake_unlock(f);
	expect_text(b, where.port, "unread 1"); /* what had arrived is still handed out */
	CHECK_IS(rdsd_peek(b, &size), 1);
	CHECK_IS(rdsd_flush(b, RDSD_SEC(5)), 0); /* b binds again in its own calls */
	send_text(a, 2, "after");                /* waits for the new daemon */
	expect_text(b, where.port, "unread 2");
	expect_text(b, where.port, "after");
	CHECK(!memcmp(kept.data, "kept", 4));
	rdsd_release(&kept, 1);
	rdsd_local_addr(a, &where);
	CHECK(fake_bound(f, where.port));
	end();
}

/* restarted ends the daemon's life; the socket is bound again before this returns. */
static void restarted(rdsd_socket *s)
{
	rdsd_addr where, to = at(9);
	time_t until = time(NULL) + 20;

	rdsd_local_addr(s, &where);
	fake_kill(f);
	nap(10); /* after CHECK_EVERY the next call looks */
	do
		CHECK_IS(rdsd_send(s, &to, "out", 3, NULL, RDSD_SEC(5)), 0);
	while (!fake_bound(f, where.port) && time(NULL) < until);
	CHECK(fake_bound(f, where.port));
}

/* Whoever only sends lets go of the regions of dead daemons, too; what is unread in one of them stays. */
static void restarts_without_a_receive(void)
{
	rdsd_socket *a, *b;

	begin();
	a = bound(1);
	b = bound(2);
	send_text(b, 2, "unread");
	CHECK_IS(rdsd_flush(b, RDSD_SEC(5)), 0);
	for (int i = 0; i < 10; i++) {
		restarted(a);
		restarted(b);
	}
	CHECK_IS(a->rx.regions, 1);
	CHECK_IS(b->rx.regions, 2);
	send_text(a, 2, "after");
	expect_text(b, 2, "unread");
	expect_text(b, 1, "after");
	end();
}

static void unread_of_many_daemons(void)
{
	rdsd_addr to = at(1);
	rdsd_socket *a;
	unsigned binds;
	char text[24];

	begin();
	a = bound(1);
	for (int i = 0; i < 8; i++) {
		if (i)
			restarted(a);
		snprintf(text, sizeof text, "of daemon %d", i);
		send_text(a, 1, text);
		CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	}
	fake_kill(f);
	nap(10);
	binds = f->binds;
	CHECK_IS(rdsd_flush(a, RDSD_MS(200)), -ETIMEDOUT); /* nothing is dropped for a new one */
	CHECK_IS(f->binds, binds);                         /* and none takes what it could not hand out */
	CHECK_IS(rdsd_try_send(a, &to, "x", 1, NULL), -ESHUTDOWN);
	CHECK(strstr(rdsd_errmsg(), "unread"));
	expect_text(a, 1, "of daemon 0");
	CHECK_IS(rdsd_send(a, &to, "of daemon 8", 11, NULL, RDSD_SEC(5)), 0);
	for (int i = 1; i < 9; i++) {
		snprintf(text, sizeof text, "of daemon %d", i);
		expect_text(a, 1, text);
	}
	end();
}

/* What is lent or reserved of daemons that have ended keeps memory alone. */
static void descriptors_over_restarts(void)
{
	enum { LIVES = 30 };
	rdsd_addr to = at(1);
	rdsd_slot slots[LIVES];
	rdsd_msg lent[LIVES];
	rdsd_socket *a;
	int before = 0;

	begin();
	a = bound(1);
	for (int i = 0; i < LIVES; i++) {
		if (i == 5)
			before = open_fds();
		restarted(a);
		send_text(a, 1, "lent");
		CHECK_IS(rdsd_recv_batch(a, &lent[i], 1, RDSD_SEC(10)), 1);
		CHECK_IS(rdsd_reserve(a, &to, 4, &slots[i], RDSD_SEC(10)), 0);
	}
	CHECK_IS(open_fds(), before);
	for (int i = 0; i < LIVES; i++) {
		CHECK(!memcmp(lent[i].data, "lent", 4));
		rdsd_release(&lent[i], 1);
		CHECK_IS(rdsd_commit(a, &slots[i], 4, NULL), i < LIVES - 1 ? -ESHUTDOWN : 0);
	}
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(10)), 4);
	end();
}

static void no_reconnect(void)
{
	rdsd_bind_options o = {.flags = RDSD_NO_RECONNECT | RDSD_OUTCOMES};
	rdsd_addr to = at(2);
	rdsd_socket *a, *b;
	rdsd_outcome out;
	size_t size;

	begin();
	a = bound_with(1, o);
	b = bound_with(2, o);
	send_text(a, 2, "unread");
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), 0);
	fake_kill(f);
	CHECK_IS(rdsd_outcomes(a, &out, 1, RDSD_SEC(5)), 1);
	CHECK_IS(rdsd_outcomes(a, &out, 1, RDSD_SEC(5)), -ESHUTDOWN);
	CHECK(strstr(rdsd_errmsg(), "went away"));
	CHECK_IS(rdsd_send(a, &to, "x", 1, NULL, RDSD_SEC(5)), -ESHUTDOWN);
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), -ESHUTDOWN);
	CHECK_IS(rdsd_cancel_sent_to(a, &to, NULL, RDSD_SEC(5)), -ESHUTDOWN);
	expect_text(b, 1, "unread");
	CHECK_IS(rdsd_recv(b, NULL, 0, NULL, RDSD_SEC(5)), -ESHUTDOWN);
	CHECK_IS(rdsd_peek(b, &size), -ESHUTDOWN);
	end();
}

static void dismissed(void)
{
	rdsd_socket *a;

	begin();
	a = bound(1);
	fake_dismiss(f, 1, ECONNRESET, "closed by an administrator");
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(5)), -ECONNRESET);
	CHECK(strstr(rdsd_errmsg(), "closed by an administrator"));
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(5)), -ECONNRESET);
	rdsd_close(a);
	a = bound(1);
	fake_dismiss(f, 1, ESHUTDOWN, "draining"); /* the daemon's own end: bind again */
	send_text(a, 1, "again");
	expect_text(a, 1, "again");
	/* Also where the daemon has closed with something unread. */
	fake_lock(f);
	CHECK_IS(rdsd_watch(a, 1, 0), 0);
	fake_dismiss(f, 1, ECANCELED, "closed with an unread message");
	fake_unlock(f);
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(30)), -ECANCELED);
	CHECK(strstr(rdsd_errmsg(), "closed with an unread message"));
	end();
}

static void *receive_lent(void *s)
{
	rdsd_msg m;
	ssize_t n = rdsd_recv_batch(s, &m, 1, RDSD_SEC(5));

	if (n == 1)
		rdsd_release(&m, 1);
	return (void *)(intptr_t)n;
}

static void *arm_lent(void *s) { return (void *)(intptr_t)rdsd_arm(s, RDSD_READABLE | RDSD_BORROWED); }

/* The end comes after the message that says so: the fake's thread may still poll the descriptor it has closed. */
static void *pump_to_the_end(void *a)
{
	rdsd_socket *s = a;

	while (!atomic_load(&s->over)) {
		rdsdi_pump(s);
		nap(1);
	}
	return NULL;
}

/* Something comes, and the end, while a call that has seen nothing is about to say so. */
static void unread_at_the_end(void)
{
	static void *(*const calls[])(void *) = {receive_lent, arm_lent};

	begin();
	for (int i = 0; i < 2; i++) {
		rdsd_socket *a = bound(1), *b = bound(2);
		struct rdsdi_region *r = a->rx.reg;
		pthread_t looks, pumps;
		void *result;

		pthread_mutex_lock(&r->mu); /* its last look, for what is lent, needs that */
		CHECK(!pthread_create(&looks, NULL, calls[i], a));
		while (!pthread_mutex_trylock(&a->rx.mu)) {
			pthread_mutex_unlock(&a->rx.mu);
			nap(1);
		}
		send_text(b, 1, "unread");
		CHECK_IS(rdsd_flush(b, RDSD_SEC(5)), 0);
		fake_dismiss(f, 1, ECONNRESET, "closed by an administrator");
		CHECK(!pthread_create(&pumps, NULL, pump_to_the_end, a));
		while (!atomic_load(&a->over))
			nap(1);
		pthread_mutex_unlock(&r->mu);
		pthread_join(looks, &result);
		pthread_join(pumps, NULL);
		CHECK((intptr_t)result >= 0);
		if (calls[i] == arm_lent)
			expect_text(a, 2, "unread");
		CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(5)), -ECONNRESET);
		rdsd_close(a);
		rdsd_close(b);
	}
	end();
}

static void *wait_recv(void *s) { return (void *)(intptr_t)rdsd_recv(s, NULL, 0, NULL, RDSD_FOREVER); }
static void *wait_outcome(void *s)
{
	rdsd_outcome o;

	return (void *)(intptr_t)rdsd_outcomes(s, &o, 1, RDSD_FOREVER);
}
static void *wait_flush(void *s) { return (void *)(intptr_t)rdsd_flush(s, RDSD_FOREVER); }
static void *wait_send(void *s)
{
	static uint8_t kb[60000];
	rdsd_addr to = at(1);

	for (;;) {
		int err = rdsd_send(s, &to, kb, sizeof kb, NULL, RDSD_FOREVER);

		if (err)
			return (void *)(intptr_t)err;
	}
}

static void closing(void)
{
	static void *(*const calls[])(void *) = {wait_recv, wait_send, wait_flush, wait_outcome, wait_recv, wait_outcome};
	rdsd_addr to = at(1);
	rdsd_socket *a;
	rdsd_msg m;
	pthread_t t[6];
	size_t size;
	void *result;

	begin();
	hold(false, true);
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
	send_text(a, 1, "undecided"); /* so that flush has something to wait for */
	for (int i = 0; i < 6; i++)
		CHECK(!pthread_create(&t[i], NULL, calls[i], a));
	nap(30);
	CHECK_IS(rdsd_shutdown(a), 0);
	for (int i = 0; i < 6; i++) {
		pthread_join(t[i], &result);
		/* Outcomes: the undecided are unknown now, and may be read. */
		CHECK(result == (void *)(intptr_t)-EBADF || (calls[i] == wait_outcome && result == (void *)1));
	}
	CHECK_IS(rdsd_shutdown(a), 0);
	CHECK_IS(rdsd_send(a, &to, "x", 1, NULL, RDSD_SEC(5)), -EBADF);
	CHECK_IS(rdsd_try_send(a, &to, "x", 1, NULL), -EBADF);
	CHECK_IS(rdsd_recv_batch(a, &m, 1, RDSD_NOWAIT), -EBADF);
	CHECK_IS(rdsd_peek(a, &size), -EBADF);
	CHECK_IS(rdsd_watch(a, 1, 0), -EBADF);
	CHECK_IS(rdsd_congested(a, &to, RDSD_SEC(1)), -EBADF);
	rdsd_close(a);
	hold(false, false);
	end();
}

static _Atomic int shut_down;

static void *shut(void *s)
{
	CHECK_IS(rdsd_shutdown(s), 0);
	shut_down++;
	return NULL;
}

/* Whoever closes while another thread does waits for the daemon too. */
static void closing_twice(void)
{
	pthread_t t[2];
	rdsd_socket *a;

	begin();
	a = bound(1);
	fake_lock(f); /* it sees the end and does nothing yet */
	for (int i = 0; i < 2; i++) {
		CHECK(!pthread_create(&t[i], NULL, shut, a));
		nap(10);
	}
	nap(300);
	CHECK_IS(shut_down, 0);
	fake_unlock(f);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	CHECK(!fake_bound(f, 1));
	rdsd_close(a);
	end();
}

/* Sends until it may not. */
static void *send_on(void *s)
{
	rdsd_addr to = at(1);
	intptr_t sent = 0;
	int err;

	while (!(err = rdsd_try_send(s, &to, "x", 1, NULL)) || err == -EAGAIN || err == -ENOBUFS)
		sent += !err;
	return (void *)sent;
}

/* Counts outcomes until there are no more. */
static void *count_outcomes(void *s)
{
	rdsd_outcome o[64];
	intptr_t decided = 0;
	ssize_t n;

	while ((n = rdsd_outcomes(s, o, 64, RDSD_NOWAIT)) >= 0 || n == -EAGAIN)
		for (ssize_t i = 0; i < n; i++)
			decided += o[i].count;
	return (void *)decided;
}

/* Whoever reads outcomes while another thread closes has them all before the error. */
static void closing_decides(void)
{
	rdsd_socket *a;
	pthread_t t[2];
	void *sent, *decided;

	begin();
	hold(false, true);
	for (int round = 0; round < 40; round++) {
		a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES});
		CHECK(!pthread_create(&t[0], NULL, send_on, a));
		CHECK(!pthread_create(&t[1], NULL, count_outcomes, a));
		nap(2);
		CHECK_IS(rdsd_shutdown(a), 0);
		pthread_join(t[0], &sent);
		pthread_join(t[1], &decided);
		CHECK_IS((intptr_t)decided, (intptr_t)sent);
		rdsd_close(a);
	}
	hold(false, false);
	end();
}

static void on_signal(int n) { (void)n; }

static void interrupted(void)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct sigevent se = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec soon = {.it_value = {0, 50000000}}, often = {{0, 50000000}, {0, 50000000}}, never = {0};
	rdsd_addr to = at(1);
	rdsd_socket *a;
	timer_t timer;
	pthread_t t;
	sigset_t set;

	sigaction(SIGUSR1, &sa, NULL);
	CHECK(!timer_create(CLOCK_MONOTONIC, &se, &timer));
	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_INTERRUPTIBLE});
	timer_settime(timer, 0, &soon, NULL);
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_SEC(5)), -EINTR);
	/* Behind another thread that sleeps for all. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	CHECK(!pthread_create(&t, NULL, wait_recv, a));
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	while (!atomic_load(&a->sleep.leader))
		nap(1);
	timer_settime(timer, 0, &often, NULL);
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_FOREVER), -EINTR);
	/* Before a request has a port: as if another thread were binding one. */
	a->requests.binding = true;
	CHECK_IS(rdsd_request(a, &to, "x", 1, NULL, 0, RDSD_FOREVER), -EINTR);
	timer_settime(timer, 0, &never, NULL);
	rdsd_shutdown(a);
	pthread_join(t, NULL);
	rdsd_close(a);
	a = bound(1); /* without the flag it waits on */
	timer_settime(timer, 0, &soon, NULL);
	CHECK_IS(rdsd_recv(a, NULL, 0, NULL, RDSD_MS(120)), -ETIMEDOUT);
	timer_delete(timer);
	end();
}

/* Cancellation (pthread_cancel) */

static _Atomic bool is_cancelled;
static _Atomic unsigned calls_made;

/* A thread that is cancelled while it sleeps for all of the socket does not leave the others asleep for ever. */
static void cancelled_in_a_wait(void)
{
	pthread_t leader, other;
	rdsd_socket *a;
	rdsd_outcome o;
	void *result;

	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .spin = -1});
	send_text(a, 1, "first");
	expect_text(a, 1, "first");
	CHECK_IS(rdsd_outcomes(a, &o, 1, RDSD_SEC(10)), 1);
	CHECK(!pthread_create(&leader, NULL, wait_outcome, a));
	while (!atomic_load(&a->sleep.leader))
		nap(1);
	CHECK(!pthread_create(&other, NULL, wait_recv, a));
	while (!atomic_load(&a->sleep.followers))
		nap(1);
	CHECK(!pthread_cancel(leader));
	nap(20); /* which is where it would end */
	send_text(a, 1, "second");
	CHECK(!pthread_join(other, &result));
	CHECK_IS((intptr_t)result, 6);
	CHECK(!pthread_join(leader, &result));
	CHECK_IS((intptr_t)result, 1);
	end();
}

static void made(ssize_t result, ssize_t expected)
{
	if (result != expected)
		fprintf(stderr, "call %u of a cancelled thread: %zd, %s\n", calls_made, result, rdsd_errmsg());
	else
		atomic_fetch_add(&calls_made, 1);
}

/* make_calls makes each call that may come to the kernel once, and its thread was cancelled before. */
static void *make_calls(void *sock)
{
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	rdsd_addr to = at(1), other = at(3);
	rdsd_congestion event;
	rdsd_outcome out[4];
	rdsd_socket *s = sock, *b;
	rdsd_dgram d = {.data = "x", .len = 1, .to = at(1)};
	rdsd_slot slot;
	rdsd_msg m;
	size_t size;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	while (!atomic_load(&is_cancelled))
		sched_yield();
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	made(rdsd_send(s, &to, "x", 1, NULL, RDSD_SEC(10)), 0);
	made(rdsd_send_run(s, &to, "xy", 1, 2, NULL, RDSD_SEC(10)), 2);
	made(rdsd_send_batch(s, &d, 1, NULL, RDSD_SEC(10)), 1);
	made(rdsd_reserve(s, &to, 1, &slot, RDSD_SEC(10)), 0);
	made(rdsd_commit(s, &slot, 1, NULL), 0);
	made(rdsd_flush(s, RDSD_SEC(10)), 0);
	made(rdsd_recv(s, NULL, 0, NULL, RDSD_SEC(10)), 1);
	made(rdsd_recv_batch(s, &m, 1, RDSD_SEC(10)), 1);
	rdsd_release(&m, 1);
	made(rdsd_peek(s, &size), 1);
	made(rdsd_outcomes(s, out, 1, RDSD_SEC(10)), 1);
	made(rdsd_cancel_sent_to(s, &to, NULL, RDSD_SEC(10)), 0);
	made(rdsd_congested(s, &other, RDSD_SEC(10)), 0);
	made(rdsd_watch(s, 1, 0), 0);
	made(rdsd_next_congestion(s, &event, RDSD_MS(1)), -ETIMEDOUT);
	made(rdsd_request(s, &other, "x", 1, NULL, 0, RDSD_MS(1)), -ETIMEDOUT);
	made(rdsd_fd(s) >= 0, true);
	made(rdsd_arm(s, RDSD_CONGESTION), 0);
	rdsd_disarm(s);
	o.label = "another";
	made(rdsd_bind(client, &other, &o, &b), 0);
	rdsd_fd(b);
	made(rdsd_shutdown(b), 0);
	rdsd_close(b);
	pthread_testcancel();
	return NULL;
}

/* No call is where a cancelled thread ends: it would keep what others need. */
static void cancelled_before(void)
{
	pthread_t t;
	rdsd_socket *a;
	void *result;

	begin();
	a = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .spin = -1});
	atomic_store(&is_cancelled, false);
	atomic_store(&calls_made, 0);
	CHECK(!pthread_create(&t, NULL, make_calls, a));
	CHECK(!pthread_cancel(t));
	atomic_store(&is_cancelled, true);
	CHECK(!pthread_join(t, &result));
	CHECK(result == PTHREAD_CANCELED);
	CHECK_IS(calls_made, 19);
	send_text(a, 1, "after");
	end();
}

static unsigned asked;

static bool raises_at_last(int err) { return err || ++asked < 3; }

/* No signal interrupts these: it came just before they slept, or to another thread. */
static void interrupted_before(void)
{
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	rdsd_addr other = at(2);
	rdsd_socket *a, *b;

	o.flags = RDSD_INTERRUPTIBLE;
	o.timeout = RDSD_SEC(5);
	begin();
	a = bound_with(1, o);
	hold(false, true);
	send_text(a, 1, "undecided");
	rdsdi_interrupted = raises_at_last;
	CHECK_IS(rdsd_flush(a, RDSD_SEC(5)), -EINTR);
	CHECK_IS(asked, 3);
	asked = 0;
	f->mute = true;
	CHECK_IS(rdsd_bind(client, &other, &o, &b), -EINTR);
	CHECK_IS(asked, 3);
	rdsdi_interrupted = NULL;
	f->mute = false;
	hold(false, false);
	end();
}

static void forking(void)
{
	rdsd_addr to = at(1);
	rdsd_socket *a, *b;
	rdsd_msg m, lent;
	int status, fds;
	pid_t child;

	begin();
	a = bound(1);
	rdsd_fd(a);
	send_text(a, 1, "before");
	send_text(a, 1, "in place");
	expect_text(a, 1, "before");
	CHECK_IS(rdsd_recv_batch(a, &m, 1, RDSD_SEC(5)), 1);
	b = bound(3); /* over, and something of its region is still out */
	send_text(b, 3, "lent");
	CHECK_IS(rdsd_recv_batch(b, &lent, 1, RDSD_SEC(30)), 1);
	CHECK_IS(rdsd_shutdown(b), 0);
	fds = open_fds();
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		char text[32];

		alarm(20);
		CHECK(open_fds() <= fds - 9); /* control, two bells, kick, two of the loop; of b two bells and kick */
		CHECK_IS(rdsd_send(a, &to, "x", 1, NULL, RDSD_SEC(1)), -EBADF);
		CHECK(strstr(rdsd_errmsg(), "fork"));
		CHECK_IS(rdsd_recv(a, text, sizeof text, NULL, RDSD_FOREVER), -EBADF);
		CHECK_IS(rdsd_flush(a, RDSD_FOREVER), -EBADF);
		CHECK_IS(rdsd_fd(a), -EBADF);
		CHECK_IS(rdsd_arm(a, RDSD_READABLE), -EBADF);
		CHECK_IS(rdsd_shutdown(a), -EBADF);
		rdsd_disarm(a);
		rdsd_release(&m, 1);
		rdsd_close(a);
		a = bound(2); /* one of its own */
		send_text(a, 2, "child");
		expect_text(a, 2, "child");
		rdsd_client_close(client);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(!memcmp(m.data, "in place", 8)); /* the parent's is untouched */
	rdsd_release(&m, 1);
	rdsd_release(&lent, 1);
	rdsd_close(b);
	send_text(a, 1, "after");
	expect_text(a, 1, "after");
	end();
}

/* fork_between forks while the client waits for Bound, and has what Region has brought. */
static void fork_between(struct fake_socket *s)
{
	int fds = open_fds(), status;
	pid_t child = fork();

	(void)s;
	CHECK(child >= 0);
	if (!child) {
		CHECK(open_fds() <= fds - 6); /* control, kick, two parts, two bells */
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	f->spoil = NULL;
}

static void forking_half_bound(void)
{
	rdsd_socket *a;

	begin();
	f->spoil = fork_between;
	a = bound(1);
	CHECK(!f->spoil);
	send_text(a, 1, "after");
	expect_text(a, 1, "after");
	end();
}

/* Small rings wrap; slow ones hold everybody up and lose nothing. */
static void small_rings(void)
{
	static const struct fake_sizes sizes = {.flows = 2, .sends = 4, .events = 4, .recvs = 2, .releases = 2,
						.send_arena = 1 << 16, .recv_arena = 1 << 16};
	rdsd_bind_options o = {.send_buffer = 8192, .recv_buffer = 1 << 20, .spin = -1};
	rdsd_socket *a, *b[4];
	uint32_t got[2], next[4] = {0};

	begin_with(&sizes);
	a = bound_with(1, o);
	for (uint16_t i = 0; i < 4; i++)
		b[i] = bound_with((uint16_t)(2 + i), o);
	for (uint32_t i = 0; i < 8000; i++) {
		rdsd_addr to = at((uint16_t)(2 + i % 4)); /* twice as many destinations as flows */
		uint32_t body[2] = {i / 4, i};

		CHECK_IS(rdsd_send(a, &to, body, 4 + i % 5, NULL, RDSD_SEC(5)), 0);
		if (i % 4 == 3)
			for (int k = 0; k < 4; k++) {
				CHECK(rdsd_recv(b[k], got, sizeof got, NULL, RDSD_SEC(5)) >= 4);
				CHECK_IS(got[0], next[k]++);
			}
	}
	end();
}

/* Threads */

enum { PRODUCERS = 3, CONSUMERS = 2, EACH = 4000 };

static rdsd_socket *from, *into;
static _Atomic uint32_t received, decided;
static _Atomic uint8_t marks[PRODUCERS][EACH];

static void *produce(void *arg)
{
	uint32_t who = (uint32_t)(uintptr_t)arg, body[2] = {who, 0};
	rdsd_addr to = at(2);

	while (body[1] < EACH) {
		uint32_t bodies[8][2];
		rdsd_dgram d[8];
		rdsd_slot slot;

		switch (body[1] % 3) {
		case 0:
			CHECK_IS(rdsd_send(from, &to, body, sizeof body, NULL, RDSD_SEC(30)), 0);
			body[1]++;
			break;
		case 1:
			CHECK_IS(rdsd_reserve(from, &to, 8, &slot, RDSD_SEC(30)), 0);
			memcpy(slot.data, body, 8);
			CHECK_IS(rdsd_commit(from, &slot, 8, NULL), 0);
			body[1]++;
			break;
		default:
			for (int i = 0; i < 8; i++) {
				bodies[i][0] = who;
				bodies[i][1] = body[1] + (uint32_t)i;
				d[i] = (rdsd_dgram){.data = bodies[i], .len = 8, .to = to};
			}
			if (body[1] + 8 > EACH) {
				CHECK_IS(rdsd_send(from, &to, body, sizeof body, NULL, RDSD_SEC(30)), 0);
				body[1]++;
				break;
			}
			CHECK_IS(rdsd_send_batch(from, d, 8, NULL, RDSD_SEC(30)), 8);
			body[1] += 8;
		}
	}
	return NULL;
}

static void *consume(void *arg)
{
	bool in_place = arg != NULL;

	while (atomic_load(&received) < PRODUCERS * EACH) {
		uint32_t body[2];
		rdsd_msg m[16];
		ssize_t n;

		if (in_place) {
			n = rdsd_recv_batch(into, m, 16, RDSD_MS(50));
			for (ssize_t i = 0; i < n; i++) {
				CHECK_IS(m[i].len, 8);
				memcpy(body, m[i].data, 8);
				CHECK_IS(atomic_fetch_add(&marks[body[0]][body[1]], 1), 0);
			}
			if (n > 0)
				rdsd_release(m, (size_t)n);
		} else {
			n = rdsd_recv(into, body, sizeof body, NULL, RDSD_MS(50));
			if (n > 0) {
				CHECK_IS(atomic_fetch_add(&marks[body[0]][body[1]], 1), 0);
				n = 1;
			}
		}
		CHECK(n > 0 || n == -ETIMEDOUT);
		if (n > 0)
			atomic_fetch_add(&received, (uint32_t)n);
	}
	return NULL;
}

static void *decide(void *arg)
{
	rdsd_outcome o[8];

	(void)arg;
	while (atomic_load(&decided) < PRODUCERS * EACH) {
		ssize_t n = rdsd_outcomes(from, o, 8, RDSD_SEC(30));

		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++) {
			CHECK_IS(o[i].kind, RDSD_DELIVERED);
			atomic_fetch_add(&decided, o[i].count);
		}
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[PRODUCERS + CONSUMERS + 1];
	int n = 0;

	begin();
	from = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .send_buffer = 20000});
	into = bound_with(2, (rdsd_bind_options){.recv_buffer = 30000});
	for (uintptr_t i = 0; i < PRODUCERS; i++)
		CHECK(!pthread_create(&t[n++], NULL, produce, (void *)i));
	for (uintptr_t i = 0; i < CONSUMERS; i++)
		CHECK(!pthread_create(&t[n++], NULL, consume, (void *)i));
	CHECK(!pthread_create(&t[n++], NULL, decide, NULL));
	while (n)
		pthread_join(t[--n], NULL);
	CHECK_IS(received, PRODUCERS * EACH);
	CHECK_IS(decided, PRODUCERS * EACH);
	CHECK_IS(rdsd_arm(from, RDSD_WRITABLE), RDSD_WRITABLE);
	CHECK(!from->tx.used && !from->tx.arena.used);
	end();
}

/* Restarts under load: each accepted datagram has exactly one outcome. */
static _Atomic uint64_t accepted;
static _Atomic bool done;

static void *pour(void *arg)
{
	rdsd_addr to = at(2);

	(void)arg;
	while (!atomic_load(&done))
		if (!rdsd_send(from, &to, "0123456789", 10, NULL, RDSD_MS(50)))
			atomic_fetch_add(&accepted, 1);
	return NULL;
}

static void *drink(void *arg)
{
	(void)arg;
	while (!atomic_load(&done))
		rdsd_recv(into, NULL, 0, NULL, RDSD_MS(20));
	return NULL;
}

static void restarts_under_load(void)
{
	pthread_t t[3];
	rdsd_outcome o[64];
	uint64_t sum = 0;
	ssize_t n;

	accepted = 0;
	done = false;
	begin();
	from = bound_with(1, (rdsd_bind_options){.flags = RDSD_OUTCOMES, .send_buffer = 20000});
	into = bound(2);
	CHECK(!pthread_create(&t[0], NULL, pour, NULL));
	CHECK(!pthread_create(&t[1], NULL, pour, NULL));
	CHECK(!pthread_create(&t[2], NULL, drink, NULL));
	for (int i = 0; i < 60; i++) {
		if (i % 10 == 9)
			fake_kill(f);
		n = rdsd_outcomes(from, o, 64, RDSD_MS(10));
		while (n-- > 0)
			sum += o[n].count;
	}
	atomic_store(&done, true);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	while (sum < accepted) {
		n = rdsd_outcomes(from, o, 64, RDSD_SEC(10));
		CHECK(n > 0);
		while (n-- > 0)
			sum += o[n].count;
	}
	CHECK_IS(sum, accepted);
	CHECK(accepted > 1000);
	CHECK_IS(rdsd_outcomes(from, o, 64, RDSD_MS(30)), -ETIMEDOUT); /* not one too many */
	end();
}

static void open_and_close(void)
{
	int before, n = getenv("RDSD_TEST_QUICK") ? 100 : 1000;

	begin();
	rdsd_close(bound(1));
	before = open_fds();
	for (int i = 0; i < n; i++) {
		rdsd_socket *s = bound(1);

		if (i % 10 == 0) {
			rdsd_fd(s);
			send_text(s, 1, "x");
		}
		rdsd_close(s);
	}
	for (int i = 0; i < 100 && open_fds() > before; i++)
		nap(5); /* the fake closes its ends in its thread */
	CHECK(open_fds() <= before);
	end();
}

/*
 * A daemon that writes anything anywhere: calls end, with whatever result, and
 * nothing outside the region is touched (the sanitizers watch).
 */
static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void scribble(struct fake_socket *s)
{
	struct rdsdi_region *r = &s->r;
	static const unsigned words[] = {W_SEND_HEAD, W_EVENT_TAIL, W_RECV_TAIL, W_RELEASE_HEAD, W_CLIENT_SLEEPS, W_SEND_TAIL, W_EVENT_HEAD};
	uint8_t *ring;
	uint32_t entries;

	switch (rnd() % 4) {
	case 0:
		atomic_store(at64(r, words[rnd() % 7]), rnd() % 4 ? rnd() % 600 : rnd());
		break;
	case 1:
		atomic_store(at64(r, r->flow_states + rnd() % r->flows * 8), rnd() % 2 ? rnd() : (rnd() % 9) << 32 | (rnd() % 4) << 16 | 5);
		break;
	default:
		ring = r->base + (rnd() % 2 ? r->event_ring : r->recv_ring);
		entries = 64;
		for (int i = 0; i < 4; i++)
			ring[rnd() % (entries * 64)] = (uint8_t)(rnd() % 2 ? rnd() % 5 : rnd());
		s->event_tail += rnd() % 3;
		s->recv_tail += rnd() % 3;
		atomic_store(at64(r, W_EVENT_TAIL), s->event_tail);
		atomic_store(at64(r, W_RECV_TAIL), s->recv_tail);
		memset(r->base + r->event_ring + rnd() % 16 * 64, (int)(rnd() % 3), 1);
	}
}

static void hostile_daemon(void)
{
	rdsd_bind_options o = {.flags = RDSD_OUTCOMES, .send_buffer = 5000, .spin = -1};
	unsigned faults = 0;

	begin();
	hold(true, true);
	for (int round = 0; round < 300; round++) {
		rdsd_socket *s = bound_with(1, o);
		rdsd_addr to = at((uint16_t)(2 + rnd() % 3));

		for (int i = 0; i < 40; i++) {
			rdsd_outcome out[4];
			rdsd_msg m[8];
			char buf[64];
			ssize_t n;

			fake_lock(f);
			if (fake_at(f, 1))
				scribble(fake_at(f, 1));
			fake_unlock(f);
			switch (rnd() % 6) {
			case 0: rdsd_send(s, &to, buf, rnd() % 64, NULL, RDSD_MS(1)); break;
			case 1: rdsd_recv(s, buf, sizeof buf, NULL, RDSD_NOWAIT); break;
			case 2:
				n = rdsd_recv_batch(s, m, 8, RDSD_NOWAIT);
				for (ssize_t k = 0; k < n; k++)
					if (m[k].len)
						buf[k] = ((const char *)m[k].data)[m[k].len - 1];
				if (n > 0)
					rdsd_release(m, (size_t)n);
				break;
			case 3: rdsd_outcomes(s, out, 4, RDSD_NOWAIT); break;
			case 4: rdsd_send_run(s, &to, buf, 4, 10, NULL, RDSD_MS(1)); break;
			case 5: rdsd_arm(s, 15); break;
			}
		}
		faults += atomic_load(&s->over) == -EPROTO;
		rdsd_close(s);
	}
	CHECK(faults > 30); /* it was noticed */
	rdsd_client_close(client);
	fake_stop(f);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"bind errors", bind_errors},
		{"spoiled headers", spoiled_headers},
		{"no descriptors", no_descriptors},
		{"no descriptors for a pair", no_descriptors_for_a_pair},
		{"binding", binding},
		{"echo", echo},
		{"order", order},
		{"send buffer", send_buffer},
		{"trains", trains},
		{"mixed_trains", mixed_trains},
		{"slack is given back", slack_is_given_back},
		{"batches", batches},
		{"batch and congestion", batch_and_congestion},
		{"jam of a former region", jam_of_a_former_region},
		{"runs", runs},
		{"reservations", reservations},
		{"slots that are left", slots_that_are_left},
		{"no data", no_data},
		{"in place", in_place},
		{"no lease", no_lease},
		{"borrowed", borrowed},
		{"outcomes", outcomes},
		{"flush without waiting", flush_without_waiting},
		{"unread outcomes", unread_outcomes},
		{"watching", watching},
		{"answered meanwhile", answered_meanwhile},
		{"refused in a batch", refused_in_a_batch},
		{"nothing overtakes", nothing_overtakes},
		{"refused at once", refused_at_once},
		{"told once", told_once},
		{"requests", requests},
		{"late replies", late_replies},
		{"taken port", taken_port},
		{"many requests", many_requests},
		{"patience", patience},
		{"ports of a still daemon", ports_of_a_still_daemon},
		{"shutdown of a still daemon", shutdown_of_a_still_daemon},
		{"event loop", event_loop},
		{"loop and threads", loop_and_threads},
		{"armed too late", armed_too_late},
		{"restart", restart},
		{"restarts without a receive", restarts_without_a_receive},
		{"unread of many daemons", unread_of_many_daemons},
		{"descriptors over restarts", descriptors_over_restarts},
		{"no reconnect", no_reconnect},
		{"dismissed", dismissed},
		{"unread at the end", unread_at_the_end},
		{"closing", closing},
		{"closing twice", closing_twice},
		{"closing_decides", closing_decides},
		{"interrupted", interrupted},
		{"interrupted before", interrupted_before},
		{"cancelled in a wait", cancelled_in_a_wait},
		{"cancelled before", cancelled_before},
		{"forking", forking},
		{"forking half bound", forking_half_bound},
		{"small rings", small_rings},
		{"threads", threads},
		{"restarts under load", restarts_under_load},
		{"open and close", open_and_close},
		{"hostile daemon", hostile_daemon},
	};

	snprintf(path, sizeof path, "%s/rdsd-c-%d.sock", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid());
	return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
