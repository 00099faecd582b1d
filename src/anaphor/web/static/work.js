"use strict";
// Work of the server with its progress, and the fields of views that ask for it.

function field(text, control, className = "") {
  const label = make("label", "", className);
  label.append(make("span", text), control);
  return label;
}

// A select; options are [value, text] or [group, [[value, text], …]].
function picker(options, value, act, name = "") {
  const select = make("select");
  if (name) select.name = name;
  fillPicker(select, options, value);
  select.addEventListener("change", guard(() => act(select.value)));
  return select;
}

function fillPicker(select, options, value) {
  // An open list must not close because the same runs were listed again.
  const content = JSON.stringify(options);
  if (select.filled === content) {
    select.value = value;
    return;
  }
  select.filled = content;
  const option = ([key, text]) => {
    const element = make("option", text);
    element.value = key;
    return element;
  };
  select.replaceChildren(...options.map(([key, content]) => {
    if (!Array.isArray(content)) return option([key, content]);
    const group = make("optgroup");
    group.label = key;
    group.append(...content.map(option));
    return group;
  }));
  select.value = value;
}

// The number of an example of validation, with steps to its neighbors; `stride()` is the size of a step.
class Example {
  constructor(value, act, stride = () => 1) {
    this.element = make("span", "", "stepper");
    this.number = Object.assign(make("input"), { type: "number", min: 0, step: 1, name: "example", value });
    this.number.addEventListener("change", guard(() => act(this.number.value)));
    const step = (by, text, name) => action(text, name, () => act(String(Math.max(0, Number(this.number.value || 0) + by * stride()))), "plain");
    this.element.append(step(-1, "‹", "Previous example"), field("Example of validation", this.number), step(1, "›", "Next example"));
  }
}

// A switch between a few values: one pressed button each.
class Switch {
  constructor(name, options, value, act) {
    this.element = make("span", "", "switch");
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", name);
    this.act = act;
    this.fill(options, value);
  }

  fill(options, value) {
    this.element.replaceChildren(...options.map(([key, text]) => {
      const button = action(text, "", () => { this.mark(key); return this.act(key); });
      button.dataset.value = key;
      return button;
    }));
    this.mark(value);
  }

  mark(value) {
    for (const button of this.element.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
}

// Runs that offer one of the verbs, as options of a select, grouped by task.
function runOptions(verbs, keep = () => true) {
  const tasks = new Map();
  for (const run of live ? task_runs() : listing.runs) {
    if (!run.offers?.some((verb) => verbs.includes(verb)) || !keep(run)) continue;
    if (!tasks.has(run.task)) tasks.set(run.task, []);
    tasks.get(run.task).push([run.id, run_name(run.id)]);
  }
  return tasks.size > 1 ? [...tasks] : [...tasks.values()].flat();
}

const isOnSameData = (run, other) => other.task === run.task && other.settings?.data === run.settings?.data;

// The bodies of the embedded answers to a question; a report can show nothing else.
function embeddedBodies(path) {
  const start = `POST ${path} `;
  return Object.keys(data.answers ?? {}).filter((key) => key.startsWith(start)).map((key) => JSON.parse(key.slice(start.length)));
}

// The server knows runs by their ids only; people know them by their names.
const nameRuns = (line) => line.replace(/\b[0-9a-f]{12}\b/g, (id) => find_run(id) ? run_name(id) : id);

// One piece of work at a time: progress, a button that cancels it, and the line of an error.
class Work {
  constructor(what) {
    this.what = what;
    this.element = make("div", "", "work");
    this.line = make("p", "", "work-line");
    this.line.setAttribute("role", "status");
    this.bar = make("progress");
    this.bar.setAttribute("aria-label", what);
    this.stop = action("Cancel", "", () => this.cancel());
    this.element.append(this.bar, this.line, this.stop);
    this.rest();
  }

  rest(text = "", failed = false) {
    this.bar.hidden = this.stop.hidden = true;
    this.line.textContent = text;
    this.element.hidden = !text;
    this.element.classList.toggle("failed", failed);
    delete this.element.dataset.busy;
  }

  cancel() {
    if (!this.control) return;
    this.control.abort();
    this.control = null;
    this.rest("Cancelled.");
  }

  // The answer, or null where it failed or another question was asked meanwhile.
  async send(path, body) {
    this.control?.abort();
    const control = this.control = new AbortController();
    this.rest();
    // Short work needs no progress bar: it would only flicker.
    const patience = setTimeout(() => this.show(0, 0, ""), 250);
    try {
      const answer = await send(path, body, { signal: control.signal, progress: (...now) => { if (this.control === control) this.show(...now); } });
      if (this.control !== control) return null;
      this.rest();
      return answer;
    } catch (error) {
      if (this.control === control && error.name !== "AbortError") this.rest(nameRuns(error.message), true);
      return null;
    } finally {
      clearTimeout(patience);
      if (this.control === control) this.control = null;
    }
  }

  show(done, total, what) {
    this.element.hidden = this.bar.hidden = this.stop.hidden = false;
    this.element.classList.remove("failed");
    this.element.dataset.busy = "yes";
    if (total) {
      this.bar.max = total;
      this.bar.value = done;
    } else {
      this.bar.removeAttribute("value");
    }
    const share = total ? ` · ${Math.floor(100 * done / total)} %` : "";
    this.line.textContent = `${this.what}${what && what !== "running" ? `: ${what}` : ""}${share}`;
  }
}
