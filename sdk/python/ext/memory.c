/*
 * Payloads in memory shared with the daemon: datagrams received in place, and
 * room for one to be sent.
 *
 * Both are objects with a buffer, of which Python code only gets memoryviews. A
 * memoryview, and whatever looks through it, keeps the object alive, so memory
 * goes back to the daemon when the last of them has let go, and never earlier.
 */
#include "rings.h"

static PyObject *loan_type, *room_type;

static void free_object(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	Py_DECREF(type);
}

static PyObject *new_object(PyObject *type)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);

	return alloc((PyTypeObject *)type, 0);
}

/* A received datagram */

typedef struct {
	PyObject_HEAD
	rdsd_msg msg;
	unsigned process;
} Loan;

static int loan_buffer(PyObject *self, Py_buffer *view, int flags)
{
	Loan *l = (Loan *)self;

	return PyBuffer_FillInfo(view, self, (void *)(uintptr_t)l->msg.data, (Py_ssize_t)l->msg.len, 1, flags);
}

static void free_loan(PyObject *self)
{
	Loan *l = (Loan *)self;

	if (l->process == rdsdi_process) /* the memory of a child's parent is not here */
		rdsd_release(&l->msg, 1);
	free_object(self);
}

PyObject *loan_view(Handle *h, rdsd_msg *msg)
{
	Loan *l = (Loan *)new_object(loan_type);
	PyObject *view;

	if (!l) {
		rdsd_release(msg, 1);
		return NULL;
	}
	l->msg = *msg;
	l->process = h->process;
	view = PyMemoryView_FromObject((PyObject *)l);
	Py_DECREF(l);
	return view;
}

/* Room for a datagram */

typedef struct {
	PyObject_HEAD
	Handle *handle;
	rdsd_slot slot;
	Py_ssize_t looking; /* buffers that are out */
	bool spent;
} Room;

static int room_buffer(PyObject *self, Py_buffer *view, int flags)
{
	Room *r = (Room *)self;

	if (r->spent) {
		PyErr_SetString(PyExc_BufferError, "this slot was committed or aborted");
		view->obj = NULL;
		return -1;
	}
	if (PyBuffer_FillInfo(view, self, r->slot.data, (Py_ssize_t)r->slot.size, 0, flags) < 0)
		return -1;
	r->looking++;
	return 0;
}

static void room_unbuffer(PyObject *self, Py_buffer *view)
{
	(void)view;
	((Room *)self)->looking--;
}

static void give_up(Room *r)
{
	if (!r->spent && r->handle->process == rdsdi_process)
		rdsd_abort(r->handle->sock, &r->slot);
	r->spent = true;
}

static void free_room(PyObject *self)
{
	Room *r = (Room *)self;

	if (r->handle) {
		give_up(r);
		Py_CLEAR(r->handle);
	}
	free_object(self);
}

static PyObject *room_commit(PyObject *self, PyObject *size)
{
	Room *r = (Room *)self;
	size_t n = PyLong_AsSize_t(size);
	uint64_t tag;
	int err;

	if (n == (size_t)-1 && PyErr_Occurred())
		return NULL;
	if (r->spent) {
		PyErr_SetString(PyExc_BufferError, "this slot was committed or aborted");
		return NULL;
	}
	if (r->looking) {
		PyErr_SetString(PyExc_BufferError, "something still looks at this slot: let go of it before commit");
		return NULL;
	}
	if (r->handle->process != rdsdi_process)
		return fail(r->handle, -EBADF);
	r->spent = true;
	err = rdsd_commit(r->handle->sock, &r->slot, n, &tag);
	return err ? fail(r->handle, err) : PyLong_FromUnsignedLongLong(tag);
}

static PyObject *room_abort(PyObject *self, PyObject *unused)
{
	Room *r = (Room *)self;

	(void)unused;
	if (r->looking) {
		PyErr_SetString(PyExc_BufferError, "something still looks at this slot: let go of it before abort");
		return NULL;
	}
	give_up(r);
	Py_RETURN_NONE;
}

PyObject *reserve(PyObject *self, FAST)
{
	static const char *const names[] = {"dst", "size", "timeout", "wait"};
	Handle *h = (Handle *)self;
	PyObject *a[4];
	struct rdsdi_jam jam = {0};
	PyThreadState *t;
	struct wait w;
	Py_ssize_t size;
	rdsd_addr to;
	rdsd_slot slot;
	int64_t ns;
	Room *r;
	int err, again, wait;
	bool now;

	if (arguments("reserve", args, nargs, kwnames, names, 4, 4, a) < 0 || get_destination(h, a[0], &to) < 0 ||
	    get_timeout(a[2], &ns) < 0)
		return NULL;
	size = PyNumber_AsSsize_t(a[1], NULL); /* beyond all: too large, or below 0 */
	wait = PyObject_IsTrue(a[3]);
	if ((size == -1 && PyErr_Occurred()) || wait < 0)
		return NULL;
	if (size < 0)
		return refuse("size %S: want 0 to %d", a[1], RDSD_MAX_DATAGRAM);
	CHECK_OPEN(h);
	now = !wait || !ns; /* for room: the daemon's verdict on the destination is waited for even then */
	wait_begin(&w, now ? 0 : ns);
	do {
		t = part_begin(now ? NULL : &jam, false);
		err = rdsd_reserve(h->sock, &to, (size_t)size, &slot, now ? RDSD_NOWAIT : w.slice);
		part_end(t);
		again = !now || err == -EINTR ? wait_again(&w, err) : 0;
	} while (again > 0);
	rdsdi_jam_end(&jam, &h->sock->tx);
	if (again < 0)
		return NULL;
	if (wait && now)
		err = (int)too_late(h, err);
	if (err)
		return fail_to(h, err, a[0]);
	r = (Room *)new_object(room_type);
	if (!r) {
		rdsd_abort(h->sock, &slot);
		return NULL;
	}
	r->handle = h;
	Py_INCREF((PyObject *)h);
	r->slot = slot;
	return (PyObject *)r;
}

int memory_setup(PyObject *module)
{
	static PyMethodDef room_methods[] = {
		{"commit", room_commit, METH_O, "Sends so many bytes; the tag."},
		{"abort", room_abort, METH_NOARGS, "Gives the room back unsent."},
		{NULL, NULL, 0, NULL},
	};
	PyType_Slot loan_slots[] = {
		{Py_tp_dealloc, (void *)free_loan}, {Py_bf_getbuffer, (void *)loan_buffer}, {0, NULL}};
	PyType_Slot room_slots[] = {{Py_tp_dealloc, (void *)free_room},
				    {Py_bf_getbuffer, (void *)room_buffer},
				    {Py_bf_releasebuffer, (void *)room_unbuffer},
				    {Py_tp_methods, room_methods},
				    {0, NULL}};
	unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
	PyType_Spec loan = {"rdsd._rings.Loan", sizeof(Loan), 0, flags, loan_slots};
	PyType_Spec room = {"rdsd._rings.Room", sizeof(Room), 0, flags, room_slots};

	loan_type = PyType_FromSpec(&loan);
	room_type = PyType_FromSpec(&room);
	return loan_type && room_type ? PyModule_AddObjectRef(module, "Room", room_type) : -1;
}
