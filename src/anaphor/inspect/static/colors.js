// The color maps: each is a table of 256, recomputed when the reader switches between light and dark.

const dark = matchMedia("(prefers-color-scheme: dark)");
const stops = {
  weight: [["#eff4f9", "#cfe3f3", "#7fb8de", "#2f7fb9", "#08306b"], ["#20272f", "#1c4464", "#2e80b3", "#7cc6f0", "#f0faff"]],
  loss: [["#ffffff", "#fde3bf", "#f9b16e", "#e26a2c", "#9c2a06"], ["#191d24", "#4a2c17", "#91501d", "#e08a3c", "#ffd9a8"]],
  both: [["#0b5d99", "#7fb8de", "#f6f6f4", "#f2a671", "#b54708"], ["#6cc1f5", "#2b6a94", "#1d222a", "#96511e", "#ff9d4d"]],
};
const ramps = {};

function mixRamps() {
  for (const [name, kinds] of Object.entries(stops)) {
    const ends = kinds[dark.matches ? 1 : 0].map((code) => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)));
    const table = new Uint8ClampedArray(256 * 3);
    for (let step = 0; step < 256; step++) {
      const place = (step / 255) * (ends.length - 1), low = Math.min(Math.floor(place), ends.length - 2);
      for (let part = 0; part < 3; part++)
        table[3 * step + part] = ends[low][part] + (place - low) * (ends[low + 1][part] - ends[low][part]);
    }
    ramps[name] = table;
  }
}
mixRamps();

function painted(element, ramp, share) {
  const step = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1)), [red, green, blue] = ramps[ramp].slice(step, step + 3);
  element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
  // Luminance, as contrast is defined: the color of text with the larger contrast, which is always 4.5 or more.
  const light = 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
  element.style.color = light > 0.179 ? "#000000" : "#ffffff";
}

function unpainted(element) {
  element.style.backgroundColor = element.style.color = "";
}

function legend(host, ramp, low, high) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const image = new ImageData(256, 1);
  for (let step = 0; step < 256; step++) {
    image.data.set(ramps[ramp].subarray(3 * step, 3 * step + 3), 4 * step);
    image.data[4 * step + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  host.replaceChildren(make("span", low), canvas, make("span", high));
}

// Set the size of a canvas in CSS pixels, at the resolution of the screen, and return its context.
function sized(canvas, wide, high) {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * fine);
  canvas.height = Math.round(high * fine);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const context = canvas.getContext("2d");
  context.scale(fine, fine);
  return context;
}
