"use strict";
// Studies: the list of studies, and one of them as a table, a heat map, findings, and what is running or has failed.

{
  let own, host, study = null, groups, cells;

  const text = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const valuesOf = (name) => study.axes[name] ?? [];
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const metricName = () => `validation ${study.label ?? study.metric}`;
  const metricAxis = () => metricName() + (study.unit ? ` (${study.unit})` : "");
  const settingName = (parameters) => Object.entries(parameters).map(([name, value]) => `${name} ${text(value)}`).join(", ") || "base";
  const runsOf = (found) => study.cells.filter((cell) => cell.run && find_run(cell.run) && found.some((group) => same(group.parameters, cell.parameters))).map((cell) => cell.run);

  // In the order of the values of each setting in turn, numbers as numbers.
  function compareSettings(one, other) {
    for (const name of Object.keys(study.axes)) {
      const a = one[name] ?? null, b = other[name] ?? null;
      const order = typeof a === "number" && typeof b === "number" ? a - b : text(a).localeCompare(text(b), "en", { numeric: true });
      if (order) return order;
    }
    return 0;
  }

  const sign = () => (isMax(study.goal) ? -1 : 1);

  function listStudies() {
    const chosen = chosenStudy(), box = host.querySelector(".studies-list");
    box.replaceChildren(...studies().map((one) => {
      const item = make("li"), link = make("a", one.study);
      link.href = linkTo("studies", { study: one.id });
      if (one.id === chosen) link.setAttribute("aria-current", "true");
      const facts = [`${one.finished} of ${one.cells} cells`, one.failed ? `${one.failed} failed` : "", one.diverged ? `${one.diverged} diverged` : "", `${ago(age_of(one))} ago`].filter(Boolean).join(" · ");
      item.append(link, make("span", one.status, `badge ${one.status}`), make("span", facts, "quiet"));
      return item;
    }));
  }

  const studies = () => listing.studies.filter((one) => one.task === null || one.task === current_task() || named_tasks().length < 2);
  // Studies of this folder that are of other tasks.
  function otherStudies() {
    if (!listing.studies.length) return [];
    const line = make("p", "Studies of other tasks: ", "empty others");
    listing.studies.forEach((one, at) => {
      const link = make("a", one.study);
      link.href = linkTo("studies", { study: one.id });
      line.append(at ? ", " : "", link, ` (${one.task})`);
    });
    return [line];
  }

  const chosenStudy = () => own.get("study") || studies()[0]?.id || "";

  // ---- the heat map

  function heatAxes() {
    const names = Object.keys(study.axes), across = own.get("across"), down = own.get("down");
    const column = names.includes(across) ? across : names.find((name) => valuesOf(name).length > 1) ?? names[0];
    const row = names.includes(down) && down !== column ? down : names.find((name) => name !== column && valuesOf(name).length > 1) ?? null;
    return [row, column];
  }

  // Of an axis that is tuned, all values that were tried, by the seeds that tune: only the best are compared.
  const isTuned = (...axes) => axes.some((name) => study.tuned?.includes(name));

  // Mean over the groups that a cell of the heat map stands for.
  function cellOf(row, column, rowValue, columnValue) {
    const found = (isTuned(row, column) ? study.tried : study.groups).filter((group) => same(group.parameters[column], columnValue) && (row === null || same(group.parameters[row], rowValue)));
    const values = found.map((group) => group.mean).filter((value) => typeof value === "number");
    return { value: values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null, groups: found };
  }

  function heatMap(box) {
    const names = Object.keys(study.axes);
    if (!names.length) {
      box.hidden = true;
      return;
    }
    box.hidden = false;
    const [row, column] = heatAxes(), bar = box.querySelector(".axes"), options = names.map((name) => [name, name]);
    const change = (key) => (value) => {
      own.set({ [key]: value }, { push: true });
      heatMap(box);
    };
    bar.replaceChildren(choice("Columns", options, column, change("across")));
    if (names.length > 1) bar.append(choice("Rows", options.filter(([name]) => name !== column), row ?? "", change("down")));
    if (isTuned(row, column)) bar.append(make("span", "All values that were tried, by the seeds that tune.", "quiet"));
    const rows = row === null ? [null] : valuesOf(row), columns = valuesOf(column);
    const grid = rows.map((one) => columns.map((other) => cellOf(row, column, one, other)));
    const values = grid.flat().map(({ value }) => value).filter((value) => value !== null);
    const low = Math.min(...values), high = Math.max(...values), best = sign() > 0 ? low : high;
    const table = make("table", "", "heat"), head = make("tr"), body = make("tbody"), top = make("thead");
    table.append(make("caption", `Mean ${metricName()} by ${[row, column].filter(Boolean).join(" and ")}`, "hidden"));
    const corner = make("td", row === null ? "" : `${row} ↓  ${column} →`, "quiet");
    head.append(corner, ...columns.map((value) => Object.assign(make("th", text(value)), { scope: "col" })));
    rows.forEach((value, place) => {
      const line = make("tr");
      line.append(Object.assign(make("th", row === null ? metricName() : text(value)), { scope: "row" }), ...grid[place].map(({ value: mean, groups: found }) => {
        const cell = make("td", "", mean !== null && mean === best ? "best" : ""), runs = runsOf(found);
        const inside = make(runs.length ? "a" : "span", score(mean));
        if (runs.length) {
          inside.href = linkTo("curves", { runs: runs.join(), group: "1" });
          inside.setAttribute("aria-label", `${score(mean)}: curves of ${found.map((group) => settingName(group.parameters)).join("; ")}`);
        }
        cell.append(inside);
        if (mean !== null) painted(cell, "weight", high > low ? (sign() > 0 ? high - mean : mean - low) / (high - low) : 0.5);
        const one = found.length === 1 ? found[0] : null;
        cell.title = one ? `${(one.seeds ?? []).map((value) => score(value)).join(", ")}${one.note ? `\n${one.note}` : ""}` : found.length ? `mean of ${found.length} settings` : "no cell";
        return cell;
      }));
      body.append(line);
    });
    top.append(head);
    table.append(top, body);
    box.querySelector(".scroll").replaceChildren(table);
    legend(box.querySelector(".legend"), "weight", values.length ? `worse ${score(sign() > 0 ? high : low)}` : "", values.length ? `${score(best)} better` : "");
  }

  // ---- tables

  function groupTable() {
    const names = Object.keys(study.axes);
    const columns = names.map((name) => ({ key: name, title: name, words: true, value: (group) => group.parameters[name], cell: (group) => text(group.parameters[name]) }));
    if (!columns.length) columns.push({ key: "setting", title: "Setting", words: true, value: () => "base" });
    columns.push(
      { key: "mean", title: sentence(metricAxis()), first: isMax(study.goal) ? "-" : "", value: (group) => group.mean, cell: (group) => score(group.mean) },
      { key: "interval", title: "95 % interval", cell: (group) => (typeof group.low === "number" ? `${score(group.low)} … ${score(group.high)}` : "–") },
      { key: "seeds", title: "Seeds", cell: (group) => (group.seeds ?? []).map((value) => score(value)).join(", ") || "–" },
      { key: "note", title: "", words: true, cell: (group) => group.note ?? "" },
    );
    groups.show(columns, study.groups, {
      sort: own.get("sort", isMax(study.goal) ? "-mean" : "mean"), name: (group) => JSON.stringify(group.parameters),
      mark: (group, element) => element.classList.toggle("now", study.best !== null && same(study.best?.parameters ?? study.best, group.parameters)),
    });
  }

  function cellTable() {
    const wanted = own.get("status"), shown = study.cells.filter((cell) => !wanted || cell.status === wanted);
    const ordered = [...shown].sort((one, other) => compareSettings(one.parameters, other.parameters) || (one.seed ?? 0) - (other.seed ?? 0));
    const place = new Map(ordered.map((cell, at) => [cell, at]));
    const link = (cell) => {
      if (!cell.run || !find_run(cell.run)) return [settingName(cell.parameters)];
      const anchor = make("a", settingName(cell.parameters));
      anchor.href = linkTo("curves", { runs: cell.run });
      return [anchor];
    };
    cells.show([
      { key: "cell", title: "Setting", words: true, value: (cell) => place.get(cell), cell: link },
      { key: "seed", title: "Seed", value: (cell) => cell.seed },
      { key: "status", title: "Status", words: true, value: (cell) => cell.status, cell: (cell) => [make("span", cell.status, `badge ${cell.status}`)] },
      { key: "value", title: sentence(metricName()), value: (cell) => cell.value, cell: (cell) => score(cell.value) },
      { key: "reason", title: "Reason", words: true, value: (cell) => cell.reason, cell: (cell) => [make("span", cell.reason ?? "", "reason")] },
    ], ordered, { sort: own.get("cells", ""), name: (cell) => cell.key });
    const states = [...new Set(study.cells.map((cell) => cell.status))];
    host.querySelector(".cell-filter").replaceChildren(choice("Status", [["", `all (${study.cells.length})`],
      ...states.map((one) => [one, `${one} (${study.cells.filter((cell) => cell.status === one).length})`])], wanted, (value) => {
      own.set({ status: value }, { push: true });
      cellTable();
    }));
  }

  function showStudy() {
    host.querySelector(".study").hidden = !study;
    if (!study) return;
    const line = host.querySelector(".study-facts"), facts = [`${study.cells.filter((cell) => cell.status === "finished").length} of ${study.cells.length} cells`];
    if (study.running) facts.push(`${study.running} running`);
    if (study.failed) facts.push(`${study.failed} failed`);
    if (study.diverged) facts.push(`${study.diverged} diverged`);
    host.querySelector(".study-title").textContent = study.study;
    line.replaceChildren(make("span", study.status, `badge ${study.status}`), ` · ${facts.join(" · ")} · selected by the ${isMax(study.goal) ? "highest" : "lowest"} ${metricName()}`);
    const question = host.querySelector(".question");
    question.textContent = study.about ?? "";
    question.hidden = !study.about;
    const runs = study.cells.map((cell) => cell.run).filter((id) => id && find_run(id));
    if (runs.length) {
      const link = make("a", "curves of all its runs");
      link.href = linkTo("curves", { runs: runs.join(), group: "1" });
      line.append(" · ", link);
    }
    const list = host.querySelector(".findings");
    list.replaceChildren(...(study.findings.length ? study.findings.map((one) => make("li", typeof one === "string" ? one : one.text ?? JSON.stringify(one))) : [make("li", "None yet.", "quiet")]));
    heatMap(host.querySelector(".heat-box"));
    groupTable();
    cellTable();
  }

  async function fetchStudy() {
    const id = chosenStudy(), asked = own;
    if (!id) return;
    if (!listing.studies.some((one) => one.id === id)) throw new Error("this study is gone, or is not below the folder of this page");
    const answer = await ask("/api/study", { id });
    if (asked.closed) return;
    if (same(answer, study)) return;
    study = answer;
    showStudy();
  }

  function section(title, className, ...content) {
    const box = make("section", "", className), head = make("h2", title);
    head.id = `study-${className}`;
    box.setAttribute("aria-labelledby", head.id);
    box.append(head, ...content);
    return box;
  }

  views.studies = {
    title: "Studies",
    offered: (all) => live || all.studies.some((one) => has(keyOf("GET", "/api/study", { id: one.id }))),
    async open(element, opening) {
      own = opening;
      host = element;
      study = null;
      const nav = make("ul", "", "studies-list"), whole = make("div", "", "study");
      nav.setAttribute("aria-label", "Studies of this folder");
      if (!studies().length) {
        const none = listing.studies.length ? `There are no studies of ${current_task()} here yet.` : "There are no studies here yet.";
        host.append(emptyState(`${none} A study appears as soon as anaphor study has written its folder.`, `anaphor study bptt --out ${inFolder("bptt")}`), ...otherStudies());
        return;
      }
      const heat = section("Heat map", "heat-box", make("div", "", "bar"), make("div", "", "scroll"));
      heat.querySelector(".bar").append(make("span", "", "axes"), make("span", "", "legend"));
      heat.querySelector(".scroll").tabIndex = 0;
      const about = make("section", "", "about");
      about.append(make("h2", "", "study-title"), make("p", "", "question"), make("p", "", "study-facts"), make("h3", "Findings"), make("ul", "", "findings"));
      const settings = section("Settings", "settings"), all = section("Cells", "cells", make("div", "", "bar cell-filter"));
      whole.append(about, heat, settings, all);
      whole.hidden = true;
      host.append(nav, whole);
      groups = new SortTable(settings, { caption: "Settings of the study with their mean", onsort: (sort) => {
        own.set({ sort });
        groupTable();
      } });
      cells = new SortTable(all, { caption: "Cells of the study", onsort: (sort) => {
        own.set({ cells: sort });
        cellTable();
      } });
      listStudies();
      await new Promise((done) => own.repeat(async () => {
        try {
          await fetchStudy();
        } finally {
          done();
        }
      }, 3000));
    },
    refresh() {
      if (!host.querySelector(".studies-list")) {
        if (studies().length) openView();
        return;
      }
      listStudies();
    },
  };
}
