"use strict";
// Only in a report: what it holds in one view of its own, which views it has, and all of them one after the other on paper.

{
  // ---- the first view: scores with their signatures, settings that differ, what was left out

  const FEW_RUNS = 8; // fit side by side
  const text = (value) => (value === null || value === undefined ? "–" : Array.isArray(value) ? value.join(" ") : typeof value === "number" ? digits(value) : String(value));

  function addTable(host, title, columns, rows) {
    if (!rows.length) return;
    const section = make("section");
    section.setAttribute("aria-label", title);
    section.append(make("h2", title));
    host.append(section);
    const table = new SortTable(section, { caption: title, onsort: (sort) => table.show(columns, rows, { sort }) });
    table.show(columns, rows, {});
  }

  // A signature may be broken between its facts.
  const breakable = (signature) => (signature ?? "–").split("|").flatMap((fact, place) => (place ? ["|", make("wbr"), fact] : [fact]));

  function scoreRows() {
    return listing.runs.flatMap((run) => ["valid", "test"].filter((split) => run.scores?.[split])
      .map((split) => ({ id: `${run.id} ${split}`, run, split, scores: run.scores[split] })));
  }

  // Title, date, the winner, what studies have found, and the curves: what a reader wants to know first.
  function addHead(element, head) {
    const section = make("section", "", "head");
    section.append(make("h1", head.title), make("p", head.date, "quiet"));
    for (const line of head.sentences) section.append(make("p", line, "winner"));
    for (const study of head.studies) {
      section.append(make("h2", study.study));
      if (study.about) section.append(make("p", study.about));
      if (study.findings.length) section.append(list(study.findings));
    }
    for (const { alt, source } of head.pictures) {
      const image = make("img");
      image.alt = alt;
      image.src = source;
      section.append(image);
    }
    element.append(section);
    for (const { study, label, best } of head.studies)
      addTable(element, `Best two settings of ${study}`, [
        { key: "setting", title: "Setting", words: true, value: (row) => row.setting },
        { key: "value", title: `${sentence(label)}, mean`, value: (row) => Number(row.value), cell: (row) => row.value },
        { key: "interval", title: "95 % interval", cell: (row) => row.interval || "–" },
        { key: "seeds", title: "Seeds", value: (row) => row.seeds, cell: (row) => text(row.seeds) },
      ], best.map((row) => ({ id: row.setting, ...row })));
  }

  function openSummary(element) {
    addHead(element, data.head);
    const facts = listing.runs.map((run) => ({ id: run.id, run })), few = listing.runs.length <= FEW_RUNS;
    const setting = (name, run) => ((value) => (typeof value === "number" ? String(value) : text(value)))(run.settings?.[name]);
    addTable(element, "Runs", [
      { key: "name", title: "Run", words: true, value: ({ run }) => run_name(run.id) },
      { key: "task", title: "Task", words: true, value: ({ run }) => run.task },
      { key: "status", title: "Status", words: true, value: ({ run }) => run.status },
      { key: "step", title: "Step", value: ({ run }) => run.step, cell: ({ run }) => text(run.step) },
      { key: "parameters", title: "Parameters", value: ({ run }) => run.parameters, cell: ({ run }) => text(run.parameters) },
      { key: "throughput", title: "Speed", value: ({ run }) => run.throughput, cell: ({ run }) => (run.throughput ? `${short(run.throughput)} ${run.counted}/s` : "–") },
      ...(few ? [] : listing.differing.map((name) => ({ key: `set.${name}`, title: name, words: true, value: ({ run }) => run.settings?.[name], cell: ({ run }) => setting(name, run) }))),
    ], facts);
    addScores(element);
    if (few)
      addTable(element, "Settings that differ", [
        { key: "setting", title: "Setting", words: true, value: ({ id }) => id },
        ...listing.runs.map((run) => ({ key: run.id, title: run_name(run.id), words: true, value: ({ id }) => setting(id, run) })),
      ], listing.differing.map((name) => ({ id: name })));
    addGroups(element);
    const failed = listing.runs.filter((run) => run.error);
    if (failed.length) element.append(make("h2", "Problems"), list(failed.map((run) => `${run_name(run.id)}: ${run.error}`)));
    if (data.notes?.length) element.append(make("h2", "Not in this report"), list(data.notes));
  }

  function addScores(element) {
    const rows = scoreRows(), metrics = new Map(listing.runs.flatMap((run) => run.metrics.map((one) => [one.name, one])));
    addTable(element, "Scores", [
      { key: "name", title: "Run", words: true, value: ({ run }) => run_name(run.id) },
      { key: "split", title: "Split", words: true, value: ({ split }) => split },
      ...[...metrics.values()].filter(({ name }) => rows.some(({ scores }) => typeof scores[name] === "number"))
        .map(({ name, label }) => ({ key: name, title: label, value: ({ scores }) => scores[name], cell: ({ scores }) => text(scores[name]) })),
      { key: "signature", title: "Signature", words: true, value: ({ scores }) => scores.signature, cell: ({ scores }) => breakable(scores.signature) },
    ], rows);
  }

  // Mean loss of the runs by position and the like: a table for each kind of groups, a column for each run.
  function addGroups(element) {
    const found = Object.entries(data.groups ?? {}).flatMap(([id, { counted, tables }]) => tables.map((table) => ({ id, counted, ...table })));
    for (const title of new Set(found.map((one) => one.title))) {
      const those = found.filter((one) => one.title === title), rows = new Map();
      for (const { id, rows: own } of those)
        for (const { label, items, loss } of own) rows.set(label, { id: label, items, ...rows.get(label), [id]: loss });
      addTable(element, `Validation loss: ${title}`, [
        { key: "label", title: "", words: true, cell: ({ id }) => id },
        { key: "items", title: those[0].counted, value: ({ items }) => items, cell: ({ items }) => text(items) },
        ...those.map(({ id }) => ({ key: id, title: run_name(id), value: (row) => row[id], cell: (row) => text(row[id]) })),
      ], [...rows.values()]);
    }
  }

  function list(lines) {
    const items = make("ul");
    items.append(...lines.map((line) => make("li", line)));
    return items;
  }

  const others = Object.entries(views);
  for (const [name] of others) delete views[name];
  views.report = { title: "Report", open: openSummary };
  Object.assign(views, Object.fromEntries(others));
  for (const name of Object.keys(views)) if (data.views && !data.views.includes(name)) delete views[name];

  // ---- paper: copies of the views, made while the page is idle; a view that is being read is copied as it is. The table of
  // runs is left out: the first view has it, for reading

  const PER_TASK = ["curves", "samples"]; // views of the selected runs, which have one task
  const paper = make("div", "", "paper"), copies = {};
  document.body.append(paper);

  function copyOf(name, element) {
    element.querySelectorAll("select").forEach((select, place) => { select.dataset.copied = place; });
    const section = make("section", "", `copy ${name}`), copy = element.cloneNode(true), drawn = copy.querySelectorAll("canvas");
    element.querySelectorAll("canvas").forEach((canvas, place) => {
      const image = make("img");
      image.alt = "";
      image.className = `drawn ${drawn[place].className}`;
      if (canvas.width && canvas.height) image.src = canvas.toDataURL();
      image.style.width = `${canvas.clientWidth}px`;
      drawn[place].replaceWith(image);
    });
    for (const one of copy.querySelectorAll("[id]")) one.removeAttribute("id");
    // What is chosen is read, where it cannot be chosen: the layer and the head of a map.
    element.querySelectorAll(".bar label:not([hidden]) > select").forEach((select) => {
      const text = make("span", `${select.parentElement.firstChild.textContent}: ${select.selectedOptions[0]?.textContent ?? ""}`, "setting-text");
      copy.querySelector(`[data-copied="${select.dataset.copied}"]`)?.parentElement.replaceWith(text);
    });
    for (const one of copy.querySelectorAll(".bar label")) one.remove(); // ranges and boxes
    // The name of a chart is in a control, which paper has not.
    for (const one of copy.querySelectorAll(".chart[data-metric]")) one.before(make("h3", label_axis(one.dataset.metric)));
    const task = PER_TASK.includes(name) && named_tasks().length > 1 ? ` (${current_task()})` : "";
    section.append(make("h2", `${views[name].title}${task}`, "heading"), copy);
    return section;
  }

  const copyKey = (name) => (PER_TASK.includes(name) && named_tasks().length > 1 ? `${name} ${current_task()}` : name);

  const frames = (count) => new Promise((done) => {
    const next = () => (count-- > 0 ? requestAnimationFrame(next) : done());
    next();
  });

  async function copyView(name) {
    const host = make("div", "", "aside"), element = make("div", "", `view ${name}`), line = byId("status");
    const before = [line.textContent, line.className], own = new State(name, withDefaults(name, new URLSearchParams()));
    own.aside = true;
    host.setAttribute("aria-hidden", "true");
    host.inert = true;
    host.append(element);
    document.body.append(host);
    Object.defineProperty(window, "devicePixelRatio", { value: 2, configurable: true }); // paper has finer dots
    try {
      await views[name].open(element, own);
      // Thumbnails are drawn last.
      for (let turn = 0; turn < 300 && element.querySelector(".thumbs:not([data-shown])"); turn++) await frames(1);
      await frames(3);
      copies[copyKey(name)] = copyOf(name, element);
    } catch { /* it says why when it is opened */ }
    delete window.devicePixelRatio;
    own.close();
    views[name].close?.();
    host.remove();
    say(...before);
  }

  async function copyViews() {
    const tasks = named_tasks();
    for (const [name, view] of Object.entries(views)) {
      if (name === "runs" || (view.offered && !view.offered(listing))) continue;
      if (!PER_TASK.includes(name) || tasks.length < 2) {
        if (name !== state.name) await copyView(name);
        continue;
      }
      for (const task of tasks) {
        if (name === state.name && task === current_task()) continue; // it is copied as it is
        printedTask = task;
        try {
          await copyView(name);
        } finally {
          printedTask = null;
        }
      }
    }
    document.documentElement.dataset.printable = "";
  }

  const copyShown = () => {
    const shownNow = byId("view").firstElementChild;
    if (shownNow) copies[copyKey(state.name)] = copyOf(state.name, shownNow);
  };

  // Before the frame hears of it: the view that was read while the others were copied is left now.
  addEventListener("popstate", () => {
    if (!copies[copyKey(state.name)] && document.documentElement.dataset.ready === state.name) copyShown();
  });
  addEventListener("beforeprint", () => {
    copyShown();
    const order = Object.keys(views).filter((name) => name !== "runs").flatMap((name) => [name, ...named_tasks().map((task) => `${name} ${task}`)]);
    paper.replaceChildren(...order.filter((key) => copies[key]).map((key) => copies[key]));
  });

  const opened = new MutationObserver(() => {
    opened.disconnect();
    (self.requestIdleCallback ?? setTimeout)(copyViews);
  });
  opened.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ready"] });
}
