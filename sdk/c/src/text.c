#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local const char *last = "";
static _Thread_local char words[512];

int rdsdi_fail(int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(words, sizeof words, format, args);
	va_end(args);
	last = words;
	return err;
}

int rdsdi_because(int err, const char *text)
{
	last = text;
	return err;
}

int rdsdi_errno(int err)
{
	last = rdsd_strerror(err);
	return err;
}

const char *rdsd_errmsg(void)
{
	return last;
}

/* The words of package rdserr, where one errno has one cause. */
static const struct {
	int error;
	const char *text;
} errors[] = {
	{EAGAIN, "the call would have to wait"},
	{ENOBUFS, "the destination port is congested"},
	{EMSGSIZE, "the datagram is larger than the send buffer or 1 MiB"},
	{ETIMEDOUT, "the deadline passed"},
	{ECANCELED, "cancelled before it left"},
	{EIO, "the transport failed"},
	{ENOTCONN, "the socket is not bound"},
	{EINVAL, "invalid argument"},
	{EADDRINUSE, "another socket owns this address and port"},
	{EADDRNOTAVAIL, "not an address of this daemon"},
	{EACCES, "this user may not do that"},
	{ENOMEM, "a configured budget, or memory, is spent"},
	{EOPNOTSUPP, "IPv4 and IPv6 do not mix"},
	{EDESTADDRREQ, "a destination address and port are needed"},
	{EHOSTUNREACH, "the peer is not reachable or not allowed"},
	{ECONNREFUSED, "the peer has no such port"},
	{ECONNRESET, "the connection was reset"},
	{ESHUTDOWN, "the daemon is shutting down or restarted"},
	{EBADF, "the socket is closed"},
	{EPROTO, "the daemon broke the protocol"},
	{EMFILE, "a configured number is reached"},
	{ENOENT, "no such object"},
	{EUSERS, "too many calls from this user"},
	{ENOSYS, "not supported"},
	{EINTR, "a signal handler ran"},
	{EBADMSG, "the shared memory was damaged: the daemon closed the socket"},
	{EPROTONOSUPPORT, "the daemon has no rings of this layout"},
};

const char *rdsd_strerror(int error)
{
	const char *name;

	if (error < 0)
		error = -error;
	if (!error)
		return "success";
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].error == error)
			return errors[i].text;
	name = strerrordesc_np(error);
	return name ? name : "an error without a name";
}

const char *rdsd_outcome_name(int kind)
{
	static const char *const names[] = {"unspecified", "delivered", "cancelled", "failed", "unknown"};

	return kind > 0 && kind < 5 ? names[kind] : names[0];
}

/* The numbers of conn.Why. */
const char *rdsd_reason_text(int reason)
{
	static const char *const texts[] = {
		"",
		"no such port",
		"cancelled by the application",
		"the socket was closed",
		"peer restarted",
		"peer changed between kernel and rdsd",
		"cancelled after it had begun to leave, then the link was lost",
		"the daemon is shutting down",
		"daemon restarted",
		"the memory budget is spent",
		"the address was taken from this node",
	};

	if (reason >= 0 && reason < (int)(sizeof texts / sizeof *texts))
		return texts[reason];
	return "a reason this library does not know";
}

const char *rdsd_version(void)
{
	return "1.0";
}
