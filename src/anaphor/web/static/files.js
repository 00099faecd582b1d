"use strict";
// Files to download: a chart as SVG or PNG with its legend, and tables as CSV.

function download(name, content, type) {
  const link = make("a"), address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// A field that a spreadsheet reads as text and not as a formula.
function csvField(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = /^[=+\-@\t\r]/.test(value ?? "") ? `'${value}` : String(value ?? "");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csvText = (rows) => rows.map((row) => row.map(csvField).join(",")).join("\n") + "\n";

// ---- charts

const FILE = { wide: 900, high: 440, top: 28, line: 18 };

// A title, the chart below it, and the legend in two columns.
function paintFile(chart, pen, legend) {
  const color = chart.colors(), lower = (points) => points.map((value, at) => (at % 2 ? value + FILE.top : value));
  pen.text(chart.options.title, MARGIN.left, 16, { color: color.ink, size: 14, bold: true });
  chart.paint({
    clip: (x, y, ...size) => pen.clip(x, y + FILE.top, ...size),
    unclip: () => pen.unclip(),
    line: (points, style) => pen.line(lower(points), style),
    area: (points, style) => pen.area(lower(points), style),
    dot: (x, y, ...more) => pen.dot(x, y + FILE.top, ...more),
    text: (text, x, y, style) => pen.text(text, x, y + FILE.top, style),
  }, FILE.wide, FILE.high, chart.scales(FILE.wide, FILE.high));
  legend.forEach((one, place) => {
    const x = MARGIN.left + (place % 2) * (FILE.wide - MARGIN.left) / 2, y = FILE.high + 40 + FILE.line * Math.floor(place / 2);
    pen.line([x, y, x + 22, y], { color: one.color, dash: one.dash, width: 2 });
    pen.text(one.label, x + 30, y, { color: color.ink });
  });
}

// kind: svg or png; legend: [{label, color, dash}]
async function saveChart(chart, kind, name, legend) {
  const high = FILE.high + 48 + FILE.line * Math.ceil(legend.length / 2), { card } = chart.colors();
  if (kind === "svg") {
    const pen = new SvgPen(FILE.wide, high);
    paintFile(chart, pen, legend);
    return download(`${name}.svg`, pen.file(card), "image/svg+xml");
  }
  const canvas = make("canvas"), context = canvas.getContext("2d");
  canvas.width = 2 * FILE.wide;
  canvas.height = 2 * high;
  context.scale(2, 2);
  context.fillStyle = card;
  context.fillRect(0, 0, FILE.wide, high);
  paintFile(chart, new CanvasPen(context), legend);
  return download(`${name}.png`, await new Promise((done) => canvas.toBlob(done, "image/png")));
}
