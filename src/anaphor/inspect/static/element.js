// Elements of the page, and how tokens and numbers are written.

const byId = (name) => document.getElementById(name);

// Text is only set by textContent, so that it never becomes markup.
function make(kind, text = "", className = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

const signs = { " ": "␣", "\n": "⏎", "\t": "⇥" };
const shown = (token) => token.replace(/[ \n\t]/g, (letter) => signs[letter]);

function written(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0 || size >= 10) return value.toFixed(size ? 1 : 0);
  return size < 0.001 ? value.toExponential(1) : value.toPrecision(3);
}
