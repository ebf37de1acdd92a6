// What is drawn into a frame, and charts made of text rows.
(() => {
  const pair = (point) => (Array.isArray(point) ? point : [point.x, point.y]);

  function pathOf(frame, points, step) {
    let text = "";
    let last = null;
    for (const point of points) {
      const [x, y] = pair(point);
      if (y === null || y === undefined) { last = null; continue; }
      const [px, py] = [frame.x(x).toFixed(1), frame.y(y).toFixed(1)];
      if (last === null) text += `M${px},${py}`;
      else text += step ? `H${px}V${py}` : `L${px},${py}`;
      last = [px, py];
    }
    return text;
  }

  // points: [[x, y], …] or [{x, y}, …]; a null y breaks the line.
  tg.chart.line = (frame, points, { color = "var(--accent)", label, estimated, area, step, width = 1.6 } = {}) => {
    const path = pathOf(frame, points, step);
    const group = tg.svg("g", { class: estimated ? "estimated" : null });
    if (label) group.append(tg.svg("title", {}, estimated ? `${label} (estimated)` : label));
    if (area && path) {
      const [first, final] = [pair(points[0]), pair(points[points.length - 1])];
      const floor = frame.height.toFixed(1);
      const shape = `${path}L${frame.x(final[0]).toFixed(1)},${floor}L${frame.x(first[0]).toFixed(1)},${floor}Z`;
      group.append(tg.svg("path", { d: shape, style: { fill: color, opacity: 0.14, stroke: "none" } }));
    }
    group.append(tg.svg("path", {
      d: path, class: "line", style: { stroke: color, "stroke-width": width }, "stroke-dasharray": estimated ? "5 4" : null,
    }));
    frame.plot.append(group);
    return group;
  };

  // points: [{x, y, color, radius, tip}]; tip(point) gives the content of the tooltip. Arrows move between the dots.
  tg.chart.dots = (frame, points, { color = "var(--accent)", radius = 4, label, estimated, tip, onHover, onClick } = {}) => {
    const group = tg.svg("g", { class: "dots", role: "list", "aria-label": label });
    const dots = points.map((point, place) => dot(frame, point, { color, radius, estimated, tip, onHover, onClick, place }));
    group.append(...dots);
    group.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = dots[dots.indexOf(document.activeElement) + move];
      if (!move || !next) return;
      event.preventDefault();
      next.focus();
    });
    frame.plot.append(group);
    return group;
  };

  function dot(frame, point, { color, radius, estimated, tip, onHover, onClick, place }) {
    const [x, y] = pair(point);
    const paint = point.color ?? color;
    const isHollow = point.estimated ?? estimated;
    const circle = tg.svg("circle", {
      cx: frame.x(x).toFixed(1), cy: frame.y(y).toFixed(1), r: point.radius ?? radius, class: isHollow ? "estimated" : null,
      style: { fill: isHollow ? "var(--paper)" : paint, stroke: paint },
      role: "listitem", tabindex: place === 0 ? "0" : "-1",
    });
    const content = point.tip ?? tip;
    if (content) tg.chart.tip.attach(circle, () => (typeof content === "function" ? content(point) : content));
    if (onHover) circle.addEventListener("pointerenter", () => onHover(point, place));
    if (onClick) {
      circle.classList.add("clickable");
      circle.addEventListener("click", () => onClick(point, place));
      circle.addEventListener("keydown", (event) => { if (event.key === "Enter") onClick(point, place); });
    }
    return circle;
  }

  // Horizontal bars as rows of text: [{label, value, text, share, color, estimated, tip, note}].
  tg.chart.bars = (element, rows, { max, label, caption, onClick } = {}) => {
    const most = max ?? Math.max(...rows.map((row) => row.value ?? 0), Number.MIN_VALUE);
    const hasShare = rows.some((row) => row.share !== null && row.share !== undefined);
    const list = tg.el("div", { class: hasShare ? "bars with-share" : "bars", role: "list", "aria-label": label ?? caption },
      rows.map((row) => bar(row, most, hasShare, onClick)));
    const figure = tg.el("figure", {}, list, rows.some((row) => row.estimated) ? estimatedKey() : null,
      caption ? tg.el("figcaption", {}, caption) : null);
    element.append(figure);
    return figure;
  };

  function bar(row, most, hasShare, onClick) {
    const width = `${Math.max(((row.value ?? 0) / most) * 100, 0)}%`;
    const fill = tg.el("span", { class: row.estimated ? "fill estimated" : "fill", style: { width, "--paint": row.color ?? "var(--accent)" } });
    const title = row.label instanceof Node ? row.label : tg.name(String(row.label), 80);
    const text = row.estimated ? `≈ ${row.text}` : row.text;
    const item = tg.el("div", { class: onClick ? "bar clickable" : "bar", role: "listitem", tabindex: onClick ? "0" : null },
      tg.el("span", { class: "bar-label" }, title, row.note ? tg.el("small", {}, row.note) : null),
      tg.el("span", { class: "track" }, fill),
      tg.el("span", { class: "number" }, text),
      hasShare ? tg.el("span", { class: "number faint" }, tg.format.percent(row.share)) : null);
    if (row.tip) tg.chart.tip.attach(item, () => row.tip);
    if (onClick) {
      item.addEventListener("click", () => onClick(row));
      item.addEventListener("keydown", (event) => { if (event.key === "Enter") onClick(row); });
    }
    return item;
  }

  const estimatedKey = () => tg.el("p", { class: "note" }, tg.el("span", { class: "swatch estimated" }), " hatched, with ≈: estimated, not measured");

  // entries: [{label, color, estimated, text}]
  tg.chart.legend = (element, entries) => {
    const legend = tg.el("ul", { class: "legend" }, entries.map((entry) => tg.el("li", {},
      tg.el("span", { class: entry.estimated ? "swatch estimated" : "swatch", style: { "--paint": entry.color ?? "var(--accent)" } }),
      tg.name(String(entry.label), 60), entry.estimated ? tg.estimated() : null,
      entry.text ? tg.el("span", { class: "number faint" }, entry.text) : null)));
    element.append(legend);
    return legend;
  };
})();
