// Numbers and addresses as people read them.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export const num = (v) => Number(v || 0);
export const count = (v) => whole.format(num(v));

function scaled(v, step, units) {
  let i = 0;
  while (v >= step && i < units.length - 1) {
    v /= step;
    i++;
  }
  return `${i === 0 || v >= 100 ? whole.format(v) : v.toFixed(v >= 10 ? 1 : 2)} ${units[i]}`.trim();
}

export const bytes = (v) => scaled(num(v), 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
export const rate = (v) => (v === null || v === undefined ? '–' : `${scaled(v, 1000, ['', 'k', 'M', 'G'])}/s`);
export const byteRate = (v) => (v === null || v === undefined ? '–' : `${bytes(v)}/s`);

/** time of nanoseconds, in the two largest units that matter. */
export function time(ns) {
  ns = num(ns);
  if (ns <= 0) return '–';
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(ns < 1e4 ? 1 : 0)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(ns < 1e8 ? 1 : 0)} ms`;
  if (ns < 60e9) return `${(ns / 1e9).toFixed(ns < 10e9 ? 1 : 0)} s`;
  const s = Math.floor(ns / 1e9);
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const i = parts.findIndex(([n]) => s >= n);
  const first = Math.floor(s / parts[i][0]);
  const rest = i < 3 ? Math.floor((s % parts[i][0]) / parts[i + 1][0]) : 0;
  return rest ? `${first} ${parts[i][1]} ${rest} ${parts[i + 1][1]}` : `${first} ${parts[i][1]}`;
}

export const percent = (v) => `${(v * 100).toFixed(v < 0.1 && v > 0 ? 1 : 0)} %`;

/** address of bytes as protojson writes them: base64 of 4 or 16. */
export function address(base64) {
  if (!base64) return '';
  const raw = atob(base64);
  const b = Array.from(raw, (c) => c.charCodeAt(0));
  if (b.length === 4) return b.join('.');
  if (b.length !== 16) return '?';
  const groups = [];
  for (let i = 0; i < 16; i += 2) groups.push(b[i] * 256 + b[i + 1]);
  let best = { at: -1, n: 1 };
  for (let i = 0; i < 8; i++) {
    let n = 0;
    while (i + n < 8 && groups[i + n] === 0) n++;
    if (n > best.n) best = { at: i, n };
  }
  const hex = (l) => l.map((g) => g.toString(16)).join(':');
  return best.at < 0 ? hex(groups) : `${hex(groups.slice(0, best.at))}::${hex(groups.slice(best.at + best.n))}`;
}

export const join = (addr, port) => (addr.includes(':') ? `[${addr}]:${port}` : `${addr}:${port}`);
export const endpoint = (e) => (e ? join(address(e.address), e.port) : '');

/** word of an enum: PATH_STATE_UP is up. */
export const word = (value, prefix) => String(value || '').replace(`${prefix}_`, '').replace('UNSPECIFIED', 'unknown').toLowerCase().replace(/_/g, ' ');

export const clock = (date) => date.toLocaleTimeString('en-GB');

/** owner names whose a process is. */
export function owner(program, pid, uid) {
  if (!num(pid) && !program) return `uid ${uid}`;
  return program ? `${program} (pid ${pid}, uid ${uid})` : `pid ${pid}, uid ${uid}`;
}
