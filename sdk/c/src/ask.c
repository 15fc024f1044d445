/*
 * What is asked over the control socket: cancel, flush, congested, and the
 * watching of congestion.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct question {
	struct rdsdi_op op;
	struct rdsdi_ask ask;
	bool sent;
	bool again; /* asking twice does no harm */
	int kind;   /* SERVER_... of the answer */
	rdsd_addr to;
	int64_t deadline;
};

/*
 * daemons_time is what the daemon has for a flush: 1 for one that does not wait, 0 for ever. A
 * little less than is left, so that its answer, how much is undecided, comes before the caller
 * gives up.
 */
static int64_t daemons_time(int64_t deadline)
{
	int64_t left = deadline - rdsdi_now(), less = left / 10 < RDSD_MS(20) ? left / 10 : RDSD_MS(20);

	if (deadline == INT64_MAX)
		return 0;
	return left > less ? left - less : 1;
}

static size_t encode(const struct question *q, uint8_t *out)
{
	switch (q->kind) {
	case SERVER_CANCEL_RESULT:
		return rdsdi_pb_cancel(out, q->ask.id, &q->to);
	case SERVER_CONGESTED_RESULT:
		return rdsdi_pb_congested(out, q->ask.id, &q->to);
	}
	return rdsdi_pb_flush(out, q->ask.id, daemons_time(q->deadline));
}

/* put_question sends it, with ctl.mu held: true when it is under way. */
static bool put_question(struct question *q)
{
	struct rdsdi_ctl *c = &q->op.s->ctl;
	uint8_t message[PB_CLIENT_MAX];

	if (atomic_load(&q->op.s->state) != SESSION_UP)
		return false;
	q->ask.id = ++c->next_id;
	atomic_store(&q->ask.state, ASK_WAITING);
	if (rdsdi_control_send(c->link, message, encode(q, message)))
		return false; /* full, or at its end, which the next look finds */
	q->ask.next = c->asks;
	c->asks = &q->ask;
	return true;
}

static int64_t question_step(struct rdsdi_op *op)
{
	struct question *q = (struct question *)op;
	rdsd_socket *s = op->s;

	op->why = -ESHUTDOWN;
	op->bits = 0;
	switch (q->sent ? atomic_load(&q->ask.state) : ASK_LOST) {
	case ASK_ANSWERED:
		return 0;
	case ASK_WAITING:
		op->why = 0;
		return BLOCKED;
	}
	op->patient = atomic_load(&s->state) == SESSION_UP;
	if (rdsdi_over(s))
		return rdsdi_over(s);
	if (q->sent && !q->again)
		return rdsdi_fail(-ESHUTDOWN, "the connection to the daemon was lost before it answered");
	pthread_mutex_lock(&s->ctl.mu);
	q->sent = put_question(q);
	pthread_mutex_unlock(&s->ctl.mu);
	return BLOCKED;
}

/* ask runs a question and takes care that nothing answers to it afterwards. */
static int ask(struct question *q, int64_t timeout)
{
	rdsd_socket *s = q->op.s;
	int64_t result = rdsdi_usable(s);

	if (result)
		return (int)result;
	q->op.step = question_step;
	q->op.asks = true;
	q->deadline = rdsdi_deadline(timeout);
	result = rdsdi_run(&q->op, timeout);
	pthread_mutex_lock(&s->ctl.mu);
	for (struct rdsdi_ask **a = &s->ctl.asks; *a; a = &(*a)->next)
		if (*a == &q->ask) {
			*a = q->ask.next;
			break;
		}
	pthread_mutex_unlock(&s->ctl.mu);
	if (result)
		return (int)result;
	if (!q->ask.answer.error)
		return 0;
	if (q->ask.answer.error < 0)
		return rdsdi_errno(-EPROTO);
	return q->ask.answer.text[0] ? rdsdi_fail(-q->ask.answer.error, "%s", q->ask.answer.text)
				     : rdsdi_errno(-q->ask.answer.error);
}

static bool is_address(const rdsd_addr *a)
{
	return a && (a->family == 4 || a->family == 6);
}

int rdsd_cancel_sent_to(rdsd_socket *s, const rdsd_addr *to, rdsd_cancelled *result, int64_t timeout)
{
	struct question q = {.op = {.s = s}, .kind = SERVER_CANCEL_RESULT};
	int err;

	if (!is_address(to))
		return rdsdi_errno(-EDESTADDRREQ);
	rdsdi_addr_plain(to, &q.to);
	err = ask(&q, timeout);
	if (!err && result)
		*result = (rdsd_cancelled){q.ask.answer.cancelled, q.ask.answer.in_flight};
	return err;
}

int rdsd_flush(rdsd_socket *s, int64_t timeout)
{
	struct question q = {.op = {.s = s}, .kind = SERVER_FLUSH_RESULT};
	int err = ask(&q, timeout);
	unsigned long long undecided = q.ask.answer.in_flight;

	if (err == -ETIMEDOUT && undecided && timeout == RDSD_NOWAIT)
		return rdsdi_fail(-EAGAIN, "%llu datagrams are undecided", undecided);
	if (err == -ETIMEDOUT && undecided)
		return rdsdi_fail(err, "the deadline passed: %llu datagrams are undecided", undecided);
	return err;
}

int rdsd_congested(rdsd_socket *s, const rdsd_addr *to, int64_t timeout)
{
	struct question q = {.op = {.s = s}, .kind = SERVER_CONGESTED_RESULT, .again = true};
	int err = rdsdi_usable(s), known = 0, ignored;

	if (err)
		return err;
	if (!is_address(to))
		return rdsdi_errno(-EDESTADDRREQ);
	rdsdi_addr_plain(to, &q.to);
	/* A flow that is known says it without a question. */
	pthread_mutex_lock(&s->tx.mu);
	if (s->tx.reg && !atomic_load(&s->over)) {
		const struct rdsdi_flow *f = rdsdi_flow_find(&s->tx, &q.to);

		known = f ? (int)rdsdi_flow_state(&s->tx, f, &ignored) : 0;
	}
	pthread_mutex_unlock(&s->tx.mu);
	if (known == STATE_CLEAR || known == STATE_CONGESTED) {
		rdsdi_check(s);
		return known == STATE_CONGESTED;
	}
	err = ask(&q, timeout);
	return err ? err : q.ask.answer.congested;
}

int64_t rdsdi_explain_time(int64_t timeout)
{
	if (timeout < 0 || timeout > EXPLAIN_TIME)
		return EXPLAIN_TIME;
	return timeout > EXPLAIN_NOWAIT ? timeout : EXPLAIN_NOWAIT;
}

/*
 * rdsdi_explain is for a call that failed with err, perhaps because the daemon does not send to this
 * destination: the flow has the errno alone, and the daemon is asked for the words: as long as the call could have
 * waited, a second at most, and for a moment where it may not wait: it is at the end of a flow. What rdsd_errmsg says stays
 * where the daemon has none.
 */
int64_t rdsdi_explain(rdsd_socket *s, const rdsd_addr *to, int64_t err, int64_t timeout)
{
	struct question q = {.op = {.s = s}, .kind = SERVER_CONGESTED_RESULT, .again = true};
	char words[PB_TEXT];

	if ((err != -EINVAL && err != -EOPNOTSUPP && err != -EHOSTUNREACH && err != -EACCES) || !is_address(to))
		return err;
	rdsdi_addr_plain(to, &q.to);
	snprintf(words, sizeof words, "%s", rdsd_errmsg());
	(void)ask(&q, rdsdi_explain_time(timeout));
	if (-q.ask.answer.error == err && q.ask.answer.text[0])
		return rdsdi_fail((int)err, "%s", q.ask.answer.text);
	return rdsdi_fail((int)err, "%s", words);
}

/* Watching */

void rdsdi_monitor(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;
	uint8_t message[PB_CLIENT_MAX];

	if (!rdsdi_control_send(c->link, message, rdsdi_pb_monitor(message, c->watch_mask, c->watch)))
		c->monitor_due = false; /* else at the next look */
}

int rdsd_watch(rdsd_socket *s, int on, uint64_t mask)
{
	struct rdsdi_ctl *c = &s->ctl;
	struct rdsdi_tx *tx = &s->tx;
	int err = rdsdi_usable(s);

	if (err)
		return err;
	err = rdsdi_over(s);
	if (err)
		return err;
	pthread_mutex_lock(&tx->mu);
	if (on && !tx->changes)
		tx->changes = malloc(MAX_CHANGES * sizeof *tx->changes);
	if (!on) {
		free(tx->changes);
		tx->changes = NULL;
		tx->changes_n = 0;
		tx->freed = 0;
		tx->any_change = false;
	}
	err = on && !tx->changes ? -ENOMEM : 0;
	pthread_mutex_unlock(&tx->mu);
	if (err)
		return rdsdi_errno(err);
	pthread_mutex_lock(&c->mu);
	c->watch = on;
	c->watch_mask = mask;
	c->monitor_due = true;
	if (atomic_load(&s->state) == SESSION_UP)
		rdsdi_monitor(s);
	pthread_mutex_unlock(&c->mu);
	rdsdi_notify(s); /* who waits for events learns that there will be none */
	return 0;
}

struct next {
	struct rdsdi_op op;
	rdsd_congestion *event;
};

static int64_t next_step(struct rdsdi_op *op)
{
	struct next *n = (struct next *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	int64_t result = 0;

	op->why = -EAGAIN;
	op->bits = WAITS_EVENT;
	pthread_mutex_lock(&tx->mu);
	rdsdi_events(s);
	if (tx->changes && rdsdi_flow_cleared(tx))
		op->bits |= WAITS_FLOW;
	if (!tx->changes) {
		result = rdsdi_over(s) ? rdsdi_over(s) : rdsdi_fail(-EINVAL, "nobody watches: rdsd_watch first");
	} else if (tx->any_change) {
		*n->event = (rdsd_congestion){.freed = tx->freed};
		tx->freed = 0;
		if (tx->changes_n) {
			n->event->addr = tx->changes[0].addr;
			n->event->congested = tx->changes[0].congested;
			memmove(tx->changes, tx->changes + 1, --tx->changes_n * sizeof *tx->changes);
		}
		tx->any_change = tx->changes_n > 0;
	} else {
		result = rdsdi_over(s) ? rdsdi_over(s) : BLOCKED;
	}
	pthread_mutex_unlock(&tx->mu);
	return result;
}

int rdsd_next_congestion(rdsd_socket *s, rdsd_congestion *event, int64_t timeout)
{
	struct next n = {.op = {.step = next_step, .s = s, .reads = true}, .event = event};
	int err = rdsdi_usable(s);

	return err ? err : (int)rdsdi_run(&n.op, timeout);
}

/* Outcomes */

struct outcomes {
	struct rdsdi_op op;
	rdsd_outcome *out;
	size_t n;
};

static int64_t outcomes_step(struct rdsdi_op *op)
{
	struct outcomes *o = (struct outcomes *)op;
	rdsd_socket *s = op->s;
	struct rdsdi_tx *tx = &s->tx;
	bool was_full;
	size_t got = 0;
	int over;

	op->why = -EAGAIN;
	op->bits = WAITS_EVENT;
	pthread_mutex_lock(&tx->mu);
	was_full = rdsdi_outcomes_full(tx);
	rdsdi_events(s);
	while (got < o->n && tx->outcome_n) {
		o->out[got++] = tx->outcomes[tx->outcome_head];
		tx->outcome_head = (tx->outcome_head + 1) & (tx->outcome_cap - 1);
		tx->outcome_n--;
	}
	/* What the end of the socket decides comes before its error, and who ends it notifies then. */
	over = !tx->reg;
	pthread_mutex_unlock(&tx->mu);
	if (got) {
		if (was_full)
			rdsdi_notify(s); /* senders waited for it */
		return (int64_t)got;
	}
	if (over)
		over = rdsdi_over(s);
	return over ? over : BLOCKED;
}

ssize_t rdsd_outcomes(rdsd_socket *s, rdsd_outcome *out, size_t n, int64_t timeout)
{
	struct outcomes o = {.op = {.step = outcomes_step, .s = s, .reads = true}, .out = out, .n = n};
	int err = rdsdi_usable(s);

	if (err)
		return err;
	if (!(s->flags & RDSD_OUTCOMES))
		return rdsdi_fail(-EINVAL, "the socket was bound without RDSD_OUTCOMES");
	return n ? rdsdi_run(&o.op, timeout) : 0;
}
