/*
 * spool - sends to a reader that may be slow (drain.c): while its port is
 * congested datagrams are kept here, and sent when it clears.
 *
 *	spool 127.0.0.2:0 127.0.0.3:5000 1000
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <rdsd.h>

static void die(const char *what)
{
	fprintf(stderr, "spool: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

int main(int argc, char **argv)
{
	rdsd_congestion event;
	rdsd_client *client;
	rdsd_socket *s;
	rdsd_addr local, to;
	int count, sent = 0, refused = 0, err;

	if (argc != 4) {
		fprintf(stderr, "usage: spool LOCAL TO COUNT\n");
		return 2;
	}
	count = atoi(argv[3]);
	if (rdsd_client_open(NULL, &client) || rdsd_addr_parse(argv[1], &local) || rdsd_addr_parse(argv[2], &to))
		die("start");
	if (rdsd_bind(client, &local, NULL, &s))
		die("bind");
	if (rdsd_watch(s, 1, 0)) /* watches from here on */
		die("watch");
	while (sent < count) {
		char record[1000] = "";

		snprintf(record, sizeof record, "record %d", sent);
		err = rdsd_try_send(s, &to, record, sizeof record, NULL);
		if (err == -EAGAIN) /* our own send buffer: wait */
			err = rdsd_send(s, &to, record, sizeof record, NULL, RDSD_MS(100));
		switch (err) {
		case 0:
			sent++;
			break;
		case -ENOBUFS:
		case -ETIMEDOUT:
			if (!refused++)
				printf("congested, %d spooled\n", count - sent);
			/* Each event may be about our port: try again. */
			err = rdsd_next_congestion(s, &event, RDSD_SEC(1));
			if (err && err != -ETIMEDOUT)
				die("watch");
			break;
		default:
			die("send");
		}
	}
	if (rdsd_flush(s, RDSD_SEC(30)))
		die("flush");
	printf("%d delivered, refused %d times\n", count, refused);
	rdsd_close(s);
	rdsd_client_close(client);
	return 0;
}
