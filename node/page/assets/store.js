// What the daemon last said, and how fast its numbers move.

import { ticks, moment } from './clock.js';
import { num, address } from './format.js';

const KEPT = 300; // points of a series: five minutes
const GAP = 6; // seconds without a point, after which a line is interrupted

/** A Store has the newest message of each topic and tells its listener of changes. */
export class Store {
  constructor() {
    this.topics = {};
    this.at = {};
    this.failed = {};
    this.forget();
  }

  /** forget drops all that is of a former life of the daemon. */
  forget() {
    this.rates = new Map();
    this.series = new Map();
  }

  take(topic, message) {
    this.topics[topic] = message;
    delete this.failed[topic];
    this.at[topic] = ticks() / 1000;
    const derive = derived[topic];
    if (derive) derive(this, message);
  }

  get(topic) {
    return this.topics[topic];
  }

  /** rate notes a number that only rises, and returns how fast it does; null: not known yet. */
  rate(key, topic, value) {
    const now = this.at[topic];
    const old = this.rates.get(key);
    if (old && old.at === now) return old.rate;
    const entry = { at: now, value: num(value), rate: null };
    if (old && entry.value >= old.value && now > old.at) entry.rate = (entry.value - old.value) / (now - old.at);
    this.rates.set(key, entry);
    if (this.rates.size > 60000) this.rates.clear();
    return entry.rate;
  }

  /** point adds a point to a series of several values. */
  point(key, topic, values) {
    let s = this.series.get(key);
    if (!s) {
      s = [[], ...values.map(() => [])];
      this.series.set(key, s);
    }
    const now = ticks() / 1000;
    if (s[0].length && now - s[0][s[0].length - 1] > GAP) { // nobody looked: nothing is known of the time between
      s[0].push(now - GAP / 2);
      values.forEach((_, i) => s[i + 1].push(null));
    }
    s[0].push(now);
    values.forEach((v, i) => s[i + 1].push(v));
    if (s[0].length > KEPT) s.forEach((l) => l.shift());
  }

  /** lines is a series with the daemon's time of each point, in seconds; undefined: there is none. */
  lines(key) {
    const s = this.series.get(key);
    return s && [s[0].map((at) => moment(at * 1000) / 1000), ...s.slice(1)];
  }
}

/** traffic of a peer's paths together. */
export function traffic(peer) {
  return peer.path.reduce((sum, p) => ({ out: sum.out + num(p.sent_bytes), in: sum.in + num(p.received_bytes) }), { out: 0, in: 0 });
}

export const peerKey = (p) => `${address(p.remote)} ${address(p.local)}`;

const derived = {
  peers(store, m) {
    for (const p of m.peer) {
      const t = traffic(p);
      const o = store.rate(`peer out ${peerKey(p)}`, 'peers', t.out);
      const i = store.rate(`peer in ${peerKey(p)}`, 'peers', t.in);
      store.point(`peer ${peerKey(p)}`, 'peers', [o, i, num(p.rtt_ns) / 1e6 || null]);
    }
  },
  counters(store, m) {
    const values = Object.fromEntries(m.counter.map((c) => [c.name, num(c.value)]));
    store.counters = values;
    store.point('datagrams', 'counters', [
      store.rate('send', 'counters', values.send_queued), store.rate('recv', 'counters', values.recv_delivered)]);
    store.point('payload', 'counters', [
      store.rate('from', 'counters', values.copy_from_user), store.rate('to', 'counters', values.copy_to_user)]);
  },
  sockets(store, m) {
    for (const s of m.socket) {
      const key = `socket ${s.inode}`;
      store.point(key, 'sockets', [num(s.recv_queued_bytes), num(s.send_queued_bytes)]);
      store.rate(`${key} accepted`, 'sockets', s.accepted);
      store.rate(`${key} received`, 'sockets', s.received);
    }
    if (store.series.size > 3000) for (const k of store.series.keys()) if (k.startsWith('socket ')) store.series.delete(k);
  },
  volumes(store, m) {
    for (const v of [...m.mapping.map((x) => ['map', x.id, x]), ...m.export.map((x) => ['export', x.name, x])]) {
      const ops = Object.fromEntries(v[2].operation.map((o) => [o.operation, o]));
      const key = `${v[0]} ${v[1]}`;
      const of = (op, field) => store.rate(`${key} ${op} ${field}`, 'volumes', ops[op] ? ops[op][field] : 0);
      store.point(key, 'volumes', [of('read', 'bytes'), of('write', 'bytes'), of('read', 'completed'), of('write', 'completed')]);
    }
  },
};
