"use strict";
// What a chart is drawn with: a canvas or an SVG file, by the same calls; and the ticks of its axes.

class CanvasPen {
  constructor(context) {
    this.context = context;
  }

  clip(x, y, wide, high) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, wide, high);
    this.context.clip();
  }

  unclip() {
    this.context.restore();
  }

  // Points are pairs in one array; NaN lifts the pen.
  trace(points) {
    const { context } = this;
    let down = false;
    for (let at = 0; at < points.length; at += 2) {
      if (Number.isNaN(points[at + 1])) down = false;
      else if (down) context.lineTo(points[at], points[at + 1]);
      else {
        context.moveTo(points[at], points[at + 1]);
        down = true;
      }
    }
  }

  line(points, { color, width = 1, dash = [], alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    this.trace(points);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  area(points, { color, alpha }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.beginPath();
    this.trace(points);
    context.fill();
    context.globalAlpha = 1;
  }

  dot(x, y, radius, color) {
    this.context.fillStyle = color;
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fill();
  }

  text(text, x, y, { color, align = "left", size = 11, bold = false, turn = false }) {
    const { context } = this;
    context.save();
    context.font = `${bold ? "600 " : ""}${size}px system-ui, "Helvetica Neue", Arial, sans-serif`;
    context.fillStyle = color;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.translate(x, y);
    if (turn) context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0);
    context.restore();
  }
}

class SvgPen {
  constructor(wide, high) {
    this.parts = [];
    this.size = [wide, high];
    this.clips = 0;
  }

  clip(x, y, wide, high) {
    this.clips++;
    this.parts.push(`<clipPath id="clip${this.clips}"><rect x="${x}" y="${y}" width="${wide}" height="${high}"/></clipPath><g clip-path="url(#clip${this.clips})">`);
  }

  unclip() {
    this.parts.push("</g>");
  }

  path(points) {
    let path = "", down = false;
    for (let at = 0; at < points.length; at += 2) {
      if (Number.isNaN(points[at + 1])) down = false;
      else {
        path += `${down ? "L" : "M"}${points[at].toFixed(1)} ${points[at + 1].toFixed(1)}`;
        down = true;
      }
    }
    return path;
  }

  line(points, { color, width = 1, dash = [], alpha = 1 }) {
    const more = (dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "") + (alpha < 1 ? ` opacity="${alpha}"` : "");
    this.parts.push(`<path d="${this.path(points)}" fill="none" stroke="${color}" stroke-width="${width}" stroke-linejoin="round"${more}/>`);
  }

  area(points, { color, alpha }) {
    this.parts.push(`<path d="${this.path(points)}Z" fill="${color}" opacity="${alpha}"/>`);
  }

  dot(x, y, radius, color) {
    this.parts.push(`<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${radius}" fill="${color}"/>`);
  }

  text(text, x, y, { color, align = "left", size = 11, bold = false, turn = false }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const safe = text.replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
    this.parts.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-size="${size}" fill="${color}" text-anchor="${anchor}" dominant-baseline="central"`
      + `${bold ? ' font-weight="600"' : ""}${turn ? ` transform="rotate(-90 ${x.toFixed(1)} ${y.toFixed(1)})"` : ""}>${safe}</text>`);
  }

  file(background) {
    const [wide, high] = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${high}" viewBox="0 0 ${wide} ${high}" font-family="system-ui, Helvetica, Arial, sans-serif">`
      + `<rect width="100%" height="100%" fill="${background}"/>${this.parts.join("\n")}</svg>\n`;
  }
}

// ---- axes

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999) ?? rough;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && ticks.length < 50; at++) ticks.push(at * step);
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return linearTicks(low, high, count).filter((tick) => tick > 0);
  const marks = decades < 2 ? [1, 2, 5] : [1], ticks = [];
  const stride = Math.max(1, Math.ceil(decades / Math.max(count, 2)));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += stride)
    for (const mark of marks) {
      const tick = mark * 10 ** power;
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  return ticks;
}

// Ticks as text, with as many digits as their distance asks for, all written in the same way.
function tickTexts(ticks, log) {
  const largest = Math.max(...ticks.map(Math.abs)), spacing = Math.abs(ticks[1] - ticks[0]) || largest || 1;
  const places = Math.max(0, Math.min(6, Math.ceil(-Math.log10(spacing) - 1e-9)));
  return ticks.map((tick) => {
    if (Math.abs(tick) < spacing * 1e-6) return "0";
    if (log && tick < 1e-3) return tick.toExponential(1).replace(".0e", "e");
    if (!log && largest < 0.01) { // as many digits as tell it from the next one
      const power = (value) => Math.floor(Math.log10(Math.abs(value)) + 1e-9);
      return tick.toExponential(Math.max(0, Math.min(6, power(tick) - power(spacing))));
    }
    if (Math.abs(tick) >= 1e4) return short(tick);
    return log ? String(Number(tick.toPrecision(3))) : tick.toFixed(places);
  });
}

// Seconds, as s, min or h: the unit is chosen for the whole axis.
function timeUnit(high) {
  return high >= 7200 ? [3600, "h"] : high >= 180 ? [60, "min"] : [1, "s"];
}
