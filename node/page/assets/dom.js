// Elements are made by h() alone, whose texts are text: nothing here makes markup of a
// string, and the policy of the page would not let it.

/** h makes an element. Attributes that are functions listen, those that are null are left out. */
export function h(tag, attrs, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') el.addEventListener(name.slice(2), value);
    else if (name === 'class') el.className = value;
    else el.setAttribute(name, value === true ? '' : String(value));
  }
  el.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

/** setText changes a text only if it is another, so that nothing is told or drawn twice. */
export function setText(el, text) {
  text = String(text);
  if (el.textContent !== text) el.textContent = text;
}

export function setAttr(el, name, value) {
  if (value === null || value === undefined || value === false) {
    if (el.hasAttribute(name)) el.removeAttribute(name);
  } else if (el.getAttribute(name) !== String(value)) el.setAttribute(name, value === true ? '' : String(value));
}

/** pill is a state in a word, with a colour that only repeats it. */
export const pill = (text, tone) => h('span', { class: 'pill', 'data-tone': tone || 'idle' }, text);

/** meter is a share as a bar, with its text. */
export function meter(used, limit, text, tone) {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  const fill = h('span', { class: 'meter-fill', 'data-tone': tone || (share > 0.9 ? 'bad' : share > 0.7 ? 'warn' : 'ok') });
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  return h('span', { class: 'meter' }, h('span', { class: 'meter-bar', 'aria-hidden': 'true' }, fill), h('span', { class: 'meter-text' }, text));
}

export const link = (href, text, attrs) => h('a', { href, ...attrs }, text);

/** card is a section with a heading. */
export function card(title, ...children) {
  const id = `h-${title.toLowerCase().replace(/[^a-z0-9]+/g, '-')}`;
  return h('section', { class: 'card', 'aria-labelledby': id }, h('h2', { id }, title), ...children);
}

/** Facts is a list of names and values, brought up to date in place. */
export class Facts {
  constructor() {
    this.el = h('dl', { class: 'facts' });
    this.values = new Map();
  }

  update(facts) {
    for (const [name, value] of facts) {
      let dd = this.values.get(name);
      if (!dd) {
        dd = h('dd');
        this.values.set(name, dd);
        this.el.append(h('div', null, h('dt', null, name), dd));
      }
      put(dd, value);
    }
  }
}

/** put shows a value in a cell: a string, or [signature, make], of which make is called when the signature is another. */
export function put(el, value) {
  const [signature, make] = Array.isArray(value) ? value : [`t${value ?? ''}`, null];
  if (el.signature === signature) return;
  el.signature = signature;
  if (make) el.replaceChildren(...[make()].flat());
  else el.textContent = String(value ?? '');
}

const SHOWN = 200;
const collate = new Intl.Collator('en', { numeric: true }).compare;

/**
 * Table shows rows that have keys. A row keeps its elements as long as it is there, so that
 * whoever is in it with the keyboard stays there. Columns can be sorted by, rows filtered.
 */
export class Table {
  constructor({ title, columns, key, empty, sort, filter = true }) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.last = [];
    this.all = false;
    this.sort = sort || { id: columns[0].id, down: false };
    this.body = h('tbody');
    this.heads = columns.map((c) => {
      const button = h('button', { type: 'button', class: 'sort', title: c.title || null, onclick: () => this.sortBy(c) }, c.label);
      return h('th', { scope: 'col', class: c.num ? 'num' : null }, c.value ? button : c.label);
    });
    this.note = h('p', { class: 'note', hidden: true });
    this.empty = h('p', { class: 'empty' }, empty);
    this.filter = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': `Filter ${title.toLowerCase()}`, oninput: () => this.draw() });
    this.table = h('table', null, h('caption', { class: 'hidden' }, title), h('thead', null, h('tr', null, this.heads)), this.body);
    this.tools = h('div', { class: 'tools' }, this.filter);
    this.more = h('button', { type: 'button', class: 'button', hidden: true, onclick: () => { this.all = true; this.draw(); } }, 'Show all');
    this.el = h('div', { class: 'table' }, filter ? this.tools : null, h('div', { class: 'scroll' }, this.table), this.empty, h('div', { class: 'more' }, this.note, this.more));
    this.update([]);
  }

  sortBy(column) {
    this.sort = { id: column.id, down: this.sort.id === column.id ? !this.sort.down : Boolean(column.num) };
    this.draw();
  }

  update(rows) {
    this.last = rows;
    this.draw();
  }

  draw() {
    const column = this.columns.find((c) => c.id === this.sort.id);
    const words = this.filter.value.trim().toLowerCase();
    let rows = this.last;
    if (words) rows = rows.filter((r) => this.columns.some((c) => c.value && String(c.find ? c.find(r) : c.value(r)).toLowerCase().includes(words)));
    const order = (a, b) => (typeof a === 'number' ? a - b : collate(String(a), String(b)));
    rows = [...rows].sort((a, b) => (this.sort.down ? -1 : 1) * order(column.value(a), column.value(b)) || order(this.key(a), this.key(b)));
    const found = rows.length;
    if (!this.all) rows = rows.slice(0, SHOWN);
    this.heads.forEach((th, i) => setAttr(th, 'aria-sort', this.columns[i].id === this.sort.id ? (this.sort.down ? 'descending' : 'ascending') : null));
    const gone = new Set(this.rows.keys());
    let at = this.body.firstChild;
    for (const row of rows) {
      const key = this.key(row);
      gone.delete(key);
      let tr = this.rows.get(key);
      if (!tr) {
        tr = h('tr', { 'data-key': key }, this.columns.map((c, i) => h(i === 0 ? 'th' : 'td', { scope: i === 0 ? 'row' : null, class: c.num ? 'num' : null, 'data-label': c.label })));
        this.rows.set(key, tr);
      }
      this.columns.forEach((c, i) => put(tr.children[i], c.cell ? c.cell(row) : c.value(row)));
      setAttr(tr, 'data-tone', row.tone);
      if (tr === at) at = at.nextSibling;
      else this.body.insertBefore(tr, at);
    }
    for (const key of gone) {
      this.rows.get(key).remove();
      this.rows.delete(key);
    }
    this.table.hidden = found === 0;
    this.empty.hidden = found > 0;
    this.tools.hidden = this.last.length < 6 && !words;
    this.note.hidden = found === rows.length;
    this.more.hidden = found === rows.length;
    setText(this.note, `${rows.length} of ${found} are shown.`);
  }
}
