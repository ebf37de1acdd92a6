// Sweeps and thread scaling as plots, each with its table.
(() => {
  const BY_THROUGHPUT = ["batch", "threads"];

  tg.section({
    id: "sweeps", title: "Sweeps", part: "sweeps",
    draw(element, data) {
      for (const sweep of data.sweeps) drawSweep(element, sweep);
      if (data.scaling.length) drawScaling(element, data);
    },
  });

  function drawSweep(element, { key, points }) {
    element.append(tg.heading(`Over ${key}`));
    const measured = points.filter((point) => tg.isKnown(point.median_s));
    const numeric = measured.every((point) => typeof point.value === "number");
    if (numeric && measured.length > 1) drawCurves(element, key, measured);
    else if (measured.length) drawValues(element, measured);
    element.append(tg.rowTable(`Sweep over ${key}`, [
      { label: key, isText: true, cell: (row) => String(row.value) },
      { label: "Median", cell: (row) => tg.format.seconds(row.median_s) },
      { label: "±", cell: (row) => tg.format.percent(row.precision) },
      { label: "Samples/s", cell: (row) => tg.format.count(row.throughput_per_s) },
      { label: "Peak", cell: (row) => tg.format.bytes(row.peak_bytes) },
      points.some((point) => point.failure) ? { label: "Failure", isText: true, cell: (row) => row.failure ?? "" } : null,
    ].filter(Boolean), points));
  }

  function drawCurves(element, key, points) {
    const box = tg.el("div", { class: "small-charts" });
    element.append(box);
    const curves = [["throughput_per_s", "samples per second", "count"], ["median_s", "time of a run", "seconds"], ["peak_bytes", "peak memory", "bytes"]];
    const ordered = BY_THROUGHPUT.includes(key) ? curves : [curves[1], curves[0], curves[2]];
    for (const [figure, label, form] of ordered) {
      const known = points.filter((point) => tg.isKnown(point[figure])).sort((a, b) => a.value - b.value);
      if (known.length > 1) drawCurve(box, key, known, { figure, label, form });
    }
  }

  function drawCurve(box, key, points, { figure, label, form }) {
    const cell = tg.el("div", {}, tg.el("h4", {}, label));
    box.append(cell);
    const xs = points.map((point) => point.value);
    const isWide = xs.at(-1) / xs[0] > 6;
    const frame = tg.chart.frame(cell, {
      width: 340, height: 190, x: { scale: isWide ? "log" : "linear", domain: isWide ? [xs[0] / 1.1, xs.at(-1) * 1.1] : [0, xs.at(-1) * 1.05], label: key, format: "value", ticks: xs.length <= 8 ? xs : undefined },
      y: { scale: "linear", domain: [0, Math.max(...points.map((point) => point[figure])) * 1.1], format: form }, label: `${label} over ${key}`,
    });
    tg.chart.line(frame, points.map((point) => [point.value, point[figure]]), { label });
    tg.chart.dots(frame, points.map((point) => ({ x: point.value, y: point[figure], point })), {
      label, tip: ({ point }) => [[key, String(point.value)], [label, tg.format[form](point[figure])], point.precision === null ? null : ["time known to", `±${tg.format.percent(point.precision)}`]],
    });
  }

  function drawValues(element, points) {
    tg.chart.bars(element, points.map((point) => ({ label: String(point.value), value: point.median_s, text: tg.format.seconds(point.median_s) })), { label: "Time of a run" });
  }

  function drawScaling(element, data) {
    const rows = data.scaling;
    const most = Math.max(...rows.map((row) => row.threads));
    element.append(tg.heading("Threads"));
    const frame = tg.chart.frame(element, {
      width: 560, height: 240, x: { scale: "linear", domain: [0, most * 1.05], label: "threads", format: "exact", ticks: rows.map((row) => row.threads) },
      y: { scale: "linear", domain: [0, Math.max(most, ...rows.map((row) => row.speedup)) * 1.05], label: "speed-up over one thread", format: "value" },
      label: "Speed-up by threads", caption: "Dashed: ideal speed-up, in proportion to the threads.",
    });
    frame.plot.append(tg.svg("line", { x1: frame.x(0), y1: frame.y(0), x2: frame.x(most), y2: frame.y(most), "stroke-dasharray": "4 4", style: { stroke: "var(--ink-faint)" } }));
    tg.chart.line(frame, rows.map((row) => [row.threads, row.speedup]), { label: "measured" });
    tg.chart.dots(frame, rows.map((row) => ({ x: row.threads, y: row.speedup, row })), {
      label: "Speed-up", tip: ({ row }) => [["threads", tg.format.exact(row.threads)], ["median", tg.format.seconds(row.median_s)], ["efficiency", tg.format.percent(row.efficiency)]],
    });
    element.append(tg.rowTable("Thread scaling", [
      { label: "Threads", cell: (row) => tg.format.exact(row.threads) },
      { label: "Median", cell: (row) => tg.format.seconds(row.median_s) },
      { label: "Speed-up", cell: (row) => tg.format.value(row.speedup) },
      { label: "Efficiency", cell: (row) => tg.format.percent(row.efficiency) },
    ], rows), tg.facts(data.facts));
  }
})();
