"use strict";
// Inside one run, or two side by side on the same input: a text, an example of validation or an image, and what the models
// make of it. What is shown depends on the kind of the answer; each kind is a class that registers itself in `lookKinds`.

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
    refresh: () => current?.refresh(),
    close() {
      current?.close();
      current = null;
    },
  };

  // What the second run has chosen has names of its own in the address; the token and the color belong to both.
  const OWN_KEYS = ["tap", "head", "unit", "map", "layer"];
  class BesideState {
    constructor(state) {
      this.state = state;
    }

    get closed() {
      return this.state.closed;
    }

    name(key) {
      return OWN_KEYS.includes(key) ? `beside.${key}` : key;
    }

    get(key, otherwise) {
      return this.state.get(this.name(key), otherwise);
    }

    set(changes, options) {
      this.state.set(Object.fromEntries(Object.entries(changes).map(([key, value]) => [this.name(key), value])), options);
    }
  }

  // One run with its answer and its maps: a column of the view.
  class Pane {
    constructor(run, state) {
      this.run = run;
      this.state = state;
      this.work = new Work("Looking inside");
      this.mapWork = new Work("Loading a map");
      this.unitWork = new Work("Loading a map of units");
      this.element = make("div", "", "look-pane");
      this.result = make("div", "", "inside");
      this.element.append(this.work.element, this.mapWork.element, this.unitWork.element, this.result);
    }

    close() {
      for (const work of [this.work, this.mapWork, this.unitWork]) work.control?.abort();
    }

    async ask(input) {
      this.asked = input;
      this.answer = await this.work.send("/api/look", { run: this.run, ...input });
      return this.answer && !this.state.closed ? this.answer : null;
    }

    async draw(heading, notes) {
      const { answer } = this, kind = lookKinds[answer.kind];
      if (!kind) throw new Error(`this page cannot show a look of kind ${answer.kind}`);
      const host = make("div");
      this.result.append(heading, ...notesList([...(answer.notes ?? []), ...notes]), host);
      this.shown = new kind(host, this);
      await this.shown.draw();
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

  class Inside {
    constructor(element, state) {
      this.element = element;
      this.state = state;
      this.panes = [];
      this.bodies = embeddedBodies("/api/look");
      const offering = task_runs().filter((run) => run.offers?.includes("look"));
      const picked = selected().map(find_run).find((run) => offering.includes(run));
      this.run = (find_run(state.get("run")) ?? (live ? picked ?? offering[0] : find_run(this.bodies[0]?.run)))?.id ?? "";
      this.beside = state.get("beside");
    }

    close() {
      for (const pane of this.panes) pane.close();
    }

    async start() {
      if (!this.run) {
        this.element.append(listing.runs.length ? make("p", "No run of this task can be looked into.", "empty") : noRuns());
        return;
      }
      this.form = this.entry();
      this.overall = make("div", "", "look-overall");
      this.columns = make("div", "", "look-panes");
      this.element.append(this.form, this.overall, this.columns);
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

    refresh() {
      if (this.runChoice) this.fillRuns();
      else if (listing.runs.length) openView(); // the folder was empty
    }

    fillRuns() {
      const others = this.others();
      if (!others.some(([id]) => id === this.beside)) this.beside = "";
      fillPicker(this.runChoice, live ? runOptions(["look"]) : this.bodies.map(({ run }) => [run, run_name(run)]), this.run);
      fillPicker(this.besideChoice, [["", "none"], ...others], this.beside);
      this.besideField.hidden = !others.length;
    }

    // Runs that can be shown the same: those of the same task, and of images those with the same data.
    others() {
      const first = find_run(this.run);
      if (!live) {
        const { run, ...input } = this.bodies.find((body) => body.run === this.run) ?? {};
        return this.bodies.filter((body) => body.run !== run && isSame(body, { ...input, run: body.run }) && find_run(body.run)?.task === first?.task)
          .map((body) => [body.run, run_name(body.run)]);
      }
      return runOptions(["look"], (run) => run !== first && run.task === first?.task && (first.counted !== "images" || isOnSameData(run, first)));
    }

    // ---- what to look at

    entry() {
      const section = make("section", "", "look-entry"), bar = make("div", "", "bar");
      this.runChoice = picker([], "", (id) => this.setRun(id), "run");
      this.besideChoice = picker([], "", (id) => this.setBeside(id), "beside");
      this.besideField = field("Beside it", this.besideChoice);
      const { element: example, number } = new Example(this.state.get("example"), (value) => this.show({ example: value }), () => this.stride());
      this.number = number;
      this.file = make("input");
      Object.assign(this.file, { type: "file", accept: "image/*", name: "image" });
      this.file.addEventListener("change", guard(() => this.showFile(this.file.files[0])));
      this.fileField = field("or an image of your own, chosen or dropped here", this.file, "file-field");
      bar.append(field("Run", this.runChoice), this.besideField, example, this.fileField);
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
      if (id === this.beside) this.beside = this.run; // they change places
      this.run = id;
      this.fillRuns();
      this.state.set({ run: id, beside: this.beside, token: null, ...NOTHING_CHOSEN, ...(same ? {} : { text: null, example: null, length: null }) }, { push: true });
      if (!same) {
        this.image = null;
        this.area.value = this.number.value = "";
        this.fitControls();
      }
      await this.look();
    }

    async setBeside(id) {
      this.beside = id;
      this.state.set({ run: this.run, beside: id, ...Object.fromEntries(OWN_KEYS.map((key) => [`beside.${key}`, null])) }, { push: true });
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
      if (!live) return this.embeddedInput(this.run);
      if (this.image) return { image: this.image };
      if (this.state.get("text")) return { text: this.state.get("text") };
      const length = Number(this.state.get("length"));
      return { example: Number(this.state.get("example", "0")) || 0, ...(length ? { length } : {}) };
    }

    embeddedInput(id) {
      return (({ run, ...rest }) => rest)(this.bodies.find(({ run }) => run === id) ?? {});
    }

    // The same for the run beside: a passage as its text, because places in a split depend on the tokenizer.
    inputBeside(input, answer) {
      if (!live) return this.embeddedInput(this.beside);
      const isSplit = isOnSameData(find_run(this.run), find_run(this.beside));
      return answer.text && (answer.kind === "text" || !isSplit) ? { text: answer.text } : input;
    }

    async look() {
      const input = this.input(), turn = this.turn = (this.turn ?? 0) + 1;
      this.close();
      this.panes = [new Pane(this.run, this.state), ...(this.beside ? [new Pane(this.beside, new BesideState(this.state))] : [])];
      const [first, second] = this.panes;
      this.overall.replaceChildren();
      this.columns.replaceChildren(...this.panes.map(({ element }) => element));
      this.columns.classList.toggle("two", Boolean(second));
      delete this.element.dataset.shown;
      delete this.element.dataset.beside;
      const isNow = () => turn === this.turn && !this.state.closed;
      const answer = await first.ask(input);
      if (!answer || !isNow()) return;
      this.answer = answer;
      this.fileField.hidden = !live || answer.kind !== "image";
      this.textEntry.hidden = answer.kind === "image";
      this.number.value = input.example ?? "";
      if (answer.kind !== "image") this.area.value = input.text ?? answer.text ?? answer.source?.join(" ") ?? "";
      const notes = this.image ? ["The image of your own is not in the address."] : [];
      const [other] = await Promise.all([second?.ask(this.inputBeside(input, answer)), first.draw(this.heading(first, "A"), notes)]);
      if (!isNow()) return;
      this.element.dataset.shown = answer.look;
      if (!other) return;
      await second.draw(this.heading(second, "B"), []);
      if (!isNow()) return;
      this.overall.replaceChildren(...compareLooks(first, second));
      this.element.dataset.beside = other.look;
    }

    // What a column shows; the letters are those of Compare.
    heading({ run, answer }, letter) {
      const line = make("p", "", "facts"), facts = [answer.model, answer.summary].filter(Boolean);
      line.append(...(this.beside ? [chip(letter), " "] : []), [run_name(run), ...facts].join("; "));
      return line;
    }
  }

  const NOTHING_CHOSEN = Object.fromEntries(OWN_KEYS.flatMap((key) => [key, `beside.${key}`]).map((key) => [key, null]));
  const isSame = (one, other) => JSON.stringify(sortKeys(one)) === JSON.stringify(sortKeys(other));

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
