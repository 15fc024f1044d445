/*
 * What the files of the extension module rdsd._rings share.
 *
 * The module wraps sdk/c, whose sources are compiled into it. It is built for
 * the stable ABI of Python 3.11, so one build serves every later version.
 *
 * Holding the interpreter lock (GIL). A call first tries without waiting, with
 * the lock held: that takes well under a microsecond, and letting go of it would
 * cost more. Only what waits, for room, for something to receive or for the
 * daemon's answer, lets go of it. So nothing done with the lock held may wait for
 * the daemon (flow_known).
 *
 * Signals. A wait ends when a signal handler ran, or after a moment in the main
 * thread, which alone runs Python's handlers: one that came just before the wait
 * would otherwise be seen at its end only. So does one in a thread that waits for a
 * task of an event loop (set_unwanted), which may be cancelled meanwhile.
 */
#ifndef RDSD_PYTHON_RINGS_H
#define RDSD_PYTHON_RINGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "rdsd.h"

/* A socket. The Python classes over it are subclasses. */
typedef struct {
	PyObject_HEAD
	rdsd_client *client;
	rdsd_socket *sock; /* NULL before bind */
	unsigned process;  /* rdsdi_process when it was bound */
	/* The last destination: the object that named it, and what it means. */
	PyObject *to_name;
	rdsd_addr to;
} Handle;

/* Of the module: what Python gave to setup. */
extern PyObject *datagram_type;

/* values.c: between Python's values and C's. -1 or NULL: an exception is set. */
int values_setup(PyObject *address, PyObject *address_of, PyObject *make_address, PyObject *as_bytes, PyObject *seconds);
int get_destination(Handle *h, PyObject *name, rdsd_addr *to);
int get_address(PyObject *name, rdsd_addr *to);
PyObject *new_address(const rdsd_addr *from);
/* A Datagram or an Address of these, without any Python code. */
PyObject *new_pair(PyObject *type, PyObject *first, PyObject *second);
int get_timeout(PyObject *value, int64_t *ns); /* None or NULL: RDSD_FOREVER */

/* The bytes of a payload, held until they are let go. */
struct payload {
	const void *data;
	size_t len;
	PyObject *object; /* of bytes */
	Py_buffer view;   /* of anything else, when view.obj */
};
int payload_get(struct payload *p, PyObject *object);
void payload_put(struct payload *p);

/* errors.c */
int errors_setup(PyObject *from_errno, PyObject *forked, PyObject *batch_error);
PyObject *fail(Handle *h, int64_t err); /* raises; NULL */
PyObject *fail_to(Handle *h, int64_t err, PyObject *to); /* as fail, of a send: a refusal is remembered */
PyObject *error_of(int err, const char *text);
PyObject *refuse(const char *format, ...); /* InvalidArgument; NULL */
PyObject *raise_batch(PyObject *errors, PyObject *tags);

/* handle.c */
#define CHECK_OPEN(h)                                                                                                  \
	do {                                                                                                           \
		if (!(h)->sock) {                                                                                      \
			PyErr_SetString(PyExc_RuntimeError, "the socket was never bound");                             \
			return NULL;                                                                                   \
		}                                                                                                      \
	} while (0)

/* What a call may wait for: those errors go away by themselves. */
static inline bool blocked(int64_t err)
{
	return err == -EAGAIN || err == -ENOBUFS || err == -ESHUTDOWN;
}

/* later says whether what a call met goes away by itself: a daemon that is gone comes back, unless the socket is over. */
static inline bool later(const Handle *h, int64_t err)
{
	return blocked(err) && (err != -ESHUTDOWN || !atomic_load(&h->sock->over));
}

/* too_late is what a call without time says of what it would have to wait for, in the words of what that is. */
static inline int64_t too_late(const Handle *h, int64_t err)
{
	return later(h, err) ? -ETIMEDOUT : err;
}

/*
 * A call of the library that is a part of one send, which counts as one: between these.
 * whole: what that send says of itself, or NULL. With the interpreter lock only where
 * nothing is waited for.
 */
static inline PyThreadState *part_begin(struct rdsdi_jam *whole, bool with_lock)
{
	PyThreadState *t = with_lock ? NULL : PyEval_SaveThread();

	rdsdi_jam_whole = whole;
	return t;
}

static inline void part_end(PyThreadState *t)
{
	rdsdi_jam_whole = NULL;
	if (t)
		PyEval_RestoreThread(t);
}

/* One wait in slices. */
struct wait {
	int64_t deadline, slice;
};
void wait_begin(struct wait *w, int64_t timeout);
/* The next slice is for another call: of what is left. */
void wait_rest(struct wait *w);
/* After a slice: 1 another one is due, 0 the result stands, -1 an exception is set. */
int wait_again(struct wait *w, int64_t result);

/*
 * A call of the library that is made once, whatever signals come: between these. It sleeps in
 * slices itself (rdsdi_interrupted). false: a handler raised.
 */
PyThreadState *once_begin(void);
bool once_end(PyThreadState *t);

/* Arguments of a METH_FASTCALL | METH_KEYWORDS method, by name; missing ones become NULL. */
int arguments(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const char *const *names,
	      Py_ssize_t required, Py_ssize_t count, PyObject **out);

#define FAST PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames
#define FAST_METHOD(name, function, doc)                                                                               \
	{name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS, doc}

/* send.c, receive.c, control.c: methods of Handle */
extern PyMethodDef send_methods[], receive_methods[], control_methods[];

/* memory.c: payloads in place */
int memory_setup(PyObject *module);
/* A read-only memoryview of a received datagram, which it takes over. */
PyObject *loan_view(Handle *h, rdsd_msg *msg);
PyObject *reserve(PyObject *self, FAST);

#endif
