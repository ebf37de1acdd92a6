// What colours the cells of a map: the type of the module, or a figure. Each gives the fill of a cell and its legend.
(() => {
  const TYPES = 9;

  // The largest types in view have separate colours; containers stay neutral.
  function byType(tree, cells, value) {
    // A module that does all of its work itself is not a container, even if it holds an activation that does none.
    const isContainer = (row) => tree.children(row).some((child) => value(child) > 0);
    const sums = new Map();
    for (const { row, hidden } of cells) {
      if (isContainer(row) && !hidden) continue;
      const type = tree.type(mainLeaf(tree, row, value));
      sums.set(type, (sums.get(type) ?? 0) + value(row));
    }
    const ranked = [...sums].sort((a, b) => b[1] - a[1]).map(([type]) => type);
    const kinds = new Map(ranked.slice(0, TYPES).map((type, place) => [type, tg.color(place)]));
    const [neutral, other] = [tg.mix(tg.color("panel"), tg.color("ink"), 0.05), tg.color(9)];
    const fill = (row) => kinds.get(tree.type(row)) ?? other;
    return {
      legend: typeLegend(kinds, ranked.length > TYPES ? other : null),
      fill({ row, hidden }) {
        if (!isContainer(row)) return fill(row);
        return hidden ? tg.mix(neutral, fill(mainLeaf(tree, row, value)), 0.45) : neutral;
      },
    };
  }

  // The leaf that has most of a module: its colour hints at what a folded module holds.
  function mainLeaf(tree, row, value) {
    for (;;) {
      const below = tree.children(row);
      const largest = below.reduce((most, child) => (most === null || value(child) > value(most) ? child : most), null);
      const own = value(row) - below.reduce((sum, child) => sum + value(child), 0);
      if (largest === null || value(largest) <= 0 || own > value(largest)) return row;
      row = largest;
    }
  }

  function typeLegend(kinds, other) {
    const entries = [...kinds].map(([label, color]) => ({ label: label || "(unknown)", color }));
    const box = tg.el("div", {});
    tg.chart.legend(box, other ? [...entries, { label: "other types", color: other }] : entries);
    return box;
  }

  function byFigure(figure, most, value) {
    const [low, high] = [tg.color("panel"), tg.color("accent")];
    return {
      legend: rampLegend(figure, most, [0, 0.25, 0.5, 0.75, 1].map((share) => tg.mix(low, high, share))),
      // The root: otherwise all but the largest few look alike.
      fill: ({ row }) => tg.mix(low, high, most > 0 ? Math.min(Math.sqrt(value(row) / most), 1) : 0),
    };
  }

  function rampLegend(figure, most, colors) {
    const ramp = tg.el("span", { class: "ramp", style: { background: `linear-gradient(90deg, ${colors.join(", ")})` } });
    return tg.el("ul", { class: "legend" }, tg.el("li", {}, "0", ramp, tg.figureText(figure, most), ` ${figure.label}`,
      figure.kind === "estimated" ? tg.estimated() : null));
  }

  tg.fills = { byType, byFigure };
})();
