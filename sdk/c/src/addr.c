#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

/* unmap makes an IPv4 address in IPv6 clothes an IPv4 address. */
static void unmap(rdsd_addr *a)
{
	static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

	if (a->family != 6 || memcmp(a->ip, prefix, sizeof prefix))
		return;
	memmove(a->ip, a->ip + 12, 4);
	memset(a->ip + 4, 0, 12);
	a->family = 4;
}

int rdsd_addr_parse(const char *text, rdsd_addr *addr)
{
	char host[INET6_ADDRSTRLEN];
	const char *colon = text ? strrchr(text, ':') : NULL;
	const char *begin = text, *end = colon;
	rdsd_addr a = {.family = 4};
	unsigned long port;
	char *rest;
	int family = AF_INET;

	if (!colon)
		goto bad;
	if (*text == '[') {
		if (colon == text + 1 || colon[-1] != ']')
			goto bad;
		begin = text + 1;
		end = colon - 1;
		family = AF_INET6;
		a.family = 6;
	}
	if (begin >= end || (size_t)(end - begin) >= sizeof host)
		goto bad;
	memcpy(host, begin, (size_t)(end - begin));
	host[end - begin] = 0;
	if (inet_pton(family, host, a.ip) != 1)
		goto bad;
	if (colon[1] < '0' || colon[1] > '9')
		goto bad;
	port = strtoul(colon + 1, &rest, 10);
	if (*rest || port > 65535)
		goto bad;
	a.port = (uint16_t)port;
	unmap(&a);
	*addr = a;
	return 0;
bad:
	return rdsdi_fail(-EINVAL, "\"%.64s\" is not an address: write 1.2.3.4:5 or [::1]:5", text ? text : "");
}

char *rdsd_addr_format(const rdsd_addr *addr, char *text, size_t size)
{
	char host[INET6_ADDRSTRLEN] = "";

	if (!size)
		return text;
	switch (addr->family) {
	case 4:
		inet_ntop(AF_INET, addr->ip, host, sizeof host);
		snprintf(text, size, "%s:%u", host, addr->port);
		break;
	case 6:
		inet_ntop(AF_INET6, addr->ip, host, sizeof host);
		snprintf(text, size, "[%s]:%u", host, addr->port);
		break;
	default:
		snprintf(text, size, "(no address):%u", addr->port);
	}
	return text;
}

int rdsd_addr_from_sockaddr(const struct sockaddr *from, socklen_t len, rdsd_addr *addr)
{
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	rdsd_addr a = {.family = 4};

	if (len < sizeof from->sa_family)
		return rdsdi_fail(-EINVAL, "an address of %u bytes is none", (unsigned)len);
	switch (from->sa_family) {
	case AF_INET:
		if (len < sizeof in)
			return rdsdi_fail(-EINVAL, "a sockaddr_in has %zu bytes, not %u", sizeof in, (unsigned)len);
		memcpy(&in, from, sizeof in);
		memcpy(a.ip, &in.sin_addr, 4);
		a.port = ntohs(in.sin_port);
		break;
	case AF_INET6:
		if (len < sizeof in6)
			return rdsdi_fail(-EINVAL, "a sockaddr_in6 has %zu bytes, not %u", sizeof in6, (unsigned)len);
		memcpy(&in6, from, sizeof in6);
		memcpy(a.ip, &in6.sin6_addr, 16);
		a.family = 6;
		a.port = ntohs(in6.sin6_port);
		unmap(&a);
		break;
	default:
		return rdsdi_fail(-EAFNOSUPPORT, "address family %d: RDS has IPv4 and IPv6", from->sa_family);
	}
	*addr = a;
	return 0;
}

int rdsd_addr_to_sockaddr(const rdsd_addr *addr, struct sockaddr_storage *to)
{
	struct sockaddr_in in = {.sin_family = AF_INET};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};

	memset(to, 0, sizeof *to);
	switch (addr->family) {
	case 4:
		memcpy(&in.sin_addr, addr->ip, 4);
		in.sin_port = htons(addr->port);
		memcpy(to, &in, sizeof in);
		return sizeof in;
	case 6:
		memcpy(&in6.sin6_addr, addr->ip, 16);
		in6.sin6_port = htons(addr->port);
		memcpy(to, &in6, sizeof in6);
		return sizeof in6;
	}
	return rdsdi_fail(-EINVAL, "family %d: an address has 4 or 6", addr->family);
}

int rdsd_addr_equal(const rdsd_addr *a, const rdsd_addr *b)
{
	return addr_equal(a, b);
}
