tg.section({
  id: "overview",
  title: "Overview",
  part: "overview",
  draw(element, data) {
    const kind = data.kind === data.name ? "" : data.kind;
    document.getElementById("overview-title").remove();
    tg.append(element,
      tg.el("h1", { id: "overview-title", tabindex: "-1" }, tg.name(data.name, 200)),
      tg.el("p", { class: "subtitle" }, kind ? [tg.name(kind, 80), " · "] : null, data.run),
      warningList(data.warnings),
      tg.el("dl", { class: "cards" }, data.cards.map(card)),
      facts(data),
    );

    function warningList(texts) {
      return texts.length ? tg.el("ul", { class: "warnings", "aria-label": "Warnings" },
        texts.map((text) => tg.el("li", { class: "warning" }, tg.short(text, 600)))) : null;
    }

    function card({ label, value, note, kind: origin }) {
      return tg.el("div", { class: { estimated: "card is-estimated", alarm: "card is-alarm" }[origin] ?? "card" },
        tg.el("dt", {}, label, mark(origin)),
        tg.el("dd", {}, tg.el("span", { class: "big" }, value), note ? tg.el("small", {}, tg.name(tg.tied(note), 110)) : null));
    }

    function mark(origin) {
      return { estimated: () => tg.estimated(), measured: () => tg.el("small", {}, " measured") }[origin]?.() ?? null;
    }

    function facts({ facts: rows, created, version }) {
      const made = ["Made", created.slice(0, 16).replace("T", " "), `torchgauge ${version}`];
      return tg.el("dl", { class: "facts" }, [...rows, made].map(([name, value, note]) => [
        tg.el("dt", {}, tg.name(name, 60)),
        tg.el("dd", {}, value ? tg.name(value, 400) : null, value && note ? " " : null, note ? tg.el("span", { class: value ? "faint" : null }, tg.name(note, 600)) : null),
      ]));
    }
  },
});
