// Measured time: the undisturbed runs, time by module and op, unattributed time, and the state of the machine.
(() => {
  const SHOWN = 12;

  tg.section({
    id: "time", title: "Time", part: "time",
    draw(element, data) {
      if (data.latency) drawLatency(element, data.latency);
      tg.drawBlocks(element, data.measured);
      drawPhases(element, data.phases);
      if (data.withheld) element.append(tg.note(data.withheld));
      drawRankings(element, data);
      if (data.residue) tg.drawBlocks(element, data.residue);
      for (const section of data.machine) tg.drawBlocks(element, section);
      tg.drawSystem(element, data.quantities);
    },
  });

  // Least to most on one line, with the interval of the median as a band.
  function drawLatency(element, latency) {
    if (!(latency.max_s > latency.min_s)) return;
    const room = (latency.max_s - latency.min_s) * 0.04;
    const frame = tg.chart.frame(element, {
      width: 760, height: 92, x: { scale: "linear", domain: [Math.max(latency.min_s - room, 0), latency.max_s + room], format: "seconds" },
      y: { scale: "linear", domain: [0, 1], ticks: [], format: () => "" }, label: "Spread of the undisturbed runs",
      caption: "The undisturbed runs: from the fastest to the slowest, the median with its 95 % interval, p90 and p99.",
    });
    const middle = frame.height / 2;
    const [low, high] = latency.ci95_s ?? [latency.median_s, latency.median_s];
    frame.plot.append(
      tg.svg("line", { x1: frame.x(latency.min_s), x2: frame.x(latency.max_s), y1: middle, y2: middle, style: { stroke: "var(--ink-faint)" } }),
      tg.svg("rect", { x: frame.x(low), width: Math.max(frame.x(high) - frame.x(low), 1), y: middle - 13, height: 26, style: { fill: "var(--accent)", opacity: 0.25 } }));
    const marks = [["fastest", latency.min_s, 6], ["median", latency.median_s, 15], ["p90", latency.p90_s, 8], ["p99", latency.p99_s, 8], ["slowest", latency.max_s, 6]];
    for (const [name, value, half] of marks) {
      const at = frame.x(value);
      const mark = tg.svg("line", { x1: at, x2: at, y1: middle - half, y2: middle + half, style: { stroke: name === "median" ? "var(--accent)" : "var(--ink-faint)", "stroke-width": name === "median" ? 2.5 : 1.5 } });
      tg.chart.tip.attach(mark, () => [[name, tg.format.seconds(value)]]);
      frame.plot.append(mark);
    }
    frame.plot.append(tg.svg("text", { x: frame.x(latency.median_s), y: middle - 19, "text-anchor": "middle" }, `median ${tg.format.seconds(latency.median_s)}`));
  }

  function drawPhases(element, phases) {
    if (phases.length < 2) return;
    const whole = phases.reduce((sum, phase) => sum + phase.time_s, 0);
    element.append(tg.heading("Phases of a training step"));
    tg.chart.bars(element, phases.map((phase, place) => ({ label: phase.name, value: phase.time_s, text: tg.format.seconds(phase.time_s), share: phase.time_s / whole, color: `var(--c${place})` })),
      { label: "Phases" });
  }

  function drawRankings(element, data) {
    const views = [
      { value: "modules", label: "Modules", rows: data.modules, draw: moduleBars },
      { value: "ops", label: "Ops", rows: data.ops, draw: opTable },
      { value: "phases", label: "Modules by phase", rows: data.module_phases, draw: phaseTable },
    ].filter(({ rows }) => rows.length);
    if (!views.length) return;
    const area = tg.el("div");
    const redraw = (key) => { const view = views.find(({ value }) => value === key); view.draw(tg.replace(area), view.rows, data); };
    element.append(tg.heading("Where the time goes"), views.length > 1 ? tg.el("div", { class: "controls" }, tg.toggle("Rank", views, views[0].value, redraw)) : null, area);
    redraw(views[0].value);
  }

  function moduleBars(area, rows) {
    tg.chart.bars(area, rows.slice(0, SHOWN).map((row) => ({
      label: tg.place(row.paths), value: row.self_time_s, text: tg.format.seconds(row.self_time_s), share: row.share, note: row.count > 1 ? `${row.kind} ×${row.count}` : row.kind,
      tip: [row.paths || "the model itself", ["own time", tg.format.seconds(row.self_time_s)], ["of the undisturbed run", tg.format.percent(row.share)], ["FLOPs", tg.format.count(row.flops)]],
    })), { label: "Slowest modules", caption: "Own time, without submodules; repeated blocks are grouped. Measured, not scaled to the whole." });
  }

  function opTable(area, rows, { ops_note: note }) {
    const hasRoof = rows.some((row) => row.roof_share !== null);
    area.append(tg.rowTable("Slowest ops", [
      { label: "Op", isText: true, cell: (row) => [tg.name(row.op, 60), " ", tg.el("small", {}, row.shapes)] },
      { label: "×", cell: (row) => tg.format.exact(row.calls) },
      { label: "Time", cell: (row) => tg.format.seconds(row.time_s) },
      { label: "share", cell: (row) => tg.format.percent(row.share) },
      { label: "FLOP/s", cell: (row) => tg.format.count(row.flops_per_s) },
      { label: "Bytes/s", cell: (row) => tg.format.bytes(row.bytes_per_s) },
      hasRoof ? { label: "of roof", cell: (row) => tg.format.percent(row.roof_share) } : null,
      { label: "Bound", isText: true, cell: (row) => row.bound ?? "–" },
    ].filter(Boolean), rows), tg.note(note));
  }

  function phaseTable(area, rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.seconds)))];
    area.append(tg.rowTable("Slowest modules by phase", [
      { label: "Module", isText: true, cell: (row) => tg.place(row.paths) },
      { label: "×", cell: (row) => tg.format.exact(row.count) },
      ...names.map((name) => ({ label: name, cell: (row) => tg.format.seconds(row.seconds[name]) })),
    ], rows), tg.note("Own measured time in each phase."));
  }
})();
