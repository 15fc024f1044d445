/*
 * report - so many threads report to collect.c, each from a socket of its own.
 *
 *	report 127.0.0.2:0 127.0.0.3:6000 8
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <rdsd.h>

enum { MOST = 1024 };

static rdsd_client *client;
static rdsd_addr local, to;

static void die(const char *what)
{
	fprintf(stderr, "report: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

static void *worker(void *arg)
{
	const int *number = arg;
	rdsd_socket *s;
	char text[64];
	int n = snprintf(text, sizeof text, "worker %d: all well", *number);

	if (rdsd_bind(client, &local, NULL, &s)) /* port 0: each has its own */
		die("bind");
	if (rdsd_send(s, &to, text, (size_t)n, NULL, RDSD_SEC(5)))
		die("send");
	if (rdsd_flush(s, RDSD_SEC(5))) /* delivered before we leave */
		die("flush");
	rdsd_close(s);
	return NULL;
}

int main(int argc, char **argv)
{
	static pthread_t threads[MOST];
	static int numbers[MOST];
	int n;

	if (argc != 4 || (n = atoi(argv[3])) < 1 || n > MOST) {
		fprintf(stderr, "usage: report LOCAL TO COUNT\n");
		return 2;
	}
	if (rdsd_client_open(NULL, &client) || rdsd_addr_parse(argv[1], &local) || rdsd_addr_parse(argv[2], &to))
		die("start");
	for (int i = 0; i < n; i++) {
		numbers[i] = i;
		if (pthread_create(&threads[i], NULL, worker, &numbers[i]))
			return 1;
	}
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	rdsd_client_close(client);
	return 0;
}
