// A small chart kit: a frame with axes and grid. Estimated data are dashed or hatched and say so.
(() => {
  const TICK_ROOM = 60;
  const CHARACTER = 6.3; // width of a digit at the size of the tick labels

  function linear([low, high], [from, to]) {
    const span = high - low || 1;
    return (value) => from + ((value - low) / span) * (to - from);
  }

  function logarithmic([low, high], range) {
    const inner = linear([Math.log10(low), Math.log10(high)], range);
    return (value) => inner(Math.log10(Math.max(value, Number.MIN_VALUE)));
  }

  // Round numbers (1, 2 or 5 times a power of the base) inside the domain.
  function linearTicks(domain, most, binary) {
    const ticks = ticksAtMost(domain, most, binary);
    // One alone gives no scale; a low chart may have two close to each other.
    return ticks.length > 1 || most > 8 ? ticks : linearTicks(domain, most * 1.6, binary);
  }

  function ticksAtMost([low, high], most, binary) {
    const raw = (high - low) / Math.max(most, 1);
    if (!(raw > 0)) return [low, low];
    const base = binary ? 2 ** (10 * Math.floor(Math.log2(raw) / 10)) : 1;
    const power = 10 ** Math.floor(Math.log10(raw / base));
    const step = base * power * [1, 2, 5, 10].find((factor) => factor * power * base >= raw);
    const ticks = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high * (1 + 1e-12); place += 1) ticks.push(place * step);
    return ticks;
  }

  function logTicks([low, high], most) {
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const last = Math.floor(Math.log10(high) + 1e-9);
    const decades = last - first + 1;
    const stride = Math.max(1, Math.ceil(decades / Math.max(most, 1)));
    const factors = decades * 3 <= most ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first - 1; power <= last; power += 1) {
      if ((power - first) % stride) continue;
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
      }
    }
    return ticks;
  }

  const scaleOf = (axis, range) => (axis.scale === "log" ? logarithmic : linear)(axis.domain, range);
  // The zeros after the point of round numbers ("2.00 k") say nothing on an axis.
  const rounded = (form) => (value) => form(value).replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
  const formOf = (axis) => (typeof axis.format === "function" ? axis.format : rounded(tg.format[axis.format ?? "value"]));

  function ticksOf(axis, most) {
    if (axis.ticks) return axis.ticks;
    if (axis.scale === "log") return logTicks(axis.domain, most);
    return distinct(linearTicks(axis.domain, most, axis.format === "bytes" || axis.isBinary), formOf(axis));
  }

  // Ticks closer than the form can tell apart would repeat a label.
  const distinct = (ticks, form) => ticks.filter((tick, place) => !place || form(tick) !== form(ticks[place - 1]));

  // Axes are {scale: "linear" | "log", domain: [low, high], label, format, isBinary, ticks}; format is a name of tg.format or a
  // function. `caption` is the text alternative below the chart.
  tg.chart.frame = (element, { width = 760, height = 300, x, y, caption, label }) => {
    const full = Math.max(Math.min(element.clientWidth || width, width), 280);
    const left = yRoom(y, height);
    const box = { left, top: y.label ? 26 : 12, right: 16, bottom: x.label ? 42 : 26 };
    const inner = { width: full - box.left - box.right, height: height - box.top - box.bottom };
    const root = tg.svg("svg", { viewBox: `0 0 ${full} ${height}`, class: "chart", role: "img", "aria-label": label ?? caption ?? "" });
    root.style.maxWidth = `${full}px`;
    const grid = tg.svg("g", { class: "grid", transform: `translate(${box.left},${box.top})` });
    const plot = tg.svg("g", { class: "plot", transform: `translate(${box.left},${box.top})` });
    root.append(grid, plot);
    const frame = {
      root, plot, ...inner,
      x: scaleOf(x, [0, inner.width]),
      y: scaleOf(y, [inner.height, 0]),
      axes: { x, y },
    };
    drawX(grid, frame, x);
    drawY(grid, frame, y);
    frame.figure = tg.el("figure", {}, root, caption ? tg.el("figcaption", {}, caption) : null);
    element.append(frame.figure);
    return frame;
  };

  function yRoom(axis, height) {
    const form = formOf(axis);
    const longest = Math.max(...ticksOf(axis, height / 50).map((tick) => form(tick).length), 3);
    return Math.ceil(longest * CHARACTER) + 12;
  }

  function drawX(grid, frame, axis) {
    const form = formOf(axis);
    for (const tick of ticksOf(axis, frame.width / (TICK_ROOM + 15))) {
      const at = frame.x(tick);
      grid.append(tg.svg("line", { x1: at, x2: at, y1: 0, y2: frame.height }),
        tg.svg("text", { x: at, y: frame.height + 16, "text-anchor": anchor(at, frame.width) }, form(tick)));
    }
    if (axis.label) grid.append(tg.svg("text", { class: "axis", x: frame.width, y: frame.height + 34, "text-anchor": "end" }, axis.label));
  }

  // A label at the right edge ends there instead of being cut off.
  const anchor = (at, width) => (at > width - 14 ? "end" : "middle");

  function drawY(grid, frame, axis) {
    const form = formOf(axis);
    for (const tick of ticksOf(axis, frame.height / 50)) {
      const at = frame.y(tick);
      grid.append(tg.svg("line", { x1: 0, x2: frame.width, y1: at, y2: at }),
        tg.svg("text", { x: -8, y: at + 4, "text-anchor": "end" }, form(tick)));
    }
    if (axis.label) grid.append(tg.svg("text", { class: "axis", x: 0, y: -12 }, axis.label));
  }
})();
