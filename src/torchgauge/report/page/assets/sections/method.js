// How each number was obtained, and every caveat.
(() => {
  tg.section({
    id: "method", title: "Method", part: "method",
    draw(element, data) {
      for (const warning of data.warnings) element.append(tg.warn(tg.short(warning, 1000)));
      element.append(tg.heading("How the numbers were obtained"), tg.facts(origins(data)));
      drawInputs(element, data.inputs);
      if (data.coverage) tg.drawBlocks(element, data.coverage);
      drawUnused(element, data.unused);
      drawAbsent(element, data.absent);
      drawSettings(element, data.settings);
      if (data.pickle) drawPickle(element, data.pickle);
    },
  });

  function origins(data) {
    return [
      ["Structure and costs", "", data.how],
      ["Run", "", data.run],
      data.has_code ? ["MACs, FLOPs", "", "by a formula for each op from its shapes; a MAC is two FLOPs, MACs count matmul-class work alone"] : null,
      data.has_code ? ["Bytes moved", "", "each distinct input element read once, each output written once, per op; caches are not modelled"] : null,
      data.has_code ? ["Peak of activations", "", "the largest sum of live storages that are neither parameters nor buffers, inputs included"] : null,
      data.measured ? ["Time", "", timeText(data.measured)] : null,
      data.energy ? ["Energy", "", energyText(data.energy)] : null,
      data.energy?.sources.length ? ["Sources of the estimate", "", data.energy.sources.join("; ")] : null,
      data.weights ? ["Values of the weights", "", data.weights] : null,
    ];
  }

  function timeText({ runs, warmup_runs: warmup, profile, device, failure }) {
    if (failure && !runs) return `not measured: ${failure}`;
    const parts = [`the median of ${tg.plural(runs, "run")} on ${device} without instrumentation, after ${tg.format.exact(warmup ?? 0)} to warm up`];
    if (profile) {
      const overhead = tg.isKnown(profile.overhead_share) ? `, which took ${tg.format.percent(Math.abs(profile.overhead_share))} ${profile.overhead_share >= 0 ? "longer" : "less"}` : "";
      parts.push(`parts from ${tg.plural(profile.runs, "separate profiled run")}${overhead}; ${tg.format.exact(profile.joined_ops)} of ${tg.format.exact(profile.static_ops)} ops were found in them; nothing is scaled`);
    }
    return parts.join("; ");
  }

  const energyText = ({ origin, boundary, technology }) =>
    (origin === "measured" ? `measured by a meter; ${boundary}` : origin === "estimated" ? `estimated from operations, bytes and time for ${technology}; ${boundary}` : "unavailable");

  function drawInputs(element, inputs) {
    if (!inputs.length) return;
    element.append(tg.heading("Inputs"), tg.rowTable("Inputs", [
      { label: "Name", isText: true, cell: (row) => tg.name(row.name, 60) },
      { label: "Shape", isText: true, cell: (row) => row.shape },
      { label: "Type", isText: true, cell: (row) => row.dtype },
      { label: "", isText: true, cell: (row) => (row.inferred === null ? "given" : [tg.el("b", { class: "assumed" }, "assumed"), " ", tg.name(row.inferred, 300)]) },
    ], inputs));
  }

  function drawUnused(element, { count, modules }) {
    if (!count) return;
    element.append(tg.heading("Unused modules"), tg.rowTable("Unused modules", [
      { label: "Module", isText: true, cell: (row) => tg.place(row.path) },
      { label: "Parameters", cell: (row) => tg.format.count(row.params) },
    ], modules, { onClick: (row) => tg.selection.set(row.path, "method") }));
    if (count > modules.length) element.append(tg.note(`and ${tg.format.exact(count - modules.length)} more`));
  }

  function drawAbsent(element, absent) {
    if (!absent.length) return;
    element.append(tg.heading("Not available, and why"), tg.el("dl", { class: "facts" }, absent.map(({ name, reason }) => [tg.el("dt", {}, tg.name(name, 80)), tg.el("dd", {}, tg.name(reason, 400))])));
  }

  function drawPickle(element, { executed, imports }) {
    element.append(tg.heading("What the pickles would import"),
      tg.note(executed ? "The pickle was run, because --allow-pickle was given." : "Nothing in it was run; these are the names in the file."),
      tg.rowTable("Imports of the pickles", [
        { label: "Name", isText: true, cell: (row) => tg.name(row.name, 120) },
        { label: "Verdict", isText: true, cell: (row) => tg.el("span", { class: row.verdict === "expected" ? "faint" : "assumed" }, row.verdict) },
        { label: "Called", isText: true, cell: (row) => (row.called ? "yes" : "no") },
      ], imports));
  }

  function drawSettings(element, settings) {
    const known = settings.filter(({ value }) => tg.isKnown(value));
    if (known.length) element.append(tg.heading("Settings of the measurement"), tg.facts(known.map(({ name, value }) => [name, String(value)])));
  }
})();
