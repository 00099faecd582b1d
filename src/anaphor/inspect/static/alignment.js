// One matrix: source tokens as columns, target tokens as rows.

const across = data.source.map(shown), down = data.target.map(shown), { weights } = data;
const largest = Math.max(...weights.flat()) || 1;
const grid = new Grid(byId("matrix"), "Alignment", {});
let size = null;

function draw() {
  const what = {
    rows: down.length, columns: across.length, rowNames: down, columnNames: across, square: true, ramp: "weight", tick: String,
    step: (row, column) => Math.round(255 * Math.sqrt(weights[row][column] / largest)),
    describe: (row, column) => `${down[row]} attends to ${across[column]}\n${written(weights[row][column])}`,
  };
  size ??= grid.fitting(what);
  byId("cell").value = size;
  grid.show(what, size);
  legend(byId("legend"), "weight", "0", written(largest));
}

// One line per target token: its up to three largest weights.
function tell() {
  byId("words").replaceChildren(...weights.map((row, place) => {
    const most = row.map((weight, at) => [weight, at]).sort((one, other) => other[0] - one[0]).slice(0, 3)
      .filter(([weight], rank) => !rank || weight >= 0.005);
    return make("li", `${down[place]}: ${most.map(([weight, at]) => `${across[at]} ${weight.toFixed(2)}`).join(", ")}`);
  }));
}

byId("facts").textContent = `${across.join(" ")} → ${down.join(" ")}`;
byId("cell").addEventListener("input", (event) => { size = Number(event.target.value); draw(); });
dark.addEventListener("change", () => { mixRamps(); draw(); });
draw();
tell();
document.documentElement.dataset.ready = "yes";
