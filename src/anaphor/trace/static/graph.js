// A graph to step through: values appear in the forward pass, gradients in the backward pass.

const svgSpace = "http:" + "//www.w3.org/2000/svg";
const LINE = 13, PICTURE = 54;

function shape(kind, attributes = {}, className = "", text = "") {
  const element = document.createElementNS(svgSpace, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (className) element.setAttribute("class", className);
  if (text) element.textContent = text;
  return element;
}

let level, order, step = 0, chosen = null, scale = 1, drawnNodes = [], drawnEdges = [];
const joined = (lines) => (lines.length > 1 ? `\n${lines.join("\n")}` : lines[0]);
const inLine = (lines) => lines.map((line) => line.trim()).join(" ");

// ---- drawing

function draw() {
  const svg = shape("svg", { viewBox: `-10 -10 ${level.wide + 20} ${level.high + 20}`, role: "presentation" });
  drawnNodes = [];
  drawnEdges = [];
  for (const frame of level.frames) {
    const [left, top, right, bottom] = frame.at, group = shape("g", {}, "frame");
    group.append(shape("rect", { x: left, y: top, width: right - left, height: bottom - top, rx: 5 }),
      shape("text", { x: left + 5, y: top + 9 }, "", frame.title));
    svg.append(group);
  }
  for (const edge of level.edges) svg.append(drawEdge(edge));
  for (const node of level.nodes) svg.append(drawNode(node));
  byId("graph").replaceChildren(svg);
  resize();
}

function drawEdge(edge) {
  const group = shape("g", {}, "edge"), [start, ...others] = edge.points;
  const path = `M${start} C${others.map((point) => point.join(",")).join(" ")}`;
  const end = edge.points[edge.points.length - 1], [x, y] = edge.tip;
  const length = Math.hypot(x - end[0], y - end[1]) || 1, dx = (x - end[0]) / length, dy = (y - end[1]) / length;
  const foot = [x - 8 * dx, y - 8 * dy];
  group.append(shape("path", { d: `${path} L${foot}` }, "line"));
  group.append(shape("path", { d: `M${x},${y} L${foot[0] - 3.4 * dy},${foot[1] + 3.4 * dx} L${foot[0] + 3.4 * dy},${foot[1] - 3.4 * dx} Z` }, "arrow"));
  if (edge.labelAt) group.append(shape("text", { x: edge.labelAt[0], y: edge.labelAt[1] }, "route", edge.label.replaceAll("ᵀ", "T")));
  const touch = shape("path", { d: `${path} L${x},${y}` }, "touch");
  touch.addEventListener("pointermove", (event) => { group.classList.add("pointed"); showTip(describeEdge(edge), event); });
  touch.addEventListener("pointerleave", () => { group.classList.remove("pointed"); hideTip(); });
  touch.addEventListener("click", () => choose(edge.target));
  group.append(touch);
  drawnEdges.push(group);
  return group;
}

function drawNode(node) {
  const [x, y, wide, high] = node.box, top = y - high / 2;
  const group = shape("g", { tabindex: -1, role: "button", "data-node": node.id }, `node ${node.leaf ? node.op : ""} ${node.output ? "output" : ""}`);
  group.append(shape("rect", { x: x - wide / 2, y: top, width: wide, height: high, rx: 5 }));
  let at = top + 3 + LINE / 2;
  group.append(shape("text", { x, y: at }, "name", node.title));
  for (const [lines, kind] of [[node.value, "value"], [node.gradient ?? [], "gradient"]])
    for (const line of lines) {
      at += LINE;
      group.append(shape("text", { x, y: at }, kind, line));
    }
  if (node.picture) picture(node.picture, (image) => {
    const wideness = (PICTURE - 4) * Math.min(1, node.picture.columns / node.picture.rows);
    const tallness = Math.min(Math.max((PICTURE - 4) * Math.min(1, node.picture.rows / node.picture.columns), 5), node.picture.high - 4);
    group.append(shape("image", { href: image, x: x - wideness / 2, y: top + high - node.picture.high + (node.picture.high - 4 - tallness) / 2,
      width: wideness, height: tallness, preserveAspectRatio: "none", "image-rendering": "pixelated" }, "value"));
  });
  group.addEventListener("pointermove", (event) => showTip(describeNode(node), event));
  group.addEventListener("pointerleave", hideTip);
  group.addEventListener("click", () => choose(node.id));
  group.addEventListener("focus", () => choose(node.id));
  drawnNodes.push(group);
  return group;
}

// A small matrix as an image; colors of the light or dark mode.
function picture(packed, use) {
  bytesOf(packed.cells).then((cells) => {
    const canvas = document.createElement("canvas"), image = new ImageData(packed.columns, packed.rows);
    canvas.width = packed.columns;
    canvas.height = packed.rows;
    cells.forEach((cell, place) => {
      image.data.set(ramps.both.subarray(3 * cell, 3 * cell + 3), 4 * place);
      image.data[4 * place + 3] = 255;
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
    use(canvas.toDataURL());
  });
}

function resize() {
  const svg = byId("graph").firstElementChild;
  svg.setAttribute("width", (level.wide + 20) * scale);
  svg.setAttribute("height", (level.high + 20) * scale);
  byId("size").value = Math.round(100 * scale);
}

function fit() {
  const room = byId("graph").clientWidth / (level.wide + 20);
  scale = Math.min(Math.max(room, 0.6), 1.5);
}

// ---- steps: first every value in its order, then every gradient in the opposite order

function open(index) {
  level = data.levels[index];
  const forward = level.nodes.filter((node) => !node.leaf).map((node) => ({ node, way: "forward" }));
  const backward = level.nodes.filter((node) => node.gradient).reverse().map((node) => ({ node, way: "backward" }));
  order = [...forward, ...backward];
  byId("step").max = order.length;
  byId("facts").textContent = `${data.function}: ${level.nodes.length} nodes; gradients of ${data.differentiated}`;
  fit();
  draw();
  choose((level.nodes.find((node) => node.output) ?? level.nodes[0]).id);
  go(order.length);
}

function go(to) {
  step = Math.min(Math.max(to, 0), order.length);
  const now = step ? order[step - 1] : null, finished = step === order.length;
  const valued = new Set(level.nodes.filter((node) => node.leaf).map((node) => node.id)), sloped = new Set();
  for (const { node, way } of order.slice(0, step)) (way === "forward" ? valued : sloped).add(node.id);
  level.nodes.forEach((node, place) => {
    const element = drawnNodes[place];
    for (const part of element.querySelectorAll(".value")) part.toggleAttribute("hidden", !valued.has(node.id));
    for (const part of element.querySelectorAll(".gradient")) part.toggleAttribute("hidden", !sloped.has(node.id));
    element.classList.toggle("waiting", !valued.has(node.id));
    element.classList.toggle("now", !finished && now?.node === node);
    element.setAttribute("aria-label", describeNode(node, valued.has(node.id), sloped.has(node.id)));
  });
  level.edges.forEach((edge, place) => {
    drawnEdges[place].classList.toggle("forward", !finished && now?.way === "forward" && edge.target === now.node.id);
    drawnEdges[place].classList.toggle("backward", !finished && now?.way === "backward" && edge.source === now.node.id && edge.share !== null);
  });
  byId("step").value = step;
  byId("first").disabled = byId("back").disabled = step === 0;
  byId("last").disabled = finished;
  byId("status").textContent = describeStep(now) + (finished ? ". All steps are shown; next starts again." : "");
  document.documentElement.dataset.step = `${step}/${order.length}`;
  if (now && !finished) {
    choose(now.node.id);
    bring(now.node);
  }
}

// On to the next; from the end, to the beginning.
const next = () => go(step === order.length ? 0 : step + 1);

function bring(node) {
  const [x, y, wide, high] = node.box.map((size) => size * scale), host = byId("graph"), edge = 10 * scale;
  if (x + edge - wide / 2 < host.scrollLeft || x + edge + wide / 2 > host.scrollLeft + host.clientWidth) host.scrollLeft = x - host.clientWidth / 2;
  if (y + edge - high / 2 < host.scrollTop || y + edge + high / 2 > host.scrollTop + host.clientHeight) host.scrollTop = y - host.clientHeight / 2;
}

function describeStep(now) {
  const place = `Step ${step} of ${order.length}. `;
  if (!now) return `${place}Only inputs, parameters and constants have values.`;
  const { node, way } = now;
  if (way === "forward") return `${place}Forward: ${node.name} = ${node.formula} = ${inLine(node.value)}`;
  const through = level.edges.filter((edge) => edge.source === node.id && edge.share);
  if (!through.length) return `${place}Backward: the gradient of ${node.name} is ${inLine(node.gradient)}${node.output ? ", where the backward pass starts" : ""}`;
  const parts = through.map((edge) => {
    const reader = level.nodes[edge.target], single = !reader.shape.length && !node.shape.length;
    return single ? `${inLine(edge.derivative)} × ${inLine(reader.gradient)} through ${reader.name}` : `${inLine(edge.share)} through ${reader.name}`;
  });
  return `${place}Backward: the gradient of ${node.name} is ${inLine(node.gradient)}: ${parts.join(", plus ")}`;
}

// ---- what a node and an edge are

function describeNode(node, valued = true, sloped = true) {
  const lines = [node.leaf ? `${node.name} (${node.op})` : `${node.name} = ${node.formula}`];
  if (valued) lines.push(`value ${joined(node.value)}`);
  if (sloped && node.gradient) lines.push(`gradient ${joined(node.gradient)}`);
  return lines.join("\n");
}

function describeEdge(edge) {
  const from = level.nodes[edge.source], to = level.nodes[edge.target];
  if (!edge.derivative) return `${to.name} reads ${from.name}; no gradient`;
  return `∂${to.name}/∂${from.name} = ${joined(edge.derivative)}\ngradient contribution ${joined(edge.share)}`;
}

function choose(id) {
  chosen = id;
  const node = level.nodes[id];
  drawnNodes.forEach((element, place) => element.classList.toggle("chosen", level.nodes[place].id === id));
  byId("node-title").textContent = node.name;
  const facts = [[node.leaf ? "kind" : "computed as", node.formula], ["value", node.allValue, "value"], ["gradient", node.allGradient, "gradient"],
    ["shape", node.shape.length ? node.shape.join(" × ") : "scalar"], ["type", node.type], ["line", node.where]];
  byId("node-facts").replaceChildren(...facts.filter(([, text]) => text && text.length).flatMap(([name, text, kind]) => {
    const told = make("dd");
    told.append(make("pre", Array.isArray(text) ? text.join("\n") : text, kind ?? ""));
    return [make("dt", name), told];
  }));
  flows("inputs", level.edges.filter((edge) => edge.target === id), (edge) => edge.source);
  flows("readers", level.edges.filter((edge) => edge.source === id && edge.share), (edge) => edge.target);
}

function flows(host, edges, other) {
  byId(`${host}-title`).hidden = !edges.length;
  byId(host).replaceChildren(...edges.map((edge) => {
    const item = make("li"), button = make("button", level.nodes[other(edge)].name + (host === "inputs" ? edge.label : ""));
    button.type = "button";
    button.addEventListener("click", () => choose(other(edge)));
    item.append(button, make("pre", describeEdge(edge)));
    return item;
  }));
}

function showTip(text, event) {
  const tip = byId("tip"), host = tip.parentElement.getBoundingClientRect();
  tip.textContent = text;
  tip.classList.add("on");
  const left = Math.min(event.clientX - host.left + 14, host.width - tip.offsetWidth - 4);
  const below = event.clientY - host.top + 14, above = event.clientY - host.top - tip.offsetHeight - 10;
  tip.style.transform = `translate(${Math.max(left, 4)}px, ${below + tip.offsetHeight > host.height ? Math.max(above, 4) : below}px)`;
}

const hideTip = () => byId("tip").classList.remove("on");

// ---- controls

byId("first").addEventListener("click", () => go(0));
byId("back").addEventListener("click", () => go(step - 1));
byId("next").addEventListener("click", next);
byId("last").addEventListener("click", () => go(order.length));
byId("step").addEventListener("input", (event) => go(Number(event.target.value)));
byId("size").addEventListener("input", (event) => { scale = Number(event.target.value) / 100; resize(); });
byId("graph").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: next, ArrowLeft: () => go(step - 1), Home: () => go(0), End: () => go(order.length),
    ArrowDown: () => focusNode(1), ArrowUp: () => focusNode(-1), Escape: hideTip };
  if (!moves[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  moves[event.key]();
});

function focusNode(by) {
  const place = (chosen + by + level.nodes.length) % level.nodes.length;
  bring(level.nodes[place]);
  drawnNodes[place].focus({ preventScroll: true });
}

data.levels.forEach((one, place) => byId("level").append(new Option(`${one.name} (${one.nodes.length} nodes)`, place)));
byId("level-choice").hidden = data.levels.length < 2;
byId("level").addEventListener("change", (event) => open(Number(event.target.value)));
byId("notes").replaceChildren(...data.notes.map((note) => make("li", note)));
dark.addEventListener("change", () => { mixRamps(); draw(); go(step); choose(chosen); });
document.title = `${data.function}: computation graph`;
open(0);
document.documentElement.dataset.ready = "yes";
