// Pruning and quantization: of one tensor, and over all of them.
(() => {
  // Of a bin, within which values are taken as evenly spread: of one tensor, and of each of thousands.
  const [FINE, COARSE] = [16, 4];
  const ERRORS = Array.from({ length: 31 }, (_, step) => 10 ** (-3 + step / 10)); // 0.1 % to 100 %

  // Magnitudes with counts, ascending, from a histogram; exact zeros are known by themselves.
  function slices(histogram, zeros, parts) {
    const [low, high, ...counts] = histogram;
    const width = (high - low) / counts.length;
    const found = zeros ? [[0, zeros]] : [];
    counts.forEach((count, place) => {
      const from = low + place * width;
      const holdsZero = from <= 0 && (from + width > 0 || place === counts.length - 1 && from + width >= 0);
      const rest = holdsZero ? Math.max(count - (zeros ?? 0), 0) : count;
      for (let slice = 0; rest && slice < parts; slice += 1) found.push([Math.abs(from + ((slice + 0.5) / parts) * width), rest / parts]);
    });
    return found.sort(([a], [b]) => a - b);
  }

  // The share that may go at each relative error, the smallest first.
  function curve(histogram, zeros, errors, slicing = FINE) {
    const parts = slices(histogram, zeros, slicing);
    const all = parts.reduce((sum, [, count]) => sum + count, 0);
    const energy = parts.reduce((sum, [value, count]) => sum + value * value * count, 0);
    let [place, removed, spent] = [0, 0, 0];
    return errors.map((error) => {
      const budget = error * error * energy * (1 + 1e-12);
      while (place < parts.length && spent + parts[place][0] ** 2 * parts[place][1] <= budget) {
        spent += parts[place][0] ** 2 * parts[place][1];
        removed += parts[place][1];
        place += 1;
      }
      const [value, count] = parts[place] ?? [1, 0];
      return (removed + Math.min(count, value ? (budget - spent) / (value * value) : 0)) / (all || 1);
    });
  }
  tg.pruningCurve = curve;

  const wordOf = (structure) => (structure === "magnitude" ? "single values" : structure);
  const percentTick = (value) => `${tg.format.value(value * 100)} %`;

  function pruningFrame(box, caption) {
    return tg.chart.frame(box, {
      width: 520, height: 220, x: { scale: "log", domain: [ERRORS[0], 1], label: "relative error (L2)", format: percentTick },
      y: { scale: "linear", domain: [0, 1], label: "share removed", format: percentTick }, label: "Share of values that can be pruned, by relative error", caption,
    });
  }

  tg.drawPruning = (box, tensor, { structures }) => {
    const [histogram, pruning] = [tensor.get("histogram"), tensor.get("pruning")];
    if (!histogram || !pruning || !(histogram[1] > histogram[0])) return;
    box.append(tg.el("h4", {}, "Pruning"));
    const known = structures.map((name, place) => ({ name, color: `var(--c${place})`, at: [[0.01, pruning[2 * place]], [0.05, pruning[2 * place + 1]]].filter(([, share]) => tg.isKnown(share)) })).filter(({ at }) => at.length);
    const frame = pruningFrame(box, `Smallest first. Dots are exact; the line follows from the histogram. ${known.map(({ name, at }) => `${wordOf(name)}: ${at.map(([error, share]) => `${tg.format.percent(share)} at ${percentTick(error)}`).join(", ")}`).join("; ")}.`);
    const shares = curve(histogram, tensor.get("zeros"), ERRORS);
    tg.chart.line(frame, ERRORS.map((error, place) => [error, shares[place]]), { color: "var(--c0)", estimated: true, label: "single values, from the histogram" });
    for (const { name, color, at } of known) {
      tg.chart.dots(frame, at.map(([x, y]) => ({ x, y })), { color, label: name, tip: ({ x, y }) => [[wordOf(name), tg.format.percent(y)], ["at a relative error of", percentTick(x)]] });
    }
    tg.chart.legend(box, known.map(({ name, color }) => ({ label: wordOf(name), color })));
  };

  // Over all parameters: how much of them each format keeps above a number of decibels, and what pruning would take.
  tg.drawWeightCurves = (element, state) => {
    const { store } = state;
    const rows = Array.from({ length: store.length }, (_, row) => row).filter((row) => store.get(row, "role") === "parameter" && store.get(row, "sqnr"));
    if (!rows.length) return;
    element.append(tg.heading("Quantization and pruning over all parameters"));
    const box = tg.el("div", { class: "two-columns" });
    element.append(box);
    const [left, right] = [tg.el("div"), tg.el("div")];
    box.append(left, right);
    drawKept(left, rows, state);
    drawAll(right, rows, state);
  };

  function drawKept(box, rows, state) {
    const { formats, granularities } = state.data;
    const has = (grain) => rows.some((row) => formats.some((_, place) => tg.isKnown(state.store.get(row, "sqnr")[grain * formats.length + place])));
    const known = granularities.map((name, grain) => ({ value: String(grain), label: name.replaceAll("_", " ") })).filter(({ value }) => has(Number(value)));
    const area = tg.el("div");
    const redraw = (grain) => drawFormats(tg.replace(area), rows, state, Number(grain));
    box.append(tg.el("h4", {}, "Quantization"), known.length > 1 ? tg.el("div", { class: "controls" }, tg.toggle("Granularity", known, known[0].value, redraw)) : null, area);
    redraw(known[0]?.value ?? 0);
  }

  function drawFormats(area, rows, { store, data: { formats } }, grain) {
    const all = rows.reduce((sum, row) => sum + store.get(row, "elements"), 0);
    const frame = tg.chart.frame(area, {
      width: 520, height: 240, x: { scale: "linear", domain: [0, 60], label: "signal to noise, at least", format: "decibels" },
      y: { scale: "linear", domain: [0, 1.001], label: "share of the parameters", format: percentTick, ticks: [0, 0.25, 0.5, 0.75, 1] },
      label: "Share of the parameters kept above a signal-to-noise ratio, by format", caption: "Each tensor was quantized and dequantized; a lossless one counts as kept.",
    });
    formats.forEach((format, place) => {
      const kept = rows.map((row) => [store.get(row, "sqnr")[grain * formats.length + place] ?? Infinity, store.get(row, "elements")]).sort(([a], [b]) => b - a);
      const points = [];
      let sum = 0;
      for (const [decibels, elements] of kept) { sum += elements; points.push([Math.min(Math.max(decibels, 0), 60), sum / all]); }
      tg.chart.line(frame, [[60, 0], ...points, [0, 1]].map(([x, y]) => [x, y]), { color: `var(--c${place})`, label: format, step: true });
    });
    tg.chart.legend(area, formats.map((format, place) => ({ label: format, color: `var(--c${place})` })));
  }

  function drawAll(box, rows, { store }) {
    const spread = rows.filter((row) => { const histogram = store.get(row, "histogram"); return histogram && histogram[1] > histogram[0]; });
    if (!spread.length) return;
    box.append(tg.el("h4", {}, "Pruning"));
    const sums = new Array(ERRORS.length).fill(0);
    let all = 0;
    for (const row of spread) {
      const elements = store.get(row, "elements");
      all += elements;
      curve(store.get(row, "histogram"), store.get(row, "zeros"), ERRORS, COARSE).forEach((share, place) => { sums[place] += share * elements; });
    }
    const frame = pruningFrame(box, `${spread.length < rows.length ? `Of the ${tg.plural(spread.length, "tensor")} with a distribution here, each` : "Every tensor"} pruned by magnitude to the same relative error. The line is dashed because it is computed from the histograms and not exact.`);
    tg.chart.line(frame, ERRORS.map((error, place) => [error, sums[place] / all]), { color: "var(--c0)", estimated: true, label: "all parameters" });
    const exact = [[0.01, 0], [0.05, 1]].map(([x, place]) => ({ x, y: rows.reduce((sum, row) => sum + (store.get(row, "pruning")?.[place] ?? 0) * store.get(row, "elements"), 0) / rows.reduce((sum, row) => sum + store.get(row, "elements"), 0) }));
    tg.chart.dots(frame, exact, { color: "var(--c0)", label: "Exact", tip: ({ x, y }) => [["removed", tg.format.percent(y)], ["at a relative error of", percentTick(x)], "exact"] });
  }
})();
