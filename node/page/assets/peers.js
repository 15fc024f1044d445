// Peers, and one of them with its paths.

import { h, card, pill, Table, Facts, link } from './dom.js';
import { bytes, count, num, time, word, byteRate } from './format.js';
import { Lines } from './chart.js';
import { bitsOf, peersOf, congestedPorts, trouble } from './model.js';
import { PortPicture } from './congestion.js';

const traffic = (store, p) => ({ out: store.rates.get(`peer out ${p.key}`)?.rate ?? null, in: store.rates.get(`peer in ${p.key}`)?.rate ?? null });

export class Peers {
  title = 'Peers';
  nav = '/peers';
  topics = ['peers'];

  constructor(store) {
    this.store = store;
    this.table = new Table({
      title: 'Peers', empty: 'No peer is known. One is made when a datagram names it, or when it connects.', key: (p) => p.key,
      columns: [
        { id: 'remote', label: 'Peer', value: (p) => p.remote, cell: (p) => [p.href, () => link(p.href, p.remote)] },
        { id: 'local', label: 'From', value: (p) => p.local },
        { id: 'state', label: 'State', value: (p) => p.state, cell: (p) => [p.state, () => pill(p.state, p.stateTone)] },
        { id: 'kind', label: 'Kind', value: (p) => p.kind },
        { id: 'rtt', label: 'Round trip', num: true, value: (p) => num(p.raw.rtt_ns), cell: (p) => time(p.raw.rtt_ns) },
        { id: 'out', label: 'Sent', num: true, value: (p) => traffic(store, p).out ?? 0, cell: (p) => byteRate(traffic(store, p).out) },
        { id: 'in', label: 'Received', num: true, value: (p) => traffic(store, p).in ?? 0, cell: (p) => byteRate(traffic(store, p).in) },
        { id: 'queued', label: 'Queued', num: true, title: 'datagrams not yet sent', value: (p) => num(p.raw.queued), cell: (p) => count(p.raw.queued) },
        { id: 'unacked', label: 'Unacknowledged', num: true, value: (p) => num(p.raw.unacked), cell: (p) => count(p.raw.unacked) },
        { id: 'congested', label: 'Congested ports', num: true, value: (p) => p.raw.congested_ports, cell: (p) => count(p.raw.congested_ports) },
      ],
    });
    this.el = h('div', null, h('h1', null, 'Peers'), h('section', { class: 'card' }, this.table.el));
  }

  update() {
    this.table.update(peersOf(this.store));
  }
}

export class Peer {
  nav = '/peers';
  topics = ['peers', 'sockets', 'congestion', 'maps', 'history'];

  constructor(store, remote, local) {
    this.store = store;
    this.key = `${remote} ${local}`;
    this.remote = remote;
    this.title = `Peer ${remote}`;
    this.state = h('span');
    this.elsewhere = h('span', { class: 'elsewhere' });
    this.facts = new Facts();
    this.bytes = new Lines({ title: 'Bytes on the wire', labels: ['sent', 'received'], format: byteRate, binary: true });
    this.rtt = new Lines({ title: 'Round trip', labels: ['last measured'], format: (v) => (v === null ? '–' : time(v * 1e6)) });
    this.paths = new Table({
      title: 'Paths', filter: false, empty: 'There is no path: nothing was sent yet, and the peer has not connected.', key: (p) => String(p.index),
      columns: [
        { id: 'index', label: 'Lane', num: true, value: (p) => p.index },
        { id: 'state', label: 'State', value: (p) => p.state, cell: (p) => { const w = word(p.state, 'PATH_STATE'); return [w, () => pill(w, w === 'up' ? 'ok' : w === 'connecting' ? 'warn' : 'bad')]; } },
        { id: 'up', label: 'Up for', num: true, value: (p) => num(p.up_since_ns), cell: (p) => time(p.up_since_ns) },
        { id: 'ends', label: 'Connection', value: (p) => (p.local_endpoint ? `${p.local_endpoint} → ${p.remote_endpoint}` : '–') },
        { id: 'sent', label: 'Sent', num: true, value: (p) => num(p.sent_bytes), cell: (p) => bytes(p.sent_bytes) },
        { id: 'received', label: 'Received', num: true, value: (p) => num(p.received_bytes), cell: (p) => bytes(p.received_bytes) },
        { id: 'credits', label: 'Credits', num: true, value: (p) => p.send_credits, cell: (p) => count(p.send_credits) },
        { id: 'reconnects', label: 'Reconnects', num: true, value: (p) => num(p.reconnects), cell: (p) => count(p.reconnects) },
        { id: 'error', label: 'Last error', value: (p) => trouble(p) || (p.read_paused ? 'reading is paused' : '–') },
      ],
    });
    this.picture = new PortPicture(remote, false);
    this.el = h('div', null,
      h('p', { class: 'crumb' }, link('#/peers', 'Peers'), ' / '),
      h('h1', null, `Peer ${remote} `, this.state), this.elsewhere,
      card('What it is', this.facts.el),
      card('Paths', this.paths.el),
      h('div', { class: 'two' }, h('section', { class: 'card' }, this.bytes.el), h('section', { class: 'card' }, this.rtt.el)),
      card('Ports', this.picture.el));
    pageOf(remote).then((url) => {
      if (url) this.elsewhere.replaceChildren(h('a', { href: url, rel: 'noreferrer' }, `The page of ${remote}`));
    });
  }

  update() {
    const p = peersOf(this.store).find((x) => x.key === this.key);
    if (!this.store.get('peers')) return;
    if (!p) {
      this.state.replaceChildren(pill('not known', 'bad'));
      return;
    }
    if (this.shown !== p.state) {
      this.shown = p.state;
      this.state.replaceChildren(pill(p.state, p.stateTone));
    }
    const r = p.raw;
    this.facts.update([
      ['Address', p.remote], ['From', p.local], ['Kind', p.kind], ['Identity', r.authenticated ? 'authenticated' : 'its address alone'],
      ['Round trip', time(r.rtt_ns)], ['Lanes', count(r.lanes)], ['Queued', `${count(r.queued)} datagrams, ${bytes(r.queued_bytes)}`],
      ['Unacknowledged', `${count(r.unacked)} datagrams, ${bytes(r.unacked_bytes)}`], ['Held', `${count(r.held)} datagrams`], ['Congested ports', count(r.congested_ports)],
    ]);
    this.paths.update(r.path);
    const s = this.store.lines(`peer ${p.key}`);
    this.bytes.update(s ? s.slice(0, 3) : null);
    this.rtt.update(s ? [s[0], s[3]] : null);
    this.picture.update(congestedPorts(this.store), bitsOf(this.store).get(p.remote) || null);
  }

  close() {
    this.bytes.close();
    this.rtt.close();
  }
}

let info = null;

/** pageOf tells where the page of another node is, if the configuration says so. */
export async function pageOf(remote) {
  info ??= fetch('/api/v1/page').then((r) => (r.ok ? r.json() : {})).catch(() => ({}));
  const { peer_page: template } = await info;
  if (!template) return null;
  const url = template.replace('{address}', remote.includes(':') ? `[${remote}]` : remote);
  return /^https?:\/\//.test(url) ? url : null;
}
