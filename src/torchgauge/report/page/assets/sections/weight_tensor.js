// One tensor: its distribution with quantiles, what quantization and pruning would do to it.
(() => {
  tg.drawTensor = (element, state) => {
    const area = tg.el("div", { class: "tensor-panel", "aria-live": "polite" });
    element.append(area);
    const all = state.data.total;
    const show = (row) => drawOne(tg.replace(area), row === null ? whole(all) : one(state.store, row), state);
    const largest = state.store.column("bytes").reduce((best, bytes, row, every) => (tg.isKnown(state.store.get(row, "mean")) && (best === null || bytes > every[best]) ? row : best), null);
    const start = all && all.histogram ? null : largest;
    if (start !== null || all) show(start);
    state.listeners.push((row, origin) => {
      if (row === undefined || row === null) return;
      show(row);
      if (origin !== "map") area.scrollIntoView({ block: "nearest" });
    });
  };

  const one = (store, row) => ({ get: (key) => store.get(row, key), title: store.get(row, "name"), note: `${store.get(row, "shape")} ${store.get(row, "dtype")}` });
  const whole = (total) => ({ get: (key) => total[key] ?? null, title: "All parameters", note: "", isWhole: true });

  function drawOne(area, tensor, state) {
    area.append(tg.el("h3", {}, tg.name(tensor.title, 140), " ", tg.el("small", {}, tensor.note)));
    const box = tg.el("div", { class: "two-columns" });
    area.append(box);
    const [left, right] = [tg.el("div"), tg.el("div")];
    box.append(left, right);
    drawHistogram(left, tensor, state.data.quantiles);
    if (!tensor.isWhole) right.append(tg.facts(facts(tensor)));
    drawFormats(right, tensor, state.data);
    tg.drawPruning(left, tensor, state.data);
    const advised = tensor.get("recommendations");
    if (advised) area.append(tg.list(advised.split("\n")));
  }

  function facts(tensor) {
    const { value, percent, exact } = tg.format;
    const get = tensor.get;
    return [
      ["Elements", exact(get("elements")), tg.format.bytes(get("bytes"))],
      ["Mean, std", `${value(get("mean"))}, ${value(get("std"))}`],
      ["Range", `${value(get("min"))} … ${value(get("max"))}`],
      ["Kurtosis, skewness", `${value(get("kurtosis"))}, ${value(get("skewness"))}`],
      ["Zeros", percent(get("sparsity")), `${percent(get("near_zero"))} near zero`],
      tg.isKnown(get("spectral_norm")) ? ["Spectral norm", value(get("spectral_norm")), `stable rank ${value(get("stable_rank"))}${tg.isKnown(get("condition_estimate")) ? `, condition ${value(get("condition_estimate"))}` : ""}`] : null,
      tg.isKnown(get("entropy_bits")) ? ["Entropy", `${value(get("entropy_bits"))} of ${value(get("entropy_symbol_bits"))} bits`, `${percent(get("compressibility"))} compressible`] : null,
      get("nan") || get("inf") ? ["Not finite", `${exact(get("nan"))} NaN, ${exact(get("inf"))} infinite`] : null,
      get("duplicate_of") ? ["Same values as", "", get("duplicate_of")] : null,
    ];
  }

  function drawHistogram(box, tensor, names) {
    const histogram = tensor.get("histogram");
    if (!histogram) { box.append(tg.note(tg.isKnown(tensor.get("mean")) ? "The page has the distributions of the largest tensors only; this is a smaller one." : "Its values were not read.")); return; }
    const [low, high, ...counts] = histogram;
    const control = { isLog: Math.max(...counts) > 400 * (counts.filter((count) => count > 0).sort((a, b) => a - b)[0] ?? 1) };
    const area = tg.el("div");
    const redraw = () => drawBins(tg.replace(area), tensor, names, { low, high, counts, isLog: control.isLog });
    box.append(tg.el("div", { class: "controls" }, tg.check("logarithmic counts", control.isLog, (checked) => { control.isLog = checked; redraw(); })), area);
    redraw();
  }

  function drawBins(area, tensor, names, { low, high, counts, isLog }) {
    const width = (high - low || Math.abs(low) || 1) / counts.length;
    const [from, to] = high > low ? [low, high] : [low - width / 2, low + width * counts.length];
    const most = Math.max(...counts);
    const frame = tg.chart.frame(area, {
      width: 520, height: 230, x: { scale: "linear", domain: [from, to], label: "value", format: "value" },
      y: isLog ? { scale: "log", domain: [0.5, most * 1.5], format: "count" } : { scale: "linear", domain: [0, most * 1.06], format: "count" },
      label: `Distribution of ${tg.short(tensor.title, 80)}`, caption: caption(tensor, names, counts.length),
    });
    counts.forEach((count, place) => {
      if (!count) return;
      const [left, right, top] = [frame.x(from + place * width), frame.x(from + (place + 1) * width), frame.y(count)];
      const rect = tg.svg("rect", { x: left, width: Math.max(right - left - 0.5, 0.5), y: top, height: Math.max(frame.height - top, 0), style: { fill: "var(--accent)" } });
      tg.chart.tip.attach(rect, () => [[`${tg.format.value(from + place * width)} … ${tg.format.value(from + (place + 1) * width)}`, tg.format.exact(count)]]);
      frame.plot.append(rect);
    });
    markQuantiles(frame, tensor.get("quantile"), names);
  }

  const caption = (tensor, names, bins) => {
    const quantiles = tensor.get("quantile");
    const text = quantiles ? ` Quantiles: ${names.map((name, place) => `${Number(name) * 100} % ${tg.format.value(quantiles[place])}`).join(", ")}.` : "";
    return `${bins} equal bins.${text}`;
  };

  function markQuantiles(frame, quantiles, names) {
    if (!quantiles) return;
    for (const name of ["0.01", "0.25", "0.5", "0.75", "0.99"]) {
      const value = quantiles[names.indexOf(name)];
      if (!tg.isKnown(value)) continue;
      const at = frame.x(value);
      const line = tg.svg("line", { x1: at, x2: at, y1: 0, y2: frame.height, style: { stroke: "var(--warn)", "stroke-width": name === "0.5" ? 1.6 : 1, "stroke-dasharray": name === "0.5" ? "" : "2 3" } });
      tg.chart.tip.attach(line, () => [[`quantile ${name}`, tg.format.value(value)]]);
      frame.plot.append(line);
    }
  }

  // A row for each format, a dot for each granularity, against the marks of 20 and 30 dB.
  function drawFormats(box, tensor, { formats, granularities }) {
    const sqnr = tensor.get("sqnr");
    if (!sqnr) return;
    const most = Math.max(...sqnr.filter(tg.isKnown), 40);
    box.append(tg.el("h4", {}, "Signal to quantization noise"));
    const frame = tg.chart.frame(box, {
      width: 520, height: 40 + 26 * formats.length, x: { scale: "linear", domain: [0, most * 1.06], format: "decibels" },
      y: { scale: "linear", domain: [formats.length - 0.5, -0.5], ticks: formats.map((_, place) => place), format: (place) => formats[place] },
      label: "Decibels by format and granularity",
      caption: `${formats.map((format, place) => `${format} ${granularities.map((_, grain) => tg.format.decibels(sqnr[grain * formats.length + place])).filter((text) => text !== "–").join(" / ") || "lossless"}`).join("; ")}.`,
    });
    for (const limit of [20, 30]) {
      const at = frame.x(limit);
      frame.plot.append(tg.svg("line", { x1: at, x2: at, y1: 0, y2: frame.height, style: { stroke: "var(--ink-faint)", "stroke-dasharray": "2 3" } }));
    }
    granularities.forEach((name, grain) => {
      const dots = formats.map((format, place) => ({ x: sqnr[grain * formats.length + place], y: place, format })).filter(({ x }) => tg.isKnown(x));
      if (dots.length) tg.chart.dots(frame, dots, { color: `var(--c${grain})`, radius: 4.5, label: name, tip: ({ x, format }) => [[format, tg.format.decibels(x)], name.replaceAll("_", " ")] });
    });
    const used = granularities.map((name, grain) => ({ label: name.replaceAll("_", " "), color: `var(--c${grain})`, grain })).filter(({ grain }) => formats.some((_, place) => tg.isKnown(sqnr[grain * formats.length + place])));
    tg.chart.legend(box, used);
  }
})();
