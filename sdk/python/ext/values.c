/* Between Python's values and the library's: addresses, timeouts, payloads. */
#include <arpa/inet.h>

#include "rings.h"

static PyObject *address_type, *address_of_fn, *make_address_fn, *as_bytes_fn, *seconds_fn;

/* Names of destinations that were asked for before, each with its rdsd_addr as bytes. */
static PyObject *names;
enum { MAX_NAMES = 4096 };

/* Addresses that were seen, by their hash. */
enum { SEEN = 1024 };
static struct {
	rdsd_addr addr;
	PyObject *object;
} seen[SEEN];

int values_setup(PyObject *address, PyObject *address_of, PyObject *make_address, PyObject *as_bytes, PyObject *seconds)
{
	names = PyDict_New();
	address_type = Py_NewRef(address);
	address_of_fn = Py_NewRef(address_of);
	make_address_fn = Py_NewRef(make_address);
	as_bytes_fn = Py_NewRef(as_bytes);
	seconds_fn = Py_NewRef(seconds);
	return names ? 0 : -1;
}

static int from_bytes(PyObject *packed, rdsd_addr *to)
{
	char *data;
	Py_ssize_t n;

	if (PyBytes_AsStringAndSize(packed, &data, &n) < 0)
		return -1;
	if (n != sizeof *to) {
		PyErr_Format(PyExc_SystemError, "an address of %zd bytes", n);
		return -1;
	}
	memcpy(to, data, sizeof *to);
	return 0;
}

int get_address(PyObject *name, rdsd_addr *to)
{
	PyObject *packed = PyObject_CallFunctionObjArgs(address_of_fn, name, Py_False, NULL);
	int err;

	if (!packed)
		return -1;
	err = from_bytes(packed, to);
	Py_DECREF(packed);
	return err;
}

int get_destination(Handle *h, PyObject *name, rdsd_addr *to)
{
	PyObject *packed;
	int err;

	if (name == h->to_name) {
		*to = h->to;
		return 0;
	}
	packed = PyDict_GetItemWithError(names, name);
	if (packed) {
		Py_INCREF(packed);
	} else {
		bool hashable = !PyErr_Occurred();

		if (!hashable) {
			if (!PyErr_ExceptionMatches(PyExc_TypeError))
				return -1;
			PyErr_Clear();
		}
		packed = PyObject_CallFunctionObjArgs(address_of_fn, name, Py_True, NULL);
		if (!packed)
			return -1;
		if (hashable) {
			if (PyDict_Size(names) >= MAX_NAMES)
				PyDict_Clear(names);
			if (PyDict_SetItem(names, name, packed) < 0) {
				Py_DECREF(packed);
				return -1;
			}
		}
	}
	err = from_bytes(packed, to);
	Py_DECREF(packed);
	if (err)
		return -1;
	/* What cannot change means the same the next time. */
	if (PyTuple_Check(name) || PyUnicode_CheckExact(name)) {
		PyObject *old = h->to_name;

		h->to = *to;
		h->to_name = Py_NewRef(name);
		Py_XDECREF(old);
	}
	return 0;
}

PyObject *new_pair(PyObject *type, PyObject *first, PyObject *second)
{
	static newfunc tuple_new; /* what Datagram(...) ends in */
	PyObject *pair = PyTuple_Pack(2, first, second), *args = pair ? PyTuple_Pack(1, pair) : NULL, *made;

	Py_XDECREF(pair);
	if (!args)
		return NULL;
	if (!tuple_new)
		tuple_new = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
	made = tuple_new((PyTypeObject *)type, args, NULL);
	Py_DECREF(args);
	return made;
}

/*
 * make_address runs no Python code, where a handler of a signal could raise: the datagram that
 * came from there would be missing. But where an IPv6 address has an IPv4 one in it, which
 * Python writes in a way of its own: a daemon names none.
 */
static PyObject *make_address(const rdsd_addr *from)
{
	char text[INET6_ADDRSTRLEN];
	PyObject *host, *port, *address;

	inet_ntop(from->family == 6 ? AF_INET6 : AF_INET, from->ip, text, sizeof text);
	if (from->family == 6 && strchr(text, '.'))
		return PyObject_CallFunction(make_address_fn, "y#i", (const char *)from->ip, (Py_ssize_t)16, (int)from->port);
	host = PyUnicode_FromString(text);
	port = PyLong_FromLong(from->port);
	address = host && port ? new_pair(address_type, host, port) : NULL;
	Py_XDECREF(host);
	Py_XDECREF(port);
	return address;
}

PyObject *new_address(const rdsd_addr *from)
{
	uint64_t x[2];
	uint32_t p;
	size_t i;
	PyObject *object, *old;

	memcpy(x, from->ip, 16);
	memcpy(&p, (const uint8_t *)from + 16, 4);
	i = (size_t)(((x[0] ^ x[1] ^ (uint64_t)p << 17) * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % SEEN;
	if (seen[i].object && rdsd_addr_equal(&seen[i].addr, from))
		return Py_NewRef(seen[i].object);
	object = make_address(from);
	if (!object)
		return NULL;
	old = seen[i].object;
	seen[i].addr = *from;
	seen[i].object = Py_NewRef(object);
	Py_XDECREF(old);
	return object;
}

int get_timeout(PyObject *value, int64_t *ns)
{
	double seconds;

	*ns = RDSD_FOREVER;
	if (!value || value == Py_None)
		return 0;
	if (PyFloat_CheckExact(value) || PyLong_CheckExact(value)) {
		seconds = PyFloat_AsDouble(value);
		if (seconds == -1.0 && PyErr_Occurred())
			return -1;
	} else {
		seconds = -1;
	}
	if (!(seconds >= 0)) { /* a timedelta; negative; not a number */
		PyObject *plain = PyObject_CallFunctionObjArgs(seconds_fn, value, NULL);

		if (!plain)
			return -1;
		if (plain == Py_None) {
			Py_DECREF(plain);
			return 0;
		}
		seconds = PyFloat_AsDouble(plain);
		Py_DECREF(plain);
		if (seconds == -1.0 && PyErr_Occurred())
			return -1;
	}
	if (seconds < 1e9) /* 30 years; more is for ever */
		*ns = (int64_t)(seconds * 1e9);
	return 0;
}

int payload_get(struct payload *p, PyObject *object)
{
	char *data;
	Py_ssize_t n;

	p->view.obj = NULL;
	p->object = NULL;
	if (!PyBytes_CheckExact(object)) {
		if (PyObject_GetBuffer(object, &p->view, PyBUF_SIMPLE) == 0) {
			p->data = p->view.buf;
			p->len = (size_t)p->view.len;
			return 0;
		}
		/* Not contiguous, or none at all: Python copies it, or says what is wrong. */
		PyErr_Clear();
		p->view.obj = NULL;
		object = PyObject_CallFunctionObjArgs(as_bytes_fn, object, NULL);
		if (!object)
			return -1;
		p->object = object;
	} else {
		p->object = Py_NewRef(object);
	}
	if (PyBytes_AsStringAndSize(p->object, &data, &n) < 0) {
		Py_CLEAR(p->object);
		return -1;
	}
	p->data = data;
	p->len = (size_t)n;
	return 0;
}

void payload_put(struct payload *p)
{
	if (p->view.obj)
		PyBuffer_Release(&p->view);
	Py_CLEAR(p->object);
}
