// Where the cost lies: by kind of op, by phase, by type of layer.
(() => {
  const FIGURES = [
    { key: "macs", label: "MACs", form: "count" },
    { key: "flops", label: "FLOPs", form: "count" },
    { key: "bytes_moved", label: "Bytes moved", form: "bytes" },
    { key: "time_s", label: "Time", form: "seconds" },
    { key: "energy", label: "Energy", form: "joules" },
    { key: "params", label: "Parameters", form: "count" },
    { key: "count", label: "Count", form: "exact" },
  ];
  const SHOWN = 14;

  tg.section({
    id: "distribution", title: (data) => (data.resembles ? "Layers" : "Cost"), part: "distribution",
    draw(element, data) {
      if (data.resembles) { drawResembling(element, data.resembles); return; }
      const figures = FIGURES.filter(({ key }) => [...data.categories, ...data.layers].some((row) => row[key]));
      const area = tg.el("div", { class: "two-columns" });
      const redraw = (key) => drawFigure(area, data, figures.find((figure) => figure.key === key));
      const first = figures.find(({ key }) => key === "time_s") ?? figures.find(({ key }) => key === "flops") ?? figures[0];
      element.append(tg.el("div", { class: "controls" },
        tg.toggle("Figure", figures.map(({ key, label }) => ({ value: key, label })), first.key, redraw)), area);
      redraw(first.key);
    },
  });

  function drawFigure(area, data, figure) {
    const estimated = figure.key === "energy" && data.energy_is_estimated;
    tg.replace(area);
    for (const [title, rows, noun] of [["By kind of op", data.categories, "ops"], ["By type of layer", data.layers, "modules"], ["By phase", data.phases, "ops"]]) {
      if (!rows.some((row) => row[figure.key])) continue;
      const box = tg.el("div", {}, tg.heading(title, estimated ? tg.estimated() : null));
      area.append(box);
      bars(box, rows, figure, { estimated, noun, title, byCategory: rows === data.categories });
    }
    if (figure.key === "time_s") area.append(tg.el("div", {}, tg.note("Measured, not scaled: ops in profiled runs, layers by own time without submodules; the two sums may differ.")));
    if (!area.firstChild) area.append(tg.note("This figure is unknown."));
  }

  function bars(box, rows, figure, { estimated, noun, title, byCategory }) {
    const whole = rows.reduce((sum, row) => sum + (row[figure.key] ?? 0), 0);
    const ranked = rows.filter((row) => row[figure.key] > 0).sort((a, b) => b[figure.key] - a[figure.key]);
    const entries = ranked.slice(0, SHOWN).map((row) => entry(row.name, row[figure.key], row.count, byCategory && tg.categoryColor(row.name), row.uncounted));
    const rest = ranked.slice(SHOWN);
    if (rest.length) entries.push(entry(`${rest.length} more`, sum(rest, figure.key), sum(rest, "count")));
    tg.chart.bars(box, entries, { label: `${figure.label}: ${title}` });

    function entry(label, value, count, color, uncounted) {
      const note = uncounted ? `${tg.format.exact(uncounted)} of ${tg.format.exact(count)} uncounted` : `×${tg.format.exact(count)}`;
      return {
        label, value, text: tg.format[figure.form](value), share: whole ? value / whole : null, estimated, color: color || "var(--accent)",
        note: figure.key === "count" ? null : note,
        tip: [label, [figure.label, tg.format[figure.form](value)], [noun, tg.format.exact(count)]],
      };
    }
  }

  const sum = (rows, key) => rows.reduce((total, row) => total + (row[key] ?? 0), 0);

  function drawResembling(element, rows) {
    element.append(tg.note("No code: kinds of layers are inferred from the names and shapes of the tensors."));
    tg.chart.bars(element, rows.slice(0, SHOWN).map((row) => ({ label: row.name, value: row.count, text: tg.format.exact(row.count), estimated: false })),
      { label: "Layers by kind" });
  }
})();
