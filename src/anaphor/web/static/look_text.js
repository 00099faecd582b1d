"use strict";
// A text inside a model: tokens in color, next tokens, attention, head statistics, gates and states, continuations.
{
  const THUMBS = 48, THUMB_TOKENS = 128; // heads and tokens up to which all maps are shown at once

  class TextInside {
    constructor(host, inside) {
      const { answer, state } = inside;
      Object.assign(this, { host, inside, answer, state });
      this.names = answer.tokens.map(shown);
      this.token = Math.min(Number(state.get("token", String(answer.tokens.length - 1))) || 0, answer.tokens.length - 1);
      this.turn = this.unitTurn = 0;
    }

    async draw() {
      this.text = this.textSection();
      this.attention = this.answer.layers.length ? this.attentionSection() : null;
      this.units = this.answer.units.length ? this.unitSection() : null;
      this.host.append(...[this.text, this.attention, this.units].filter(Boolean));
      this.select(this.token, false);
      await Promise.all([this.attention && this.attend(), this.units && this.walk()]);
      if (this.thumbs) this.drawThumbs().catch(showError); // after what the reader has asked for
    }

    // ---- the text

    textSection() {
      const section = make("section", "", "look-text"), bar = make("div", "", "bar"), { answer } = this;
      const paints = [];
      if (answer.losses) paints.push(["loss", "loss of each token"]);
      if (answer.contributions) paints.push(["contribution", `gradient × input, for ${answer.label}`]);
      if (answer.layers.length) paints.push(["from", "attention from the selected token"], ["to", "attention to the selected token"]);
      const wanted = this.state.get("paint");
      this.paintChoice = picker(paints, paints.some(([key]) => key === wanted) ? wanted : paints[0]?.[0] ?? "",
        (paint) => { this.state.set({ paint }); this.paint(); }, "paint");
      this.key = make("span", "", "legend");
      bar.append(make("h2", "Text"), field("Color", this.paintChoice), this.key);
      this.box = make("div", "", "tokens");
      this.box.setAttribute("role", "listbox");
      this.box.setAttribute("aria-label", "Tokens of the text");
      this.box.setAttribute("aria-orientation", "horizontal");
      this.shown = new Text(this.box, { ...answer, unknown: answer.unknown ?? [] }, {
        moved: (place) => this.describe(place ?? this.token), picked: (place) => this.select(place),
      });
      this.facts = make("p", "", "facts");
      this.facts.setAttribute("aria-live", "polite");
      const stage = make("div", "", "stage"), aside = make("aside");
      stage.append(this.box, this.facts);
      if (answer.probabilities) aside.append(...this.classes());
      if (answer.next) aside.append(...this.nextTokens());
      if (answer.next && find_run(this.inside.run)?.offers?.includes("continue")) stage.append(this.continuation());
      const split = make("div", "", aside.children.length ? "split" : "");
      split.append(stage, ...(aside.children.length ? [aside] : []));
      section.append(bar, split);
      return section;
    }

    classes() {
      const { answer } = this, list = make("ol", "", "weights");
      rankBars(list, Object.entries(answer.probabilities), 1, (value) => value.toFixed(3), answer);
      const right = answer.true === null || answer.true === undefined ? "" : answer.true === answer.label ? ", which is the true label" : `; the true label is ${answer.true}`;
      return [make("h3", `Predicted: ${answer.label}${right}`), list];
    }

    nextTokens() {
      this.nextTitle = make("h3");
      this.next = make("ol", "", "weights next");
      return [this.nextTitle, this.next];
    }

    // The most probable tokens after a place.
    expect(place) {
      if (!this.next) return;
      const { answer } = this, truth = answer.tokens[place + 1];
      this.nextTitle.textContent = `After ${this.names[place]} (${place})`;
      this.next.replaceChildren(...(answer.next[place] ?? []).map(({ token, probability }) => {
        const item = make("li"), beam = make("span", "", "beam");
        beam.style.width = `${100 * probability}%`;
        item.append(make("span", `${shown(token)}${token === truth ? " ✓" : ""}`, "name"), beam, make("span", probability.toFixed(3), "number"));
        if (token === truth) item.title = "the next token of the text";
        return item;
      }));
    }

    describe(place) {
      const { answer } = this, loss = answer.losses?.[place];
      let line = `token ${place} ${this.names[place]}`;
      if (answer.contributions) line += `: gradient × input ${signedShort(answer.contributions[place])} for ${answer.label}`;
      else if (!answer.losses) line += ""; // nothing of this text is scored
      else if (loss === null) line += place ? ": not scored" : ": start of the sequence, not scored";
      else line += `: loss ${loss.toFixed(3)}, probability ${written(Math.exp(-loss))}`;
      if (answer.unknown?.[place]) line += "; unknown to the tokenizer";
      this.facts.textContent = line;
      this.expect(place);
    }

    select(place, keep = true) {
      this.token = place;
      this.shown.choose(place);
      if (keep) {
        this.state.set({ token: place });
        this.inside.partner?.shown.select(place, false);
      }
      this.describe(place);
      this.paint();
      if (this.current) this.drawMap();
      if (this.go) this.go.textContent = `Continue after ${this.names[place]} (${place})`;
    }

    paint() {
      const { answer, current } = this, by = this.paintChoice.value;
      if (by === "contribution") {
        const all = answer.contributions, most = Math.max(...all.map(Math.abs)) || 1;
        this.shown.paint("both", (at) => 0.5 + all[at] / most / 2);
        legend(this.key, "both", signedShort(-most), signedShort(most));
      } else if (by === "loss") {
        const most = Math.max(0.1, ...[answer, this.inside.partner?.answer].flatMap((one) => one?.losses ?? []).map((loss) => loss ?? 0));
        this.shown.paint("loss", (at) => answer.losses[at] === null ? null : answer.losses[at] / most);
        legend(this.key, "loss", "0", `${most.toFixed(1)} nats`);
      } else if (current) {
        const all = answer.tokens.map((_, at) => Math.abs(by === "from" ? current.at(this.token, at) : current.at(at, this.token)));
        const most = Math.max(...all) || 1;
        this.shown.paint("weight", (at) => Math.sqrt(all[at] / most));
        legend(this.key, "weight", "0", written(most));
      } else {
        this.shown.paint("weight", () => null);
      }
    }

    // ---- a continuation of the text from the selected token on

    continuation() {
      const box = make("div", "", "continue"), bar = make("div", "", "bar");
      const number = (name, value, more) => Object.assign(make("input"), { type: "number", name, value, ...more });
      this.length = number("tokens", 40, { min: 1, max: 1024 });
      this.temperature = number("temperature", this.state.get("temperature", "0.8"), { min: 0, max: 5, step: 0.1 });
      this.seed = number("seed", this.state.get("seed", "0"), { min: 0 });
      this.go = action("Continue", "", () => this.goOn());
      this.goOnWork = new Work("Continuing the text");
      this.written = make("p", "", "tokens written");
      this.written.hidden = true;
      this.written.setAttribute("aria-live", "polite");
      bar.append(this.go, field("Tokens", this.length), field("Temperature", this.temperature), field("Seed", this.seed));
      box.hidden = !live;
      box.append(bar, this.goOnWork.element, this.written);
      return box;
    }

    async goOn() {
      const temperature = Number(this.temperature.value), seed = Number(this.seed.value);
      this.state.set({ temperature: temperature === 0.8 ? null : temperature, seed: seed || null });
      const made = await this.goOnWork.send("/api/continue", {
        run: this.inside.run, text: this.answer.text, at: this.token, tokens: Number(this.length.value), temperature, seed,
      });
      if (!made || this.state.closed) return;
      this.written.hidden = false;
      this.written.replaceChildren(make("span", `${made.prompt}${made.joined ? "" : " "}`, "around"), make("strong", made.text));
    }

    // ---- attention

    attentionSection() {
      const section = make("section", "", "look-attention"), bar = make("div", "", "bar"), { answer, state } = this;
      const first = answer.heads.find(({ name }) => answer.layers.some(({ tap }) => tap === name));
      const known = answer.layers.find(({ tap }) => tap === state.get("tap"));
      this.tap = known?.tap ?? first?.name ?? answer.layers[0].tap;
      this.head = (known && state.get("head")) || String(known ? "mean" : first?.head ?? 0);
      this.layerChoice = picker(answer.layers.map(({ tap, label }) => [tap, label]), this.tap, (tap) => this.open(tap, this.head), "layer");
      this.headChoice = picker([], "", (head) => this.open(this.tap, head), "head");
      this.viewChoice = picker([["matrix", "matrix"], ["lines", "lines"]], state.get("view", "matrix"), (view) => { state.set({ view: view === "matrix" ? null : view }); this.drawMap(); }, "view");
      this.scaleChoice = picker([["map", "maximum of the map"], ["row", "maximum of each row"], ["one", "0 to 1"]],
        state.get("scale") || (answer.tokens.length > 100 ? "row" : "map"), (scale) => { state.set({ scale }); this.drawMap(); }, "scale");
      this.cells = Object.assign(make("input"), { type: "range", min: 1, max: 44, step: 1, name: "cells" });
      this.cells.addEventListener("input", () => { this.size = Number(this.cells.value); this.drawMap(); });
      this.scaleField = field("Color scale", this.scaleChoice);
      this.cellField = field("Cells", this.cells);
      this.mapKey = make("span", "", "legend");
      bar.append(make("h2", "Attention"), field("Layer", this.layerChoice), field("Head", this.headChoice), field("View", this.viewChoice), this.scaleField, this.cellField, this.mapKey);
      const split = make("div", "", "split"), stage = make("div", "", "stage"), aside = make("aside");
      this.matrixHost = make("div", "", "matrix");
      this.linesHost = make("div");
      stage.append(this.matrixHost, this.linesHost);
      [this.fromTitle, this.toTitle] = [make("h3"), make("h3")];
      [this.from, this.to] = [make("ol", "", "weights"), make("ol", "", "weights")];
      aside.append(this.fromTitle, this.from, this.toTitle, this.to);
      split.append(stage, aside);
      this.matrix = new Grid(this.matrixHost, "Attention", { moved: (cell) => this.list(cell ? cell.row : this.token), picked: (row) => this.select(row) });
      this.lines = new Lines(this.linesHost, { moved: (row) => this.list(row ?? this.token), picked: (row) => this.select(row) });
      section.append(bar, split);
      if (this.hasThumbs()) section.append(make("h3", "All heads"), this.thumbs = make("div", "", "thumbs"));
      if (answer.heads.length) section.append(...this.statistics());
      this.section = section;
      return section;
    }

    // ---- thumbnails: each map travels, so they are for texts of moderate length

    hasThumbs() {
      const { layers, tokens } = this.answer, count = layers.reduce((sum, { heads }) => sum + heads, 0);
      return count > 1 && count <= THUMBS && tokens.length <= THUMB_TOKENS;
    }

    async drawThumbs() {
      const waiting = [], work = new Work("Loading the maps of all heads");
      this.thumbs.replaceChildren(...this.answer.layers.map((layer) => {
        const line = make("div", "", "line");
        line.append(make("span", /^\d/.test(layer.label) ? `layer ${layer.label}` : layer.label));
        for (let head = 0; head < layer.heads; head++) {
          const canvas = make("canvas"), button = action("", `${layer.label}, head ${head}`, () => this.open(layer.tap, String(head)));
          button.replaceChildren(canvas, make("span", `head ${head}`));
          button.dataset.at = `${layer.tap}/${head}`;
          line.append(button);
          waiting.push([canvas, layer, head]);
        }
        return line;
      }));
      this.mark();
      for (const [canvas, layer, head] of waiting) {
        const found = await this.inside.map({ tap: layer.tap, head }, Weights, work);
        if (!this.thumbs.isConnected || this.state.closed) return;
        if (found) thumb(canvas, found.map, layer.causal); // a report need not have every map
        else canvas.parentElement.hidden = true;
      }
      this.thumbs.dataset.shown = waiting.length;
    }

    statistics() {
      const scroll = make("div", "", "scroll tall"), table = make("table", "", "heads");
      headTable(table, this.answer.heads.map((head) => ({ ...head, place: head.label })), {
        has: (name) => this.answer.layers.some(({ tap }) => tap === name),
        open: guard((name, head) => this.open(name, String(head))),
        drawn: () => this.mark(),
      });
      this.table = table;
      scroll.append(table);
      const about = make("p", "Means over the tokens of this text. Entropy in nats; distance in tokens; the others are shares of the attention weight: on the token itself, on the "
        + "previous one, on the first one, and on the token after the previous occurrence of the current one (induction).", "small");
      return [make("h3", "All heads, the clearest pattern first"), scroll, about];
    }

    mark() {
      for (const button of this.thumbs?.querySelectorAll("button") ?? []) button.setAttribute("aria-pressed", String(button.dataset.at === `${this.tap}/${this.head}`));
      for (const row of this.table?.querySelectorAll("tbody tr") ?? []) row.classList.toggle("now", row.dataset.at === `${this.tap}/${this.head}`);
    }

    open(tap, head) {
      this.tap = tap;
      this.head = head;
      return this.attend(true);
    }

    async attend(keep = false) {
      const layer = this.answer.layers.find(({ tap }) => tap === this.tap), mine = ++this.turn;
      const heads = Array.from({ length: layer.heads }, (_, head) => [String(head), String(head)]);
      if (layer.heads > 1) heads.push(["mean", "mean of the heads"]);
      if (layer.rollout) heads.push(["rollout", "rollout up to this layer"]);
      if (!heads.some(([key]) => key === this.head)) this.head = heads[0][0];
      this.layerChoice.value = this.tap;
      fillPicker(this.headChoice, heads, this.head);
      if (keep) this.state.set({ tap: this.tap, head: this.head });
      this.mark();
      const found = await this.inside.map({ tap: this.tap, head: /^\d+$/.test(this.head) ? Number(this.head) : this.head });
      if (!found || mine !== this.turn) return;
      this.current = found.map;
      this.causal = layer.causal;
      this.drawMap();
      this.list(this.token);
      this.paint();
      this.section.dataset.shown = `${this.tap}/${this.head}`;
    }

    drawMap() {
      if (!this.current) return;
      const what = attentionCells(this.current, this.names, this.names, { scale: this.scaleChoice.value, causal: this.causal, chosen: this.token });
      const asMatrix = this.viewChoice.value === "matrix";
      this.matrixHost.hidden = this.cellField.hidden = this.scaleField.hidden = this.mapKey.hidden = !asMatrix;
      this.linesHost.hidden = asMatrix;
      if (asMatrix) {
        this.size ??= this.matrix.fitting(what);
        this.cells.value = this.size;
        this.matrix.show(what, this.size);
      } else {
        this.lines.show(what);
      }
      attentionLegend(this.mapKey, this.current, this.scaleChoice.value);
      this.list(this.token);
    }

    list(row) {
      if (!this.current) return;
      const { current, names } = this;
      this.fromTitle.textContent = `${names[row]} (${row}) attends to`;
      this.toTitle.textContent = `${names[row]} (${row}) is attended to by`;
      rankWeights(this.from, names, current.columns, (place) => current.at(row, place), 8);
      rankWeights(this.to, names, current.rows, (place) => current.at(place, row), 5);
    }

    // ---- recurrent layers

    unitSection() {
      const section = make("section", "", "look-units"), bar = make("div", "", "bar"), { units } = this.answer;
      this.unit = units.find(({ key }) => key === this.state.get("unit")) ?? units[0];
      const layers = [...new Map(units.map(({ layer, label }) => [layer, label]))];
      this.unitLayer = picker(layers, this.unit.layer, (layer) => {
        const same = units.find((unit) => unit.layer === layer && unit.part === this.unit.part);
        return this.openUnit(same ?? units.find((unit) => unit.layer === layer));
      }, "unit-layer");
      this.unitPart = picker([], "", (key) => this.openUnit(units.find((unit) => unit.key === key)), "unit");
      this.unitCells = Object.assign(make("input"), { type: "range", min: 1, max: 44, step: 1, name: "unit-cells" });
      this.unitCells.addEventListener("input", guard(() => { this.unitSize = Number(this.unitCells.value); return this.walk(); }));
      this.unitKey = make("span", "", "legend");
      bar.append(make("h2", "Recurrent layers"), field("Layer", this.unitLayer), field("Show", this.unitPart), field("Cells", this.unitCells), this.unitKey);
      this.unitHost = make("div", "", "unit-map");
      this.unitGrid = new Grid(this.unitHost, "Units over time", { picked: (row, column) => this.select(column) });
      this.unitFacts = make("p", "", "small");
      section.append(bar, this.unitHost, this.unitFacts);
      return section;
    }

    openUnit(unit) {
      this.unit = unit;
      this.state.set({ unit: unit.key });
      return this.walk();
    }

    async walk() {
      const { unit } = this, mine = ++this.unitTurn;
      this.unitLayer.value = unit.layer;
      fillPicker(this.unitPart, this.answer.units.filter(({ layer }) => layer === unit.layer)
        .map(({ key, kind, part }) => [key, kind === "gates" ? `gate: ${part}` : `state: ${part}`]), unit.key);
      const found = await this.inside.unitMap(unit.key);
      if (!found || mine !== this.unitTurn) return;
      const what = unitCells(found.packed, found.map, this.names);
      this.unitSize ??= this.unitGrid.fitting(what);
      this.unitCells.value = this.unitSize;
      this.unitGrid.show(what, this.unitSize);
      unitLegend(this.unitKey, found.packed, found.map);
      this.unitFacts.textContent = unitFacts(found.packed);
      this.units.dataset.shown = unit.key;
    }
  }

  lookKinds.text = lookKinds.label = TextInside;
}
