"use strict";
// The points of the runs, fetched by cursor: only what is new travels. Runs are held from view to view.

const FIRST_PORTION = 3, PORTION = 10; // runs in one question for whole curves
const KNOWN_PORTION = 300; // in one question for what is new: an address has a largest length
const WHOLE = 100000; // the most rows of a run in an answer
const POINTS = 500; // asked for each run; a curve with more rows is thinned by the server

// Columns that grow, NaN where a row has no value.
class Columns {
  constructor() {
    this.rows = 0;
    this.held = new Map();
  }

  append(columns) {
    const names = Object.keys(columns), more = names.length ? columns[names[0]].length : 0;
    for (const name of new Set([...this.held.keys(), ...names])) {
      let values = this.held.get(name);
      if (!values || values.length < this.rows + more) {
        const larger = new Float64Array(Math.max(64, Math.ceil(1.5 * (this.rows + more)))).fill(NaN);
        if (values) larger.set(values.subarray(0, this.rows));
        this.held.set(name, (values = larger));
      }
      const added = columns[name];
      for (let at = 0; at < more; at++) values[this.rows + at] = added?.[at] ?? NaN;
    }
    this.rows += more;
  }

  get(name) {
    return this.held.get(name)?.subarray(0, this.rows) ?? new Float64Array(0);
  }
}

class Track {
  constructor(id) {
    this.id = id;
    this.reset();
  }

  reset() {
    this.resetRows();
    this.logCursor = "";
    this.log = new Columns(); // the step log: a row every few seconds, before the first validation too
    this.logTotal = 0;
    this.logDetail = null;
    this.touch();
  }

  resetRows() {
    this.cursor = "";
    this.columns = new Columns();
    this.total = 0; // rows in the file
    this.fresh = 0; // rows that came by cursor, not thinned
    this.detail = null;
  }

  touch() {
    this.version = (this.version ?? 0) + 1;
    this.cache = new Map();
  }

  // Takes an answer for this run; true where something changed.
  take(answer) {
    const failed = this.error;
    this.error = answer.error ?? "";
    if (answer.error) return !failed;
    if (answer.restart) this.resetRows();
    const before = this.columns.rows;
    if (this.cursor) this.fresh += answer.columns.step?.length ?? 0;
    this.columns.append(answer.columns);
    this.cursor = answer.cursor;
    this.total = answer.rows;
    this.torn = Boolean(answer.torn);
    this.damaged = (answer.restart ? 0 : this.damaged ?? 0) + (answer.damaged ?? 0);
    const logged = this.takeLog(answer.log);
    if (this.columns.rows === before && !answer.restart && !logged) return false;
    this.touch();
    return true;
  }

  // True where the step log has changed.
  takeLog(answer) {
    if (!answer) return false; // a report of an earlier version
    if (answer.restart) [this.log, this.logDetail] = [new Columns(), null];
    const before = this.log.rows;
    if (this.logCursor) this.fresh += answer.columns.step?.length ?? 0;
    this.log.append(answer.columns);
    this.logCursor = answer.cursor;
    this.logTotal = answer.rows;
    return this.log.rows !== before || answer.restart;
  }

  get thinned() {
    return this.total > this.columns.rows || this.logTotal > this.log.rows;
  }

  // Rows in more detail for a part of the steps; what has come later is held anyway.
  refine(part, from, to, answer) {
    const columns = new Columns(), steps = this.columns.get("step");
    columns.append(answer.columns);
    this.detail = { part, from, to: Math.min(to, steps[steps.length - 1]), columns };
    const log = new Columns(), logged = this.log.get("step");
    log.append(answer.log?.columns ?? {});
    this.logDetail = { from, to: Math.min(to, logged[logged.length - 1]), columns: log };
    this.touch();
  }

  // Points of a curve: x ascending, rows without a value left out.
  points(xname, yname) {
    const key = `${xname} ${yname}`;
    if (!this.cache.has(key)) this.cache.set(key, this.collect(xname, yname));
    return this.cache.get(key);
  }

  // Of what is logged both ways, such as the training loss, the curve with more points.
  collect(xname, yname) {
    const isLogged = this.logTotal > this.total && this.log.get(yname).some(Number.isFinite);
    const whole = isLogged ? this.log : this.columns, detail = isLogged ? this.logDetail : this.detail;
    const xs = [], ys = [], places = [], steps = whole.get("step");
    const add = (columns, first, last) => {
      const step = columns.get("step"), y = columns.get(yname);
      const x = isLogged && columns !== this.columns && xname !== "step" ? this.along(xname, step) : columns.get(xname);
      for (let at = first; at < Math.min(last, x.length, y.length); at++)
        if (Number.isFinite(x[at]) && Number.isFinite(y[at]) && !(x[at] < xs[xs.length - 1])) {
          xs.push(x[at]);
          ys.push(y[at]);
          places.push(step[at]);
        }
    };
    if (detail) {
      add(whole, 0, lowerBound(steps, detail.from));
      add(detail.columns, 0, detail.columns.rows);
      add(whole, lowerBound(steps, detail.to + 1e-9), whole.rows);
    } else add(whole, 0, whole.rows);
    // The last line of the log is some seconds before the end.
    if (isLogged) add(this.columns, lowerBound(this.columns.get("step"), steps[steps.length - 1] + 1e-9), this.columns.rows);
    return { x: Float64Array.from(xs), y: Float64Array.from(ys), step: Float64Array.from(places) };
  }

  // Epochs, counts or seconds at steps of the log, along the validations; NaN as long as there is none.
  along(xname, steps) {
    const known = this.columns.get("step"), values = this.columns.get(xname), last = values.length - 1;
    return steps.map((step) => {
      const right = Math.min(lowerBound(known, step), last), left = right - 1;
      if (right < 0) return NaN;
      const from = left < 0 ? 0 : known[left], start = left < 0 ? 0 : values[left];
      return start + ((step - from) / (known[right] - from)) * (values[right] - start);
    });
  }
}

const tracks = new Map();

function trackOf(id) {
  if (!tracks.has(id)) tracks.set(id, new Track(id));
  return tracks.get(id);
}

// Fetches what is new of these runs, and calls `arrived` with the ids of those that changed. Runs that are new here come in
// portions, so that the first lines are drawn early.
async function fetchTracks(ids, arrived) {
  for (const id of tracks.keys()) if (!find_run(id)) tracks.delete(id);
  const wanted = ids.map(trackOf);
  // A page that stays open for long collects rows that were never thinned: ask for such a run from its beginning.
  for (const track of wanted) if (track.fresh > 4 * POINTS) track.reset();
  const known = wanted.filter((track) => track.cursor || track.logCursor), fresh = wanted.filter((track) => !track.cursor && !track.logCursor);
  const portions = [];
  while (live && known.length) portions.push(known.splice(0, KNOWN_PORTION));
  while (fresh.length) portions.push(fresh.splice(0, !live ? 1 : portions.length ? PORTION : FIRST_PORTION));
  for (const portion of portions) {
    const params = { runs: portion.map((track) => `${track.id}:${track.cursor}${track.logCursor ? `:${track.logCursor}` : ""}`).join(), points: POINTS };
    if (!has(keyOf("GET", "/api/curves", params))) continue;
    const answer = await ask("/api/curves", params);
    const changed = Object.entries(answer.runs).filter(([id, one]) => tracks.get(id)?.take(one)).map(([id]) => id);
    if (changed.length) await arrived(changed);
  }
}

// All rows of runs, for a file; those that are held where nothing is thinned.
async function fetchWhole(ids) {
  const found = new Map(ids.map((id) => [id, trackOf(id)])), thinned = ids.filter((id) => live && trackOf(id).thinned);
  while (thinned.length) {
    const answer = await ask("/api/curves", { runs: thinned.splice(0, PORTION).map((id) => `${id}:`).join(), points: WHOLE });
    for (const [id, one] of Object.entries(answer.runs)) {
      if (one.error) continue;
      found.set(id, new Track(id));
      found.get(id).take(one);
    }
  }
  return found;
}

// More detail for a part of the x axis, of those runs whose curves are thinned; in portions too, as long as `wanted()`.
async function refineTracks(ids, xname, [low, high], wanted, arrived) {
  const stepped = (track) => (track.columns.rows ? track.columns : track.log); // before the first validation
  const thinned = ids.map(trackOf).filter((track) => track.thinned && stepped(track).get(xname).length);
  if (!live || !thinned.length) return;
  const from = [], to = [];
  for (const track of thinned) {
    const x = stepped(track).get(xname), step = stepped(track).get("step");
    from.push(step[Math.max(0, lowerBound(x, low) - 1)]);
    to.push(step[Math.min(step.length - 1, lowerBound(x, high))]);
  }
  const first = Math.floor(Math.min(...from)), last = Math.ceil(Math.max(...to)), part = `${first} ${last}`;
  const missing = thinned.filter(({ detail }) => detail?.part !== part);
  for (let at = 0; at < missing.length && wanted(); at += PORTION) {
    const portion = missing.slice(at, at + PORTION);
    const answer = await ask("/api/curves", { runs: portion.map((track) => `${track.id}:`).join(), points: POINTS, from: first, to: last });
    for (const track of portion) {
      const one = answer.runs[track.id];
      if (one && !one.error) track.refine(part, first, last, one);
    }
    if (wanted()) arrived();
  }
}

// ---- smoothing and means

// Exponential moving average, without the bias towards the first value.
function smooth(values, weight) {
  const out = new Float64Array(values.length);
  let sum = 0, count = 0;
  for (let at = 0; at < values.length; at++) {
    sum = sum * weight + values[at];
    count = count * weight + 1;
    out[at] = sum / count;
  }
  return out;
}

function interpolate(steps, values, at) {
  if (!steps.length || at < steps[0] || at > steps[steps.length - 1]) return NaN;
  const right = lowerBound(steps, at);
  if (steps[right] === at) return values[right];
  return values[right - 1] + ((at - steps[right - 1]) / (steps[right] - steps[right - 1])) * (values[right] - values[right - 1]);
}

// Mean of several curves at the same steps, those of the curve with the most points; of the curves that reach there. So the
// mean is the same over steps, tokens and time: x, too, is a mean. `spans` has two bands round it, as [low, high].
function meanCurve(curves) {
  const { step } = curves.reduce((best, one) => (one.step.length > best.step.length ? one : best));
  const [x, y, least, most, low, high] = Array.from({ length: 6 }, () => new Float64Array(step.length));
  const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  step.forEach((place, at) => {
    const reaching = curves.filter((curve) => place >= curve.step[0] && place <= curve.step[curve.step.length - 1]);
    const values = reaching.map((curve) => interpolate(curve.step, curve.y, place)), half = values.length > 1 ? halfInterval(values) : 0;
    x[at] = Math.max(at ? x[at - 1] : -Infinity, average(reaching.map((curve) => interpolate(curve.step, curve.x, place))));
    y[at] = average(values);
    [least[at], most[at], low[at], high[at]] = [Math.min(...values), Math.max(...values), y[at] - half, y[at] + half];
  });
  return { x, y, count: curves.length, spans: { interval: [low, high], range: [least, most] } };
}
