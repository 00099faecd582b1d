"use strict";
// A translation: which source tokens each target token attends to.
{
  class AlignmentInside {
    constructor(host, inside) {
      const { answer, state } = inside;
      Object.assign(this, { host, inside, answer, state, turn: 0, row: 0 });
      const layer = answer.layers.find(({ tap }) => tap === state.get("tap")) ?? answer.layers.find(({ tap }) => tap === answer.first) ?? answer.layers.at(-1);
      this.tap = layer?.tap;
      this.head = state.get("head", "mean");
      this.across = answer.source.map(shown);
      this.down = answer.target.map(shown);
    }

    async draw() {
      const { answer, host } = this, words = make("section", "", "look-translation"), facts = make("dl");
      for (const [name, text] of [["source", answer.text ?? answer.source.join(" ")], ["translation", answer.translation], ["reference", answer.reference]])
        if (text !== null && text !== undefined) facts.append(make("dt", name), make("dd", text));
      words.append(make("h2", "Translation"), facts);
      host.append(words);
      if (!this.tap) {
        words.append(make("p", "This model has no attention to the source, so there is no alignment.", "quiet"));
        return;
      }
      const section = make("section", "", "look-attention"), bar = make("div", "", "bar");
      this.layerChoice = picker(answer.layers.map(({ tap, label }) => [tap, label]), this.tap, (tap) => this.choose({ tap }), "layer");
      this.headChoice = picker([], "", (head) => this.choose({ head }), "head");
      this.headField = field("Head", this.headChoice);
      this.cells = Object.assign(make("input"), { type: "range", min: 1, max: 44, step: 1, name: "cells" });
      this.cells.addEventListener("input", () => { this.size = Number(this.cells.value); this.drawMap(); });
      this.key = make("span", "", "legend");
      bar.append(make("h2", "Alignment"), field("Layer", this.layerChoice), this.headField, field("Cells", this.cells), this.key);
      const split = make("div", "", "split"), aside = make("aside"), stage = make("div", "", "stage");
      this.matrix = make("div", "", "matrix");
      this.grid = new Grid(this.matrix, "Alignment", { moved: (cell) => this.list(cell ? cell.row : this.row), picked: (row) => { this.row = row; this.drawMap(); } });
      this.title = make("h3");
      this.from = make("ol", "", "weights");
      aside.append(this.title, this.from);
      stage.append(this.matrix);
      split.append(stage, aside);
      this.lines = make("ol", "", "small");
      const list = make("details");
      list.append(make("summary", "Largest weights of every target token"), this.lines);
      section.append(bar, split, make("p", "Columns are source tokens, rows are target tokens. A row holds the attention weights with which its token was predicted.", "small"), list);
      host.append(section);
      this.section = section;
      await this.show();
    }

    async choose(changes) {
      Object.assign(this, changes);
      this.state.set({ tap: this.tap, head: this.head === "mean" ? null : this.head });
      await this.show();
    }

    async show() {
      const mine = ++this.turn, layer = this.answer.layers.find(({ tap }) => tap === this.tap);
      const heads = [["mean", "mean of the heads"], ...Array.from({ length: layer.heads }, (_, head) => [String(head), String(head)])];
      this.headField.hidden = layer.heads < 2;
      if (!heads.some(([key]) => key === this.head)) this.head = "mean";
      fillPicker(this.headChoice, heads, this.head);
      const found = await this.inside.map({ tap: this.tap, head: this.head === "mean" ? "mean" : Number(this.head) });
      if (!found || mine !== this.turn) return;
      this.current = found.map;
      this.drawMap();
      const { current, down, across } = this;
      this.lines.replaceChildren(...down.map((name, row) => {
        const most = across.map((_, column) => [current.at(row, column), column]).sort((one, other) => other[0] - one[0]).slice(0, 3).filter(([weight], rank) => !rank || weight >= 0.005);
        return make("li", `${name}: ${most.map(([weight, column]) => `${across[column]} ${weight.toFixed(2)}`).join(", ")}`);
      }));
      this.section.dataset.shown = `${this.tap}/${this.head}`;
    }

    drawMap() {
      if (!this.current) return;
      const what = attentionCells(this.current, this.down, this.across, { scale: "map", chosen: this.row });
      this.size ??= this.grid.fitting(what);
      this.cells.value = this.size;
      this.grid.show(what, this.size);
      attentionLegend(this.key, this.current, "map");
      this.list(this.row);
    }

    list(row) {
      if (!this.current) return;
      this.title.textContent = `${this.down[row]} (${row}) attends to`;
      rankWeights(this.from, this.across, this.current.columns, (place) => this.current.at(row, place), 8);
    }
  }

  lookKinds.translation = AlignmentInside;
}
