/*
 * pairs - what `rdsd stress` measures at depth 1, by a plain program: a datagram, its answer,
 * the next datagram. The number of pairs stands on the board (descriptor 3, line 0).
 *
 *	pairs answer LOCAL BYTES
 *	pairs ask LOCAL BYTES REMOTE
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rdsd.h"

static void must(ssize_t result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "pairs: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

int main(int argc, char **argv)
{
	volatile uint64_t *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	rdsd_addr local, to;
	rdsd_client *client;
	rdsd_socket *sock;
	uint64_t n = 0;

	if (count == MAP_FAILED || argc < 4) {
		fprintf(stderr, "pairs: no board, or arguments are missing\n");
		return 2;
	}
	size_t bytes = strtoul(argv[3], NULL, 10);
	char *buf = calloc(1, bytes);
	must(rdsd_client_open(NULL, &client), "open");
	must(rdsd_addr_parse(argv[2], &local), argv[2]);
	must(rdsd_bind(client, &local, NULL, &sock), "bind");
	if (strcmp(argv[1], "answer") == 0) {
		*(volatile uint64_t *)((char *)count + 2 * 128) = 1; /* ready */
		for (;;) {
			must(rdsd_recv(sock, buf, bytes, &to, RDSD_FOREVER), "receive");
			must(rdsd_send(sock, &to, buf, bytes, NULL, RDSD_FOREVER), "send");
		}
	}
	must(rdsd_addr_parse(argv[4], &to), argv[4]);
	for (;;) {
		must(rdsd_send(sock, &to, buf, bytes, NULL, RDSD_FOREVER), "send");
		must(rdsd_recv(sock, buf, bytes, NULL, RDSD_FOREVER), "receive");
		*count = ++n;
	}
}
