// Memory over the run, and the contents of the peak.
(() => {
  const KIND_COLORS = { activation: "var(--c0)", gradient: "var(--c1)", "optimizer state": "var(--c3)", result: "var(--c2)" };

  const SHOWN = 8;

  tg.section({
    id: "memory", title: "Memory", part: "memory",
    draw(element, data) {
      element.append(tg.facts(headline(data)));
      drawCourse(element, data);
      drawPeak(element, data);
      if (data.measured) drawMeasured(element, data.measured);
    },
  });

  function headline(data) {
    const place = data.peak_op ? `at ${placeText(data.peak_op)}` : "the inputs alone";
    const measured = data.measured;
    const difference = measured && tg.isKnown(measured.difference_share) ? `; predicted ${tg.format.bytes(measured.predicted_bytes)}, a difference of ${signed(measured.difference_share)}` : "";
    const what = data.gradients ? "Peak without parameters and buffers" : "Peak of activations";
    return [
      data.total ? ["Memory in total", tg.format.bytes(data.total.bytes), totalText(data)] : null,
      [what, tg.format.bytes(data.peak_bytes), `${place}; from the shapes alone, inputs included`],
      measured && tg.isKnown(measured.peak_bytes) ? ["Measured", tg.format.bytes(measured.peak_bytes), `added by one run at its peak to the memory allocated before it${difference}${stateText(measured.state_bytes)}`] : null,
      ["Always in memory", tg.format.bytes(data.param_bytes + data.buffer_bytes), `parameters ${tg.format.bytes(data.param_bytes)}, buffers ${tg.format.bytes(data.buffer_bytes)}`],
    ];
  }

  const PURPOSES = ["parameters", "buffers", "activations", "gradients", "optimizer state"];
  const totalText = ({ total, gradients }) => `at the peak${gradients ? " of a training step" : ""}: ${PURPOSES.filter((name) => total[name]).map((name) => `${tg.format.bytes(total[name])} ${name}`).join(" + ")}`;

  // The static course makes it in its only step, the measured step finds it there.
  const stateText = (bytes) => (bytes ? `; the optimizer's state, ${tg.format.bytes(bytes)}, was allocated before` : "");
  const signed = (share) => `${share >= 0 ? "+" : ""}${tg.format.percent(share)}`;
  const placeText = (op) => `${op.op} (op ${op.index}) in ${op.module === "" ? "the model itself" : tg.short(op.module, 90)}`;

  function drawCourse(element, data) {
    const indices = tg.ops.column("index");
    const live = tg.ops.column("live_bytes");
    // In training gradients and optimizer state are alive too: they are stacked on the activations, not part of them.
    const activations = data.gradients ? live.map((bytes, place) => bytes - data.gradients[place] - data.optimizer_state[place]) : live;
    const { measured } = data;
    // A run finds its inputs there; the static course has them in it.
    const held = measured ? measured.activations.map((bytes) => bytes + data.input_bytes) : [];
    const total = measured ? held.map((bytes, place) => bytes + measured.workspace[place]) : [];
    const top = maximum(live, maximum(total, data.peak_bytes));
    const frame = tg.chart.frame(element, {
      width: 980, height: 280, x: { scale: "linear", domain: [0, Math.max(indices.length - 1, 1)], label: "op, in order of execution", format: (value) => tg.format.exact(Math.round(value)) },
      y: { scale: "linear", domain: [0, top * 1.06], label: data.gradients ? "live memory" : "live activations", format: "bytes" },
      label: data.gradients ? "Live memory by op of the step" : "Live activations by op of the run",
      caption: measured ? "Measured: memory held by torch's allocator at each op, plus the inputs; workspace is memory that an op allocated and freed while it ran."
        : "From the shapes alone: storages that are neither parameters nor buffers, inputs included.",
    });
    drawPhases(frame, data.phases);
    if (data.gradients) {
      const withGradients = activations.map((bytes, place) => bytes + data.gradients[place]);
      tg.chart.line(frame, tg.thinned(indices, live), { color: "var(--c3)", step: true, label: "with optimizer state", width: 1.2 });
      tg.chart.line(frame, tg.thinned(indices, withGradients), { color: "var(--c4)", step: true, label: "with gradients", width: 1.2 });
      tg.chart.legend(element, [{ label: "activations", color: "var(--accent)" }, { label: "with gradients", color: "var(--c4)" }, { label: "with optimizer state", color: "var(--c3)" }]);
    }
    tg.chart.line(frame, tg.thinned(indices, activations), { color: "var(--accent)", area: true, step: true, label: "from the shapes", width: 1.3 });
    if (held.length) {
      tg.chart.line(frame, tg.thinned(measured.ops, total), { color: "var(--c1)", step: true, label: "measured, with workspace", width: 1.2 });
      tg.chart.line(frame, tg.thinned(measured.ops, held), { color: "var(--c2)", step: true, label: "measured", width: 1.2 });
      tg.chart.legend(element, [{ label: "from the shapes", color: "var(--accent)" }, { label: "measured", color: "var(--c2)" }, { label: "measured, with workspace", color: "var(--c1)" }]);
    }
    if (data.peak_op) markPeak(frame, data);
  }

  const maximum = (values, least) => values.reduce((most, value) => Math.max(most, value), least);

  function drawPhases(frame, phases) {
    for (const phase of phases) {
      const at = frame.x(phase.op);
      frame.plot.append(tg.svg("line", { x1: at, x2: at, y1: 0, y2: frame.height, style: { stroke: "var(--ink-faint)", "stroke-dasharray": "2 3" } }),
        tg.svg("text", { x: at + 4, y: 10 }, phase.name));
    }
  }

  function markPeak(frame, data) {
    tg.chart.dots(frame, [{ x: data.peak_op.index, y: data.peak_bytes }], {
      color: "var(--warn)", label: "Peak", tip: () => [["peak", tg.format.bytes(data.peak_bytes)], placeText(data.peak_op), data.peak_op.shapes],
      onClick: () => tg.selection.set(data.peak_op.module, "memory"),
    });
  }

  function drawPeak(element, data) {
    const found = data.at_peak;
    element.append(tg.heading("What is alive at the peak"));
    if (!found) {
      element.append(tg.note(data.peak_op ? "This analysis was saved without its data flow: which tensors are alive at the peak is unknown. Run the analysis again to see them." : "The inputs alone are the peak."));
      return;
    }
    const rows = [
      ...found.kinds.map((kind) => ({ label: kind.name, value: kind.bytes, color: KIND_COLORS[kind.name] })),
      { label: "inputs", value: found.inputs_bytes, color: "var(--c9)" },
      { label: "not read again", value: Math.max(found.other_bytes, 0), color: "var(--c5)" },
    ].filter((row) => row.value > 0);
    tg.chart.bars(element, rows.map((row) => ({ ...row, text: tg.format.bytes(row.value), share: row.value / data.peak_bytes })), {
      label: "What is alive at the peak, by kind",
      caption: found.other_bytes > 0 ? "Tensors that no later op reads are still held by a variable of the model's code, a cache, or a second output of an op." : null,
    });
    element.append(tg.heading("The tensors"), tensorTable(found), moduleBars(found, data.peak_bytes));
  }

  function tensorTable(found) {
    const table = tg.rowTable("Tensors alive at the peak", [
      { label: "Made by", isText: true, cell: (row) => [tg.name(row.op, 60), " ", tg.el("small", {}, row.shapes)] },
      { label: "In", isText: true, cell: (row) => tg.place(row.module) },
      { label: "Bytes", cell: (row) => tg.format.bytes(row.bytes) },
      { label: "Until", isText: true, cell: (row) => (row.reader ? tg.el("span", { class: "faint" }, `op ${row.reader.index}, ${row.reader.op}`) : tg.el("span", { class: "faint" }, `kept: ${row.kind}`)) },
    ], found.tensors, { shown: SHOWN, onClick: (row) => tg.selection.set(row.module, "memory") });
    const { count, bytes } = found.more;
    return tg.el("div", {}, table, count ? tg.note(`and ${tg.format.exact(count)} more, ${tg.format.bytes(bytes)}`) : null);
  }

  function moduleBars(found, peak) {
    const box = tg.el("div", {}, tg.heading("The modules that made them"));
    tg.chart.bars(box, found.modules.slice(0, SHOWN).map((row) => ({ label: tg.place(row.path), path: row.path, value: row.bytes, text: tg.format.bytes(row.bytes), share: row.bytes / peak })),
      { label: "Bytes alive at the peak, by module", onClick: (row) => tg.selection.set(row.path, "memory") });
    if (found.module_count > SHOWN) box.append(tg.note(`and ${tg.plural(found.module_count - SHOWN, "more module")}`));
    return box;
  }

  function drawMeasured(element, measured) {
    const { held } = measured;
    element.append(tg.heading("Measured memory"));
    if (held) {
      const names = ["parameters", "buffers", "inputs", "activations", "gradients", "workspace"].filter((name) => held[name] || name !== "gradients");
      tg.chart.bars(element, names.map((name, place) => ({ label: name, value: held[name], text: tg.format.bytes(held[name]), color: `var(--c${place})` })),
        { label: "Held at the measured peak", caption: `Held at the measured peak, ${placeText(held.op)}.` });
    }
    element.append(tg.facts(measured.facts));
  }
})();
