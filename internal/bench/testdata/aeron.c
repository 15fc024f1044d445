/* Aeron in the benchmark. "send" publishes messages of a size for ever, "recv"
 * counts them, "ping" records round trips, "pong" answers. The board is
 * descriptor 3: its words and its histogram are those of board_test.go.
 * Arguments: mode, directory of the media driver, channel to publish to ("-":
 * none), channel to subscribe to ("-": none), bytes. A channel that ends with
 * "#" and a number is on that stream: over IPC both directions have one channel. */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <aeronc.h>

#define STREAM 1001
#define LINE 16 /* words of 8 bytes in a line of the board */
#define HIST (8 * LINE)
#define SUB 128
#define BUCKETS (SUB * 34)

static volatile uint64_t *board;
static aeron_exclusive_publication_t *pub;
static uint64_t got;
static size_t size;
static int answer;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, aeron_errmsg());
	exit(1);
}

static int32_t stream_of(char *channel)
{
	char *at = strchr(channel, '#');
	if (!at)
		return STREAM;
	*at = 0;
	return atoi(at + 1);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void record(uint64_t ns)
{
	uint64_t i = ns;
	if (ns >= SUB) {
		unsigned e = 64 - (unsigned)__builtin_clzll(ns) - 7;
		i = SUB + (e - 1) * (SUB / 2) + (ns >> e) - SUB / 2;
	}
	board[HIST + (i < BUCKETS ? i : BUCKETS - 1)]++;
}

/* publish copies one message that begins with seq; it yields until there is room. */
static void publish(uint64_t seq)
{
	aeron_buffer_claim_t claim;
	for (;;) {
		int64_t at = aeron_exclusive_publication_try_claim(pub, size, &claim);
		if (at > 0)
			break;
		if (at == AERON_PUBLICATION_CLOSED || at == AERON_PUBLICATION_MAX_POSITION_EXCEEDED || at == AERON_PUBLICATION_ERROR)
			fail("publish");
		sched_yield();
	}
	memset(claim.data, 0, size);
	memcpy(claim.data, &seq, sizeof seq);
	aeron_buffer_claim_commit(&claim);
}

static void arrived(void *unused, const uint8_t *b, size_t n, aeron_header_t *header)
{
	uint64_t seq;
	(void)unused;
	(void)header;
	memcpy(&seq, b, sizeof seq);
	if (n != size || seq != got) {
		fprintf(stderr, "message %lu of %zu bytes where %lu should be\n", (unsigned long)seq, n, (unsigned long)got);
		exit(1);
	}
	got++;
	if (answer)
		publish(seq);
}

int main(int argc, char **argv)
{
	aeron_context_t *ctx;
	aeron_t *client;
	aeron_subscription_t *sub = NULL;

	if (argc != 6)
		return 2;
	size = strtoul(argv[5], NULL, 10);
	board = mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (board == MAP_FAILED || size < 8)
		return 2;
	if (aeron_context_init(&ctx) || aeron_context_set_dir(ctx, argv[2]) || aeron_init(&client, ctx) || aeron_start(client))
		fail("aeron");
	if (strcmp(argv[3], "-")) {
		aeron_async_add_exclusive_publication_t *a;
		int32_t stream = stream_of(argv[3]);
		if (aeron_async_add_exclusive_publication(&a, client, argv[3], stream))
			fail(argv[3]);
		while (!pub) {
			if (aeron_async_add_exclusive_publication_poll(&pub, a) < 0)
				fail(argv[3]);
			sched_yield();
		}
	}
	if (strcmp(argv[4], "-")) {
		aeron_async_add_subscription_t *a;
		int32_t stream = stream_of(argv[4]);
		if (aeron_async_add_subscription(&a, client, argv[4], stream, NULL, NULL, NULL, NULL))
			fail(argv[4]);
		while (!sub) {
			if (aeron_async_add_subscription_poll(&sub, a) < 0)
				fail(argv[4]);
			sched_yield();
		}
	}
	answer = !strcmp(argv[1], "pong");
	if (!strcmp(argv[1], "send"))
		for (uint64_t n = 0;; n++)
			publish(n);
	if (!strcmp(argv[1], "ping"))
		for (uint64_t n = 0;; n++) {
			uint64_t begun = now_ns();
			publish(n);
			while (got == n)
				if (aeron_subscription_poll(sub, arrived, NULL, 1) <= 0)
					sched_yield();
			record(now_ns() - begun);
			board[0] = n + 1;
		}
	for (;;) {
		if (aeron_subscription_poll(sub, arrived, NULL, 256) <= 0)
			sched_yield();
		board[0] = got;
	}
}
