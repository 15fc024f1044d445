// Sockets with their queues and owners, and one of them.

import { h, card, pill, meter, Table, Facts, link } from './dom.js';
import { bytes, count, num, time, rate, endpoint, owner, word } from './format.js';
import { Lines, strip } from './chart.js';
import { congestedPorts, culpritText } from './model.js';

const speed = (store, s, what) => store.rates.get(`socket ${s.inode} ${what}`)?.rate ?? null;
const queue = (used, limit, tone) => { const text = `${bytes(used)} of ${bytes(limit)}`; return [`${text}${tone}`, () => meter(num(used), num(limit), text, tone)]; };
const href = (s) => `#/socket/${encodeURIComponent(endpoint(s.local))}`;

export class Sockets {
  title = 'Sockets';
  nav = '/sockets';
  topics = ['sockets'];

  constructor(store) {
    this.store = store;
    this.table = new Table({
      title: 'Sockets', empty: 'No socket is bound.', key: (s) => `${endpoint(s.local)} ${s.inode}`, sort: { id: 'recv', down: true },
      columns: [
        { id: 'local', label: 'Socket', value: (s) => endpoint(s.local), cell: (s) => [href(s), () => link(href(s), endpoint(s.local))] },
        { id: 'label', label: 'Label', value: (s) => s.label || '–' },
        { id: 'program', label: 'Program', value: (s) => s.program || '–' },
        { id: 'pid', label: 'Pid', num: true, value: (s) => s.pid, cell: (s) => String(s.pid) },
        { id: 'uid', label: 'Uid', num: true, value: (s) => s.uid, cell: (s) => String(s.uid) },
        { id: 'recv', label: 'To be read', title: 'received and unread, of the receive buffer', value: (s) => num(s.recv_queued_bytes), num: true,
          cell: (s) => queue(s.recv_queued_bytes, s.recv_buffer_bytes, s.congested ? 'bad' : '') },
        { id: 'send', label: 'To be sent', title: 'accepted and undecided, of the send buffer', value: (s) => num(s.send_queued_bytes), num: true,
          cell: (s) => queue(s.send_queued_bytes, s.send_buffer_bytes, '') },
        { id: 'congested', label: 'State', value: (s) => (s.congested ? 'congested' : 'clear'), cell: (s) => [String(s.congested), () => pill(s.congested ? 'congested' : 'clear', s.congested ? 'bad' : 'ok')] },
        { id: 'in', label: 'Read', num: true, value: (s) => speed(store, s, 'received') ?? 0, cell: (s) => rate(speed(store, s, 'received')) },
        { id: 'out', label: 'Accepted', num: true, value: (s) => speed(store, s, 'accepted') ?? 0, cell: (s) => rate(speed(store, s, 'accepted')) },
      ],
    });
    this.el = h('div', null, h('h1', null, 'Sockets'), h('section', { class: 'card' }, this.table.el));
  }

  update() {
    this.table.update(this.store.get('sockets')?.socket || []);
  }
}

const nothingWaits = 'No datagram of this socket waits anywhere.';

export class Socket {
  nav = '/sockets';
  topics = ['sockets', 'congestion', 'history'];

  constructor(store, name) {
    this.store = store;
    this.name = name;
    this.title = `Socket ${name}`;
    this.state = h('span');
    this.facts = new Facts();
    this.who = new Facts();
    this.queues = new Lines({ title: 'Queues', labels: ['to be read', 'to be sent'], format: bytes, binary: true });
    this.canvas = h('canvas', { class: 'strip tall', role: 'img', 'aria-label': 'no congestion in the last hour' });
    this.hour = h('p', { class: 'note' });
    this.culprits = h('ul', { class: 'plain' });
    this.datagrams = new Table({
      title: 'Datagrams that wait', filter: false, empty: nothingWaits, key: (d) => `${d.kind} ${d.at}`,
      columns: [
        { id: 'at', label: 'Place', num: true, value: (d) => d.at },
        { id: 'kind', label: 'Queue', value: (d) => ({ send: 'to be sent', retrans: 'sent, unacknowledged', recv: 'received, unread' })[word(d.kind, 'QUEUE_KIND')] },
        { id: 'remote', label: 'Other end', value: (d) => endpoint(d.remote) },
        { id: 'bytes', label: 'Bytes', num: true, value: (d) => num(d.bytes), cell: (d) => count(d.bytes) },
        { id: 'seq', label: 'Sequence', num: true, value: (d) => num(d.seq), cell: (d) => String(d.seq) },
        { id: 'lane', label: 'Lane', num: true, value: (d) => d.lane },
      ],
    });
    this.here = h('div', null, card('What it is', this.facts.el), h('section', { class: 'card' }, this.queues.el));
    this.beyond = h('p', { class: 'note', hidden: true }, 'More wait than are shown.');
    this.waiting = card('Datagrams that wait', this.datagrams.el, this.beyond);
    this.el = h('div', null,
      h('p', { class: 'crumb' }, link('#/sockets', 'Sockets'), ' / '),
      h('h1', null, `Socket ${name} `, this.state),
      this.here,
      card('Congestion', this.who.el, h('h3', null, 'The last hour'), this.canvas, this.hour, h('h3', null, 'Who fills it'), this.culprits),
      this.waiting);
    this.waiting.hidden = true;
    this.timer = setInterval(() => this.look(), 2000);
  }

  /** look asks for the queue of a socket that is here, which no stream brings: it may be long. */
  async look() {
    if (document.hidden || this.gone || this.waiting.hidden) return;
    try {
      const answer = await fetch(`/api/v1/queue?limit=100&local=${encodeURIComponent(this.name)}`);
      if (!answer.ok || this.gone) return;
      const { datagram: list, truncated } = await answer.json();
      this.beyond.hidden = !truncated || !list.length;
      this.datagrams.empty.textContent = truncated ? 'None of this socket is among the first of the many that wait on this node.' : nothingWaits;
      list.forEach((d, i) => { d.at = i + 1; });
      this.datagrams.update(list);
    } catch {
      // The stream says that the daemon does not answer.
    }
  }

  update() {
    const s = (this.store.get('sockets')?.socket || []).find((x) => endpoint(x.local) === this.name);
    const p = congestedPorts(this.store).find((x) => x.endpoint === this.name);
    const now = s ? s.congested : Boolean(p?.now);
    const state = s || p ? (now ? 'congested' : 'clear') : this.store.get('sockets') ? 'not known here' : '';
    if (this.shown !== state) {
      this.shown = state;
      this.state.replaceChildren(...(state ? [pill(state, now ? 'bad' : s || p ? 'ok' : 'idle')] : []));
    }
    this.here.hidden = !s;
    const appeared = s && this.waiting.hidden;
    this.waiting.hidden = !s;
    if (appeared) this.look();
    if (s) {
      this.facts.update([
        ['Owner', owner(s.program, s.pid, s.uid)], ['Label', s.label || '–'],
        ['To be read', `${count(s.recv_queued)} datagrams, ${bytes(s.recv_queued_bytes)} of ${bytes(s.recv_buffer_bytes)}`], ['Refused from', bytes(s.recv_hard_limit_bytes)],
        ['To be sent', `${bytes(s.send_queued_bytes)} of ${bytes(s.send_buffer_bytes)}`], ['In flight', count(s.in_flight)],
        ['Accepted', count(s.accepted)], ['Delivered', count(s.delivered)], ['Read', count(s.received)],
        ['Cancelled', count(s.cancelled)], ['Failed', count(s.failed)], ['Unknown', count(s.unknown)],
        ['Waiting sends', count(s.waiting_sends)], ['Shared memory', num(s.ring_max_bytes) ? `${bytes(s.ring_bytes)} of ${bytes(s.ring_max_bytes)}` : 'none (gRPC)'],
      ]);
      this.queues.update(this.store.lines(`socket ${s.inode}`));
    }
    this.who.update([
      ['Reader', p?.reader || (s ? owner(s.program, s.pid, s.uid) : '–')],
      ['Congested for', p?.now ? time(p.now.since_ns) : '–'], ['In the last hour', p?.hour ? time(p.hour) : 'never'], ['Times', count(p?.history?.times)],
      ['Senders that wait here', count(p?.now?.waiting_senders)], ['Sends held up', count(p?.now?.blocked)],
    ]);
    const history = this.store.get('history');
    if (history) {
      strip(this.canvas, history, p?.history || { slot: [], slot_ms: [] });
      const text = p?.hour ? `Congested for ${time(p.hour)} of the last hour.` : `Never congested in the last ${time(history.kept_ns)}.`;
      this.canvas.setAttribute('aria-label', text);
      this.hour.textContent = `${text} The newest is on the right.`;
    }
    const list = (p?.culprits || []).map(culpritText);
    if (this.listed !== list.join()) {
      this.listed = list.join();
      this.culprits.replaceChildren(...(list.length ? list : ['Nothing of anybody lies in it, as far as is known.']).map((t) => h('li', null, t)));
    }
  }

  close() {
    this.gone = true;
    clearInterval(this.timer);
    this.queues.close();
  }
}
