// Volumes: what this node maps and exports, over which paths, and how it does.

import { h, card, pill, Table, Facts, link } from './dom.js';
import { address, bytes, count, num, time, word, rate, byteRate } from './format.js';
import { Lines } from './chart.js';
import { mappingsOf, op, trouble } from './model.js';

const role = (p) => word(p.role, 'VOLUME_ROLE');
const pathColumns = (withSession) => [
  { id: 'source', label: 'Path', value: (p) => `${p.source} → ${p.destination}` },
  withSession ? { id: 'session', label: 'Session', value: (p) => p.session, find: (p) => `${p.session} ${role(p)}`, cell: (p) => [`${p.session} ${role(p)}`, () => [p.session, h('span', { class: 'sub' }, role(p))]] }
    : { id: 'role', label: 'Role', value: role },
  { id: 'state', label: 'State', value: (p) => word(p.state, 'VOLUME_PATH_STATE'), cell: (p) => { const w = word(p.state, 'VOLUME_PATH_STATE'); return [w, () => pill(w, w === 'connected' ? 'ok' : w === 'connecting' || w === 'fencing' ? 'warn' : 'bad')]; } },
  { id: 'for', label: 'For', num: true, value: (p) => num(p.state_ns), cell: (p) => time(p.state_ns) },
  { id: 'latency', label: 'Heartbeat', num: true, title: 'round trip of the last heartbeat', value: (p) => num(p.cur_latency_ns), cell: (p) => time(p.cur_latency_ns) },
  { id: 'inflight', label: 'In flight', num: true, value: (p) => p.in_flight, cell: (p) => count(p.in_flight) },
  { id: 'reads', label: 'Read', num: true, value: (p) => num(p.read_bytes), cell: (p) => bytes(p.read_bytes) },
  { id: 'writes', label: 'Written', num: true, value: (p) => num(p.write_bytes), cell: (p) => bytes(p.write_bytes) },
  { id: 'failovers', label: 'Failovers', num: true, title: 'requests this path took over from others', value: (p) => num(p.failovers), cell: (p) => count(p.failovers) },
  { id: 'reconnects', label: 'Reconnects', num: true, value: (p) => num(p.reconnects), cell: (p) => count(p.reconnects) },
  { id: 'error', label: 'Last error', value: (p) => trouble(p) || '–' },
];
const pathKey = (p) => `${p.session_id} ${p.source} ${p.destination} ${p.role}`;
const speed = (store, kind, name, what) => store.rates.get(`${kind} ${name} ${what}`)?.rate ?? null;
const exportState = (e) => word(e.state, 'VOLUME_EXPORT_STATE');
const exportTone = (s) => (s === 'open' ? 'ok' : s === 'failed' ? 'bad' : 'idle');
const exportHref = (e) => `#/export/${encodeURIComponent(e.name)}`;

export class Volumes {
  title = 'Volumes';
  nav = '/volumes';
  topics = ['volumes', 'paths'];

  constructor(store) {
    this.store = store;
    this.mappings = new Table({
      title: 'Mapped volumes', empty: 'This node maps no volume.', key: (m) => m.id,
      columns: [
        { id: 'id', label: 'Volume', value: (m) => m.id, cell: (m) => [m.href, () => link(m.href, m.id)] },
        { id: 'name', label: 'Of', value: (m) => `${m.raw.node}:${m.raw.name}` },
        { id: 'state', label: 'State', value: (m) => m.state, cell: (m) => [`${m.state}${m.tone}`, () => pill(m.state, m.tone)] },
        { id: 'paths', label: 'Paths up', num: true, value: (m) => m.raw.paths_up, cell: (m) => `${m.raw.paths_up} of ${m.raw.paths}` },
        { id: 'size', label: 'Size', num: true, value: (m) => num(m.raw.info?.size_bytes), cell: (m) => (m.raw.info ? bytes(m.raw.info.size_bytes) : '–') },
        { id: 'reads', label: 'Reads', num: true, value: (m) => speed(store, 'map', m.id, 'read completed') ?? 0, cell: (m) => rate(speed(store, 'map', m.id, 'read completed')) },
        { id: 'writes', label: 'Writes', num: true, value: (m) => speed(store, 'map', m.id, 'write completed') ?? 0, cell: (m) => rate(speed(store, 'map', m.id, 'write completed')) },
        { id: 'p99r', label: 'Read p99', num: true, value: (m) => num(op(m.raw.operation, 'read').p99_ns), cell: (m) => time(op(m.raw.operation, 'read').p99_ns) },
        { id: 'p99w', label: 'Write p99', num: true, value: (m) => num(op(m.raw.operation, 'write').p99_ns), cell: (m) => time(op(m.raw.operation, 'write').p99_ns) },
        { id: 'failovers', label: 'Failovers', num: true, value: (m) => m.failovers, cell: (m) => count(m.failovers) },
        { id: 'waiting', label: 'Waiting', num: true, title: 'requests that wait for a path or a permit', value: (m) => m.raw.waiting, cell: (m) => count(m.raw.waiting) },
      ],
    });
    this.exports = new Table({
      title: 'Exported volumes', empty: 'This node exports no volume.', key: (e) => e.name,
      columns: [
        { id: 'name', label: 'Volume', value: (e) => e.name, cell: (e) => [exportHref(e), () => link(exportHref(e), e.name)] },
        { id: 'kind', label: 'Store', value: (e) => `${word(e.kind, 'VOLUME_KIND')}${e.path ? ` ${e.path}` : ''}` },
        { id: 'state', label: 'State', value: exportState, cell: (e) => [e.state, () => pill(exportState(e), exportTone(exportState(e)))] },
        { id: 'size', label: 'Size', num: true, value: (e) => num(e.info?.size_bytes), cell: (e) => (e.info ? bytes(e.info.size_bytes) : '–') },
        { id: 'users', label: 'Sessions', num: true, value: (e) => e.user.length, cell: (e) => count(e.user.length) },
        { id: 'reads', label: 'Reads', num: true, value: (e) => speed(store, 'export', e.name, 'read completed') ?? 0, cell: (e) => rate(speed(store, 'export', e.name, 'read completed')) },
        { id: 'writes', label: 'Writes', num: true, value: (e) => speed(store, 'export', e.name, 'write completed') ?? 0, cell: (e) => rate(speed(store, 'export', e.name, 'write completed')) },
        { id: 'error', label: 'Last error', value: (e) => e.error || '–' },
      ],
    });
    this.paths = new Table({ title: 'Paths of volumes', empty: 'There is no path of a volume.', key: pathKey, columns: pathColumns(true) });
    this.el = h('div', null, h('h1', null, 'Volumes'), card('Mapped', this.mappings.el), card('Exported', this.exports.el), card('Paths', this.paths.el));
  }

  update() {
    this.mappings.update(mappingsOf(this.store));
    this.exports.update(this.store.get('volumes')?.export || []);
    this.paths.update(this.store.get('paths')?.path || []);
  }
}

/** operations is the table of what was asked of a volume, with its latencies. */
const operations = () => new Table({
  title: 'Operations', filter: false, empty: 'Nothing was asked of it yet.', key: (o) => o.operation,
  columns: [
    { id: 'operation', label: 'Operation', value: (o) => o.operation },
    { id: 'completed', label: 'Completed', num: true, value: (o) => num(o.completed), cell: (o) => count(o.completed) },
    { id: 'underway', label: 'Under way', num: true, value: (o) => num(o.submitted) - num(o.completed), cell: (o) => count(num(o.submitted) - num(o.completed)) },
    { id: 'errors', label: 'Errors', num: true, value: (o) => num(o.errors), cell: (o) => count(o.errors) },
    { id: 'bytes', label: 'Bytes', num: true, value: (o) => num(o.bytes), cell: (o) => bytes(o.bytes) },
    { id: 'mean', label: 'Mean', num: true, value: (o) => num(o.time_ns) / (num(o.completed) || 1), cell: (o) => time(Math.round(num(o.time_ns) / (num(o.completed) || 1))) },
    { id: 'p50', label: 'p50', num: true, value: (o) => num(o.p50_ns), cell: (o) => time(o.p50_ns) },
    { id: 'p99', label: 'p99', num: true, value: (o) => num(o.p99_ns), cell: (o) => time(o.p99_ns) },
    { id: 'p999', label: 'p99.9', num: true, value: (o) => num(o.p999_ns), cell: (o) => time(o.p999_ns) },
  ],
});

/** One is what the pages of a mapping and of an export have in common. */
class One {
  nav = '/volumes';
  topics = ['volumes', 'paths'];

  constructor(store, name, title) {
    this.store = store;
    this.name = name;
    this.title = title;
    this.state = h('span');
    this.facts = new Facts();
    this.ops = operations();
    this.bytes = new Lines({ title: 'Throughput', labels: ['read', 'written'], format: byteRate, binary: true });
    this.io = new Lines({ title: 'Requests', labels: ['reads', 'writes'], format: rate, least: 10 });
    this.rest = h('div');
    this.el = h('div', null, h('p', { class: 'crumb' }, link('#/volumes', 'Volumes'), ' / '), h('h1', null, `${title} `, this.state),
      card('What it is', this.facts.el),
      h('div', { class: 'two' }, h('section', { class: 'card' }, this.bytes.el), h('section', { class: 'card' }, this.io.el)),
      card('Operations', this.ops.el), this.rest);
  }

  say(text, tone) {
    if (this.shown === text + tone) return;
    this.shown = text + tone;
    this.state.replaceChildren(pill(text, tone));
  }

  draw(key, ops) {
    this.ops.update(ops);
    const s = this.store.lines(key);
    this.bytes.update(s ? s.slice(0, 3) : null);
    this.io.update(s ? [s[0], s[3], s[4]] : null);
  }

  close() {
    this.bytes.close();
    this.io.close();
  }
}

export class Mapping extends One {
  constructor(store, id) {
    super(store, id, `Volume ${id}`);
    this.paths = new Table({ title: 'Paths', filter: false, empty: 'Its session has no path.', key: pathKey, columns: pathColumns(false) });
    this.rest.append(card('Paths', this.paths.el));
  }

  update() {
    if (!this.store.get('volumes')) return;
    const m = mappingsOf(this.store).find((x) => x.id === this.name);
    if (!m) {
      this.say('not mapped here', 'bad');
      return;
    }
    this.say(m.state, m.tone);
    const r = m.raw;
    this.facts.update([
      ['Of', `${r.node}:${r.name}`], ['Device', r.device], ['Size', r.info ? bytes(r.info.size_bytes) : '–'], ['Block', r.info ? `${r.info.logical_block_bytes} bytes` : '–'],
      ['Access', word(r.access, 'VOLUME_ACCESS')], ['In this state for', time(r.state_ns)], ['Paths up', `${r.paths_up} of ${r.paths}`], ['Policy', r.policy_name || word(r.policy, 'VOLUME_POLICY')],
      ['Session', r.session], ['Failovers', count(m.failovers)], ['Waiting requests', count(r.waiting)], ['Users', count(r.users)],
      ['On loss of all paths', word(r.on_loss, 'VOLUME_ON_LOSS')], ['Last error', r.last_error || '–'],
    ]);
    this.draw(`map ${m.id}`, r.operation);
    this.paths.update(m.own);
  }
}

export class Export extends One {
  constructor(store, name) {
    super(store, name, `Export ${name}`);
    this.users = new Table({
      title: 'Sessions that have it open', filter: false, empty: 'No session has it open.', key: (u) => u.session,
      columns: [
        { id: 'session', label: 'Session', value: (u) => u.session },
        { id: 'peer', label: 'Node', value: (u) => address(u.peer) },
        { id: 'access', label: 'Access', value: (u) => word(u.access, 'VOLUME_ACCESS') },
        { id: 'for', label: 'For', num: true, value: (u) => num(u.open_ns), cell: (u) => time(u.open_ns) },
      ],
    });
    this.rest.append(card('Sessions', this.users.el));
  }

  update() {
    const e = (this.store.get('volumes')?.export || []).find((x) => x.name === this.name);
    if (!this.store.get('volumes')) return;
    if (!e) {
      this.say('not exported here', 'bad');
      return;
    }
    const state = exportState(e);
    this.say(state, exportTone(state));
    this.facts.update([
      ['Store', `${word(e.kind, 'VOLUME_KIND')}${e.path ? ` ${e.path}` : ''}`], ['Size', e.info ? bytes(e.info.size_bytes) : '–'], ['Access', e.read_only ? 'read only' : e.shared ? 'read write, shared' : 'read write, one writer'],
      ['For', time(e.state_ns)], ['From', word(e.origin, 'VOLUME_ORIGIN')], ['Persistent', e.persist ? 'yes' : 'no'],
      ['Addresses', e.allow_address.join(', ') || 'all that may connect'], ['Sessions allowed', e.allow_session.join(', ') || 'all'], ['Last error', e.error || '–'],
    ]);
    this.draw(`export ${e.name}`, e.operation);
    this.users.update(e.user);
  }
}
