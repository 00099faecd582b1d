"use strict";
// Two runs inside on the same text: the difference of their losses by token. A token that is selected in one of the columns
// is selected in both, and both have one scale of colors.

// Elements above the two columns; none where the answers have no losses of tokens, such as predictions of classes.
function compareLooks(first, second) {
  const [one, other] = [first.answer, second.answer];
  if (one.kind !== other.kind || !one.tokens || !other.tokens || one.kind === "translation") return [];
  const isLinked = one.tokens.length === other.tokens.length && one.tokens.every((token, place) => token === other.tokens[place]);
  if (isLinked) {
    [first.partner, second.partner] = [second, first];
    for (const { shown } of [first, second]) shown.paint();
  }
  if (!one.losses || !other.losses) return [];
  if (!isLinked) return [make("p", "The two runs have different tokens: there is no difference by token. Compare has it by pieces of the text.", "quiet")];
  return [differenceSection(one, other)];
}

function differenceSection(one, other) {
  const section = make("section", "", "look-difference"), bar = make("div", "", "bar"), key = make("span", "", "legend");
  // The first token is the boundary before the text, which is not predicted.
  const text = { tokens: one.tokens.slice(1), joined: one.joined, unknown: (one.unknown ?? []).slice(1), losses: { A: one.losses.slice(1), B: other.losses.slice(1) } };
  const facts = make("p", describeDifference(text.losses), "facts"), verdict = facts.textContent;
  const shown = new ComparedText(text, { tip: (token, words) => { facts.textContent = token ? words.replaceAll("\n", " · ") : verdict; } });
  const most = full_color(shown.difference), table = make("details");
  table.append(make("summary", "Table of the tokens"), shown.table("Losses of the tokens in both runs"));
  bar.append(make("h2", "Difference of the losses"), key);
  section.append(bar, shown.strip(), shown.element, facts, table);
  differenceLegend(key, most);
  shown.paint("difference", most);
  return section;
}

function describeDifference({ A, B }) {
  const scored = A.map((_, place) => place).filter((place) => A[place] !== null && B[place] !== null);
  if (!scored.length) return "No token of this text is scored in both runs.";
  const mean = (losses) => scored.reduce((sum, place) => sum + losses[place], 0) / scored.length;
  const difference = mean(B) - mean(A), smaller = scored.filter((place) => B[place] < A[place]).length;
  return `${difference < 0 ? "B" : "A"} is better by ${Math.abs(difference).toFixed(3)} nats per token on this text (A ${mean(A).toFixed(3)}, B ${mean(B).toFixed(3)}); `
    + `B has the smaller loss on ${smaller} of ${scored.length} tokens.`;
}
