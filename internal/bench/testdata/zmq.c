/* ZeroMQ in the benchmark: "push" sends messages of a size for ever, "pull"
 * counts them on the board, which is descriptor 3.
 * Arguments: push or pull, endpoint, bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <zmq.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int push = !strcmp(argv[1], "push");
	size_t size = strtoul(argv[3], NULL, 10);
	char *buf = calloc(1, size + 8);
	volatile uint64_t *count = mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (!buf || count == MAP_FAILED)
		return 2;
	void *s = zmq_socket(zmq_ctx_new(), push ? ZMQ_PUSH : ZMQ_PULL);
	if (!s)
		fail("zmq_socket");
	if (push ? zmq_connect(s, argv[2]) : zmq_bind(s, argv[2]))
		fail(argv[2]);
	for (uint64_t n = 0;; n++) {
		if (push) {
			memcpy(buf, &n, sizeof n);
			if (zmq_send(s, buf, size, 0) < 0)
				fail("zmq_send");
			continue;
		}
		uint64_t got;
		if (zmq_recv(s, buf, size + 8, 0) != (int)size)
			fail("zmq_recv");
		memcpy(&got, buf, sizeof got);
		if (got != n) {
			fprintf(stderr, "message %lu where %lu should be\n", (unsigned long)got, (unsigned long)n);
			return 1;
		}
		*count = n + 1;
	}
}
