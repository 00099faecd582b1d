"use strict";
// Runs: the table of all runs, from which those for the other views are selected.

{
  const COLUMNS = 10; // of the table; further settings that differ are shown on request
  let own, host, table, chosen = new Set(), opened = "", renaming = "";

  const valueText = (value) => (value === null ? "none" : Array.isArray(value) ? value.join(" ") : String(value));
  const mean = (values) => {
    const there = values.filter((value) => typeof value === "number");
    return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
  };

  // One row for each run, or for each group of seeds.
  function rowsOf(runs) {
    if (!is_grouped()) return runs.map((run) => ({ id: run.id, runs: [run], run, name: run_name(run.id) }));
    return groupRuns(runs.map((run) => run.id)).map(({ key, name, ids }) => ({ id: key, runs: ids.map(find_run), run: find_run(ids[0]), name }));
  }

  const across = (row, key) => mean(row.runs.map((run) => run[key]));

  function nameCell(row) {
    const { id } = row.run, all = row.runs.every((run) => chosen.has(run.id));
    if (renaming === row.id) return [renameField(row)];
    const swatch = all ? make_swatch(run_color(id), run_dash(id)) : make_swatch("transparent"), name = fill_name(make("button", "", "name"), row.name);
    name.type = "button";
    name.title = [...new Set([row.name, ...row.runs.map((run) => run.run)])].join("\n");
    name.setAttribute("aria-expanded", String(opened === row.id));
    name.addEventListener("click", () => {
      opened = opened === row.id ? "" : row.id;
      own.set({ open: opened });
      showRuns();
    });
    const line = make("span", "", "name-line");
    line.append(swatch, name);
    if (row.runs.length === 1) line.append(actionsOf(row));
    return [line];
  }

  function renameField(row) {
    const field = make("input", "", "rename"), { id, run } = row.run;
    field.type = "text";
    field.value = run_name(id);
    field.placeholder = run;
    field.setAttribute("aria-label", `Nickname of ${run}`);
    const finish = (keep) => {
      if (renaming !== row.id) return;
      renaming = "";
      if (keep) rename_run(id, field.value.trim() === run ? "" : field.value.trim());
      showRuns();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
    });
    field.addEventListener("blur", () => finish(true));
    return field;
  }

  function actionsOf(row) {
    const box = make("span", "", "run-actions"), rename = make("button", "✎", "plain rename-run"), hide = make("button", is_hidden(row.id) ? "show" : "hide", "plain hide-run");
    rename.title = `Give ${row.name} a nickname, in this browser`;
    hide.title = is_hidden(row.id) ? `Show ${row.name} again` : `Hide ${row.name}, in this browser`;
    for (const button of [rename, hide]) {
      button.type = "button";
      button.setAttribute("aria-label", button.title);
    }
    rename.addEventListener("click", () => {
      renaming = row.id;
      showRuns();
      table.body.querySelector(".rename")?.select(); // at once: the next key belongs to the name
    });
    hide.addEventListener("click", () => {
      hide_run(row.id, !is_hidden(row.id));
      if (is_hidden(row.id) && own.has("runs")) select_runs(own.list("runs").filter((id) => id !== row.id));
      showRuns();
    });
    box.append(rename, hide);
    return box;
  }

  function statusCell(row) {
    const words = [...new Set(row.runs.map((run) => run.status))];
    return words.map((word) => {
      const badge = make("span", words.length > 1 ? `${row.runs.filter((run) => run.status === word).length} ${word}` : word, `badge ${word}`);
      const reason = row.runs.find((run) => run.status === word && run.error)?.error;
      if (reason) badge.title = reason;
      return badge;
    });
  }

  function stepCell(row) {
    const step = Math.min(...row.runs.map((run) => run.step ?? 0)), { steps, status } = row.run;
    const text = digits(step) + (steps && step !== steps ? ` / ${digits(steps)}` : ""), parts = [text];
    if (status !== "training") return parts;
    const left = Math.max(...row.runs.map((run) => run.seconds_left ?? -1));
    if (left >= 0) parts.push(make("span", `${ago(left)} left`, "left-time quiet"));
    if (!steps) return parts;
    const bar = make("progress");
    bar.max = steps;
    bar.value = step;
    bar.setAttribute("aria-label", `progress of ${row.name}`);
    return [...parts, bar];
  }

  // Before the first validation the training loss is shown.
  function lastCell(row) {
    const loss = across(row, "train_loss");
    if (across(row, "last") !== null || across(row, "best") !== null || loss === null) return spread(row, "last");
    const note = make("span", " in training", "quiet");
    note.title = label_axis("train_loss");
    return [score(loss), note];
  }

  function spread(row, key) {
    const values = row.runs.map((run) => run[key]).filter((value) => typeof value === "number");
    const text = score(mean(values));
    if (values.length < 2) return text;
    const span = make("span", text);
    span.title = `Mean of ${values.length} seeds, ${score(Math.min(...values))} to ${score(Math.max(...values))}; ± is its 95 % interval`;
    return [span, make("span", ` ± ${digits(halfInterval(values), 2)}`, "quiet")];
  }

  function columnsOf(rows) {
    const metrics = new Set(rows.map((row) => row.run.metric).filter(Boolean)), [metric] = metrics.size === 1 ? metrics : [];
    // Runs of one task may be selected by different metrics, which the cells name then.
    const named = (row, key) => (metric || across(row, key) === null ? spread(row, key) : [...[spread(row, key)].flat(), make("span", ` ${label_text(row.run.metric)}`, "quiet")]);
    const bestFirst = isMax(rows.find((row) => row.run.goal)?.run.goal) ? "-" : "";
    const columns = [
      { key: "chosen", title: "", control: selectAll(rows), cell: checkCell },
      { key: "name", title: "Run", words: true, heads: true, value: (row) => row.name, cell: nameCell },
      { key: "status", title: "Status", words: true, value: (row) => row.run.status, cell: statusCell },
      { key: "step", title: "Step", value: (row) => across(row, "step"), cell: stepCell },
      { key: "best", title: metric ? `Best ${label_axis(`valid.${metric}`)}` : "Best", short: metric && `Best ${label_text(`valid.${metric}`)}`, hint: "Best value on validation data", first: bestFirst, value: (row) => across(row, "best"), cell: (row) => named(row, "best") },
      { key: "last", title: "Last", hint: "Last value on validation data", first: bestFirst, value: (row) => across(row, "last"),
        cell: (row) => (across(row, "last") === null ? lastCell(row) : named(row, "last")) },
      { key: "parameters", title: "Parameters", value: (row) => row.run.parameters, cell: (row) => short(row.run.parameters) },
      { key: "throughput", title: sentence(label_axis("throughput")), first: "-", value: (row) => across(row, "throughput"),
        cell: (row) => (row.run.throughput ? short(across(row, "throughput")) : "–") },
      { key: "age", title: "Age", hint: "Time since the run was last written", value: (row) => age_of(row.run), cell: (row) => ago(age_of(row.run)) },
    ];
    const names = settingNames(rows), room = Math.max(0, COLUMNS + 1 - columns.length);
    const isShort = own.get("settings", "differ") === "differ" && names.length > room;
    showMore(isShort ? names.length - room : 0);
    for (const name of isShort && !own.get("more") ? names.slice(0, room) : names)
      columns.push({ key: `set.${name}`, title: name, words: true, value: (row) => row.run.settings?.[name],
        cell: (row) => settingCell(row.run.settings?.[name]) });
    return columns;
  }

  // A long value is cut on a wide page, and whole when it is pointed at.
  function settingCell(value) {
    if (value === undefined) return "–";
    const text = make("span", valueText(value), "setting");
    text.title = text.textContent;
    return [text];
  }

  function settingNames(rows) {
    const kind = own.get("settings", "differ");
    if (kind === "none") return [];
    const all = [...new Set(rows.flatMap((row) => Object.keys(row.run.settings ?? {})))];
    if (kind === "all") return all;
    const kept = is_grouped() ? ["seed", "device", "out"] : [];
    return tellingFirst(rows, all.filter((name) => listing.differing.includes(name) && !kept.includes(name)
      && new Set(rows.map((row) => JSON.stringify(row.run.settings?.[name]))).size > 1));
  }

  // Settings that tell more runs apart than those before them come first: data, model and mixers, and the seed last.
  function tellingFirst(rows, names) {
    const rank = { data: 0, model: 1, mixers: 2, seed: 4 }, telling = [];
    const parts = (keys) => new Set(rows.map((row) => JSON.stringify(keys.map((key) => row.run.settings?.[key])))).size;
    for (const name of [...names].sort((one, other) => (rank[one] ?? 3) - (rank[other] ?? 3)))
      if (parts([...telling, name]) > parts(telling)) telling.push(name);
    return [...telling, ...names.filter((name) => !telling.includes(name))];
  }

  function showMore(hidden) {
    const button = host.querySelector(".more"), isOpen = Boolean(own.get("more"));
    button.hidden = !hidden;
    button.textContent = isOpen ? "Fewer columns" : `More columns (${hidden})`;
    button.setAttribute("aria-expanded", String(isOpen));
  }

  // The state is in attributes as well: by them a row is known to be the same as before.
  function setBox(box, ids) {
    box.type = "checkbox";
    box.defaultChecked = box.checked = ids.length > 0 && ids.every((id) => chosen.has(id));
    box.indeterminate = !box.checked && ids.some((id) => chosen.has(id));
    if (box.indeterminate) box.setAttribute("aria-checked", "mixed");
  }

  function checkCell(row) {
    const box = make("input", "", "choose"), ids = row.runs.map((run) => run.id);
    setBox(box, ids);
    box.setAttribute("aria-label", `Select ${row.name}`);
    box.addEventListener("change", () => {
      const others = selected().filter((id) => !ids.includes(id));
      select_runs(box.checked ? [...others, ...ids] : others);
      showRuns();
    });
    return [box];
  }

  function selectAll(rows) {
    const box = make("input", "", "choose"), ids = rows.flatMap((row) => row.runs.map((run) => run.id));
    box.dataset.focus = "all";
    setBox(box, ids);
    box.setAttribute("aria-label", "Select all that are listed");
    box.addEventListener("change", () => {
      select_runs(box.checked ? [...new Set([...selected(), ...ids])] : selected().filter((id) => !ids.includes(id)));
      showRuns();
    });
    return box;
  }

  // What is known of one run, below its row.
  function detailRow(row, width) {
    const line = make("tr", "", "detail"), cell = make("td");
    cell.colSpan = width;
    const links = make("p", "", "links");
    for (const name of ["curves", "samples", "tokens", "look"]) {
      const view = views[name];
      if (!view || (view.offered && !view.offered(listing))) continue;
      const link = make("a", view.title);
      link.href = linkTo(name, { runs: row.runs.map((run) => run.id).join() });
      links.append(link);
    }
    cell.append(links);
    for (const run of row.runs) if (run.error) cell.append(make("p", row.runs.length > 1 ? `${run_name(run.id)}: ${run.error}` : run.error, "bad"));
    if (live && row.runs.length === 1 && row.run.status !== "unreadable") cell.append(commandLine(row.run));
    const scores = Object.entries(row.run.scores ?? {}).filter(([, values]) => values && typeof values === "object");
    if (scores.length) cell.append(factList("Scores", scores.flatMap(([split, values]) => Object.entries(values)
      .filter(([, value]) => typeof value !== "object").map(([name, value]) => [label_axis(`${split}.${name}`), typeof value === "number" ? digits(value) : valueText(value)]))));
    cell.append(factList("Settings", Object.entries(row.run.settings ?? {}).map(([name, value]) => [name, valueText(value)])));
    line.append(cell);
    return line;
  }

  // ---- stop and resume, with the command that does it

  const commands = new Map(); // by run, as the server described them last

  async function fetchCommand(run, asked = own) {
    const answer = await ask("/api/command", { run: run.id });
    if (asked.closed || JSON.stringify(commands.get(run.id)) === JSON.stringify(answer)) return;
    commands.set(run.id, answer);
    showRuns();
  }

  function commandLine(run) {
    const found = commands.get(run.id), line = make("div", "", "command");
    fetchCommand(run).catch(() => {});
    if (!found) return line;
    if (found.verb && !found.reason)
      line.append(action(found.verb === "stop" ? "Stop training" : "Resume training", "", async () => {
        await send(`/api/${found.verb}`, { run: run.id });
        tell(found.verb === "stop" ? "The training ends after its current step" : "The training starts");
        commands.delete(run.id);
        showRuns();
      }));
    if (found.command) line.append(...copyable(found.command));
    for (const text of [found.reason, found.failure && `The training that was resumed here failed: ${found.failure}`])
      if (text) line.append(make("span", text, text === found.failure ? "bad" : "quiet"));
    return line;
  }

  function factList(title, facts) {
    const box = make("div", "", "facts"), list = make("dl");
    for (const [name, value] of facts) {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", value));
      list.append(pair);
    }
    box.append(make("h3", title), list);
    return box;
  }

  function showRuns() {
    chosen = new Set(selected());
    const all = task_runs(), hidden = all.filter((run) => is_hidden(run.id));
    const { kept, notes } = filterRuns(own.get("hidden") ? all : all.filter((run) => !is_hidden(run.id)), own.get("q"));
    const rows = rowsOf(kept), columns = columnsOf(rows);
    table.show(columns, rows, {
      sort: own.get("sort", "age"),
      mark: (row, element) => {
        element.classList.toggle("is-hidden", row.runs.some((run) => is_hidden(run.id)));
        element.dataset.run = row.id;
      },
      detail: (row) => (opened === row.id ? detailRow(row, columns.length) : null),
    });
    const count = chosen.size, gone = own.list("runs").length - own.list("runs").filter(find_run).length;
    const facts = [`${kept.length} of ${all.length} runs`, `${count} selected`];
    if (gone) facts.push(`${gone} of the selected ${gone === 1 ? "run is" : "runs are"} gone`);
    host.querySelector(".counts").textContent = [...facts, ...notes].join(" · ");
    host.querySelector(".hidden-choice").hidden = !hidden.length;
    host.querySelector(".hidden-choice span").textContent = `Hidden runs (${hidden.length})`;
    host.querySelector(".nothing").hidden = listing.runs.length > 0;
    const isEmpty = !kept.length && listing.runs.length > 0, empty = host.querySelector(".no-match");
    table.box.hidden = !kept.length;
    empty.hidden = !isEmpty;
    empty.querySelector("span").textContent = own.get("q") ? `No run matches “${own.get("q")}”.` : "All runs are hidden.";
    empty.querySelector("button").hidden = !own.get("q");
  }

  // An address may open the details of a run that is far down the list.
  function showOpened() {
    const row = host.querySelector("tr.detail")?.previousElementSibling;
    if (!row) return;
    table.box.scrollTop = row.offsetTop - table.head.offsetHeight;
    row.scrollIntoView({ block: "nearest" });
  }

  function bar() {
    const line = make("div", "", "bar"), filter = make("input", "", "filter");
    filter.type = "search";
    filter.placeholder = "Filter: words, model=lstm, lr>0.01";
    filter.dataset.filter = "";
    filter.value = own.get("q");
    filter.setAttribute("aria-label", "Filter runs by words and by settings, such as model=lstm or lr>0.01");
    filter.addEventListener("input", () => {
      own.set({ q: filter.value });
      showRuns();
    });
    filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") table.body.querySelector("input.choose")?.focus();
    });
    const change = (name) => (value) => {
      own.set({ [name]: value }, { push: true });
      showRuns();
    };
    line.append(
      filter,
      choice("Settings", [["differ", "that differ"], ["all", "all"], ["none", "none"]], own.get("settings", "differ"), change("settings")),
      action("", "", () => change("more")(!own.get("more")), "more"),
      toggle("Seeds together", is_grouped(), change("group")),
      Object.assign(toggle("", Boolean(own.get("hidden")), change("hidden")), { className: "hidden-choice" }),
    );
    const buttons = make("span", "", "right");
    for (const [name, pick] of [["Newest ten", newest], ["Best ten", best], ["None", () => []]]) {
      const button = make("button", name);
      button.type = "button";
      button.title = name === "None" ? "Select no run" : `Select the ${name.toLowerCase()} of those that are listed`;
      button.addEventListener("click", () => {
        select_runs(pick().map((run) => run.id));
        showRuns();
      });
      buttons.append(button);
    }
    line.append(buttons);
    return line;
  }

  const listed = () => filterRuns(task_runs().filter((run) => !is_hidden(run.id)), own.get("q")).kept;
  const newest = () => listed().sort((one, other) => (one.age ?? 1e12) - (other.age ?? 1e12)).slice(0, FIRST);

  // The best of the metric that most of the listed runs select by.
  function best() {
    const counts = new Map();
    for (const run of listed()) counts.set(run.metric, (counts.get(run.metric) ?? 0) + 1);
    const [metric] = [...counts].sort((one, other) => other[1] - one[1])[0] ?? [];
    return listed().filter((run) => run.metric === metric && typeof run.best === "number")
      .sort((one, other) => (isMax(one.goal) ? -1 : 1) * (one.best - other.best)).slice(0, FIRST);
  }

  views.runs = {
    title: "Runs",
    keys: [["↓ ↑", "move from run to run"], ["Space", "select a run"], ["Enter", "show details of a run"]],
    open(element, opening) {
      own = opening;
      host = element;
      opened = own.get("open");
      const section = make("section"), counts = make("p", "", "counts quiet");
      section.setAttribute("aria-label", "Runs");
      counts.setAttribute("role", "status");
      section.append(bar(), counts);
      table = new SortTable(section, {
        caption: "Runs of this folder",
        onsort: (sort) => {
          own.set({ sort });
          showRuns();
        },
      });
      table.table.addEventListener("keydown", (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], boxes = [...table.body.querySelectorAll("input.choose")];
        if (!step || event.target.matches(".rename")) return;
        const at = boxes.indexOf(event.target.closest("tr")?.querySelector("input.choose"));
        event.preventDefault();
        boxes[Math.max(0, Math.min(boxes.length - 1, at + step))]?.focus();
      });
      const none = make("p", "", "empty no-match");
      none.append(make("span"), " ", action("Clear the filter", "", () => {
        own.set({ q: "" });
        host.querySelector(".filter").value = "";
        showRuns();
      }));
      section.append(none, noRuns("empty nothing"));
      host.append(section);
      showRuns();
      showOpened();
      own.repeat(async () => {
        await untilReleased();
        if (!opening.closed) views.runs.refresh();
      }, 10000); // for the ages
    },
    refresh() {
      if (!renaming) showRuns();
    },
  };
}
