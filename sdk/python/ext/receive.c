/* Receiving, copied or in place. */
#include "rings.h"

enum { CHUNK = 256 }; /* datagrams taken from the library at once */

static PyObject *new_datagram(const rdsd_msg *m)
{
	PyObject *from = new_address(&m->from), *payload, *datagram;

	if (!from)
		return NULL;
	payload = PyBytes_FromStringAndSize(m->data, (Py_ssize_t)m->len);
	datagram = payload ? new_pair(datagram_type, from, payload) : NULL;
	Py_DECREF(from);
	Py_XDECREF(payload);
	return datagram;
}

/* What is lent may be in the way of what is to come: the copying calls wait, the lending ones say so. */
typedef ssize_t (*receive_fn)(rdsd_socket *, rdsd_msg *, size_t, int64_t);

#define RAISED PY_SSIZE_T_MIN

/* wait_for waits for at least one datagram. Its number, a negative errno, or RAISED: an exception is set. */
static Py_ssize_t wait_for(Handle *h, receive_fn receive, rdsd_msg *msgs, size_t n, int64_t timeout)
{
	ssize_t got = receive(h->sock, msgs, n, RDSD_NOWAIT);

	if (got == -EAGAIN || got == -ESHUTDOWN || got == -EINTR) {
		struct wait w;
		int again;

		wait_begin(&w, timeout);
		do {
			Py_BEGIN_ALLOW_THREADS
			got = receive(h->sock, msgs, n, w.slice);
			Py_END_ALLOW_THREADS
			again = wait_again(&w, got);
		} while (again > 0);
		if (again < 0)
			return RAISED;
	}
	return got;
}

/* take is wait_for where every error is raised: -1. */
static Py_ssize_t take(Handle *h, receive_fn receive, rdsd_msg *msgs, size_t n, int64_t timeout)
{
	Py_ssize_t got = wait_for(h, receive, msgs, n, timeout);

	if (got >= 0)
		return got;
	if (got != RAISED)
		fail(h, got);
	return -1;
}

static PyObject *copy_out(rdsd_msg *msg)
{
	PyObject *datagram = new_datagram(msg);

	rdsd_release(msg, 1);
	return datagram;
}

static PyObject *recv_one(PyObject *self, FAST)
{
	static const char *const names[] = {"timeout"};
	Handle *h = (Handle *)self;
	PyObject *timeout;
	rdsd_msg msg;
	int64_t ns;

	if (arguments("recv", args, nargs, kwnames, names, 0, 1, &timeout) < 0 || get_timeout(timeout, &ns) < 0)
		return NULL;
	CHECK_OPEN(h);
	return take(h, rdsdi_recv_copied, &msg, 1, ns) < 0 ? NULL : copy_out(&msg);
}

/* buffer_and_source is what recv_into returns, and gives the datagram back. */
static PyObject *buffer_and_source(Py_buffer *view, rdsd_msg *msg)
{
	Py_ssize_t n = (Py_ssize_t)msg->len;
	PyObject *from;

	if (n)
		memcpy(view->buf, msg->data, msg->len);
	from = new_address(&msg->from);
	rdsd_release(msg, 1);
	return from ? Py_BuildValue("(nN)", n, from) : NULL;
}

/* For iter(): one at a time, so that whoever leaves the iteration loses nothing. */
static PyObject *next_datagram(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;
	Py_ssize_t got;
	rdsd_msg msg;

	(void)unused;
	CHECK_OPEN(h);
	got = wait_for(h, rdsdi_recv_copied, &msg, 1, RDSD_FOREVER);
	if (got >= 0)
		return copy_out(&msg);
	if (got == -EBADF && h->process == rdsdi_process)
		Py_RETURN_NONE;
	return got == RAISED ? NULL : fail(h, got);
}

static PyObject *recv_into(PyObject *self, FAST)
{
	static const char *const names[] = {"buffer", "timeout"};
	Handle *h = (Handle *)self;
	PyObject *a[2], *result = NULL;
	Py_buffer view;
	rdsd_msg msg;
	int64_t ns;

	if (arguments("recv_into", args, nargs, kwnames, names, 1, 2, a) < 0 || get_timeout(a[1], &ns) < 0)
		return NULL;
	CHECK_OPEN(h);
	/* Held while waiting: its owner cannot resize it meanwhile. */
	if (PyObject_GetBuffer(a[0], &view, PyBUF_WRITABLE) < 0)
		return NULL;
	if (take(h, rdsdi_recv_fitting, &msg, (size_t)view.len, ns) >= 0)
		result = buffer_and_source(&view, &msg);
	PyBuffer_Release(&view);
	return result;
}

static PyObject *recv_into_now(PyObject *self, PyObject *buffer)
{
	Handle *h = (Handle *)self;
	PyObject *result = NULL;
	Py_buffer view;
	rdsd_msg msg;
	ssize_t got;

	CHECK_OPEN(h);
	if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0)
		return NULL;
	got = rdsdi_recv_fitting(h->sock, &msg, (size_t)view.len, RDSD_NOWAIT);
	if (got > 0)
		result = buffer_and_source(&view, &msg);
	else if (got == -EAGAIN || got == -ESHUTDOWN)
		result = Py_NewRef(Py_None);
	else
		fail(h, got);
	PyBuffer_Release(&view);
	return result;
}

static int get_limit(PyObject *value, Py_ssize_t *limit)
{
	*limit = value ? PyLong_AsSsize_t(value) : 256;
	if (*limit == -1 && PyErr_Occurred()) {
		if (!PyErr_ExceptionMatches(PyExc_OverflowError))
			return -1;
		PyErr_Clear(); /* out of range, like others */
	}
	if (*limit < 1 || *limit > INT32_MAX) {
		refuse("limit %S: want 1 to 2147483647", value);
		return -1;
	}
	return 0;
}

#define NOW INT64_MIN /* do not wait, nothing is an answer */

/* fill appends up to limit datagrams, the first of which it waits for. */
static int fill(Handle *h, PyObject *list, Py_ssize_t limit, int64_t timeout, PyObject *(*make)(Handle *, rdsd_msg *),
		bool release)
{
	receive_fn receive = release ? rdsdi_recv_copied : rdsd_recv_batch;
	rdsd_msg msgs[CHUNK];
	Py_ssize_t got, i;

	for (; limit > 0; limit -= got, timeout = NOW) {
		Py_ssize_t n = limit < CHUNK ? limit : CHUNK;
		int err = 0;

		if (timeout == NOW) {
			got = receive(h->sock, msgs, (size_t)n, RDSD_NOWAIT);
			if (got == -EAGAIN || got == -ESHUTDOWN || (got < 0 && PyList_Size(list)))
				return 0;
			if (got < 0)
				fail(h, got);
		} else {
			got = take(h, receive, msgs, (size_t)n, timeout);
		}
		if (got < 0)
			return -1;
		for (i = 0; i < got && !err; i++) {
			PyObject *item = make(h, &msgs[i]);

			err = item ? PyList_Append(list, item) : -1;
			Py_XDECREF(item);
		}
		if (release)
			rdsd_release(msgs, (size_t)got);
		else
			rdsd_release(msgs + i, (size_t)(got - i));
		if (err)
			return -1;
		if (got < n)
			return 0;
	}
	return 0;
}

static PyObject *copied(Handle *h, rdsd_msg *m)
{
	(void)h;
	return new_datagram(m);
}

static PyObject *in_place(Handle *h, rdsd_msg *m)
{
	rdsd_addr from = m->from;
	PyObject *view = loan_view(h, m), *addr, *pair;

	if (!view)
		return NULL;
	addr = new_address(&from);
	pair = addr ? PyTuple_Pack(2, addr, view) : NULL;
	Py_XDECREF(addr);
	Py_DECREF(view);
	return pair;
}

static PyObject *many(PyObject *self, FAST, const char *method, PyObject *(*make)(Handle *, rdsd_msg *), bool release)
{
	static const char *const names[] = {"limit", "timeout"};
	Handle *h = (Handle *)self;
	PyObject *a[2], *list;
	Py_ssize_t limit;
	int64_t ns;

	if (arguments(method, args, nargs, kwnames, names, 0, 2, a) < 0 || get_limit(a[0], &limit) < 0 ||
	    get_timeout(a[1], &ns) < 0)
		return NULL;
	CHECK_OPEN(h);
	list = PyList_New(0);
	if (list && fill(h, list, limit, ns, make, release) < 0)
		Py_CLEAR(list);
	return list;
}

static PyObject *recv_batch(PyObject *self, FAST)
{
	return many(self, args, nargs, kwnames, "recv_batch", copied, true);
}

static PyObject *borrow_pairs(PyObject *self, FAST)
{
	return many(self, args, nargs, kwnames, "borrow", in_place, false);
}

/* What is there now, possibly nothing: for event loops. */
static PyObject *now(PyObject *self, PyObject *value, PyObject *(*make)(Handle *, rdsd_msg *), bool release)
{
	Handle *h = (Handle *)self;
	Py_ssize_t limit;
	PyObject *list;

	CHECK_OPEN(h);
	if (get_limit(value, &limit) < 0)
		return NULL;
	list = PyList_New(0);
	if (list && fill(h, list, limit, NOW, make, release) < 0)
		Py_CLEAR(list);
	return list;
}

static PyObject *recv_now(PyObject *self, PyObject *value)
{
	return now(self, value, copied, true);
}

static PyObject *borrow_now(PyObject *self, PyObject *value)
{
	return now(self, value, in_place, false);
}

static PyObject *peek(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;
	size_t size;
	int there;

	(void)unused;
	CHECK_OPEN(h);
	there = rdsd_peek(h->sock, &size);
	if (there < 0)
		return fail(h, there);
	if (!there)
		Py_RETURN_NONE;
	return PyLong_FromSize_t(size);
}

PyMethodDef receive_methods[] = {
	FAST_METHOD("recv", recv_one, "The next datagram."),
	{"_next", next_datagram, METH_NOARGS, "The next datagram, None once the socket is closed."},
	FAST_METHOD("recv_into", recv_into, "The next datagram, copied to a buffer: its bytes and its source."),
	FAST_METHOD("recv_batch", recv_batch, "At least one datagram, and up to limit of those that are there."),
	FAST_METHOD("_borrow", borrow_pairs, "As recv_batch, as pairs of an address and a memoryview in place."),
	{"_recv_now", recv_now, METH_O, "Up to so many datagrams that are there, possibly none."},
	{"_recv_into_now", recv_into_now, METH_O, "recv_into of a datagram that is there; None when none is."},
	{"_borrow_now", borrow_now, METH_O, "The same in place."},
	{"_peek", peek, METH_NOARGS, "Bytes of the next datagram, None when none is there."},
	{NULL, NULL, 0, NULL},
};
