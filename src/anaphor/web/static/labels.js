"use strict";
// Which task is shown, and what its columns are called: the names and units of figures and tables, which the server sends.

const named_tasks = () => fromListing("tasks", () => [...new Set(listing.runs.map((run) => run.task).filter((task) => task !== null))].sort());

let printedTask = null; // of the copies of a report's views that are made for paper

// Values of different tasks are not comparable: the page shows one task at a time, that of the newest run unless the reader
// chooses another, or the address names a run or a study.
function current_task() {
  if (printedTask !== null) return printedTask;
  const tasks = named_tasks(), asked = state.get("task");
  if (tasks.includes(asked)) return asked;
  if (tasks.length < 2) return tasks[0] ?? null;
  const run = ["runs", "run", "a", "b", "open"].flatMap((key) => state.list(key)).map(find_run).find((one) => one && one.task !== null);
  const study = listing.studies.find((one) => one.id === state.get("study"));
  return run?.task ?? study?.task ?? fromListing("newest", () =>
    listing.runs.filter((one) => one.task !== null).sort((one, other) => started_order(other, one))[0].task);
}

const started_order = (one, other) => (one.started ?? 0) - (other.started ?? 0) || one.id.localeCompare(other.id);

// Runs whose settings cannot be read have no task, and are listed with those of each.
const is_of_task = (run) => run.task === null || run.task === current_task();
const task_runs = () => listing.runs.filter(is_of_task);

const label_of = (column) => listing.labels?.[current_task()]?.[column] ?? { text: column.replace(/^valid\./, "validation ").replace(/^test\./, "test ").replaceAll("_", " "), unit: "" };
const label_text = (column) => label_of(column).text;
function label_axis(column) {
  const { text, unit } = label_of(column);
  return unit ? `${text} (${unit})` : text;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The switch in the header: to the same view of another task, where nothing of this one is selected.
function showTasks() {
  const tasks = named_tasks(), host = byId("tasks"), now = current_task();
  host.hidden = tasks.length < 2;
  if (host.hidden) return;
  const counts = tasks.map((task) => [task, `${task} (${listing.runs.filter((run) => run.task === task).length})`]);
  const wanted = JSON.stringify(counts), field = host.querySelector("select");
  if (!field || host.dataset.counts !== wanted) {
    host.dataset.counts = wanted;
    host.replaceChildren(choice("Task", counts, now, (task) => {
      for (const name of Object.keys(lastValues)) delete lastValues[name];
      const values = new URLSearchParams({ task });
      if (is_grouped()) values.set("group", "1");
      goTo(state.name, values);
    }));
  } else if (field.value !== now) field.value = now;
}
