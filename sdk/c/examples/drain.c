/*
 * drain - a slow reader: waits so many milliseconds, then reads so many
 * datagrams.
 *
 *	drain 127.0.0.3:5000 1000 500
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <rdsd.h>

static void die(const char *what)
{
	fprintf(stderr, "drain: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

int main(int argc, char **argv)
{
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	struct timespec pause;
	rdsd_client *client;
	rdsd_socket *s;
	rdsd_addr local;
	rdsd_msg msgs[64];
	ssize_t got;
	long left;

	if (argc != 4) {
		fprintf(stderr, "usage: drain LOCAL COUNT MILLISECONDS\n");
		return 2;
	}
	left = atol(argv[2]);
	o.recv_buffer = 64 << 10;
	o.label = "drain";
	if (rdsd_client_open(NULL, &client) || rdsd_addr_parse(argv[1], &local) || rdsd_bind(client, &local, &o, &s))
		die("bind");
	printf("draining %s\n", argv[1]);
	fflush(stdout);
	pause.tv_sec = atol(argv[3]) / 1000;
	pause.tv_nsec = atol(argv[3]) % 1000 * 1000000;
	nanosleep(&pause, NULL);
	for (; left > 0; left -= got) {
		got = rdsd_recv_batch(s, msgs, 64, RDSD_SEC(20));
		if (got < 0)
			die("receive");
		rdsd_release(msgs, (size_t)got);
	}
	rdsd_close(s);
	rdsd_client_close(client);
	return 0;
}
