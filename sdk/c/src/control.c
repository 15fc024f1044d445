/*
 * Packets of the control socket: a head of four bytes, then a message or a
 * piece of one (docs/shm.md, control socket).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

int rdsdi_control_send(struct rdsdi_link *l, const uint8_t *message, size_t n)
{
	uint8_t head[PACKET_HEAD] = {PACKET_KIND};
	struct iovec iov[2] = {{head, sizeof head}, {(void *)(uintptr_t)message, n}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

	while (rdsdi_sendmsg(l->control, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return errno == EAGAIN ? -EAGAIN : -ESHUTDOWN;
	return 0;
}

void rdsdi_control_reset(struct rdsdi_ctl *c)
{
	free(c->message);
	c->message = NULL;
	c->message_n = 0;
	rdsdi_control_close_fds(c);
}

void rdsdi_control_close_fds(struct rdsdi_ctl *c)
{
	while (c->fds_n)
		rdsdi_close(c->fds[--c->fds_n]);
	c->fds_lost = false;
}

/* take_fds keeps the descriptors of a packet, at most four of a message. */
static void take_fds(struct rdsdi_ctl *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
			if (c->fds_n < 4)
				c->fds[c->fds_n++] = fd;
			else
				rdsdi_close(fd);
		}
	}
}

/* packet reads one: its length without the head and *more, 0 when there is none, or an error. */
static ssize_t packet(rdsd_socket *s, bool *more)
{
	struct rdsdi_ctl *c = &s->ctl;
	union {
		struct cmsghdr align;
		uint8_t room[CMSG_SPACE(8 * sizeof(int))];
	} rights;
	struct iovec iov = {c->packet, PACKET_HEAD + PACKET_PIECE};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = rights.room, .msg_controllen = sizeof rights.room};
	ssize_t n;

	do
		n = rdsdi_recvmsg(c->link->control, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || errno == ECONNRESET)); /* the latter once, before the packets that are there */
	if (n < 0)
		return errno == EAGAIN ? 0 : -ESHUTDOWN;
	if (n == 0)
		return -ESHUTDOWN;
	take_fds(c, &m);
	c->fds_lost |= m.msg_flags & MSG_CTRUNC; /* the message is whole all the same: who needs them says what is then */
	if (m.msg_flags & MSG_TRUNC || n <= PACKET_HEAD || c->packet[0] != PACKET_KIND ||
	    c->packet[1] & ~PACKET_MORE || c->packet[2] || c->packet[3])
		return -EPROTO;
	*more = c->packet[1] & PACKET_MORE;
	if (*more && n != PACKET_HEAD + PACKET_PIECE)
		return -EPROTO;
	return n;
}

/* collect adds a piece to the message that is being put together. */
static int collect(struct rdsdi_ctl *c, const uint8_t *piece, size_t n)
{
	uint8_t *bigger;

	if (c->message_n + n > MESSAGE_MAX)
		return -EPROTO;
	bigger = realloc(c->message, c->message_n + n + 1);
	if (!bigger)
		return -ENOMEM;
	memcpy(bigger + c->message_n, piece, n);
	c->message = bigger;
	c->message_n += n;
	return 0;
}

int rdsdi_control_next(rdsd_socket *s, struct rdsdi_server *m)
{
	struct rdsdi_ctl *c = &s->ctl;

	for (;;) {
		bool more = false;
		ssize_t n = packet(s, &more);
		const uint8_t *piece = c->packet + PACKET_HEAD;
		int err;

		if (n <= 0)
			return (int)n;
		n -= PACKET_HEAD;
		if (!more && !c->message) {
			err = rdsdi_pb_server(piece, (size_t)n, m);
			return err < 0 ? err : 1;
		}
		err = collect(c, piece, (size_t)n);
		if (err)
			return err;
		if (more)
			continue;
		err = rdsdi_pb_server(c->message, c->message_n, m);
		free(c->message);
		c->message = NULL;
		c->message_n = 0;
		return err < 0 ? err : 1;
	}
}
