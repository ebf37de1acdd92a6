tg.section({
  id: "modules",
  title: "Modules",
  part: "modules",
  draw(element) {
    const modules = tg.modules;
    const state = { open: new Set(), search: "", sort: null, isTree: true };
    const all = figureColumns();
    const wanted = new Set(defaults());
    const counter = tg.el("span", { class: "faint", role: "status" });

    openFirstLevels();
    const table = controlsAndTable();
    refresh();
    tg.selection.on((path, origin) => {
      const row = tg.rowOf(path);
      if (origin !== "modules" && row !== undefined) reveal(row);
      table.refresh();
    });

    function figureColumns() {
      const shown = [
        ...tg.figures.map((figure) => ({
          key: figure.key, label: figure.heading, isEstimated: figure.kind === "estimated", figure,
          title: figure.kind === "static" ? figure.label : `${figure.label}, ${figure.kind}`,
        })),
        ...tg.moduleFigures.filter(({ form }) => form !== "text").map((figure) => ({ key: figure.key, label: figure.label, figure })),
      ].filter((column) => modules.has(column.key)).map((column) => ({
        ...column,
        text: (row) => tg.figureText(column.figure, modules.get(row, column.key)),
        tip: (row) => (column.isEstimated ? tg.rangeText(modules, row, column.figure) : exactText(modules.get(row, column.key))),
      }));
      // The type is shown next to the name.
      const others = tg.moduleFigures.filter(({ key, form }) => form === "text" && key !== "type").map(({ key, label }) => [key, label]);
      const texts = [["output_shapes", "Output"], ["input_shapes", "Input"], ["aliases", "Aliases"], ["tied_to", "Tied to"], ...others]
        .filter(([key]) => modules.has(key))
        .map(([key, label]) => ({
          key, label, isText: true, width: 10, grow: 0.3,
          text: (row) => tg.format.text(modules.get(row, key)), tip: (row) => modules.get(row, key),
        }));
      return [...shown, ...texts];
    }

    function exactText(value) {
      return Number.isInteger(value) ? tg.format.exact(value) : null;
    }

    function defaults() {
      const usual = ["params", "macs", "flops", "bytes_moved", "activation_bytes", "time_s", "energy_j", "estimated_energy_j", "predicted_time_s", "output_shapes"];
      if (!modules.has("macs")) usual.push("param_bytes");
      return usual.filter((key) => modules.has(key));
    }

    function nameColumn() {
      return {
        key: "path", label: "Module", isText: true, width: innerWidth < 700 ? 11 : 17, grow: 1,
        tip: (row) => modules.get(row, "path"),
        cell: (row) => [
          state.isTree ? tg.el("span", { style: { "padding-left": `${Math.min(modules.get(row, "level"), 24) * 0.95}em` } }) : null,
          state.isTree ? tg.el("span", { class: "twig", "aria-hidden": "true" }, isFolder(row) ? (isOpen(row) ? "▾" : "▸") : "") : null,
          tg.name(shownName(row), 90),
          tg.el("span", { class: "type" }, tg.name(modules.get(row, "type") || "", 40)),
        ],
      };
    }

    function shownName(row) {
      if (row === 0) return "(model)";
      return state.isTree ? modules.get(row, "name") : modules.get(row, "path");
    }

    function columns() {
      return [nameColumn(), ...all.filter((column) => wanted.has(column.key))];
    }

    function isFolder(row) { return modules.children(row).length > 0; }
    function isOpen(row) { return state.search !== "" || state.open.has(row); }

    // As many levels as fit a page.
    function openFirstLevels() {
      let shown = 1;
      let level = [0];
      while (level.length) {
        const next = level.flatMap((row) => modules.children(row));
        if (shown + next.length > 40 && shown > 1) break;
        level.forEach((row) => state.open.add(row));
        shown += next.length;
        level = next;
      }
    }

    function openAll(open) {
      state.open.clear();
      if (open) for (let row = 0; row < modules.length; row += 1) state.open.add(row);
      else state.open.add(0);
      refresh();
    }

    function matching() {
      const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return null;
      const [paths, types] = [modules.column("path"), modules.column("type")];
      const hits = [];
      for (let row = 0; row < modules.length; row += 1) {
        const text = `${paths[row]} ${types[row]}`.toLowerCase();
        if (words.every((word) => text.includes(word))) hits.push(row);
      }
      return hits;
    }

    function rowsToShow() {
      const hits = matching();
      counter.textContent = hits ? `${tg.format.exact(hits.length)} of ${tg.format.exact(modules.length)}` : `${tg.format.exact(modules.length)} modules`;
      if (!state.isTree) return order(hits ?? Array.from({ length: modules.length }, (_, row) => row));
      return inTree(hits && withAncestors(hits));
    }

    function withAncestors(hits) {
      const kept = new Set();
      for (let row of hits) {
        while (row !== null && !kept.has(row)) {
          kept.add(row);
          row = modules.get(row, "parent");
        }
      }
      return kept;
    }

    function inTree(kept) {
      const rows = [];
      const waiting = kept && !kept.has(0) ? [] : [0];
      while (waiting.length) {
        const row = waiting.pop();
        rows.push(row);
        if (!isOpen(row)) continue;
        const children = modules.children(row).filter((child) => !kept || kept.has(child));
        const sorted = order(children);
        for (let place = sorted.length - 1; place >= 0; place -= 1) waiting.push(sorted[place]);
      }
      return rows;
    }

    function order(rows) {
      if (!state.sort || rows.length < 2) return rows;
      return tg.sorted(rows, (row) => modules.get(row, state.sort.key), state.sort.descending);
    }

    function refresh() { table.setRows(rowsToShow()); }

    function reveal(row) {
      for (let above = modules.get(row, "parent"); above !== null; above = modules.get(above, "parent")) state.open.add(above);
      refresh();
      table.activate(row);
    }

    function toggle(row, open) {
      if (open) state.open.add(row);
      else state.open.delete(row);
      refresh();
    }

    function sortBy(key, descending) {
      state.sort = { key, descending };
      table.setSort(state.sort);
      refresh();
    }

    function unsort() {
      state.sort = null;
      table.setSort(null);
      refresh();
    }

    function controlsAndTable() {
      element.append(tg.el("div", { class: "controls" },
        tg.search("Search modules ( / )", (text) => { state.search = text.trim(); refresh(); }),
        tg.toggle("Form", [{ value: "tree", label: "Tree" }, { value: "list", label: "List" }], "tree", (form) => {
          state.isTree = form === "tree";
          refresh();
        }),
        tg.button("Open all", () => openAll(true)), tg.button("Fold all", () => openAll(false)),
        tg.button("Model order", unsort), counter, tg.el("span", { class: "spring" }), tg.columnMenu(all, wanted, () => table.setColumns(columns()))));
      return tg.table(element, {
        id: "module-row", label: "Modules", columns: columns(), rows: [], onSort: sortBy,
        onSelect: (row) => tg.selection.set(modules.get(row, "path"), "modules"),
        isSelected: (row) => modules.get(row, "path") === tg.selection.get(),
        tree: { isFolder: (row) => state.isTree && isFolder(row), isOpen, toggle, parent: (row) => modules.get(row, "parent"), level: (row) => modules.get(row, "level") },
      });
    }
  },
});

if (tg.part("modules")) {
  tg.findable(tg.modules.column("path").slice(1), (place) => {
    tg.go("modules");
    tg.selection.set(tg.modules.get(place + 1, "path"), "find");
  });
}
