"use strict";
// Which runs are listed: words that must occur, and conditions on settings such as model=lstm, lr>0.01 or status!=finished.

const CONDITION = /^([\w.]+)(!=|>=|<=|=|>|<)(.*)$/;

function fieldOf(run, name) {
  if (Object.hasOwn(run.settings ?? {}, name)) return run.settings[name];
  if (["run", "task", "status", "step", "best", "last", "parameters", "throughput", "seed", "epoch"].includes(name)) return run[name];
  const ending = Object.keys(run.settings ?? {}).find((key) => key.endsWith(`.${name}`));
  return ending === undefined ? undefined : run.settings[ending];
}

function meets(value, sign, wanted) {
  if (sign === "=" || sign === "!=") {
    const same = String(value).toLowerCase() === wanted.toLowerCase() || (wanted !== "" && typeof value === "number" && value === Number(wanted));
    return (sign === "=") === same;
  }
  const number = value === null || value === "" || typeof value === "boolean" ? NaN : Number(value), limit = Number(wanted);
  if (wanted === "" || Number.isNaN(number) || Number.isNaN(limit)) return false;
  return { ">": number > limit, "<": number < limit, ">=": number >= limit, "<=": number <= limit }[sign];
}

// The runs that a filter keeps, and a note for each of its names that no run has.
function filterRuns(runs, text) {
  const words = text.trim().split(/\s+/).filter(Boolean), notes = [];
  const conditions = words.map((word) => CONDITION.exec(word)).filter(Boolean);
  for (const [, name] of conditions)
    if (!runs.some((run) => fieldOf(run, name) !== undefined)) notes.push(`no run has a setting named ${name}`);
  const plain = words.filter((word) => !CONDITION.test(word)).map((word) => word.toLowerCase());
  const kept = runs.filter((run) => {
    const about = [run.run, run_name(run.id), run.task, run.status, run.settings?.model ?? ""].join(" ").toLowerCase();
    return plain.every((word) => about.includes(word)) && conditions.every(([, name, sign, wanted]) => {
      const value = fieldOf(run, name);
      return value !== undefined && meets(value, sign, wanted);
    });
  });
  return { kept, notes };
}
