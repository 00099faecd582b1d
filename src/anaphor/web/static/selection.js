"use strict";
// Names and colors of runs, and which of them are selected.

// Kept in this browser only; a frame without storage keeps them until it is closed.
const memory = {
  held: {},
  read(key) {
    const name = `anaphor.${listing.folder}.${key}`;
    if (!this.held[name])
      try {
        this.held[name] = JSON.parse(localStorage.getItem(name)) ?? {};
      } catch {
        this.held[name] = {};
      }
    return this.held[name];
  },
  write(key, changes) {
    const name = `anaphor.${listing.folder}.${key}`;
    this.held[name] = { ...this.read(key), ...changes };
    try {
      localStorage.setItem(name, JSON.stringify(this.held[name]));
    } catch { /* no storage here */ }
  },
};
addEventListener("storage", () => { memory.held = {}; }); // another tab has changed them

// What is derived from the list of runs, until there is a new one.
const derived = { of: null };
function fromListing(name, make) {
  if (derived.of !== listing) {
    for (const key of Object.keys(derived)) delete derived[key];
    derived.of = listing;
  }
  derived[name] ??= make();
  return derived[name];
}

// A folder in that of this page, in a command; a name with other letters is quoted.
function inFolder(name) {
  const path = listing.place && listing.place !== "." ? `${listing.place}/${name}` : name;
  return /^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}

const find_run = (id) => fromListing("runs", () => new Map(listing.runs.map((run) => [run.id, run]))).get(id);
const run_name = (id) => memory.read("nicknames")[id] || cellName(id) || find_run(id)?.run || id;
const is_hidden = (id) => Boolean(memory.read("hidden")[id]);
const age_of = (one) => (one.age === null || one.age === undefined ? null : one.age + (live ? (Date.now() - listing.received) / 1000 : 0));
const rename_run = (id, name) => memory.write("nicknames", { [id]: name || undefined });
const hide_run = (id, hidden) => memory.write("hidden", { [id]: hidden || undefined });

// The cells of a study have folders with meaningless names: they are called by the settings in which they differ.
function cellName(id) {
  const run = find_run(id);
  if (!run?.study || !/\/cells\/[^/]+$/.test(run.run)) return "";
  return fromListing(`cells ${run.study}`, () => nameCells(listing.runs.filter((other) => other.study === run.study))).get(id);
}

function nameCells(runs) {
  const names = [], parts = (keys) => runs.map((run) => JSON.stringify(keys.map((key) => run.settings?.[key])));
  const isText = (name) => typeof runs[0].settings[name] === "string";
  for (const name of Object.keys(runs[0].settings ?? {}).filter((key) => key !== "seed").sort((one, other) => isText(other) - isText(one)))
    // A setting that follows from those before it distinguishes no more runs.
    if (new Set(parts([...names, name])).size > new Set(parts(names)).size) names.push(name);
  const seeds = new Set(runs.map((run) => run.seed)).size > 1;
  // A name says what it is; a number needs the name of its setting.
  const part = (name, value) => typeof value === "string" ? value : `${name} ${value ?? "–"}`;
  const title = (run) => names.slice(0, 4).map((name) => part(name, run.settings?.[name])).join(", ") || "base";
  return new Map(runs.map((run) => [run.id, `${run.run.replace(/\/cells\/[^/]+$/, "")}: ${title(run)}${seeds ? `, seed ${run.seed}` : ""}`]));
}

// Writes a name where room may be short. Of a cell the study is cut first, because its settings tell it from the others.
function fill_name(element, name) {
  const cut = name.indexOf(": ") + 1;
  element.classList.add("run-name");
  if (cut) element.append(make("span", name.slice(0, cut + 1), "of-study"));
  element.append(make("span", cut ? name.slice(cut + 1) : name));
  return element;
}

const FIRST = 10; // runs, or groups of seeds, that are selected when the address names none

// Ids of the selected runs that exist: those of the address, or the newest ones, cells of studies last.
function selected() {
  if (state.has("runs")) return state.list("runs").filter((id) => find_run(id) && is_of_task(find_run(id)));
  const rank = (run) => (run.status === "training" ? 0 : run.study ? 2e12 : 1e12) + (run.age ?? 1e11);
  const ids = task_runs().filter((run) => run.status !== "unreadable" && !is_hidden(run.id))
    .sort((one, other) => rank(one) - rank(other)).map((run) => run.id);
  return is_grouped() ? groupRuns(ids).slice(0, FIRST).flatMap((group) => group.ids) : ids.slice(0, FIRST);
}

const select_runs = (ids) => state.set({ runs: ids });
const is_grouped = () => state.get("group") === "1";

// Ten colors that color-blind readers can tell apart, for a light and a dark page; beyond ten, lines are dashed.
const PALETTE = [
  ["#4897f2", "#98c6f9"], ["#c68600", "#fba815"], ["#a92307", "#e75434"], ["#6917b5", "#9666ff"], ["#1b6859", "#68f8db"],
  ["#6a2d1f", "#d9ba7b"], ["#ba45ab", "#f26eba"], ["#9d8999", "#8b8479"], ["#719549", "#c7f06f"], ["#353d64", "#7080d9"],
];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

// A color belongs to a run, or to its group of seeds, whatever is selected: runs of a task have colors in the order in which
// they began, and keep them while the page is open. Of selected runs with the same color the later ones are dashed.
const slots = new Map();
const slotKey = (id) => (is_grouped() && find_run(id)?.group) || id;

function slotOf(id) {
  fromListing(`slots ${is_grouped()}`, () => {
    const taken = new Map(); // by task and study, runs outside of studies being one group
    const space = (run) => `${is_grouped()} ${run.task} ${run.study ?? ""}`;
    for (const run of listing.runs) {
      const slot = slots.get(slotKey(run.id));
      if (slot !== undefined) taken.set(space(run), Math.max(taken.get(space(run)) ?? -1, slot));
    }
    for (const run of [...listing.runs].sort(started_order)) {
      if (slots.has(slotKey(run.id))) continue;
      const slot = (taken.get(space(run)) ?? -1) + 1;
      taken.set(space(run), slot);
      slots.set(slotKey(run.id), slot);
    }
    return true;
  });
  return slots.get(slotKey(id)) ?? 0;
}

const run_color = (id) => PALETTE[slotOf(id) % PALETTE.length][dark.matches ? 1 : 0];

const run_dash = (id) => DASHES[(fromListing(`dashes ${state.values} ${JSON.stringify(memory.read("hidden"))}`, rankAlike).get(slotKey(id)) ?? 0) % DASHES.length];

// How many selected runs of the same color come before each of the selected ones.
function rankAlike() {
  const ranks = new Map(), counts = new Map();
  for (const id of selected().sort((one, other) => slotOf(one) - slotOf(other) || one.localeCompare(other))) {
    const color = slotOf(id) % PALETTE.length;
    if (ranks.has(slotKey(id))) continue;
    ranks.set(slotKey(id), counts.get(color) ?? 0);
    counts.set(color, (counts.get(color) ?? 0) + 1);
  }
  return ranks;
}

// A piece of a line for a legend or a table, with its dashes.
function make_swatch(color, dash = []) {
  const swatch = make("span", "", "swatch");
  let at = 0;
  const stops = dash.map((length, place) => `${place % 2 ? "transparent" : color} ${at}px ${(at += length)}px`);
  swatch.style.background = dash.length ? `repeating-linear-gradient(90deg, ${stops.join(", ")})` : color;
  return swatch;
}

// The groups of runs that differ only in their seed, in the order of `ids`; a run alone is a group too.
function groupRuns(ids) {
  const groups = new Map();
  for (const id of ids) {
    const key = find_run(id)?.group || id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(id);
  }
  return [...groups].map(([key, members]) => ({ key, ids: members, name: members.length > 1 ? groupName(members) : run_name(members[0]) }));
}

// What the names of the runs have in common.
function groupName(ids) {
  const names = ids.map(run_name);
  let length = 0;
  while (length < names[0].length && names.every((name) => name[length] === names[0][length])) length++;
  const common = names[0].slice(0, length).replace(/[-_./ =,]*(seed|s)?[-_./ =]*$/i, "");
  return `${common || find_run(ids[0])?.settings?.model || names[0]} × ${ids.length} seeds`;
}
