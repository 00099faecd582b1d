"use strict";
// The passages (or examples) of a split where two runs differ most, as a list of cards, and the tables next to it.

const TEN = 10; // passages that are shown first

// opened(start or null) and marked("table:row" or "") are told what the reader chose.
class Passages {
  constructor(host, { opened, marked }) {
    this.opened = opened;
    this.marked = marked;
    this.limit = TEN;
    this.feed = make("div", "", "feed");
    this.feed.setAttribute("role", "feed");
    this.feed.setAttribute("aria-label", "Passages, the largest difference first");
    this.aside = make("details", "", "groups");
    this.aside.open = !matchMedia("(max-width: 60rem)").matches;
    this.note = make("p", "", "mark-note");
    const split = make("div", "", "passages"), list = make("div");
    list.append(this.note, this.feed);
    split.append(list, this.aside);
    host.replaceChildren(split);
    this.feed.addEventListener("keydown", (event) => this.pressed(event));
    this.feed.addEventListener("focusin", (event) => this.roam(event.target.closest("article")));
  }

  // look: {names: {A, B}, ids: {A, B}, tip(token, text)}
  show(answer, look) {
    this.answer = answer;
    this.look = look;
    const order = [...answer.passages].sort((one, other) => Math.abs(other.difference) - Math.abs(one.difference));
    this.cards = order.map((passage) => new Card(passage, this));
    this.aside.replaceChildren(make("summary", "By group, with 95 % intervals"), ...(answer.tables ?? []).map((table) => this.group(table)));
  }

  // better: "A", "B" or "" for both; by: what colors the tokens; most: the value of the full color; mark: "table:row" or "".
  filter({ better, by, most, mark }) {
    const [key, row] = mark.split(":");
    const belongs = mark ? (passage, place) => passage.rows?.[key]?.[place] === Number(row) : null;
    const side = this.cards.filter(({ passage }) => !better || passage.better === better);
    const wanted = side.filter(({ passage }) => !belongs || (passage.rows?.[key] ?? []).includes(Number(row)));
    this.wanted = wanted;
    this.fill();
    wanted.forEach(({ element }, place) => {
      element.setAttribute("aria-posinset", place + 1);
      element.setAttribute("aria-setsize", wanted.length);
      element.tabIndex = place ? -1 : 0;
    });
    for (const card of this.cards) card.paint(by, most, belongs);
    for (const button of this.aside.querySelectorAll("[data-mark]")) {
      button.setAttribute("aria-pressed", String(button.dataset.mark === mark));
      button.closest("tr").classList.toggle("now", button.dataset.mark === mark);
    }
    this.describe(mark && { table: this.answer.tables?.find((table) => table.key === key), row: this.answer[key]?.[row], found: `${wanted.length} of ${side.length}` });
    if (!wanted.length) this.feed.replaceChildren(make("p", "None of these passages has such tokens.", "empty"));
    return wanted.length;
  }

  // Ten at a time; further ones when they are asked for.
  fill() {
    const left = this.wanted.length - this.limit, more = action(`Show ${Math.min(left, TEN)} more of ${this.wanted.length}`, "", () => {
      const first = this.wanted[this.limit].element;
      this.limit += TEN;
      this.fill();
      first.focus({ preventScroll: true });
    }, "more-passages");
    this.feed.replaceChildren(...this.wanted.slice(0, this.limit).map(({ element }) => element), ...(left > 0 ? [more] : []));
    for (const { text } of this.wanted.slice(0, this.limit)) text?.drawStrip();
  }

  // What is highlighted, or which keys there are.
  describe(mark) {
    this.note.replaceChildren();
    if (!mark?.row) {
      this.note.append(`Keys: ↑ ↓ passages, ${this.answer.kind === "passages" ? "← → tokens, " : ""}Enter details.`);
      return;
    }
    const { table, row, found } = mark;
    this.note.append("Highlighted: ", make("strong", `${table.title}: ${row.label}`), `, in ${found} ${this.answer.kind} `, action("Clear", "", () => this.marked(""), "plain"));
  }

  card(start) {
    return this.cards.find(({ passage }) => passage.start === start);
  }

  // Open a card and close the one that was; the address has its start.
  open(start, { reveal = false } = {}) {
    for (const card of this.cards) card.expand(card.passage.start === start);
    this.opened(start);
    const card = this.card(start), place = this.wanted?.indexOf(card) ?? -1;
    if (place >= this.limit) {
      this.limit = TEN * Math.ceil((place + 1) / TEN);
      this.fill();
    }
    if (!card || !card.element.isConnected) return false;
    this.roam(card.element);
    if (reveal) {
      card.element.scrollIntoView({ block: "center" });
      card.element.focus({ preventScroll: true });
    }
    return true;
  }

  roam(article) {
    if (!article) return;
    for (const one of this.feed.querySelectorAll("article")) one.tabIndex = one === article ? 0 : -1;
  }

  pressed(event) {
    const article = event.target;
    if (article.tagName !== "ARTICLE" || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...this.feed.querySelectorAll("article")], at = all.indexOf(article), card = this.card(Number(article.dataset.start));
    const goal = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (goal !== undefined) {
      const next = all[Math.max(0, Math.min(all.length - 1, goal))];
      next.focus({ preventScroll: true });
      next.scrollIntoView({ block: "nearest" });
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      card.text?.step(event.key === "ArrowLeft" ? -1 : 1);
    } else if (event.key === "Enter" || event.key === " ") {
      this.open(card.isOpen ? null : card.passage.start);
    } else if (event.key === "Escape" && card.isOpen) {
      this.open(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  // One table: losses by group of tokens, differences with their intervals round zero.
  group({ key, title, of }) {
    const rows = this.answer[key] ?? [], box = make("section", "", "group"), table = make("table"), body = make("tbody");
    const clickable = this.answer.passages.some((passage) => passage.rows?.[key]);
    const reach = Math.max(1e-9, ...rows.flatMap((row) => [row.difference, row.low ?? 0, row.high ?? 0].map(Math.abs)));
    const heading = make("h3", of ? `${title} of ${this.look.names[of]}` : title), head = make("thead"), top = make("tr");
    for (const [name, kind] of [["", "words"], [this.answer.counted, ""], ["A", "loss"], ["B", "loss"], ["← B better · A better →", "axis"], ["B − A", ""], ["95 % interval", "interval"]]) {
      const cell = make("th", name, kind);
      cell.scope = "col";
      if (!name) cell.append(make("span", "group", "hidden"));
      top.append(cell);
    }
    head.append(top);
    rows.forEach((row, number) => {
      const line = make("tr"), first = make("th", "", "words");
      first.scope = "row";
      if (clickable) {
        const button = action(row.label, "", () => this.marked(button.getAttribute("aria-pressed") === "true" ? "" : `${key}:${number}`), "plain");
        button.dataset.mark = `${key}:${number}`;
        button.title = "Highlight these tokens in the passages";
        first.append(button);
        line.addEventListener("click", (event) => { if (event.target !== button) button.click(); });
        line.classList.add("pick");
      } else {
        first.textContent = row.label;
      }
      const interval = row.low === null || row.low === undefined ? "–" : [row.low, row.high].map((end) => signed(end, Math.abs(end) < 10 ? 2 : 1)).join(" … ");
      const axis = make("td", "", "axis");
      axis.append(this.whisker(row, reach));
      line.append(first, make("td", row.tokens.toLocaleString("en-US")), make("td", digits(row.A), "loss"), make("td", digits(row.B), "loss"), axis,
        make("td", signed(row.difference)), make("td", interval, "interval"));
      body.append(line);
    });
    table.append(make("caption", `${title}: losses of A and B`, "hidden"), head, body);
    const scroll = make("div", "", "scroll");
    scroll.append(table);
    box.append(heading, scroll);
    return box;
  }

  whisker({ difference, low, high }, reach) {
    const host = make("span", "", "whisker"), at = (value) => `${50 + 47 * value / reach}%`;
    host.setAttribute("aria-hidden", "true");
    const bar = make("span", "", `beam ${difference < 0 ? "b" : "a"}`), zero = make("span", "", "zero");
    bar.style.left = at(Math.min(0, difference));
    bar.style.width = `${47 * Math.abs(difference) / reach}%`;
    host.append(bar, zero);
    if (low !== null && low !== undefined) {
      const range = make("span", "", "range");
      range.style.left = at(low);
      range.style.width = `${47 * (high - low) / reach}%`;
      host.append(range);
    }
    return host;
  }
}

const oneOf = (counted) => counted.replace(/s$/, "");

// One passage with its tokens, or one example with what both runs make of it.
class Card {
  constructor(passage, list) {
    this.passage = passage;
    this.list = list;
    this.isOpen = false;
    const { look } = list, better = passage.better, mean = (losses) => losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
    this.element = make("article", "", `passage better-${better.toLowerCase()}`);
    this.element.dataset.start = passage.start;
    const head = make("div", "", "card-head"), title = make("h3");
    title.id = `passage-${passage.start}`;
    this.element.setAttribute("aria-labelledby", title.id);
    const per = list.answer.kind === "passages" ? ` per ${oneOf(list.answer.counted)}` : "";
    if (passage.rank) title.append(make("span", `${passage.rank}. `, "quiet"));
    title.append(chip(better), ` better by ${Math.abs(passage.difference).toFixed(3)} nats${per}`);
    const facts = make("p", "", "small-facts");
    facts.textContent = [`A ${mean(passage.losses.A).toFixed(3)}`, `B ${mean(passage.losses.B).toFixed(3)}`, this.where()].join(" · ");
    this.more = action("Details", "", () => list.open(this.isOpen ? null : passage.start), "plain");
    this.more.setAttribute("aria-expanded", "false");
    head.append(title, this.more);
    this.body = make("div", "", "body");
    this.detail = make("div", "", "detail");
    this.detail.hidden = true;
    this.element.append(head, facts, this.body, this.detail);
    if (passage.tokens) {
      this.text = new ComparedText({ ...passage, joined: list.answer.joined, groups: (at) => this.groupsOf(at) }, { tip: look.tip });
      this.body.append(this.text.element);
    } else {
      this.body.append(exampleOf(passage.example, look));
    }
  }

  where() {
    const { start, tokens, line, similar } = this.passage;
    const place = tokens ? `${this.list.answer.counted} ${start.toLocaleString("en-US")} to ${(start + tokens.length - 1).toLocaleString("en-US")}` : `example ${start}`;
    return [place, typeof line === "number" ? `line ${line}` : "", similar ? `${similar} similar left out` : ""].filter(Boolean).join(" · ");
  }

  groupsOf(at) {
    return (this.list.answer.tables ?? []).flatMap(({ key, title }) => {
      const row = this.list.answer[key]?.[this.passage.rows?.[key]?.[at]];
      return row ? [`${title}: ${row.label}`] : [];
    });
  }

  paint(by, most, belongs) {
    this.text?.paint(by, most, belongs && ((place) => belongs(this.passage, place)));
  }

  expand(open) {
    if (open === this.isOpen) return;
    this.isOpen = open;
    this.element.classList.toggle("open", open);
    this.more.setAttribute("aria-expanded", String(open));
    this.more.textContent = open ? "Close" : "Details";
    this.detail.hidden = !open;
    this.detail.replaceChildren(...(open ? this.details() : []));
    if (this.text) this.text.drawStrip();
  }

  details() {
    const { look } = this.list, { passage, text } = this, links = make("p", "", "links");
    const link = make("a", "Link to this passage");
    link.href = linkTo("tokens", { a: look.ids.A, b: look.ids.B, on: "valid", at: passage.start });
    link.className = "share";
    links.append(link);
    for (const letter of BOTH) {
      const there = make("a", `Look inside ${look.names[letter]}`);
      const [from, to] = passage.places[letter];
      there.href = linkTo("look", { run: look.ids[letter], example: from, length: text ? to - from : "", text: "" });
      links.append(there);
    }
    const both = make("a", "Look inside both"), [from, to] = passage.places.A;
    both.href = linkTo("look", { run: look.ids.A, beside: look.ids.B, example: from, length: text ? to - from : "", text: "" });
    links.append(both);
    if (!text) return [links];
    return [text.strip(), links, text.table(`Losses of the ${this.list.answer.counted} from ${passage.start} on`)];
  }
}

// An example as the passages of a split have it, from what Look says of it in two runs.
function exampleOfLooks({ A, B }) {
  const both = (value) => ({ A: value(A), B: value(B) });
  if (A.kind === "translation") return { source: A.text, reference: A.reference, translations: both((look) => look.translation) };
  return {
    ...(A.kind === "image" ? { pixels: A.pixels } : { text: A.text }), true: A.true,
    predicted: both((look) => look.label), probability: both((look) => look.probabilities[look.label]),
  };
}

// What both runs make of one example of the split.
function exampleOf(example, { names }) {
  const box = make("div", "", "example");
  if (example.pixels) {
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `image of class ${example.true}`);
    paintImage(canvas, example, null, { least: 128 }).catch(showError);
    box.append(canvas);
  }
  const facts = make("dl"), add = (name, value, chipped = null) => {
    const term = make("dt");
    if (chipped) term.append(chip(chipped), " ");
    term.append(name);
    facts.append(term, make("dd", value));
  };
  if (example.text !== undefined) add("text", example.text);
  if (example.source !== undefined) add("source", example.source);
  if (example.reference !== undefined) add("reference", example.reference);
  if (example.true !== undefined) add("true label", String(example.true));
  for (const letter of BOTH) {
    if (example.translations) add(names[letter], example.translations[letter], letter);
    if (example.predicted) {
      const sure = example.probability?.[letter], right = example.predicted[letter] === example.true ? "" : " ≠ true label";
      add(names[letter], `${example.predicted[letter]}${sure === undefined ? "" : `, probability ${written(sure)}`}${right}`, letter);
    }
  }
  box.append(facts);
  return box;
}
