/*
 * collect - collects reports of many sockets in one, in an event loop, without
 * a connection to any of them. report.c sends them.
 *
 *	collect 127.0.0.3:6000 8
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <rdsd.h>

enum { MOST = 1024 };

static void die(const char *what)
{
	fprintf(stderr, "collect: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

int main(int argc, char **argv)
{
	static rdsd_addr known[MOST];
	char text[RDSD_ADDRSTRLEN];
	struct pollfd fds[1]; /* a real loop has more */
	rdsd_client *client;
	rdsd_socket *s;
	rdsd_addr local;
	rdsd_msg msgs[64];
	int want, n = 0;

	if (argc != 3 || (want = atoi(argv[2])) < 1 || want > MOST) {
		fprintf(stderr, "usage: collect LOCAL COUNT\n");
		return 2;
	}
	if (rdsd_client_open(NULL, &client))
		die("open");
	if (rdsd_addr_parse(argv[1], &local) || rdsd_bind(client, &local, NULL, &s))
		die("bind");
	fds[0].fd = rdsd_fd(s);
	fds[0].events = POLLIN;
	printf("collecting at %s\n", argv[1]);
	fflush(stdout);
	while (n < want) {
		int ready = rdsd_arm(s, RDSD_READABLE);
		ssize_t got;

		if (ready < 0)
			die("arm");
		if (!ready)
			poll(fds, 1, -1);
		rdsd_disarm(s);
		while ((got = rdsd_recv_batch(s, msgs, 64, RDSD_NOWAIT)) > 0) {
			for (ssize_t i = 0; i < got; i++) {
				int k = 0;

				while (k < n && !rdsd_addr_equal(&known[k], &msgs[i].from))
					k++;
				if (k == n && n < want)
					known[n++] = msgs[i].from;
				printf("%s: %.*s\n", rdsd_addr_format(&msgs[i].from, text, sizeof text), (int)msgs[i].len,
				       (const char *)msgs[i].data);
			}
			rdsd_release(msgs, (size_t)got);
		}
	}
	printf("%d workers have reported\n", n);
	rdsd_close(s);
	rdsd_client_close(client);
	return 0;
}
