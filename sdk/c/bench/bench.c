/*
 * rdsd-bench-c - what a datagram costs over the rings.
 *
 *	rdsd-bench-c [--seconds S] [--size BYTES] [--peer TARGET] LOCAL REMOTE
 *
 * LOCAL is an address of the daemon at $RDSD_SOCKET, REMOTE one of the daemon at
 * --peer (default: the same one). Two threads: one sends, one receives.
 *
 *	post     how long the calls take that post a burst, without waiting for it
 *	recv     how long it takes to receive a burst that is there
 *	one way  datagrams a second through everything, in batches
 *	round    a datagram there and back
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rdsd.h"

static double seconds = 1;
static size_t size = 64;
static rdsd_socket *here, *there;
static rdsd_addr to, from;
static _Atomic bool stop;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(ssize_t result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "rdsd-bench-c: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

static size_t drain(size_t n, double *spent)
{
	static rdsd_msg m[1024];
	size_t got = 0;

	while (got < n) {
		double t = now();
		ssize_t k = rdsd_recv_batch(there, m, n - got < 1024 ? n - got : 1024, RDSD_SEC(10));

		must(k, "recv");
		rdsd_release(m, (size_t)k);
		*spent += now() - t;
		got += (size_t)k;
	}
	return got;
}

enum way { ONE, BATCH, RUN, RESERVE };
static const char *const names[] = {"rdsd_send one by one", "rdsd_send_batch of 64", "rdsd_send_run of 1024", "rdsd_reserve, rdsd_commit"};

static size_t post(enum way way, const uint8_t *data, size_t n)
{
	rdsd_dgram d[64];
	size_t sent = 0, k;
	rdsd_slot slot;

	while (sent < n) {
		switch (way) {
		case ONE:
			must(rdsd_send(here, &to, data, size, NULL, RDSD_SEC(10)), "send");
			sent++;
			break;
		case BATCH:
			k = n - sent < 64 ? n - sent : 64;
			for (size_t i = 0; i < k; i++)
				d[i] = (rdsd_dgram){.data = data + i * size, .len = size, .to = to};
			must(rdsd_send_batch(here, d, k, NULL, RDSD_SEC(10)), "send");
			sent += k;
			break;
		case RUN:
			k = n - sent < 1024 ? n - sent : 1024;
			must(rdsd_send_run(here, &to, data, size, k, NULL, RDSD_SEC(10)), "send");
			sent += k;
			break;
		case RESERVE:
			must(rdsd_reserve(here, &to, size, &slot, RDSD_SEC(10)), "reserve");
			memset(slot.data, 1, size);
			must(rdsd_commit(here, &slot, size, NULL), "commit");
			sent++;
			break;
		}
	}
	return sent;
}

static void bursts(enum way way)
{
	static uint8_t *data; /* kept for the next way */
	size_t burst = (512 << 10) / (size ? size : 1), total = 0;
	double sending = 0, receiving = 0, until = now() + seconds * 1e9;

	if (burst > 4096)
		burst = 4096;
	if (!burst)
		burst = 1;
	if (!data)
		data = calloc(1024, size + 1);
	while (now() < until) {
		double t = now();

		total += post(way, data, burst);
		sending += now() - t;
		must(rdsd_flush(here, RDSD_SEC(10)), "flush");
		drain(burst, &receiving);
	}
	printf("post, %-26s %7.1f ns a datagram\n", names[way], sending / (double)total);
	printf("recv, in place after that      %7.1f ns a datagram\n", receiving / (double)total);
}

static void *reader(void *arg)
{
	static rdsd_msg m[1024];
	size_t *got = arg;

	for (;;) {
		ssize_t k = rdsd_recv_batch(there, m, 1024, RDSD_MS(20));

		if (k == -ETIMEDOUT && atomic_load(&stop))
			break; /* nothing is left for whoever is next */
		if (k == -ETIMEDOUT)
			continue;
		must(k, "recv");
		rdsd_release(m, (size_t)k);
		*got += (size_t)k;
	}
	return NULL;
}

static void one_way(enum way way)
{
	uint8_t *data = calloc(1024, size + 1);
	double begun = now();
	size_t got = 0;
	pthread_t t;

	atomic_store(&stop, false);
	must(-pthread_create(&t, NULL, reader, &got), "thread");
	while (now() - begun < seconds * 1e9)
		post(way, data, 1024);
	must(rdsd_flush(here, RDSD_SEC(10)), "flush");
	begun = now() - begun;
	atomic_store(&stop, true);
	pthread_join(t, NULL);
	printf("one way, %-26s %7.2f M/s\n", names[way], (double)got / begun * 1e3);
	free(data);
}

static void *echo(void *arg)
{
	static uint8_t buf[RDSD_MAX_DATAGRAM];

	(void)arg;
	while (!atomic_load(&stop)) {
		ssize_t n = rdsd_recv(there, buf, sizeof buf, NULL, RDSD_MS(20));

		if (n == -ETIMEDOUT)
			continue;
		must(n, "recv");
		must(rdsd_send(there, &from, buf, (size_t)n, NULL, RDSD_SEC(10)), "send");
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void round_trips(void)
{
	enum { MOST = 1000000 };
	double *took = malloc(MOST * sizeof *took), until = now() + seconds * 1e9;
	uint8_t *data = calloc(1, size + 1), *back = malloc(size + 1);
	pthread_t t;
	size_t n = 0;

	atomic_store(&stop, false);
	must(-pthread_create(&t, NULL, echo, NULL), "thread");
	while (now() < until && n < MOST) {
		double begun = now();

		must(rdsd_send(here, &to, data, size, NULL, RDSD_SEC(10)), "send");
		must(rdsd_recv(here, back, size, NULL, RDSD_SEC(10)), "recv");
		took[n++] = now() - begun;
	}
	atomic_store(&stop, true);
	pthread_join(t, NULL);
	qsort(took, n, sizeof *took, compare);
	printf("round trip: p50 %.1f us, p99 %.1f us, p99.9 %.1f us (%zu of them)\n", took[n / 2] / 1e3, took[n * 99 / 100] / 1e3,
	       took[n * 999 / 1000] / 1e3, n);
	free(took);
	free(data);
	free(back);
}

static rdsd_socket *bind_at(const char *target, const char *host, rdsd_client **client)
{
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	char text[RDSD_ADDRSTRLEN + 8];
	rdsd_socket *s;
	rdsd_addr a;

	snprintf(text, sizeof text, strchr(host, ':') ? "[%s]:0" : "%s:0", host);
	must(rdsd_addr_parse(text, &a), "address");
	must(rdsd_client_open(target, client), "open");
	o.label = "rdsd-bench-c";
	must(rdsd_bind(*client, &a, &o, &s), "bind");
	return s;
}

int main(int argc, char **argv)
{
	rdsd_client *clients[2];
	const char *peer = NULL;
	int i = 1;

	for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
		if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--size"))
			size = (size_t)atol(argv[i + 1]);
		else if (!strcmp(argv[i], "--peer"))
			peer = argv[i + 1];
		else
			break;
	}
	if (argc - i != 2 || size > RDSD_MAX_DATAGRAM) {
		fprintf(stderr, "usage: rdsd-bench-c [--seconds S] [--size BYTES] [--peer TARGET] LOCAL REMOTE\n");
		return 2;
	}
	here = bind_at(NULL, argv[i], &clients[0]);
	there = bind_at(peer, argv[i + 1], &clients[1]);
	rdsd_local_addr(here, &from);
	rdsd_local_addr(there, &to);
	printf("datagrams of %zu bytes\n", size);
	for (enum way w = ONE; w <= RESERVE; w++)
		bursts(w);
	for (enum way w = ONE; w <= RUN; w++)
		one_way(w);
	round_trips();
	rdsd_client_close(clients[0]);
	rdsd_client_close(clients[1]);
	return 0;
}
