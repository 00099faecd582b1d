"use strict";
// A chart of lines on a canvas. It is drawn again only when something has changed; the crosshair has a canvas of its own.

const TIP_ROWS = 12;
const MARGIN = { left: 68, right: 12, top: 8, bottom: 34 };

// Index of the first value in a sorted array that is not below x.
function lowerBound(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(values, x) {
  const at = lowerBound(values, x);
  if (at === 0) return values.length ? 0 : -1;
  return at === values.length || x - values[at - 1] <= values[at] - x ? at - 1 : at;
}

class Chart {
  // zoomed({x, y}) with null for "all"; hovered(x) with null when the pointer has left.
  constructor(host, { zoomed = () => {}, hovered = () => {} }) {
    this.zoomed = zoomed;
    this.hovered = hovered;
    this.host = host;
    host.classList.add("chart");
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    host.setAttribute("aria-roledescription", "chart");
    this.canvas = make("canvas");
    this.overlay = make("canvas", "", "overlay");
    this.tip = make("div", "", "tip");
    this.note = make("p", "", "chart-note");
    host.append(this.canvas, this.overlay, this.tip, this.note);
    this.series = [];
    this.options = {};
    this.domain = { x: null, y: null };
    this.cursor = null;
    this.listen();
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(host);
  }

  // series: {key, name, color, dash, x, y, pale?: y before smoothing, low?, high?: band, least?, most?: what the axis has to
  // show of it, loud?: drawn above the others}, x ascending.
  // options: {title, xname, yname, xlog, ylog, time, outliers}
  show(series, options, domain) {
    this.series = series;
    this.options = options;
    this.domain = domain;
    this.host.setAttribute("aria-label", `${options.title} over ${options.xname}, ${series.length} lines. The arrow keys read values, plus and minus zoom, `
      + "0 shows everything. The values are in the table below as well.");
    this.later();
  }

  later() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  // ---- scales

  wholeX() {
    let x = [Infinity, -Infinity];
    for (const { x: xs } of this.series) {
      const first = this.options.xlog ? lowerBound(xs, Number.MIN_VALUE) : 0;
      if (first < xs.length) x = [Math.min(x[0], xs[first]), Math.max(x[1], xs[xs.length - 1])];
    }
    return x;
  }

  ranges() {
    const { xlog, ylog } = this.options;
    let x = this.domain.x ?? this.wholeX();
    if (!(x[0] <= x[1])) x = xlog ? [1, 10] : [0, 1];
    if (x[0] === x[1]) x = xlog ? [x[0] / 2, x[1] * 2] : [x[0] - 0.5, x[1] + 0.5];
    return { x, y: this.domain.y ?? this.fitY(x, ylog) };
  }

  fitY([from, to], ylog) {
    let low = Infinity, high = -Infinity;
    const sample = [];
    for (const one of this.series) {
      const last = Math.min(one.x.length, lowerBound(one.x, to) + 1);
      const lows = one.least ?? one.low ?? one.pale ?? one.y, highs = one.most ?? one.high ?? one.pale ?? one.y;
      for (let at = Math.max(0, lowerBound(one.x, from) - 1); at < last; at++)
        for (const value of lows === highs ? [lows[at]] : [lows[at], highs[at]]) {
          if (!Number.isFinite(value) || (ylog && value <= 0)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
          if (this.options.outliers) sample.push(value);
        }
    }
    if (sample.length > 20) {
      sample.sort((one, other) => one - other);
      [low, high] = [sample[Math.floor(0.02 * sample.length)], sample[Math.ceil(0.98 * sample.length) - 1]];
    }
    if (!(low <= high)) return ylog ? [0.1, 1] : [0, 1];
    if (ylog) {
      const pad = Math.max((high / low) ** 0.04, 1.01);
      return [low / pad, high * pad];
    }
    const pad = (high - low) * 0.04 || Math.abs(high) * 0.05 || 0.5;
    return [low - pad, high + pad];
  }

  scales(wide, high) {
    const { x, y } = this.ranges(), { xlog, ylog } = this.options;
    const scale = ([from, to], start, end, log) => {
      const first = log ? Math.log(Math.max(from, Number.MIN_VALUE)) : from, span = (log ? Math.log(to) : to) - first;
      return {
        to: log ? (value) => (value > 0 ? start + ((Math.log(value) - first) / span) * (end - start) : NaN)
          : (value) => start + ((value - first) / span) * (end - start),
        from: (pixel) => {
          const at = first + ((pixel - start) / (end - start)) * span;
          return log ? Math.exp(at) : at;
        },
      };
    };
    return { x, y, toX: scale(x, MARGIN.left, wide - MARGIN.right, xlog), toY: scale(y, high - MARGIN.bottom, MARGIN.top, ylog) };
  }

  // ---- drawing

  draw() {
    const wide = this.host.clientWidth, high = this.host.clientHeight;
    if (!this.host.isConnected || wide < 100 || high < 60) return;
    this.wide = wide;
    this.high = high;
    this.scale = this.scales(wide, high);
    const drawn = this.paint(new CanvasPen(sized(this.canvas, wide, high)), wide, high, this.scale);
    this.overlayContext = sized(this.overlay, wide, high);
    const { x, y } = this.scale;
    Object.assign(this.host.dataset, {
      points: this.series.reduce((sum, one) => sum + one.x.length, 0), lines: this.series.length, drawn,
      x: x.join(), y: y.join(), zoomed: this.domain.x || this.domain.y ? "yes" : "no",
    });
    this.drawCursor();
  }

  colors() {
    const style = getComputedStyle(document.body), color = (name) => style.getPropertyValue(name).trim();
    return { ink: color("--ink"), quiet: color("--quiet"), rule: color("--rule"), card: color("--card"), accent: color("--accent") };
  }

  paint(pen, wide, high, { x, y, toX, toY }) {
    const color = this.colors(), bottom = high - MARGIN.bottom, right = wide - MARGIN.right;
    const [unit, unitName] = this.options.time ? timeUnit(x[1]) : [1, ""];
    const xs = (this.options.xlog ? logTicks : linearTicks)(x[0] / unit, x[1] / unit, Math.floor(wide / 64));
    const ys = (this.options.ylog ? logTicks : linearTicks)(y[0], y[1], Math.floor(high / 44));
    tickTexts(ys, this.options.ylog).forEach((text, place) => {
      const at = Math.round(toY.to(ys[place])) + 0.5;
      pen.line([MARGIN.left, at, right, at], { color: color.rule });
      pen.text(text, MARGIN.left - 6, at, { color: color.quiet, align: "right" });
    });
    tickTexts(xs, this.options.xlog).forEach((text, place) => {
      const at = Math.round(toX.to(xs[place] * unit)) + 0.5;
      pen.line([at, bottom, at, bottom + 4], { color: color.quiet });
      pen.text(text, Math.min(at, wide - 4 * text.length), bottom + 11, { color: color.quiet, align: "center" });
    });
    pen.line([MARGIN.left, bottom + 0.5, right, bottom + 0.5], { color: color.quiet });
    const xname = unitName ? `${this.options.xname} (${unitName})` : this.options.xname;
    if (this.options.yname) pen.text(this.options.yname, 8, (MARGIN.top + bottom) / 2, { color: color.quiet, align: "center", turn: true });
    pen.text(xname, (MARGIN.left + right) / 2, bottom + 26, { color: color.quiet, align: "center" });
    // With room for the dot of a run that has one point, at the edge.
    pen.clip(MARGIN.left - 3, MARGIN.top - 3, right - MARGIN.left + 6, bottom - MARGIN.top + 6);
    let drawn = 0;
    const some = this.series.some((one) => one.loud);
    for (const one of this.series)
      if (one.low) pen.area(this.bandOf(one, x, y, toX, toY), { color: one.color, alpha: some && !one.loud ? 0.05 : 0.18 });
    for (const one of this.series)
      if (one.pale) pen.line(this.pixels(one.x, one.pale, x, toX, toY), { color: one.color, alpha: 0.25, width: 1 });
    const thin = this.series.length > 40 ? 1 : 1.6;
    for (const one of [...this.series].sort((a, b) => Boolean(a.loud) - Boolean(b.loud))) {
      const points = this.pixels(one.x, one.y, x, toX, toY);
      drawn += points.length / 2;
      const style = { color: one.color, dash: one.dash, width: one.loud ? 2.6 : thin, alpha: some && !one.loud ? 0.3 : 1 }, [left, top] = points;
      if (points.length === 2) pen.dot(left, top, 3, one.color);
      if (points.length !== 2) pen.line(points, style);
      else if (one.dash?.length) pen.line([left - 11, top, left + 11, top], style); // as in the legend
    }
    pen.unclip();
    return drawn;
  }

  // Pixels of the visible part; where many points share a pixel, the lowest and the highest are kept.
  pixels(xs, ys, [from, to], toX, toY) {
    const first = Math.max(0, lowerBound(xs, from) - 1), last = Math.min(xs.length, lowerBound(xs, to) + 2);
    const room = 2 * (this.wide ?? 600);
    if (last - first <= 2 * room) {
      const points = new Float32Array(2 * (last - first));
      for (let at = first, place = 0; at < last; at++) {
        points[place++] = toX.to(xs[at]);
        points[place++] = toY.to(ys[at]);
      }
      return points;
    }
    const kept = [];
    let column = NaN, low = NaN, high = NaN;
    const flush = () => {
      if (Number.isNaN(column)) return;
      kept.push(column, low);
      if (high !== low) kept.push(column, high);
    };
    for (let at = first; at < last; at++) {
      const pixel = Math.round(toX.to(xs[at])), value = toY.to(ys[at]);
      if (pixel !== column) {
        flush();
        column = pixel;
        low = high = value;
      } else if (value < low) low = value;
      else if (value > high) high = value;
    }
    flush();
    return Float32Array.from(kept);
  }

  bandOf(one, x, y, toX, toY) {
    const floor = this.options.ylog ? y[0] / 10 : -Infinity; // an interval may reach below zero
    const upper = this.pixels(one.x, one.high, x, toX, toY), lower = this.pixels(one.x, one.low.map((value) => Math.max(value, floor)), x, toX, toY);
    const points = [...upper];
    for (let at = lower.length - 2; at >= 0; at -= 2) points.push(lower[at], lower[at + 1]);
    return points;
  }

  // ---- the crosshair, and what all lines are there

  // Values at x: a line that has nothing there (it has ended, or begins later) is left out.
  valuesAt(x) {
    const [from, to] = this.scale.x, found = [];
    for (const one of this.series) {
      const at = nearest(one.x, x);
      if (at < 0) continue;
      const gap = Math.max((to - from) * 0.02, at + 1 < one.x.length ? one.x[at + 1] - one.x[at] : 0, at ? one.x[at] - one.x[at - 1] : 0);
      if (Math.abs(one.x[at] - x) <= gap) found.push({ one, at, x: one.x[at], y: one.y[at] });
    }
    return found;
  }

  point(x, { tip = true } = {}) {
    this.cursor = x;
    this.withTip = tip;
    if (this.scale) this.drawCursor();
  }

  drawCursor() {
    const context = this.overlayContext, { toX, toY } = this.scale, color = this.colors();
    context.clearRect(0, 0, this.wide, this.high);
    if (this.drag) this.drawDrag(context, color);
    const x = this.cursor, inside = x !== null && x >= this.scale.x[0] && x <= this.scale.x[1];
    this.tip.classList.toggle("on", inside && this.withTip && !this.drag);
    if (!inside) return;
    const found = this.valuesAt(x), pen = new CanvasPen(context), at = toX.to(x);
    pen.line([at, MARGIN.top, at, this.high - MARGIN.bottom], { color: color.quiet, dash: [3, 3] });
    for (const { one, x: place, y } of found) {
      const height = toY.to(y);
      if (height >= MARGIN.top - 2 && height <= this.high - MARGIN.bottom + 2) pen.dot(toX.to(place), height, 3, one.color);
    }
    if (this.withTip) this.fillTip(found, at);
  }

  xText(x) {
    if (!this.options.time) return `${this.options.xname} ${digits(Math.round(x * 1000) / 1000)}`;
    const [unit, name] = timeUnit(this.scale.x[1]);
    return `${(x / unit).toPrecision(4)} ${name}`;
  }

  fillTip(found, at) {
    // Of many lines, those next to the pointer.
    const away = ({ y }) => Math.abs(this.scale.toY.to(y) - (this.height ?? 0));
    const near = [...found].sort((one, other) => away(one) - away(other)).slice(0, TIP_ROWS), table = make("table");
    for (const { one, x, y } of [...near].sort((first, second) => second.y - first.y)) {
      const row = make("tr", "", one === near[0].one && this.height !== null ? "near" : ""), mark = make("td"), name = make("td", "", "name");
      mark.append(make_swatch(one.color, one.dash));
      name.append(fill_name(make("div"), one.name));
      row.append(mark, name, make("td", score(y), "number"));
      if (x !== near[0].x) row.append(make("td", `at ${this.options.time ? this.xText(x) : digits(x)}`, "other"));
      table.append(row);
    }
    const parts = [make("p", this.xText(near[0]?.x ?? this.cursor)), table];
    if (found.length > near.length) parts.push(make("p", `and ${found.length - near.length} more`));
    if (!found.length) parts.push(make("p", "no values here"));
    this.tip.replaceChildren(...parts);
    const wide = this.tip.offsetWidth, left = at + 14 + wide > this.wide ? at - wide - 14 : at + 14;
    this.tip.style.transform = `translate(${Math.max(0, Math.min(left, this.wide - wide))}px, ${MARGIN.top}px)`;
  }

  drawDrag(context, color) {
    const { x0, y0, x1, y1, box } = this.drag;
    context.fillStyle = color.accent;
    context.globalAlpha = 0.15;
    context.fillRect(Math.min(x0, x1), box ? Math.min(y0, y1) : MARGIN.top, Math.abs(x1 - x0), box ? Math.abs(y1 - y0) : this.high - MARGIN.top - MARGIN.bottom);
    context.globalAlpha = 1;
  }

  // ---- pointer and keys

  listen() {
    const { overlay, host } = this;
    const place = (event) => {
      const box = overlay.getBoundingClientRect();
      return [Math.max(MARGIN.left, Math.min(this.wide - MARGIN.right, event.clientX - box.left)), event.clientY - box.top];
    };
    overlay.addEventListener("pointerdown", (event) => {
      if (event.button || !this.scale) return;
      const [x, y] = place(event);
      this.drag = { x0: x, y0: y, x1: x, y1: y, box: false };
      overlay.setPointerCapture(event.pointerId);
    });
    overlay.addEventListener("pointermove", (event) => {
      if (!this.scale) return;
      const [x, y] = place(event);
      if (this.drag) Object.assign(this.drag, { x1: x, y1: y, box: Math.abs(y - this.drag.y0) > 40 });
      this.height = y;
      this.hovered(this.scale.toX.from(x), this);
    });
    overlay.addEventListener("pointerup", () => this.drop());
    overlay.addEventListener("pointercancel", () => {
      this.drag = null;
      this.hovered(null, this);
    });
    overlay.addEventListener("pointerleave", () => { if (!this.drag) this.hovered(null, this); });
    overlay.addEventListener("dblclick", () => this.zoomed({ x: null, y: null }, this));
    overlay.addEventListener("wheel", (event) => {
      // Without a click or a key the wheel scrolls the page.
      if (!this.scale || !(event.ctrlKey || event.metaKey || document.activeElement === host)) return;
      event.preventDefault();
      this.zoomAround(this.scale.toX.from(place(event)[0]), Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))));
    }, { passive: false });
    host.addEventListener("keydown", (event) => this.press(event));
    host.addEventListener("blur", () => this.hovered(null, this));
  }

  drop() {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (Math.abs(drag.x1 - drag.x0) < 6) {
      this.drawCursor();
      return;
    }
    const { toX, toY } = this.scale, sort = (one, other) => (one < other ? [one, other] : [other, one]);
    this.zoomed({
      x: sort(toX.from(drag.x0), toX.from(drag.x1)),
      y: drag.box ? sort(toY.from(drag.y0), toY.from(drag.y1)) : null,
    }, this);
  }

  zoomAround(x, factor) {
    const { toX, x: [from, to] } = this.scale, at = toX.to(x), left = toX.to(from), right = toX.to(to);
    const start = at - (at - left) * factor, end = at + (right - at) * factor;
    const all = this.wholeX();
    if (factor > 1 && toX.from(start) <= all[0] && toX.from(end) >= all[1]) this.zoomed({ x: null, y: null }, this);
    else this.zoomed({ x: [toX.from(start), toX.from(end)], y: this.domain.y }, this);
  }

  press(event) {
    if (!this.scale || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x: [from, to], toX } = this.scale;
    this.height = null;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const middle = this.cursor ?? toX.from((toX.to(from) + toX.to(to)) / 2);
    if (step && event.shiftKey) {
      const move = step * 0.2 * (toX.to(to) - toX.to(from));
      this.zoomed({ x: [toX.from(toX.to(from) + move), toX.from(toX.to(to) + move)], y: this.domain.y }, this);
    } else if (step) this.hovered(this.neighbor(step), this);
    else if (event.key === "Home" || event.key === "End") this.hovered(event.key === "Home" ? from : to, this);
    else if (event.key === "+" || event.key === "=") this.zoomAround(middle, 0.6);
    else if (event.key === "-") this.zoomAround(middle, 1 / 0.6);
    else if (event.key === "0") this.zoomed({ x: null, y: null }, this);
    else if (event.key === "Escape") this.hovered(null, this);
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (this.cursor !== null) {
      const values = this.valuesAt(this.cursor).map(({ one, y }) => `${one.name} ${score(y)}`);
      tell(`${this.xText(this.cursor)}: ${values.slice(0, 12).join(", ")}`);
    }
  }

  // The next x of the densest line, in the direction of an arrow key; at least one pixel away.
  neighbor(step) {
    const { x: [from, to], toX } = this.scale;
    if (this.cursor === null) return step > 0 ? from : to;
    const dense = this.series.reduce((best, one) => (one.x.length > (best?.x.length ?? 0) ? one : best), null);
    if (!dense) return this.cursor;
    let at = nearest(dense.x, this.cursor);
    while (at + step >= 0 && at + step < dense.x.length) {
      at += step;
      if (Math.abs(toX.to(dense.x[at]) - toX.to(this.cursor)) >= 1) break;
    }
    return Math.max(from, Math.min(to, dense.x[at]));
  }
}
