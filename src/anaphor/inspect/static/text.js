// A text with colored tokens, which can be selected with the pointer or the arrow keys.

class Text {
  // boundary: whether the first token is the boundary before the text.
  constructor(host, run, { moved = () => {}, picked = null, boundary = true }) {
    host.replaceChildren();
    host.classList.toggle("words", !run.joined);
    this.tokens = run.tokens.map((token, place) => {
      const outside = boundary && !place, span = make("span", outside ? shown(token) : token, "token");
      if (outside) span.classList.add("outside");
      if (run.unknown[place]) span.classList.add("unknown");
      // Inside the text the same token ends a line.
      if (!outside && (token === (boundary ? run.tokens[0] : "<eos>") || token === "\n")) span.textContent = "⏎\n";
      if (picked) {
        span.setAttribute("role", "option");
        span.setAttribute("aria-selected", "false");
        span.tabIndex = -1;
      }
      host.append(span);
      // Lines break between words only, and a text that is copied has its spaces.
      if (!run.joined && !span.textContent.endsWith("\n")) host.append(" ");
      return span;
    });
    const placeOf = (event) => this.tokens.indexOf(event.target);
    host.onpointerover = (event) => { if (placeOf(event) >= 0) moved(placeOf(event)); };
    host.onpointerleave = () => moved(null);
    if (!picked) return;
    host.onclick = (event) => { if (placeOf(event) >= 0) picked(placeOf(event)); };
    host.onkeydown = (event) => {
      const last = this.tokens.length - 1, at = this.chosen ?? 0;
      const goal = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: last }[event.key];
      if (goal === undefined) return;
      event.preventDefault();
      picked(Math.max(0, Math.min(last, goal)));
      this.tokens[this.chosen].focus();
    };
  }

  choose(place) {
    const before = this.tokens[this.chosen];
    if (before) {
      before.setAttribute("aria-selected", "false");
      before.tabIndex = -1;
    }
    this.chosen = place;
    this.tokens[place].setAttribute("aria-selected", "true");
    this.tokens[place].tabIndex = 0;
    const host = this.tokens[place].parentElement, top = this.tokens[place].offsetTop - host.offsetTop;
    if (top < host.scrollTop || top + 24 > host.scrollTop + host.clientHeight) host.scrollTop = top - host.clientHeight / 2;
  }

  // share(place) -> 0…1, or null for a token without color
  paint(ramp, share) {
    this.tokens.forEach((token, place) => {
      const value = share(place);
      if (value === null) unpainted(token);
      else painted(token, ramp, value);
    });
  }
}
