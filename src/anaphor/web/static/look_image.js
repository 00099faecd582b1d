"use strict";
// An image inside a classifier: maps over it by kind, layer and head.
{
  class ImageInside {
    constructor(host, inside) {
      Object.assign(this, { host, inside, answer: inside.answer, state: inside.state });
      this.turn = 0;
      this.views = Object.keys(this.answer.views);
      const { state } = this, layers = this.answer.layers.length;
      this.view = this.views.includes(state.get("map")) ? state.get("map") : this.views[0];
      this.layer = Math.max(0, Math.min(layers, Number(state.get("layer", "0")) || 0)); // 0: all layers
      this.head = state.get("head", "mean");
    }

    hasLayers() {
      return this.view !== "saliency" && this.answer.layers.length > 0 && (this.view !== "rollout" || this.answer.layers.some(({ rollout }) => rollout));
    }

    async draw() {
      const section = make("section", "", "look-image"), bar = make("div", "", "bar"), { answer } = this;
      this.viewChoice = picker(this.views.map((view) => [view, heatWords[view] ?? view]), this.view, (view) => this.choose({ view }), "map");
      this.slider = Object.assign(make("input"), { type: "range", min: 0, max: answer.layers.length, step: 1, value: this.layer, name: "layer" });
      this.slider.addEventListener("input", guard(() => this.choose({ layer: Number(this.slider.value) })));
      this.layerName = make("output", "", "layer-name");
      this.layerField = field("Layer", this.slider);
      this.layerField.append(this.layerName);
      this.headChoice = picker([], "", (head) => this.choose({ head }), "head");
      this.headField = field("Head", this.headChoice);
      this.opacity = Object.assign(make("input"), { type: "range", min: 0, max: 1, step: 0.05, value: 0.85, name: "opacity" });
      this.opacity.addEventListener("input", guard(() => this.paint()));
      this.box = Object.assign(make("input"), { type: "checkbox", checked: true, name: "box" });
      this.box.addEventListener("change", guard(() => this.paint()));
      this.key = make("span", "", "legend");
      legend(this.key, "heat", "0", "largest of the map");
      bar.append(make("h2", answer.name || "Image"), field("Map", this.viewChoice), this.layerField, this.headField, field("Opacity", this.opacity),
        ...(answer.box ? [field("True box", this.box)] : []), this.key);
      const split = make("div", "", "split"), stage = make("div", "", "stage"), pictures = make("div", "", "pictures"), aside = make("aside");
      this.plain = make("canvas", "", "plain-image");
      this.overlay = make("canvas", "", "overlay");
      this.caption = make("figcaption");
      for (const [canvas, caption] of [[this.plain, make("figcaption", "image")], [this.overlay, this.caption]]) {
        const figure = make("figure");
        canvas.setAttribute("role", "img");
        figure.append(canvas, caption);
        pictures.append(figure);
      }
      this.patch = make("p", "", "facts");
      this.patch.setAttribute("aria-live", "polite");
      this.about = make("p", "", "small");
      stage.append(pictures, this.patch, this.about);
      const list = make("ol", "", "weights");
      rankBars(list, Object.entries(answer.probabilities), 1, (value) => value.toFixed(3), answer);
      const right = answer.true === null || answer.true === undefined ? "" : answer.true === answer.label ? ", which is the true label" : `; the true label is ${answer.true}`;
      aside.append(make("h3", `Predicted: ${answer.label}${right}`), list);
      split.append(stage, aside);
      section.append(bar, split);
      this.section = section;
      this.host.append(section);
      this.plain.setAttribute("aria-label", `image ${answer.name ?? ""}`);
      this.overlay.tabIndex = 0;
      this.overlay.addEventListener("pointermove", (event) => this.point(event));
      this.overlay.addEventListener("pointerleave", () => { this.patch.textContent = ""; });
      this.overlay.addEventListener("keydown", (event) => this.pressed(event));
      await this.show();
    }

    async choose(changes) {
      Object.assign(this, changes);
      this.state.set({ map: this.view === this.views[0] ? null : this.view, layer: this.layer || null, head: this.head === "mean" ? null : this.head });
      await this.show();
    }

    async show() {
      const mine = ++this.turn, { answer } = this, layered = this.hasLayers(), layer = layered && this.layer ? answer.layers[this.layer - 1] : null;
      this.viewChoice.value = this.view;
      this.layerField.hidden = !layered;
      this.slider.value = this.layer;
      this.layerName.textContent = layer ? layer.label : "all layers";
      const headed = layer && this.view !== "rollout" && layer.heads > 1;
      this.headField.hidden = !headed;
      if (headed) {
        const heads = [["mean", "mean"], ...Array.from({ length: layer.heads }, (_, head) => [String(head), String(head)])];
        if (!heads.some(([key]) => key === this.head)) this.head = "mean";
        fillPicker(this.headChoice, heads, this.head);
      }
      this.about.textContent = heatAbout[this.view] ?? "";
      const head = this.view === "rollout" ? "rollout" : headed && this.head !== "mean" ? Number(this.head) : "mean";
      const asked = layer && { tap: layer.tap, head, ...(this.view === "rollout" ? {} : { of: this.view }) };
      const found = layer ? (await this.inside.map(asked))?.map : await opening(answer.views[this.view], Weights);
      if (!found || mine !== this.turn) return;
      this.heat = {
        largest: found.peaks[0],
        share: (place) => found.peaks[0] ? found.at(0, place) / found.peaks[0] : 0,
        at: (place) => found.at(0, place),
      };
      const part = layer ? `${this.view === "rollout" ? "up to " : ""}layer ${layer.label}${headed ? `, ${this.head === "mean" ? "mean of the heads" : `head ${this.head}`}` : ""}` : layered ? "all layers" : "";
      this.caption.textContent = [heatWords[this.view] ?? this.view, part].filter(Boolean).join(", ");
      this.overlay.setAttribute("aria-label", `${this.caption.textContent}. Arrow keys read the patches.`);
      await this.paint();
      this.section.dataset.shown = [this.view, this.layer, headed ? this.head : ""].join(" ");
    }

    async paint() {
      const drawing = { least: 448, opacity: Number(this.opacity.value), box: this.box.checked };
      await Promise.all([paintImage(this.plain, this.answer, null, drawing), paintImage(this.overlay, this.answer, this.heat, drawing)]);
    }

    // ---- values of the patches

    read(row, column) {
      if (!this.heat) return;
      this.at = { row, column };
      const value = this.heat.at(row * this.answer.columns + column);
      this.patch.textContent = `Patch in row ${row}, column ${column}: ${written(value)} (largest ${written(this.heat.largest)})`;
    }

    point(event) {
      const { rows, columns } = this.answer, edge = this.overlay.getBoundingClientRect();
      const within = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
      this.read(within((event.clientY - edge.top) / edge.height, rows), within((event.clientX - edge.left) / edge.width, columns));
    }

    pressed(event) {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const { rows, columns } = this.answer, now = this.at ?? { row: 0, column: 0 }, within = (value, count) => Math.max(0, Math.min(count - 1, value));
      this.read(within(now.row + step[0], rows), within(now.column + step[1], columns));
    }
  }

  lookKinds.image = ImageInside;
}
