// Nodes and numbers. Nothing here or elsewhere makes markup of text.

/** A node: `el("p", {class: "hint", onclick: f, "aria-label": "x"}, "text", node)`. Children that are null are left out. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Sets a node's text where it is another one, so that what is selected stays so. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes the children of `parent` those of `items`, in their order; those with the same key stay, and are updated. */
export function keep(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = old.get(name);
    if (!node) {
      node = make(item);
      node.dataset.key = name;
    }
    old.delete(name);
    if (node !== place) parent.insertBefore(node, place);
    else place = place.nextElementSibling;
    update(node, item);
  }
  old.forEach((node) => node.remove());
}

/** Bytes as `16.4 MiB`. */
export function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let unit = -1;
  do {
    n /= 1024;
    unit += 1;
  } while (n >= 1000 && unit < units.length - 1);
  return `${n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : n.toFixed(0)} ${units[unit]}`;
}

/** A number with about three digits. */
export function digits(n) {
  return n === 0 || n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

export const ms = (n) => `${digits(n)} ms`;

/** `1 device`, `2 devices`. */
export const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
