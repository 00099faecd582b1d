"use strict";
// Two runs on the same tokens: a text of the reader's own, and the passages of the validation split where they differ most.
{
  const LENGTHS = ["8", "16", "32", "64", "128"];
  const COUNT = 40; // passages: half of them where A is better
  const VERBS = ["tokens", "passages"];
  const EXAMPLE = 48; // tokens of the text that the view starts with
  let current = null;

  views.tokens = {
    title: "Compare",
    keys: [["↑ ↓", "passages"], ["← →", "tokens of a passage"], ["Enter", "open or close a passage"]],
    offered: (all) => live ? all.runs.some((run) => run.offers?.some((verb) => VERBS.includes(verb)))
      : VERBS.some((verb) => embeddedBodies(`/api/${verb}`).length > 0),
    async open(element, state) {
      current = new Comparison(element, state);
      await current.start();
    },
    refresh: () => current?.refresh(),
    close() {
      current?.close();
      current = null;
    },
  };

  // An answer with the letters A and B in the place of the ids.
  function lettered(answer, ids) {
    const swap = (value) => {
      if (Array.isArray(value)) return value.length && typeof value[0] !== "object" ? value : value.map(swap);
      if (!value || typeof value !== "object") return value;
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [
        BOTH.find((letter) => ids[letter] === key) ?? key,
        key === "better" || key === "of" ? BOTH.find((letter) => ids[letter] === one) ?? one : swap(one),
      ]));
    };
    return swap(answer);
  }

  // The first run to compare one with: of its task, and on the same data where there is such a run.
  function partnerOf(run, runs) {
    const others = runs.filter((other) => other !== run && other.task === run?.task);
    return others.find((other) => isOnSameData(run, other)) ?? others[0];
  }

  class Comparison {
    constructor(element, state) {
      this.state = state;
      this.element = element;
      this.bubble = make("div", "", "tip");
      this.textWork = new Work("Scoring the text");
      this.splitWork = new Work("Scoring the validation split");
      const bodies = [...embeddedBodies("/api/passages"), ...embeddedBodies("/api/tokens")];
      this.embeddedRuns = live ? null : bodies.find(({ runs }) => runs.length === 2)?.runs ?? bodies[0]?.runs;
      this.chooseRuns();
    }

    close() {
      for (const work of [this.textWork, this.splitWork, this.exampleWork]) work?.control?.abort();
    }

    // ---- the two runs

    chooseRuns() {
      const offering = task_runs().filter((run) => run.offers?.some((verb) => VERBS.includes(verb)));
      const picked = selected().map(find_run).filter((run) => offering.includes(run));
      const order = [...new Set([...picked, ...offering])];
      const first = find_run(this.state.get("a")) ?? (this.embeddedRuns && find_run(this.embeddedRuns[0]))
        ?? order.find((run) => order.some((other) => other !== run && isOnSameData(run, other)))
        ?? order.find((run) => partnerOf(run, order)) ?? order[0];
      const second = find_run(this.state.get("b")) ?? (this.embeddedRuns && find_run(this.embeddedRuns[1])) ?? partnerOf(first, order);
      this.ids = { A: first?.id ?? "", B: this.state.get("b") === "none" ? "" : second?.id ?? "" };
    }

    get names() {
      return Object.fromEntries(BOTH.map((letter) => [letter, this.ids[letter] ? run_name(this.ids[letter]) : ""]));
    }

    refresh() {
      if (this.choices) this.fillRuns();
      else if (listing.runs.length) openView(); // the folder was empty
    }

    fillRuns() {
      const first = find_run(this.ids.A);
      fillPicker(this.choices.A, runOptions(VERBS), this.ids.A);
      fillPicker(this.choices.B, [...runOptions(VERBS, (run) => run.task === first?.task && run !== first), ["", "none"]], this.ids.B);
      this.swap.disabled = !this.ids.B;
    }

    async setRuns(ids) {
      if (find_run(ids.A)?.task !== find_run(ids.B)?.task || ids.A === ids.B) ids = { ...ids, B: "" };
      if (!ids.B && ids.A !== this.ids.A) {
        const other = partnerOf(find_run(ids.A), task_runs().filter((run) => run.offers?.includes("passages")));
        ids = { ...ids, B: other?.id ?? "" };
      }
      this.ids = ids;
      this.state.set({ a: ids.A, b: ids.B || "none", at: null, mark: null }, { push: true });
      this.fillRuns();
      this.layOut();
      await this.load();
    }

    head() {
      const section = make("section", "", "pair-choice"), bar = make("div", "", "bar");
      this.choices = {
        A: picker([], "", (id) => this.setRuns({ ...this.ids, A: id }), "a"),
        B: picker([], "", (id) => this.setRuns({ ...this.ids, B: id }), "b"),
      };
      this.swap = action("⇄", "Swap A and B", () => this.setRuns({ A: this.ids.B, B: this.ids.A }), "plain");
      const labels = BOTH.map((letter) => {
        const label = field("", this.choices[letter]);
        label.firstChild.append(chip(letter));
        this.choices[letter].setAttribute("aria-label", `Run ${letter}`);
        return label;
      });
      this.by = picker([["difference", "difference B − A"], ["A", "loss of A"], ["B", "loss of B"]], this.state.get("by", "difference"), (by) => {
        this.state.set({ by: by === "difference" ? null : by });
        this.paint();
      }, "by");
      this.key = make("span", "", "legend");
      this.byField = field("Color", this.by);
      bar.append(labels[0], this.swap, labels[1], this.byField, this.key);
      section.append(make("h2", "Two runs, token by token", "hidden"), bar);
      this.fillRuns();
      for (const control of [...Object.values(this.choices), this.swap]) control.disabled ||= !live;
      return section;
    }

    // ---- sections

    async start() {
      if (!this.ids.A) {
        this.element.append(listing.runs.length ? make("p", "No run of this task can be compared.", "empty") : noRuns());
        return;
      }
      this.top = this.head();
      this.textPart = make("section", "", "own-text");
      this.examplePart = make("section", "", "example-part");
      this.splitPart = make("section", "", "split-part");
      this.element.append(this.top, this.textPart, this.examplePart, this.splitPart, this.bubble);
      this.layOut();
      await this.load();
      if (live && !this.state.get("text") && !this.state.get("on")) this.startWithExample().catch(showError);
    }

    // The first lines of the validation split, so that there is something to see. A text that is typed meanwhile stays.
    async startWithExample() {
      if (this.textPart.hidden || !find_run(this.ids.A)?.offers?.includes("look")) return;
      const found = await this.textWork.send("/api/look", { run: this.ids.A, example: 0, length: EXAMPLE });
      if (!found?.text || this.state.closed || this.area.value || this.state.get("text")) return;
      this.area.value = found.text;
      this.textPart.querySelector("h2").textContent = "A text: the beginning of the validation split, or one of your own";
      await this.compareText();
    }

    load() {
      return Promise.all([this.state.get("text") || !live ? this.compareText() : null, this.state.get("on") || !live ? this.compareSplit() : null]);
    }

    offers(verb) {
      if (!live) return embeddedBodies(`/api/${verb}`).length > 0;
      return BOTH.map((letter) => find_run(this.ids[letter])).every((run, place) => run ? run.offers?.includes(verb) : place > 0);
    }

    layOut() {
      this.shown = this.list = this.answer = null;
      this.layOutText();
      this.layOutExample();
      this.layOutSplit();
      this.paint();
    }

    // Where a task has no running text: one example of validation, with what both runs make of it.
    layOutExample() {
      this.examplePart.hidden = !live || !this.textPart.hidden || !BOTH.every((letter) => find_run(this.ids[letter])?.offers?.includes("look"));
      if (this.examplePart.hidden) return;
      const bar = make("div", "", "bar"), example = new Example(this.state.get("example"), (number) => {
        this.state.set({ example: number || null }, { push: true });
        return this.showExample();
      });
      this.exampleWork = new Work("Reading the example");
      this.exampleResult = make("div", "", "result");
      this.exampleNumber = example.number;
      bar.append(make("h2", "One example"), example.element);
      this.examplePart.replaceChildren(bar, this.exampleWork.element, this.exampleResult);
      if (this.element.isConnected) this.showExample().catch(showError);
    }

    async showExample() {
      const example = Number(this.state.get("example")) || 0, ids = { ...this.ids }, found = {};
      this.exampleNumber.value = example;
      for (const letter of BOTH) {
        found[letter] = await this.exampleWork.send("/api/look", { run: ids[letter], example });
        if (!found[letter] || this.state.closed) return;
      }
      const links = make("p", "", "links"), link = make("a", "Look inside both");
      link.href = linkTo("look", { run: ids.A, beside: ids.B, example, text: "" });
      links.append(link);
      this.exampleResult.replaceChildren(exampleOf(exampleOfLooks(found), { names: this.names }), links);
      this.examplePart.dataset.shown = example;
    }

    layOutText() {
      this.textPart.hidden = !this.offers("tokens");
      const area = this.area = make("textarea");
      area.rows = 2;
      area.name = "text";
      area.placeholder = "Type or paste a text, then Ctrl + Enter";
      area.value = this.state.get("text") || (live ? "" : embeddedBodies("/api/tokens")[0]?.text ?? "");
      area.readOnly = !live;
      area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go.click(); });
      const go = action("Score", "", () => { this.state.set({ text: area.value }, { push: true }); return this.compareText(); }, "primary");
      const bar = make("div", "", "entry");
      go.hidden = !live;
      bar.append(field("Text", area, "wide"), go);
      this.textResult = make("div", "", "result");
      this.textPart.replaceChildren(make("h2", live ? "A text of your own" : "A text"), bar, this.textWork.element, this.textResult);
    }

    layOutSplit() {
      this.splitPart.hidden = !this.offers("passages");
      const bar = make("div", "", "bar"), title = make("h2", "Where they differ most on the validation split");
      this.go = action("Compare on the validation split", "", () => { this.state.set({ on: "valid" }, { push: true }); return this.compareSplit(); }, "primary");
      this.go.hidden = !live || Boolean(this.state.get("on")) || !this.ids.B;
      this.length = picker(LENGTHS.map((length) => [length, length]), this.state.get("length", "64"), (length) => {
        this.state.set({ length: length === "64" ? null : length, at: null });
        return this.compareSplit();
      }, "length");
      this.lengthField = field("Length", this.length);
      this.lengthField.hidden = true;
      this.better = new Switch("Passages where", [], "", (better) => { this.state.set({ better, at: null }); this.filter(); });
      this.better.element.hidden = true;
      bar.append(title, this.go, this.better.element, this.lengthField);
      this.summary = make("div", "", "summary");
      this.splitResult = make("div", "", "result");
      const none = make("p", this.ids.B ? "" : "Choose a second run to compare them on the validation split.", "quiet");
      none.hidden = Boolean(this.ids.B);
      this.splitPart.replaceChildren(bar, none, this.splitWork.element, this.summary, this.splitResult);
    }

    // ---- a text

    async compareText() {
      const text = this.area.value;
      this.shown = null;
      this.textResult.replaceChildren();
      if (!text.trim() || this.textPart.hidden) return;
      const ids = { ...this.ids }, answer = await this.textWork.send("/api/tokens", { runs: BOTH.map((letter) => ids[letter]).filter(Boolean), text });
      if (!answer || this.state.closed) return;
      const { totals, notes, ...found } = lettered(answer, ids);
      this.shown = new ComparedText(found, { tip: (...given) => this.tip(...given) });
      const { shown } = this, both = Boolean(found.losses.B), box = shown.element;
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "Text with colored tokens: left and right read them");
      box.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by) { shown.step(by); event.preventDefault(); }
      });
      box.addEventListener("blur", () => shown.point(null));
      const table = make("details");
      table.append(make("summary", "Table of the tokens"), shown.table("Losses of the tokens of the text"));
      // Losses per token of different tokens have no difference.
      const difference = both && totals.A.tokens === totals.B.tokens ? totals.B.loss - totals.A.loss : null;
      const words = make("div", "", "words-part");
      words.append(...(both ? [shown.strip()] : []), box, ...notesOf(notes), table);
      this.textResult.replaceChildren(words, totalsTable("Losses of the whole text", totals, this.names, difference));
      this.paint();
    }

    // ---- the validation split

    async compareSplit() {
      if (!this.ids.B || this.splitPart.hidden) return;
      this.go.hidden = true;
      this.summary.replaceChildren();
      this.splitResult.replaceChildren();
      this.list = null;
      const ids = { ...this.ids }, body = live ? this.splitBody() : embeddedBodies("/api/passages")[0];
      let answer = await this.splitWork.send("/api/passages", body);
      if (this.state.closed) return;
      this.go.hidden = !live || Boolean(answer);
      if (!answer) return;
      const at = Number(this.state.get("at", "-1"));
      // A link may lead to a passage that is not among the first.
      if (at >= 0 && !answer.passages.some((passage) => passage.start === at)) {
        const one = live ? await this.splitWork.send("/api/passages", { ...body, at }) : null;
        if (this.state.closed) return;
        if (one) answer = { ...answer, passages: [...one.passages, ...answer.passages] };
      }
      this.showSplit(lettered(answer, ids));
      if (at >= 0) this.list.open(at, { reveal: true });
    }

    splitBody() {
      return { runs: [this.ids.A, this.ids.B], split: "valid", length: Number(this.state.get("length", "64")), count: COUNT };
    }

    showSplit(answer) {
      this.answer = answer;
      this.list = new Passages(this.splitResult, {
        opened: (start) => this.state.set({ at: start }),
        marked: (mark) => { this.state.set({ mark }); this.filter(); },
      });
      this.list.show(answer, { names: this.names, ids: this.ids, tip: (...given) => this.tip(...given) });
      const isText = answer.kind === "passages";
      this.lengthField.hidden = !isText || !live;
      this.lengthField.firstChild.textContent = `Length in ${answer.counted}`;
      this.better.element.hidden = false;
      const count = (letter) => answer.passages.filter((passage) => passage.better === letter).length;
      this.better.fill([["", `all ${answer.passages.length}`], ...BOTH.map((letter) => [letter, `${letter} better: ${count(letter)}`])], this.state.get("better"));
      for (const button of this.better.element.children) button.disabled = button.dataset.value !== "" && !count(button.dataset.value);
      const { overall } = answer, line = make("p", "", "verdict");
      if (overall) {
        const winner = overall.difference < 0 ? "B" : "A", sure = overall.low !== null && overall.low * overall.high > 0;
        line.append(chip(winner), ` is better by ${Math.abs(overall.difference).toFixed(3)} nats per ${oneOf(answer.counted)}`,
          overall.low === null ? "" : ` (B − A ${signed(overall.difference)}, 95 % interval ${signed(overall.low)} … ${signed(overall.high)}${sure ? "" : ", which includes zero"})`,
          `; B has the smaller loss on ${(100 * overall.better).toFixed(1)} % of ${answer.items.toLocaleString("en-US")} ${answer.counted}.`);
      }
      const signatures = make("details");
      signatures.append(make("summary", "Signatures of the scores"), ...BOTH.map((letter) => {
        const one = make("p", "", "signature");
        one.append(chip(letter), ` ${answer.signature?.[letter] ?? "–"}`);
        return one;
      }));
      const words = make("div");
      words.append(line, ...notesOf(answer.notes), signatures);
      this.summary.replaceChildren(totalsTable("Scores on the validation split", answer.totals, this.names), words);
      this.paint();
      this.splitPart.dataset.shown = `${this.ids.A} ${this.ids.B}`;
    }

    filter() {
      if (!this.list) return;
      const mark = this.state.get("mark"), found = this.list.filter({ better: this.state.get("better"), by: this.by.value, most: this.scale().most, mark });
      const at = Number(this.state.get("at", "-1"));
      for (const card of this.list.cards) card.expand(card.passage.start === at);
      if (mark) tell(`${found} passages have tokens of this group`);
    }

    // ---- colors

    // One scale for all that is shown, so that equal colors are equal values.
    scale() {
      const single = this.by.value !== "difference" || !this.ids.B, texts = [...(this.shown ? [this.shown] : []), ...(this.list?.cards ?? []).map(({ text }) => text)].filter(Boolean);
      const values = texts.map((text) => single ? Object.values(text.text.losses).flat() : text.difference);
      return { single, most: values.length ? full_color(values.flat()) : 0.5 };
    }

    paint() {
      const { single, most } = this.scale();
      this.key.hidden = this.textPart.hidden && this.answer?.kind !== "passages"; // of examples no tokens are shown
      this.byField.hidden = this.key.hidden || !this.ids.B;
      this.shown?.paint(this.by.value, most);
      this.filter();
      if (single) legend(this.key, "loss", "0", `${most.toFixed(1)}+ nats`);
      else differenceLegend(this.key, most);
    }

    // The numbers of the token under the pointer, or of the one that the arrow keys chose.
    tip(token, text) {
      const { bubble } = this;
      bubble.classList.toggle("on", Boolean(token));
      if (!token) return;
      bubble.textContent = text;
      const box = token.getClientRects()[0] ?? token.getBoundingClientRect(), host = this.element.getBoundingClientRect();
      const left = Math.max(0, Math.min(box.left - host.left, host.width - bubble.offsetWidth - 4));
      const under = box.bottom + bubble.offsetHeight + 12 < innerHeight;
      bubble.style.transform = `translate(${left}px, ${(under ? box.bottom + 6 : box.top - bubble.offsetHeight - 6) - host.top}px)`;
    }
  }

  function notesOf(notes) {
    if (!notes?.length) return [];
    const list = make("ul", "", "notes");
    list.append(...notes.map((note) => make("li", note)));
    return [list];
  }
}
