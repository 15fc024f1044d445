/* What sending is made of; all with tx.mu held. */
#ifndef RDSDI_SEND_H
#define RDSDI_SEND_H

#include "internal.h"

/* Where payloads come from: an array of datagrams, or one behind the other. */
struct rdsdi_source {
	const rdsd_dgram *dgrams;
	const uint8_t *data;
	size_t len; /* of each, when they have one length */
	bool mixed; /* dgrams of any length */
};

/* Says why a step is blocked and what it waits for (WAITS bits); returns BLOCKED. */
int64_t rdsdi_send_blocked(struct rdsdi_op *op, int why, uint32_t bits);

/* Whether anything can be posted now: 0, BLOCKED or an error. */
int64_t rdsdi_sendable(struct rdsdi_op *op);

/* The flow of a destination that takes datagrams now: 0, BLOCKED or an error. */
int64_t rdsdi_destination(struct rdsdi_op *op, const rdsd_addr *to, struct rdsdi_flow **flow);

/* Sets the text and returns -EMSGSIZE. */
/* -EINVAL: a datagram of len bytes without data. */
int rdsdi_no_data(size_t len);
int rdsdi_too_large(const rdsd_socket *s, size_t len);

/* Takes events in when there is a use for it. */
void rdsdi_send_look(rdsd_socket *s);

/* How many of n datagrams of len bytes the send buffer takes. */
uint32_t rdsdi_allowed(const rdsd_socket *s, size_t len, size_t n);

/* A slot of want bytes, or of at least need, and what it takes. ARENA_NONE: there is no room. */
uint64_t rdsdi_room_for(rdsd_socket *s, uint64_t want, uint64_t need, uint64_t *size);

/* The flags of a descriptor. */
uint32_t rdsdi_soon(const rdsd_socket *s);

/*
 * Posts up to n datagrams of one length, from the from-th on: how many, 0 with
 * op blocked. *tag is the first one's; given: the caller chose it.
 */
uint32_t rdsdi_post_same(struct rdsdi_op *op, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, size_t n,
			 uint64_t *tag, bool given);

/*
 * Puts up to n datagrams of one length into the pair of the flow: how many. 0:
 * there is none, or no room; they go by the daemon. *again: tx.mu was let go of for
 * a moment, and everything has to be looked up again.
 */
uint32_t rdsdi_pair_put(struct rdsdi_op *op, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, size_t n,
			uint64_t *tag, bool tag_given, bool *again);

/* mixed.c: how many bytes of a table to keep before payloads of so many bytes, a multiple of 64 or 0. */
uint32_t rdsdi_table_for(const struct rdsdi_tx *tx, const struct rdsdi_flow *f, uint64_t bytes);

/* Stores the length of datagram i into a table that ends at end. */
void rdsdi_put_length(uint8_t *end, uint32_t i, uint32_t len);

/* Appends up to n datagrams of any length to the flow's last descriptor: how many. */
uint32_t rdsdi_grow_mixed(rdsd_socket *s, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, uint32_t n,
			  uint64_t *tag);

/* The daemon has claimed the flow's last descriptor meanwhile: smaller ones will do. */
void rdsdi_send_claimed(struct rdsdi_tx *tx, struct rdsdi_flow *f);

/* It was full before the daemon came: there is a use for larger ones. */
void rdsdi_send_wider(struct rdsdi_flow *f, const struct rdsdi_desc *d);

/* Copies n datagrams of one length, from the from-th on. */
void rdsdi_copy_same(uint8_t *to, const struct rdsdi_source *src, size_t from, size_t n);

/* memcpy in pieces that stay in the cache; returns the end. */
uint8_t *rdsdi_send_copy(uint8_t *to, const void *from, size_t n);

static inline uint8_t *rdsdi_slot_at(const struct rdsdi_tx *tx, uint64_t slot)
{
	return tx->reg->base + tx->reg->send_arena + slot;
}

#endif
