/* Sending: one, many, many of one length. */
#include "rings.h"

/*
 * flow_known says whether a send to a destination would not wait for the
 * daemon: the first one to it does, so it must not be made with the interpreter
 * lock held.
 */
static bool flow_known(Handle *h, const rdsd_addr *to)
{
	struct rdsdi_tx *tx = &h->sock->tx;
	struct rdsdi_flow *f;
	bool known;
	int error;

	if (h->process != rdsdi_process)
		return true; /* it fails at once */
	pthread_mutex_lock(&tx->mu);
	/* Without a region the call itself may be the one that binds again, and then asks. */
	f = !tx->reg ? NULL : tx->last && rdsd_addr_equal(&tx->last->to, to) ? tx->last : rdsdi_flow_find(tx, to);
	known = f && rdsdi_flow_state(tx, f, &error) != STATE_NEW;
	pthread_mutex_unlock(&tx->mu);
	return known;
}

/* One */

static int64_t send_once(Handle *h, const rdsd_addr *to, const struct payload *p, uint64_t *tag, int64_t timeout,
			 struct rdsdi_jam *whole)
{
	PyThreadState *t = part_begin(whole, timeout == RDSD_NOWAIT && flow_known(h, to));
	int err;

	err = rdsd_send(h->sock, to, p->data, p->len, tag, timeout);
	part_end(t);
	return err;
}

/* send_now sends without waiting for room; 0, a negative errno, or 1 with an exception set. */
static int64_t send_now(Handle *h, const rdsd_addr *to, const struct payload *p, uint64_t *tag)
{
	int64_t err;

	do
		err = send_once(h, to, p, tag, RDSD_NOWAIT, NULL);
	while (err == -EINTR && !PyErr_CheckSignals());
	return err == -EINTR ? 1 : err;
}

/* send_waiting sends within a timeout; 0, a negative errno, or 1 with an exception set. */
static int64_t send_waiting(Handle *h, const rdsd_addr *to, const struct payload *p, uint64_t *tag, int64_t timeout)
{
	struct rdsdi_jam jam = {0};
	struct wait w;
	int64_t err;
	int again;

	if (!timeout) /* the daemon's verdict on the destination is waited for even then */
		return too_late(h, send_now(h, to, p, tag));
	err = flow_known(h, to) ? send_once(h, to, p, tag, RDSD_NOWAIT, &jam) : -EAGAIN;
	if (!blocked(err) && err != -EINTR)
		return err;
	wait_begin(&w, timeout);
	do {
		err = send_once(h, to, p, tag, w.slice, &jam);
		again = wait_again(&w, err);
	} while (again > 0);
	rdsdi_jam_end(&jam, &h->sock->tx);
	return again < 0 ? 1 : err;
}

static PyObject *send_one(PyObject *self, FAST)
{
	static const char *const names[] = {"dst", "payload", "timeout"};
	Handle *h = (Handle *)self;
	struct payload p;
	PyObject *a[3];
	rdsd_addr to;
	uint64_t tag;
	int64_t err, ns;

	if (arguments("send", args, nargs, kwnames, names, 2, 3, a) < 0 || get_destination(h, a[0], &to) < 0 ||
	    get_timeout(a[2], &ns) < 0)
		return NULL;
	CHECK_OPEN(h);
	if (payload_get(&p, a[1]) < 0)
		return NULL;
	err = send_waiting(h, &to, &p, &tag, ns);
	payload_put(&p);
	if (err)
		return err < 0 ? fail_to(h, err, a[0]) : NULL;
	return PyLong_FromUnsignedLongLong(tag);
}

static PyObject *try_send(PyObject *self, FAST)
{
	static const char *const names[] = {"dst", "payload"};
	Handle *h = (Handle *)self;
	struct payload p;
	PyObject *a[2];
	rdsd_addr to;
	uint64_t tag;
	int64_t err;

	if (arguments("try_send", args, nargs, kwnames, names, 2, 2, a) < 0 || get_destination(h, a[0], &to) < 0)
		return NULL;
	CHECK_OPEN(h);
	if (payload_get(&p, a[1]) < 0)
		return NULL;
	err = send_now(h, &to, &p, &tag);
	payload_put(&p);
	if (err)
		return err < 0 ? fail_to(h, err, a[0]) : NULL;
	return PyLong_FromUnsignedLongLong(tag);
}

/* Many */

struct batch {
	Py_ssize_t n;
	rdsd_dgram *dgrams;       /* all of them, in order */
	struct payload *payloads; /* of each, or of all if whole */
	bool whole;
	PyObject *items;          /* what was given, as a tuple, for the names of destinations */
	bool known;               /* every destination is */
	Py_ssize_t said, until;   /* for these refused ones the library had words of its own */
	char words[PB_TEXT];
};

/* batch_said keeps what the library said of the refused ones from first on, before until. */
static void batch_said(struct batch *b, Py_ssize_t first, Py_ssize_t until)
{
	b->said = first;
	b->until = until;
	snprintf(b->words, sizeof b->words, "%s", rdsd_errmsg());
}

static void batch_free(struct batch *b)
{
	Py_ssize_t i, held = b->whole ? 1 : b->n;

	for (i = 0; b->payloads && i < held; i++)
		payload_put(&b->payloads[i]); /* nothing, where none was taken */
	free(b->payloads);
	free(b->dgrams);
	Py_CLEAR(b->items);
}

static int batch_alloc(struct batch *b, Py_ssize_t n, Py_ssize_t payloads)
{
	b->n = n;
	b->known = true;
	b->dgrams = calloc((size_t)n + 1, sizeof *b->dgrams);
	b->payloads = calloc((size_t)payloads + 1, sizeof *b->payloads);
	if (!b->dgrams || !b->payloads) {
		PyErr_NoMemory();
		return -1;
	}
	return 0;
}

/* batch_add fills datagram i in. */
static int batch_add(Handle *h, struct batch *b, Py_ssize_t i, PyObject *name, PyObject *payload)
{
	rdsd_dgram *d = &b->dgrams[i];

	if (get_destination(h, name, &d->to) < 0 || payload_get(&b->payloads[i], payload) < 0)
		return -1;
	d->data = b->payloads[i].data;
	d->len = b->payloads[i].len;
	if (b->known && (i == 0 || !rdsd_addr_equal(&d->to, &d[-1].to)))
		b->known = flow_known(h, &d->to);
	return 0;
}

/* batch_of_pairs takes the pairs of a send_batch. */
static int batch_of_pairs(Handle *h, struct batch *b, PyObject *pairs)
{
	Py_ssize_t i, n;

	b->items = PySequence_Tuple(pairs);
	if (!b->items)
		return -1;
	n = PyTuple_Size(b->items);
	if (batch_alloc(b, n, n) < 0)
		return -1;
	for (i = 0; i < n; i++) {
		PyObject *pair = PyTuple_GetItem(b->items, i), *own = NULL;
		int err;

		if (!PyTuple_Check(pair))
			pair = own = PySequence_Tuple(pair);
		if (!pair)
			return -1;
		if (PyTuple_Size(pair) != 2) {
			refuse("datagram %zd of the batch: want a destination and a payload", i);
			Py_XDECREF(own);
			return -1;
		}
		err = batch_add(h, b, i, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
		Py_XDECREF(own);
		if (err)
			return -1;
	}
	return 0;
}

/* batch_of_payloads takes payloads to one destination. */
static int batch_of_payloads(Handle *h, struct batch *b, PyObject *name, PyObject *list)
{
	Py_ssize_t i, n;

	b->items = PySequence_Tuple(list);
	if (!b->items)
		return -1;
	n = PyTuple_Size(b->items);
	if (batch_alloc(b, n, n) < 0)
		return -1;
	for (i = 0; i < n; i++)
		if (batch_add(h, b, i, name, PyTuple_GetItem(b->items, i)) < 0)
			return -1;
	return 0;
}

/* batch_of_buffer cuts one buffer into datagrams of these lengths. */
static int batch_of_buffer(Handle *h, struct batch *b, PyObject *name, PyObject *data, PyObject *lengths)
{
	Py_ssize_t i, n;
	const uint8_t *at;
	rdsd_addr to;
	size_t left;

	b->items = PySequence_Tuple(lengths);
	if (!b->items || get_destination(h, name, &to) < 0)
		return -1;
	n = PyTuple_Size(b->items);
	b->whole = true;
	if (batch_alloc(b, n, 1) < 0 || payload_get(&b->payloads[0], data) < 0)
		return -1;
	b->known = flow_known(h, &to);
	at = b->payloads[0].data;
	left = b->payloads[0].len;
	for (i = 0; i < n; i++) {
		Py_ssize_t len = PyNumber_AsSsize_t(PyTuple_GetItem(b->items, i), NULL);

		if (len == -1 && PyErr_Occurred())
			return -1;
		if (len < 0 || (size_t)len > left)
			break;
		b->dgrams[i] = (rdsd_dgram){.data = at, .len = (size_t)len, .to = to};
		at += len;
		left -= (size_t)len;
	}
	if (i < n || left) {
		refuse("lengths that do not add up to the %zu bytes given", b->payloads[0].len);
		return -1;
	}
	return 0;
}

/* batch_said_first keeps it of the first one, which is what the library speaks of, if that one was refused for good. */
static void batch_said_first(Handle *h, struct batch *b)
{
	Py_ssize_t i = 0;

	while (i < b->n && !b->dgrams[i].error)
		i++;
	if (i < b->n && !later(h, b->dgrams[i].error) && b->dgrams[i].error != -EINTR)
		batch_said(b, i, i + 1);
}

static int batch_once(Handle *h, rdsd_dgram *d, size_t n, int64_t timeout, bool with_lock, struct rdsdi_jam *whole)
{
	PyThreadState *t = part_begin(whole, with_lock);
	ssize_t accepted;

	accepted = rdsd_send_batch(h->sock, d, n, NULL, timeout);
	part_end(t);
	return accepted == (ssize_t)n;
}

/* retry sends again what may be accepted later, in order. -1: an exception is set. */
static int retry(Handle *h, struct batch *b, int64_t timeout, struct rdsdi_jam *jam)
{
	rdsd_dgram *again = malloc((size_t)b->n * sizeof *again);
	size_t *where = malloc((size_t)b->n * sizeof *where), n, i;
	struct wait w;
	int more;

	if (!again || !where) {
		free(again);
		free(where);
		PyErr_NoMemory();
		return -1;
	}
	wait_begin(&w, timeout);
	do {
		int64_t worst = 0;

		for (n = i = 0; i < (size_t)b->n; i++)
			if (later(h, b->dgrams[i].error) || b->dgrams[i].error == -ETIMEDOUT || b->dgrams[i].error == -EINTR) {
				where[n] = i;
				again[n++] = b->dgrams[i];
			}
		if (!n)
			break;
		batch_once(h, again, n, w.slice, false, jam);
		for (i = 0; i < n; i++) {
			b->dgrams[where[i]] = again[i];
			if (again[i].error == -ETIMEDOUT || again[i].error == -EINTR)
				worst = again[i].error;
			else if (later(h, again[i].error) && !worst)
				worst = -ETIMEDOUT;
		}
		more = wait_again(&w, worst);
	} while (more > 0);
	for (i = 0; i < (size_t)b->n; i++)
		if (later(h, b->dgrams[i].error))
			b->dgrams[i].error = -ETIMEDOUT;
	free(again);
	free(where);
	return n && more < 0 ? -1 : 0;
}

/* tags_of makes a range of tags that follow each other, else a tuple; 0 stands for none. */
static PyObject *tags_of(const struct batch *b)
{
	Py_ssize_t i;
	PyObject *tags;

	for (i = 1; i < b->n; i++)
		if (b->dgrams[i].error || b->dgrams[i].tag != b->dgrams[0].tag + (uint64_t)i)
			break;
	if (b->n == 0 || (i == b->n && !b->dgrams[0].error)) {
		unsigned long long first = b->n ? b->dgrams[0].tag : 0;

		return PyObject_CallFunction((PyObject *)&PyRange_Type, "KK", first, first + (unsigned long long)b->n);
	}
	tags = PyTuple_New(b->n);
	for (i = 0; tags && i < b->n; i++) {
		PyObject *tag = PyLong_FromUnsignedLongLong(b->dgrams[i].error ? 0 : b->dgrams[i].tag);

		if (!tag || PyTuple_SetItem(tags, i, tag) < 0)
			Py_CLEAR(tags);
	}
	return tags;
}

static PyObject *name_of(const struct batch *b, Py_ssize_t i, PyObject *only)
{
	PyObject *pair;

	if (only)
		return Py_NewRef(only);
	pair = PyTuple_GetItem(b->items, i);
	return PySequence_GetItem(pair, 0);
}

/* batch_result returns the tags, or raises what was refused. */
static PyObject *batch_result(Handle *h, const struct batch *b, PyObject *only)
{
	PyObject *tags = tags_of(b), *errors = NULL;
	Py_ssize_t i;

	for (i = 0; tags && i < b->n; i++) {
		int err = b->dgrams[i].error;
		PyObject *pair;

		if (!err)
			continue;
		if (err == -ENOBUFS) {
			PyObject *name = name_of(b, i, only);
			PyObject *done = name ? PyObject_CallMethod((PyObject *)h, "_refused", "(O)", name) : NULL;

			Py_XDECREF(name);
			if (!done)
				goto failed;
			Py_DECREF(done);
		}
		if (!errors && !(errors = PyList_New(0)))
			goto failed;
		pair = Py_BuildValue("nN", i, error_of(err, i >= b->said && i < b->until ? b->words : NULL));
		if (!pair || PyList_Append(errors, pair) < 0) {
			Py_XDECREF(pair);
			goto failed;
		}
		Py_DECREF(pair);
	}
	if (!errors)
		return tags;
	raise_batch(errors, tags);
failed:
	Py_XDECREF(errors);
	Py_XDECREF(tags);
	return NULL;
}

/* batch_send sends what was taken, and lets go of it. */
static PyObject *batch_send(Handle *h, struct batch *b, PyObject *only, bool wait, int64_t timeout)
{
	struct rdsdi_jam jam = {0};
	PyObject *result = NULL;
	int err = 0;

	if (b->n && h->process != rdsdi_process) {
		fail(h, -EBADF);
	} else {
		if (b->n && !batch_once(h, b->dgrams, (size_t)b->n, RDSD_NOWAIT, b->known, wait ? &jam : NULL)) {
			batch_said_first(h, b);
			err = wait ? retry(h, b, timeout, &jam) : 0;
		}
		rdsdi_jam_end(&jam, &h->sock->tx);
		if (!err)
			result = batch_result(h, b, only);
	}
	batch_free(b);
	return result;
}

static PyObject *send_batch(PyObject *self, FAST)
{
	static const char *const names[] = {"datagrams", "timeout"};
	Handle *h = (Handle *)self;
	struct batch b = {0};
	PyObject *a[2];
	int64_t ns;

	if (arguments("send_batch", args, nargs, kwnames, names, 1, 2, a) < 0 || get_timeout(a[1], &ns) < 0)
		return NULL;
	CHECK_OPEN(h);
	if (batch_of_pairs(h, &b, a[0]) < 0) {
		batch_free(&b);
		return NULL;
	}
	return batch_send(h, &b, NULL, true, ns);
}

static PyObject *try_send_batch(PyObject *self, FAST)
{
	static const char *const names[] = {"datagrams"};
	Handle *h = (Handle *)self;
	struct batch b = {0};
	PyObject *datagrams;

	if (arguments("try_send_batch", args, nargs, kwnames, names, 1, 1, &datagrams) < 0)
		return NULL;
	CHECK_OPEN(h);
	if (batch_of_pairs(h, &b, datagrams) < 0) {
		batch_free(&b);
		return NULL;
	}
	return batch_send(h, &b, NULL, false, 0);
}

/* Many of one length */

/* run_once returns how many were accepted, or why none was. */
static int64_t run_once(Handle *h, const rdsd_addr *to, const uint8_t *data, size_t len, size_t n, uint64_t *tag,
			int64_t timeout, struct rdsdi_jam *whole)
{
	PyThreadState *t = part_begin(whole, timeout == RDSD_NOWAIT && flow_known(h, to));
	int64_t accepted;

	accepted = rdsd_send_run(h->sock, to, data, len, n, tag, timeout);
	part_end(t);
	return accepted;
}

/*
 * note_run enters what became of a run from done on: how many were accepted, from
 * tag on, or why none was. What may yet be accepted, if waits, is late, unless it is.
 */
static size_t note_run(struct batch *b, size_t done, int64_t accepted, bool waits, uint64_t tag)
{
	size_t i, n = accepted > 0 ? (size_t)accepted : 0;

	for (i = 0; i < n; i++)
		b->dgrams[done + i] = (rdsd_dgram){.tag = tag + i};
	for (i = done + n; i < (size_t)b->n; i++)
		b->dgrams[i].error = accepted < 0 && !waits ? (int32_t)accepted : -ETIMEDOUT;
	if (accepted < 0 && !waits && accepted != -ETIMEDOUT && accepted != -EINTR)
		batch_said(b, done, b->n);
	return done + n;
}

/* run_send sends n datagrams of len bytes each within a timeout. */
static PyObject *run_send(Handle *h, const rdsd_addr *to, PyObject *name, const uint8_t *data, size_t len, size_t n,
			  int64_t timeout)
{
	struct batch b = {.whole = true};
	PyObject *result = NULL;
	struct rdsdi_jam jam = {0};
	struct wait w;
	uint64_t tag = 0;
	int64_t accepted = !timeout || flow_known(h, to) ? run_once(h, to, data, len, n, &tag, RDSD_NOWAIT, &jam) : -EAGAIN;
	bool waits;
	size_t done;
	int again = 1;

	if (accepted == (int64_t)n)
		return PyObject_CallFunction((PyObject *)&PyRange_Type, "KK", (unsigned long long)tag,
					     (unsigned long long)(tag + n));
	if (batch_alloc(&b, (Py_ssize_t)n, 0) < 0)
		goto out;
	waits = later(h, accepted);
	done = note_run(&b, 0, accepted, waits, tag);
	wait_begin(&w, timeout);
	while (again > 0 && (accepted > 0 || waits || accepted == -EINTR || accepted == -ETIMEDOUT)) {
		accepted = run_once(h, to, data + done * len, len, n - done, &tag,
				    !timeout && accepted == -EINTR ? RDSD_NOWAIT : w.slice, &jam);
		waits = later(h, accepted);
		done = note_run(&b, done, accepted, waits, tag);
		if (done == n)
			break;
		again = wait_again(&w, accepted > 0 || waits ? -ETIMEDOUT : accepted);
	}
	if (again >= 0)
		result = batch_result(h, &b, name);
out:
	rdsdi_jam_end(&jam, &h->sock->tx);
	batch_free(&b);
	return result;
}

static PyObject *send_run(PyObject *self, FAST)
{
	static const char *const names[] = {"dst", "data", "lengths", "timeout"};
	Handle *h = (Handle *)self;
	struct batch b = {0};
	struct payload p;
	PyObject *a[4], *result;
	rdsd_addr to;
	Py_ssize_t len;
	int64_t ns;
	int err;

	if (arguments("send_run", args, nargs, kwnames, names, 2, 4, a) < 0 || get_timeout(a[3], &ns) < 0 ||
	    get_destination(h, a[0], &to) < 0)
		return NULL;
	CHECK_OPEN(h);
	if (!a[2] || a[2] == Py_None) {
		if (!PyList_Check(a[1]) && !PyTuple_Check(a[1]))
			return refuse("send_run: want a list of payloads, or a buffer and lengths");
		err = batch_of_payloads(h, &b, a[0], a[1]);
	} else if (!PyLong_Check(a[2])) {
		err = batch_of_buffer(h, &b, a[0], a[1], a[2]);
	} else {
		len = PyNumber_AsSsize_t(a[2], NULL);
		if ((len == -1 && PyErr_Occurred()) || payload_get(&p, a[1]) < 0)
			return NULL;
		if (len < 1 || p.len % (size_t)len)
			result = refuse("%zu bytes in datagrams of %S: want a whole number of them", p.len, a[2]);
		else if (h->process != rdsdi_process)
			result = fail(h, -EBADF);
		else
			result = run_send(h, &to, a[0], p.data, (size_t)len, p.len / (size_t)len, ns);
		payload_put(&p);
		return result;
	}
	if (err) {
		batch_free(&b);
		return NULL;
	}
	return batch_send(h, &b, a[0], true, ns);
}

/* Whether a send to a destination would not wait for the daemon's verdict on it. */
static PyObject *known(PyObject *self, PyObject *name)
{
	Handle *h = (Handle *)self;
	rdsd_addr to;

	CHECK_OPEN(h);
	if (get_destination(h, name, &to) < 0)
		return NULL;
	return PyBool_FromLong(flow_known(h, &to));
}

PyMethodDef send_methods[] = {
	{"_known", known, METH_O, "Whether a destination was looked at."},
	FAST_METHOD("send", send_one, "Sends one datagram, waiting for room."),
	FAST_METHOD("try_send", try_send, "Sends one datagram without waiting for room."),
	FAST_METHOD("send_batch", send_batch, "Sends many in order."),
	FAST_METHOD("try_send_batch", try_send_batch, "Sends many without waiting for room."),
	FAST_METHOD("send_run", send_run, "Sends many to one destination."),
	FAST_METHOD("_reserve", reserve, "Room for one datagram in memory the daemon sends from."),
	{NULL, NULL, 0, NULL},
};
