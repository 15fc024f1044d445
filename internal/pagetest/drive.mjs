// Looks at the page of a node in Chromium while the world around it changes, and compares
// what it shows with what the API says. It prints one line of JSON for each check.
//
//	node drive.mjs PAGE-OF-A PAGE-OF-B CONTROL OUT PAGE-OF-C

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { chromium } from 'playwright-core';

import { takeAll } from './quicklook.mjs';

const [base, baseB, control, out, baseC] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const begun = Date.now();
const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });
const order = async (what) => { const r = await fetch(`${control}/${what}`, { method: 'POST' }); if (!r.ok) throw new Error(`${what}: ${r.status}`); };
const api = async (path) => { const r = await fetch(`${base}/api/v1/${path}`); if (!r.ok) throw new Error(`${path}: ${r.status} ${await r.text()}`); return r.json(); };
const addr = (b64) => [...Buffer.from(b64, 'base64')].join('.');
const ep = (e) => `${addr(e.address)}:${e.port}`;

function same(got, want, what) {
  const [g, w] = [JSON.stringify(got), JSON.stringify(want)];
  if (g !== w) throw new Error(`${what}: the page shows ${g}, the API says ${w}`);
}

/** until tries f until it does not throw: what is looked at moves. */
async function until(f, ms = 20_000) {
  for (const end = Date.now() + ms; ; await sleep(150)) {
    try {
      return await f();
    } catch (err) {
      if (Date.now() > end) throw err;
    }
  }
}

async function check(name, f) {
  const from = Date.now();
  let error = '';
  try {
    await f();
  } catch (err) {
    error = String(err.stack || err);
  }
  console.log(JSON.stringify({ name, error, ms: Date.now() - from }));
}

const browser = await chromium.launch({
  executablePath: '/usr/bin/chromium',
  args: ['--no-sandbox', '--headless', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

const complaints = [];
let down = false; // the daemon is, and a browser says so

async function look(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: 'light', bypassCSP: false, ...options });
  const page = await context.newPage();
  page.on('console', (m) => { if (['error', 'warning'].includes(m.type()) && !/willReadFrequently/.test(m.text()) && !(down && /ERR_|Failed to load/.test(m.text()))) complaints.push(m.text()); });
  page.on('pageerror', (e) => complaints.push(String(e.stack)));
  page.on('request', (r) => { const u = new URL(r.url()); if (![base, baseB, baseC].includes(u.origin)) complaints.push(`asked for ${r.url()}`); });
  return page;
}

const page = await look();
const go = (path) => page.goto(`${base}/#${path}`);
const text = (selector) => page.locator(selector).first().innerText();

/** rows of the table with a caption, as objects by column. */
const rows = (title, on = page) => on.evaluate((caption) => {
  const table = [...document.querySelectorAll('table')].find((t) => t.caption?.textContent === caption);
  if (!table) return null;
  const heads = [...table.tHead.rows[0].cells].map((c) => c.textContent);
  return [...table.tBodies[0].rows].map((r) => Object.fromEntries([...r.cells].map((c, i) => [heads[i], c.textContent])));
}, title);

const facts = () => page.evaluate(() => Object.fromEntries([...document.querySelectorAll('.facts > div')].map((d) => [d.querySelector('dt').textContent, d.querySelector('dd').textContent])));
const tile = (label) => page.evaluate((l) => [...document.querySelectorAll('.tile')].find((t) => t.querySelector('.tile-label').textContent === l).querySelector('.tile-value').textContent, label);
const by = (list, key) => [...list].sort((a, b) => String(a[key]).localeCompare(String(b[key])));

// --- what each page shows is what the API says --------------------------------------

/** overviewIsTrue compares the overview with the status. */
const overviewIsTrue = () => until(async () => {
  const s = await api('status');
  const c = await api('congestion');
  const v = await api('volumes');
  same(await text('#state'), s.state, 'state');
  same(await text('#node'), s.local_address.map(addr).join(', '), 'addresses');
  same(await tile('Peers up'), `${s.peers_up} of ${s.peers}`, 'peers');
  same(await tile('Sockets'), String(s.sockets), 'sockets');
  same(await tile('Congested ports'), String(c.port.length), 'congested ports');
  same(await tile('Volumes open'), `${v.mapping.filter((m) => m.state === 'VOLUME_MAPPING_STATE_OPEN').length} of ${v.mapping.length}`, 'volumes');
  const shown = await page.evaluate(() => [...document.querySelectorAll('.problem')].map((p) => [p.dataset.code, p.querySelector('.problem-subject')?.textContent ?? '', p.querySelector('.problem-text').textContent]));
  same(shown, s.problem.map((p) => [p.code, p.subject, p.text]), 'problems');
});

const word = (v, prefix) => v.replace(`${prefix}_`, '').replace('UNSPECIFIED', 'unknown').toLowerCase().replaceAll('_', ' ');

const peersAreTrue = () => until(async () => {
  const { peer } = await api('peers');
  const got = (await rows('Peers')).map((r) => ({ remote: r.Peer, local: r.From, up: /up/.test(r.State), kind: r.Kind, congested: r['Congested ports'] }));
  same(by(got, 'remote'), by(peer.map((p) => ({
    remote: addr(p.remote), local: addr(p.local), up: p.path.some((x) => x.state === 'PATH_STATE_UP'), kind: word(p.kind, 'PEER_KIND'), congested: String(p.congested_ports),
  })), 'remote'), 'peers');
});

const socketsAreTrue = () => until(async () => {
  const { socket } = await api('sockets');
  const got = (await rows('Sockets')).map((r) => ({ local: r.Socket, label: r.Label, program: r.Program, pid: r.Pid, uid: r.Uid, state: r.State }));
  same(by(got, 'local'), by(socket.map((s) => ({
    local: ep(s.local), label: s.label || '–', program: s.program || '–', pid: String(s.pid), uid: String(s.uid), state: s.congested ? 'congested' : 'clear',
  })), 'local'), 'sockets');
});

const volumesAreTrue = () => until(async () => {
  const v = await api('volumes');
  const p = await api('volumes/paths');
  const maps = (await rows('Mapped volumes')).map((r) => ({ id: r.Volume, of: r.Of, state: r.State, paths: r['Paths up'] }));
  same(maps, v.mapping.map((m) => ({ id: m.id, of: `${m.node}:${m.name}`, state: word(m.state, 'VOLUME_MAPPING_STATE'), paths: `${m.paths_up} of ${m.paths}` })), 'mappings');
  const got = (await rows('Paths of volumes')).map((r) => ({ path: r.Path, state: r.State, failovers: r.Failovers, reconnects: r.Reconnects }));
  same(by(got, 'path'), by(p.path.map((x) => ({ path: `${x.source} → ${x.destination}`, state: word(x.state, 'VOLUME_PATH_STATE'), failovers: Number(x.failovers).toLocaleString('en'), reconnects: Number(x.reconnects).toLocaleString('en') })), 'path'), 'paths');
});

/** lit reads the picture of an address: how bright a port is, and one far from it. */
const lit = (address, port) => page.evaluate(([a, n]) => {
  const figure = [...document.querySelectorAll('.picture')].find((p) => p.querySelector('h3').textContent.startsWith(a));
  if (!figure) throw new Error(`no picture of ${a}`);
  const canvas = figure.querySelector('canvas');
  const scale = canvas.width / 256;
  const at = (x, y) => canvas.getContext('2d').getImageData(x * scale, y * scale, 1, 1).data;
  const sum = (d) => d[0] + d[1] + d[2];
  return [sum(at(n % 256, Math.floor(n / 256))), sum(at(200, 203)), canvas.getAttribute('aria-label')];
}, [address, port]);

const STREAM = '127.0.0.62:5001';

// --- the run --------------------------------------------------------------------------

await check('overview', async () => { await go('/'); await overviewIsTrue(); });
await check('peers', async () => { await go('/peers'); await peersAreTrue(); });
await check('sockets', async () => { await go('/sockets'); await socketsAreTrue(); });
await check('volumes', async () => { await go('/volumes'); await volumesAreTrue(); });

await check('script in a label is text', async () => {
  await go('/sockets');
  await until(async () => {
    const r = (await rows('Sockets')).find((x) => x.Label.includes('<script>'));
    if (!r || !r.Label.includes('onerror="window.hit=1"')) throw new Error('the label is not shown as it is');
  });
  for (const path of ['/socket/127.0.0.61%3A4001', '/congestion', '/socket/%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E', '/volume/%3Cscript%3Ewindow.hit%3D1%3C%2Fscript%3E']) {
    await go(path);
    await sleep(400);
  }
  same(await page.evaluate(() => [typeof window.hit, document.querySelectorAll('main img, main script').length]), ['undefined', 0], 'what ran');
});

await check('script in the name of a volume and its device is text', async () => {
  const name = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>';
  await order('hostile');
  await go('/volumes');
  const device = await until(async () => (await api('volumes')).mapping.find((m) => m.id === 'odd').device);
  if (!device.endsWith('/<img src=x onerror="window.hit=1">')) throw new Error(`the API says ${device}`);
  await until(async () => {
    const r = (await rows('Mapped volumes')).find((x) => x.Volume === 'odd');
    if (!r.Of.endsWith(`:${name}`)) throw new Error(`the page shows ${r.Of}`);
  });
  await go('/volume/odd');
  await until(async () => same((await facts()).Device, device, 'device'));
  const there = await look(); // where it is exported
  await there.goto(`${baseB}/#/volumes`);
  await until(async () => { if (!(await there.locator('main').innerText()).includes(name)) throw new Error('its exporter does not show it'); });
  for (const p of [page, there]) same(await p.evaluate(() => [typeof window.hit, document.querySelectorAll('main img, main script').length]), ['undefined', 0], 'what ran');
  await there.context().close();
});
await order('peaceful');

await check('numbers move with traffic', async () => {
  await go('/sockets');
  const value = async () => (await rows('Sockets')).find((r) => r.Socket === '127.0.0.61:5001').Accepted;
  await until(async () => { if (!/^[1-9]/.test(await value())) throw new Error(`accepted: ${await value()}`); });
});

await check('one peer', async () => {
  await go('/peer/127.0.0.62/127.0.0.61');
  await until(async () => {
    const p = (await api('peers')).peer[0];
    same((await rows('Paths')).map((r) => [r.Lane, r.State, r.Connection, r.Reconnects]), p.path.map((x) => [String(x.index), word(x.state, 'PATH_STATE'), `${x.local_endpoint} → ${x.remote_endpoint}`, x.reconnects]), 'paths');
    same(await page.locator('.elsewhere a').getAttribute('href'), `${baseB}/`, 'the page of the peer');
  });
});

await check('one socket', async () => {
  await go('/socket/127.0.0.61%3A5001');
  await until(async () => {
    const s = (await api('sockets')).socket.find((x) => ep(x.local) === '127.0.0.61:5001');
    const f = await facts();
    same([f.Label, f.Owner], [s.label, `${s.program} (pid ${s.pid}, uid ${s.uid})`], 'facts');
  });
});

await check('one volume', async () => {
  await go('/volume/v1');
  await until(async () => {
    const m = (await api('volumes/get?mapping=v1')).mapping;
    const f = await facts();
    same([f.Of, f.Device, f['Paths up'], f.Session], [`${m.node}:${m.name}`, m.device, `${m.paths_up} of ${m.paths}`, m.session], 'facts');
    same((await rows('Operations')).map((r) => r.Operation).sort(), m.operation.map((o) => o.operation).sort(), 'operations');
    if (!/[1-9]/.test((await rows('Operations')).find((r) => r.Operation === 'write').p99)) throw new Error('no latency of writes');
  });
});

await check('congestion: a port lights up', async () => {
  await go('/congestion');
  await order('congest');
  await until(async () => {
    const c = (await api('congestion')).port.find((x) => ep(x.endpoint) === STREAM);
    if (!c) throw new Error('the API does not say that it is congested');
    const r = (await rows('Ports by time congested')).find((x) => x.Port.startsWith(STREAM));
    if (!r || !r.Now.startsWith('for ')) throw new Error(`the page does not show it: ${JSON.stringify(r)}`);
    same(r['Reader to blame'], `pid ${c.reader_pid}, uid ${c.reader_uid}`, 'reader to blame');
    if (!r['Senders that fill it'].startsWith(ep(c.culprit[0].source))) throw new Error(`culprit: ${r['Senders that fill it']}`);
    const [port, elsewhere, label] = await lit('127.0.0.62', 5001);
    if (port < 3 * elsewhere) throw new Error(`the port is as bright as ${port}, others as ${elsewhere}`);
    if (!label.includes('1 of 65,536 ports is congested')) throw new Error(label);
  });
});

await check('congestion: seen on every page', async () => {
  await go('/');
  await until(async () => {
    const there = await (await fetch(`${baseB}/api/v1/status`)).json();
    if (!there.problem.some((p) => p.code === 'port-congested')) throw new Error('the status of its node has no problem of it');
  });
  await overviewIsTrue();
  await go('/peers');
  await peersAreTrue();
  await go('/socket/127.0.0.62%3A5001');
  await until(async () => same(await text('h1 .pill'), 'congested', 'state'));
});

await check('congestion: at home too', async () => {
  const there = await look();
  await there.goto(`${baseB}/#/congestion`);
  await until(async () => {
    const r = (await rows('Ports by time congested', there)).find((x) => x.Port.startsWith(STREAM));
    const s = (await (await fetch(`${baseB}/api/v1/sockets`)).json()).socket.find((x) => ep(x.local) === STREAM);
    same([r.Port, r['Reader to blame']], [`${STREAM}reader`, `${s.program} (pid ${s.pid}, uid ${s.uid})`], 'the reader');
  });
  await there.goto(`${baseB}/#/socket/${encodeURIComponent(STREAM)}`);
  await until(async () => {
    const waiting = await rows('Datagrams that wait', there);
    if (!waiting.length || waiting.some((r) => r.Queue !== 'received, unread')) throw new Error(`its datagrams: ${JSON.stringify(waiting.slice(0, 3))}`);
    const { truncated } = await (await fetch(`${baseB}/api/v1/queue?limit=100&local=${STREAM}`)).json();
    same(await there.locator('text=More wait than are shown').isVisible(), truncated, 'more');
  });
  await there.context().close();
});

await check('congestion: it clears, and the hour stays, also over a reload', async () => {
  await order('clear');
  await go('/congestion');
  await until(async () => {
    if ((await api('congestion')).port.length) throw new Error('still congested');
    const r = (await rows('Ports by time congested')).find((x) => x.Port.startsWith(STREAM));
    same(r.Now, 'clear', 'now');
  });
  const history = async () => {
    const p = (await api('congestion/history')).port.find((x) => ep(x.endpoint) === STREAM);
    const r = (await rows('Ports by time congested')).find((x) => x.Port.startsWith(STREAM));
    same(r.Times, Number(p.times).toLocaleString('en'), 'times');
    if (!/^\d/.test(r['In the last hour'])) throw new Error(`in the last hour: ${r['In the last hour']}`);
    const painted = await page.evaluate(() => { const c = document.querySelector('td canvas.strip'); return c.getContext('2d').getImageData(0, 0, c.width, 1).data.some((v) => v > 0); });
    if (!painted) throw new Error('nothing is painted of the hour');
  };
  await until(history);
  await page.reload();
  await until(history);
});

await check('a volume fails over', async () => {
  await go('/volumes');
  await until(async () => {
    const r = (await rows('Mapped volumes'))[0];
    same(r['Paths up'], '2 of 2', 'paths');
    if (!/^[1-9]/.test(r.Writes)) throw new Error(`writes: ${r.Writes}`);
  }, 30_000);
  await order('cut');
  await until(async () => same((await rows('Mapped volumes')).map((r) => r['Paths up']), ['1 of 2'], 'paths'));
  await volumesAreTrue();
  await until(async () => {
    const n = (await api('volumes/paths')).path.reduce((sum, p) => sum + Number(p.failovers), 0);
    if (!n) throw new Error(`no request took another path: ${JSON.stringify(await rows('Mapped volumes'))}`);
    same((await rows('Mapped volumes'))[0].Failovers, n.toLocaleString('en'), 'failovers');
  });
  await order('mend');
  await until(async () => same((await rows('Mapped volumes')).map((r) => r['Paths up']), ['2 of 2'], 'paths'), 30_000);
  await volumesAreTrue();
});

await check('a peer dies and returns', async () => {
  await go('/peers');
  await order('stop-peer');
  await until(async () => {
    if ((await api('peers')).peer.some((p) => p.path.some((x) => x.state === 'PATH_STATE_UP'))) throw new Error('it is up');
  });
  await peersAreTrue();
  await go('/');
  await until(async () => { if (!(await api('status')).problem.some((p) => p.code === 'peer-down')) throw new Error('no problem of it'); });
  await overviewIsTrue();
  await page.screenshot({ path: `${out}/problems-light.png`, fullPage: true });
  await order('start-peer');
  await go('/peers');
  await until(async () => {
    if (!(await api('peers')).peer.some((p) => p.path.some((x) => x.state === 'PATH_STATE_UP'))) throw new Error('it is not up');
  }, 30_000);
  await peersAreTrue();
});

await check('the daemon restarts under the page', async () => {
  await go('/sockets');
  await socketsAreTrue();
  const before = (await api('status')).instance;
  down = true;
  await order('stop-node');
  await until(async () => {
    if (!/does not answer/.test(await text('#banner'))) throw new Error(`the banner says ${await text('#banner')}`);
    same(await text('#state'), 'not connected', 'state');
  });
  await order('start-node');
  await until(async () => {
    if ((await api('status')).instance === before) throw new Error('the same daemon');
    if (!/was started anew/.test(await text('#banner'))) throw new Error(`the banner says ${await text('#banner')}`);
    same(await text('#state'), 'serving', 'state');
  }, 30_000);
  await socketsAreTrue();
  down = false;
  await go('/');
  await overviewIsTrue();
});

await check('the daemon is killed under the page', async () => {
  const there = await look();
  await there.goto(`${baseC}/#/sockets`);
  const said = async (what) => (await fetch(`${baseC}/api/v1/${what}`)).json();
  const isTrue = () => until(async () => {
    const { socket } = await said('sockets');
    same((await rows('Sockets', there)).map((r) => [r.Socket, r.Label, r.Pid]), socket.map((s) => [ep(s.local), s.label, String(s.pid)]), 'sockets');
    if (socket.length !== 1) throw new Error(`${socket.length} sockets`);
  }, 40_000);
  await isTrue();
  await there.evaluate(() => { window.mark = 'the same page'; });
  const before = (await said('status')).instance;
  down = true;
  await order('kill');
  await until(async () => {
    if (!/does not answer/.test(await there.locator('#banner').innerText())) throw new Error(`the banner says ${await there.locator('#banner').innerText()}`);
    same(await there.locator('#state').innerText(), 'not connected', 'state');
  }, 40_000);
  await order('revive');
  await until(async () => {
    const s = await said('status');
    if (s.instance === before) throw new Error('the same daemon');
    same(await there.locator('#state').innerText(), s.state, 'state');
    if (!/was started anew/.test(await there.locator('#banner').innerText())) throw new Error(`the banner says ${await there.locator('#banner').innerText()}`);
  }, 40_000);
  await isTrue();
  down = false;
  same(await there.evaluate(() => window.mark), 'the same page', 'nobody has loaded it anew');
  await there.context().close();
});

// --- people ---------------------------------------------------------------------------

const focused = () => page.evaluate(() => { const e = document.activeElement; const s = getComputedStyle(e); return { text: e.textContent.trim().slice(0, 60), tag: e.tagName, seen: s.outlineStyle !== 'none' || getComputedStyle(e.parentElement).outlineStyle !== 'none' }; });

await order('congest');
await check('what cannot be made anew is marked', async () => {
  const there = await look();
  await there.addInitScript(() => {
    window.EventSource = class extends EventTarget { // the daemon that speaks is the test
      constructor() { super(); window.source = this; }
      close() {}
    };
  });
  await there.goto(`${base}/#/sockets`);
  const say = (topic, m) => there.evaluate(([t, data]) => window.source.dispatchEvent(new MessageEvent(t, { data })), [topic, JSON.stringify(m)]);
  const marked = (want) => until(async () => {
    const banner = await there.locator('#banner').innerText();
    const stale = await there.evaluate(() => document.body.classList.contains('stale'));
    if (stale !== Boolean(want) || (want ? !want.test(banner) : banner)) throw new Error(`the banner says ${banner}, and all is marked as old: ${stale}`);
  });
  const [status, sockets] = [await api('status'), await api('sockets')];
  await say('status', status);
  await say('failed', { topic: 'sockets', message: 'no memory' });
  await marked(/cannot tell of sockets; it is not shown: no memory/);
  await say('sockets', sockets);
  await marked(null);
  await say('failed', { topic: 'sockets', message: 'no memory' });
  await say('status', status);
  await marked(/cannot tell of sockets; what is shown is of [0-9:]+: no memory/);
  await there.goto(`${base}/#/peers`);
  await marked(null);
  await there.context().close();
});

await check('keyboard', async () => {
  await go('/sockets');
  await page.reload();
  await until(async () => { if (!(await rows('Sockets'))?.length) throw new Error('no rows'); });
  const walked = [];
  for (let i = 0; i < 30; i++) {
    await page.keyboard.press('Tab');
    const f = await focused();
    if (f.tag === 'BODY') break;
    if (!f.seen) throw new Error(`the focus on ${f.tag} ${f.text} is not seen`);
    walked.push(f.text);
  }
  same(walked.slice(0, 7), ['Skip to content', 'rdsd', 'Overview', 'Congestion', 'Peers', 'Sockets', 'Volumes'], 'the order');
  for (const want of ['Socket', 'Label', '127.0.0.61:4001', 'Metrics']) if (!walked.includes(want)) throw new Error(`${want} cannot be reached: ${walked}`);
  // A column is sorted by, and whoever is in a row stays there while the numbers move.
  await page.locator('button.sort', { hasText: 'Program' }).focus();
  await page.keyboard.press('Enter');
  same(await page.locator('th[aria-sort]').innerText(), await page.locator('th', { hasText: 'Program' }).innerText(), 'sorted by');
  await page.locator('tbody a', { hasText: '127.0.0.61:5001' }).focus();
  await sleep(2500);
  same((await focused()).text, '127.0.0.61:5001', 'focus after two updates');
  await page.keyboard.press('Enter');
  await until(async () => { if (!(await text('h1')).startsWith('Socket 127.0.0.61:5001')) throw new Error(await text('h1')); });
  // The picture: arrows move, the place is said.
  await go('/congestion');
  const picture = page.locator('.picture', { has: page.locator('h3', { hasText: '127.0.0.62' }) });
  const said = (want) => until(async () => { const t = await picture.locator('.ports-tip').innerText(); if (!t.startsWith(want)) throw new Error(`${t} is said, not ${want}`); });
  await until(async () => { if (!/1 of 65,536/.test(await picture.locator('canvas').getAttribute('aria-label'))) throw new Error('the port is not lit'); });
  await picture.locator('canvas').focus();
  await said('Port 5001: congested');
  await page.keyboard.press('ArrowRight');
  await said('Port 5002: clear');
  await page.keyboard.press('ArrowUp');
  await said('Port 4746: clear');
  await page.keyboard.press('End');
  await said('Port 5001: congested');
  await page.keyboard.press('Enter');
  await until(async () => { if (!(await text('h1')).startsWith('Socket 127.0.0.62:5001')) throw new Error(await text('h1')); });
});

// For the pictures more is congested, and was for a while before.
await order('crowd');
await sleep(4000);
await order('calm');
await sleep(3500);
await order('crowd');
await until(async () => { if ((await api('congestion')).port.length < 6) throw new Error('the crowd is not congested'); });
const places = { overview: '/', congestion: '/congestion', peers: '/peers', peer: '/peer/127.0.0.62/127.0.0.61', sockets: '/sockets', socket: '/socket/127.0.0.62%3A5001', 'socket-here': '/socket/127.0.0.61%3A5001', volumes: '/volumes', volume: '/volume/v1' };
for (const [look_, options] of Object.entries({ light: {}, dark: { colorScheme: 'dark' }, phone: { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 } })) {
  const p = await look(options);
  for (const [name, path] of Object.entries(places)) {
    await check(`${name}, ${look_}: accessible, and kept as a picture`, async () => {
      await p.goto(`${base}/#${path}`);
      await until(async () => { if (!(await p.evaluate(() => document.querySelector('#state').textContent === 'serving' && document.querySelector('h1') !== null))) throw new Error('not there'); });
      await sleep(800);
      await p.screenshot({ path: `${out}/${name}-${look_}.png`, fullPage: true });
      if (await p.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth)) throw new Error('the page is wider than the window');
      await p.evaluate(axe);
      const { violations } = await p.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
      const serious = violations.filter((v) => ['serious', 'critical'].includes(v.impact));
      if (serious.length) throw new Error(serious.map((v) => `${v.impact} ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => `${n.html} ${n.failureSummary}`).join(' | ')}`).join('\n'));
    });
  }
  await p.context().close();
}
await takeAll(browser, base, `${out}/quick-look`);
await order('clear');
await order('calm');

await check('nothing complained', async () => {
  if (complaints.length) throw new Error([...new Set(complaints)].join('\n'));
});
await browser.close();
console.error(`pagetest: ${((Date.now() - begun) / 1000).toFixed(0)} s`);
