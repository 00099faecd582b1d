// What a grid shows of attention and of units, and the lists and tables next to it.

const signed = (value, places = 3) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(places)}`;
const signedShort = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${written(Math.abs(value))}`; // small values too

// Rows attend to columns. `scale` is what has the full color: the largest weight of the map, of each row, or one.
function attentionCells(map, rowNames, columnNames, { scale, causal = false, chosen = null }) {
  const most = { map: () => map.largest, row: (row) => map.peaks[row], one: () => 1 }[scale];
  const root = (row, column) => Math.sqrt(Math.abs(map.at(row, column)) / (most(row) || 1));
  // Cells of a causal mask have no color.
  const step = map.signed
    ? (row, column) => 128 + Math.round(127 * Math.min(1, root(row, column)) * Math.sign(map.at(row, column)))
    : (row, column) => causal && column > row ? -1 : Math.round(255 * Math.min(1, root(row, column)));
  return {
    rows: map.rows, columns: map.columns, rowNames, columnNames, square: true, ramp: map.signed ? "both" : "weight",
    chosen, tick: String, at: (row, column) => map.at(row, column), largest: (row) => map.peaks[row], step,
    describe: (row, column) => `${rowNames[row]} (${row}) attends to ${columnNames[column]} (${column})\n${written(map.at(row, column))}`,
  };
}

function attentionLegend(host, map, scale) {
  const end = scale === "row" ? "row" : written(scale === "one" ? 1 : map.largest);
  legend(host, map.signed ? "both" : "weight", map.signed ? `−${end}` : "0", end);
}

// Units as rows, tokens as columns.
function unitCells(packed, map, names) {
  return {
    rows: map.rows, columns: map.columns, rowNames: packed.units.map(String), columnNames: names, square: false,
    ramp: packed.bounded ? "weight" : "both", tick: (row) => String(packed.units[row]),
    step: packed.bounded
      ? (row, column) => Math.max(0, Math.min(255, Math.round(255 * map.at(row, column))))
      : (row, column) => map.cells[row * map.columns + column],
    describe: (row, column) => `unit ${packed.units[row]} at ${names[column]} (${column})\n${written(map.at(row, column))}`,
  };
}

function unitLegend(host, packed, map) {
  if (packed.bounded) legend(host, "weight", "0", "1");
  else legend(host, "both", `−${written(map.peak)}`, `+${written(map.peak)}`);
}

function unitFacts({ units, of }) {
  return units.length < of
    ? `Rows are units, columns are tokens. The ${units.length} of ${of} units whose hidden state varies most are shown.`
    : `Rows are units, columns are tokens. All ${of} units are shown.`;
}

// The largest of `count` weights, each with a bar.
function rankWeights(host, names, count, weight, limit) {
  const all = Array.from({ length: count }, (_, place) => [weight(place), place]).filter(([value]) => value !== 0);
  all.sort((one, other) => Math.abs(other[0]) - Math.abs(one[0]));
  const most = all.length ? Math.abs(all[0][0]) : 1;
  host.replaceChildren(...all.slice(0, limit).map(([value, place]) => {
    const item = make("li"), name = make("span", names[place], "name"), beam = make("span", "", "beam");
    name.append(make("span", `  ${place}`, "place"));
    beam.style.width = `${Math.max(1, 100 * Math.abs(value) / most)}%`;
    item.append(name, beam, make("span", written(value), "number"));
    return item;
  }));
  if (!all.length) host.replaceChildren(make("li", "nothing"));
}

// A small picture of a map: each pixel is the largest weight of its cells.
function thumb(canvas, map, causal) {
  const side = Math.min(72, map.rows), image = new ImageData(side, side), most = new Float32Array(side * side);
  for (let row = 0; row < map.rows; row++) {
    const down = Math.floor(row * side / map.rows) * side;
    for (let column = 0; column < map.columns; column++) {
      const place = down + Math.floor(column * side / map.columns), value = Math.abs(map.at(row, column));
      if (value > most[place]) most[place] = value;
    }
  }
  most.forEach((value, place) => {
    if (causal && place % side > Math.floor(place / side)) return;
    const step = 3 * Math.min(255, Math.round(255 * Math.sqrt(value / (map.largest || 1))));
    image.data.set(ramps.weight.subarray(step, step + 3), 4 * place);
    image.data[4 * place + 3] = 255;
  });
  canvas.width = canvas.height = side;
  canvas.style.imageRendering = side < 72 ? "pixelated" : "auto";
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const HEAD_COLUMNS = [
  ["entropy", "entropy"], ["distance", "distance"], ["on_self", "itself"], ["on_previous", "previous"],
  ["on_first", "first"], ["induction", "induction"],
];

// Statistics of all heads, sorted by a click on a column. `open(name, head)` shows a head; `has(name)`: whether it can.
function headTable(table, heads, { has, open, drawn = () => {} }, sorted = null) {
  const order = [...heads];
  if (sorted) order.sort((one, other) => ((one[sorted.by] ?? Infinity) - (other[sorted.by] ?? Infinity)) * sorted.way || 0);
  const top = make("tr");
  top.append(make("th", "head"));
  for (const [key, name] of HEAD_COLUMNS) {
    const cell = make("th"), button = make("button", name), here = sorted && sorted.by === key;
    cell.scope = "col";
    cell.setAttribute("aria-sort", here ? (sorted.way > 0 ? "ascending" : "descending") : "none");
    button.onclick = () => headTable(table, heads, { has, open, drawn }, { by: key, way: here ? -sorted.way : -1 });
    cell.append(button);
    top.append(cell);
  }
  top.append(make("th", "pattern", "words"));
  const body = document.createElement("tbody"), head = document.createElement("thead");
  head.append(top);
  for (const one of order) {
    const row = make("tr"), first = make("td"), name = `layer ${one.place} head ${one.head}`;
    row.dataset.at = `${one.name}/${one.head}`;
    if (has(one.name)) {
      const button = make("button", name);
      button.onclick = () => open(one.name, one.head);
      first.append(button);
    } else {
      first.textContent = name;
    }
    row.append(first);
    for (const [key] of HEAD_COLUMNS) {
      const share = key.startsWith("on_") || key === "induction";
      row.append(make("td", one[key] === null ? "–" : one[key].toFixed(2), share && one[key] >= 0.5 ? "strong" : ""));
    }
    row.append(make("td", one.pattern, "words"));
    body.append(row);
  }
  table.replaceChildren(head, body);
  drawn();
}
