// The values of the weights: figures, a heat map to choose a tensor from, its distribution, and outliers.
(() => {
  // `isRatio`: tensors of one place differ by factors, so a shade compares with the median of the row.
  const FIGURES = [
    { key: "bytes", label: "Bytes", form: "bytes", isRatio: true },
    { key: "std", label: "Standard deviation", short: "Std", form: "value", isRatio: true },
    { key: "abs_max", label: "Largest magnitude", short: "|Max|", form: "value", isRatio: true },
    { key: "mean", label: "Mean", form: "value" },
    { key: "kurtosis", label: "Excess kurtosis", short: "Kurtosis", form: "value" },
    { key: "skewness", label: "Skewness", form: "value" },
    { key: "sparsity", label: "Zeros", form: "percent" },
    { key: "near_zero", label: "Near zero", short: "Near zero", form: "percent" },
    { key: "outlier_share", label: "Outliers", form: "percent" },
    { key: "l2", label: "L2 norm", short: "L2", form: "value", isRatio: true },
    { key: "spectral_norm", label: "Spectral norm", short: "Spectral", form: "value", isRatio: true },
    { key: "stable_rank", label: "Stable rank", form: "value", isRatio: true },
    { key: "entropy_bits", label: "Entropy, bits", short: "Entropy", form: "value" },
    { key: "int8_db", label: "int8, one scale", short: "int8", form: "decibels" },
    { key: "removable", label: "Prunable at 1 %", short: "Prunable", form: "percent" },
  ];

  tg.section({
    id: "weights", title: "Weights", part: "weights",
    draw(element, data) {
      const store = tg.columns(data.tensors);
      const state = { store, data, figures: FIGURES.filter(({ key }) => store.has(key)), listeners: [], chosen: null };
      state.choose = (row, origin) => { state.chosen = row; for (const listener of state.listeners) listener(row, origin); };
      for (const failure of data.failures.slice(0, 10)) element.append(tg.warn(`${tg.short(failure.name, 200)} could not be read: ${failure.reason}`));
      for (const { reason, count } of data.skipped.slice(0, 5)) element.append(tg.note(tg.short(`${tg.plural(count, "tensor")} not read: ${reason}.`, 300)));
      if (data.facts.length) element.append(tg.facts(data.facts));
      if (data.has_values) {
        tg.drawWeightMap(element, state);
        tg.drawTensor(element, state);
        tg.drawWeightCurves(element, state);
      } else {
        const hint = data.skipped.length ? "" : "The values were not read: --weights reads them. ";
        element.append(tg.note(`${hint}These are the tensors by name, shape and size.`));
      }
      drawTable(element, state);
      drawOutliers(element, state);
      drawRecommendations(element, data.recommendations);
      if (data.kinds) tg.drawBlocks(element, data.kinds);
      drawGroups(element, data);
    },
  });

  function drawTable(element, state) {
    const { store, figures } = state;
    const every = Array.from({ length: store.length }, (_, row) => row);
    const view = { words: "", sort: { key: "bytes", descending: true } };
    const text = (key, label, width) => ({ key, label, width, isText: true, text: (row) => store.get(row, key) ?? "–", tip: (row) => store.get(row, key) });
    const columns = [
      { ...text("name", "Tensor", 20), grow: 1, cell: (row) => tg.name(store.get(row, "name"), 90) },
      { ...text("shape", "Shape", 9), grow: 0.25 }, text("dtype", "Type", 6.2), text("role", "Role", 7.4),
      ...figures.map(({ key, label, short, form }) => ({ key, label: short ?? label, title: label, text: (row) => tg.format[form](store.get(row, key)) })),
      store.has("smallest_30db") ? text("smallest_30db", "For 30 dB", 7.5) : null,
    ].filter(Boolean);
    const note = tg.el("span", { class: "faint" });
    element.append(tg.heading("All tensors"), tg.el("div", { class: "controls" }, tg.search("Search tensors", (words) => { view.words = words.toLowerCase(); refresh(); }), note));
    const table = tg.table(element, {
      id: "weights-table", label: "Tensors", columns, rows: [], sort: view.sort, onSelect: (row) => state.choose(row, "table"), isSelected: (row) => row === state.chosen,
      onSort: (key, descending) => { view.sort = { key, descending }; table.setSort(view.sort); refresh(); },
    });
    function refresh() {
      const names = store.column("name");
      const found = view.words ? every.filter((row) => view.words.split(/\s+/).every((word) => names[row].toLowerCase().includes(word))) : every;
      table.setRows(tg.sorted(found, (row) => store.get(row, view.sort.key), view.sort.descending));
      note.textContent = found.length === every.length ? tg.plural(every.length, "tensor") : `${tg.format.exact(found.length)} of ${tg.plural(every.length, "tensor")}`;
    }
    refresh();
    state.listeners.push(() => table.refresh());
  }

  function drawOutliers(element, state) {
    const { outliers } = state.data;
    if (!outliers.length) return;
    const rows = new Map(state.store.column("name").map((name, row) => [name, row]));
    element.append(tg.heading("Outliers among repeated layers"), tg.rowTable("Outliers", [
      { label: "Tensor", isText: true, cell: (row) => tg.name(row.name, 90) },
      { label: "Figure", isText: true, cell: (row) => row.figure.replaceAll("_", " ") },
      { label: "Value", cell: (row) => tg.format.value(row.value) },
      { label: "Siblings' median", cell: (row) => tg.format.value(row.median) },
      { label: "Score", cell: (row) => (tg.isKnown(row.score) ? tg.format.value(row.score) : "all others agree") },
    ], outliers, { onClick: (row) => state.choose(rows.get(row.name), "outliers") }),
    tg.note("The score is the distance to the siblings' median in robust standard deviations."));
  }

  function drawRecommendations(element, rows) {
    if (!rows.length) return;
    element.append(tg.heading("Recommendations for weights"), tg.list(rows.map((row) => [tg.name(row.name, 90), `: ${row.text}`, row.siblings ? tg.el("span", { class: "faint" }, ` (and ${tg.format.exact(row.siblings)} like it)`) : null])));
  }

  function drawGroups(element, { dtypes, roles }) {
    const box = tg.el("div", { class: "two-columns" });
    for (const [title, groups] of [["Stored by type", dtypes], ["Stored by role", roles]]) {
      if (!groups.length) continue;
      const cell = tg.el("div", {}, tg.heading(title));
      box.append(cell);
      tg.chart.bars(cell, groups.map((group) => ({ label: group.name, value: group.nbytes, text: tg.format.bytes(group.nbytes), share: group.share, note: `×${tg.format.exact(group.tensors)}` })), { label: title });
    }
    if (box.firstChild) element.append(box);
  }
})();
