// Congestion: the ports that are full, since when, and because of whom.

import { h, card, pill, Table, link, setText } from './dom.js';
import { address, count, num, time, percent } from './format.js';
import { Lines, Ports, shownSlots, strip } from './chart.js';
import { LISTED, bitsOf, peersOf, congestedPorts, culpritText, portsCongested } from './model.js';

/** PortPicture is the picture of one address, with its name and what is lit. */
export class PortPicture {
  constructor(addr, local) {
    this.addr = addr;
    this.note = h('p', { class: 'note' });
    this.ports = new Ports({ name: addr, onpick: (port) => { location.hash = `#/socket/${encodeURIComponent(addr.includes(':') ? `[${addr}]:${port}` : `${addr}:${port}`)}`; } });
    this.head = h('h3', null, addr, local ? ' ' : '', local ? pill('this node', 'info') : null);
    this.el = h('div', { class: 'picture' }, this.head, this.ports.el, this.note);
  }

  /** update takes what is known of ports, and which of all are congested. */
  update(rows, bits) {
    const state = new Map();
    for (const r of rows) if (r.address === this.addr) state.set(r.port, { now: Boolean(r.now), text: r.text });
    this.ports.update(state, bits);
    const embers = this.ports.all - this.ports.lit;
    setText(this.note, `${count(this.ports.lit)} congested${embers ? `, ${count(embers)} in the last hour` : ''}`);
  }
}

export class Congestion {
  title = 'Congestion';
  nav = '/congestion';
  topics = ['peers', 'sockets', 'congestion', 'maps', 'history'];

  constructor(store) {
    this.store = store;
    this.pictures = new Map();
    this.grid = h('div', { class: 'pictures' });
    this.more = h('p', { class: 'note', hidden: true });
    this.line = new Lines({ title: 'Congested ports over the last hour', labels: ['on average, of 5 s'], format: (v) => (v === null ? '–' : v.toFixed(v >= 10 ? 0 : 1)), seconds: 3600 });
    this.summary = h('p', { class: 'verdict' });
    this.table = new Table({
      title: 'Ports by time congested', empty: 'No port was congested in the last hour.', sort: { id: 'hour', down: true }, key: (p) => `${p.endpoint} ${p.local}`,
      columns: [
        { id: 'endpoint', label: 'Port', value: (p) => p.endpoint, find: (p) => `${p.endpoint} ${p.label}`, cell: (p) => [`${p.href} ${p.label}`, () => [link(p.href, p.endpoint), p.label ? h('span', { class: 'sub' }, p.label) : '']] },
        { id: 'state', label: 'Now', value: (p) => num(p.now?.since_ns), find: (p) => (p.now ? 'congested' : 'clear'),
          cell: (p) => { const t = p.now ? `for ${time(p.now.since_ns)}` : 'clear'; return [t, () => pill(t, p.now ? 'bad' : 'ok')]; } },
        { id: 'hour', label: 'In the last hour', num: true, value: (p) => p.hour, cell: (p) => (p.hour ? `${time(p.hour)} (${percent(p.hour / 3600e9)})` : '–') },
        { id: 'times', label: 'Times', num: true, value: (p) => num(p.history?.times), cell: (p) => count(p.history?.times) },
        { id: 'strip', label: 'When, up to now', cell: (p) => this.strip(p) },
        { id: 'reader', label: 'Reader to blame', value: (p) => p.reader || '–' },
        { id: 'culprits', label: 'Senders that fill it', find: (p) => p.culprits.map(culpritText).join(' '), value: (p) => p.culprits.length,
          cell: (p) => [p.culprits.map(culpritText).join('|'), () => (p.culprits.length ? h('ul', { class: 'plain' }, p.culprits.slice(0, 3).map((c) => h('li', null, culpritText(c))), p.culprits.length > 3 ? h('li', null, `and ${p.culprits.length - 3} more`) : null) : '–')] },
        { id: 'blocked', label: 'Held up here', num: true, title: 'sends refused or made to wait by this port', value: (p) => num(p.now?.blocked), cell: (p) => (p.now ? count(p.now.blocked) : '–') },
      ],
    });
    this.el = h('div', null,
      h('h1', null, 'Congestion'),
      this.summary,
      card('Ports by time congested', this.table.el),
      h('section', { class: 'card' }, this.line.el),
      card('All ports', h('p', { class: 'note' }, 'Each picture is the 65,536 ports of a node, 256 to a row, port 0 at the top left. What is congested lights up; what was in the last hour glows on.'), this.grid, this.more));
  }

  strip(p) {
    const history = this.store.get('history');
    if (!p.history || !history) return '–';
    return [`${history.end_unix_ns} ${p.history.congested_ns}`, () => {
      const canvas = h('canvas', { class: 'strip', role: 'img', 'aria-label': `congested in ${p.history.slot.length} of ${history.slots} slots of ${num(history.slot_ns) / 1e9} s` });
      strip(canvas, history, p.history);
      return canvas;
    }];
  }

  update() {
    const { store } = this;
    const rows = congestedPorts(store);
    const known = rows.filter((r) => r.now).length;
    const now = Math.max(known, portsCongested(store));
    setText(this.summary, !store.get('congestion') ? '' : known < now && known >= LISTED ? `${count(now)} ports are congested now; ${count(known)} of them are listed, and all are in the pictures.` : now ? `${count(now)} ${now === 1 ? 'port is' : 'ports are'} congested now.` : 'No port is congested now.');
    this.table.update(rows);
    this.timeline();
    this.draw(rows);
  }

  /** timeline adds the hour of all ports. */
  timeline() {
    const history = this.store.get('history');
    if (!history || this.drawn === history) return;
    this.drawn = history;
    const slot = num(history.slot_ns) / 1e9;
    const end = num(history.end_unix_ns) / 1e9;
    const kept = Math.min(history.slots, Math.ceil(num(history.kept_ns) / 1e9 / slot) + 1);
    const shown = shownSlots(history) * slot;
    const ys = new Array(history.slots).fill(0).map((v, i) => (i >= history.slots - kept ? v : null));
    for (const p of [...history.port, history.others]) p?.slot?.forEach((s, i) => { ys[s] += p.slot_ms[i] / 1000 / slot; });
    ys[ys.length - 1] = null; // it is not over: what is in it is no average yet
    this.line.update([ys.map((_, i) => end - (history.slots - 1 - i) * slot - slot / 2), ys], end, shown);
  }

  draw(rows) {
    const status = this.store.get('status');
    const peers = peersOf(this.store);
    const wanted = new Map();
    for (const p of status?.local_address || []) wanted.set(address(p), true);
    // Those with something to see come first, so that a bound leaves out the dull.
    const bits = bitsOf(this.store);
    const seen = new Set([...rows.map((r) => r.address), ...bits.keys()]);
    for (const p of [...peers].sort((a, b) => seen.has(b.remote) - seen.has(a.remote))) if (!wanted.has(p.remote)) wanted.set(p.remote, false);
    const most = 24;
    const list = [...wanted].slice(0, most);
    for (const [addr, local] of list) {
      if (!this.pictures.has(addr)) {
        const picture = new PortPicture(addr, local);
        this.pictures.set(addr, picture);
        this.grid.append(picture.el);
      }
      this.pictures.get(addr).update(rows, bits.get(addr) || null);
    }
    for (const [addr, picture] of this.pictures) {
      if (list.some(([a]) => a === addr)) continue;
      picture.el.remove();
      this.pictures.delete(addr);
    }
    this.more.hidden = wanted.size <= most;
    setText(this.more, `${most} of ${wanted.size} nodes are shown, those with congested ports first. The page of a peer has its own.`);
  }

  close() {
    this.line.close();
  }
}
