// The daemon's time. A browser's own may be wrong or be set while the page is open, and whoever
// reads a time here holds it against the log of the node.

import { num } from './format.js';

const mono = () => performance.now(); // milliseconds that nobody sets

let ahead = Date.now() - mono(); // of the daemon's time; until it has told it, the browser's

/** told takes what the daemon says its time is, in nanoseconds. */
export function told(ns) {
  if (num(ns)) ahead = num(ns) / 1e6 - mono();
}

/** ticks count milliseconds, for what lasts; moment makes of such a count the daemon's time of day. */
export const ticks = mono;
export const moment = (at = mono()) => at + ahead;
