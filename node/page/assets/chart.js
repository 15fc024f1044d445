// Pictures: lines over time, an hour in a strip, 65,536 ports.

import uPlot from './uplot/uPlot.esm.js';
import { moment } from './clock.js';
import { h } from './dom.js';

/** token reads a colour of the style sheet, which has one for light and one for dark. */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** POWERS are the steps of an axis of bytes. */
const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);

/** Lines is a chart of series over time that follows the width it has. */
export class Lines {
  constructor({ title, labels, format, seconds = 300, fill = true, binary = false, least = 1 }) {
    this.title = title;
    this.labels = labels;
    this.format = format;
    this.seconds = seconds;
    this.fill = fill;
    this.binary = binary;
    this.least = binary ? 1024 : least;
    this.box = h('div', { class: 'chart', role: 'img', 'aria-label': title });
    this.legend = h('div', { class: 'legend', 'aria-hidden': 'true' });
    this.el = h('div', { class: 'chart-box' }, h('div', { class: 'chart-head' }, h('h3', null, title), this.legend), this.box);
    this.values = labels.map((label, i) => {
      const value = h('span', { class: 'legend-value' }, '–');
      this.legend.append(h('span', { class: `key key-${i}` }, h('i'), `${label} `, value));
      return value;
    });
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.box);
  }

  fit() {
    const width = Math.floor(this.box.clientWidth);
    if (!width) return;
    if (this.plot) {
      if (this.plot.width !== width) this.plot.setSize({ width, height: 150 });
    } else if (this.data) this.make(width);
  }

  make(width) {
    const grid = { stroke: token('--line'), width: 1 };
    const axis = { stroke: token('--soft'), grid, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const colors = [token('--series-0'), token('--series-1'), token('--series-2')];
    this.plot = new uPlot({
      width,
      height: 150,
      padding: [8, 26, 0, 0], // half a time is right of the last line
      cursor: { show: true, drag: { x: false, y: false }, points: { size: 6 } },
      legend: { show: false },
      scales: {
        x: { time: true, range: () => [this.end - this.seconds, this.end] },
        y: { range: (_, __, max) => [0, Math.max(max * 1.15, this.least)] },
      },
      axes: [
        { ...axis, size: 26, space: 64, values: (_, splits) => splits.map((s) => new Date(s * 1000).toLocaleTimeString('en-GB', this.seconds > 900 ? { hour: '2-digit', minute: '2-digit' } : {})) },
        { ...axis, size: 70, space: 36, ...(this.binary ? { incrs: POWERS } : {}), values: (_, splits) => splits.map((v) => (v === 0 ? '0' : this.format(v))) },
      ],
      series: [{}, ...this.labels.map((label, i) => ({
        label, stroke: colors[i], width: 1.75, spanGaps: false, points: { show: false }, fill: this.fill ? `${colors[i]}1f` : null,
      }))],
    }, this.data, this.box);
  }

  update(data, end = moment() / 1000, seconds = this.seconds) {
    this.seconds = seconds;
    this.data = data && data[0].length ? data : [[end - 1], ...this.labels.map(() => [null])];
    this.end = end;
    if (this.plot) this.plot.setData(this.data);
    else this.fit();
    this.values.forEach((el, i) => {
      const l = this.data[i + 1];
      const v = l[l.length - 1] ?? l[l.length - 2]; // the newest slot of an hour is not known yet
      const text = v === null || v === undefined ? '–' : this.format(v);
      if (el.textContent !== text) el.textContent = text;
    });
  }

  close() {
    this.resize.disconnect();
    if (this.plot) this.plot.destroy();
  }
}

/** shownSlots is how many of the newest slots are shown: the hour, or less after a start, but not less than ten minutes. */
export function shownSlots(history) {
  const slot = Number(history.slot_ns);
  return Math.min(history.slots, Math.max(Math.ceil(600e9 / slot), Math.ceil(Number(history.kept_ns) / slot) + 1));
}

/** strip draws the slots of an hour, each as bright as the share of it that was congested. */
export function strip(canvas, history, port) {
  const slots = shownSlots(history);
  const first = history.slots - slots;
  const width = Math.min(slots, 360);
  if (canvas.width !== width) canvas.width = width;
  canvas.height = 1;
  const c = canvas.getContext('2d');
  c.clearRect(0, 0, width, 1);
  const per = slots / width;
  const ms = Number(history.slot_ns) / 1e6;
  const cells = new Float32Array(width);
  port.slot.forEach((slot, i) => {
    if (slot >= first) cells[Math.min(width - 1, Math.floor((slot - first) / per))] += port.slot_ms[i] / (ms * per);
  });
  c.fillStyle = token('--hot');
  cells.forEach((share, x) => {
    if (share <= 0) return;
    c.globalAlpha = 0.25 + 0.75 * Math.min(1, share);
    c.fillRect(x, 0, 1, 1);
  });
  c.globalAlpha = 1;
}

const SIDE = 256;
const LIT = { now: true, text: 'congested' }; // of which nothing else is known

/**
 * Ports is the picture of an address's 65,536 ports: 256 rows of 256. One that is congested
 * is lit, with a glow so that it is seen; one that was in the last hour is an ember.
 */
export class Ports {
  constructor({ name, onpick }) {
    this.name = name;
    this.onpick = onpick;
    this.state = new Map();
    this.bits = null;
    this.at = null;
    this.canvas = h('canvas', { class: 'ports', width: 512, height: 512, tabindex: '0', role: 'application',
      'onpointermove': (e) => this.point(e), onpointerleave: () => this.say(null), onclick: () => this.pick(),
      onkeydown: (e) => this.key(e), onfocus: () => { if (this.at === null) this.at = this.first(); this.say(this.at); }, onblur: () => this.say(null) });
    this.tip = h('p', { class: 'ports-tip', 'aria-live': 'polite' }, '\u00a0');
    this.el = h('figure', { class: 'ports-figure' }, h('div', { class: 'ports-frame' }, this.canvas), this.tip);
  }

  /** first is where the keyboard begins: at what is congested now, before what was. */
  first() {
    return this.next(-1, 1, (s) => s.now) ?? this.next(-1, 1) ?? 0;
  }

  /** of is what a port is, undefined: clear, and was. */
  of(port) {
    return this.state.get(port) ?? (this.bits && this.bits[port >> 3] & (1 << (port & 7)) ? LIT : undefined);
  }

  /** next is the first port before or behind one that lights up. */
  next(port, step, fits = () => true) {
    for (let p = port + step; p >= 0 && p < SIDE * SIDE; p += step) {
      const s = this.of(p);
      if (s && fits(s)) return p;
    }
    return undefined;
  }

  /** each calls f for every port that lights up. */
  each(f) {
    for (const [port, s] of this.state) f(port, s);
    for (let i = 0; this.bits && i < this.bits.length; i++) {
      for (let b = 0, v = this.bits[i]; v; b++, v >>= 1) if (v & 1 && !this.state.has(8 * i + b)) f(8 * i + b, LIT);
    }
  }

  /**
   * update takes what is known of ports, {now, text}, and, a bit for each of all, which are
   * congested: of some of them no more is known.
   */
  update(state, bits) {
    this.state = state;
    this.bits = bits;
    let lit = 0;
    let all = 0;
    this.each((_, s) => { all++; if (s.now) lit++; });
    this.lit = lit;
    this.all = all;
    this.canvas.setAttribute('aria-label', `${this.name}: ${lit} of 65,536 ports ${lit === 1 ? 'is' : 'are'} congested. Arrow keys move between ports, Home and End between those that light up, Enter opens one.`);
    this.draw();
    if (document.activeElement === this.canvas && this.at !== null) this.say(this.at);
  }

  draw() {
    const c = this.canvas.getContext('2d');
    const scale = this.canvas.width / SIDE;
    c.clearRect(0, 0, this.canvas.width, this.canvas.height);
    c.fillStyle = token('--well');
    c.fillRect(0, 0, this.canvas.width, this.canvas.height);
    // Lines every 16 ports each way: 4,096 to a band.
    c.fillStyle = token('--well-line');
    for (let i = 32; i < SIDE; i += 32) {
      c.fillRect(i * scale, 0, 1, this.canvas.height);
      c.fillRect(0, i * scale, this.canvas.width, 1);
    }
    const hot = token('--hot');
    const ember = token('--ember');
    const glow = this.all <= 400;
    this.each((port, s) => {
      const x = (port % SIDE) * scale;
      const y = Math.floor(port / SIDE) * scale;
      if (glow) {
        const radius = scale * (s.now ? 12 : 6);
        const light = c.createRadialGradient(x + scale / 2, y + scale / 2, 0, x + scale / 2, y + scale / 2, radius);
        light.addColorStop(0, s.now ? hot : ember);
        light.addColorStop(1, 'transparent');
        c.globalAlpha = s.now ? 0.75 : 0.4;
        c.fillStyle = light;
        c.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
        c.globalAlpha = 1;
        c.fillStyle = s.now ? token('--core') : ember;
        c.fillRect(x - scale / 2, y - scale / 2, scale * 2, scale * 2);
      } else {
        c.fillStyle = s.now ? hot : ember;
        c.fillRect(x, y, scale, scale);
      }
    });
    if (this.at !== null && document.activeElement === this.canvas) {
      c.strokeStyle = token('--text');
      c.lineWidth = 2;
      c.strokeRect((this.at % SIDE) * scale - 6, Math.floor(this.at / SIDE) * scale - 6, scale + 12, scale + 12);
    }
  }

  say(port) {
    const s = port === null ? null : this.of(port);
    const text = port === null ? '\u00a0' : `Port ${port}: ${s ? s.text : 'clear'}`;
    if (this.tip.textContent !== text) this.tip.textContent = text;
    this.draw();
  }

  point(e) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.min(SIDE - 1, Math.max(0, Math.floor(((e.clientX - box.left) / box.width) * SIDE)));
    const y = Math.min(SIDE - 1, Math.max(0, Math.floor(((e.clientY - box.top) / box.height) * SIDE)));
    let best = y * SIDE + x;
    let near = 36;
    for (let row = Math.max(0, y - 5); row <= Math.min(SIDE - 1, y + 5); row++) { // what lights up is easy to hit
      for (let column = Math.max(0, x - 5); column <= Math.min(SIDE - 1, x + 5); column++) {
        const d = (column - x) ** 2 + (row - y) ** 2;
        if (d < near && this.of(row * SIDE + column)) [best, near] = [row * SIDE + column, d];
      }
    }
    this.hover = best;
    this.canvas.classList.toggle('hit', Boolean(this.of(best)));
    this.say(best);
  }

  pick(port = this.hover) {
    if (port !== undefined && port !== null && this.of(port)) this.onpick(port);
  }

  key(e) {
    const at = this.at ?? 0;
    const to = {
      ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + SIDE, ArrowUp: at - SIDE,
      Home: this.next(at, -1) ?? this.next(SIDE * SIDE, -1), End: this.next(at, 1) ?? this.next(-1, 1),
    }[e.key];
    if (e.key === 'Enter') {
      this.pick(at);
    } else if (to !== undefined) {
      e.preventDefault();
      this.at = Math.min(65535, Math.max(0, to));
      this.say(this.at);
    }
  }
}
