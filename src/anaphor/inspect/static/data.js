// The JSON data of the page, and the color maps.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);

// Text is only set by textContent, so that it never becomes markup.
function make(kind, text = "", className = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

const signs = { " ": "␣", "\n": "⏎", "\t": "⇥" };
const shown = (token) => token.replace(/[ \n\t]/g, (letter) => signs[letter]);

function written(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0 || size >= 10) return value.toFixed(size ? 1 : 0);
  return size < 0.001 ? value.toExponential(1) : value.toPrecision(3);
}

async function bytesOf(packed) {
  const raw = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Weights as one byte each: the square root of their ratio to the largest of the row. With negative weights, 128 stands
// for zero.
class Weights {
  constructor(packed, cells) {
    this.rows = packed.rows;
    this.columns = packed.columns;
    this.cells = cells;
    this.peaks = packed.peaks;
    this.largest = packed.peaks.reduce((one, other) => Math.max(one, other), 0);
    this.signed = packed.signed;
    const root = packed.signed ? (step) => (step - 128) / Math.floor(packed.steps / 2) : (step) => step / packed.steps;
    this.worth = Float32Array.from({ length: 256 }, (_, step) => root(step) * Math.abs(root(step)));
  }

  at(row, column) {
    return this.peaks[row] * this.worth[this.cells[row * this.columns + column]];
  }
}

// The average of a layer's heads, with the same interface.
class Average {
  constructor(heads) {
    ({ rows: this.rows, columns: this.columns } = heads[0]);
    this.signed = heads.some((head) => head.signed);
    this.values = new Float32Array(this.rows * this.columns);
    this.peaks = new Float32Array(this.rows);
    for (const head of heads)
      for (let row = 0, place = 0; row < this.rows; row++)
        for (let column = 0; column < this.columns; column++, place++)
          this.values[place] += head.peaks[row] * head.worth[head.cells[place]] / heads.length;
    for (let row = 0, place = 0; row < this.rows; row++)
      for (let column = 0; column < this.columns; column++, place++)
        this.peaks[row] = Math.max(this.peaks[row], Math.abs(this.values[place]));
    this.largest = this.peaks.reduce((one, other) => Math.max(one, other), 0);
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }
}

// States and gates: a byte from 1 to 255 for values from -peak to peak; 128 stands for zero.
class Units {
  constructor(packed, cells) {
    this.rows = packed.rows;
    this.columns = packed.columns;
    this.cells = cells;
    this.peak = packed.peak;
  }

  at(row, column) {
    return (this.cells[row * this.columns + column] - 128) / 127 * this.peak;
  }
}

const opened = new Map();
function opening(packed, kind) {
  if (!opened.has(packed)) opened.set(packed, bytesOf(packed.cells).then((cells) => new kind(packed, cells)));
  return opened.get(packed);
}

// ---- colors: each color map is a table of 256, recomputed when the reader switches between light and dark

const dark = matchMedia("(prefers-color-scheme: dark)");
const stops = {
  weight: [["#eff4f9", "#cfe3f3", "#7fb8de", "#2f7fb9", "#08306b"], ["#20272f", "#1c4464", "#2e80b3", "#7cc6f0", "#f0faff"]],
  loss: [["#ffffff", "#fde3bf", "#f9b16e", "#e26a2c", "#9c2a06"], ["#191d24", "#4a2c17", "#91501d", "#e08a3c", "#ffd9a8"]],
  both: [["#0b5d99", "#7fb8de", "#f6f6f4", "#f2a671", "#b54708"], ["#6cc1f5", "#2b6a94", "#1d222a", "#96511e", "#ff9d4d"]],
};
const ramps = {};

function mixRamps() {
  for (const [name, kinds] of Object.entries(stops)) {
    const ends = kinds[dark.matches ? 1 : 0].map((code) => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)));
    const table = new Uint8ClampedArray(256 * 3);
    for (let step = 0; step < 256; step++) {
      const place = (step / 255) * (ends.length - 1), low = Math.min(Math.floor(place), ends.length - 2);
      for (let part = 0; part < 3; part++)
        table[3 * step + part] = ends[low][part] + (place - low) * (ends[low + 1][part] - ends[low][part]);
    }
    ramps[name] = table;
  }
}
mixRamps();

function painted(element, ramp, share) {
  const step = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1)), [red, green, blue] = ramps[ramp].slice(step, step + 3);
  element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
  element.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#101418" : "#ffffff";
}

function unpainted(element) {
  element.style.backgroundColor = element.style.color = "";
}

function legend(host, ramp, low, high) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const image = new ImageData(256, 1);
  for (let step = 0; step < 256; step++) {
    image.data.set(ramps[ramp].subarray(3 * step, 3 * step + 3), 4 * step);
    image.data[4 * step + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  host.replaceChildren(make("span", low), canvas, make("span", high));
}

// Set the size of a canvas in CSS pixels, at the resolution of the screen, and return its context.
function sized(canvas, wide, high) {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * fine);
  canvas.height = Math.round(high * fine);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const context = canvas.getContext("2d");
  context.scale(fine, fine);
  return context;
}
