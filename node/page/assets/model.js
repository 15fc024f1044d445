// What the messages say, put together the way people ask for it.

import { address, endpoint, num, word, time, bytes, count, owner } from './format.js';

const collate = new Intl.Collator('en', { numeric: true }).compare;

/** LISTED is how many congested ports the daemon lists at most, of all addresses. */
export const LISTED = 10_000;

/** peersOf lists peers with what is shown of them in several places. */
export function peersOf(store) {
  return (store.get('peers')?.peer || []).map((p) => {
    const up = p.path.filter((x) => x.state === 'PATH_STATE_UP').length;
    const state = p.path.length === 0 ? 'idle' : up === 0 ? word(p.path[0].state, 'PATH_STATE') : up < p.path.length ? `${up} of ${p.path.length} lanes up` : 'up';
    const tone = up === 0 ? (state === 'idle' ? 'idle' : 'bad') : up < p.path.length ? 'warn' : 'ok';
    const remote = address(p.remote);
    const local = address(p.local);
    return { raw: p, remote, local, up, state, stateTone: tone, kind: word(p.kind, 'PEER_KIND'), href: `#/peer/${encodeURIComponent(remote)}/${encodeURIComponent(local)}`, key: `${remote} ${local}` };
  });
}

let decoded = null; // of which message, and the bits by address

/** bitsOf is which ports are congested, a bit for each of the 65,536, by address. */
export function bitsOf(store) {
  const m = store.get('maps');
  if (decoded && decoded.of === m) return decoded.bits;
  const bits = new Map();
  for (const x of m?.map || []) {
    const name = address(x.address);
    const all = bits.get(name) || new Uint8Array(8192);
    const bytes = atob(x.bitmap);
    for (let i = 0; i < bytes.length; i++) all[x.first_port / 8 + i] |= bytes.charCodeAt(i); // a node may be a peer of several addresses here
    bits.set(name, all);
  }
  decoded = { of: m, bits };
  return bits;
}

/** portsCongested is how many ports are congested, of all nodes that are told. */
export const portsCongested = (store) => (store.get('maps')?.map || []).reduce((n, m) => n + m.ports, 0);

/** trouble is the last error of a path, how old it is and what is done about it. */
export const trouble = (p) => (p.last_error ? [p.last_error, num(p.error_age_ns) ? `${time(p.error_age_ns)} ago` : '', p.attempts ? `${count(p.attempts)} ${p.attempts === 1 ? 'attempt' : 'attempts'}` : '',
  num(p.retry_in_ns) ? `next in ${time(p.retry_in_ns)}` : ''].filter(Boolean).join(', ') : '');

/** congestedPorts joins what is congested now with the last hour, longest first. */
export function congestedPorts(store) {
  const rows = new Map();
  const name = (e, local) => `${endpoint(e)} ${local}`;
  for (const h of store.get('history')?.port || []) {
    rows.set(name(h.endpoint, h.local), { endpoint: endpoint(h.endpoint), address: address(h.endpoint.address), port: h.endpoint.port, local: h.local, history: h, now: null });
  }
  for (const c of store.get('congestion')?.port || []) {
    const key = name(c.endpoint, c.local);
    const row = rows.get(key) || { endpoint: endpoint(c.endpoint), address: address(c.endpoint.address), port: c.endpoint.port, local: c.local, history: null };
    row.now = c;
    rows.set(key, row);
  }
  const programs = new Map((store.get('sockets')?.socket || []).map((s) => [endpoint(s.local), s]));
  for (const r of rows.values()) {
    r.hour = num(r.history?.congested_ns);
    const of = r.now && (num(r.now.reader_pid) || r.now.culprit.length || r.local) ? r.now : r.history;
    const socket = r.local ? programs.get(r.endpoint) : null;
    r.reader = '';
    if (socket) r.reader = owner(socket.program, socket.pid, socket.uid);
    else if (of && (num(of.reader_pid) || of.culprit?.length)) r.reader = owner(of.reader_program, of.reader_pid, of.reader_uid);
    r.label = socket ? socket.label : '';
    r.culprits = of?.culprit || [];
    r.href = `#/socket/${encodeURIComponent(r.endpoint)}`;
    r.text = r.now ? `congested for ${time(r.now.since_ns)}${r.reader ? `, to be read by ${r.reader}` : ''}` : `clear; ${time(r.hour)} of the last hour congested`;
  }
  return [...rows.values()].sort((a, b) => b.hour - a.hour || collate(a.endpoint, b.endpoint));
}

export const culpritText = (c) => `${endpoint(c.source)} (${bytes(c.queued_bytes)} in ${count(c.queued_datagrams)})`;

/** paths of volumes by the name of their session. */
export function pathsOf(store) {
  const by = new Map();
  for (const p of store.get('paths')?.path || []) {
    if (!by.has(p.session_id)) by.set(p.session_id, []);
    by.get(p.session_id).push(p);
  }
  return by;
}

const mappingTone = { open: 'ok', init: 'warn', closed: 'bad', unmapped: 'idle' };

export function mappingsOf(store) {
  const paths = pathsOf(store);
  return (store.get('volumes')?.mapping || []).map((m) => {
    const state = word(m.state, 'VOLUME_MAPPING_STATE');
    const own = paths.get(m.session_id) || [];
    const some = state === 'open' && m.paths_up < m.paths;
    return { raw: m, id: m.id, state, tone: some ? 'warn' : mappingTone[state] || 'idle', own,
      failovers: own.reduce((n, p) => n + num(p.failovers), 0), href: `#/volume/${encodeURIComponent(m.id)}` };
  });
}

export const op = (list, name) => (list || []).find((o) => o.operation === name) || {};
