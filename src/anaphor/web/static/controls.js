"use strict";
// Numbers as text, and the fields of a toolbar.

function digits(value, places = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(Math.max(places - 2, 1)).replace("e+", "e");
  return value.toPrecision(places);
}

// A metric's value, always with the same number of digits.
const score = (value, places = 4) => (typeof value === "number" && Number.isInteger(value) && Math.abs(value) < 1e4 && value !== 0 ? value.toPrecision(places) : digits(value, places));

// Half of the 95 % interval of a mean over seeds (Student's t), which is what ± means on this page.
const T_QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];
function halfInterval(values) {
  const count = values.length, mean = values.reduce((sum, value) => sum + value, 0) / count;
  const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1));
  return ((T_QUANTILES[count - 2] ?? 1.96 + 2.4 / (count - 1)) * deviation) / Math.sqrt(count);
}

const isMax = (goal) => goal === "max" || goal === "maximize";

function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

// ---- fields

// options: [[value, text], …]
function choice(label, options, value, onchange) {
  const host = make("label", label), field = make("select");
  for (const [one, text] of options) {
    const option = make("option", text);
    option.value = one;
    field.append(option);
  }
  field.value = value;
  field.addEventListener("change", () => onchange(field.value));
  host.append(field);
  return host;
}

function toggle(label, on, onchange) {
  const host = make("label"), field = make("input");
  field.type = "checkbox";
  field.checked = on;
  field.addEventListener("change", () => onchange(field.checked));
  host.append(field, make("span", label));
  return host;
}

// A command to type, and a button that copies it.
function copyable(command) {
  const code = make("code", command), copy = action("Copy", `Copy ${command}`, async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "Copied";
      tell("Copied");
    } catch { // no permission, or a page from another computer
      getSelection().selectAllChildren(code);
    }
  });
  return [code, copy];
}

// What is not there yet, and the command that makes it.
function emptyState(text, command, className = "empty") {
  const box = make("div", "", className), line = make("div", "", "command");
  line.append(...copyable(command));
  box.append(make("p", text), line);
  return box;
}

// In a folder without any run.
const noRuns = (className) => emptyState("There are no runs here yet. A run appears as soon as anaphor train has written its folder.",
  `anaphor train lm --data grammar --model lstm --out ${inFolder("lstm")}`, className);

function action(text, title, onclick, className = "") {
  const button = make("button", text, className);
  button.type = "button";
  if (title) {
    button.title = title;
    button.setAttribute("aria-label", title);
  }
  button.addEventListener("click", guard(onclick));
  return button;
}
