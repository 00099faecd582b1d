"use strict";
// Inside one run: a text, an example of validation or an image, and what the model makes of it. What is shown depends on the
// kind of the answer; each kind is a class that registers itself in `lookKinds`.

const lookKinds = {};
{
  const MAX_BYTES = 500_000; // bytes of an image that travel as they are; larger ones are scaled down first
  const SIDE = 512;
  const MAPS = 60; // that are kept
  let current = null;

  views.look = {
    title: "Look",
    keys: [["← →", "tokens of the text"], ["arrows", "cells of a map"]],
    offered: (all) => live ? all.runs.some((run) => run.offers?.includes("look")) : embeddedBodies("/api/look").length > 0,
    async open(element, state) {
      current = new Inside(element, state);
      await current.start();
    },
    refresh: () => current?.fillRuns(),
    close() {
      current?.close();
      current = null;
    },
  };

  class Inside {
    constructor(element, state) {
      this.element = element;
      this.state = state;
      this.work = new Work("Looking inside");
      this.mapWork = new Work("Loading a map");
      this.unitWork = new Work("Loading a map of units");
      this.bodies = embeddedBodies("/api/look");
      const offering = task_runs().filter((run) => run.offers?.includes("look"));
      const picked = selected().map(find_run).find((run) => offering.includes(run));
      this.run = (find_run(state.get("run")) ?? (live ? picked ?? offering[0] : find_run(this.bodies[0]?.run)))?.id ?? "";
    }

    close() {
      for (const work of [this.work, this.mapWork, this.unitWork]) work.control?.abort();
    }

    async start() {
      if (!this.run) {
        this.element.append(make("p", "There is no run here to look inside.", "empty"));
        return;
      }
      this.form = this.entry();
      this.result = make("div", "", "inside");
      this.element.append(this.form, this.work.element, this.mapWork.element, this.unitWork.element, this.result);
      this.fillRuns();
      this.fitControls();
      await this.look();
    }

    // The controls of a run's kind, before there is an answer: whoever counts images is shown one.
    fitControls() {
      const isImage = find_run(this.run)?.counted === "images";
      this.fileField.hidden = !live || !isImage;
      this.textEntry.hidden = isImage;
    }

    fillRuns() {
      if (this.runChoice) fillPicker(this.runChoice, live ? runOptions(["look"]) : this.bodies.map(({ run }) => [run, run_name(run)]), this.run);
    }

    // ---- what to look at

    entry() {
      const section = make("section", "", "look-entry"), bar = make("div", "", "bar");
      this.runChoice = picker([], "", (id) => this.setRun(id), "run");
      this.number = make("input");
      Object.assign(this.number, { type: "number", min: 0, step: 1, name: "example", value: this.state.get("example") });
      this.number.addEventListener("change", guard(() => this.show({ example: this.number.value })));
      const step = (by, text, name) =>
        action(text, name, () => this.show({ example: Math.max(0, Number(this.number.value || 0) + by * this.stride()) }), "plain");
      const example = make("span", "", "stepper");
      example.append(step(-1, "‹", "Previous example"), field("Example of validation", this.number), step(1, "›", "Next example"));
      this.file = make("input");
      Object.assign(this.file, { type: "file", accept: "image/*", name: "image" });
      this.file.addEventListener("change", guard(() => this.showFile(this.file.files[0])));
      this.fileField = field("or an image of your own, chosen or dropped here", this.file, "file-field");
      bar.append(field("Run", this.runChoice), example, this.fileField);
      this.area = make("textarea");
      Object.assign(this.area, { rows: 2, name: "text", placeholder: "Type or paste a text, then Ctrl + Enter", value: this.state.get("text") });
      const go = action("Look", "", () => this.show({ text: this.area.value }), "primary");
      this.area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go.click(); });
      this.textEntry = make("div", "", "entry");
      this.textEntry.append(field("Text", this.area, "wide"), go);
      for (const part of [example, go, this.fileField]) part.hidden = !live;
      this.area.readOnly = !live;
      section.append(make("h2", "Input", "hidden"), bar, this.textEntry);
      section.addEventListener("dragover", (event) => { event.preventDefault(); section.classList.add("drop"); });
      section.addEventListener("dragleave", () => section.classList.remove("drop"));
      section.addEventListener("drop", guard((event) => {
        event.preventDefault();
        section.classList.remove("drop");
        return this.showFile(event.dataTransfer.files[0]);
      }));
      return section;
    }

    // Examples of a running text are passages of some length; the next one starts behind it.
    stride() {
      return this.answer?.kind === "text" ? Number(this.state.get("length") || 64) : 1;
    }

    async setRun(id) {
      const same = find_run(id)?.task === find_run(this.run)?.task;
      this.run = id;
      this.state.set({ run: id, tap: null, head: null, unit: null, token: null, ...(same ? {} : { text: null, example: null, length: null, map: null, layer: null }) }, { push: true });
      if (!same) {
        this.image = null;
        this.area.value = this.number.value = "";
        this.fitControls();
      }
      await this.look();
    }

    async show(input) {
      this.image = null;
      this.file.value = "";
      this.state.set({ text: null, example: null, token: null, ...input, run: this.run, length: input.text === undefined ? this.state.get("length") : null }, { push: true });
      await this.look();
    }

    async showFile(file) {
      if (!file || !live) return;
      this.image = await base64Of(file);
      this.state.set({ text: null, example: null, length: null, run: this.run });
      await this.look();
    }

    input() {
      if (!live) return (({ run, ...rest }) => rest)(this.bodies.find(({ run }) => run === this.run) ?? {});
      if (this.image) return { image: this.image };
      if (this.state.get("text")) return { text: this.state.get("text") };
      const length = Number(this.state.get("length"));
      return { example: Number(this.state.get("example", "0")) || 0, ...(length ? { length } : {}) };
    }

    async look() {
      const input = this.input();
      this.result.replaceChildren();
      delete this.element.dataset.shown;
      const answer = await this.work.send("/api/look", { run: this.run, ...input });
      if (!answer || this.state.closed) return;
      this.answer = answer;
      this.asked = input;
      this.fileField.hidden = !live || answer.kind !== "image";
      this.textEntry.hidden = answer.kind === "image";
      this.number.value = input.example ?? "";
      if (answer.kind !== "image") this.area.value = input.text ?? answer.text ?? answer.source?.join(" ") ?? "";
      const kind = lookKinds[answer.kind];
      if (!kind) throw new Error(`this page cannot show a look of kind ${answer.kind}`);
      const heading = make("p", "", "facts");
      heading.textContent = [run_name(this.run), answer.model, answer.summary].filter(Boolean).join("; ");
      this.result.append(heading, ...notesList([...(answer.notes ?? []), ...(this.image ? ["The image of your own is not in the address."] : [])]));
      const host = make("div");
      this.result.append(host);
      await new kind(host, this).draw();
      if (!this.state.closed) this.element.dataset.shown = answer.look;
    }

    // One map: it travels when it is asked for. The look's own input goes along, for a server that has forgotten it.
    async map(what, type = Weights, work = this.mapWork) {
      const key = JSON.stringify([this.answer.look, what]);
      this.maps ??= new Map();
      if (!this.maps.has(key)) {
        const packed = await work.send("/api/head", { look: this.answer.look, ...(live ? { run: this.run, ...this.asked } : {}), ...what });
        if (!packed) return null;
        if (this.maps.size >= MAPS) this.maps.clear();
        this.maps.set(key, packed);
      }
      const packed = this.maps.get(key);
      return { packed, map: await opening(packed, type) };
    }

    unitMap(key) {
      return this.map({ unit: key }, Units, this.unitWork);
    }
  }

  function notesList(notes) {
    if (!notes.length) return [];
    const list = make("ul", "", "notes");
    list.append(...notes.map((note) => make("li", note)));
    return [list];
  }

  // The bytes of an image as the server takes them; a large one is scaled down here.
  async function base64Of(file) {
    let blob = file;
    if (file.size > MAX_BYTES) {
      let bitmap;
      try {
        bitmap = await createImageBitmap(file);
      } catch {
        throw new Error(`${file.name} is not an image that this browser can read`);
      }
      const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height)), canvas = make("canvas");
      canvas.width = Math.round(bitmap.width * scale);
      canvas.height = Math.round(bitmap.height * scale);
      canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
      blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
    }
    const bytes = new Uint8Array(await blob.arrayBuffer());
    let text = "";
    for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
    return btoa(text);
  }
}
