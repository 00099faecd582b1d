"use strict";
// Two runs on one text: the loss of each token, and its difference in color. A difference is always B minus A, so that it is
// negative where B is better; B is orange, A is blue.

const BOTH = ["A", "B"];
const difference_share = (value, most) => 0.5 - Math.max(-1, Math.min(1, value / most)) / 2;

function chip(letter) {
  const element = make("span", letter, `chip chip-${letter.toLowerCase()}`);
  element.setAttribute("aria-label", `run ${letter}`);
  element.setAttribute("role", "img");
  return element;
}

// The value that has the full color: 98 % of the tokens are below it.
function full_color(values) {
  const sizes = values.filter((value) => value !== null).map(Math.abs).sort((one, other) => one - other);
  return Math.max(0.5, Math.ceil(2 * (sizes[Math.floor(0.98 * (sizes.length - 1))] ?? 0.5)) / 2);
}

function differenceLegend(host, most) {
  legend(host, "both", `A better, ${most.toFixed(1)}+ nats`, `${most.toFixed(1)}+ nats, B better`);
  host.title = "B − A in nats: 98 % of the tokens have a paler color; bars in the strips: up where A is better, down where B is better";
}

// A little of the text around a passage, in one line.
const AROUND = 110; // characters
const inLine = (text) => text.trim().replace(/\s*\n\s*/g, " ⏎ ");
const endOf = (text) => inLine(text).slice(-AROUND).replace(/^\S* /, "");
const startOf = (text) => inLine(text).slice(0, AROUND).replace(/ \S*$/, "");

// A text whose tokens are colored by what two runs (or one) lose on them, with a strip of bars and a table for reading.
// text: {tokens, joined, unknown?, losses: {A: […], B?: […]}, before?, after?, groups?(place) -> words}
class ComparedText {
  constructor(text, { tip }) {
    this.text = text;
    this.tip = tip;
    const { A, B } = text.losses;
    this.difference = B ? A.map((loss, place) => loss === null || B[place] === null ? null : B[place] - loss) : null;
    this.element = make("div", "", "tokens compared");
    this.shown = new Text(this.element, { ...text, unknown: text.unknown ?? [] }, { boundary: false, moved: (place) => this.point(place) });
    if (text.before) this.element.prepend(make("span", `… ${endOf(text.before)} `, "around"));
    if (text.after) this.element.append(make("span", ` ${startOf(text.after)} …`, "around"));
    this.cursor = null;
  }

  // by: "difference", "A" or "B"; `most` is the value of the full color; `marked(place)`: false for tokens that step back.
  paint(by, most, marked = null) {
    const { losses } = this.text, single = by !== "difference" || !this.difference;
    const values = single ? losses[by] ?? losses.A : this.difference;
    this.shown.paint(single ? "loss" : "both", (place) => values[place] === null ? null
      : single ? values[place] / most : difference_share(values[place], most));
    this.shown.tokens.forEach((token, place) => {
      const away = marked && !marked(place);
      token.classList.toggle("away", Boolean(away));
      token.classList.toggle("marked", Boolean(marked && !away));
      if (away) unpainted(token);
    });
    if (this.difference) this.reach = single ? full_color(this.difference) : most; // of the bars
    this.marked = marked;
    this.drawStrip();
  }

  describe(place) {
    const { tokens, losses, unknown, groups } = this.text, { A, B } = losses;
    const lines = [`${shown(tokens[place])}`];
    const of = (loss) => loss === null ? "not scored" : `${loss.toFixed(3)}  (probability ${written(Math.exp(-loss))})`;
    if (B) {
      const value = this.difference[place];
      lines.push(`A  ${of(A[place])}`, `B  ${of(B[place])}`);
      if (value !== null) lines.push(`B − A  ${signed(value)}  ${value < 0 ? "B better" : value > 0 ? "A better" : "equal"}`);
    } else {
      lines.push(`loss  ${of(A[place])}`);
    }
    if (unknown?.[place]) lines.push("unknown to the tokenizer");
    return [...lines, ...(groups?.(place) ?? [])].join("\n");
  }

  point(place) {
    if (this.cursor === place) return;
    this.shown.tokens[this.cursor]?.classList.remove("now");
    this.cursor = place;
    const token = this.shown.tokens[place];
    token?.classList.add("now");
    this.tip(token ?? null, token ? this.describe(place) : "");
    this.drawStrip();
  }

  // Left and right: the next token, read out.
  step(by) {
    const last = this.shown.tokens.length - 1;
    this.point(this.cursor === null ? (by > 0 ? 0 : last) : Math.max(0, Math.min(last, this.cursor + by)));
    tell(this.describe(this.cursor).replaceAll("\n", "; "));
  }

  // Bars over the tokens: up where A is better, down where B is. Shape says what color says.
  strip() {
    this.canvas = make("canvas", "", "strip");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Differences of the tokens as bars: up where A is better, down where B is better. The table has the numbers.");
    const placeAt = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return Math.max(0, Math.min(this.difference.length - 1, Math.floor((event.clientX - box.left) / this.barWidth(box.width))));
    };
    this.canvas.addEventListener("pointermove", (event) => this.point(placeAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.drawStrip()).observe(this.canvas);
    return this.canvas;
  }

  barWidth(wide) {
    return Math.min(18, wide / this.difference.length);
  }

  drawStrip() {
    if (!this.canvas?.isConnected || !this.canvas.clientWidth) return;
    const wide = this.canvas.clientWidth, high = 56;
    const fine = window.devicePixelRatio || 1, style = getComputedStyle(document.body);
    this.canvas.width = Math.round(wide * fine);
    this.canvas.height = high * fine;
    const context = this.canvas.getContext("2d"), size = this.barWidth(wide), middle = high / 2;
    context.scale(fine, fine);
    this.difference.forEach((value, place) => {
      if (value === null) return;
      const share = Math.max(-1, Math.min(1, value / this.reach)), tall = Math.abs(share) * (middle - 3);
      const [red, green, blue] = ramps.both.subarray(value > 0 ? 0 : 765, value > 0 ? 3 : 768);
      context.globalAlpha = this.marked && !this.marked(place) ? 0.2 : 1;
      context.fillStyle = `rgb(${red} ${green} ${blue})`;
      context.fillRect(place * size + (size > 3 ? 0.5 : 0), value > 0 ? middle - tall : middle, Math.max(1, size - (size > 3 ? 1 : 0)), tall);
      if (place === this.cursor) {
        context.globalAlpha = 1;
        context.strokeStyle = style.getPropertyValue("--ink");
        context.strokeRect(place * size, 0.5, size, high - 1);
      }
    });
    context.globalAlpha = 1;
    context.fillStyle = style.getPropertyValue("--quiet");
    context.fillRect(0, middle - 0.5, size * this.difference.length, 1);
  }

  // The same numbers as a table, in the order of the text.
  table(caption) {
    const { tokens, losses } = this.text, box = make("div", "", "scroll tall"), table = make("table"), body = make("tbody");
    const head = make("thead"), top = make("tr"), names = this.difference ? ["A", "B", "B − A"] : ["loss"];
    for (const name of ["position", "token", ...names]) {
      const cell = make("th", name, name === "token" ? "words" : "");
      cell.scope = "col";
      top.append(cell);
    }
    head.append(top);
    body.append(...tokens.map((token, place) => {
      const row = make("tr"), value = this.difference?.[place], number = (loss) => make("td", loss === null ? "–" : loss.toFixed(3));
      row.append(make("td", String(place)), make("td", shown(token), "words"), number(losses.A[place]));
      if (this.difference) row.append(number(losses.B[place]), make("td", value === null ? "–" : signed(value)));
      return row;
    }));
    table.append(make("caption", caption, "hidden"), head, body);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", caption);
    box.append(table);
    return box;
  }
}

// Loss and perplexity of the whole text.
function totalsTable(caption, totals, names, difference = null) {
  const table = make("table", "", "totals"), head = make("thead"), top = make("tr"), body = make("tbody");
  const letters = BOTH.filter((letter) => totals[letter]);
  const columns = [["loss", "loss"], ["perplexity", "perplexity"], ["bits_per_byte", "bits per byte"], ["accuracy", "accuracy"], ["bleu", "BLEU"], ["tokens", "tokens"]]
    .filter(([key]) => letters.some((letter) => typeof totals[letter][key] === "number"));
  for (const name of ["run", ...columns.map(([, name]) => name)]) {
    const cell = make("th", name);
    cell.scope = "col";
    top.append(cell);
  }
  head.append(top);
  const number = (value, isCount) => typeof value !== "number" ? "–" : isCount ? value.toLocaleString("en-US") : score(value);
  for (const letter of letters) {
    const row = make("tr"), first = make("th");
    first.scope = "row";
    first.append(chip(letter), ` ${names[letter]}`);
    row.append(first, ...columns.map(([key]) => make("td", number(totals[letter][key], key === "tokens"))));
    body.append(row);
  }
  if (difference !== null) {
    const row = make("tr"), first = make("th", "B − A");
    first.scope = "row";
    row.append(first, make("td", signed(difference)), ...columns.slice(1).map(() => make("td")));
    body.append(row);
  }
  table.append(make("caption", caption, "hidden"), head, body);
  const box = make("div", "", "scroll");
  box.append(table);
  return box;
}
