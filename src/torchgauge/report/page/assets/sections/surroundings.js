// Power, temperature and clocks while the energy was measured, and the carbon it comes to. Drawn by the section on energy.
(() => {
  const QUANTITIES = [
    { key: "power_w", label: "power", form: tg.format.watts, fromZero: true },
    { key: "temperature_c", label: "temperature", form: (value) => `${tg.format.value(value)} °C`, fromZero: false },
    { key: "clock_hz", label: "clock", form: (value) => `${tg.format.count(value)}Hz`, fromZero: false },
  ];

  tg.drawThermal = (element, { thermal, idle_watts: idle, power_limit_watts: limit }) => {
    if (!thermal) return;
    element.append(tg.heading("Power, temperature and clocks while it was measured"));
    const box = tg.el("div", { class: "small-charts" });
    element.append(box);
    for (const quantity of QUANTITIES) {
      const series = thermal.series?.[quantity.key];
      if (series && series.values.filter(tg.isKnown).length > 2) drawCourse(box, quantity, series, quantity.key === "power_w" ? idle : null);
    }
    element.append(tg.facts([
      ...QUANTITIES.slice(1).map(({ key, label, form }) => (thermal[key] ? [`The ${label}`, courseText(thermal[key], form), `${form(thermal[key].min)} to ${form(thermal[key].max)} over all`] : null)),
      thermal.throttled ? ["Held back", "", throttled(thermal.throttled)] : null,
      tg.isKnown(thermal.drift?.first_to_last) ? ["Drift", `${thermal.drift.first_to_last > 0 ? "+" : ""}${tg.format.percent(thermal.drift.first_to_last)}`, `of energy, from the first trial to the last${tg.isKnown(thermal.drift.joules_per_degree) ? `; ${tg.format.joules(thermal.drift.joules_per_degree)} per °C` : ""}`] : null,
      limit ? ["Limit", tg.format.watts(limit), "the device's power limit"] : null,
    ]));
  };

  const courseText = ({ first, last }, form) => (first === last ? form(first) : `${form(first)} to ${form(last)}`);

  const throttled = (reasons) =>
    Object.entries(reasons).map(([reason, share]) => `${reason.replaceAll("_", " ")} ${tg.format.percent(share)} of the time`).join(", ") || "never";

  function drawCourse(box, { label, form, fromZero }, series, idle) {
    const cell = tg.el("div", {}, tg.el("h4", {}, label));
    box.append(cell);
    const values = series.values.filter(tg.isKnown);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const low = fromZero ? 0 : least === most ? least * 0.9 : least - (most - least) * 0.2;
    const high = least === most ? most * 1.1 : most + (most - low) * 0.1;
    const frame = tg.chart.frame(cell, {
      width: 340, height: 150, x: { scale: "linear", domain: [0, series.t_s.at(-1)], format: "seconds" }, y: { scale: "linear", domain: [low, high], format: form },
      label: `${label} over time`,
    });
    tg.chart.line(frame, series.t_s.map((t, place) => [t, series.values[place]]), { label, area: fromZero });
    if (!tg.isKnown(idle)) return;
    const at = frame.y(idle);
    frame.plot.append(tg.svg("line", { x1: 0, x2: frame.width, y1: at, y2: at, "stroke-dasharray": "2 3", style: { stroke: "var(--ink-faint)" } }),
      tg.svg("text", { x: frame.width, y: at + 13, "text-anchor": "end" }, `idle ${tg.format.watts(idle)}`));
  }

  tg.drawCarbon = (element, carbon) => {
    if (!carbon) return;
    const isEstimated = Object.keys(carbon).some((key) => key.startsWith("estimated_"));
    element.append(tg.heading("Carbon dioxide equivalents", isEstimated ? tg.estimated() : null), tg.facts([
      amount(carbon, "Per 1,000 samples", "grams_per_1000", ""),
      amount(carbon, "Per year", "grams_per_year", `at ${tg.format.value(carbon.rate_per_s)} per second, continuously`),
      ["Grid", "", `${tg.format.value(carbon.g_per_kwh)} g per kWh: ${carbon.place}${carbon.year ? `, ${carbon.year}` : ""} (${carbon.source})${carbon.assumed ? `; ${carbon.assumed}` : ""}`],
      ["PUE", tg.format.value(carbon.pue), "the data centre's overhead"],
      ["Boundary", "", carbon.boundary],
    ]));
  };

  function amount(carbon, name, key, note) {
    if (tg.isKnown(carbon[key])) return [name, tg.format.grams(carbon[key]), note];
    const range = carbon[`estimated_${key}`];
    if (!range) return null;
    const within = `between ${tg.format.grams(range.low)} and ${tg.format.grams(range.high)}`;
    return [name, tg.el("span", { class: "about" }, `≈ ${tg.format.grams(range.value)}`), [within, note].filter(Boolean).join(", ")];
  }
})();
