// Sections that every format has, made of blocks: tables, facts, texts, code, charts.
tg.section({
  id: "more", title: "Details", part: "more",
  draw(element, sections) {
    const draw = {
      table: ({ headings, rows, notes }) => [
        tg.el("table", {},
          tg.el("thead", {}, tg.el("tr", {}, headings.map((one) => tg.el("th", { class: one.is_figure ? "number" : "" }, one.title)))),
          tg.el("tbody", {}, rows.map((row) => tg.el("tr", {}, row.map((text, place) => tg.el("td", { class: headings[place].is_figure ? "number" : "" }, text)))))),
        ...notes.map((note) => tg.note(note)),
      ],
      facts: ({ rows }) => [tg.facts(rows)],
      text: ({ text, is_warning: isWarning }) => [isWarning ? tg.warn(text) : tg.el("p", {}, text)],
      listing: ({ items, is_numbered: isNumbered }) => [tg.el(isNumbered ? "ol" : "ul", {}, items.map(({ text, facts, code }) =>
        tg.el("li", {}, text, facts.map(([name, value]) => tg.note(name ? `${name}: ${value}` : value)), code ? tg.el("pre", {}, code) : null)))],
      code: ({ text }) => [tg.el("pre", {}, text)],
      chart: ({ bars }) => {
        const top = Math.max(...bars.map(([, value]) => value), 0);
        return [tg.el("table", {}, tg.el("tbody", {}, bars.map(([label, value, text]) => tg.el("tr", {},
          tg.el("td", {}, label), tg.el("td", {}, tg.el("meter", { min: 0, max: top || 1, value })), tg.el("td", { class: "number" }, text)))))];
      },
    };
    for (const { title, blocks } of sections) {
      element.append(tg.el("h3", {}, title), ...blocks.flatMap((block) => draw[block.kind](block)));
    }
  },
});
