// Power, temperature and clocks while the energy was measured. Drawn by the section on energy.
(() => {
  const QUANTITIES = [
    { key: "power_w", label: "power", form: tg.format.watts, fromZero: true },
    { key: "temperature_c", label: "temperature", form: (value) => `${tg.format.value(value)} °C`, fromZero: false },
    { key: "clock_hz", label: "clock", form: (value) => `${tg.format.count(value)}Hz`, fromZero: false },
  ];

  tg.drawThermal = (element, { thermal, series, idle_watts: idle }) => {
    if (thermal) tg.drawBlocks(element, thermal);
    const box = tg.el("div", { class: "small-charts" });
    for (const quantity of QUANTITIES) {
      const found = series?.[quantity.key];
      if (found && found.values.filter(tg.isKnown).length > 2) drawCourse(box, quantity, found, quantity.key === "power_w" ? idle : null);
    }
    if (box.firstChild) element.append(box);
  };

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
})();
