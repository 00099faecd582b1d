// One matrix: the tokens of a source across, those of a target down.

const across = data.source.map(shown), down = data.target.map(shown), { weights } = data;
const largest = Math.max(...weights.flat()) || 1;
const grid = new Grid(byId("matrix"), "Alignment", {});
let size = null;

function draw() {
  const what = {
    rows: down.length, columns: across.length, rowNames: down, columnNames: across, square: true, ramp: "weight", tick: String,
    step: (row, column) => Math.round(255 * Math.sqrt(weights[row][column] / largest)),
    tell: (row, column) => `${down[row]} looks at ${across[column]}\n${written(weights[row][column])}`,
  };
  size ??= grid.fitting(what);
  byId("cell").value = size;
  grid.show(what, size);
  legend(byId("legend"), "weight", "0", written(largest));
}

// A line for each token of the target: the places it looked at most, three of them unless the rest is nothing.
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
