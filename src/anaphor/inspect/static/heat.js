// Maps over an image: a value for each patch, in colors from zero to the largest value of that map.

const heatWords = {
  "attention": "attention",
  "rollout": "attention rollout",
  "gradient-weighted": "gradient-weighted attention",
  "saliency": "saliency",
};
const heatAbout = {
  "attention": "Attention weights of what the classifier reads (the class token, or the mean of the patches) on each patch; all layers: the average over heads and layers.",
  "rollout": "Attention rollout: head averages with the residual connection, multiplied from the first layer to the chosen one.",
  "gradient-weighted": "Attention × gradient of the predicted class's logit, positive part; all layers: the products of all layers combined.",
  "saliency": "|Gradient of the predicted class's logit × input|, summed over the pixels of a patch.",
};

// The color map magma at 17 places: light and dark pages have the same, and it is safe for the color-blind.
const magma = ["#000004", "#0b0924", "#20114b", "#3b0f70", "#57157e", "#721f81", "#8c2981", "#a8327d", "#c43c75",
  "#de4968", "#f1605d", "#fa7f5e", "#fe9f6d", "#febf84", "#fddea0", "#fcf1b5", "#fcfdbf"];
stops.heat = [magma, magma];
mixRamps();

// An image as a canvas of its own size, in color, or in gray for what is drawn over it.
const imageCanvases = new WeakMap();
function canvasOf(image, gray) {
  const key = gray ? image.pixels : image;
  if (!imageCanvases.has(key)) imageCanvases.set(key, bytesOf(image.pixels.cells).then((raw) => unpackImage(raw, image.pixels, gray)));
  return imageCanvases.get(key);
}

function unpackImage(raw, { width, height }, gray) {
  const canvas = document.createElement("canvas"), picture = new ImageData(width, height), { data: cells } = picture;
  for (let place = 0; place < width * height; place++) {
    const from = 3 * place, to = 4 * place;
    const mean = 0.25 * (raw[from] + raw[from + 1] + raw[from + 2]); // darker: a white object is no large value
    for (let part = 0; part < 3; part++) cells[to + part] = gray ? mean : raw[from + part];
    cells[to + 3] = 255;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}

// Draw an image at its own size, larger by a whole factor where it is small. With a map it is gray, and the less covered
// the smaller the value is.
async function paintImage(canvas, image, heat, { least = 0, opacity = 0.85, box = true } = {}) {
  const base = await canvasOf(image, heat !== null), factor = Math.max(1, Math.ceil(least / Math.max(base.width, base.height)));
  const wide = canvas.width = base.width * factor, high = canvas.height = base.height * factor;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(base, 0, 0, wide, high);
  for (let row = 0, place = 0; heat && row < image.rows; row++)
    for (let column = 0; column < image.columns; column++, place++) {
      const share = Math.min(heat.share(place), 1), step = 3 * Math.round(255 * share);
      const left = Math.round(column * wide / image.columns), top = Math.round(row * high / image.rows);
      const [red, green, blue] = ramps.heat.subarray(step, step + 3);
      context.fillStyle = `rgb(${red} ${green} ${blue} / ${opacity * (0.4 + 0.6 * share)})`;
      context.fillRect(left, top, Math.round((column + 1) * wide / image.columns) - left, Math.round((row + 1) * high / image.rows) - top);
    }
  if (image.box && box) outlineBox(context, image.box, canvas);
}

// Two lines, dark and light: visible on any color.
function outlineBox(context, [x0, y0, x1, y1], { width, height }) {
  const thick = Math.max(1, width / 200);
  for (const [color, line] of [["#000000", 2.6 * thick], ["#ffffff", thick]]) {
    context.strokeStyle = color;
    context.lineWidth = line;
    context.strokeRect(x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height);
  }
}

// Names and values with bars, the largest first.
function rankBars(host, rows, most, format, image = null) {
  const sorted = [...rows].sort((one, other) => other[1] - one[1]).slice(0, 10);
  host.replaceChildren(...sorted.map(([name, value]) => {
    const item = make("li"), beam = make("span", "", "beam");
    const label = make("span", image && name === image.true ? `${name} (true)` : name, "name");
    label.title = name;
    beam.style.width = `${100 * value / most}%`;
    item.append(label, beam, make("span", format(value), "number"));
    return item;
  }));
}
