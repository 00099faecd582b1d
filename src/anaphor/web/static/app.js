"use strict";
// The frame of the live page and of a report: the address, questions to the server, the list of runs, and what all views share.
//
// A view is `views.NAME = {title, open(element, state), refresh?(listing), close?(), offered?(listing), keys?}`. Scripts of
// views put their own names inside a block `{ … }`: all scripts share one scope. The page starts when all have been read.

const views = {};
const WARM = 1500; // ms until the process with the models is started: a page that is reloaded at once needs none
const live = data.mode === "live";
let listing = { folder: "", runs: [], studies: [], differing: [], labels: {}, version: "" };

// ---- the address: #VIEW?key=value&…

const SHARED = ["task", "runs", "group"]; // keys that follow the reader from view to view

class State {
  constructor(name, values) {
    this.name = name;
    this.values = values;
    this.closed = false;
    this.aside = false; // of a view that is not the shown one: it has no address
    this.timers = [];
  }

  get(key, otherwise = "") {
    return this.values.get(key) ?? otherwise;
  }

  has(key) {
    return this.values.has(key);
  }

  list(key) {
    return this.get(key).split(",").filter(Boolean);
  }

  // null, "" and false remove a key; {push: true} makes a step that Back undoes.
  set(changes, { push = false } = {}) {
    if (this.closed) return;
    for (const [key, value] of Object.entries(changes))
      if (value === null || value === undefined || value === false || (value === "" && key !== "runs")) this.values.delete(key);
      else this.values.set(key, value === true ? "1" : Array.isArray(value) ? value.join(",") : String(value));
    if (this.aside) return;
    const address = addressOf(this.name, this.values);
    if (framed) framedAddress = address;
    else if (address !== location.hash) history[push ? "pushState" : "replaceState"](null, "", address);
    showTabs();
  }

  // Call `work` now and again `pause` ms after it has ended, until the view is closed; not while the page is hidden.
  repeat(work, pause) {
    const timer = repeat(work, pause);
    this.timers.push(timer);
    return timer;
  }

  close() {
    this.closed = true;
    for (const timer of this.timers) timer.stop();
  }
}

let state = new State("", new URLSearchParams());
let shownView = null;
const lastValues = {}; // of each view, to come back to

// Commas and colons stay readable; all that could end the address is encoded.
function addressOf(name, values) {
  const query = values.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return `#${name}${query ? `?${query}` : ""}`;
}

// A frame in a notebook has no address of its own, and a link there would leave the frame.
const framed = location.protocol === "about:";
let framedAddress = "";

function readAddress() {
  const [, name, query] = /^#?([^?]*)\??(.*)$/s.exec(framed ? framedAddress : location.hash);
  const found = Object.hasOwn(views, name) ? name : Object.keys(views)[0];
  return [found, withDefaults(found, new URLSearchParams(query))];
}

// A report says what its views start with: only that is embedded.
function withDefaults(name, values) {
  for (const [key, value] of Object.entries(data.start?.[name] ?? {})) if (!values.has(key)) values.set(key, value);
  return values;
}

// The address of a view with the selection of now: for links.
function linkTo(name, changes = {}) {
  const values = new URLSearchParams(name === state.name ? state.values : lastValues[name] ?? "");
  for (const key of SHARED)
    if (state.has(key)) values.set(key, state.get(key));
    else values.delete(key);
  if (!state.has("task") && named_tasks().length > 1) values.set("task", current_task());
  if (changes.runs || changes.run || changes.study) values.delete("task"); // it is theirs
  for (const [key, value] of Object.entries(changes)) values.set(key, value);
  return addressOf(name, values);
}

// To a view by its values: a step that Back undoes.
function goTo(name, values) {
  const address = addressOf(name, values);
  if (framed) framedAddress = address;
  else history.pushState(null, "", address);
  return openView();
}

// ---- questions and answers

const encode = encodeURIComponent;
const sortKeys = (value) =>
  Array.isArray(value) ? value.map(sortKeys)
    : value && typeof value === "object" ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sortKeys(value[key])]))
      : value;

// The name of an answer that is embedded in a report.
function keyOf(method, path, content = {}) {
  if (method === "POST") return `POST ${path} ${JSON.stringify(sortKeys(content))}`;
  const query = Object.keys(content).sort().map((key) => `${encode(key)}=${encode(content[key])}`).join("&");
  return `GET ${path}${query ? `?${query}` : ""}`;
}

const has = (key) => live || Object.hasOwn(data.answers ?? {}, key);

function embedded(key) {
  if (!has(key)) throw new Error("not in this report");
  return data.answers[key];
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    showConnection(false);
    throw Object.assign(new Error("no connection to the server; retrying"), { offline: true });
  }
  showConnection(true);
  let content;
  try {
    content = await answer.json();
  } catch {
    content = { error: `the server answered with status ${answer.status}` };
  }
  if (answer.status === 401 || answer.status === 403)
    content.error ??= "access has ended: open the address that anaphor serve printed";
  if (!answer.ok) throw Object.assign(new Error(content.error ?? `status ${answer.status}`), { status: answer.status });
  return content;
}

async function ask(path, params = {}, { signal } = {}) {
  const key = keyOf("GET", path, params);
  return live ? request(key.slice(4), { signal }) : embedded(key);
}

// A POST. Where the answer is a job, it is followed to its end: `progress(done, total, what)` hears of it, and a signal that
// is aborted cancels it.
async function send(path, body, { progress = () => {}, signal } = {}) {
  if (!live) return embedded(keyOf("POST", path, body));
  const post = (where, what, more) => request(where, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(what), ...more,
  });
  const first = await post(path, body, { signal });
  if (first.job === undefined) return first;
  // Kept alive, because a page that is closed or reloaded cancels its work, too: others wait for it.
  const cancel = () => post("/api/cancel", { job: first.job }, { keepalive: true }).catch(() => {});
  signal?.addEventListener("abort", cancel, { once: true });
  addEventListener("pagehide", cancel, { once: true });
  try {
    for (;;) {
      const job = await ask("/api/job", { id: first.job }, { signal });
      if (job.state === "done") return job.result;
      if (job.state === "failed" || job.state === "cancelled") throw new Error(job.error ?? job.state);
      progress(...(job.progress ?? [0, 0, job.state]));
      await new Promise((after) => setTimeout(after, 150));
    }
  } finally {
    signal?.removeEventListener("abort", cancel);
    removeEventListener("pagehide", cancel);
  }
}

// ---- work that is repeated while the page is visible

function repeat(work, pause) {
  let timer = 0, stopped = false, busy = false;
  const turn = async () => {
    if (stopped || busy || document.hidden) return;
    busy = true;
    try {
      await work();
    } catch (error) {
      showError(error);
    }
    busy = false;
    clearTimeout(timer);
    if (!stopped && live) timer = setTimeout(turn, pause);
  };
  const wake = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", wake);
  turn();
  return {
    now: turn,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    },
  };
}

// What is under a pressed pointer, or has the focus while the space bar is pressed, must not be replaced: the click would be lost.
let pressed = false;
const waiting = [];
addEventListener("pointerdown", () => { pressed = true; }, true);
addEventListener("keydown", (event) => { pressed ||= event.key === " "; }, true);
for (const name of ["pointerup", "pointercancel", "keyup", "blur"])
  addEventListener(name, (event) => {
    if (name === "blur" && event.target !== window) return; // only when the whole page loses the keyboard
    pressed = false;
    setTimeout(() => { for (const resolve of waiting.splice(0)) resolve(); }); // after the click
  }, true);
const untilReleased = () => (pressed ? new Promise((resolve) => { waiting.push(resolve); }) : undefined);

// ---- what the page says

// The line below the title; kind is "", "busy" or "error".
function say(text, kind = "") {
  const line = byId("status");
  if (line.textContent !== text) line.textContent = text;
  line.className = kind;
}

function showError(error) {
  if (error.name === "AbortError" || error.offline) return; // the connection has its own line
  say(error.message || String(error), "error");
}

// An event handler whose errors are shown in the status line.
const guard = (work) => async (...given) => {
  try {
    return await work(...given);
  } catch (error) {
    showError(error);
  }
};

// For screen readers only.
function tell(text) {
  byId("said").textContent = text;
}

function showConnection(there) {
  const line = byId("connection"), text = there ? "" : "No connection to the server; retrying.";
  if (line.hidden !== there) line.hidden = there;
  if (line.textContent !== text) line.textContent = text;
}

// ---- views

function showTabs() {
  showTasks();
  const tabs = Object.entries(views).filter(([, view]) => !view.offered || view.offered(listing));
  const host = byId("tabs"), names = tabs.map(([name]) => name).join();
  if (host.dataset.names !== names) {
    host.replaceChildren(...tabs.map(([name, view]) => {
      const item = make("li"), link = make("a", view.title);
      link.dataset.view = name;
      item.append(link);
      return item;
    }));
    host.dataset.names = names;
  }
  for (const link of host.querySelectorAll("a")) {
    link.href = linkTo(link.dataset.view);
    const now = link.dataset.view === state.name, bar = host.parentElement;
    if (!now) link.removeAttribute("aria-current");
    else if (!link.hasAttribute("aria-current")) {
      link.setAttribute("aria-current", "page");
      bar.scrollLeft = link.offsetLeft - bar.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2; // on a phone
    }
  }
}

async function openView() {
  const [name, values] = readAddress(), moved = name !== state.name;
  const view = views[name];
  if (shownView) {
    lastValues[state.name] = state.values.toString();
    shownView.close?.();
  }
  state.close();
  delete document.documentElement.dataset.ready; // it is set again when this view is open
  state = new State(name, values);
  shownView = view;
  document.title = `${view.title} · ${listing.folder || "Anaphor"}`;
  byId("title").textContent = view.title;
  say("");
  showTabs();
  const element = make("div", "", `view ${name}`), own = state;
  byId("view").replaceChildren(element);
  if (moved) scrollTo(0, 0);
  try {
    await view.open(element, own);
  } catch (error) {
    if (!own.closed) showError(error);
  }
  if (!own.closed) document.documentElement.dataset.ready = name;
}

async function refreshListing() {
  const answer = await ask("/api/runs", live && listing.version ? { version: listing.version } : {});
  if (answer.unchanged) return false;
  listing = { ...answer, received: Date.now() };
  byId("folder").textContent = listing.folder;
  return true;
}

async function start() {
  document.documentElement.dataset.mode = data.mode;
  let open = false;
  repeat(async () => {
    const changed = await refreshListing();
    if (!open) {
      open = true;
      addEventListener("popstate", openView);
      await openView();
      if (live && listing.runs.some((run) => run.offers?.includes("look"))) setTimeout(() => send("/api/warm", {}).catch(() => {}), WARM);
    } else if (changed) {
      showTabs();
      await untilReleased();
      await shownView.refresh?.(listing);
    }
  }, 2000);
}

// ---- keys and help

const KEYS = [["/", "to the filter"], ["1 … 9", "to a view"], ["?", "this help"], ["Esc", "close, leave a field"]];

function showHelp() {
  byId("keys").replaceChildren(...[...KEYS, ...(shownView?.keys ?? [])].flatMap(([key, what]) => [make("dt", key), make("dd", what)]));
  byId("help").showModal();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=range]), textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const tab = /^[1-9]$/.test(event.key) && byId("tabs").querySelectorAll("a")[event.key - 1];
  if (event.key === "?") showHelp();
  else if (event.key === "/") byId("view").querySelector("[data-filter]")?.focus();
  else if (tab) tab.click();
  else return;
  event.preventDefault();
});
byId("help-open").addEventListener("click", showHelp);
byId("skip").addEventListener("click", () => byId("main").focus());

// Paper is light, whatever the page is: while it is printed nothing is drawn again, and the style sheet turns what was drawn
// for a dark page.
let printing = false;
const markScheme = () => document.documentElement.classList.toggle("drawn-dark", dark.matches);
function drawAgain() {
  if (printing) return;
  markScheme();
  mixRamps();
  if (shownView) openView();
}
markScheme();
dark.addEventListener("change", drawAgain);
addEventListener("beforeprint", () => { printing = true; });
addEventListener("afterprint", () => {
  printing = false;
  if (document.documentElement.classList.contains("drawn-dark") !== dark.matches) drawAgain();
});
if (framed)
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    framedAddress = link.getAttribute("href");
    openView();
  });
document.addEventListener("DOMContentLoaded", start);
