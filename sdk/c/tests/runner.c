/*
 * Does what the lines of its standard input say with the library and answers
 * each with one line, "ok ..." or "error ERRNO text". tests/real.py drives it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdsd.h"

enum { NAMES = 64 };

static struct {
	char name[32];
	void *thing;
} clients[NAMES], sockets[NAMES];

static pthread_t echoes[NAMES];
static struct echo {
	rdsd_socket *s;
	int count;
} echo_args[NAMES];
static int echoes_n;

static void *find(const char *name, bool client)
{
	for (int i = 0; i < NAMES; i++)
		if (!strcmp(client ? clients[i].name : sockets[i].name, name))
			return client ? clients[i].thing : sockets[i].thing;
	fprintf(stderr, "runner: there is no %s\n", name);
	exit(2);
}

static void keep(const char *name, void *thing, bool client)
{
	for (int i = 0; i < NAMES; i++) {
		char *n = client ? clients[i].name : sockets[i].name;

		if (!*n || !strcmp(n, name)) {
			snprintf(n, 32, "%s", name);
			*(client ? &clients[i].thing : &sockets[i].thing) = thing;
			return;
		}
	}
	exit(2);
}

static char *word(void)
{
	char *w = strtok(NULL, " ");

	if (!w) {
		fprintf(stderr, "runner: a word is missing\n");
		exit(2);
	}
	return w;
}

static rdsd_addr address(void)
{
	rdsd_addr a;

	if (rdsd_addr_parse(word(), &a)) {
		fprintf(stderr, "runner: %s\n", rdsd_errmsg());
		exit(2);
	}
	return a;
}

static int64_t timeout(void) { return RDSD_MS(atoi(word())); }

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* hex decodes in place; "-" is nothing. */
static uint8_t *hex(size_t *n)
{
	char *w = word();
	uint8_t *out = (uint8_t *)w;

	*n = 0;
	if (*w != '-')
		for (; w[0] && w[1]; w += 2)
			out[(*n)++] = (uint8_t)(digit(w[0]) << 4 | digit(w[1]));
	return out;
}

static void say_hex(const uint8_t *p, size_t n)
{
	if (!n)
		putchar('-');
	while (n--) {
		putchar("0123456789abcdef"[*p >> 4]);
		putchar("0123456789abcdef"[*p++ & 15]);
	}
}

/* answered says what a call returned and whether it succeeded. */
static bool answered(ssize_t result)
{
	if (result >= 0) {
		printf("ok");
		return true;
	}
	printf("error %zd %s", -result, rdsd_errmsg());
	return false;
}

static void *echo_thread(void *arg)
{
	struct echo *e = arg;
	static _Thread_local char buf[RDSD_MAX_DATAGRAM];
	rdsd_addr from;

	while (e->count--) {
		ssize_t n = rdsd_recv(e->s, buf, sizeof buf, &from, RDSD_SEC(10));

		if (n < 0 || rdsd_send(e->s, &from, buf, (size_t)n, NULL, RDSD_SEC(10)))
			return NULL;
	}
	return e;
}

static void bind_socket(void)
{
	char *name = word();
	rdsd_client *c = find(word(), true);
	rdsd_addr a = address();
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	rdsd_socket *s;

	o.label = name;
	o.send_buffer = strtoull(word(), NULL, 10);
	o.recv_buffer = strtoull(word(), NULL, 10);
	o.flags = (uint32_t)atoi(word());
	if (answered(rdsd_bind(c, &a, &o, &s)))
		keep(name, s, false);
}

static void send_batch(rdsd_socket *s)
{
	static rdsd_dgram d[256];
	int64_t t = timeout();
	size_t n = (size_t)atoi(word());

	for (size_t i = 0; i < n; i++) {
		d[i].to = address();
		d[i].data = hex(&d[i].len);
	}
	if (answered(rdsd_send_batch(s, d, n, NULL, t)))
		for (size_t i = 0; i < n; i++)
			printf(" %d", -d[i].error);
}

/* send_run sends so many numbered datagrams of 8 bytes. */
static void send_run(rdsd_socket *s)
{
	rdsd_addr to = address();
	size_t n = strtoull(word(), NULL, 10);
	uint64_t *numbers = malloc(n * sizeof *numbers);

	for (size_t i = 0; i < n; i++)
		numbers[i] = i;
	if (answered(rdsd_send_run(s, &to, numbers, sizeof *numbers, n, NULL, timeout())))
		printf(" %zu", n);
	free(numbers);
}

/* drain receives so many, which must come in order. */
static void drain(rdsd_socket *s)
{
	uint64_t want = strtoull(word(), NULL, 10), next = 0, number;
	int64_t t = timeout();
	rdsd_msg m[256];

	while (next < want) {
		ssize_t n = rdsd_recv_batch(s, m, 256, t);

		if (!(n > 0)) {
			answered(n);
			return;
		}
		for (ssize_t i = 0; i < n; i++) {
			memcpy(&number, m[i].data, sizeof number);
			if (m[i].len != sizeof number || number != next++) {
				printf("error 5 number %llu, expected %llu", (unsigned long long)number, (unsigned long long)next - 1);
				return;
			}
		}
		rdsd_release(m, (size_t)n);
	}
	printf("ok");
}

/* volley sends so many numbered datagrams of 8 bytes in batches, each of which is received before the next. */
static void volley(rdsd_socket *s)
{
	static rdsd_dgram d[256];
	static uint64_t numbers[256];
	rdsd_addr to = address(), from;
	rdsd_socket *reader = find(word(), false);
	uint64_t next = strtoull(word(), NULL, 10), end = next + strtoull(word(), NULL, 10), want = next;
	size_t burst = strtoull(word(), NULL, 10);
	int64_t t = timeout();

	rdsd_local_addr(s, &from);
	while (next < end) {
		size_t n = burst < end - next ? burst : end - next;
		ssize_t sent;
		rdsd_msg m[256];

		for (size_t i = 0; i < n; i++) {
			numbers[i] = next++;
			d[i] = (rdsd_dgram){.to = to, .data = &numbers[i], .len = sizeof numbers[i]};
		}
		sent = rdsd_send_batch(s, d, n, NULL, t);
		if (sent != (ssize_t)n) {
			answered(sent < 0 ? sent : -5);
			return;
		}
		while (want < next) {
			ssize_t got = rdsd_recv_batch(reader, m, 256, t);

			if (!(got > 0)) {
				answered(got);
				return;
			}
			for (ssize_t i = 0; i < got; i++) {
				uint64_t number = UINT64_MAX;

				memcpy(&number, m[i].data, m[i].len == sizeof number ? sizeof number : 0);
				if (number != want++ || !rdsd_addr_equal(&m[i].from, &from)) {
					printf("error 5 number %llu, expected %llu", (unsigned long long)number, (unsigned long long)want - 1);
					return;
				}
			}
			rdsd_release(m, (size_t)got);
		}
	}
	printf("ok");
}

static void receive(rdsd_socket *s)
{
	static uint8_t buf[RDSD_MAX_DATAGRAM];
	char text[RDSD_ADDRSTRLEN];
	rdsd_addr from;
	ssize_t n = rdsd_recv(s, buf, sizeof buf, &from, timeout());

	if (!answered(n))
		return;
	printf(" %s ", rdsd_addr_format(&from, text, sizeof text));
	say_hex(buf, (size_t)n);
}

/* What is borrowed and what is reserved, each under a name. */
static struct lease {
	char name[32];
	rdsd_msg m[64];
	size_t n;
} leases[NAMES];

static struct room {
	char name[32];
	rdsd_slot slot;
} rooms[NAMES];

static struct lease *lease_of(const char *name)
{
	for (int i = 0; i < NAMES; i++)
		if (!*leases[i].name || !strcmp(leases[i].name, name)) {
			snprintf(leases[i].name, sizeof leases[i].name, "%s", name);
			return &leases[i];
		}
	exit(2);
}

static rdsd_slot *room_of(const char *name)
{
	for (int i = 0; i < NAMES; i++)
		if (!*rooms[i].name || !strcmp(rooms[i].name, name)) {
			snprintf(rooms[i].name, sizeof rooms[i].name, "%s", name);
			return &rooms[i].slot;
		}
	exit(2);
}

/* borrow receives one datagram in place and keeps it. */
static void borrow(rdsd_socket *s)
{
	struct lease *l = lease_of(word());
	rdsd_msg *m = &l->m[l->n];
	char text[RDSD_ADDRSTRLEN];

	if (l->n == sizeof l->m / sizeof *l->m)
		exit(2);
	if (!answered(rdsd_recv_batch(s, m, 1, timeout())))
		return;
	l->n++;
	printf(" %s ", rdsd_addr_format(&m->from, text, sizeof text));
	say_hex(m->data, m->len);
}

/* release says once more what was borrowed and gives it back. */
static void release(void)
{
	struct lease *l = lease_of(word());

	printf("ok");
	for (size_t i = 0; i < l->n; i++) {
		putchar(' ');
		say_hex(l->m[i].data, l->m[i].len);
	}
	rdsd_release(l->m, l->n);
	*l = (struct lease){0};
}

static void reserve(rdsd_socket *s)
{
	rdsd_slot *slot = room_of(word());
	rdsd_addr to = address();
	size_t size = strtoull(word(), NULL, 10);

	answered(rdsd_reserve(s, &to, size, slot, timeout()));
}

static void commit(rdsd_socket *s)
{
	rdsd_slot *slot = room_of(word());
	size_t len;
	uint8_t *data = hex(&len);

	if (len)
		memcpy(slot->data, data, len);
	answered(rdsd_commit(s, slot, len, NULL));
}

static void request(rdsd_socket *s)
{
	static uint8_t buf[RDSD_MAX_DATAGRAM];
	rdsd_addr to = address();
	size_t len;
	uint8_t *data = hex(&len);
	ssize_t n = rdsd_request(s, &to, data, len, buf, sizeof buf, timeout());

	if (!answered(n))
		return;
	putchar(' ');
	say_hex(buf, (size_t)n);
}

static void outcomes(rdsd_socket *s)
{
	rdsd_outcome o[64];
	ssize_t n = rdsd_outcomes(s, o, 64, timeout());

	if (answered(n))
		for (ssize_t i = 0; i < n; i++)
			printf(" %llu,%u,%s,%s;", (unsigned long long)o[i].tag, o[i].count, rdsd_outcome_name(o[i].kind),
			       rdsd_reason_text(o[i].reason));
}

static void on_socket(const char *op)
{
	rdsd_socket *s = find(word(), false);
	char text[RDSD_ADDRSTRLEN];
	rdsd_congestion ev;
	rdsd_cancelled gone;
	rdsd_addr a;
	uint8_t *data;
	uint64_t tag;
	size_t len;
	int result;

	if (!strcmp(op, "local")) {
		rdsd_local_addr(s, &a);
		printf("ok %s", rdsd_addr_format(&a, text, sizeof text));
	} else if (!strcmp(op, "send")) {
		a = address();
		data = hex(&len);
		if (answered(rdsd_send(s, &a, data, len, &tag, timeout())))
			printf(" %llu", (unsigned long long)tag);
	} else if (!strcmp(op, "reply")) {
		a = address();
		data = hex(&len);
		answered(rdsd_reply(s, &a, data, len, timeout()));
	} else if (!strcmp(op, "try")) {
		a = address();
		data = hex(&len);
		answered(rdsd_try_send(s, &a, data, len, NULL));
	} else if (!strcmp(op, "run")) {
		send_run(s);
	} else if (!strcmp(op, "drain")) {
		drain(s);
	} else if (!strcmp(op, "volley")) {
		volley(s);
	} else if (!strcmp(op, "batch")) {
		send_batch(s);
	} else if (!strcmp(op, "recv")) {
		receive(s);
	} else if (!strcmp(op, "borrow")) {
		borrow(s);
	} else if (!strcmp(op, "release")) {
		release();
	} else if (!strcmp(op, "reserve")) {
		reserve(s);
	} else if (!strcmp(op, "commit")) {
		commit(s);
	} else if (!strcmp(op, "abort")) {
		rdsd_abort(s, room_of(word()));
		printf("ok");
	} else if (!strcmp(op, "request")) {
		request(s);
	} else if (!strcmp(op, "echo")) {
		echo_args[echoes_n] = (struct echo){s, atoi(word())};
		if (pthread_create(&echoes[echoes_n], NULL, echo_thread, &echo_args[echoes_n]))
			exit(2);
		echoes_n++;
		printf("ok");
	} else if (!strcmp(op, "cancel")) {
		a = address();
		if (answered(rdsd_cancel_sent_to(s, &a, &gone, timeout())))
			printf(" %llu %llu", (unsigned long long)gone.cancelled, (unsigned long long)gone.in_flight);
	} else if (!strcmp(op, "flush")) {
		answered(rdsd_flush(s, timeout()));
	} else if (!strcmp(op, "outcomes")) {
		outcomes(s);
	} else if (!strcmp(op, "congested")) {
		a = address();
		result = rdsd_congested(s, &a, timeout());
		if (answered(result))
			printf(" %d", result);
	} else if (!strcmp(op, "watch")) {
		answered(rdsd_watch(s, 1, 0));
	} else if (!strcmp(op, "event")) {
		if (answered(rdsd_next_congestion(s, &ev, timeout())))
			printf(" %s %u %d", rdsd_addr_format(&ev.addr, text, sizeof text), ev.congested, ev.freed != 0);
	} else if (!strcmp(op, "peek")) {
		result = rdsd_peek(s, &len);
		if (answered(result))
			printf(result ? " %zu" : " none", len);
	} else if (!strcmp(op, "close")) {
		answered(rdsd_shutdown(s));
	} else {
		fprintf(stderr, "runner: what is %s?\n", op);
		exit(2);
	}
}

/* end waits for the echoes and closes everything. */
static void end(void)
{
	bool all = true;

	while (echoes_n) {
		void *result;

		pthread_join(echoes[--echoes_n], &result);
		all = all && result;
	}
	for (int i = 0; i < NAMES; i++) {
		if (*sockets[i].name)
			rdsd_close(sockets[i].thing);
		*sockets[i].name = 0;
	}
	for (int i = 0; i < NAMES; i++) {
		if (*clients[i].name)
			rdsd_client_close(clients[i].thing);
		*clients[i].name = 0;
	}
	printf(all ? "ok" : "error 5 an echo ended early");
}

int main(void)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	while ((n = getline(&line, &cap, stdin)) > 0) {
		char *op;

		if (line[n - 1] == '\n')
			line[n - 1] = 0;
		op = strtok(line, " ");
		if (!op)
			continue;
		if (!strcmp(op, "client")) {
			char *name = word();
			rdsd_client *c;

			if (answered(rdsd_client_open(word(), &c)))
				keep(name, c, true);
		} else if (!strcmp(op, "bind")) {
			bind_socket();
		} else if (!strcmp(op, "end")) {
			end();
		} else {
			on_socket(op);
		}
		putchar('\n');
		fflush(stdout);
	}
	free(line);
	return 0;
}
