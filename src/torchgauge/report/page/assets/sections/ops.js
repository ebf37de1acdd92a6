tg.section({
  id: "ops",
  title: "Ops",
  part: "ops",
  draw(element) {
    const ops = tg.ops;
    const state = { search: "", category: "", module: "", sort: null, followed: false };
    const every = Array.from({ length: ops.length }, (_, row) => row);
    const counter = tg.el("span", { class: "faint", role: "status" });
    const chip = tg.button("", () => restrict(""), { hidden: true, title: "Show the ops of every module" });
    const widths = { arithmetic_intensity: 8, bound: 6, category: 8.4, source: 15 };
    const all = makeColumns();
    const wanted = new Set(["index", "op", "module", "category", "output_shapes", "macs", "flops", "bytes_moved", "live_bytes", "time_s", "bound", "energy_j", "estimated_energy_j", "predicted_time_s", "predicted_source"]);
    const table = controlsAndTable();
    refresh();

    tg.selection.on((path) => {
      if (state.followed) restrict(path ?? "");
      else table.refresh();
    });

    function makeColumns() {
      const [index, ...figures] = tg.opFigures;
      const op = figures.find(({ key }) => key === "op");
      const texts = figures.filter((figure) => figure.form === "text" && figure !== op);
      return [
        { ...number(index, 1.9 + 0.58 * tg.format.exact(ops.length).length), isIndex: true }, text("op", op.label, 11.5, 1),
        text("module", "Module", 11.5, 1.3), text("output_shapes", "Output", 10.5, 0.8),
        ...figures.filter(({ form }) => form !== "text").map(figureColumn),
        ...texts.map(({ key, label }) => text(key, label, widths[key] ?? 7)), text("input_shapes", "Input", 15),
      ].filter((column) => ops.has(column.key) && !isConstant(column.key));
    }

    // Of a run that is forward all through, the phase says nothing.
    function isConstant(key) {
      return ["phase", "source"].includes(key) && new Set(ops.column(key)).size < 2;
    }

    function text(key, label, width, grow) {
      const shown = (row) => ops.get(row, key);
      return {
        key, label, width, grow, isText: true, value: shown, tip: shown,
        cell: (row) => (shown(row) === null ? "–" : shown(row) === "" ? tg.el("span", { class: "faint" }, "(model)") : tg.name(shown(row), 70)),
      };
    }

    function number({ key, heading, form }, width) {
      return {
        key, label: heading, width, title: heading, value: (row) => ops.get(row, key), text: (row) => tg.format[form](ops.get(row, key)),
        tip: (row) => (Number.isInteger(ops.get(row, key)) ? tg.format.exact(ops.get(row, key)) : null),
      };
    }

    function figureColumn(figure) {
      const column = number(figure, widths[figure.key]);
      if (figure.kind === "estimated") {
        return { ...column, isEstimated: true, title: `${figure.label}, estimated`, tip: (row) => tg.rangeText(ops, row, figure), text: (row) => tg.figureText(figure, ops.get(row, figure.key)) };
      }
      if (!figure.is_work) return column;
      // Without a formula it is unknown, not zero.
      const isKnown = (row) => ops.get(row, "status") !== "uncounted";
      return { ...column, value: (row) => (isKnown(row) ? column.value(row) : null), text: (row) => (isKnown(row) ? column.text(row) : "?") };
    }

    function columns() { return all.filter((column) => wanted.has(column.key)); }

    function isWithin(path) {
      if (state.module === "") return true;
      return path === state.module || path.startsWith(`${state.module}.`);
    }

    function matching() {
      const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
      const [names, modules, kinds] = [ops.column("op"), ops.column("module"), ops.column("category")];
      if (!words.length && !state.category && !state.module) return every;
      return every.filter((row) => {
        if (state.category && kinds[row] !== state.category) return false;
        if (!isWithin(modules[row])) return false;
        const text = `${names[row]} ${modules[row]} ${kinds[row]}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
    }

    function refresh() {
      const rows = matching();
      counter.textContent = rows.length === ops.length ? `${tg.format.exact(ops.length)} ops` : `${tg.format.exact(rows.length)} of ${tg.format.exact(ops.length)}`;
      const column = state.sort && all.find(({ key }) => key === state.sort.key);
      table.setRows(column ? tg.sorted(rows, column.value, state.sort.descending) : rows);
    }

    function restrict(path) {
      state.module = path;
      chip.hidden = path === "";
      chip.textContent = `in ${tg.short(path, 40)} ×`;
      refresh();
    }

    function sortBy(key, descending) {
      state.sort = { key, descending };
      table.setSort(state.sort);
      refresh();
    }

    function categories() {
      const found = [...new Set(ops.column("category"))].sort();
      return [{ value: "", label: "every kind" }, ...found.map((kind) => ({ value: kind, label: kind }))];
    }

    function controlsAndTable() {
      element.append(tg.el("div", { class: "controls" },
        tg.search("Search ops and modules ( / )", (text) => { state.search = text.trim(); refresh(); }),
        tg.choice("Kind", categories(), "", (kind) => { state.category = kind; refresh(); }),
        tg.check("only the selected module", false, (followed) => { state.followed = followed; restrict(followed ? tg.selection.get() ?? "" : ""); }),
        chip, counter, tg.el("span", { class: "spring" }), tg.columnMenu(all, wanted, () => table.setColumns(columns()))));
      return tg.table(element, {
        id: "op-row", label: "Ops", columns: columns(), rows: [], onSort: sortBy,
        onSelect: (row) => tg.selection.set(ops.get(row, "module"), "ops"),
        isSelected: (row) => tg.selection.get() !== null && ops.get(row, "module") === tg.selection.get(),
      });
    }
  },
});
