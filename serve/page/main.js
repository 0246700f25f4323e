// Begins everything, looks at the server once a second, and asks for a key where it wants one.

import { get, key, load, model, save, setKey, setModel } from "./api.js";
import * as chat from "./chat.js";
import * as cluster from "./cluster.js";
import { byId, el, setText } from "./dom.js";

const EVERY = 1000;
const VIEW = "outboard.view";

chat.start(askForKey);
views();
keys();
byId("models").addEventListener("change", () => {
  setModel(byId("models").value);
  ask();
});
look();

async function look() {
  await ask();
  setTimeout(look, EVERY);
}

async function ask() {
  if (document.visibilityState === "visible" && !byId("key-dialog").open) {
    try {
      const asked = model();
      const seen = await get(asked == null ? "cluster" : `cluster?model=${encodeURIComponent(asked)}`);
      // Another one was chosen meanwhile.
      if (asked !== model()) return;
      cluster.show(seen);
      chat.setModel(seen.model.id);
      setText(byId("model"), seen.model.name);
      showModels(seen.models, seen.model.id);
      setText(byId("cluster-title"), "Cluster");
      const lost = seen.hosts.filter((host) => host.state === "lost" || host.state === "silent").length;
      state(seen.draining ? "stops" : lost ? `${lost} of ${seen.hosts.length} hosts lost` : "", Boolean(lost));
    } catch (error) {
      if (byId("hosts").firstElementChild) setText(byId("cluster-title"), "Cluster, when it was last seen");
      if (error.status === 401) askForKey(error.message);
      // A server that was started anew may have others.
      if (error.status === 404) setModel(null);
      state(error.status === 401 ? "asks for a key" : error.status ? error.message : "does not answer", true);
    }
  }
}

/** A choice, where there are several. */
function showModels(names, shown) {
  const node = byId("models");
  node.hidden = names.length < 2;
  byId("model").hidden = !node.hidden;
  if (names.join("\n") !== [...node.options].map((option) => option.value).join("\n")) {
    node.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }
  if (document.activeElement !== node) node.value = shown;
}

function state(text, isBad) {
  const node = byId("state");
  setText(node, text);
  node.classList.toggle("bad", isBad);
}

/** On narrow windows: chat or cluster. */
function views() {
  const show = (view) => {
    document.body.dataset.view = view;
    for (const name of ["chat", "cluster"]) byId(`show-${name}`).setAttribute("aria-pressed", String(name === view));
    save("sessionStorage", VIEW, view);
  };
  for (const name of ["chat", "cluster"]) byId(`show-${name}`).addEventListener("click", () => show(name));
  show(load("sessionStorage", VIEW) === "cluster" ? "cluster" : "chat");
}

let refused = null;

/** Asks for a key, unless somebody has just said that they have none. */
function askForKey(why) {
  const dialog = byId("key-dialog");
  if (dialog.open || refused === key()) return;
  byId("settings").close();
  if (key()) setText(byId("key-why"), `${why}.`);
  byId("key").value = "";
  dialog.showModal();
}

function keys() {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim(), byId("keep-key").checked);
    refused = null;
    dialog.close();
  });
  byId("key-later").addEventListener("click", () => dialog.close());
  dialog.addEventListener("cancel", () => (refused = key()));
  dialog.addEventListener("close", () => {
    byId("key").value = "";
    byId("question").focus();
  });
  byId("key-later").addEventListener("click", () => (refused = key()));
  byId("change-key").addEventListener("click", () => {
    byId("settings").close();
    refused = null;
    dialog.showModal();
  });
}
