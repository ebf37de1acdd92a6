// What a run consumes. An estimate is hatched, dashed, has a sign before it and its range.
(() => {
  const SHOWN = 12;

  tg.section({
    id: "energy", title: "Energy", part: "energy",
    draw(element, data) {
      tg.drawBlocks(element, data.summary);
      if (data.is_estimated && data.range) drawRange(element, data.range);
      drawRankings(element, data);
      tg.drawThermal(element, data);
      drawPareto(element, data.pareto, data.front);
      if (data.carbon) tg.drawBlocks(element, data.carbon);
    },
  });

  const between = (range) => `between ${tg.format.joules(range.low)} and ${tg.format.joules(range.high)}`;

  function drawRange(element, range) {
    const frame = tg.chart.frame(element, {
      width: 560, height: 74, x: { scale: "log", domain: [range.low / 1.3, range.high * 1.3], format: "joules", ticks: [range.low, range.value, range.high] },
      y: { scale: "linear", domain: [0, 1], ticks: [], format: () => "" }, label: `Estimated energy, ${between(range)}`, caption: "The range of the estimate, on a logarithmic scale.",
    });
    const middle = frame.height / 2;
    frame.plot.append(
      tg.svg("line", { x1: frame.x(range.low), x2: frame.x(range.high), y1: middle, y2: middle, "stroke-dasharray": "5 4", style: { stroke: "var(--estimated)", "stroke-width": 3 } }),
      tg.svg("circle", { cx: frame.x(range.value), cy: middle, r: 5, style: { fill: "var(--paper)", stroke: "var(--estimated)", "stroke-width": 2 } }));
  }

  function drawRankings(element, data) {
    const views = [{ value: "modules", label: "Modules", rows: data.modules }, { value: "ops", label: "Ops", rows: data.ops }].filter(({ rows }) => rows.length);
    if (!views.length) return;
    const area = tg.el("div");
    const redraw = (key) => drawRanking(tg.replace(area), views.find(({ value }) => value === key).rows, key, data);
    element.append(tg.heading("Where it goes", data.is_estimated ? tg.estimated() : null),
      tg.el("div", { class: "controls" }, tg.toggle("Rank", views, views[0].value, redraw)), area);
    redraw(views[0].value);
    for (const note of data.ops_notes) element.append(tg.note(note));
  }

  function drawRanking(area, rows, key, data) {
    const label = (row) => (key === "modules" ? tg.place(row.paths) : tg.el("span", {}, tg.name(row.op, 60), " ", tg.el("small", {}, row.shapes)));
    const note = (row) => (key === "modules" ? (row.count > 1 ? `${row.kind} ×${row.count}` : row.kind) : `×${row.calls}`);
    tg.chart.bars(area, rows.slice(0, SHOWN).map((row) => ({
      label: label(row), value: row.joules, text: tg.format.joules(row.joules), share: row.share, estimated: data.is_estimated, note: note(row),
      tip: [["energy", `${data.is_estimated ? "≈ " : ""}${tg.format.joules(row.joules)}`], ["share", tg.format.percent(row.share)], data.is_estimated ? null : ["FLOP/J", tg.format.count(row.flops_per_joule)]],
    })), { label: `Energy by ${key}`, caption: "Own energy, without submodules; repeated blocks are grouped." });
  }

  // Time against energy over the points of a sweep; the front are those that no other point beats in both.
  function drawPareto(element, points, front) {
    const measured = points.filter((point) => tg.isKnown(point.joules) && tg.isKnown(point.time_s));
    if (!points.length) return;
    element.append(tg.heading(front.title, measured.length ? null : tg.estimated()));
    if (measured.length > 1) drawFront(element, measured, front.marked);
    element.append(tg.rowTable("Time against energy", [
      { label: "Point", isText: true, cell: (row) => tg.name(row.name, 60) },
      { label: "Time", cell: (row) => tg.format.seconds(row.time_s) },
      { label: "Energy", cell: (row) => (tg.isKnown(row.joules) ? tg.format.joules(row.joules) : tg.el("span", { class: "about" }, `≈ ${tg.format.joules(row.estimated.value)}`)) },
      measured.length === points.length ? null : { label: "Range", cell: (row) => (tg.isKnown(row.joules) ? "" : `${tg.format.joules(row.estimated.low)} to ${tg.format.joules(row.estimated.high)}`) },
      { label: "Power cap", cell: (row) => tg.format.watts(row.power_limit_watts) },
      { label: "", isText: true, cell: (row) => (row.efficient ? "on the front" : "") },
    ].filter(Boolean), points));
    if (!measured.length) element.append(tg.note(front.unknown));
  }

  function label(frame, point) {
    const isLate = frame.x(point.time_s) > frame.width - 90;
    return tg.svg("text", { x: frame.x(point.time_s) + (isLate ? -8 : 8), y: frame.y(point.joules) + 4, "text-anchor": isLate ? "end" : "start" }, tg.short(point.name, 24));
  }

  function drawFront(element, points, marked) {
    const frame = tg.chart.frame(element, {
      width: 640, height: 280, x: { scale: "linear", domain: [0, Math.max(...points.map((point) => point.time_s)) * 1.08], label: "time per sample", format: "seconds" },
      y: { scale: "linear", domain: [0, Math.max(...points.map((point) => point.joules)) * 1.08], label: "energy per sample", format: "joules" },
      label: "Energy over time per sample", caption: `Large and green: ${marked}`,
    });
    const front = points.filter((point) => point.efficient).sort((a, b) => a.time_s - b.time_s);
    if (front.length > 1) tg.chart.line(frame, front.map((point) => [point.time_s, point.joules]), { color: "var(--good)", step: true, width: 1.2, label: "the front" });
    for (const isEfficient of [false, true]) {
      const chosen = points.filter((point) => Boolean(point.efficient) === isEfficient);
      if (!chosen.length) continue;
      tg.chart.dots(frame, chosen.map((point) => ({ x: point.time_s, y: point.joules, point })), {
        color: isEfficient ? "var(--good)" : "var(--ink-faint)", radius: isEfficient ? 5 : 3.5, label: isEfficient ? "On the front" : "Other points",
        tip: ({ point }) => [point.name, ["time", tg.format.seconds(point.time_s)], ["energy", tg.format.joules(point.joules)], ["power", tg.format.watts(point.watts_mean)]],
      });
    }
    for (const point of points) frame.plot.append(label(frame, point));
  }
})();
