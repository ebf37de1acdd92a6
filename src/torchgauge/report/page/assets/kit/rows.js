// Text in rows: facts, plain tables, blocks of a section; and one colour for each kind of op, the same everywhere.
(() => {
  const CATEGORY_COLORS = {
    matmul: 0, convolution: 1, attention: 2, normalization: 3, activation: 4, elementwise: 5, softmax: 6, pooling: 7,
    embedding: 8, recurrent: 2, reduction: 6, loss: 8, indexing: 8, resize: 7, fft: 2, sort: 6,
  };
  const SHOWN = 10;
  const LONGEST = 600;

  tg.categoryColor = (name) => `var(--c${CATEGORY_COLORS[name] ?? 9})`;
  tg.isKnown = (value) => value !== null && value !== undefined;

  // rows: [name, value, note]; a row that is null, or without value and note, is left out. A value may be an element.
  tg.facts = (rows) => {
    const kept = rows.filter((row) => row && (tg.isKnown(row[1]) && row[1] !== "" || row[2]));
    return tg.el("dl", { class: "facts" }, kept.map(([name, value, note]) => [
      tg.el("dt", {}, name),
      tg.el("dd", {}, tg.isKnown(value) && value !== "" ? tg.el("b", { class: isEstimate(value) ? "fact about" : "fact" }, shown(value)) : null,
        tg.isKnown(value) && value !== "" && note ? " " : null, note ? tg.el("span", { class: "faint" }, shown(note)) : null),
    ]));
  };

  const isEstimate = (value) => typeof value === "string" && value.startsWith("≈");
  const shown = (content) => (content instanceof Node || Array.isArray(content) ? content : tg.name(String(content), LONGEST));

  // columns: [{label, isText, cell(row)}]. Beyond the first rows a button shows the rest; all of them are printed.
  tg.rowTable = (label, columns, rows, { shown = SHOWN, onClick } = {}) => {
    const head = tg.el("tr", {}, columns.map((column) => tg.el("th", { class: column.isText ? null : "number", scope: "col" }, column.label)));
    const body = rows.map((row, place) => tableRow(columns, row, place >= shown, onClick));
    const box = tg.el("div", { class: "scroll" }, tg.el("table", { "aria-label": label }, tg.el("thead", {}, head), tg.el("tbody", {}, body)));
    if (rows.length <= shown) return box;
    const more = tg.button(`Show all ${tg.format.exact(rows.length)}`, () => {
      for (const row of body) row.classList.remove("is-folded");
      more.remove();
    }, { class: "more" });
    return tg.el("div", {}, box, more);
  };

  function tableRow(columns, row, isFolded, onClick) {
    const act = () => onClick(row);
    const classes = [isFolded && "is-folded", onClick && "clickable"].filter(Boolean).join(" ");
    return tg.el("tr", {
      class: classes || null, tabindex: onClick ? "0" : null,
      on: onClick ? { click: act, keydown: (event) => { if (event.key === "Enter") act(); } } : null,
    }, columns.map((column) => tg.el("td", { class: column.isText ? null : "number" }, column.cell(row))));
  }

  // Texts as list items; nothing for none.
  tg.list = (texts, className = "plain") =>
    (texts.length ? tg.el("ul", { class: className }, texts.map((text) => tg.el("li", {}, typeof text === "string" ? tg.short(text, LONGEST) : text))) : null);

  // The blocks of a section that every format has (`report/model.py`), under its title.
  tg.drawBlocks = (element, { title, blocks }) => {
    if (title) element.append(tg.heading(title));
    for (const block of blocks) tg.append(element, ...DRAW[block.kind](block));
  };

  const DRAW = {
    table: ({ headings, rows, notes }) => [
      headings.length ? tg.rowTable(null, headings.map((heading, place) => ({
        label: heading.title, isText: !heading.is_figure, cell: (row) => (heading.is_figure ? row[place] : tg.name(row[place], 110)),
      })), rows, { shown: rows.length }) : null,
      ...notes.map((note) => tg.note(note)),
    ],
    facts: ({ rows }) => [tg.facts(rows)],
    text: ({ text, is_warning: isWarning, is_remark: isRemark }) => [(isWarning ? tg.warn : isRemark ? tg.note : (shortened) => tg.el("p", {}, shortened))(tg.short(text, LONGEST))],
    listing: ({ items, is_numbered: isNumbered, is_warning: isWarning, is_remark: isRemark }) => (isWarning ? items.map(({ text }) => tg.warn(tg.short(text, LONGEST)))
      : [tg.el(isNumbered ? "ol" : "ul", { class: isNumbered ? null : isRemark ? "plain faint" : "plain" }, items.map(({ text, facts, code }) =>
        tg.el("li", {}, tg.short(text, LONGEST), facts.map(([name, value]) => tg.note(name ? `${name}: ${value}` : value)), code ? tg.el("pre", {}, code) : null)))]),
    code: ({ text }) => [tg.el("pre", {}, text)],
    chart: ({ bars }) => {
      const top = Math.max(...bars.map(([, value]) => value), 0);
      return [tg.el("div", { class: "bars drawn" }, bars.map(([label, value, text]) => tg.el("div", { class: "bar" },
        tg.el("span", { class: "bar-label", title: label }, label),
        tg.el("span", { class: "track" }, tg.el("span", { class: "fill", style: { width: `${(value / (top || 1)) * 100}%`, "--paint": "var(--accent)" } })),
        tg.el("span", { class: "number" }, text))))];
    },
  };

  tg.heading = (text, ...more) => tg.el("h3", {}, text, more);
  tg.place = (path) => (path === "" ? tg.el("span", { class: "faint" }, "the model itself") : tg.name(path, 90));
  tg.plural = (count, one, many = `${one}s`) => `${tg.format.exact(count)} ${count === 1 ? one : many}`;

  // Values of a course with as many points as a chart has pixels: of neighbours the largest stays, so a peak is kept.
  tg.thinned = (xs, ys, most = 1200) => {
    if (xs.length <= most) return xs.map((x, place) => [x, ys[place]]);
    const points = [];
    for (let part = 0; part < most; part += 1) {
      let best = Math.floor((part * xs.length) / most);
      const stop = Math.floor(((part + 1) * xs.length) / most);
      for (let place = best + 1; place < stop; place += 1) if (ys[place] > ys[best]) best = place;
      points.push([xs[best], ys[best]]);
    }
    return points;
  };
})();
