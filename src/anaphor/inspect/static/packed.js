// Maps that travel as compressed bytes, and how to read a value of them.

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

const opened = new WeakMap();
function opening(packed, kind) {
  if (!opened.has(packed)) opened.set(packed, bytesOf(packed.cells).then((cells) => new kind(packed, cells)));
  return opened.get(packed);
}
