// The node at a glance: what is wrong and what to do, then how it does.

import { h, card, pill, meter, Table, setText, link, put } from './dom.js';
import { bytes, count, num, time, rate, byteRate, word } from './format.js';
import { Lines } from './chart.js';
import { congestedPorts, mappingsOf } from './model.js';

const tones = { error: 'bad', warning: 'warn', note: 'info', ok: 'ok' };

/** where leads to the view of what a problem is about. */
function where(subject) {
  if (/^peer /.test(subject)) return '#/peers';
  if (/^port /.test(subject)) return '#/congestion';
  if (/^(mapping|path|export|session|volume)/.test(subject)) return '#/volumes';
  if (/^socket /.test(subject)) return '#/sockets';
  return null;
}

export class Overview {
  title = 'Overview';
  nav = '/';
  topics = ['status', 'peers', 'sockets', 'counters', 'congestion', 'history', 'volumes', 'paths'];

  constructor(store) {
    this.store = store;
    this.verdict = h('p', { class: 'verdict', role: 'status' });
    this.problems = h('ol', { class: 'problems' });
    this.tiles = h('div', { class: 'tiles' });
    this.values = {};
    for (const [id, label, href] of [['peers', 'Peers up', '#/peers'], ['sockets', 'Sockets', '#/sockets'], ['congested', 'Congested ports', '#/congestion'],
      ['hour', 'Congested, last hour', '#/congestion'], ['volumes', 'Volumes open', '#/volumes'], ['memory', 'Memory', '#/']]) {
      const value = h('span', { class: 'tile-value' }, '–');
      const extra = h('span', { class: 'tile-extra' });
      this.values[id] = { value, extra, tile: h(id === 'memory' ? 'div' : 'a', { class: 'tile', href: id === 'memory' ? null : href }, h('span', { class: 'tile-label' }, label), value, extra) };
      this.tiles.append(this.values[id].tile);
    }
    this.datagrams = new Lines({ title: 'Datagrams', labels: ['accepted', 'read'], format: rate, least: 10 });
    this.payload = new Lines({ title: 'Payload', labels: ['from applications', 'to applications'], format: byteRate, binary: true });
    this.budgets = new Table({
      title: 'Limits', filter: true, empty: 'No limits are known.', sort: { id: 'share', down: true }, key: (b) => b.name,
      columns: [
        { id: 'name', label: 'Limit', value: (b) => b.name },
        { id: 'share', label: 'Used', num: true, value: (b) => (num(b.limit) ? num(b.used) / num(b.limit) : 0),
          cell: (b) => { const f = /memory|bytes/.test(b.name) ? bytes : count; const text = `${f(b.used)} of ${f(b.limit)}`; return [text, () => meter(num(b.used), num(b.limit), text)]; } },
        { id: 'refused', label: 'Refused', num: true, title: 'how often it said no', value: (b) => num(b.refused), cell: (b) => count(b.refused) },
      ],
    });
    this.el = h('div', null,
      h('h1', null, 'Overview'),
      card('Health', this.verdict, this.problems),
      this.tiles,
      h('div', { class: 'two' }, h('section', { class: 'card' }, this.datagrams.el), h('section', { class: 'card' }, this.payload.el)),
      card('Limits', h('details', null, h('summary', null, 'What is used of what is configured'), this.budgets.el)));
  }

  tile(id, value, extra, tone) {
    const t = this.values[id];
    setText(t.value, value);
    setText(t.extra, extra || '');
    t.tile.dataset.tone = tone || '';
  }

  health(status) {
    const severity = word(status.severity, 'PROBLEM_SEVERITY');
    const problems = status.problem || [];
    const n = problems.filter((p) => /ERROR|WARNING/.test(p.severity)).length;
    put(this.verdict, [`${severity} ${n} ${problems.length}`, () => {
      if (severity === 'unknown') return ['The daemon does not say how it is.'];
      if (status.healthy && !problems.length) return [pill('healthy', 'ok'), ' No problem is known.'];
      if (status.healthy) return [pill('healthy', 'ok'), ` ${problems.length === 1 ? 'One thing is' : `${problems.length} things are`} worth knowing.`];
      return [pill(severity, tones[severity]), ` ${n === 1 ? 'One problem needs' : `${n} problems need`} somebody.`];
    }]);
    const list = problems.slice(0, 50).map((p) => `${p.code}|${p.subject}|${p.text}|${p.remedy}|${p.severity}`);
    put(this.problems, [list.join('\n'), () => problems.slice(0, 50).map((p) => {
      const tone = tones[word(p.severity, 'PROBLEM_SEVERITY')];
      const to = where(p.subject);
      return h('li', { class: 'problem', 'data-tone': tone, 'data-code': p.code },
        h('div', { class: 'problem-head' }, pill(word(p.severity, 'PROBLEM_SEVERITY'), tone), p.subject ? (to ? link(to, p.subject, { class: 'problem-subject' }) : h('span', { class: 'problem-subject' }, p.subject)) : null, h('code', { class: 'code' }, p.code)),
        h('p', { class: 'problem-text' }, p.text),
        p.remedy ? h('p', { class: 'remedy' }, h('span', { class: 'remedy-label' }, 'What to do '), p.remedy) : null);
    })]);
    this.problems.hidden = problems.length === 0;
  }

  update() {
    const { store } = this;
    const status = store.get('status');
    if (!status) return;
    this.health(status);
    this.tile('peers', `${count(status.peers_up)} of ${count(status.peers)}`, status.peers ? '' : 'none is known', status.peers_up < status.peers ? 'bad' : 'ok');
    const sockets = store.get('sockets')?.socket;
    this.tile('sockets', count(status.sockets), sockets ? `${count(sockets.filter((s) => s.congested).length)} congested` : '');
    const ports = congestedPorts(store);
    const now = ports.filter((p) => p.now);
    this.tile('congested', count(now.length), now.length ? `${now[0].endpoint}${now.length > 1 ? ` + ${now.length - 1}` : ''}` : 'all ports are clear', now.length ? 'warn' : 'ok');
    const history = store.get('history');
    if (history) {
      const sum = history.port.reduce((n, p) => n + num(p.congested_ns), num(history.others?.congested_ns));
      this.tile('hour', time(sum) === '–' ? 'none' : time(sum), ports[0]?.hour ? `most: ${ports[0].endpoint}` : `kept for ${time(history.kept_ns)}`);
    }
    const maps = mappingsOf(store);
    const exports = store.get('volumes')?.export || [];
    this.tile('volumes', maps.length ? `${maps.filter((m) => m.state === 'open').length} of ${maps.length}` : '0', `${count(exports.length)} exported`, maps.some((m) => m.tone === 'bad') ? 'bad' : maps.some((m) => m.tone === 'warn') ? 'warn' : '');
    this.tile('memory', bytes(status.memory_used_bytes), `of ${bytes(status.memory_budget_bytes)}`, num(status.memory_used_bytes) > 0.9 * num(status.memory_budget_bytes) ? 'bad' : '');
    this.datagrams.update(store.lines('datagrams'));
    this.payload.update(store.lines('payload'));
    this.budgets.update(status.budget);
  }

  close() {
    this.datagrams.close();
    this.payload.close();
  }
}
