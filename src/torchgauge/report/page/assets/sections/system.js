// What the machine did during the runs: one small chart for each quantity that changed. Drawn by the section on time.
(() => {
  const FORMS = {
    share: tg.format.percent, B: tg.format.bytes, "B/s": (value) => `${tg.format.bytes(value)}/s`, "1/s": (value) => tg.format.rate(value),
    Hz: (value) => `${tg.format.count(value)}Hz`, W: tg.format.watts,
  };
  const formOf = (unit) => FORMS[unit] ?? ((value) => `${tg.format.value(value)} ${unit}`);

  tg.drawSystem = (element, quantities) => {
    const moving = quantities.filter(hasCourse);
    if (!moving.length) return;
    const charts = tg.el("div", { class: "small-charts" });
    element.append(charts);
    for (const quantity of moving) drawCourse(charts, quantity);
  };

  // A line that never moves says no more than its row in the table.
  const hasCourse = ({ t_s, lines, extents }) => t_s.length > 2 && lines.length && extents.some(({ min, max }) => max > min);

  function drawCourse(box, quantity) {
    const form = formOf(quantity.unit);
    const cell = tg.el("div", {}, tg.el("h4", {}, quantity.name));
    box.append(cell);
    const values = quantity.lines.flatMap(({ values: line }) => line.filter(tg.isKnown));
    const top = quantity.unit === "share" ? Math.max(...values, 0.05) : Math.max(...values);
    // Far from zero the changes would not show.
    const bottom = Math.min(...values) > 0.5 * top ? Math.min(...values) - 0.1 * (top - Math.min(...values)) : 0;
    const frame = tg.chart.frame(cell, {
      width: 300, height: 130, x: { scale: "linear", domain: [0, quantity.t_s.at(-1)], format: "seconds" },
      y: { scale: "linear", domain: [bottom, top + (top - bottom) * 0.08], format: form, isBinary: quantity.unit.startsWith("B") }, label: `${quantity.name} over the runs`,
    });
    quantity.lines.forEach(({ label, values: line }, place) => {
      tg.chart.line(frame, quantity.t_s.map((t, at) => [t, line[at]]), { color: `var(--c${place})`, label: label || quantity.name });
    });
    if (quantity.lines.length > 1) tg.chart.legend(cell, quantity.lines.map(({ label }, place) => ({ label, color: `var(--c${place})` })));
  }
})();
