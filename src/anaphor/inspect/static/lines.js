// Tokens in two columns, with a line from each query on the left to its keys on the right.

const LINE = 21; // pixels from one token to the next
const FEW = 40; // most tokens whose lines are all drawn, and most lines of one token

class Lines {
  constructor(host, { moved = () => {}, picked = () => {} }) {
    this.host = host;
    this.moved = moved;
    this.picked = picked;
    host.classList.add("grid", "lines");
    this.window = make("div", "", "window");
    this.window.tabIndex = 0;
    this.window.setAttribute("role", "application");
    this.spacer = make("div");
    this.canvas = document.createElement("canvas");
    this.spacer.append(this.canvas);
    this.window.append(this.spacer);
    host.append(this.window);
    this.over = null;
    this.window.addEventListener("scroll", () => this.later());
    this.canvas.addEventListener("pointermove", (event) => this.point(this.rowAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.picked(this.rowAt(event)));
    this.window.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.picked(Math.max(0, Math.min(this.what.rows - 1, this.what.chosen + step)));
    });
    new ResizeObserver(() => this.later()).observe(this.window);
  }

  // what: {rows, columns, rowNames, columnNames, at(row, column), largest(row), chosen}
  show(what) {
    this.reveal ||= !this.what || this.what.chosen !== what.chosen;
    this.what = what;
    this.canvas.dataset.rows = what.rows;
    this.canvas.dataset.columns = what.columns;
    this.window.setAttribute("aria-label", `Lines between ${what.rows} tokens. Up and down select a token.`);
    this.later();
  }

  later() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  rowAt(event) {
    const y = event.clientY - this.canvas.getBoundingClientRect().top + this.window.scrollTop;
    return Math.max(0, Math.min(this.what.rows - 1, Math.floor(y / LINE)));
  }

  point(row) {
    if (row === this.over) return;
    this.over = row;
    this.moved(row);
    this.later();
  }

  draw() {
    const { what, canvas } = this;
    if (!what || this.host.hidden) return;
    const style = getComputedStyle(document.body);
    this.spacer.style.height = `${Math.max(what.rows, what.columns) * LINE + 4}px`;
    if (this.reveal) {
      const top = what.chosen * LINE, { scrollTop, clientHeight } = this.window;
      if (top < scrollTop || top + 2 * LINE > scrollTop + clientHeight) this.window.scrollTop = top - clientHeight / 2;
      this.reveal = false;
    }
    const wide = Math.min(this.window.clientWidth, 760), high = Math.min(this.window.clientHeight, this.spacer.offsetHeight);
    const context = sized(canvas, wide, high);
    const y = this.window.scrollTop, edge = Math.min(220, wide * 0.3), middle = (row) => (row + 0.5) * LINE - y;
    const row = this.over ?? what.chosen;
    context.strokeStyle = style.getPropertyValue("--accent");
    const draw = (from, strength) => {
      const most = what.largest(from) || 1;
      const shares = Array.from({ length: what.columns }, (_, to) => [Math.abs(what.at(from, to)) / most, to]);
      shares.sort((one, other) => other[0] - one[0]);
      for (const [share, to] of shares.slice(0, FEW)) {
        if (share < 0.02) break;
        context.globalAlpha = strength * Math.sqrt(Math.min(share, 1));
        context.lineWidth = 0.6 + 3 * Math.min(share, 1);
        context.beginPath();
        context.moveTo(edge + 6, middle(from));
        context.bezierCurveTo(wide / 2, middle(from), wide / 2, middle(to), wide - edge - 6, middle(to));
        context.stroke();
      }
    };
    if (what.rows <= FEW) for (let from = 0; from < what.rows; from++) if (from !== row) draw(from, 0.13);
    draw(row, 0.95);
    context.globalAlpha = 1;
    context.font = `13px ${style.getPropertyValue("--mono")}`;
    context.textBaseline = "middle";
    const [ink, quiet] = ["--ink", "--quiet"].map((name) => style.getPropertyValue(name));
    const first = Math.floor(y / LINE), last = Math.ceil((y + high) / LINE);
    const fit = Grid.prototype.cut;
    for (let place = first; place < Math.min(last, what.rows); place++) {
      context.textAlign = "right";
      context.fillStyle = place === row ? ink : quiet;
      context.fillText(fit(context, what.rowNames[place], edge - 8), edge, middle(place));
    }
    const most = what.largest(row);
    for (let place = first; place < Math.min(last, what.columns); place++) {
      context.textAlign = "left";
      const share = most ? Math.min(1, Math.abs(what.at(row, place)) / most) : 0;
      if (share >= 0.02) {
        context.fillStyle = style.getPropertyValue("--accent");
        context.globalAlpha = 0.35 * share;
        context.fillRect(wide - edge - 2, middle(place) - LINE / 2 + 1, edge, LINE - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = share >= 0.02 ? ink : quiet;
      context.fillText(fit(context, what.columnNames[place], edge - 8), wide - edge + 2, middle(place));
    }
  }
}
