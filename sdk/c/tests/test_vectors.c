/*
 * The golden vectors that all languages read: shm/testdata, whose directory is
 * in $RDSD_VECTORS. Bytes go through the library's own code as far as that
 * reads or writes them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/* A vector: what it says and its bytes. */
struct vector {
	char kind[32], name[96];
	struct {
		char name[32], value[96];
	} fields[32];
	int n;
	uint8_t *bytes;
	size_t size;
};

static struct vector v;
static unsigned seen;

static FILE *data(const char *name)
{
	const char *dir = getenv("RDSD_VECTORS");
	char path[512];
	FILE *in;

	snprintf(path, sizeof path, "%s/%s", dir ? dir : "../../shm/testdata", name);
	in = fopen(path, "r");
	if (!in)
		fprintf(stderr, "%s is not there: set RDSD_VECTORS\n", path);
	CHECK(in);
	return in;
}

static void put_hex(uint8_t *to, const char *hex)
{
	unsigned byte;

	for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
		*to++ = (uint8_t)byte;
}

static const char *text(const char *name)
{
	for (int i = 0; i < v.n; i++)
		if (!strcmp(v.fields[i].name, name))
			return v.fields[i].value;
	fprintf(stderr, "vector %s %s has no field %s\n", v.kind, v.name, name);
	exit(1);
}

static uint64_t number(const char *name) { return strtoull(text(name), NULL, 10); }

static rdsd_addr address(const char *name)
{
	rdsd_addr a;

	CHECK_IS(rdsd_addr_parse(text(name), &a), 0);
	return a;
}

static uint64_t get(size_t at, size_t n)
{
	uint64_t x = 0;

	memcpy(&x, v.bytes + at, n);
	return x;
}

/* sealed is a memfd of size bytes with these at its beginning. */
static int sealed(const uint8_t *bytes, size_t n, uint64_t size)
{
	int fd = memfd_create("vector", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)size) && write(fd, bytes, n) == (ssize_t)n);
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	return fd;
}

/* parts are the two memfds of a region of size bytes that begins with these n, which have the header. */
static void parts(const uint8_t *bytes, size_t n, uint64_t size, int fd[2])
{
	uint64_t split;

	memcpy(&split, bytes + HDR_DAEMON_PART, sizeof split);
	CHECK(split < size);
	fd[0] = sealed(bytes, n < split ? n : split, split);
	fd[1] = n < split ? sealed(bytes, 0, size - split) : sealed(bytes + split, n - split, size - split);
}

static void header(void)
{
	uint64_t size = number("region_bytes");
	rdsd_addr local = address("local");
	struct rdsdi_region *r;
	int fd[2];

	parts(v.bytes, v.size, size, fd);
	CHECK_IS(rdsdi_region_map(fd[0], fd[1], size - 64, &r), -EPROTO);
	CHECK_IS(rdsdi_region_map(fd[0], 0, size, &r), -EPROTO);
	CHECK_IS(rdsdi_region_map(fd[1], fd[0], size, &r), 0);
	CHECK_IS(rdsdi_region_begin(r), -EPROTO); /* no header stands there */
	rdsdi_region_unref(r);
	CHECK_IS(rdsdi_region_map(fd[0], fd[1], size, &r), 0);
	CHECK_IS(rdsdi_region_begin(r), 0);
	close(fd[0]);
	close(fd[1]);
	CHECK_IS(r->instance, number("instance"));
	CHECK(rdsd_addr_equal(&r->local, &local));
	CHECK_IS(r->max_datagram, number("max_datagram"));
	CHECK_IS(r->sndbuf, number("sndbuf"));
	CHECK_IS(r->rcvbuf, number("rcvbuf"));
	CHECK_IS(r->flows, number("flows"));
	CHECK_IS(r->send_n, number("sends"));
	CHECK_IS(r->event_n, number("events"));
	CHECK_IS(r->recv_n, number("receives"));
	CHECK_IS(r->release_n, number("releases"));
	CHECK_IS(r->takes, number("takes"));
	CHECK_IS(r->flow_table, number("flow_off"));
	CHECK_IS(r->flow_states, number("flow_state_off"));
	CHECK_IS(r->send_ring, number("send_off"));
	CHECK_IS(r->event_ring, number("event_off"));
	CHECK_IS(r->recv_ring, number("recv_off"));
	CHECK_IS(r->release_ring, number("release_off"));
	CHECK_IS(r->send_arena, number("send_arena_off"));
	CHECK_IS(r->send_arena_bytes, number("send_arena_bytes"));
	CHECK_IS(r->recv_arena, number("recv_arena_off"));
	CHECK_IS(r->recv_arena_bytes, number("recv_arena_bytes"));
	CHECK_IS(r->daemon_part, number("daemon_off"));
	CHECK_IS(get(HDR_UID, 4), number("uid"));
	CHECK_IS(get(HDR_PID, 4), number("pid"));
	rdsdi_region_unref(r);
}

static void word(void)
{
	uint64_t w = get(0, 8);

	CHECK_IS(WORD_BYTES(w), number("bytes"));
	CHECK_IS(WORD_COUNT(w), number("count"));
	CHECK_IS(WORD_KIND(w), number("kind"));
	CHECK_IS(!!(w & WORD_CLAIMED), number("claimed"));
	if (!number("claimed") && !number("no_append"))
		CHECK_IS(WORD_MAKE(number("bytes"), number("count"), number("kind")), w);
}

/* A sending side in memory of its own: one flow table entry, one descriptor, one event. */
static uint8_t memory[SHM_FIXED + 4096];
static struct rdsdi_region small = {.base = memory,
				    .flows = 16,
				    .send_n = 1,
				    .event_n = 1,
				    .flow_table = SHM_FIXED,
				    .flow_states = SHM_FIXED + 1024,
				    .send_ring = SHM_FIXED + 2048,
				    .event_ring = SHM_FIXED + 2048 + 64};

static rdsd_socket *sender(void)
{
	static struct rdsdi_flow flows[16];
	static uint32_t buckets[16];
	static rdsd_socket s;

	memset(memory, 0, sizeof memory);
	memset(flows, 0, sizeof flows);
	memset(buckets, 0, sizeof buckets);
	memset(&s, 0, sizeof s);
	s.tx.reg = &small;
	s.tx.bell = -1;
	s.tx.flows = flows;
	s.tx.buckets = buckets;
	s.tx.bucket_mask = 15;
	return &s;
}

static void send_desc(void)
{
	rdsd_socket *s = sender();
	struct rdsdi_flow *f = &s->tx.flows[number("flow")];

	f->generation = (uint32_t)number("gen");
	rdsdi_ring_put(&s->tx, number("word"), number("tag"), number("slot"), f, (uint32_t)number("cookie"),
		       (uint32_t)number("flags"));
	CHECK(!memcmp(memory + small.send_ring, v.bytes, SEND_SIZE));
}

static void flow(void)
{
	rdsd_socket *s = sender();
	rdsd_addr dst = address("dst");
	struct rdsdi_flow *f;

	s->tx.flows[0].generation = (uint32_t)number("gen") - 2;
	CHECK_IS(rdsdi_flow_get(s, &dst, &f), -EINPROGRESS);
	CHECK(!memcmp(memory + small.flow_table, v.bytes, FLOW_SIZE));
}

static void flow_state(void)
{
	rdsd_socket *s = sender();
	int error = 0;

	memcpy(memory + small.flow_states, v.bytes, 8);
	s->tx.flows[0].generation = (uint32_t)number("gen");
	CHECK_IS(rdsdi_flow_state(&s->tx, &s->tx.flows[0], &error), number("state"));
	if (number("state") == STATE_REFUSED)
		CHECK_IS(-error, number("errno"));
	s->tx.flows[0].generation += 2;
	CHECK_IS(rdsdi_flow_state(&s->tx, &s->tx.flows[0], &error), STATE_NEW);
}

static void event(void)
{
	rdsd_socket *s = sender();
	uint32_t cookie;
	struct rdsdi_desc *d;

	s->flags = RDSD_OUTCOMES;
	s->tx.changes = calloc(MAX_CHANGES, sizeof *s->tx.changes);
	memcpy(memory + small.event_ring, v.bytes, EVENT_SIZE);
	atomic_store(at64(&small, W_EVENT_TAIL), 1);
	if (number("cookie")) { /* the descriptor it speaks of; its cookie is ours to choose */
		d = rdsdi_desc_new(&s->tx, &cookie);
		d->tag = number("tag");
		d->n = d->left = s->tx.undecided = (uint32_t)number("count");
		s->tx.flows[0].refs = 1;
		memcpy(memory + small.event_ring + EVENT_COOKIE, &cookie, 4);
		CHECK_IS(get(EVENT_COOKIE, 4), number("cookie"));
	}
	CHECK(rdsdi_events(s));
	CHECK_IS(s->fault, 0);
	CHECK_IS(atomic_load(at64(&small, W_EVENT_HEAD)), 1);
	switch (number("kind")) {
	case EV_OUTCOME:
	case EV_REFUSED:
		CHECK_IS(s->tx.outcome_n, 1);
		CHECK(s->tx.outcomes->tag == number("tag") && s->tx.outcomes->count == number("count"));
		CHECK_IS(s->tx.outcomes->kind, number("kind") == EV_REFUSED ? RDSD_FAILED : number("outcome"));
		CHECK_IS(s->tx.outcomes->reason, number("reason"));
		CHECK_IS(s->tx.outcomes->error, number("errno"));
		CHECK_IS(s->tx.undecided, number("flags") & EV_LAST ? 0 : number("count"));
		break;
	case EV_CONGESTION: {
		rdsd_addr dst = address("dst");

		CHECK_IS(s->tx.changes_n, 1);
		CHECK(rdsd_addr_equal(&s->tx.changes->addr, &dst));
		CHECK_IS(s->tx.changes->congested, number("flags") & EV_CONGESTED);
		break;
	}
	default:
		CHECK_IS(number("kind"), EV_FREED);
		CHECK_IS(s->tx.freed, number("tag"));
	}
	free(s->tx.changes);
	free(s->tx.outcomes);
	free(s->tx.descs);
}

/* receiver is a socket that reads a region of a file's bytes. */
static rdsd_socket *receiver(const uint8_t *bytes, size_t n, uint64_t size)
{
	int fd[2];
	static rdsd_socket s;
	static struct rdsdi_link l;

	memset(&s, 0, sizeof s);
	memset(&l, 0, sizeof l);
	l.bell_daemon = -1;
	pthread_mutex_init(&s.rx.mu, NULL);
	parts(bytes, n, size, fd);
	CHECK_IS(rdsdi_region_map(fd[0], fd[1], size, &l.reg), 0);
	CHECK_IS(rdsdi_region_begin(l.reg), 0);
	/* What the daemon writes is written here. */
	CHECK(!mprotect(l.reg->base + l.reg->daemon_part, l.reg->bytes - l.reg->daemon_part, PROT_READ | PROT_WRITE));
	close(fd[0]);
	close(fd[1]);
	CHECK_IS(rdsdi_rx_start(&s, &l), 0);
	rdsdi_region_unref(l.reg);
	return &s;
}

static uint8_t one_header[SHM_HEADER]; /* of the first header vector */
static uint64_t one_size;

static void receive(void)
{
	rdsd_socket *s = receiver(one_header, SHM_HEADER, one_size);
	struct rdsdi_region *r = s->rx.reg;
	rdsd_addr src = address("src");
	static rdsd_msg m[64];
	size_t n = number("count");

	memcpy(r->base + r->recv_ring, v.bytes, RECV_SIZE);
	atomic_store(at64(r, W_RECV_TAIL), 1);
	s->spin = -1;
	s->state = SESSION_UP;
	s->checked = INT64_MAX; /* there is no control socket to look at */
	CHECK_IS(rdsd_recv_batch(s, m, 64, RDSD_NOWAIT), n);
	CHECK_IS(s->fault, 0);
	CHECK(rdsd_addr_equal(&m[0].from, &src));
	CHECK_IS((const uint8_t *)m[0].data - (r->base + r->recv_arena), number("slot") + (number("kind") == KIND_TABLE ? 4 * n : 0));
	if (number("kind") == KIND_SAME)
		CHECK_IS(m[0].len * n, number("bytes"));
	CHECK_IS(((struct rdsdi_lease *)m[0].lease)->slot, number("slot"));
	CHECK_IS(atomic_load(at64(r, W_RECV_HEAD)), 1);
	r->bell = 1 << 20; /* no descriptor, and nobody sleeps: nothing is rung */
	rdsd_release(m, n);
	CHECK_IS(atomic_load(at64(r, W_RELEASE_TAIL)), 1);
	CHECK_IS(atomic_load(at64(r, r->release_ring)), number("slot"));
	rdsdi_rx_destroy(s);
}

static void release(void) { CHECK_IS(get(0, 8), number("slot")); }

static void packet(void)
{
	CHECK_IS(v.bytes[0], PACKET_KIND);
	CHECK_IS(v.bytes[1], number("goes_on") ? PACKET_MORE : 0);
	if (v.size > PACKET_HEAD) {
		uint8_t message[64];

		put_hex(message, text("message"));
		CHECK(!memcmp(v.bytes + PACKET_HEAD, message, v.size - PACKET_HEAD));
	}
}

static const struct {
	const char *kind;
	void (*run)(void);
} kinds[] = {
	{"header", header}, {"word", word},	 {"send", send_desc},  {"flow", flow},	   {"flow_state", flow_state},
	{"event", event},   {"receive", receive}, {"release", release}, {"packet", packet}, {"packet_head", packet},
};

static void finish(void)
{
	if (!*v.kind)
		return;
	if (!strcmp(v.kind, "header") && !one_size) {
		memcpy(one_header, v.bytes, SHM_HEADER);
		one_size = number("region_bytes");
	}
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].kind, v.kind)) { /* the ledger is the daemon's alone */
			kinds[i].run();
			seen |= 1u << i;
		}
	free(v.bytes);
	memset(&v, 0, sizeof v);
}

static void vectors(void)
{
	FILE *in = data("vectors.txt");
	char line[4096], hex[4096];
	size_t at;

	while (fgets(line, sizeof line, in)) {
		if (!strncmp(line, "vector ", 7)) {
			finish();
			CHECK_IS(sscanf(line, "vector %31s %95s", v.kind, v.name), 2);
		} else if (!strncmp(line, "field ", 6)) {
			CHECK(v.n < 32);
			CHECK_IS(sscanf(line, "field %31s %95s", v.fields[v.n].name, v.fields[v.n].value), 2);
			v.n++;
		} else if (sscanf(line, "size %zu", &v.size) == 1) {
			v.bytes = calloc(1, v.size);
		} else if (sscanf(line, "at %zu %4095s", &at, hex) == 2) {
			CHECK(at + strlen(hex) / 2 <= v.size);
			put_hex(v.bytes + at, hex);
		}
	}
	finish();
	fclose(in);
	CHECK_IS(seen, (1u << sizeof kinds / sizeof *kinds) - 1); /* each kind was there */
}

/* A whole region as both ends left it. */
static void region(void)
{
	static const char *const want[] = {"xx", "yy", "zz", "p", "qq"};
	FILE *in = data("region.txt");
	char line[4096], hex[4096];
	size_t at, size = 0;
	uint8_t *bytes = NULL;
	rdsd_socket *s;
	rdsd_msg m[8];

	while (fgets(line, sizeof line, in))
		if (sscanf(line, "size %zu", &size) == 1)
			bytes = calloc(1, size);
		else if (sscanf(line, "at %zu %4095s", &at, hex) == 2)
			put_hex(bytes + at, hex);
	fclose(in);
	s = receiver(bytes, size, size);
	free(bytes);
	s->spin = -1;
	s->state = SESSION_UP;
	s->checked = INT64_MAX; /* there is no control socket to look at */
	s->rx.head = s->rx.shown = 1; /* one was taken before */
	CHECK_IS(rdsd_recv_batch(s, m, 8, RDSD_NOWAIT), 5);
	for (int i = 0; i < 5; i++)
		CHECK(m[i].len == strlen(want[i]) && !memcmp(m[i].data, want[i], m[i].len) && m[i].from.port == 5000);
	rdsd_release(m, 5);
	rdsdi_rx_destroy(s);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {{"vectors", vectors}, {"region", region}};

	return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
