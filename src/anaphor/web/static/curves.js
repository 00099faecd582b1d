"use strict";
// Curves: charts of the selected runs, as many as the reader wants, with one x axis for all.

{
  const AXES = ["step", "epoch", "count", "seconds"];
  const BANDS = { interval: "its 95 % interval (Student's t)", range: "from the lowest to the highest seed" };
  let own, host, cards, values, cursorChart, loud = "", told = 0, zoomedAt = -Infinity, tornBefore = new Set();

  // ---- which charts

  function curveNames() {
    const names = new Set(selected().flatMap((id) => find_run(id).curves ?? []));
    return [...names].filter((name) => !AXES.includes(name));
  }

  function defaultCharts() {
    const names = curveNames(), counts = new Map();
    // Before the first validation: how training goes.
    const early = ["train_loss", "lr", "grad_norm", "throughput"].filter((name) => names.includes(name));
    for (const id of selected()) {
      const { metric, curves = [] } = find_run(id), name = curves.find((one) => one === metric || one === `valid.${metric}`);
      if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    const [first] = [...counts].sort((one, other) => other[1] - one[1])[0] ?? [];
    const charts = first ? [...new Set([first, names.find((name) => name === "train_loss")])].filter(Boolean) : early;
    return charts.length ? charts : names.slice(0, 2);
  }

  const charted = () => (own.has("charts") ? own.list("charts") : defaultCharts());
  const drawnCharts = () => (charted().includes(own.get("big")) ? [own.get("big")] : charted());
  const axis = () => own.get("x", "step");
  const axisName = () => {
    if (axis() === "seconds") return label_text("seconds"); // its unit depends on the range
    return label_axis(axis());
  };
  const pair = (text) => {
    const values = text.split(",").map(Number);
    return values.length === 2 && values.every(Number.isFinite) && values[0] < values[1] ? values : null;
  };
  const zoomX = () => pair(own.get("zoom"));
  const zoomY = (metric) => pair(own.get(`y.${metric}`));

  // What runs say of a metric of theirs, such as its goal.
  function saidOf(metric, ids, what) {
    for (const id of ids) {
      const found = find_run(id)?.metrics?.find((one) => metric === one.name || metric.endsWith(`.${one.name}`))?.[what];
      if (found !== undefined && found !== null) return found;
    }
    return null;
  }

  const goalOf = (metric, ids) => saidOf(metric, ids, "goal") ?? (/loss|perplexity/.test(metric) ? "min" : "");

  // ---- lines

  const bandKind = () => (own.get("band") === "range" ? "range" : "interval");

  function lines() {
    return (is_grouped() ? groupRuns(selected()) : selected().map((id) => ({ key: id, name: run_name(id), ids: [id] })))
      .map((line) => ({ ...line, color: run_color(line.ids[0]), dash: run_dash(line.ids[0]) }));
  }

  function seriesOf(metric, track = trackOf) {
    const weight = Number(own.get("smooth", "0"));
    return lines().map((line) => {
      const members = line.ids.map((id) => track(id).points(axis(), metric)).filter(({ x }) => x.length);
      if (!members.length) return null;
      const curve = members.length > 1 ? meanCurve(members) : members[0], one = { ...line, ...curve, raw: curve.y, loud: loud === line.key };
      if (weight > 0) {
        one.y = smooth(curve.y, weight);
        if (!one.spans) one.pale = curve.y;
      }
      if (one.spans) addBand(one, metric, weight);
      return one;
    }).filter(Boolean);
  }

  // The interval of two seeds is twelve times as wide as they are apart: it is drawn, but the axis is that of the seeds.
  function addBand(one, metric, weight) {
    const soft = (values) => (weight > 0 ? smooth(values, weight) : values);
    const least = saidOf(metric, one.ids, "minimum") ?? -Infinity, most = saidOf(metric, one.ids, "maximum") ?? Infinity; // that a value can have
    [one.low, one.high] = one.spans[bandKind()].map((values) => soft(values).map((value) => Math.max(least, Math.min(value, most))));
    if (one.count === 2) [one.least, one.most] = one.spans.range.map(soft);
  }

  // Last and best value of a line, of the values before smoothing.
  function summary(one, goal) {
    const at = one.raw.length - 1;
    let best = -1;
    if (goal) for (let place = 0; place <= at; place++) if (best < 0 || (isMax(goal) ? one.raw[place] > one.raw[best] : one.raw[place] < one.raw[best])) best = place;
    return { last: one.raw[at], x: one.x[at], best: best < 0 ? null : one.raw[best], bestX: best < 0 ? null : one.x[best] };
  }

  // ---- cards

  function card(metric) {
    const box = make("section", "", "chart-card"), bar = make("div", "", "bar"), canvas = make("div");
    box.setAttribute("aria-label", `Chart of ${label_text(metric)}`);
    const names = [...new Set([metric, ...curveNames()])];
    const field = choice("", names.map((name) => [name, sentence(label_text(name))]), metric, (name) => {
      own.set({ charts: [...new Set(charted().map((one) => (one === metric ? name : one)))], big: own.get("big") && name }, { push: true });
      rebuild();
    });
    field.querySelector("select").setAttribute("aria-label", "Curve");
    const log = action("log", "Logarithmic y axis", () => {
      const now = own.list("ylog");
      own.set({ ylog: now.includes(metric) ? now.filter((one) => one !== metric) : [...now, metric], [`y.${metric}`]: null }, { push: true });
      log.setAttribute("aria-pressed", String(own.list("ylog").includes(metric)));
      show();
    });
    log.setAttribute("aria-pressed", String(own.list("ylog").includes(metric)));
    const files = make("span", "", "files right");
    for (const kind of ["SVG", "PNG", "CSV"]) files.append(action(kind, `Download ${label_text(metric)} as ${kind}`, () => save(one, kind.toLowerCase()), "plain"));
    const isBig = own.get("big") === metric;
    const enlarge = action(isBig ? "⤡" : "⤢", isBig ? "Show all charts" : `Enlarge the chart of ${label_text(metric)}`, () => {
      own.set({ big: isBig ? null : metric }, { push: true });
      rebuild();
    }, "plain");
    enlarge.setAttribute("aria-pressed", String(isBig));
    files.append(enlarge, action("×", `Remove the chart of ${label_text(metric)}`, () => {
      own.set({ charts: charted().filter((name) => name !== metric) }, { push: true });
      rebuild();
    }, "plain"));
    files.prepend(log);
    bar.append(field, files);
    box.append(bar, canvas);
    canvas.dataset.metric = metric;
    canvas.dataset.title = sentence(label_axis(metric)); // on paper
    const chart = new Chart(canvas, {
      zoomed: (domain) => {
        // A step that Back undoes; the turns of a wheel are one.
        own.set({ zoom: domain.x ? domain.x.map((value) => Number(value.toPrecision(8))) : null, [`y.${metric}`]: domain.y ? domain.y.map((value) => Number(value.toPrecision(6))) : null },
          { push: performance.now() - zoomedAt > 1000 });
        zoomedAt = performance.now();
        show();
        refine();
      },
      hovered: (x) => {
        cursorChart = x === null ? null : chart;
        for (const other of cards) other.chart.point(x, { tip: other.chart === chart });
      },
    });
    const one = { metric, box, chart };
    return one;
  }

  async function save({ metric, chart }, kind) {
    const goal = goalOf(metric, selected());
    if (kind !== "csv") {
      const legend = chart.series.slice(0, 60).map((one) => {
        const { last, best } = summary(one, goal);
        return { ...one, label: `${one.name}: last ${score(last)}${best === null ? "" : `, best ${score(best)}`}` };
      });
      return saveChart(chart, kind, metric, legend);
    }
    const ends = (one, at) => (one.spans ? [...one.spans.range, ...one.spans.interval].map((values) => values[at]) : ["", "", "", ""]);
    const rows = [["run", axis(), metric, ...(is_grouped() ? ["lowest", "highest", "interval_low", "interval_high"] : [])]];
    const whole = await fetchWhole(selected());
    for (const one of seriesOf(metric, (id) => whole.get(id)))
      one.x.forEach((x, at) => rows.push([one.name, x, one.raw[at], ...(is_grouped() ? ends(one, at) : [])]));
    return download(`${metric}.csv`, csvText(rows), "text/csv");
  }

  function rebuild() {
    for (const { chart } of cards ?? []) chart.close();
    const grid = host.querySelector(".charts");
    cards = drawnCharts().map(card);
    const add = choice("", [["", "Add a chart…"], ...curveNames().filter((name) => !charted().includes(name)).map((name) => [name, sentence(label_text(name))])], "", (name) => {
      if (name) own.set({ charts: [...charted(), name] }, { push: true });
      rebuild();
    });
    add.querySelector("select").setAttribute("aria-label", "Add a chart");
    host.querySelector(".add").replaceChildren(add);
    grid.replaceChildren(...cards.map(({ box }) => box));
    grid.classList.toggle("single", cards.length === 1);
    grid.classList.toggle("enlarged", Boolean(own.get("big")) && cards.length === 1);
    show();
  }

  function show() {
    const total = cards.map(({ metric, chart }) => {
      const series = seriesOf(metric);
      chart.show(series, {
        title: sentence(label_text(metric)), yname: label_of(metric).unit, xname: axisName(), xlog: own.get("xlog") === "1", ylog: own.list("ylog").includes(metric),
        time: axis() === "seconds", outliers: own.get("outliers") === "1",
      }, { x: zoomX(), y: zoomY(metric) });
      chart.note.textContent = series.length ? "" : selected().length ? "No values yet." : "No run is selected.";
      return { metric, series };
    });
    host.querySelector(".reset").hidden = !zoomX() && ![...own.values.keys()].some((key) => key.startsWith("y."));
    showLegend(total);
    showValues(total);
    if (cursorChart) cursorChart.hovered(cursorChart.cursor, cursorChart);
  }

  // ---- the legend, and the charts as a table

  function showLegend(total) {
    const [first] = total, goal = first && goalOf(first.metric, selected()), head = make("p", "", "legend-head");
    head.append(make("span", first ? sentence(label_text(first.metric)) : "Selected runs"), make("span", "last"), make("span", goal ? "best" : ""));
    const items = lines().map((line) => legendItem(line, first?.series.find((one) => one.key === line.key), goal));
    host.querySelector(".legend-box .legend-head").replaceWith(head);
    patch(host.querySelector(".legend-box ul"), items);
    const note = host.querySelector(".band-note"), hasBands = lines().some((line) => line.ids.length > 1);
    note.hidden = !hasBands;
    note.textContent = `Line: mean of the seeds. Band: ${BANDS[bandKind()]}.`;
    host.querySelector(".band-choice").hidden = !hasBands;
  }

  function chooseLink() {
    const link = make("a", "Choose runs", "choose-link");
    link.href = linkTo("runs");
    return link;
  }

  function legendItem(line, one, goal) {
    const item = make("li"), name = make("span", "", "line-name"), about = fill_name(make("span"), line.name);
    name.append(about);
    about.title = [...new Set([line.name, ...line.ids.map((id) => find_run(id).run)])].join("\n");
    const drop = action("×", `Take ${line.name} out of the charts`, () => {
      select_runs(selected().filter((id) => !line.ids.includes(id)));
      rebuild();
    }, "drop");
    drop.dataset.focus = item.dataset.row = line.key;
    const { last, best } = one ? summary(one, goal) : {}, state = line.ids.map(find_run).find((run) => run.status !== "finished")?.status;
    item.append(make_swatch(line.color, line.dash), name, make("span", score(last ?? null), "number"), make("span", goal ? score(best ?? null) : "", "number"), drop);
    if (state) name.append(make("span", state, `badge ${state}`));
    item.addEventListener("pointerenter", () => raise(line.key));
    item.addEventListener("pointerleave", () => raise(""));
    return item;
  }

  // Draws one line above the others.
  function raise(key) {
    if (loud === key) return;
    loud = key;
    for (const { chart } of cards) {
      for (const one of chart.series) one.loud = one.key === key;
      chart.later();
    }
  }

  function showValues(total) {
    const columns = [{ key: "name", title: is_grouped() ? "Setting" : "Run", words: true, value: (line) => line.name, cell: (line) => [make_swatch(line.color, line.dash), line.name] }];
    for (const { metric, series } of total) {
      const goal = goalOf(metric, selected()), found = new Map(series.map((one) => [one.key, summary(one, goal)]));
      columns.push({ key: `last.${metric}`, title: `${sentence(label_text(metric))}, last`, value: (line) => found.get(line.key)?.last, cell: (line) => score(found.get(line.key)?.last ?? null) });
      if (goal) {
        columns.push({ key: `best.${metric}`, title: `${sentence(label_text(metric))}, best`, value: (line) => found.get(line.key)?.best, cell: (line) => score(found.get(line.key)?.best ?? null) });
        columns.push({ key: `at.${metric}`, title: `at ${axisName()}`, value: (line) => found.get(line.key)?.bestX, cell: (line) => digits(found.get(line.key)?.bestX ?? null) });
      }
    }
    values.show(columns, lines(), { sort: own.get("sort"), name: (line) => line.key });
  }

  // ---- the bar

  function bar() {
    const line = make("div", "", "bar"), change = (name) => (value) => {
      own.set({ [name]: value }, { push: true });
      show();
    };
    const smoothing = make("label", "Smoothing"), field = make("input"), output = make("output", own.get("smooth", "0"));
    Object.assign(field, { type: "range", min: 0, max: 0.99, step: 0.01, value: own.get("smooth", "0") });
    field.addEventListener("input", () => {
      output.textContent = field.value;
      own.set({ smooth: field.value === "0" ? null : field.value });
      show();
    });
    smoothing.append(field, output);
    const axes = AXES.map((name) => [name, label_text(name)]);
    const reset = action("Show all", "Show everything again (double click)", () => {
      own.set(Object.fromEntries(["zoom", ...[...own.values.keys()].filter((key) => key.startsWith("y."))].map((key) => [key, null])), { push: true });
      show();
    }, "reset");
    line.append(
      choice("x axis", axes, axis(), (value) => {
        own.set({ x: value === "step" ? null : value, zoom: null }, { push: true });
        show();
      }),
      toggle("log", own.get("xlog") === "1", change("xlog")), smoothing,
      toggle("Ignore outliers", own.get("outliers") === "1", change("outliers")),
      toggle("Seeds together", is_grouped(), (value) => {
        own.set({ group: value }, { push: true });
        show();
      }),
      Object.assign(choice("Band", [["interval", "95 % interval"], ["range", "lowest to highest"]], bandKind(), (kind) => change("band")(kind === "range" ? kind : null)), { className: "band-choice" }),
      reset, make("span", "", "add right"),
    );
    return line;
  }

  // ---- new points

  let refining = 0;
  function refine() {
    clearTimeout(refining);
    if (!zoomX()) return;
    refining = setTimeout(guard(async () => {
      const asked = own, range = own.get("zoom"), wanted = () => !asked.closed && asked.get("zoom") === range;
      if (wanted() && zoomX()) await refineTracks(selected(), axis(), zoomX(), wanted, show);
    }), 200);
  }

  async function poll() {
    const asked = own;
    await fetchTracks(selected(), async (changed) => {
      await untilReleased();
      if (asked.closed) return;
      if (!cards.length && charted().length) rebuild();
      else show();
      if (zoomX()) refine();
      if (Date.now() - told < 20000) return;
      told = Date.now();
      tell(`New points of ${changed.slice(0, 3).map(run_name).join(", ")}${changed.length > 3 ? " and others" : ""}`);
    });
    if (!asked.closed) report();
  }

  // What is wrong with the selected runs, in one line.
  function report() {
    const notes = [], torn = new Set(selected().filter((id) => trackOf(id).torn)), gone = own.list("runs").filter((id) => !find_run(id)).length;
    if (gone) notes.push(`${gone} of the selected ${gone === 1 ? "runs is" : "runs are"} gone`);
    for (const id of selected()) if (trackOf(id).error) notes.push(`${run_name(id)}: ${trackOf(id).error}`);
    for (const id of selected()) if (trackOf(id).damaged) notes.push(`${run_name(id)}: ${trackOf(id).damaged} damaged lines are left out`);
    // A line that is being written is incomplete for a moment; it is reported only when it stays so.
    for (const id of torn) if (tornBefore.has(id) && find_run(id).status !== "training") notes.push(`${run_name(id)}: the last line of its metrics is incomplete and is left out`);
    tornBefore = torn;
    say(notes.slice(0, 3).join(" · ") + (notes.length > 3 ? ` · and ${notes.length - 3} more` : ""), notes.length ? "error" : "");
  }

  views.curves = {
    title: "Curves",
    keys: [["← →", "values along a chart"], ["+ − 0", "zoom a chart in, out, show all"], ["Shift ← →", "move a zoomed chart"], ["drag", "zoom; wheel after a click, or with Ctrl"], ["double click", "show all"]],
    async open(element, opening) {
      own = opening;
      host = element;
      cards = [];
      loud = "";
      cursorChart = null;
      if (!listing.runs.length) {
        host.append(noRuns());
        return;
      }
      const body = make("div", "", "curves-body"), aside = make("section", "", "legend-box"), table = make("section", "", "values");
      aside.setAttribute("aria-label", "Legend");
      table.setAttribute("aria-label", "Values");
      aside.append(make("p", "", "legend-head"), make("ul"), make("p", "", "band-note quiet"), chooseLink());
      table.append(make("h2", "Values"));
      values = new SortTable(table, { caption: "Last and best values of the selected runs", onsort: (sort) => {
        own.set({ sort });
        show();
      } });
      body.append(aside, make("div", "", "charts"));
      host.append(bar(), body, table);
      rebuild();
      await new Promise((done) => own.repeat(async () => {
        try {
          await poll();
        } finally {
          done();
        }
      }, 1000));
      refine();
    },
    refresh() {
      if (!host.querySelector(".curves-body")) {
        if (listing.runs.length) openView();
        return;
      }
      const now = drawnCharts().join();
      if (now !== cards.map(({ metric }) => metric).join()) rebuild();
      else show();
      report();
    },
    close() {
      for (const { chart } of cards) chart.close();
    },
  };
}
