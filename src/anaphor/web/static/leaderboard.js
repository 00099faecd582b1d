"use strict";
// Leaderboard: the runs of students, as `anaphor leaderboard` has scored them again; with ties.

{
  const WORDS = ["Name", "Tied with", "Note"];
  const number = (value) => (typeof value === "number" ? Number(value.toPrecision(4)).toString() : "–");
  const interval = (entry) => (typeof entry.low === "number" ? `${number(entry.low)} to ${number(entry.high)}` : "–");

  function boardOf(board) {
    const box = make("section", "", "board"), compared = board.same_items ? "compared item by item on the same text" : "each on a text of its own: compared by their intervals";
    box.append(make("h2", board.title), make("p", `${board.metric}, ${compared}`, "quiet"));
    const table = make("table"), head = make("tr"), top = make("thead"), body = make("tbody"), scroll = make("div", "", "scroll");
    table.append(make("caption", `${board.title}: ${board.metric}`, "hidden"));
    head.append(...["Rank", "Name", board.metric, "95 % interval", "Tied with", "Note"].map((title) => Object.assign(make("th", title, WORDS.includes(title) ? "words" : ""), { scope: "col" })));
    for (const entry of board.entries) {
      const row = make("tr");
      row.append(make("td", number(entry.rank)), make("th", entry.name, "words"), make("td", number(entry.value)), make("td", interval(entry)), make("td", entry.tied.join(", ") || "–", "words"), make("td", entry.comment, "words"));
      row.querySelector("th").scope = "row";
      body.append(row);
    }
    top.append(head);
    table.append(top, body);
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", board.title);
    scroll.append(table);
    box.append(scroll);
    return box;
  }

  views.leaderboard = {
    title: "Leaderboard",
    offered: (all) => live && all.leaderboard === true,
    async open(element, state) {
      await new Promise((done) => state.repeat(async () => {
        try {
          const { boards } = await ask("/api/leaderboard");
          element.replaceChildren(...boards.map(boardOf));
        } finally {
          done();
        }
      }, 10_000));
    },
  };
}
