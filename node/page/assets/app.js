// The page: which view is shown, the stream that feeds it, and what is told of both.

import { h, setText, setAttr, link } from './dom.js';
import { told, ticks, moment } from './clock.js';
import { address, clock, time, num } from './format.js';
import { Store } from './store.js';
import { Overview } from './overview.js';
import { Peers, Peer } from './peers.js';
import { Sockets, Socket } from './sockets.js';
import { Congestion } from './congestion.js';
import { Volumes, Mapping, Export } from './volumes.js';

const routes = [
  [/^\/?$/, Overview],
  [/^\/congestion$/, Congestion],
  [/^\/peers$/, Peers],
  [/^\/peer\/([^/]+)\/([^/]+)$/, Peer],
  [/^\/sockets$/, Sockets],
  [/^\/socket\/([^/]+)$/, Socket],
  [/^\/volumes$/, Volumes],
  [/^\/volume\/([^/]+)$/, Mapping],
  [/^\/export\/(.+)$/, Export],
];

const SILENCE = 12_000; // after which the daemon is taken to be gone: it says something every 5 s
const byId = (id) => document.getElementById(id);

const store = new Store();
let view = null;
let source = null;
let sourceTopics = '';
let heard = 0;
let retry = 1000;
let retryTimer = 0;
let drawTimer = 0;
let instance = '';
let version = '';
let trouble = ''; // why what is shown may be old
let restarted = -Infinity;

// --- views ---------------------------------------------------------------------------

function route() {
  let path = location.hash.replace(/^#/, '') || '/';
  for (const [pattern, View] of routes) {
    const m = path.match(pattern);
    if (!m) continue;
    let args;
    try {
      args = m.slice(1).map(decodeURIComponent);
    } catch {
      break;
    }
    return new View(store, ...args);
  }
  return null;
}

function show() {
  if (view && view.close) view.close();
  view = route();
  const main = byId('main');
  if (!view) {
    main.replaceChildren(h('h1', null, 'There is no such page'), h('p', null, link('#/', 'Overview')));
    document.title = 'rdsd';
    return;
  }
  main.replaceChildren(view.el);
  document.title = `${view.title} · rdsd`;
  for (const a of byId('nav').querySelectorAll('a')) {
    const here = a.getAttribute('href') === `#${view.nav}`;
    setAttr(a, 'aria-current', here ? 'page' : null);
    if (here) a.scrollIntoView({ block: 'nearest', inline: 'nearest' }); // on a phone it may be beyond the edge
  }
  connect();
  draw();
}

function draw() {
  drawTimer = 0;
  if (document.hidden) return;
  head();
  if (view) view.update();
}

function soon() {
  if (!drawTimer) drawTimer = requestAnimationFrame(draw);
}

/** head is what every view has around it. */
function head() {
  const status = store.get('status');
  const banner = byId('banner');
  if (status) {
    setText(byId('node'), status.local_address.map(address).join(', '));
    const state = byId('state');
    const bad = trouble ? 'not connected' : status.state;
    setText(state, bad);
    setAttr(state, 'data-tone', trouble ? 'bad' : status.state === 'serving' ? 'ok' : 'warn');
    setText(byId('about'), `rdsd ${status.version} · up ${time(status.uptime_ns)}`);
  } else if (trouble) {
    setText(byId('state'), 'not connected');
    setAttr(byId('state'), 'data-tone', 'bad');
  }
  let text = trouble || missing();
  const old = Boolean(text);
  if (!old && ticks() - restarted < 15_000) text = `The daemon was started anew at ${clock(new Date(moment(restarted)))}: what is shown is of its new life.`;
  setAttr(banner, 'data-tone', old ? 'bad' : 'info');
  setText(banner, text);
  banner.hidden = !text;
  document.body.classList.toggle('stale', old);
}

/** missing says what of this view the daemon could not make anew, and why. */
function missing() {
  const topics = ['status', ...(view ? view.topics.filter((t) => t !== 'status') : [])].filter((t) => store.failed[t]);
  if (!topics.length) return '';
  const of = Math.min(...topics.map((t) => store.at[t] ?? 0));
  const since = of ? `what is shown is of ${clock(new Date(moment(of * 1000)))}` : 'it is not shown';
  return `The daemon cannot tell of ${topics.join(', ')}; ${since}: ${store.failed[topics[0]]}`;
}

// --- the stream ----------------------------------------------------------------------

function connect() {
  if (document.hidden || !view) return;
  const topics = ['status', ...view.topics.filter((t) => t !== 'status')].join(',');
  if (source && topics === sourceTopics) return;
  disconnect();
  sourceTopics = topics;
  heard = ticks();
  source = new EventSource(`/api/v1/events?topics=${topics}`);
  source.onopen = () => { heard = ticks(); };
  for (const topic of topics.split(',')) source.addEventListener(topic, (e) => take(topic, e.data));
  source.addEventListener('alive', (e) => { told(JSON.parse(e.data).unix_ns); live(); });
  source.addEventListener('failed', (e) => {
    live();
    const f = JSON.parse(e.data);
    store.failed[f.topic] = f.message;
    soon();
  });
  source.onerror = () => lost(source);
}

function disconnect() {
  clearTimeout(retryTimer);
  retryTimer = 0;
  if (source) source.close();
  source = null;
}

function live() {
  heard = ticks();
  retry = 1000;
  if (trouble) {
    trouble = '';
    soon();
  }
}

function take(topic, data) {
  const message = JSON.parse(data);
  if (topic === 'status') {
    if (instance && message.instance !== instance) {
      // Another life of the daemon: numbers begin anew, and so does what was made of them.
      store.forget();
      restarted = ticks() - num(message.uptime_ns) / 1e6;
      if (version !== message.version) {
        location.reload(); // another version has another page
        return;
      }
    }
    instance = message.instance;
    version = message.version;
  }
  store.take(topic, message);
  live();
  soon();
}

/** lost says that what is shown is old, and tries again: a browser does not where it was refused. */
async function lost(of) {
  if (of !== source || !source) return;
  const refused = source.readyState === EventSource.CLOSED;
  const since = heard ? ` What is shown is of ${clock(new Date(moment(heard)))}.` : '';
  trouble = `The daemon does not answer; this is tried again.${since}`;
  soon();
  if (!refused) return;
  const topics = sourceTopics;
  disconnect();
  retryTimer = setTimeout(() => { sourceTopics = ''; connect(); }, retry + Math.random() * 500);
  retry = Math.min(retry * 2, 10_000);
  const stop = new AbortController();
  try {
    const answer = await fetch(`/api/v1/events?topics=${topics}`, { signal: stop.signal });
    if (!answer.ok) {
      const { error } = await answer.json();
      trouble = `The daemon refuses: ${error.message}.${since}`;
      soon();
    }
  } catch {
    // It is not there: that has been said.
  } finally {
    stop.abort();
  }
}

// A dead connection is silent, and a browser does not notice.
setInterval(() => {
  if (!document.hidden && source && ticks() - heard > SILENCE) {
    trouble = `Nothing was heard of the daemon since ${clock(new Date(moment(heard)))}; this is tried again.`;
    heard = ticks();
    disconnect();
    connect();
    soon();
  }
}, 2000);

// Nobody looks at a page that is hidden: it asks for nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    disconnect();
    sourceTopics = '';
  } else {
    store.forget();
    connect();
    soon();
  }
});

window.addEventListener('hashchange', () => {
  show();
  const main = byId('main');
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
byId('skip').addEventListener('click', (e) => {
  e.preventDefault();
  byId('main').focus();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
show();
