// The selection (run, layer, head, token) and the parts of the page that depend on it.

const chosen = { run: 0, layer: null, head: null, view: "matrix", scale: null, paint: "loss", token: 0 };
const highest = Math.max(0.1, ...data.runs.flatMap((run) => run.losses.filter((loss) => loss !== null)));
const named = (name) => `${name}`.split(/[\\/]/).filter(Boolean).pop() ?? name;
let text, size, unitSize, current = null, asked = 0;

const run = () => data.runs[chosen.run];
const layer = () => run().layers.find((one) => one.name === chosen.layer);
const labels = () => run().tokens.map(shown);

function fill(select, options, value) {
  select.replaceChildren(...options.map(([key, name]) => {
    const option = make("option", name);
    option.value = key;
    return option;
  }));
  select.value = value;
}

const matrix = new Grid(byId("matrix"), "Attention", {
  moved: (cell) => list(cell ? cell.row : chosen.token),
  picked: (row) => choose(row),
});
const lines = new Lines(byId("lines"), { moved: (row) => list(row ?? chosen.token), picked: (row) => choose(row) });
const units = new Grid(byId("unit-map"), "Units over time", { picked: (row, column) => choose(column) });

// ---- header and text

const tokens = (count) => `${count} token${count === 1 ? "" : "s"}`;
const scores = (one) => one.scores ? `; ${one.scores}` : "";
const meanLoss = (one) => { const all = one.losses.filter((loss) => loss !== null); return all.reduce((sum, loss) => sum + loss, 0) / all.length; };

function facts() {
  const one = run();
  document.title = `Looking inside ${data.runs.map((each) => named(each.name)).join(" and ")}`;
  byId("facts").textContent =
    `${one.name}: ${one.model}; ${tokens(one.tokens.length - 1)}${scores(one)}`;
  byId("notes").replaceChildren(...one.notes.map((note) => make("li", note)));
}

function paints() {
  const options = run().losses.some((loss) => loss !== null) ? [["loss", "loss of each token"]] : [];
  if (data.differences) options.push(["difference", "difference of the losses"]);
  if (run().contributions) options.push(["contribution", `gradient × input, for ${run().label}`]);
  if (run().layers.length) options.push(["from", "attention from the selected token"], ["to", "attention to the selected token"]);
  if (!options.some(([key]) => key === chosen.paint)) chosen.paint = options[0]?.[0] ?? "loss";
  fill(byId("paint"), options, chosen.paint);
}

function show() {
  text = new Text(byId("tokens"), run(), { moved: tell, picked: choose });
  text.choose(chosen.token);
}

function tell(place) {
  const at = place ?? chosen.token, token = run().tokens[at];
  const losses = data.runs.map((each) => each.losses[at]);
  let line = `token ${at} ${shown(token)}`;
  if (run().contributions) line += `: gradient × input ${signedShort(run().contributions[at])} for ${run().label}`;
  else if (run().losses.every((loss) => loss === null)) line += ""; // nothing of this text is scored
  else if (losses[0] === null) line += at ? ": not scored" : ": start of the sequence, not scored";
  else if (losses.length === 1) line += `: loss ${losses[0].toFixed(3)}, probability ${written(Math.exp(-losses[0]))}`;
  else line += `: loss ${losses.map((loss) => loss.toFixed(3)).join(" and ")}, difference ${signed(losses[1] - losses[0])}`;
  if (run().unknown[at]) line += "; unknown to the tokenizer";
  byId("token-facts").textContent = line;
}

const apart = data.differences ? Math.max(0.1, ...data.differences.filter((one) => one !== null).map(Math.abs)) : 1;

function paint() {
  const legends = byId("text-legend"), losses = run().losses;
  if (chosen.paint === "difference") {
    text.paint("both", (at) => data.differences[at] === null ? null : 0.5 + data.differences[at] / apart / 2);
    legend(legends, "both", `−${apart.toFixed(1)}`, `+${apart.toFixed(1)}`);
  } else if (chosen.paint === "contribution") {
    const all = run().contributions, most = Math.max(...all.map(Math.abs)) || 1;
    text.paint("both", (at) => 0.5 + all[at] / most / 2);
    legend(legends, "both", signedShort(-most), signedShort(most));
  } else if (chosen.paint === "loss" || !current) {
    text.paint("loss", (at) => losses[at] === null ? null : losses[at] / highest);
    legend(legends, "loss", "0", `${highest.toFixed(1)} nats`);
  } else {
    const weight = chosen.paint === "from" ? (at) => current.at(chosen.token, at) : (at) => current.at(at, chosen.token);
    const all = run().tokens.map((_, at) => Math.abs(weight(at))), most = Math.max(...all) || 1;
    text.paint("weight", (at) => Math.sqrt(all[at] / most));
    legend(legends, "weight", "0", written(most));
  }
}

function choose(place) {
  chosen.token = place;
  text.choose(place);
  tell(place);
  paint();
  draw();
  list(place);
}

// ---- attention

function layers() {
  const all = run().layers;
  byId("attention").hidden = !all.length;
  if (!all.length) return;
  if (!layer()) chosen.layer = all[0].name;
  fill(byId("layer"), all.map((one) => [one.name, one.place]), chosen.layer);
  const heads = layer().heads.map((_, head) => [`${head}`, `${head}`]);
  if (layer().heads.length > 1) heads.push(["average", "average of all heads"]);
  if (layer().rollout) heads.push(["rollout", "rollout up to this layer"]);
  if (!heads.some(([key]) => key === chosen.head)) chosen.head = heads[0][0];
  fill(byId("head"), heads, chosen.head);
}

async function opening_map() {
  const one = layer();
  if (chosen.head === "rollout") return opening(one.rollout, Weights);
  if (chosen.head !== "average") return opening(one.heads[Number(chosen.head)], Weights);
  return new Average(await Promise.all(one.heads.map((head) => opening(head, Weights))));
}

async function attend() {
  if (!run().layers.length) {
    current = null;
    return;
  }
  const mine = ++asked, found = await opening_map();
  if (mine !== asked) return; // something else was chosen meanwhile
  current = found;
  draw();
  list(chosen.token);
  paint();
  mark();
  byId("attention").dataset.shown = `${chosen.layer}/${chosen.head}`;
}

function draw() {
  if (!current) return;
  // In a long text the few weights of the first tokens would outshine all others.
  chosen.scale ??= current.rows > 100 ? "row" : "map";
  byId("scale").value = chosen.scale;
  const names = labels();
  const what = attentionCells(current, names, names, { scale: chosen.scale, causal: layer().causal, chosen: chosen.token });
  const inMatrix = chosen.view === "matrix";
  byId("matrix").hidden = !inMatrix;
  byId("lines").hidden = inMatrix;
  byId("cell-choice").hidden = byId("scale-choice").hidden = byId("map-legend").hidden = !inMatrix;
  if (inMatrix) {
    size ??= matrix.fitting(what);
    byId("cell").value = size;
    matrix.show(what, size);
  } else {
    lines.show(what);
  }
  attentionLegend(byId("map-legend"), current, chosen.scale);
}

function list(row) {
  if (!current) return;
  const names = labels();
  byId("from-title").textContent = `${names[row]} (${row}) attends to`;
  byId("to-title").textContent = `${names[row]} (${row}) is attended to by`;
  rankWeights(byId("from"), names, current.columns, (place) => current.at(row, place), 10);
  rankWeights(byId("to"), names, current.rows, (place) => current.at(place, row), 6);
}

function open(name, head) {
  chosen.layer = name;
  chosen.head = `${head}`;
  layers();
  attend();
}

// Thumbnails of all heads.
async function thumbs() {
  const host = byId("thumbs"), mine = run();
  host.replaceChildren();
  const waiting = [];
  for (const one of mine.layers) {
    const line = make("div", "", "line");
    line.append(make("span", `layer ${one.place}`));
    one.heads.forEach((packed, head) => {
      const button = make("button"), canvas = document.createElement("canvas");
      button.append(canvas, make("span", `head ${head}`));
      button.setAttribute("aria-label", `layer ${one.place} head ${head}`);
      button.dataset.at = `${one.name}/${head}`;
      button.onclick = () => open(one.name, head);
      line.append(button);
      waiting.push([canvas, packed, one]);
    });
    host.append(line);
  }
  mark();
  for (const [canvas, packed, one] of waiting) {
    const map = await opening(packed, Weights);
    if (mine !== run() || !canvas.isConnected) return;
    thumb(canvas, map, one.causal);
  }
}

function mark() {
  const at = `${chosen.layer}/${chosen.head}`;
  for (const button of byId("thumbs").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset.at === at));
  for (const row of byId("summary").querySelectorAll("tbody tr")) row.classList.toggle("now", row.dataset.at === at);
}

function summary() {
  const openThere = (name, head) => { open(name, head); byId("attention").scrollIntoView({ block: "start" }); };
  headTable(byId("summary"), run().summary, { has: (name) => run().layers.some((one) => one.name === name), open: openThere, drawn: mark });
}

// ---- recurrent layers

function recurrent() {
  const all = run().units;
  byId("units").hidden = !all.length;
  if (!all.length) return;
  const places = [...new Set(all.map((one) => one.layer))];
  if (!places.includes(chosen.unitLayer)) chosen.unitLayer = places[0];
  fill(byId("unit-layer"), places.map((place) => [place, place.replace(/^layers\.(\d+)\.mixer/, "$1")]), chosen.unitLayer);
  const parts = all.filter((one) => one.layer === chosen.unitLayer);
  if (!parts.some((one) => one.part === chosen.unitPart)) chosen.unitPart = parts[0].part;
  fill(byId("unit-part"), parts.map((one) => [one.part, one.kind === "gates" ? `gate: ${one.part}` : `state: ${one.part}`]), chosen.unitPart);
}

async function walk() {
  const mine = run(), one = mine.units.find((each) => each.layer === chosen.unitLayer && each.part === chosen.unitPart);
  if (!one) return;
  const map = await opening(one, Units), names = labels();
  if (mine !== run()) return;
  const what = unitCells(one, map, names);
  unitSize ??= units.fitting(what);
  byId("unit-cell").value = unitSize;
  units.show(what, unitSize);
  unitLegend(byId("unit-legend"), one, map);
  byId("unit-facts").textContent = unitFacts(one);
  byId("units").dataset.shown = `${one.layer}/${one.part}`;
}

// ---- two runs

function compare() {
  byId("run-choice").hidden = data.runs.length < 2;
  byId("runs").hidden = !data.differences;
  fill(byId("run"), data.runs.map((one, place) => [place, one.name]), chosen.run);
  if (!data.differences) return;
  const [first, second] = data.runs;
  for (const [name, one] of [["first", first], ["second", second]]) {
    byId(`${name}-name`).textContent = `${one.name}${scores(one).replace(";", ":")}`;
    new Text(byId(`${name}-text`), one, { moved: tell }).paint("loss", (at) => one.losses[at] === null ? null : one.losses[at] / highest);
  }
  const pair = [byId("first-text"), byId("second-text")];
  pair.forEach((one, place) => { one.onscroll = () => { pair[1 - place].scrollTop = one.scrollTop; }; });
  new Text(byId("difference-text"), first, { moved: tell })
    .paint("both", (at) => data.differences[at] === null ? null : 0.5 + data.differences[at] / apart / 2);
  legend(byId("difference-legend"), "both", `${second.name} better`, `${first.name} better`);
  const mean = meanLoss(second) - meanLoss(first), better = data.differences.filter((one) => one < 0 && one !== null).length;
  byId("difference-facts").textContent =
    `${second.name} − ${first.name}: ${signed(mean)} nats per token; ${second.name} is better on ${better} of ${tokens(first.tokens.length - 1)}`;
  const order = data.differences.map((one, place) => [one, place]).filter(([one]) => one !== null);
  order.sort((one, other) => Math.abs(other[0]) - Math.abs(one[0]));
  const head = make("tr"), body = document.createElement("tbody"), top = document.createElement("thead");
  head.append(...["token", "position", first.name, second.name, "difference"].map((name) => make("th", name)));
  top.append(head);
  body.append(...order.slice(0, 20).map(([value, place]) => {
    const row = make("tr");
    row.append(make("td", shown(first.tokens[place])), make("td", `${place}`), make("td", first.losses[place].toFixed(3)),
      make("td", second.losses[place].toFixed(3)), make("td", signed(value)));
    return row;
  }));
  byId("difference-table").replaceChildren(top, body);
}

// ---- wiring

function everything() {
  facts();
  paints();
  show();
  tell(null);
  layers();
  recurrent();
  summary();
  current = null;
  paint();
  compare();
  thumbs();
  walk();
  attend();
}

const changed = (name, act) => byId(name).addEventListener("change", (event) => act(event.target.value));
changed("run", (value) => { chosen.run = Number(value); everything(); });
changed("paint", (value) => { chosen.paint = value; paint(); });
changed("layer", (value) => { chosen.layer = value; layers(); attend(); });
changed("head", (value) => { chosen.head = value; attend(); });
changed("view", (value) => { chosen.view = value; draw(); });
changed("scale", (value) => { chosen.scale = value; draw(); });
changed("unit-layer", (value) => { chosen.unitLayer = value; recurrent(); walk(); });
changed("unit-part", (value) => { chosen.unitPart = value; walk(); });
byId("cell").addEventListener("input", (event) => { size = Number(event.target.value); draw(); });
byId("unit-cell").addEventListener("input", (event) => { unitSize = Number(event.target.value); walk(); });
dark.addEventListener("change", () => { mixRamps(); everything(); });

chosen.token = run().tokens.length - 1;
if (data.first) [chosen.layer, chosen.head] = [data.first.name, data.first.head === null ? "average" : `${data.first.head}`];
everything();
document.documentElement.dataset.ready = "yes";
