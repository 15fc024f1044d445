/* Pieces that need no daemon: addresses, texts, the arena, protobuf messages. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "fake.h"

static uint64_t seed = 88172645463325252u;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void addresses(void)
{
	static const struct {
		const char *in, *out; /* NULL: refused */
	} cases[] = {
		{"1.2.3.4:5", "1.2.3.4:5"},
		{"[::1]:5", "[::1]:5"},
		{"[2001:db8::1]:65535", "[2001:db8::1]:65535"},
		{"[::ffff:1.2.3.4]:5", "1.2.3.4:5"},
		{"0.0.0.0:0", "0.0.0.0:0"},
		{"1.2.3.4", NULL},
		{"1.2.3.4:", NULL},
		{"1.2.3.4:65536", NULL},
		{"1.2.3.4:5x", NULL},
		{"1.2.3.4: 5", NULL},
		{"1.2.3:5", NULL},
		{"::1:5", NULL},
		{"[::1]5", NULL},
		{"[]:5", NULL},
		{":5", NULL},
		{"", NULL},
		{"[1.2.3.4]:5", NULL},
		{"[::1:5", NULL},
		{"1111111111111111111111111111111111111111111111111111111111.2.3.4:5", NULL},
	};
	struct sockaddr_storage ss;
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(7)};
	char text[RDSD_ADDRSTRLEN];
	rdsd_addr a, b;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int err = rdsd_addr_parse(cases[i].in, &a);

		CHECK_IS(err, cases[i].out ? 0 : -EINVAL);
		if (!cases[i].out) {
			CHECK(strstr(rdsd_errmsg(), "[::1]:5")); /* says what would be right */
			continue;
		}
		CHECK(!strcmp(rdsd_addr_format(&a, text, sizeof text), cases[i].out));
		CHECK(rdsd_addr_to_sockaddr(&a, &ss) > 0);
		CHECK_IS(rdsd_addr_from_sockaddr((struct sockaddr *)&ss, sizeof ss, &b), 0);
		CHECK(rdsd_addr_equal(&a, &b));
	}
	CHECK_IS(rdsd_addr_parse(NULL, &a), -EINVAL);
	CHECK_IS(rdsd_addr_from_sockaddr((struct sockaddr *)&in, 4, &a), -EINVAL);
	in.sin_family = AF_UNIX;
	CHECK_IS(rdsd_addr_from_sockaddr((struct sockaddr *)&in, sizeof in, &a), -EAFNOSUPPORT);
	memset(&a, 0, sizeof a);
	CHECK_IS(rdsd_addr_to_sockaddr(&a, &ss), -EINVAL);
	rdsd_addr_format(&a, text, 4); /* short: cut off */
	CHECK_IS(strlen(text), 3);
}

static void texts(void)
{
	CHECK(!strcmp(rdsd_strerror(-ENOBUFS), "the destination port is congested"));
	CHECK(!strcmp(rdsd_strerror(ENOBUFS), rdsd_strerror(-ENOBUFS)));
	CHECK(!strcmp(rdsd_strerror(-EAGAIN), "the call would have to wait"));
	CHECK(strlen(rdsd_strerror(99999)));
	CHECK(!strcmp(rdsd_outcome_name(RDSD_FAILED), "failed"));
	CHECK(!strcmp(rdsd_outcome_name(99), "unspecified"));
	CHECK(!strcmp(rdsd_reason_text(8), "daemon restarted"));
	CHECK(strlen(rdsd_reason_text(-1)) && strlen(rdsd_reason_text(200)));
	CHECK(!strcmp(rdsd_version(), "1.0"));
	CHECK(sizeof(rdsd_addr) == 20);
}

/* What is allocated never overlaps, and all of it comes back. */
static void arena_property(void)
{
	enum { UNITS = 1024, LIVE = 200 };
	static uint8_t owner[UNITS];
	struct {
		uint64_t off, size;
	} live[LIVE] = {{0, 0}};
	struct rdsdi_arena a;
	unsigned full = 0;

	CHECK_IS(rdsdi_arena_init(&a, 100), -EINVAL);
	CHECK_IS(rdsdi_arena_init(&a, 0), -EINVAL);
	CHECK_IS(rdsdi_arena_init(&a, UNITS * 64), 0);
	for (int round = 0; round < 200000; round++) {
		unsigned i = rnd() % LIVE;

		if (!live[i].size) {
			uint64_t len = 1 + (rnd() % 4 ? rnd() % 300 : rnd() % 20000);
			uint64_t off = rdsdi_arena_alloc(&a, len), size = rdsdi_arena_size(len);

			if (off == ARENA_NONE) {
				full++;
				continue;
			}
			CHECK(off % 64 == 0 && size >= len && off + size <= UNITS * 64);
			CHECK(size <= 128 || size < 2 * len + 64);
			for (uint64_t u = off / 64; u < (off + size) / 64; u++)
				CHECK(!owner[u]++);
			live[i].off = off;
			live[i].size = size;
		} else if (rnd() % 4 == 0) {
			uint64_t size = rdsdi_arena_shrink(&a, live[i].off, live[i].size, 1 + rnd() % live[i].size);

			CHECK(size <= live[i].size);
			for (uint64_t u = (live[i].off + size) / 64; u < (live[i].off + live[i].size) / 64; u++)
				owner[u]--;
			live[i].size = size;
		} else {
			rdsdi_arena_free(&a, live[i].off, live[i].size);
			for (uint64_t u = live[i].off / 64; u < (live[i].off + live[i].size) / 64; u++)
				owner[u]--;
			live[i].size = 0;
		}
	}
	CHECK(full > 100);
	for (unsigned i = 0; i < LIVE; i++)
		if (live[i].size)
			rdsdi_arena_free(&a, live[i].off, live[i].size);
	CHECK_IS(a.used, 0);
	CHECK_IS(rdsdi_arena_alloc(&a, UNITS * 64), 0); /* whole again */
	CHECK(rdsdi_arena_alloc(&a, 1) == ARENA_NONE);
	CHECK(rdsdi_arena_alloc(&a, UNITS * 64 + 1) == ARENA_NONE);
	rdsdi_arena_destroy(&a);
}

static void messages(void)
{
	/* As protoc --encode writes them. */
	static const uint8_t bind[] = {0x0a, 0x19, 0x0a, 0x09, 0x0a, 0x04, 127, 0,    0,    2,    0x10, 0x90,
				       0x4e, 0x10, 0x80, 0x20, 0x22, 0x01, 'x', 0x3a, 0x06, 0x08, 0x03, 0x10, 0x01, 0x18, 0x01};
	static const uint8_t mapped[] = {0x4a, 0x00};
	static const uint8_t region[] = {0x5a, 0x06, 0x08, 0x03, 0x10, 0x80, 0x80, 0x40};
	static const uint8_t cancelled[] = {0x2a, 0x08, 0x08, 0x2a, 0x10, 0x05, 0x18, 0x81, 0x01, 0x20};
	static const uint8_t closing[] = {0x52, 0x06, 0x08, 0x6c, 0x12, 0x02, 'h', 'i'};
	static const uint8_t pair[] = {0x62, 0x1e, 0x08, 0x07, 0x10, 0x01, 0x1a, 0x09, 0x0a, 0x04, 127,  0,	 0,
				       2,    0x10, 0x90, 0x4e, 0x22, 0x09, 0x0a, 0x04, 127,  0,	   0,    2,    0x10,
				       0x91, 0x4e, 0x28, 0x80, 0x80, 0x04};
	static const uint8_t gone[] = {0x52, 0x04, 0x08, 0x07, 0x10, 0x05};
	struct rdsdi_bind b = {.local = {{127, 0, 0, 2}, 10000, 4, 0}, .send_buffer = 4096, .label = "x"};
	struct rdsdi_server m;
	uint8_t out[PB_CLIENT_MAX];

	CHECK_IS(rdsdi_pb_bind(out, &b), sizeof bind);
	CHECK(!memcmp(out, bind, sizeof bind));
	CHECK_IS(rdsdi_pb_mapped(out), sizeof mapped);
	CHECK(!memcmp(out, mapped, sizeof mapped));
	CHECK_IS(rdsdi_pb_server(region, sizeof region, &m), 0);
	CHECK(m.body == SERVER_REGION && m.ring_version == 3 && m.region_bytes == 1 << 20);
	CHECK_IS(rdsdi_pb_server(cancelled, sizeof cancelled, &m), -EPROTO); /* cut off */
	CHECK_IS(rdsdi_pb_server(closing, sizeof closing, &m), 0);
	CHECK(m.body == SERVER_CLOSING && m.error == ESHUTDOWN && !strcmp(m.text, "hi"));
	CHECK_IS(rdsdi_pb_server(pair, sizeof pair, &m), 0);
	CHECK(m.body == SERVER_PAIR && m.id == 7 && m.pair_state == PAIR_STATE_OFFERED && m.pair_bytes == PAIR_MIN);
	CHECK(addr_equal(&m.source, &b.local) && m.destination.port == 10001);
	CHECK_IS(rdsdi_pb_pair(out, 7, PAIR_STATE_GONE), sizeof gone);
	CHECK(!memcmp(out, gone, sizeof gone));
	b.label = "0123456789012345678901234567890123456789012345678901234567890123456789"; /* 70 */
	b.local.family = 6;
	b.send_buffer = b.recv_buffer = UINT64_MAX;
	CHECK(rdsdi_pb_bind(out, &b) < PB_CLIENT_MAX);
}

/* Random changes of real messages: the reader stays inside and ends. */
static void message_fuzz(void)
{
	static const uint8_t seeds[][48] = {
		{0x0a, 0x1c, 0x0a, 0x09, 0x0a, 0x04, 127, 0, 0, 2, 0x10, 0x90, 0x4e, 0x38, 0x07, 0x42, 0x01, 'v', 0x4a, 0x06, 0x08,
		 0x01, 0x10, 0x80, 0x80, 0x40},
		{0x2a, 0x08, 0x08, 0x2a, 0x10, 0x05, 0x18, 0x81, 0x01, 0x20},
		{0x32, 0x06, 0x08, 0x01, 0x10, 0x6e, 0x18, 0x03},
		{0x42, 0x04, 0x08, 0x01, 0x10, 0x01},
		{0x52, 0x06, 0x08, 0x6c, 0x12, 0x02, 'h', 'i'},
	};
	struct rdsdi_server m;

	for (int i = 0; i < 300000; i++) {
		size_t n = 1 + rnd() % 48;
		uint8_t *in = malloc(n); /* its own block: the sanitizer sees one byte too many */

		memcpy(in, seeds[rnd() % 5], n);
		for (int k = (int)(rnd() % 4); k-- > 0;)
			in[rnd() % n] = (uint8_t)rnd();
		rdsdi_pb_server(in, n, &m);
		CHECK(memchr(m.text, 0, sizeof m.text));
		free(in);
	}
}

static void targets(void)
{
	static const struct {
		const char *target, *path;
		int err;
	} cases[] = {
		{"/a/b.sock", "/a/b.sock.rings", 0},
		{"unix:///a/b.sock", "/a/b.sock.rings", 0},
		{"unix:b.sock", "b.sock.rings", 0},
		{"b.sock", "b.sock.rings", 0},
		{"./b:1.sock", "./b:1.sock.rings", 0},
		{"@name", "\0name.rings", 0},
		{"unix-abstract:name", "\0name.rings", 0},
		{"dns:///node7:16387", NULL, -EINVAL},
		{"node7:16387", NULL, -EINVAL},
		{"unix:", NULL, -EINVAL},
		{"/0123456789012345678901234567890123456789012345678901234567890123456789"
		 "01234567890123456789012345678901",
		 NULL, -ENAMETOOLONG},
	};
	char longest[104] = "@";
	rdsd_client *c;

	/* The address has 108 bytes: the 0 in front, the name and .rings. */
	memset(longest + 1, 'x', 101);
	CHECK_IS(rdsd_client_open(longest, &c), 0);
	CHECK_IS(c->path_len, 108);
	CHECK(!memcmp(c->path + 1, longest + 1, 101) && !memcmp(c->path + 102, ".rings", 6));
	rdsd_client_close(c);
	longest[102] = 'x';
	CHECK_IS(rdsd_client_open(longest, &c), -ENAMETOOLONG);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		CHECK_IS(rdsd_client_open(cases[i].target, &c), cases[i].err);
		if (cases[i].err)
			continue;
		if (cases[i].path[0])
			CHECK_IS(c->path_len, strlen(cases[i].path) + 1);
		else
			CHECK_IS(c->path_len, 1 + strlen(cases[i].path + 1));
		CHECK(!memcmp(c->path, cases[i].path, c->path_len));
		rdsd_client_close(c);
	}
	setenv("RDSD_SOCKET", "/env.sock", 1);
	CHECK_IS(rdsd_client_open(NULL, &c), 0);
	CHECK(!strcmp(c->path, "/env.sock.rings"));
	rdsd_client_close(c);
	unsetenv("RDSD_SOCKET");
	CHECK_IS(rdsd_client_open("", &c), 0);
	CHECK(!strcmp(c->path, "/run/rdsd/rdsd.sock.rings"));
	rdsd_client_close(c);
	rdsd_client_close(NULL);
	rdsd_close(NULL);
}

/* A call that may wait for a moment is not made to wait a second for words. */
static void time_for_words(void)
{
	static const struct {
		int64_t timeout, words;
	} cases[] = {
		{RDSD_FOREVER, RDSD_SEC(1)}, {INT64_MAX, RDSD_SEC(1)},    {RDSD_SEC(2), RDSD_SEC(1)}, {RDSD_MS(300), RDSD_MS(300)},
		{RDSD_MS(5), RDSD_MS(20)},   {RDSD_NOWAIT, RDSD_MS(20)},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		CHECK_IS(rdsdi_explain_time(cases[i].timeout), cases[i].words);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"addresses", addresses}, {"texts", texts},     {"arena property", arena_property},
		{"messages", messages},   {"targets", targets}, {"message fuzz", message_fuzz},
		{"time for words", time_for_words},
	};

	return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
