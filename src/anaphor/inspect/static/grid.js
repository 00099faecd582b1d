// A heat map with labels on two sides. Only the visible part is drawn, so that a thousand tokens are as fast as ten: the
// canvas is fixed inside a scrolling window, and a spacer sets the scrollable size.

const ROOM = 9; // least size of a cell in pixels for a label next to it
const PAPER_PIXELS = 4000; // pixels of a map on paper
const READABLE_COLUMNS = 65, READABLE = 12; // columns whose labels are to be readable: 64 tokens and the boundary

class Grid {
  constructor(host, about, { moved = () => {}, picked = () => {} }) {
    this.moved = moved;
    this.picked = picked;
    this.host = host;
    host.grid = this;
    host.classList.add("grid");
    this.window = make("div", "", "window");
    this.window.tabIndex = 0;
    this.window.setAttribute("role", "application");
    this.about = about;
    this.spacer = make("div");
    this.canvas = document.createElement("canvas");
    this.tip = make("div", "", "tip");
    this.spacer.append(this.canvas);
    this.window.append(this.spacer);
    host.append(this.window, this.tip);
    this.cursor = null;
    this.window.addEventListener("scroll", () => this.later());
    this.canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.picked(cell.row, cell.column);
    });
    this.window.addEventListener("keydown", (event) => this.pressed(event));
    this.window.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.later()).observe(this.window);
  }

  // what: {rows, columns, rowNames, columnNames, tick(row), step(row, column) -> 0…255 or -1 for no color, ramp,
  // describe(row, column), chosen, square}
  show(what, size) {
    const again = this.what && this.what.rows === what.rows && this.what.columns === what.columns;
    this.what = what;
    if (!again) this.cursor = null;
    this.size = size ?? this.size;
    this.window.setAttribute("aria-label", `${this.about}, ${what.rows} rows and ${what.columns} columns. Arrow keys move between cells, Enter selects.`);
    this.canvas.dataset.rows = what.rows;
    this.canvas.dataset.columns = what.columns;
    this.later();
  }

  // The cell size at which everything fits, or that of readable labels where there are few columns: then the map scrolls.
  // Paper has finer dots and does not scroll.
  fitting(what) {
    const wide = (this.window.clientWidth || 800) - 130, high = 0.8 * innerHeight - 120, readable = this.host.closest(".aside") ? ROOM : READABLE;
    const least = what.square ? Math.min(wide / what.columns, high / what.rows) : wide / what.columns;
    return Math.max(what.columns <= READABLE_COLUMNS ? readable : 1, Math.min(what.square ? 44 : 30, Math.floor(least)));
  }

  later() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(this.view()); });
  }

  // The part that is seen in the window.
  view() {
    const { scrollLeft: x, scrollTop: y, clientWidth: wide, clientHeight: high } = this.window;
    return { x, y, wide, high };
  }

  // All of it, in cells so small that a canvas can have them.
  drawWhole() {
    const size = this.size, { rows, columns } = this.what ?? {};
    this.size = Math.max(1, Math.min(size, Math.floor(PAPER_PIXELS / Math.max(rows, columns))));
    this.draw({ x: 0, y: 0, wide: Infinity, high: Infinity });
    this.size = size;
  }

  measure() {
    const { what } = this, context = this.canvas.getContext("2d");
    const style = getComputedStyle(document.body);
    this.ink = style.getPropertyValue("--ink");
    this.quiet = style.getPropertyValue("--quiet");
    this.rule = style.getPropertyValue("--rule");
    this.card = style.getPropertyValue("--card");
    this.accent = style.getPropertyValue("--accent");
    this.wide = this.size;
    this.high = what.square ? this.size : Math.max(4, Math.min(14, Math.floor(560 / what.rows)));
    // Labels of small cells are small, so that they do not overlap.
    this.font = `${Math.min(12, ...[this.wide, this.high].filter((side) => side >= ROOM))}px ${style.getPropertyValue("--mono")}`;
    context.font = this.font;
    const longest = (names) => Math.min(118, Math.max(...names.slice(0, 400).map((name) => context.measureText(name).width)));
    this.left = this.high >= ROOM ? longest(what.rowNames) + 12 : 46;
    this.flat = this.wide >= longest(what.columnNames) + 4;
    this.top = this.wide < ROOM || this.flat ? 22 : longest(what.columnNames) + 12;
  }

  draw(view) {
    const { what, canvas } = this, { x, y } = view;
    if (!what || !this.host.isConnected || this.host.hidden) return;
    this.measure();
    const full = { wide: this.left + what.columns * this.wide + 1, high: this.top + what.rows * this.high + 1 };
    this.spacer.style.width = `${full.wide}px`;
    this.spacer.style.height = `${full.high}px`;
    const wide = Math.min(full.wide, view.wide), high = Math.min(full.high, view.high);
    const context = sized(canvas, wide, high);
    context.font = this.font;
    context.textBaseline = "middle";
    const first = { row: Math.floor(y / this.high), column: Math.floor(x / this.wide) };
    const last = {
      row: Math.min(what.rows, Math.ceil((y + high - this.top) / this.high)),
      column: Math.min(what.columns, Math.ceil((x + wide - this.left) / this.wide)),
    };
    Object.assign(canvas.dataset, { left: this.left, top: this.top, wide: this.wide, high: this.high });
    this.cells(context, first, last, this.left - x, this.top - y);
    this.frame(context, x, y);
    context.fillStyle = this.card;
    context.fillRect(0, 0, wide, this.top);
    context.fillRect(0, 0, this.left, high);
    this.names(context, first, last, x, y);
  }

  cells(context, first, last, x, y) {
    const { what } = this, wide = last.column - first.column, high = last.row - first.row;
    if (wide < 1 || high < 1) return;
    const image = new ImageData(wide, high), table = ramps[what.ramp];
    for (let row = first.row, place = 0; row < last.row; row++)
      for (let column = first.column; column < last.column; column++, place += 4) {
        const step = 3 * what.step(row, column);
        if (step < 0) continue;
        image.data[place] = table[step];
        image.data[place + 1] = table[step + 1];
        image.data[place + 2] = table[step + 2];
        image.data[place + 3] = 255;
      }
    const sheet = document.createElement("canvas");
    sheet.width = wide;
    sheet.height = high;
    sheet.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const left = x + first.column * this.wide, top = y + first.row * this.high;
    context.drawImage(sheet, left, top, wide * this.wide, high * this.high);
    if (this.wide < 6 || this.high < 6) return;
    context.strokeStyle = this.card;
    context.lineWidth = 1;
    context.beginPath();
    for (let row = 0; row <= high; row++) {
      context.moveTo(left, top + row * this.high);
      context.lineTo(left + wide * this.wide, top + row * this.high);
    }
    for (let column = 0; column <= wide; column++) {
      context.moveTo(left + column * this.wide, top);
      context.lineTo(left + column * this.wide, top + high * this.high);
    }
    context.stroke();
  }

  // Outlines of the selected row and of the cell under the pointer.
  frame(context, x, y) {
    const { what, cursor } = this;
    context.lineWidth = 1;
    context.strokeStyle = this.rule;
    context.strokeRect(this.left - x + 0.5, this.top - y + 0.5, what.columns * this.wide - 0.5, what.rows * this.high - 0.5);
    context.strokeStyle = this.accent;
    context.lineWidth = 1.5;
    if (what.chosen !== undefined && what.chosen !== null && what.square)
      context.strokeRect(this.left - x, this.top - y + what.chosen * this.high, what.columns * this.wide, this.high);
    if (!cursor) return;
    context.strokeStyle = this.ink;
    const grow = this.wide < 4 ? 2 : 0;
    context.strokeRect(
      this.left - x + cursor.column * this.wide - grow, this.top - y + cursor.row * this.high - grow,
      this.wide + 2 * grow, this.high + 2 * grow,
    );
  }

  names(context, first, last, x, y) {
    const { what, cursor } = this;
    const tone = (here) => { context.fillStyle = here ? this.accent : this.quiet; };
    context.textAlign = "right";
    const rows = this.high >= ROOM ? 1 : this.every(what.rows, this.high);
    for (let row = Math.ceil(first.row / rows) * rows; row < last.row; row += rows) {
      tone(cursor && cursor.row === row || what.chosen === row && what.square);
      const middle = this.top - y + (row + 0.5) * this.high;
      if (middle < this.top) continue;
      const name = rows === 1 ? what.rowNames[row] : what.tick(row);
      context.fillText(this.cut(context, name, this.left - 10), this.left - 6, middle);
    }
    const columns = this.wide >= ROOM ? 1 : this.every(what.columns, this.wide);
    for (let column = Math.ceil(first.column / columns) * columns; column < last.column; column += columns) {
      tone(cursor && cursor.column === column);
      const middle = this.left - x + (column + 0.5) * this.wide;
      if (middle < this.left) continue;
      if (columns > 1 || this.flat) {
        context.textAlign = "center";
        context.fillText(columns > 1 ? String(column) : what.columnNames[column], middle, this.top - 10);
        continue;
      }
      context.save();
      context.translate(middle, this.top - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(this.cut(context, what.columnNames[column], this.top - 10), 0, 0);
      context.restore();
    }
  }

  // Ticks at round numbers, about fifty pixels apart.
  every(count, size) {
    return [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((step) => step * size >= 44 || step >= count) ?? 1000;
  }

  cut(context, name, room) {
    if (context.measureText(name).width <= room) return name;
    const letters = [...name];
    while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
    return `${letters.join("")}…`;
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (!this.what || x < this.left || y < this.top) return null;
    const column = Math.floor((x - this.left + this.window.scrollLeft) / this.wide);
    const row = Math.floor((y - this.top + this.window.scrollTop) / this.high);
    return row < this.what.rows && column < this.what.columns ? { row, column } : null;
  }

  point(cell) {
    const before = this.cursor;
    if (before === cell || (before && cell && before.row === cell.row && before.column === cell.column)) return;
    this.cursor = cell;
    this.tip.classList.toggle("on", Boolean(cell));
    if (cell) {
      this.tip.textContent = this.what.describe(cell.row, cell.column);
      this.place(cell);
    }
    this.moved(cell);
    this.later();
  }

  place(cell) {
    const x = this.left + cell.column * this.wide - this.window.scrollLeft;
    const y = this.top + cell.row * this.high - this.window.scrollTop;
    const room = this.host.clientWidth - this.tip.offsetWidth - 4;
    const under = y + this.high + 8, fits = under + this.tip.offsetHeight < this.host.clientHeight;
    this.tip.style.transform = `translate(${Math.max(0, Math.min(x + this.wide + 8, room))}px, ${
      fits ? under : Math.max(0, y - this.tip.offsetHeight - 8)}px)`;
  }

  pressed(event) {
    const { what } = this, at = this.cursor ?? { row: what.chosen ?? 0, column: 0 };
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -what.columns], End: [0, what.columns] };
    if (event.key === "Enter" || event.key === " ") {
      this.picked(at.row, at.column);
    } else if (steps[event.key]) {
      const [down, right] = this.cursor ? steps[event.key] : [0, 0];
      const within = (value, count) => Math.max(0, Math.min(count - 1, value));
      const cell = { row: within(at.row + down, what.rows), column: within(at.column + right, what.columns) };
      this.reveal(cell);
      this.point(cell);
      byId("said").textContent = what.describe(cell.row, cell.column);
    } else if (event.key === "Escape") {
      this.point(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  reveal(cell) {
    const see = (from, size, edge, room, now) =>
      from < now ? from : from + size > now + room - edge ? from + size - room + edge : now;
    const { clientWidth, clientHeight } = this.window;
    this.window.scrollLeft = see(cell.column * this.wide, this.wide, this.left + 2, clientWidth, this.window.scrollLeft);
    this.window.scrollTop = see(cell.row * this.high, this.high, this.top + 2, clientHeight, this.window.scrollTop);
  }
}

// Paper does not scroll.
addEventListener("beforeprint", () => { for (const host of document.querySelectorAll(".grid")) host.grid?.drawWhole(); });
addEventListener("afterprint", () => { for (const host of document.querySelectorAll(".grid")) host.grid?.later(); });
