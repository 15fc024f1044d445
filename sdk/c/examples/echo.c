/*
 * echo - sends back what it receives, or sends a text and prints what comes back.
 *
 *	echo 127.0.0.3:7                        # echo server
 *	echo 127.0.0.2:0 127.0.0.3:7 hello      # client
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdsd.h>

static void die(const char *what)
{
	fprintf(stderr, "echo: %s: %s\n", what, rdsd_errmsg());
	exit(1);
}

int main(int argc, char **argv)
{
	static char buf[RDSD_MAX_DATAGRAM];
	char text[RDSD_ADDRSTRLEN];
	rdsd_client *client;
	rdsd_socket *s;
	rdsd_addr local, to;
	ssize_t n;

	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: echo LOCAL [TO TEXT]\n");
		return 2;
	}
	if (rdsd_client_open(NULL, &client)) /* $RDSD_SOCKET, or /run/rdsd/rdsd.sock */
		die("open");
	if (rdsd_addr_parse(argv[1], &local) || rdsd_bind(client, &local, NULL, &s))
		die("bind");
	if (argc == 2) {
		rdsd_local_addr(s, &local);
		printf("echo at %s\n", rdsd_addr_format(&local, text, sizeof text));
		fflush(stdout);
		for (;;) {
			n = rdsd_recv(s, buf, sizeof buf, &to, RDSD_FOREVER);
			if (n < 0)
				die("receive");
			if (rdsd_send(s, &to, buf, (size_t)n, NULL, RDSD_SEC(5)))
				fprintf(stderr, "echo: %s\n", rdsd_errmsg());
		}
	}
	if (rdsd_addr_parse(argv[2], &to))
		die("address");
	n = rdsd_request(s, &to, argv[3], strlen(argv[3]), buf, sizeof buf, RDSD_SEC(5));
	if (n < 0)
		die("request");
	printf("%s says %.*s\n", rdsd_addr_format(&to, text, sizeof text), (int)n, buf);
	rdsd_close(s);
	rdsd_client_close(client);
	return 0;
}
