// Begins everything, looks at the server once a second, and asks for a key where it wants one.

import { get, key, load, save, setKey } from "./api.js";
import * as chat from "./chat.js";
import * as cluster from "./cluster.js";
import { byId, setText } from "./dom.js";

const EVERY = 1000;
const VIEW = "outboard.view";

chat.start(askForKey);
views();
keys();
look();

async function look() {
  if (document.visibilityState === "visible" && !byId("key-dialog").open) {
    try {
      const seen = await get("cluster");
      cluster.show(seen);
      chat.setModel(seen.model.id);
      setText(byId("model"), seen.model.name);
      setText(byId("cluster-title"), "Cluster");
      const lost = seen.hosts.filter((host) => host.state === "lost" || host.state === "silent").length;
      state(seen.draining ? "stops" : lost ? `${lost} of ${seen.hosts.length} hosts lost` : "", Boolean(lost));
    } catch (error) {
      if (byId("hosts").firstElementChild) setText(byId("cluster-title"), "Cluster, when it was last seen");
      if (error.status === 401) askForKey(error.message);
      state(error.status === 401 ? "asks for a key" : error.status ? error.message : "does not answer", true);
    }
  }
  setTimeout(look, EVERY);
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
