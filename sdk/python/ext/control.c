/* What is asked of the daemon, outcomes, congestion, event loops. */
#include "rings.h"

enum { RUNS = 256 };

/* asked runs a call that may wait, until it is over. -1: an exception is set. */
#define ASK(h, w, timeout, result, call)                                                                               \
	do {                                                                                                           \
		int again_;                                                                                            \
		wait_begin(&(w), timeout);                                                                             \
		do {                                                                                                   \
			Py_BEGIN_ALLOW_THREADS                                                                         \
			result = call;                                                                                 \
			Py_END_ALLOW_THREADS                                                                           \
			again_ = wait_again(&(w), result);                                                             \
		} while (again_ > 0);                                                                                  \
		if (again_ < 0)                                                                                        \
			return NULL;                                                                                   \
	} while (0)

static PyObject *flush(PyObject *self, PyObject *timeout)
{
	Handle *h = (Handle *)self;
	PyThreadState *t;
	int64_t ns;
	int err;

	CHECK_OPEN(h);
	if (get_timeout(timeout, &ns) < 0)
		return NULL;
	t = once_begin();
	err = rdsd_flush(h->sock, ns);
	if (!once_end(t))
		return NULL;
	if (err)
		return fail(h, ns ? err : too_late(h, err));
	Py_RETURN_NONE;
}

static PyObject *cancel(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	PyObject *name, *timeout;
	rdsd_cancelled result;
	PyThreadState *t;
	rdsd_addr to;
	int64_t ns;
	int err;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "OO", &name, &timeout) || get_address(name, &to) < 0 || get_timeout(timeout, &ns) < 0)
		return NULL;
	t = once_begin();
	err = rdsd_cancel_sent_to(h->sock, &to, &result, ns);
	if (!once_end(t))
		return NULL;
	if (err)
		return fail(h, ns ? err : too_late(h, err));
	return Py_BuildValue("KK", (unsigned long long)result.cancelled, (unsigned long long)result.in_flight);
}

static PyObject *congested(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	PyObject *name, *timeout;
	struct wait w;
	rdsd_addr to;
	int64_t ns;
	int is;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "OO", &name, &timeout) || get_address(name, &to) < 0 || get_timeout(timeout, &ns) < 0)
		return NULL;
	ASK(h, w, ns, is, rdsd_congested(h->sock, &to, ns ? w.slice : RDSD_NOWAIT));
	if (is < 0)
		return fail(h, ns ? is : too_late(h, is));
	return PyBool_FromLong(is);
}

/*
 * Appends runs of outcomes to a deque: (first tag, number, kind, reason). No handler of a
 * signal runs between: what was taken is in the deque, whatever one raises afterwards.
 */
static PyObject *outcomes(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	rdsd_outcome runs[RUNS];
	PyObject *into, *timeout;
	struct wait w;
	ssize_t got, i;
	int wait;
	int64_t ns;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "OOp", &into, &timeout, &wait) || get_timeout(timeout, &ns) < 0)
		return NULL;
	got = rdsd_outcomes(h->sock, runs, RUNS, RDSD_NOWAIT);
	if (got == -EAGAIN || got == -ESHUTDOWN) {
		if (wait)
			ASK(h, w, ns, got, rdsd_outcomes(h->sock, runs, RUNS, w.slice));
		else
			got = 0;
	}
	if (got < 0)
		return fail(h, got);
	for (i = 0; i < got; i++) {
		const rdsd_outcome *o = &runs[i];
		PyObject *done = PyObject_CallMethod(into, "append", "((KIis))", (unsigned long long)o->tag,
						     (unsigned)o->count, (int)o->kind,
						     o->error ? rdsd_strerror(o->error) : rdsd_reason_text(o->reason));

		if (!done)
			return NULL;
		Py_DECREF(done);
	}
	Py_RETURN_NONE;
}

static PyObject *watch(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	unsigned long long mask;
	int on, err;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "pK", &on, &mask))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	err = rdsd_watch(h->sock, on, mask);
	Py_END_ALLOW_THREADS
	if (err)
		return fail(h, err);
	Py_RETURN_NONE;
}

/* The next congestion event: (address or None, congested, groups freed), None when there is none and wait is false. */
static PyObject *next_congestion(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	rdsd_congestion e;
	PyObject *timeout, *addr;
	struct wait w;
	int64_t ns;
	int err, wait;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "Op", &timeout, &wait) || get_timeout(timeout, &ns) < 0)
		return NULL;
	err = rdsd_next_congestion(h->sock, &e, RDSD_NOWAIT);
	if (err == -EAGAIN || err == -ESHUTDOWN) {
		if (!wait)
			Py_RETURN_NONE;
		ASK(h, w, ns, err, rdsd_next_congestion(h->sock, &e, w.slice));
	}
	if (err)
		return fail(h, err);
	addr = e.addr.family ? new_address(&e.addr) : Py_NewRef(Py_None);
	if (!addr)
		return NULL;
	return Py_BuildValue("NNK", addr, PyBool_FromLong(e.congested), (unsigned long long)e.freed);
}

/*
 * await_reply sends and waits within a timeout; 0, a negative errno, or 1 with an exception set.
 * -EADDRINUSE: nothing has left, and somebody else has the port.
 */
static int64_t await_reply(Handle *h, struct rdsdi_request *q, const rdsd_addr *to, const struct payload *p, int64_t timeout)
{
	struct rdsdi_jam jam = {0};
	int64_t result;
	struct wait w;
	int again;

	wait_begin(&w, timeout);
	do {
		PyThreadState *t = part_begin(&jam, false);

		result = rdsd_send(h->sock, to, p->data, p->len, NULL, w.slice);
		part_end(t);
		again = wait_again(&w, result);
	} while (again > 0);
	rdsdi_jam_end(&jam, &h->sock->tx);
	wait_rest(&w); /* sending may have taken most of it */
	while (!result && again >= 0) {
		Py_BEGIN_ALLOW_THREADS
		result = rdsdi_request_wait(q, w.slice);
		Py_END_ALLOW_THREADS
		if (!result)
			return 0;
		again = wait_again(&w, result);
		if (again > 0)
			result = 0;
	}
	return again < 0 ? 1 : result;
}

static PyObject *request(PyObject *self, PyObject *args)
{
	Handle *h = (Handle *)self;
	PyObject *name, *data, *timeout, *reply;
	PyObject *kind, *value, *trace;
	struct rdsdi_request q;
	struct payload p;
	rdsd_addr to;
	rdsd_msg msg;
	int64_t ns, result;

	CHECK_OPEN(h);
	if (!PyArg_ParseTuple(args, "OOO", &name, &data, &timeout) || get_destination(h, name, &to) < 0 ||
	    get_timeout(timeout, &ns) < 0)
		return NULL;
	if (h->process != rdsdi_process)
		return fail(h, -EBADF);
	if (payload_get(&p, data) < 0)
		return NULL;
	rdsdi_request_begin(&q, h->sock, &to);
	result = await_reply(h, &q, &to, &p, ns);
	payload_put(&p);
	PyErr_Fetch(&kind, &value, &trace);
	Py_BEGIN_ALLOW_THREADS
	result = rdsdi_request_end(&q, result > 0 ? -EINTR : result, &msg);
	Py_END_ALLOW_THREADS
	PyErr_Restore(kind, value, trace);
	if (result)
		return kind ? NULL : fail_to(h, result, name);
	reply = kind ? NULL : PyBytes_FromStringAndSize(msg.data, (Py_ssize_t)msg.len);
	rdsd_release(&msg, 1);
	return reply;
}

/* (local address, instance of the daemon, connected, why it is over) */
static PyObject *info(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;
	PyObject *local;
	rdsd_info i;
	int over;

	(void)unused;
	if (!h->sock) /* not bound yet */
		return Py_BuildValue("OiOi", Py_None, 0, Py_False, 0);
	over = h->process == rdsdi_process ? atomic_load(&h->sock->over) : -EBADF;
	Py_BEGIN_ALLOW_THREADS
	rdsd_get_info(h->sock, &i);
	Py_END_ALLOW_THREADS
	local = new_address(&i.local);
	if (!local)
		return NULL;
	return Py_BuildValue("NKNi", local, (unsigned long long)i.daemon_instance, PyBool_FromLong(i.connected), -over);
}

/* Looks after the connection; whoever binds again without being called needs it. */
static PyObject *tend(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;

	(void)unused;
	if (h->sock && h->process == rdsdi_process) {
		Py_BEGIN_ALLOW_THREADS
		rdsdi_pump(h->sock);
		Py_END_ALLOW_THREADS
	}
	Py_RETURN_NONE;
}

static PyObject *descriptor(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;
	int fd;

	(void)unused;
	CHECK_OPEN(h);
	fd = rdsd_fd(h->sock);
	return fd < 0 ? fail(h, fd) : PyLong_FromLong(fd);
}

static PyObject *arm(PyObject *self, PyObject *what)
{
	Handle *h = (Handle *)self;
	unsigned long bits = PyLong_AsUnsignedLong(what);
	int ready;

	if (bits == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	CHECK_OPEN(h);
	ready = rdsd_arm(h->sock, (unsigned)bits);
	return ready < 0 ? fail(h, ready) : PyLong_FromLong(ready);
}

static PyObject *disarm(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;

	(void)unused;
	CHECK_OPEN(h);
	rdsd_disarm(h->sock);
	Py_RETURN_NONE;
}

PyMethodDef control_methods[] = {
	{"_flush", flush, METH_O, "Waits until everything accepted has its outcome."},
	{"_cancel", cancel, METH_VARARGS, "(cancelled, in flight) of what is queued to a destination."},
	{"_congested", congested, METH_VARARGS, "Whether a destination is congested."},
	{"_outcomes", outcomes, METH_VARARGS, "Appends runs of outcomes to a deque."},
	{"_watch", watch, METH_VARARGS, "Turns congestion events on or off."},
	{"_next_congestion", next_congestion, METH_VARARGS, "The next congestion event."},
	{"_request", request, METH_VARARGS, "Sends, and waits for the next datagram from there."},
	{"_info", info, METH_NOARGS, "(local address, daemon instance, connected, errno of its end)"},
	{"_tend", tend, METH_NOARGS, "Binds again when that is due."},
	{"_fd", descriptor, METH_NOARGS, "A descriptor for an event loop."},
	{"_arm", arm, METH_O, "Before a loop sleeps."},
	{"_disarm", disarm, METH_NOARGS, "After it woke."},
	{NULL, NULL, 0, NULL},
};
