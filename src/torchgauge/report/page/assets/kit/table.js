// A table of any length: only the rows in view exist. Arrows, Page keys, Home and End move; Enter acts on a row.
(() => {
  const ROW = 26;
  const SPARE = 12; // rows beyond the view on both sides
  const PRINTED = 250;
  const [NUMBER, ESTIMATE] = [6.3, 7.3]; // em: three digits and a unit; with the sign of an estimate

  /* options:
     label, columns [{key, label, title, width (em), grow, isText, isIndex, isEstimated, text(row), value(row), cell(row), tip(row)}],
     rows [row, …], sort {key, descending}, onSort(key, descending), onEnter(row), onSelect(row), isSelected(row),
     tree {isFolder(row), isOpen(row), toggle(row, open), parent(row)} for aria and arrow keys. */
  tg.table = (element, options) => {
    const table = { options, rows: options.rows, columns: options.columns, active: 0, printing: Boolean(tg.isPrinting) };
    table.head = tg.el("div", { class: "grid-head", role: "row" });
    table.body = tg.el("div", { class: "grid-body", role: "rowgroup" });
    table.box = tg.el("div", { class: "grid-table", role: options.tree ? "treegrid" : "grid", tabindex: "0", "aria-label": options.label },
      table.head, table.body);
    table.note = tg.el("p", { class: "note", hidden: true });
    element.append(table.box, table.note);
    listen(table);
    setColumns(table, table.columns);
    const render = () => draw(table);
    return {
      element: table.box,
      get rows() { return table.rows; },
      setRows(rows) { table.rows = rows; table.active = Math.min(table.active, Math.max(rows.length - 1, 0)); render(); },
      setColumns(columns) { setColumns(table, columns); },
      setSort(sort) { options.sort = sort; drawHead(table); },
      refresh: render,
      activate(row) { moveTo(table, table.rows.indexOf(row)); },
    };
  };

  function setColumns(table, columns) {
    table.columns = columns;
    const widths = columns.map((column) => column.width ?? (column.isText ? 12 : Math.max(column.isEstimated ? ESTIMATE : NUMBER, 1.9 + 0.57 * column.label.length)));
    table.screenTracks = columns.map(({ grow }, place) => (grow ? `minmax(${widths[place]}em, ${grow}fr)` : `${widths[place]}em`)).join(" ");
    table.paperTracks = widths.map((width) => `minmax(0, ${width}fr)`).join(" ");
    // Every row is equally wide, so that the columns align.
    table.box.style.setProperty("--width", `${widths.reduce((sum, width) => sum + width, 0)}em`);
    drawHead(table);
    draw(table);
  }

  function drawHead(table) {
    const { sort, onSort } = table.options;
    table.head.style.gridTemplateColumns = tracks(table);
    tg.replace(table.head, table.columns.map((column) => {
      const direction = sort && sort.key === column.key ? (sort.descending ? "descending" : "ascending") : null;
      const press = () => onSort?.(column.key, direction ? !sort.descending : !column.isText);
      return tg.el("div", { role: "columnheader", class: column.isText ? "is-text" : null, "aria-sort": direction },
        tg.button(column.label, press, { title: column.title ?? column.label, tabindex: "0" }));
    }));
  }

  function listen(table) {
    let waiting = false;
    table.box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(table); });
    }, { passive: true });
    new ResizeObserver(() => draw(table)).observe(table.box);
    table.body.addEventListener("click", (event) => clicked(table, event));
    table.box.addEventListener("keydown", (event) => pressed(table, event));
    addEventListener("beforeprint", () => print(table, true));
    addEventListener("afterprint", () => print(table, false));
  }

  function print(table, printing) {
    table.printing = printing;
    drawHead(table);
    draw(table);
  }

  // Paper does not scroll sideways: there the columns share its width.
  const tracks = (table) => (table.printing ? table.paperTracks : table.screenTracks);

  function clicked(table, event) {
    const place = Number(event.target.closest(".grid-row")?.dataset.place ?? -1);
    if (place < 0) return;
    const row = table.rows[place];
    table.active = place;
    const { tree } = table.options;
    if (tree && event.target.closest(".twig")) tree.toggle(row, !tree.isOpen(row));
    else table.options.onSelect?.(row);
    draw(table);
  }

  const MOVES = {
    ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, Home: () => 0, End: (at, last) => last,
    PageDown: (at, last, page) => at + page, PageUp: (at, last, page) => at - page,
  };

  function pressed(table, event) {
    if (event.target !== table.box || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = table.rows[table.active];
    const { tree, onSelect, onEnter } = table.options;
    if (event.key in MOVES) {
      const page = Math.max(Math.floor(table.box.clientHeight / ROW) - 2, 1);
      moveTo(table, MOVES[event.key](table.active, table.rows.length - 1, page));
    } else if (tree && event.key === "ArrowRight" && tree.isFolder(row)) {
      if (tree.isOpen(row)) moveTo(table, table.active + 1);
      else tree.toggle(row, true);
    } else if (tree && event.key === "ArrowLeft") {
      if (tree.isFolder(row) && tree.isOpen(row)) tree.toggle(row, false);
      else moveTo(table, table.rows.indexOf(tree.parent(row)));
    } else if (event.key === "Enter" && row !== undefined) {
      if (onEnter) onEnter(row);
      else if (tree?.isFolder(row)) tree.toggle(row, !tree.isOpen(row));
      onSelect?.(row);
    } else if (event.key === " " && row !== undefined) {
      onSelect?.(row);
    } else {
      return;
    }
    event.preventDefault();
    draw(table);
  }

  function moveTo(table, place) {
    if (!table.rows.length || place < 0 && table.active === 0 || Number.isNaN(place)) return;
    table.active = Math.max(0, Math.min(place, table.rows.length - 1));
    const top = table.active * ROW;
    const view = table.box.clientHeight - table.head.offsetHeight;
    if (top < table.box.scrollTop) table.box.scrollTop = top;
    else if (top + ROW > table.box.scrollTop + view) table.box.scrollTop = top + ROW - view;
    draw(table);
  }

  function range(table) {
    if (table.printing) return [0, Math.min(table.rows.length, PRINTED)];
    const first = Math.floor(table.box.scrollTop / ROW) - SPARE;
    const count = Math.ceil((table.box.clientHeight || 600) / ROW) + 2 * SPARE;
    return [Math.max(first, 0), Math.min(first + count, table.rows.length)];
  }

  function draw(table) {
    const [first, last] = range(table);
    table.body.style.height = `${Math.max(table.rows.length, 1) * ROW}px`;
    table.box.setAttribute("aria-rowcount", String(table.rows.length + 1));
    const shown = [];
    for (let place = first; place < last; place += 1) shown.push(rowElement(table, place));
    tg.replace(table.body, shown.length ? shown : tg.el("div", { class: "grid-empty" }, "Nothing matches."));
    table.box.setAttribute("aria-activedescendant", shown.length ? rowId(table, table.active) : "");
    const left = table.rows.length - last;
    table.note.hidden = !(table.printing && left > 0);
    table.note.textContent = `and ${tg.format.exact(left)} more rows`;
  }

  const rowId = (table, place) => `${table.options.id ?? "table"}-${place}`;

  function rowElement(table, place) {
    const row = table.rows[place];
    const { tree, isSelected } = table.options;
    const selected = isSelected?.(row) ?? false;
    const classes = ["grid-row", selected && "is-selected", place === table.active && "is-active"].filter(Boolean).join(" ");
    return tg.el("div", {
      class: classes, role: "row", id: rowId(table, place), "data-place": place, "aria-rowindex": place + 2, "aria-selected": String(selected),
      "aria-expanded": tree?.isFolder(row) ? String(tree.isOpen(row)) : null, "aria-level": tree?.level ? tree.level(row) + 1 : null,
      style: { top: `${place * ROW}px`, "grid-template-columns": tracks(table) },
    }, table.columns.map((column) => cellElement(column, row)));
  }

  function cellElement(column, row) {
    const content = column.cell ? column.cell(row) : column.text(row);
    const isZero = !column.isText && !column.isIndex && (content === "0" || content === "–" || content === "0 B" || content === "0 s");
    const classes = ["grid-cell", column.isText && "is-text", column.isEstimated && "is-estimated", isZero && "is-zero"];
    return tg.el("div", {
      class: classes.filter(Boolean).join(" "), role: "gridcell", title: column.tip ? tg.short(column.tip(row) ?? "", 600) : null,
    }, content);
  }

  // Rows in the order of a column: numbers by size, texts by the alphabet, absent ones last in both directions.
  tg.sorted = (rows, value, descending) => {
    const keys = rankedKeys(rows.map(value));
    const sign = descending ? -1 : 1;
    const places = Array.from(rows, (_, place) => place);
    places.sort((first, second) => {
      const a = keys[first];
      const b = keys[second];
      if (a !== a || b !== b) return (a !== a) - (b !== b) || first - second; // NaN: absent
      return sign * (a - b) || first - second;
    });
    return places.map((place) => rows[place]);
  };

  // Texts compare slowly, and most repeat: each is ranked once, and numbers are sorted.
  function rankedKeys(values) {
    const absent = (value) => value === null || value === undefined;
    const ranks = values.some((value) => typeof value === "string") ? textRanks(values.filter((value) => !absent(value))) : null;
    return Float64Array.from(values, (value) => (absent(value) ? NaN : ranks ? ranks.get(value) : value));
  }

  function textRanks(texts) {
    const { compare } = new Intl.Collator("en", { numeric: true });
    const distinct = [...new Set(texts)].sort((a, b) => compare(String(a), String(b)));
    return new Map(distinct.map((text, rank) => [text, rank]));
  }
})();
