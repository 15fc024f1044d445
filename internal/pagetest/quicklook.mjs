// The pictures of docs/quick-look.md: the page as it is, of a node that is not there. What it
// says is fixed, and so is the time, so that a picture changes when the page does.
//
//	node quicklook.mjs --data            prints what the node says, by topic
//	node quicklook.mjs PAGE OUT          takes the pictures; PAGE is a node whose page is used

import { mkdirSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const NOW = Date.UTC(2026, 4, 12, 9, 41, 0); // of the last that is said
const STEP = 5; // seconds between two things that are said
const STEPS = 60;

const ip = (text) => Buffer.from(text.split('.').map(Number)).toString('base64');
const end = (text) => ({ address: ip(text.split(':')[0]), port: Number(text.split(':')[1]) });
const s = (seconds) => String(Math.round(seconds * 1e9));
const KiB = 1024;
const MiB = 1024 * KiB;

/** wave is a number around 1 that moves as traffic does, the same each time. */
const wave = (i, seed) => 1 + 0.22 * Math.sin(i / 7 + seed) + 0.13 * Math.sin(i / 2.3 + 3 * seed) + 0.07 * Math.sin(i * 1.9 + seed);
/** total is the sum of a rate up to step i. */
const total = (rate, i, seed) => {
  let sum = 4e6 * rate / 1000;
  for (let k = 0; k <= i; k++) sum += STEP * rate * wave(k, seed);
  return String(Math.round(sum));
};

const HERE = '10.20.0.11';
const peersList = [['10.20.0.12', 184e3, 21e6, 17e6, 0], ['10.20.0.13', 201e3, 34e6, 12e6, 2], ['10.20.0.14', 173e3, 8e6, 9e6, 1], ['10.20.0.15', 0, 0, 0, 0], ['10.20.0.16', 412e3, 2e6, 3e6, 0]];

const congested = [
  { at: '10.20.0.13:7000', since: 97, queued: 1.2 * MiB, reader: [2114, 998, 'indexer'], from: [['10.20.0.11:7001', 412, 0.9 * MiB], ['10.20.0.14:7001', 133, 0.3 * MiB]], waiting: 2, blocked: 18231, marks: [[300, 60, 900], [420, 30, 2600], [640, 12, 4000], [700, 20, 5000]], times: 41 },
  { at: `${HERE}:4000`, local: true, since: 12, queued: 1.05 * MiB, reader: [1822, 1001, 'ingest'], from: [['10.20.0.12:5100', 390, 0.6 * MiB], ['10.20.0.14:5100', 201, 0.4 * MiB]], waiting: 0, blocked: 0, marks: [[510, 50, 1800], [716, 4, 3000]], times: 12 },
  { at: '10.20.0.14:9300', since: 4, queued: 260 * KiB, reader: [733, 998, 'replica'], from: [['10.20.0.11:9301', 64, 260 * KiB]], waiting: 1, blocked: 210, marks: [[120, 8, 1200], [718, 2, 2000]], times: 5 },
];
// Of this one the daemon there has not said more: nobody here sends to it.
const unsaid = [{ at: '10.20.0.13:33000', since: 31, queued: 0, reader: [0, 0, ''], from: [], waiting: 0, blocked: 0, marks: [[713, 7, 5000]], times: 1 }];
const embers = ['10.20.0.13:2049', '10.20.0.13:21555', '10.20.0.13:40007', '10.20.0.12:52100'];

const slots = (marks) => {
  const slot = [];
  const slot_ms = [];
  for (const [from, n, ms] of marks) for (let i = 0; i < n && from + i < 720; i++) { slot.push(from + i); slot_ms.push(Math.round(ms * (0.6 + 0.4 * Math.abs(Math.sin(i + from))))); }
  return { slot, slot_ms, congested_ns: String(slot_ms.reduce((a, b) => a + b, 0) * 1e6) };
};
const culprits = (from) => from.map(([at, n, b]) => ({ source: end(at), queued_datagrams: String(n), queued_bytes: String(Math.round(b)) }));

const bitmap = (ports) => {
  const first = Math.floor(Math.min(...ports) / 8) * 8;
  const b = Buffer.alloc(Math.floor(Math.max(...ports) / 8) - first / 8 + 1);
  for (const p of ports) b[(p - first) >> 3] |= 1 << ((p - first) & 7);
  return { ports: ports.length, first_port: first, bitmap: b.toString('base64') };
};

const operation = (name, i, rate, size, p50, seed) => ({ operation: name, submitted: String(Number(total(rate, i, seed)) + 3), completed: total(rate, i, seed), errors: '0',
  bytes: String(Number(total(rate, i, seed)) * size), time_ns: String(Number(total(rate, i, seed)) * p50), p50_ns: String(p50), p99_ns: String(p50 * 4), p999_ns: String(p50 * 11) });
const info = (gib) => ({ size_bytes: String(gib * 1024 * MiB), logical_block_bytes: 512, physical_block_bytes: 4096, max_io_bytes: 262144, write_cache: true, fua: true, multi_conn: true });

const path = (state, at, i, more = {}) => ({ session: 'web1-store2', session_id: 's1', role: 'VOLUME_ROLE_CLIENT', source: `${at[0]}:41${at[2]}`, destination: `${at[1]}:16388`, state, state_ns: s(26000), epoch: 1,
  connections: 1, cur_latency_ns: '161000', reconnects: '0', reads: total(800, i, 5), read_bytes: String(800 * 4096 * i * 5), writes: total(350, i, 6), write_bytes: String(350 * 8192 * i * 5), in_flight: 2, failovers: '0', ...more });

/** said is what the node says at step i. */
export function said(i) {
  const up = 26 * 3600 + i * STEP;
  return {
    status: { version: '1.0.0', instance: '77', uptime_ns: s(up), state: 'serving', local_address: [ip(HERE)], rds_port: 16385, peers: 5, peers_up: 4, sockets: 6, memory_used_bytes: String(148 * MiB), memory_budget_bytes: String(1024 * MiB),
      config_file: '/etc/rdsd/rdsd.toml', healthy: false, severity: 'PROBLEM_SEVERITY_ERROR', http_address: '127.0.0.1:16386',
      budget: [['memory', 148 * MiB, 1024 * MiB], ['sockets', 6, 16384], ['peers', 5, 4096], ['clients', 5, 4096]].map(([name, used, limit]) => ({ name, used: String(used), limit: String(limit), refused: '0' })),
      problem: [
        { code: 'peer-down', severity: 'PROBLEM_SEVERITY_ERROR', subject: 'peer 10.20.0.15', text: '10.20.0.15 cannot be reached for 4m10s: connection refused; 3 datagrams wait for it', remedy: 'start rdsd on 10.20.0.15, or see whether a firewall keeps port 16385 closed', since_ns: s(250) },
        { code: 'port-congested', severity: 'PROBLEM_SEVERITY_WARNING', subject: `port ${HERE}:4000`, text: `port ${HERE}:4000 is congested for 12s: pid 1822 (uid 1001, ingest) has 1.0 MiB unread, most of it from 10.20.0.12:5100`, remedy: 'have pid 1822 read, or close its socket: rdsd sockets', since_ns: s(12) },
        { code: 'volume-path-down', severity: 'PROBLEM_SEVERITY_WARNING', subject: 'path 10.20.1.11 > 10.20.1.14', text: 'the path from 10.20.1.11 to 10.20.1.14 is reconnecting for 41s: no route to host', remedy: 'see to the network between these addresses', since_ns: s(41) },
      ] },
    peers: { peer: peersList.map(([remote, rtt, out, back, ports], k) => ({ local: ip(HERE), remote: ip(remote), kind: 'PEER_KIND_RDSD', incarnation: String(5 + k), lanes: 2, queued: rtt ? '2' : '3', queued_bytes: '4096', unacked: rtt ? '11' : '0', unacked_bytes: '45056', congested_ports: ports, rtt_ns: String(Math.round(rtt * wave(i, k))), held: '0',
      path: [0, 1].map((n) => (rtt ? { index: n, state: 'PATH_STATE_UP', local_endpoint: `${HERE}:${40100 + 2 * k + n}`, remote_endpoint: `${remote}:16385`, up_since_ns: s(up - 60), sent_bytes: total(out / 2, i, k + n), received_bytes: total(back / 2, i, k + n + 4), send_credits: 96 }
        : { index: n, state: 'PATH_STATE_ERROR', last_error: 'connection refused', error_age_ns: s(2), attempts: 61, retry_in_ns: s(3) })) })) },
    sockets: { socket: [
      [`${HERE}:4000`, 'orders', 'ingest', 1822, 1001, 1.05 * MiB, 0, true, 8200, 0], [`${HERE}:7001`, 'feed', 'crawler', 2203, 998, 0, 0.92 * MiB, false, 0, 5400], [`${HERE}:9301`, 'mirror', 'replicator', 2310, 998, 12 * KiB, 0.25 * MiB, false, 300, 2100],
      [`${HERE}:5100`, 'metrics', 'collectd', 911, 65534, 3 * KiB, 0, false, 900, 12], [`${HERE}:6000`, 'sessions', 'gateway', 1440, 1002, 40 * KiB, 22 * KiB, false, 3100, 3000], [`${HERE}:6001`, '', 'gateway', 1440, 1002, 0, 0, false, 40, 40],
    ].map(([at, label, program, pid, uid, recv, send, full, read, sent], k) => ({ local: end(at), uid, pid, label, program, send_buffer_bytes: String(MiB), send_queued_bytes: String(Math.round(send * wave(i, k) * 0.9)), recv_buffer_bytes: String(MiB), recv_queued_bytes: String(Math.round(full ? recv : recv * wave(i, k))), recv_hard_limit_bytes: String(4 * MiB), recv_queued: String(Math.round(recv / 1800)),
      congested: full, accepted: total(sent, i, k), delivered: total(sent, i, k), in_flight: String(Math.round(send / 2048)), received: total(read, i, k + 3), inode: String(100 + k), ring_bytes: String(256 * KiB), ring_max_bytes: String(4 * MiB) })) },
    counters: { counter: [['send_queued', 10500, 1], ['recv_delivered', 12600, 2], ['copy_from_user', 21e6, 1], ['copy_to_user', 26e6, 2]].map(([name, rate, seed]) => ({ name, value: total(rate, i, seed), help: name })) },
    congestion: { port: [...congested, ...unsaid].map((c) => ({ endpoint: end(c.at), local: Boolean(c.local), since_ns: s(c.since), queued_bytes: String(Math.round(c.queued)), reader_pid: c.reader[0], reader_uid: c.reader[1], waiting_senders: c.waiting, blocked: String(c.blocked), culprit: culprits(c.from) })) },
    maps: { map: [{ address: ip('10.20.0.13'), local: false, seen_from: ip(HERE), ...bitmap([7000, 33000]) }, { address: ip(HERE), local: true, seen_from: ip(HERE), ...bitmap([4000]) }, { address: ip('10.20.0.14'), local: false, seen_from: ip(HERE), ...bitmap([9300]) }] },
    history: { end_unix_ns: String((NOW + 5000) * 1e6), slot_ns: s(5), slots: 720, kept_ns: s(3600),
      port: [...[...congested, ...unsaid].map((c) => ({ endpoint: end(c.at), local: Boolean(c.local), congested: true, times: c.times, reader_uid: c.reader[1], reader_pid: c.reader[0], reader_program: c.local ? c.reader[2] : '', culprit: culprits(c.from), ...slots(c.marks) })),
        ...embers.map((at, k) => ({ endpoint: end(at), local: false, congested: false, times: 2 + k, ...slots([[90 + 110 * k, 6 + 3 * k, 1400]]) }))], others: {} },
    volumes: {
      mapping: [{ id: 'v1', device: '/dev/nbd0', attach: 'VOLUME_ATTACH_NBD', node: '10.20.0.14', name: 'db', state: 'VOLUME_MAPPING_STATE_OPEN', state_ns: s(26000), info: info(200), access: 'VOLUME_ACCESS_READ_WRITE', session: 'web1-store2', session_id: 's1', policy: 'VOLUME_POLICY_MIN_INFLIGHT', policy_name: 'min-inflight', on_loss: 'VOLUME_ON_LOSS_WAIT', persist: true, users: 1, paths: 2, paths_up: 1,
        operation: [operation('read', i, 1600, 4096, 142e3, 5), operation('write', i, 700, 8192, 231e3, 6), operation('flush', i, 11, 0, 903e3, 7)] }],
      export: [{ name: 'scratch', kind: 'VOLUME_KIND_FILE', path: '/srv/rdsd/scratch.img', state: 'VOLUME_EXPORT_STATE_OPEN', state_ns: s(26000), persist: true, origin: 'VOLUME_ORIGIN_CONFIG', info: info(50), user: [{ session: 'web2-web1', peer: ip('10.20.0.12'), access: 'VOLUME_ACCESS_READ_WRITE', open_ns: s(9000) }],
        operation: [operation('read', i, 90, 16384, 61e3, 8), operation('write', i, 240, 16384, 84e3, 9)] }],
    },
    paths: { path: [path('VOLUME_PATH_STATE_CONNECTED', ['10.20.0.11', '10.20.0.14', '022'], i, { failovers: '37' }),
      path('VOLUME_PATH_STATE_RECONNECTING', ['10.20.1.11', '10.20.1.14', '031'], i, { state_ns: s(41), last_error: 'no route to host', error_age_ns: s(1.2), attempts: 14, retry_in_ns: s(2.6), reconnects_failed: '14', in_flight: 0, cur_latency_ns: '183000' })] },
  };
}

// --- pictures -----------------------------------------------------------------------------

const pictures = {
  overview: { at: '/', viewport: { width: 1120, height: 400 } },
  congestion: { at: '/congestion', viewport: { width: 1120, height: 1580 }, whole: false },
  'congestion-dark': { at: '/congestion', viewport: { width: 1120, height: 860 }, colorScheme: 'dark', whole: false },
  socket: { at: '/socket/10.20.0.11%3A4000', viewport: { width: 1120, height: 400 } },
  peer: { at: '/peer/10.20.0.15/10.20.0.11', viewport: { width: 1120, height: 620 }, whole: false },
  volumes: { at: '/volumes', viewport: { width: 1120, height: 400 } },
  phone: { at: '/', viewport: { width: 390, height: 844 }, whole: false, deviceScaleFactor: 1.5 },
  'phone-congestion': { at: '/congestion', viewport: { width: 390, height: 844 }, whole: false, deviceScaleFactor: 1.5, colorScheme: 'dark' },
};

/** prepare runs in the page before anything else: the clock and the daemon are ours. */
function prepare(now) {
  window.at = now;
  Date.now = () => window.at;
  performance.now = () => window.at - now + 1e6;
  window.fetch = async (url) => new Response(JSON.stringify(/queue/.test(url) ? { datagram: [] } : {}), { status: 200 });
  window.EventSource = class extends EventTarget {
    static CLOSED = 2;
    readyState = 1;
    constructor() { super(); window.source = this; }
    close() { this.readyState = 2; }
  };
}

/** take takes one picture, and tells what is to be read on it. */
async function take(browser, base, name, p) {
  const context = await browser.newContext({ locale: 'en', timezoneId: 'UTC', viewport: p.viewport, colorScheme: p.colorScheme || 'light', deviceScaleFactor: p.deviceScaleFactor || 1, reducedMotion: 'reduce' });
  const page = await context.newPage();
  await page.addInitScript(prepare, NOW - STEPS * STEP * 1000);
  await page.goto(`${base}/#${p.at}`);
  await page.evaluate(([all, from, step]) => {
    all.forEach((messages, i) => {
      window.at = from + i * step;
      for (const [topic, m] of Object.entries(messages)) window.source.dispatchEvent(new MessageEvent(topic, { data: JSON.stringify(m) }));
    });
  }, [Array.from({ length: STEPS }, (_, i) => said(i)), NOW - (STEPS - 1) * STEP * 1000, STEP * 1000]);
  await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); }));
  await page.evaluate(() => document.fonts.ready);
  const png = await page.screenshot({ fullPage: p.whole !== false });
  const text = await page.evaluate(() => document.body.innerText);
  await context.close();
  return { png, text: `## ${name}\n${text.replace(/\s+\n/g, '\n').trim()}\n` };
}

/** webp makes a picture small, by the browser's own means. */
async function webp(browser, png) {
  const page = await browser.newPage();
  const url = await page.evaluate(async (data) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/webp', 0.7);
  }, png.toString('base64'));
  await page.close();
  return Buffer.from(url.split(',')[1], 'base64');
}

/** takeAll puts all pictures, and what is to be read on them, into a directory. */
export async function takeAll(browser, base, out) {
  mkdirSync(out, { recursive: true });
  let text = '';
  for (const [name, p] of Object.entries(pictures)) {
    const shot = await take(browser, base, name, p);
    writeFileSync(`${out}/${name}.png`, shot.png);
    writeFileSync(`${out}/${name}.webp`, await webp(browser, shot.png));
    text += `${shot.text}\n`;
  }
  writeFileSync(`${out}/pictures.txt`, text);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  if (process.argv[2] === '--data') {
    console.log(JSON.stringify(said(STEPS - 1)));
  } else {
    const { chromium } = await import('playwright-core');
    const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--headless', '--disable-gpu', '--no-first-run', '--disable-background-networking'] });
    await takeAll(browser, process.argv[2], process.argv[3]);
    await browser.close();
  }
}
