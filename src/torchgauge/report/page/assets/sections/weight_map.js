// The heat map: a cell for each tensor, a column for each layer, a row for each place in the repeated block.
(() => {
  const LABEL = 190;
  const ROW = 18;
  const [NARROWEST, WIDEST] = [3, 34];
  const GREATEST_RATIO = 2; // in powers of two: beyond it the shade is full

  tg.drawWeightMap = (element, state) => {
    const { figures, data } = state;
    const first = figures.find(({ key }) => key === "std") ?? figures[0];
    const view = { figure: first, isRatio: Boolean(first.isRatio) };
    const legend = tg.el("p", { class: "note shades" });
    const compare = tg.check("compare with the row's median", view.isRatio, (checked) => { view.isRatio = checked; repaint(); });
    const box = compare.querySelector("input");
    const choose = tg.choice("Figure", figures.map(({ key, label }) => ({ value: key, label })), first.key, (key) => {
      view.figure = figures.find((figure) => figure.key === key);
      view.isRatio = box.checked = Boolean(view.figure.isRatio);
      repaint();
    });
    element.append(tg.heading("By layer"), tg.el("div", { class: "controls" }, choose, compare), legend);
    const grids = data.map.map((grid) => drawGrid(element, grid, state, view));
    const repaint = () => { for (const grid of grids) paint(grid, state, view); tellShades(legend, state, view); };
    state.listeners.push((row) => { for (const grid of grids) for (const cell of grid.cells) cell.element.classList.toggle("is-chosen", cell.rows.includes(row)); });
    repaint();
  };

  function drawGrid(element, grid, state, view) {
    const isStrip = grid.stem === null;
    const room = Math.max(element.clientWidth || 900, 300) - (isStrip ? 0 : LABEL) - 4;
    const width = Math.max(NARROWEST, Math.min(isStrip ? 22 : WIDEST, Math.floor(room / grid.columns.length)));
    const across = isStrip ? Math.max(1, Math.floor(room / width)) : grid.columns.length;
    const left = isStrip ? 0 : LABEL;
    const lines = isStrip ? Math.ceil(grid.columns.length / across) : grid.rows.length;
    const size = { width: left + across * width + 2, height: lines * ROW + (isStrip ? 4 : 22) };
    const title = isStrip ? (state.data.map.length > 1 ? "Not in repeated blocks" : "Every tensor") : `Blocks ${grid.stem}`;
    const root = tg.svg("svg", { class: "heat", width: size.width, height: size.height, role: "grid", "aria-label": `${title}: one cell per tensor` });
    const cells = [];
    grid.rows.forEach((row, line) => {
      if (!isStrip) root.append(label(row.label, line));
      row.cells.forEach((rows, column) => {
        if (!rows.length) return;
        const [x, y] = isStrip ? [(column % across) * width, Math.floor(column / across) * ROW] : [left + column * width, line * ROW];
        const rect = tg.svg("rect", { x, y, width: Math.max(width - 1, 1), height: ROW - 1, tabindex: cells.length ? "-1" : "0", role: "gridcell" });
        cells.push({ element: rect, rows, line: row.label, x, y });
        root.append(rect);
      });
    });
    if (!isStrip) root.append(...axis(grid.columns, left, width, lines * ROW + 14));
    listen(root, cells, state, view);
    element.append(tg.el("h4", {}, tg.name(title, 90)), tg.el("div", { class: "scroll" }, root));
    return { cells, isStrip };
  }

  function label(text, line) {
    return tg.svg("text", { x: LABEL - 8, y: line * ROW + 13, "text-anchor": "end" }, tg.short(text, 24), tg.svg("title", {}, tg.short(text, 300)));
  }

  function axis(columns, left, width, y) {
    const stride = Math.max(1, Math.ceil(34 / width));
    return columns.map((column, place) => (place % stride ? null : tg.svg("text", { x: left + (place + 0.5) * width, y, "text-anchor": "middle" }, column))).filter(Boolean);
  }

  function listen(root, cells, state, view) {
    const of = new Map(cells.map((cell) => [cell.element, cell]));
    const pick = (cell) => state.choose(farthest(cell, state, view), "map");
    for (const cell of cells) tg.chart.tip.attach(cell.element, () => tipOf(cell, state, view));
    root.addEventListener("click", (event) => { const cell = of.get(event.target); if (cell) { focus(cell); pick(cell); } });
    root.addEventListener("keydown", (event) => {
      const cell = of.get(event.target);
      const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      if (cell && (event.key === "Enter" || event.key === " ")) pick(cell);
      else if (!cell || !move || !focus(nearest(cells, cell, move))) return;
      event.preventDefault();
    });
    function focus(cell) {
      if (!cell) return false;
      for (const other of cells) other.element.setAttribute("tabindex", other === cell ? "0" : "-1");
      cell.element.focus();
      return true;
    }
  }

  function nearest(cells, from, [dx, dy]) {
    const ahead = cells.filter((cell) => (dx ? cell.y === from.y && (cell.x - from.x) * dx > 0 : (cell.y - from.y) * dy > 0));
    const distance = (cell) => (dx ? Math.abs(cell.x - from.x) : Math.abs(cell.y - from.y) * 1e4 + Math.abs(cell.x - from.x));
    return ahead.reduce((best, cell) => (!best || distance(cell) < distance(best) ? cell : best), null);
  }

  // Of several tensors in one cell the one that differs most from the row's median, so that outliers stay visible.
  function farthest(cell, { store }, { figure }) {
    const distance = (row) => { const value = store.get(row, figure.key); return tg.isKnown(value) ? Math.abs(value - (cell.median ?? 0)) : Infinity; };
    return cell.rows.reduce((best, row) => (distance(row) > distance(best) ? row : best), cell.rows[0]);
  }

  function tipOf(cell, state, view) {
    const row = farthest(cell, state, view);
    const { store } = state;
    return [
      store.get(row, "name"), [view.figure.label, tg.format[view.figure.form](store.get(row, view.figure.key))],
      tg.isKnown(cell.median) ? ["the row's median", tg.format[view.figure.form](cell.median)] : null, ["shape", store.get(row, "shape")],
      cell.rows.length > 1 ? ["tensors in this cell", tg.format.exact(cell.rows.length)] : null,
    ];
  }

  function paint(grid, state, view) {
    const { store } = state;
    const medians = new Map();
    for (const cell of grid.cells) {
      if (!medians.has(cell.line)) medians.set(cell.line, median(grid.cells.filter(({ line }) => line === cell.line).flatMap(({ rows }) => rows.map((row) => store.get(row, view.figure.key)))));
      cell.median = medians.get(cell.line);
    }
    const [least, most] = extent(state, view);
    for (const cell of grid.cells) {
      const value = store.get(farthest(cell, state, view), view.figure.key);
      cell.element.style.fill = !tg.isKnown(value) ? "none" : view.isRatio ? ratioShade(value, cell.median) : amountShade(value, least, most);
      cell.element.classList.toggle("is-unknown", !tg.isKnown(value));
    }
  }

  const median = (values) => { const known = values.filter(tg.isKnown).sort((a, b) => a - b); return known.length ? known[Math.floor(known.length / 2)] : null; };

  function extent({ store }, { figure }) {
    const values = store.column(figure.key).filter((value, row) => tg.isKnown(value) && store.get(row, "role") === "parameter").sort((a, b) => a - b);
    // The outermost hundredth would leave all others in one shade.
    return values.length ? [values[Math.floor(values.length * 0.01)], values[Math.min(Math.ceil(values.length * 0.99), values.length - 1)]] : [0, 1];
  }

  function ratioShade(value, middle) {
    if (!middle || value / middle <= 0) return value === middle ? "var(--panel)" : "var(--c1)";
    const power = Math.max(-GREATEST_RATIO, Math.min(Math.log2(value / middle), GREATEST_RATIO)) / GREATEST_RATIO;
    return `color-mix(in oklab, var(${power < 0 ? "--c0" : "--c1"}) ${(12 + 88 * Math.abs(power)).toFixed(0)}%, var(--panel))`;
  }

  const amountShade = (value, least, most) =>
    `color-mix(in oklab, var(--accent) ${(6 + 94 * Math.max(0, Math.min((value - least) / (most - least || 1), 1))).toFixed(0)}%, var(--panel))`;

  function tellShades(legend, state, view) {
    const form = tg.format[view.figure.form];
    const steps = view.isRatio ? [0.25, 0.5, 1, 2, 4].map((ratio) => [ratioShade(ratio, 1), ratio === 1 ? "the row's median" : `×${ratio}`])
      : (([least, most]) => [0, 0.5, 1].map((part) => [amountShade(least + part * (most - least), least, most), form(least + part * (most - least))]))(extent(state, view));
    tg.replace(legend, steps.map(([color, text]) => [tg.el("span", { class: "swatch", style: { "--paint": color } }), ` ${text} `]), "· dashed: no value · choose a cell for its distribution");
  }
})();
