/* The library's errors as Python's. */
#include <stdarg.h>

#include "rings.h"

static PyObject *from_errno_fn, *forked_fn, *batch_error_fn;

int errors_setup(PyObject *from_errno, PyObject *forked, PyObject *batch_error)
{
	from_errno_fn = Py_NewRef(from_errno);
	forked_fn = Py_NewRef(forked);
	batch_error_fn = Py_NewRef(batch_error);
	return 0;
}

PyObject *error_of(int err, const char *text)
{
	return PyObject_CallFunction(from_errno_fn, "iz", -err, text);
}

static PyObject *raise(PyObject *error)
{
	if (error) {
		PyErr_SetObject((PyObject *)Py_TYPE(error), error);
		Py_DECREF(error);
	}
	return NULL;
}

PyObject *fail(Handle *h, int64_t err)
{
	if (err == -EBADF && h->sock && h->process != rdsdi_process)
		return raise(PyObject_CallFunctionObjArgs(forked_fn, (PyObject *)h, NULL));
	return raise(error_of((int)err, rdsd_errmsg()));
}

PyObject *fail_to(Handle *h, int64_t err, PyObject *to)
{
	PyObject *error, *done;

	if (err != -ENOBUFS)
		return fail(h, err);
	error = error_of((int)err, rdsd_errmsg());
	if (!error)
		return NULL;
	done = PyObject_CallMethod((PyObject *)h, "_refused", "(O)", to);
	if (!done) {
		Py_DECREF(error);
		return NULL;
	}
	Py_DECREF(done);
	return raise(error);
}

PyObject *raise_batch(PyObject *errors, PyObject *tags)
{
	return raise(PyObject_CallFunctionObjArgs(batch_error_fn, errors, tags, NULL));
}

PyObject *refuse(const char *format, ...)
{
	PyObject *text, *utf8 = NULL;
	va_list list;

	va_start(list, format);
	text = PyUnicode_FromFormatV(format, list);
	va_end(list);
	if (text)
		utf8 = PyUnicode_AsUTF8String(text);
	Py_XDECREF(text);
	if (utf8)
		raise(error_of(-EINVAL, PyBytes_AsString(utf8)));
	Py_XDECREF(utf8);
	return NULL;
}
