// Ops by arithmetic intensity: against what they reached where they were timed, else a histogram of the shapes alone.
(() => {
  const FIGURES = [
    { value: "flops", label: "FLOPs", form: "count" },
    { value: "bytes", label: "Bytes moved", form: "bytes" },
    { value: "ops", label: "Ops", form: "exact" },
  ];
  const PER_BYTE = "FLOPs per byte moved";

  tg.section({
    id: "roofline", title: "Roofline", part: "roofline",
    draw(element, data) {
      element.append(peaksText(data));
      if (data.points.length) drawRoofline(element, data);
      else drawHistogram(element, data);
    },
  });

  function peaksText(data) {
    if (!data.peaks) {
      return tg.el("p", { class: "note" }, `No roofline: the peak of ${data.device} is unknown. `,
        tg.el("code", {}, "torchgauge system --calibrate"), " measures it on the machine itself.");
    }
    const rates = data.ridges.map((ridge) => `${ridge.dtype} ${tg.format.rate(ridge.flops_per_s, "FLOP")} (ridge at ${tg.format.value(ridge.intensity)} FLOPs per byte)`);
    return tg.facts([
      ["Device", data.peaks.name ?? data.device],
      ["Arithmetic", "", rates.join(", ") || "not known in the model's types"],
      ["Memory", tg.format.rate(data.peaks.bytes_per_s, "B")],
      ["Source", "", data.peaks.source],
    ]);
  }

  function drawRoofline(element, data) {
    const { points, ridges } = data;
    const bandwidth = data.peaks?.bytes_per_s ?? null;
    const xs = [...points.map((point) => point.intensity), ...ridges.map((ridge) => ridge.intensity)];
    const ys = [...points.map((point) => point.flops_per_s), ...ridges.map((ridge) => ridge.flops_per_s)];
    const frame = tg.chart.frame(element, {
      width: 980, height: 420, x: { scale: "log", domain: spread(xs), label: PER_BYTE, format: "value" },
      y: { scale: "log", domain: spread(ys), label: data.is_predicted ? "FLOP/s, predicted" : "FLOP/s reached", format: "count" },
      label: `Roofline: the rate each op ${data.is_predicted ? "is predicted to reach" : "reached"} over its arithmetic intensity`,
      caption: `Each dot is all calls of one op with equal shapes, ${data.is_predicted ? `predicted for ${data.device}` : "timed in profiled runs"}; the larger, the more of the time. `
        + (ridges.length ? "Left of the ridge memory is the limit, right of it arithmetic. Ops on data in a cache can be above it." : ""),
    });
    for (const ridge of ridges) drawRoof(frame, ridge, bandwidth, spread(xs), spread(ys));
    const longest = Math.max(...points.map((point) => point.time_s));
    // Large dots first, so that small ones lie on top.
    tg.chart.dots(frame, [...points].sort((a, b) => b.time_s - a.time_s).map((point) => ({
      x: point.intensity, y: point.flops_per_s, color: tg.categoryColor(point.category), point,
      radius: 2.5 + 12 * Math.sqrt(point.time_s / longest),
    })), { label: "Ops", tip: ({ point }) => tip(point) });
    tg.chart.legend(element, [...new Set(points.map((point) => point.category))].map((name) => ({ label: name, color: tg.categoryColor(name) })));
    element.append(boundTable(points));
  }

  function tip(point) {
    return [
      `${point.op} ${point.shapes}`, ["calls", tg.format.exact(point.calls)], ["time", `${tg.format.seconds(point.time_s)}, ${tg.format.percent(point.share)}`],
      ["reached", tg.format.rate(point.flops_per_s, "FLOP")], ["FLOPs per byte", tg.format.value(point.intensity)],
      point.roof_share === null ? null : ["of the roof", tg.format.percent(point.roof_share)], point.bound ? ["bound by", point.bound] : null,
      point.source ? ["predicted from", point.source] : null,
    ];
  }

  const spread = (values) => [Math.min(...values) / 2, Math.max(...values) * 2.2];

  function drawRoof(frame, ridge, bandwidth, [left, right], [bottom]) {
    const start = Math.max(left, bottom / bandwidth);
    tg.chart.line(frame, [[start, start * bandwidth], [ridge.intensity, ridge.flops_per_s], [right, ridge.flops_per_s]],
      { color: "var(--ink-faint)", width: 1.3, label: ridge.dtype });
    frame.plot.append(tg.svg("text", { x: frame.width, y: frame.y(ridge.flops_per_s) - 5, "text-anchor": "end" }, `${ridge.dtype}, ${tg.format.rate(ridge.flops_per_s, "FLOP")}`));
  }

  // The text alternative: how much of the time each limit has.
  function boundTable(points) {
    const seconds = new Map();
    for (const point of points) {
      const bound = point.bound ?? "unknown";
      const sums = seconds.get(bound) ?? { bound, calls: 0, time: 0, share: 0 };
      seconds.set(bound, { bound, calls: sums.calls + point.calls, time: sums.time + point.time_s, share: point.share === null ? null : sums.share + point.share });
    }
    const rows = [...seconds.values()].sort((a, b) => b.time - a.time);
    return tg.rowTable("Time by what bounds the ops", [
      { label: "Bound by", isText: true, cell: (row) => row.bound },
      { label: "Calls", cell: (row) => tg.format.exact(row.calls) },
      { label: "Time", cell: (row) => tg.format.seconds(row.time) },
      { label: "of the run", cell: (row) => tg.format.percent(row.share) },
    ], rows);
  }

  function drawHistogram(element, data) {
    const area = tg.el("div");
    const redraw = (key) => drawBins(tg.replace(area), data, FIGURES.find(({ value }) => value === key));
    element.append(tg.el("p", { class: "note" }, "No op was timed: this is the intensity that the shapes alone give. ", tg.el("code", {}, "--profile"), " measures what each op reaches."),
      tg.el("div", { class: "controls" }, tg.toggle("Figure", FIGURES, "flops", redraw)), area);
    redraw("flops");
  }

  function drawBins(area, data, figure) {
    const bins = data.histogram;
    const most = Math.max(...bins.map((bin) => bin[figure.value]));
    const ridges = data.ridges.map((ridge) => ridge.intensity);
    const frame = tg.chart.frame(area, {
      width: 980, height: 260, x: { scale: "log", domain: [Math.min(bins[0].low, ...ridges) / 1.2, Math.max(bins.at(-1).high, ...ridges) * 1.2], label: PER_BYTE, format: "value" },
      y: { scale: "linear", domain: [0, most * 1.05], label: figure.label, format: figure.form },
      label: `${figure.label} by arithmetic intensity`,
      caption: data.ridges.length ? "Left of a ridge memory is the limit, right of it arithmetic." : "",
    });
    for (const bin of bins) {
      const [left, right, top] = [frame.x(bin.low), frame.x(bin.high), frame.y(bin[figure.value])];
      const rect = tg.svg("rect", { x: left + 0.5, width: Math.max(right - left - 1, 1), y: top, height: frame.height - top, tabindex: "0", style: { fill: "var(--accent)" } });
      tg.chart.tip.attach(rect, () => [[`${tg.format.value(bin.low)} to ${tg.format.value(bin.high)}`, PER_BYTE],
        ...FIGURES.map(({ value, label, form }) => [label, tg.format[form](bin[value])])]);
      frame.plot.append(rect);
    }
    for (const ridge of data.ridges) {
      const at = frame.x(ridge.intensity);
      frame.plot.append(tg.svg("line", { x1: at, x2: at, y1: 0, y2: frame.height, style: { stroke: "var(--warn)", "stroke-width": 1.2 } }),
        tg.svg("text", { x: at + 4, y: 10 }, `ridge, ${ridge.dtype}`));
    }
  }
})();
