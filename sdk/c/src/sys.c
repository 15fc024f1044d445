/*
 * System calls. In the C library's forms a thread ends that is cancelled
 * (pthread_cancel), in the midst of a call of this library: with locks that
 * others need, or as the one that sleeps for all of them. These forms are no such
 * places: the thread ends behind the call. Nothing else in the library may use
 * those of the C library (test.sh looks).
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

/* WHOLE returns what a call does, with a cancellation kept for later. */
#define WHOLE(type, call)                                                                                              \
	do {                                                                                                           \
		int was;                                                                                               \
		type result;                                                                                           \
                                                                                                                       \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);                                                  \
		result = call;                                                                                         \
		pthread_setcancelstate(was, &was);                                                                     \
		return result;                                                                                         \
	} while (0)

ssize_t rdsdi_read(int fd, void *to, size_t n) { WHOLE(ssize_t, read(fd, to, n)); }
ssize_t rdsdi_write(int fd, const void *from, size_t n) { WHOLE(ssize_t, write(fd, from, n)); }
ssize_t rdsdi_recv(int fd, void *to, size_t n, int flags) { WHOLE(ssize_t, recv(fd, to, n, flags)); }
ssize_t rdsdi_send(int fd, const void *from, size_t n, int flags) { WHOLE(ssize_t, send(fd, from, n, flags)); }
ssize_t rdsdi_recvmsg(int fd, struct msghdr *m, int flags) { WHOLE(ssize_t, recvmsg(fd, m, flags)); }
ssize_t rdsdi_sendmsg(int fd, const struct msghdr *m, int flags) { WHOLE(ssize_t, sendmsg(fd, m, flags)); }
int rdsdi_ppoll(struct pollfd *fds, unsigned n, const struct timespec *t) { WHOLE(int, ppoll(fds, n, t, NULL)); }
int rdsdi_connect(int fd, const struct sockaddr *to, socklen_t n) { WHOLE(int, connect(fd, to, n)); }
int rdsdi_close(int fd) { WHOLE(int, close(fd)); }
