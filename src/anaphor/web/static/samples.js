"use strict";
// Samples: what the models wrote at each evaluation, steps below each other and runs side by side.

{
  const ROWS = 8; // steps that are shown at first
  const held = new Map(); // id -> [{step, text}]
  let own, host;

  const offering = () => selected().filter((id) => (held.get(id) ?? []).length);

  async function fetchSamples() {
    let changed = false;
    for (const id of selected()) {
      const before = held.get(id) ?? [], after = before.length ? before[before.length - 1].step : null;
      if (!live && (before.length || !has(keyOf("GET", "/api/samples", { run: id })))) continue;
      // What is finished does not change: it is asked for once.
      if (live && held.has(id) && find_run(id).status !== "training" && after !== null && after >= find_run(id).step) continue;
      let answer;
      try {
        answer = await ask("/api/samples", after === null ? { run: id } : { run: id, after });
      } catch (error) {
        if (error.status !== 404) throw error;
        continue; // the run is gone; the list of runs says so
      }
      held.set(id, [...before, ...answer.samples]);
      changed ||= answer.samples.length > 0 || !before.length;
    }
    return changed;
  }

  // Words of `text` that are not in the longest common subsequence with `before`.
  function newWords(before, text) {
    const old = before.split(/(\s+)/), now = text.split(/(\s+)/);
    if (old.length * now.length > 400000) return now.map((word) => [word, false]);
    const wide = old.length + 1, best = new Uint16Array(wide * (now.length + 1));
    for (let row = now.length - 1; row >= 0; row--)
      for (let column = old.length - 1; column >= 0; column--)
        best[row * wide + column] = now[row] === old[column] ? best[(row + 1) * wide + column + 1] + 1
          : Math.max(best[(row + 1) * wide + column], best[row * wide + column + 1]);
    const marked = [];
    for (let row = 0, column = 0; row < now.length;) {
      if (column < old.length && now[row] === old[column]) {
        marked.push([now[row++], false]);
        column++;
      } else if (column < old.length && best[row * wide + column + 1] >= best[(row + 1) * wide + column]) column++;
      else marked.push([now[row++], true]);
    }
    return marked;
  }

  // The last sample of a run after the step of the row below and up to that of this row.
  function textCell(samples, step, below) {
    const at = samples.findLastIndex((sample) => sample.step <= step && sample.step > below), cell = make("td", "", "sample");
    if (at < 0) {
      cell.append(make("span", "–", "quiet"));
      cell.classList.add("none");
      return cell;
    }
    const { text } = samples[at], before = samples[at - 1]?.text;
    if (before === undefined || !own.get("changes")) cell.textContent = text;
    else if (before === text) cell.append(make("span", "as at the step before", "quiet"));
    else
      for (const [word, fresh] of newWords(before, text)) {
        const last = cell.lastChild;
        if (fresh && word.trim()) cell.append(make("mark", word));
        else if (last?.nodeType === 3) last.data += word;
        else cell.append(word);
      }
    if (samples[at].step !== step) cell.prepend(make("span", `step ${digits(samples[at].step)}`, "other-step"));
    return cell;
  }

  function showSamples() {
    const ids = offering(), box = host.querySelector(".samples-box");
    const steps = [...new Set(ids.flatMap((id) => held.get(id).map((sample) => sample.step)))].sort((one, other) => other - one);
    const part = chooseSteps(ids, steps, Number(own.get("rows", String(ROWS))) || ROWS);
    const without = selected().filter((id) => !ids.includes(id));
    host.querySelector(".missing").textContent = without.length && ids.length ? `No samples: ${without.map(run_name).join(", ")}` : "";
    if (!ids.length) {
      box.replaceChildren(!listing.runs.length ? noRuns() : make("p", selected().length ? "The selected runs have written no samples. A language model writes one at each evaluation." : "No run is selected.", "empty"));
      return;
    }
    const table = make("table"), head = make("tr"), body = make("tbody"), top = make("thead");
    table.append(make("caption", "Samples of the selected runs by step", "hidden"), top, body);
    top.append(head);
    for (const name of ["Step", ...ids]) {
      const cell = make("th", name === "Step" ? name : "", "words");
      cell.scope = "col";
      if (name !== "Step") {
        cell.append(make_swatch(run_color(name), run_dash(name)), run_name(name));
      }
      head.append(cell);
    }
    part.forEach((step, place) => {
      const row = make("tr"), label = make("th", digits(step));
      label.scope = "row";
      row.append(label, ...ids.map((id) => {
        const cell = textCell(held.get(id), step, part[place + 1] ?? -1);
        cell.dataset.label = run_name(id); // on a phone, where there are no columns
        cell.style.setProperty("--of", run_color(id));
        return cell;
      }));
      body.append(row);
    });
    box.replaceChildren(table);
    box.dataset.steps = part.length;
    const more = host.querySelector(".more");
    more.hidden = part.length === steps.length;
    more.textContent = `Show all ${steps.length} steps`;
  }

  // The last step, the first one, and some between them: of each run about as many, however long it is.
  function chooseSteps(ids, steps, limit) {
    if (steps.length <= limit) return steps;
    const weights = new Map(steps.map((step) => [step, 0]));
    for (const id of ids) for (const { step } of held.get(id)) weights.set(step, weights.get(step) + 1 / held.get(id).length);
    const chosen = [steps[0]], share = ids.length / (limit - 1);
    let sum = 0;
    for (const step of steps.slice(1, -1)) {
      sum += weights.get(step);
      if (sum < share * chosen.length) continue;
      chosen.push(step);
    }
    return [...chosen.slice(0, limit - 1), steps[steps.length - 1]];
  }

  views.samples = {
    title: "Samples",
    offered: (all) => live || all.runs.some((run) => has(keyOf("GET", "/api/samples", { run: run.id }))),
    async open(element, opening) {
      own = opening;
      host = element;
      const section = make("section"), bar = make("div", "", "bar"), box = make("div", "", "scroll samples-box");
      section.setAttribute("aria-label", "Samples");
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", "Samples by step and run");
      bar.append(
        toggle("Highlight changes since the previous step", Boolean(own.get("changes")), (on) => {
          own.set({ changes: on }, { push: true });
          showSamples();
        }),
        action("", "", () => {
          own.set({ rows: 100000 }, { push: true });
          showSamples();
        }, "more"),
        make("span", "", "missing quiet"),
      );
      section.append(bar, box);
      host.append(section);
      showSamples();
      await new Promise((done) => own.repeat(async () => {
        const asked = own;
        try {
          if (await fetchSamples() && !asked.closed) showSamples();
        } finally {
          done();
        }
      }, 2000));
    },
    refresh: () => showSamples(),
  };
}
