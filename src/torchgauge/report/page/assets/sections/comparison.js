// Several analyses side by side; the first is what the others are compared with.
(() => {
  const STATES = { added: "good", removed: "warn", renamed: "accent", retyped: "accent", reshaped: "accent", recast: "accent" };

  function titledTables(element, tables, prefix) {
    for (const table of tables) tg.drawBlocks(element, { ...table, title: table.title.replace(prefix, "") });
  }

  function changeMark(change) {
    const color = { more: "var(--c1)", less: "var(--c0)" }[change.verdict] ?? "var(--ink-faint)";
    return tg.el("span", { style: { color } }, change.text);
  }

  tg.section({
    id: "comparison",
    title: "Comparison",
    part: "comparison",
    draw(element, data) {
      const base = data.sides[0].label;
      for (const text of data.findings) element.append(tg.warn(tg.short(text, 600)));
      element.append(sideList());
      const told = data.figures.filter((figure) => figure.changes.some((change) => change && change.verdict !== "equal" && change.text !== "=")).slice(0, 8);
      if (told.length) element.append(tg.el("dl", { class: "cards" }, told.map(card)));
      if (data.differing) tg.drawBlocks(element, data.differing);
      element.append(tg.el("h3", {}, "Figures"), figures(), ...data.notes.map((note) => tg.note(note)));

      function sideList() {
        return tg.el("dl", { class: "facts" }, data.sides.map((side, place) => [
          tg.el("dt", {}, tg.el("span", { class: "swatch", style: { "--paint": `var(--c${place % 10})` } }), " ", tg.el("b", {}, side.label)),
          tg.el("dd", {}, tg.name(side.name || side.kind, 160), " ", tg.el("small", {}, tg.name(side.kind, 60), ` · ${side.created.slice(0, 16).replace("T", " ")}`)),
        ]));
      }

      // What became of a figure, for each side: the values are in the note.
      function card(figure) {
        const others = data.sides.map((_, side) => side).filter((side) => figure.changes[side]);
        return tg.el("div", { class: "card" }, tg.el("dt", {}, figure.title),
          tg.el("dd", {}, others.map((side) => tg.el("span", { class: "big" }, changeMark(figure.changes[side]), " ")),
            tg.el("small", {}, data.sides.map((side, place) => `${side.label} ${figure.texts[place]}`).join(", "))));
      }

      function figures() {
        const head = [tg.el("th", { scope: "col" }, "Figure")];
        for (const side of data.sides) {
          head.push(tg.el("th", { scope: "col", class: "number" }, side.label));
          if (side.label !== base) head.push(tg.el("th", { scope: "col", class: "number" }, `against ${base}`));
        }
        return tg.el("div", { class: "scroll" }, tg.el("table", { "aria-label": "Figures of all sides" },
          tg.el("thead", {}, tg.el("tr", {}, head, tg.el("th", { scope: "col" }, tg.el("span", { class: "faint" }, "relative")))),
          tg.el("tbody", {}, data.figures.map(figureRow))));
      }

      function figureRow(figure) {
        const cells = [tg.el("th", { scope: "row", style: { "white-space": "nowrap" } }, figure.title, figure.origins.includes("measured") ? tg.el("small", {}, " measured") : null)];
        figure.texts.forEach((text, side) => {
          cells.push(tg.el("td", { class: "number" }, valueText(figure, side, text)));
          if (side) cells.push(tg.el("td", { class: "number" }, changeMark(figure.changes[side])));
        });
        return tg.el("tr", {}, cells, tg.el("td", { style: { "min-width": "9rem" } }, miniBars(figure)));
      }

      function valueText(figure, side, text) {
        const isEstimated = figure.origins[side] === "estimated";
        const known = figure.intervals[side];
        const range = known ? `${known[0]} to ${known[1]}` : null;
        return tg.el("span", { title: range, class: isEstimated ? "estimated-mark" : null }, isEstimated ? `≈ ${text}` : text);
      }

      // The longest bar is the largest of the sides; a side that cannot be compared has a hatched one.
      function miniBars(figure) {
        const most = Math.max(...figure.values.map((value) => value ?? 0), Number.MIN_VALUE);
        return tg.el("div", { "aria-hidden": "true", style: { display: "grid", gap: "2px" } }, figure.values.map((value, side) =>
          tg.el("span", {
            class: figure.origins[side] === "estimated" ? "fill estimated" : "fill",
            style: { height: "5px", width: `${((value ?? 0) / most) * 100}%`, "--paint": `var(--c${side % 10})` },
          })));
      }
    },
  });

  tg.section({
    id: "structure",
    title: "Structure",
    part: "compared_structure",
    draw(element, tables) {
      titledTables(element, tables, "Structure: ");
    },
  });

  tg.section({
    id: "compared-modules",
    title: "Modules",
    part: "compared_modules",
    draw(element, data) {
      const state = { search: "", isChangedOnly: data.rows.some((row) => row.changed), figure: data.figures[0]?.key ?? "", sort: null };
      const counter = tg.el("span", { class: "faint", role: "status" });
      const place = () => data.figures.findIndex(({ key }) => key === state.figure);

      element.append(tg.el("div", { class: "controls" },
        tg.search("Search modules ( / )", (text) => { state.search = text.trim().toLowerCase(); refresh(); }),
        tg.choice("Figure", data.figures.map(({ key, label, kind }) => ({ value: key, label: kind === "static" ? label : `${label}, ${kind}` })), state.figure, (key) => {
          state.figure = key;
          table.setColumns(columns());
          refresh();
        }),
        tg.check("Only what differs", state.isChangedOnly, (checked) => { state.isChangedOnly = checked; refresh(); }),
        tg.button("Model order", () => { state.sort = null; table.setSort(null); refresh(); }), counter));
      const table = tg.table(element, { label: "Modules side by side", columns: columns(), rows: [], onSort: sortBy });
      refresh();

      function pathOf(row) { return data.rows[row].paths.find((path) => path !== null); }
      function stateOf(row) { return data.rows[row].states.find((name) => name && name !== "same") ?? ""; }
      function valueOf(row, side) { return data.rows[row].values[place()]?.[side] ?? null; }

      function nameOf(row) {
        const names = [...new Set(data.rows[row].paths.filter((path) => path !== null))];
        return names.map((name) => name || "(model)").join(" → ");
      }

      // In structure or in the figure chosen; one that is measured always differs.
      function isChanged(row) {
        const values = data.rows[row].values[place()] ?? [];
        const isFixed = data.figures[place()]?.kind === "static";
        return stateOf(row) !== "" || (isFixed ? values.some((value) => value !== values[0]) : data.rows[row].changed);
      }

      // Where only what differs is shown, the modules above it say where it is. Rows are in preorder.
      function withParents(rows) {
        if (!state.isChangedOnly) return rows;
        const chosen = new Set(rows), kept = [];
        for (let row = data.rows.length - 1, above = -1; row >= 0; row -= 1) {
          const { depth } = data.rows[row];
          if (!chosen.has(row) && depth !== above) continue;
          kept.push(row);
          above = depth - 1;
        }
        return kept.reverse();
      }

      function typesOf(row) { return [...new Set(data.rows[row].types.filter(Boolean))].join(" → "); }

      function columns() {
        const figure = data.figures[place()];
        const values = data.labels.map((label, side) => ({
          key: label, label: `${figure?.label ?? ""} ${label}`, width: 8.5, isEstimated: figure?.kind === "estimated",
          value: (row) => valueOf(row, side), text: (row) => (figure ? tg.figureText(figure, valueOf(row, side)) : "–"),
        }));
        const changes = data.labels.slice(1).map((label, index) => ({
          key: `change-${label}`, label: `${label} − ${data.labels[0]}`, width: 8.5,
          value: (row) => difference(row, index + 1), text: (row) => differenceText(figure, difference(row, index + 1)),
        }));
        return [
          { key: "path", label: "Module", isText: true, width: 20, grow: 1, value: pathOf, tip: nameOf,
            cell: (row) => [tg.el("span", { style: { "padding-left": `${Math.min(data.rows[row].depth, 24) * 0.95}em` } }), tg.name(nameOf(row), 90),
              tg.el("span", { class: "type" }, tg.name(typesOf(row), 50))] },
          { key: "state", label: "State", isText: true, width: 6.5, value: stateOf,
            cell: (row) => tg.el("span", { style: { color: `var(--${STATES[stateOf(row)] ?? "ink-faint"})` } }, stateOf(row)) },
          ...values, ...changes,
        ];
      }

      // What a side lacks is nothing there: all of it is the difference.
      function difference(row, side) {
        const [base, other] = [valueOf(row, 0), valueOf(row, side)];
        return base === null && other === null ? null : (other ?? 0) - (base ?? 0);
      }

      function differenceText(figure, value) {
        if (!figure || value === null) return "–";
        return value > 0 ? `+${tg.format[figure.form](value)}` : tg.format[figure.form](value);
      }

      function sortBy(key, descending) {
        state.sort = { key, descending };
        table.setSort(state.sort);
        refresh();
      }

      function refresh() {
        const words = state.search.split(/\s+/).filter(Boolean);
        let rows = withParents(data.rows.map((_, row) => row).filter((row) => (!state.isChangedOnly || isChanged(row))
          && words.every((word) => `${data.rows[row].paths.join(" ")} ${typesOf(row)}`.toLowerCase().includes(word))));
        counter.textContent = `${tg.format.exact(rows.length)} of ${tg.format.exact(data.rows.length)} modules`;
        const column = state.sort && columns().find(({ key }) => key === state.sort.key);
        if (column) rows = tg.sorted(rows, column.value, state.sort.descending);
        table.setRows(rows);
      }
    },
  });

  tg.section({
    id: "compared-weights",
    title: "Weights",
    part: "compared_weights",
    draw(element, tables) {
      titledTables(element, tables, "Weights: ");
    },
  });
})();
