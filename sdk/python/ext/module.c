/* The module rdsd._rings and the life of its sockets. */
#include "rings.h"

PyObject *datagram_type;

static unsigned long main_thread;

/* Of a thread that waits for a task: true once nobody waits for the task any more. */
static _Thread_local PyObject *unwanted;

static bool is_unwanted(void)
{
	return unwanted && PyObject_IsTrue(unwanted);
}

/* Waiting */

#define REPLIES 0x80000000u /* not of the library: the socket is a reply port (_requests.py) */

enum { SLICE = 200000000 }; /* ns; see rings.h, Signals */

void wait_begin(struct wait *w, int64_t timeout)
{
	w->deadline = rdsdi_deadline(timeout);
	wait_rest(w);
}

void wait_rest(struct wait *w)
{
	int64_t left = w->deadline - rdsdi_now();

	w->slice = w->deadline == INT64_MAX ? RDSD_FOREVER : left > 0 ? left : 1;
	if ((unwanted || PyThread_get_thread_ident() == main_thread) && (w->slice < 0 || w->slice > SLICE))
		w->slice = SLICE;
}

int wait_again(struct wait *w, int64_t result)
{
	if (result != -EINTR && result != -ETIMEDOUT)
		return 0;
	if (PyErr_CheckSignals() < 0)
		return -1;
	if ((w->deadline <= rdsdi_now() && result != -EINTR) || is_unwanted())
		return 0;
	wait_rest(w);
	return 1;
}

/*
 * handled runs the handlers of the signals that came; false: one raised, or the call is
 * unwanted. Without an EINTR only the main thread looks for signals.
 */
static bool handled(int err)
{
	PyGILState_STATE lock;
	bool goes_on;

	if (err != EINTR && !unwanted && PyThread_get_thread_ident() != main_thread)
		return true;
	lock = PyGILState_Ensure();
	rdsdi_interrupted = NULL; /* for what a handler calls */
	goes_on = !PyErr_CheckSignals() && !is_unwanted();
	rdsdi_interrupted = handled;
	PyGILState_Release(lock);
	return goes_on;
}

PyThreadState *once_begin(void)
{
	rdsdi_interrupted = handled;
	return PyEval_SaveThread();
}

bool once_end(PyThreadState *t)
{
	rdsdi_interrupted = NULL;
	PyEval_RestoreThread(t);
	return !PyErr_Occurred();
}

int arguments(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const char *const *names,
	      Py_ssize_t required, Py_ssize_t count, PyObject **out)
{
	Py_ssize_t i, k, named = kwnames ? PyTuple_Size(kwnames) : 0;

	if (nargs > count) {
		PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments (%zd given)", method, count, nargs);
		return -1;
	}
	for (i = 0; i < count; i++)
		out[i] = i < nargs ? args[i] : NULL;
	for (k = 0; k < named; k++) {
		PyObject *name = PyTuple_GetItem(kwnames, k);

		for (i = 0; i < count && PyUnicode_CompareWithASCIIString(name, names[i]); i++)
			;
		if (i == count || out[i]) {
			PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", method,
				     i == count ? "an unexpected keyword" : "multiple values for", name);
			return -1;
		}
		out[i] = args[nargs + k];
	}
	for (i = 0; i < required; i++)
		if (!out[i]) {
			PyErr_Format(PyExc_TypeError, "%s() is missing its argument '%s'", method, names[i]);
			return -1;
		}
	return 0;
}

/* Life of a socket */

static PyObject *bind_socket(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"path",	 "local", "send_buffer", "recv_buffer", "label",
				"flags", "spin",  "timeout",	 NULL};
	Handle *h = (Handle *)self;
	rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT;
	const char *path;
	PyObject *local, *timeout;
	unsigned long long send_buffer, recv_buffer;
	long long spin;
	unsigned flags;
	rdsd_client *client;
	rdsd_socket *sock;
	rdsd_addr addr;
	PyThreadState *t;
	int64_t ns;
	bool whole;
	int err;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOKKsILO", names, &path, &local, &send_buffer, &recv_buffer, &o.label,
					 &flags, &spin, &timeout))
		return NULL;
	if (h->sock) {
		PyErr_SetString(PyExc_RuntimeError, "the socket is bound already");
		return NULL;
	}
	if (get_address(local, &addr) < 0 || get_timeout(timeout, &ns) < 0)
		return NULL;
	o.send_buffer = send_buffer;
	o.recv_buffer = recv_buffer;
	o.flags = (flags & ~REPLIES) | RDSD_INTERRUPTIBLE;
	o.spin = spin;
	err = rdsd_client_open(path, &client);
	if (err)
		return fail(h, err);
	o.timeout = ns < 0 ? INT64_MAX : ns ? ns : 1;
	t = once_begin();
	err = rdsd_bind(client, &addr, &o, &sock);
	whole = once_end(t);
	if (err) {
		PyObject *none = whole ? fail(h, err) : NULL;

		rdsd_client_close(client);
		return none;
	}
	sock->replies = flags & REPLIES;
	h->client = client;
	h->sock = sock;
	h->process = rdsdi_process;
	Py_RETURN_NONE;
}

static PyObject *shutdown_socket(PyObject *self, PyObject *unused)
{
	Handle *h = (Handle *)self;

	(void)unused;
	if (h->sock && h->process == rdsdi_process) {
		Py_BEGIN_ALLOW_THREADS
		rdsd_shutdown(h->sock);
		Py_END_ALLOW_THREADS
	}
	Py_RETURN_NONE;
}

static PyObject *new_handle(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	(void)args;
	(void)kwargs;
	return alloc(type, 0);
}

static void free_handle(PyObject *self)
{
	Handle *h = (Handle *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	if (h->sock) {
		PyObject *kind, *value, *trace;

		PyErr_Fetch(&kind, &value, &trace);
		Py_BEGIN_ALLOW_THREADS
		rdsd_close(h->sock);
		rdsd_client_close(h->client);
		Py_END_ALLOW_THREADS
		PyErr_Restore(kind, value, trace);
	}
	Py_CLEAR(h->to_name);
	release(self);
	Py_DECREF(type);
}

static PyMethodDef life_methods[] = {
	{"_bind", (PyCFunction)(void (*)(void))bind_socket, METH_VARARGS | METH_KEYWORDS, "Binds the socket; once."},
	{"_shutdown", shutdown_socket, METH_NOARGS, "Ends the socket for all threads."},
	{NULL, NULL, 0, NULL},
};

/* The module */

static PyObject *setup(PyObject *module, PyObject *args)
{
	PyObject *datagram, *address, *address_of, *make_address, *as_bytes, *seconds, *from_errno, *forked, *batch_error;

	(void)module;
	if (!PyArg_ParseTuple(args, "OOOOOOOOOk", &datagram, &address, &address_of, &make_address, &as_bytes, &seconds, &from_errno,
			      &forked, &batch_error, &main_thread))
		return NULL;
	datagram_type = Py_NewRef(datagram);
	if (values_setup(address, address_of, make_address, as_bytes, seconds) < 0 || errors_setup(from_errno, forked, batch_error) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *set_unwanted(PyObject *module, PyObject *flag)
{
	PyObject *old = unwanted;

	(void)module;
	unwanted = flag == Py_None ? NULL : Py_NewRef(flag);
	Py_XDECREF(old);
	Py_RETURN_NONE;
}

static PyObject *set_main_thread(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	main_thread = PyThread_get_thread_ident();
	Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
	{"set_main_thread", set_main_thread, METH_NOARGS, "In a forked child: this thread runs the handlers of signals."},
	{"set_unwanted", set_unwanted, METH_O,
	 "The calls of this thread end soon after this list is not empty any more; None: as they would."},
	{"setup", setup, METH_VARARGS,
	 "setup(datagram, address, address_of, make_address, as_bytes, seconds, from_errno, forked, batch_error, main_thread)"},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, "rdsd._rings", "Sockets over the daemon's shared-memory rings.", -1, module_methods,
	NULL, NULL, NULL, NULL,
};

/* One table of all methods of a Handle. */
static PyMethodDef *all_methods(void)
{
	static PyMethodDef all[64];
	PyMethodDef *parts[] = {life_methods, send_methods, receive_methods, control_methods};
	size_t n = 0;

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		for (PyMethodDef *m = parts[i]; m->ml_name; m++)
			all[n++] = *m;
	return all;
}

PyMODINIT_FUNC PyInit__rings(void);

PyMODINIT_FUNC PyInit__rings(void)
{
	PyType_Slot slots[] = {
		{Py_tp_new, (void *)new_handle},
		{Py_tp_dealloc, (void *)free_handle},
		{Py_tp_methods, all_methods()},
		{0, NULL},
	};
	PyType_Spec spec = {"rdsd._rings.Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
	PyObject *module = PyModule_Create(&definition), *type;

	if (!module)
		return NULL;
	type = PyType_FromSpec(&spec);
	if (!type || PyModule_AddObjectRef(module, "Handle", type) < 0 || memory_setup(module) < 0 ||
	    PyModule_AddIntConstant(module, "OUTCOMES", RDSD_OUTCOMES) < 0 ||
	    PyModule_AddIntConstant(module, "NO_RECONNECT", RDSD_NO_RECONNECT) < 0 ||
	    PyModule_AddIntConstant(module, "REPLIES", REPLIES) < 0 ||
	    PyModule_AddIntConstant(module, "READABLE", RDSD_READABLE) < 0 ||
	    PyModule_AddIntConstant(module, "BORROWED", RDSD_BORROWED) < 0 ||
	    PyModule_AddIntConstant(module, "WRITABLE", RDSD_WRITABLE) < 0 ||
	    PyModule_AddIntConstant(module, "OUTCOME", RDSD_OUTCOME) < 0 ||
	    PyModule_AddIntConstant(module, "CONGESTION", RDSD_CONGESTION) < 0 ||
	    PyModule_AddStringConstant(module, "LIBRARY_VERSION", rdsd_version()) < 0) {
		Py_XDECREF(type);
		Py_DECREF(module);
		return NULL;
	}
	Py_DECREF(type);
	return module;
}
