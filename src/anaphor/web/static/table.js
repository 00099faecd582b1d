"use strict";
// A table whose columns sort, and whose rows can be replaced without losing the focus.

// columns: {key, title, hint?, value(row) for sorting, cell(row) -> text or element, words?: left-aligned text,
// heads?: it names the row, else the first does, short?: the title in a card}; `sort` is the
// key of a column, with - before it for descending, which comes first where a column has `first: "-"`; `onsort(sort)` is called when the reader asks for another one.
class SortTable {
  constructor(host, { caption, onsort = () => {} }) {
    this.onsort = onsort;
    this.table = make("table", "", "cards"); // on a phone each row is a card
    this.table.setAttribute("role", "table"); // a card is still a row, to those who listen
    this.caption = make("caption", caption, "hidden");
    this.head = make("thead");
    this.body = make("tbody");
    this.table.append(this.caption, this.head, this.body);
    this.box = make("div", "", "scroll");
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "region");
    this.box.setAttribute("aria-label", caption);
    this.box.append(this.table);
    this.order = make("label", "Sort by", "card-order"); // cards have no heads to click
    host.append(this.order, this.box);
  }

  // The choice of the order, for cards.
  fillOrder(columns, sort) {
    const field = make("select"), able = columns.filter((column) => column.value && column.title);
    for (const [value, text] of [["", "–"], ...able.flatMap(({ key, title }) => [[key, `${title} ↑`], [`-${key}`, `${title} ↓`]])]) {
      const option = make("option", text);
      option.value = value;
      option.defaultSelected = value === sort;
      field.append(option);
    }
    field.dataset.row = "order";
    field.addEventListener("change", () => this.onsort(field.value));
    if (this.order.querySelector("select")?.isEqualNode(field)) return;
    this.order.querySelector("select")?.remove();
    this.order.append(field);
  }

  // `name(row)` identifies a row; `mark(row, element)` may set classes and attributes of its element; `detail(row, columns)`
  // may give a row to put below it.
  show(columns, rows, { sort = "", name = (row) => row.id, mark = () => {}, detail = () => null } = {}) {
    const head = this.headRow(columns, sort);
    head.dataset.row = "head";
    patch(this.head, [head]);
    this.fillOrder(columns, sort);
    const elements = [];
    for (const row of sortRows(columns, rows, sort)) {
      const element = this.bodyRow(columns, row), below = detail(row, columns);
      element.dataset.row = name(row);
      for (const control of element.querySelectorAll("a, button, input")) control.dataset.focus ??= `${name(row)} ${control.className}`;
      mark(row, element);
      elements.push(element);
      if (below) {
        below.dataset.row = `below ${name(row)}`;
        elements.push(below);
      }
    }
    patch(this.body, elements);
    this.table.dataset.rows = rows.length;
  }

  bodyRow(columns, row) {
    const element = make("tr");
    element.setAttribute("role", "row");
    const head = columns.find((column) => column.heads) ?? columns[0];
    columns.forEach((column) => {
      const cell = make(column === head ? "th" : "td", "", column.words ? "words" : "");
      if (cell.tagName === "TH") cell.scope = "row";
      cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
      if (column.title && !column.heads) cell.dataset.label = column.short ?? column.title;
      const content = column.cell ? column.cell(row) : column.value(row);
      cell.append(...(Array.isArray(content) ? content : [content ?? "–"]));
      element.append(cell);
    });
    return element;
  }

  headRow(columns, sort) {
    const row = make("tr");
    for (const column of columns) {
      const cell = make("th", "", column.words ? "words" : "");
      cell.scope = "col";
      cell.dataset.key = column.key;
      if (column.hint) cell.title = column.hint;
      if (column.value && column.title) {
        const button = make("button", column.title), down = sort === `-${column.key}`, up = sort === column.key;
        button.type = "button";
        button.dataset.focus = `sort ${column.key}`;
        if (up || down) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
        const isFalling = column.first === "-";
        button.addEventListener("click", () => this.onsort((isFalling ? down : !up) ? column.key : `-${column.key}`));
        cell.append(button);
      } else if (column.control) cell.append(column.control);
      else cell.textContent = column.title;
      row.append(cell);
    }
    return row;
  }
}

// Replaces the children of an element. Those that are the same as before (by data-row and content) stay in place, so that a
// selection of text, the focus and a click in progress survive a refresh.
function patch(host, elements) {
  const before = new Map([...host.children].map((child) => [child.dataset.row, child]));
  const focus = host.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const wanted = elements.map((element) => {
    const old = before.get(element.dataset.row);
    return old?.isEqualNode(element) ? old : element;
  });
  const kept = new Set(wanted);
  for (const child of [...host.children]) if (!kept.has(child)) child.remove();
  let next = host.firstElementChild;
  for (const element of wanted)
    if (element === next) next = next.nextElementSibling;
    else host.insertBefore(element, next);
  if (focus && !host.contains(document.activeElement))
    [...host.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === focus)?.focus();
}

// Empty values come last in both directions.
function sortRows(columns, rows, sort) {
  const column = columns.find((one) => one.key === sort.replace(/^-/, ""));
  if (!column?.value) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  const order = (one, other) => {
    const a = column.value(one) ?? null, b = column.value(other) ?? null;
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  };
  return [...rows].sort(order);
}
