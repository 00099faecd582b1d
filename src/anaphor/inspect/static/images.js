// Images with maps over them. A map is a value for each patch; its colors run from zero to the largest value of that map.

const words = {
  "attention": "attention",
  "rollout": "attention rollout",
  "gradient-weighted": "gradient-weighted attention",
  "saliency": "gradient × input",
};
const about = {
  "attention": "Attention weights of what the classifier reads (the class token, or the mean of the patches) on each patch; all layers: the average over heads and layers.",
  "rollout": "Attention rollout: head averages with the residual connection, multiplied from the first layer to the chosen one.",
  "gradient-weighted": "Attention × gradient of the predicted class's logit, positive part; all layers: the products of all layers combined.",
  "saliency": "|Gradient of the predicted class's logit × input|, summed over the pixels of a patch.",
};

// The color map magma at 17 places: light and dark pages have the same, and it is safe for the color-blind.
const magma = ["#000004", "#0b0924", "#20114b", "#3b0f70", "#57157e", "#721f81", "#8c2981", "#a8327d", "#c43c75",
  "#de4968", "#f1605d", "#fa7f5e", "#fe9f6d", "#febf84", "#fddea0", "#fcf1b5", "#fcfdbf"];
stops.heat = [magma, magma];
mixRamps();

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

// An image as a canvas of its own size, in color, or in gray for what is drawn over it.
const drawn = new Map();
function canvasOf(image, gray) {
  const key = gray ? image.pixels : image;
  if (!drawn.has(key)) drawn.set(key, bytesOf(image.pixels.cells).then((raw) => unpacked(raw, image.pixels, gray)));
  return drawn.get(key);
}

function unpacked(raw, { width, height }, gray) {
  const canvas = document.createElement("canvas"), picture = new ImageData(width, height), { data: cells } = picture;
  for (let place = 0; place < width * height; place++) {
    const from = 3 * place, to = 4 * place;
    const mean = 0.25 * (raw[from] + raw[from + 1] + raw[from + 2]); // darker: a white object is no large value
    for (let part = 0; part < 3; part++) cells[to + part] = gray ? mean : raw[from + part];
    cells[to + 3] = 255;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}

// Draw an image at its own size, larger by a whole factor where it is small. With a map it is gray, and the less covered
// the smaller the value is.
async function paint(canvas, image, heat, least = 0) {
  const base = await canvasOf(image, heat !== null), factor = Math.max(1, Math.ceil(least / Math.max(base.width, base.height)));
  const wide = canvas.width = base.width * factor, high = canvas.height = base.height * factor;
  const context = canvas.getContext("2d"), opacity = Number(byId("opacity").value);
  context.imageSmoothingEnabled = false;
  context.drawImage(base, 0, 0, wide, high);
  for (let row = 0, place = 0; heat && row < image.rows; row++)
    for (let column = 0; column < image.columns; column++, place++) {
      const share = Math.min(heat.share(place), 1), step = 3 * Math.round(255 * share);
      const left = Math.round(column * wide / image.columns), top = Math.round(row * high / image.rows);
      const [red, green, blue] = ramps.heat.subarray(step, step + 3);
      context.fillStyle = `rgb(${red} ${green} ${blue} / ${opacity * (0.4 + 0.6 * share)})`;
      context.fillRect(left, top, Math.round((column + 1) * wide / image.columns) - left, Math.round((row + 1) * high / image.rows) - top);
    }
  if (image.box && byId("box").checked) outline(context, image.box, canvas);
}

// Two lines, dark and light: visible on any color.
function outline(context, [x0, y0, x1, y1], { width, height }) {
  const thick = Math.max(1, width / 200);
  for (const [color, line] of [["#000000", 2.6 * thick], ["#ffffff", thick]]) {
    context.strokeStyle = color;
    context.lineWidth = line;
    context.strokeRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
  }
}

// ---- the parts of the page

function describe({ view, layer, head }) {
  if (layer < 0 || !layered(view)) return layered(view) ? `${words[view]}, all layers` : words[view];
  const through = view === "rollout" ? "up to layer" : "layer";
  const part = headed(view) ? (head < 0 ? ", mean of the heads" : `, head ${head}`) : "";
  return `${words[view]}, ${through} ${data.layers[layer].place}${part}`;
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
  byId("about").textContent = about[chosen.view];
  legend(byId("legend"), "heat", "0", "largest of each map");
  const options = [...byId("gallery").children];
  for (const [number, option] of options.entries()) {
    option.setAttribute("aria-selected", number === chosen.image);
    option.tabIndex = number === chosen.image ? 0 : -1;
  }
  byId("one-title").textContent = image.name;
  byId("overlay-name").textContent = describe(chosen);
  byId("overlay").setAttribute("aria-label", `${image.name}: ${describe(chosen)}`);
  bars(byId("probabilities"), Object.entries(image.probabilities), 1, (p) => p.toFixed(3), image);
  const ratios = Object.entries(image.ratios).map(([view, ratio]) => [view === "saliency" ? words[view] : view, ratio]);
  for (const part of document.querySelectorAll(".boxed")) part.hidden = !ratios.length;
  bars(byId("ratios"), ratios, Math.max(1, ...ratios.map(([, ratio]) => ratio)), (ratio) => `${ratio.toFixed(2)} ×`);
  const heat = await heatOf(image, chosen);
  await Promise.all([paint(byId("plain"), image, null, 448), paint(byId("overlay"), image, heat, 448)]);
  await Promise.all(options.map(async (option, number) =>
    paint(option.querySelector("canvas"), data.images[number], await heatOf(data.images[number], chosen), 160)));
  await drawThumbs(image, chosen);
  if (mine === turn) document.documentElement.dataset.drawn = Object.values(chosen).join(" ");
}

function bars(host, rows, most, format, image = null) {
  const sorted = [...rows].sort((one, other) => other[1] - one[1]).slice(0, 10);
  host.replaceChildren(...sorted.map(([name, value]) => {
    const item = make("li"), beam = make("span", "", "beam");
    const label = make("span", image && name === image.true ? `${name} (true)` : name, "name");
    label.title = name;
    beam.style.width = `${100 * value / most}%`;
    item.append(label, beam, make("span", format(value), "number"));
    return item;
  }));
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
  const option = make("option", words[view]);
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
