// Images with maps over them.

const state = { image: 0, view: Object.keys(data.images[0].all)[0], layer: -1, head: -1 };
const layered = (view) => (data.images[0].layers[view] || []).length > 0;
const headed = (view) => view === "attention" || view === "gradient-weighted";

// ---- the maps

// The values of a map as shares of its largest one, and that one.
async function heatOf(image, { view, layer, head }) {
  const packed = layer < 0 || !layered(view) ? image.all[view] : image.layers[view][layer];
  const weights = await opening(packed, Weights);
  const row = layer < 0 || !headed(view) || head < 0 || head + 1 >= weights.rows ? 0 : head + 1;
  return {
    largest: weights.peaks[row],
    share: (place) => weights.peaks[row] ? weights.at(row, place) / weights.peaks[row] : 0,
    at: (place) => weights.at(row, place),
  };
}

const paint = (canvas, image, heat, least) =>
  paintImage(canvas, image, heat, { least, opacity: Number(byId("opacity").value), box: byId("box").checked });

// ---- the parts of the page

function describe({ view, layer, head }) {
  if (layer < 0 || !layered(view)) return layered(view) ? `${heatWords[view]}, all layers` : heatWords[view];
  const through = view === "rollout" ? "up to layer" : "layer";
  const part = headed(view) ? (head < 0 ? ", mean of the heads" : `, head ${head}`) : "";
  return `${heatWords[view]}, ${through} ${data.layers[layer].place}${part}`;
}

let turn = 0;
async function draw() {
  const mine = ++turn, chosen = { ...state }, image = data.images[chosen.image];
  byId("view").value = chosen.view;
  byId("layer-choice").hidden = !layered(chosen.view);
  byId("layer").value = chosen.layer + 1;
  byId("layer-name").textContent = chosen.layer < 0 ? "all layers" : data.layers[chosen.layer].place;
  byId("head-choice").hidden = chosen.layer < 0 || !layered(chosen.view) || !headed(chosen.view);
  fillHeads();
  byId("about").textContent = heatAbout[chosen.view];
  legend(byId("legend"), "heat", "0", "largest of each map");
  const options = [...byId("gallery").children];
  for (const [number, option] of options.entries()) {
    option.setAttribute("aria-selected", number === chosen.image);
    option.tabIndex = number === chosen.image ? 0 : -1;
  }
  byId("one-title").textContent = image.name;
  byId("overlay-name").textContent = describe(chosen);
  byId("overlay").setAttribute("aria-label", `${image.name}: ${describe(chosen)}`);
  rankBars(byId("probabilities"), Object.entries(image.probabilities), 1, (p) => p.toFixed(3), image);
  const ratios = Object.entries(image.ratios);
  for (const part of document.querySelectorAll(".boxed")) part.hidden = !ratios.length;
  rankBars(byId("ratios"), ratios, Math.max(1, ...ratios.map(([, ratio]) => ratio)), (ratio) => `${ratio.toFixed(2)} ×`);
  const heat = await heatOf(image, chosen);
  await Promise.all([paint(byId("plain"), image, null, 448), paint(byId("overlay"), image, heat, 448)]);
  await Promise.all(options.map(async (option, number) =>
    paint(option.querySelector("canvas"), data.images[number], await heatOf(data.images[number], chosen), 160)));
  await drawThumbs(image, chosen);
  if (mine === turn) document.documentElement.dataset.drawn = Object.values(chosen).join(" ");
}

function fillHeads() {
  const heads = state.layer < 0 ? 0 : data.layers[state.layer].heads, host = byId("head");
  if (state.head >= heads) state.head = -1;
  if (host.options.length !== heads + 1) {
    host.replaceChildren(...Array.from({ length: heads + 1 }, (_, number) => {
      const option = make("option", number ? String(number - 1) : "mean");
      option.value = number - 1;
      return option;
    }));
  }
  host.value = state.head;
}

// Every layer and head of the selected image; one click shows it in all images.
async function drawThumbs(image, { view, layer, head }) {
  const shown = layered(view) ? data.layers : [];
  byId("layers-title").hidden = !shown.length;
  byId("layers-title").textContent = headed(view) ? "Layers and heads" : "Layers";
  const lines = await Promise.all(shown.map(async ({ place, heads }, number) => {
    const line = make("div", "", "line");
    line.append(make("span", `layer ${place}`));
    const parts = Array.from({ length: headed(view) && heads > 1 ? heads + 1 : 1 }, (_, part) => part - 1);
    line.append(...await Promise.all(parts.map(async (part) => {
      const button = make("button"), canvas = document.createElement("canvas");
      button.type = "button";
      button.setAttribute("aria-pressed", number === layer && part === head);
      await paint(canvas, image, await heatOf(image, { view, layer: number, head: part }), 144);
      button.append(canvas, make("span", !headed(view) ? "up to here" : part < 0 ? "mean" : `head ${part}`));
      button.addEventListener("click", () => choose({ layer: number, head: part }));
      return button;
    })));
    return line;
  }));
  const focused = [...byId("thumbs").querySelectorAll("button")].indexOf(document.activeElement);
  byId("thumbs").replaceChildren(...lines);
  if (focused >= 0) byId("thumbs").querySelectorAll("button")[focused]?.focus();
}

function choose(changes) {
  Object.assign(state, changes);
  draw();
}

function pick(number) {
  const option = byId("gallery").children[number];
  if (!option) return;
  choose({ image: number });
  option.focus();
}

// ---- once

byId("facts").textContent = `${data.run}: ${data.model}`;
byId("notes").replaceChildren(...data.notes.map((note) => make("li", note)));
byId("view").replaceChildren(...Object.keys(data.images[0].all).map((view) => {
  const option = make("option", heatWords[view]);
  option.value = view;
  return option;
}));
byId("layer").max = data.layers.length;
byId("box-choice").hidden = !data.images.some((image) => image.box);
byId("gallery").replaceChildren(...data.images.map((image, number) => {
  const option = make("div");
  option.setAttribute("role", "option");
  const wrong = image.true !== null && image.true !== image.label;
  const sure = `${Math.round(100 * image.probabilities[image.label])} %`;
  option.title = image.name;
  option.append(document.createElement("canvas"), make("span", image.label, wrong ? "wrong" : ""));
  if (wrong) option.append(make("span", `true: ${image.true}`));
  option.append(make("span", sure, "quiet"), make("span", image.name.split("/").pop(), "quiet"));
  option.addEventListener("click", () => pick(number));
  return option;
}));
byId("gallery").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  pick(state.image + step);
});
byId("view").addEventListener("change", (event) => choose({ view: event.target.value }));
byId("layer").addEventListener("input", (event) => choose({ layer: Number(event.target.value) - 1 }));
byId("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
byId("opacity").addEventListener("input", () => draw());
byId("box").addEventListener("change", () => draw());
dark.addEventListener("change", () => { mixRamps(); draw(); });
byId("overlay").addEventListener("pointermove", async (event) => {
  const image = data.images[state.image], edge = event.target.getBoundingClientRect();
  const column = Math.min(Math.max(Math.floor((event.clientX - edge.left) / edge.width * image.columns), 0), image.columns - 1);
  const row = Math.min(Math.max(Math.floor((event.clientY - edge.top) / edge.height * image.rows), 0), image.rows - 1);
  const heat = await heatOf(image, state), value = heat.at(row * image.columns + column);
  byId("patch").textContent = `Patch in row ${row}, column ${column}: ${written(value)} (largest ${written(heat.largest)})`;
});
byId("overlay").addEventListener("pointerleave", () => { byId("patch").textContent = ""; });
draw().then(() => { document.documentElement.dataset.ready = "yes"; });
