/*
 * The protobuf messages of the control socket (api/rdsd/v1/rdsd.proto), written
 * and read by hand. The reader takes any bytes: it stays within them, and what
 * it does not know it leaves out.
 */
#ifndef RDSDI_PB_H
#define RDSDI_PB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdsd.h"

#define PB_CLIENT_MAX 256 /* bytes of the longest message the library sends */
#define PB_TEXT 256       /* of a text the daemon sends, with its end; the rest is cut off */

struct rdsdi_bind {
	rdsd_addr local;
	uint64_t send_buffer, recv_buffer;
	const char *label;
};

/* Each writes a ClientMessage to out (PB_CLIENT_MAX bytes) and returns its length. */
size_t rdsdi_pb_bind(uint8_t *out, const struct rdsdi_bind *b);
size_t rdsdi_pb_mapped(uint8_t *out);
size_t rdsdi_pb_cancel(uint8_t *out, uint64_t id, const rdsd_addr *to);
size_t rdsdi_pb_flush(uint8_t *out, uint64_t id, int64_t timeout_ns);
size_t rdsdi_pb_monitor(uint8_t *out, uint64_t mask, bool on);
size_t rdsdi_pb_congested(uint8_t *out, uint64_t id, const rdsd_addr *to);
size_t rdsdi_pb_pair(uint8_t *out, uint64_t id, unsigned state);

/* Which ServerMessage; the numbers are those of its fields. */
enum {
	SERVER_OTHER = 0,
	SERVER_BOUND = 1,
	SERVER_CANCEL_RESULT = 5,
	SERVER_FLUSH_RESULT = 6,
	SERVER_CONGESTION = 7,
	SERVER_CONGESTED_RESULT = 8,
	SERVER_CLOSING = 10,
	SERVER_REGION = 11,
	SERVER_PAIR = 12
};

/* How far a pair is. */
enum {
	PAIR_STATE_OFFERED = 1,
	PAIR_STATE_MAPPED = 2,
	PAIR_STATE_OPEN = 3,
	PAIR_STATE_CLOSED = 4,
	PAIR_STATE_GONE = 5
};

/* A ServerMessage, as far as sockets with rings get them. */
struct rdsdi_server {
	int body;
	uint64_t id;
	int32_t error;            /* errno */
	char text[PB_TEXT];
	uint64_t cancelled, in_flight;
	bool congested;
	rdsd_addr local;          /* Bound */
	uint64_t instance;
	uint32_t ring_version;    /* Bound: 0 without rings; and of a region */
	uint64_t region_bytes;
	unsigned pair_state;      /* of a pair, whose number is id */
	rdsd_addr source, destination;
	uint64_t pair_bytes;
};

/* 0, or -EPROTO when the bytes are no protobuf message. */
int rdsdi_pb_server(const uint8_t *in, size_t n, struct rdsdi_server *m);

#endif
