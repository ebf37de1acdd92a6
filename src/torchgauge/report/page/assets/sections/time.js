// Measured time: the undisturbed runs, time by module and op, unattributed time, and the state of the machine.
(() => {
  const SHOWN = 12;

  tg.section({
    id: "time", title: "Time", part: "time",
    draw(element, data) {
      if (data.failure) element.append(tg.warn(tg.short(`The measurement ended early: ${data.failure}`, 600)));
      if (data.latency) {
        drawLatency(element, data.latency);
        element.append(tg.facts(facts(data)));
      }
      for (const note of data.notes) element.append(tg.el("p", { class: "warning small" }, tg.short(note, 600)));
      drawPhases(element, data.phases);
      drawRankings(element, data);
      if (data.residue) drawResidue(element, data.residue);
      drawCounters(element, data.counters);
      tg.drawSystem(element, data.system);
    },
  });

  function facts({ latency, device, threads, surroundings }) {
    const interval = tg.isKnown(latency.precision)
      ? `median of ${tg.format.exact(latency.runs)} undisturbed runs, ±${tg.format.percent(latency.precision)} (95 %: ${tg.format.seconds(latency.ci95_s[0])} to ${tg.format.seconds(latency.ci95_s[1])})`
      : "one undisturbed run: its variation is unknown";
    const spread = `${tg.format.seconds(latency.min_s)} to ${tg.format.seconds(latency.max_s)}, p90 ${tg.format.seconds(latency.p90_s)}, p99 ${tg.format.seconds(latency.p99_s)}, mean ${tg.format.seconds(latency.mean_s)}, std ${tg.format.seconds(latency.std_s)}`;
    return [
      ["Latency", tg.format.seconds(latency.median_s), `${interval}, on ${device}`],
      latency.runs > 1 ? ["Spread", "", spread] : null,
      tg.isKnown(latency.host_s) ? ["Host", tg.format.seconds(latency.host_s), `until the call returns, ${tg.format.percent(latency.host_s / latency.median_s)} of the median`] : null,
      tg.isKnown(latency.throughput_per_s) ? ["Throughput", tg.format.rate(latency.throughput_per_s), "samples, at the median"] : null,
      tg.isKnown(latency.cold_s) ? ["First run", tg.format.seconds(latency.cold_s), `cold; then ${tg.plural(latency.warmup_runs ?? 0, "run")} to warm up`] : null,
      tg.isKnown(threads.intra_op) ? ["Threads", tg.format.exact(threads.intra_op), `intra-op, ${tg.format.exact(threads.inter_op)} inter-op${tg.isKnown(threads.utilisation) ? `; busy ${tg.format.percent(threads.utilisation)} of their time` : ""}`] : null,
      tg.isKnown(surroundings.own_share) ? ["Machine", "", `this process used ${tg.format.percent(surroundings.own_share)} of it, others ${tg.format.percent(surroundings.other_processes_share)}, governor ${surroundings.governor ?? "unknown"}`] : null,
    ];
  }

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
      { label: "Phases", caption: "One step, synchronised between phases." });
  }

  function drawRankings(element, data) {
    const views = [
      { value: "modules", label: "Modules", rows: data.modules, draw: moduleBars },
      { value: "ops", label: "Ops", rows: data.ops, draw: opTable },
      { value: "phases", label: "Modules by phase", rows: data.module_phases, draw: phaseTable },
    ].filter(({ rows }) => rows.length);
    if (!views.length) return;
    const area = tg.el("div");
    const redraw = (key) => { const view = views.find(({ value }) => value === key); view.draw(tg.replace(area), view.rows); };
    element.append(tg.heading("Where the time goes"), views.length > 1 ? tg.el("div", { class: "controls" }, tg.toggle("Rank", views, views[0].value, redraw)) : null, area);
    redraw(views[0].value);
  }

  function moduleBars(area, rows) {
    tg.chart.bars(area, rows.slice(0, SHOWN).map((row) => ({
      label: tg.place(row.paths), value: row.self_time_s, text: tg.format.seconds(row.self_time_s), share: row.share, note: row.count > 1 ? `${row.kind} ×${row.count}` : row.kind,
      tip: [row.paths || "the model itself", ["own time", tg.format.seconds(row.self_time_s)], ["of the undisturbed run", tg.format.percent(row.share)], ["FLOPs", tg.format.count(row.flops)]],
    })), { label: "Slowest modules", caption: "Own time, without submodules; equal places of repeated blocks are grouped. Measured, not scaled to the whole." });
  }

  function opTable(area, rows) {
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
    ].filter(Boolean), rows), tg.note(`Equal calls together, times of profiled runs, not scaled.${hasRoof ? "" : " The device's limits are not known: `torchgauge system --calibrate` measures them."}`));
  }

  function phaseTable(area, rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.seconds)))];
    area.append(tg.rowTable("Slowest modules by phase", [
      { label: "Module", isText: true, cell: (row) => tg.place(row.paths) },
      { label: "×", cell: (row) => tg.format.exact(row.count) },
      ...names.map((name) => ({ label: name, cell: (row) => tg.format.seconds(row.seconds[name]) })),
    ], rows), tg.note("Own measured time in each phase."));
  }

  function drawResidue(element, residue) {
    const slower = tg.isKnown(residue.overhead_share) ? `took ${tg.format.percent(Math.abs(residue.overhead_share))} ${residue.overhead_share >= 0 ? "longer" : "less"}` : "take longer";
    const unexplained = residue.unexplained_s < 0 ? "under the profiler the ops take longer than the whole run does without it" : `${tg.format.percent(residue.unexplained_share)} of the run`;
    element.append(tg.heading("The undisturbed run and its parts"), tg.facts([
      ["Whole run", tg.format.seconds(residue.total_s), "the median above"],
      ["In ops", tg.format.seconds(residue.in_ops_s), `${residue.device_s === null ? "" : "on the device "}(${tg.format.exact(residue.joined_ops)} of ${tg.format.exact(residue.static_ops)} ops)`],
      ["Unattributed", tg.format.seconds(residue.unexplained_s), unexplained],
      tg.isKnown(residue.device_idle_s) ? ["Device idle", tg.format.seconds(residue.device_idle_s), `${tg.format.percent(residue.device_idle_s / residue.total_s)}: no kernel ran`] : null,
      tg.isKnown(residue.between_ops_s) && residue.profiled_s ? ["Between ops", tg.format.seconds(residue.between_ops_s), `${tg.format.percent(residue.between_ops_s / residue.profiled_s)} of one profiled run of ${tg.format.seconds(residue.profiled_s)}: Python, and the profiler's own work`] : null,
    ]), tg.note(`Parts are from profiled runs, which ${slower}; they are measured, not scaled.`));
  }

  function drawCounters(element, counters) {
    if (!counters || !counters.facts.length) return;
    element.append(tg.heading("Processor counters, per run"), tg.facts(counters.facts), ...counters.notes.map((note) => tg.note(note)));
  }
})();
