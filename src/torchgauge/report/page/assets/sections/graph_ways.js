// Long ways past many rows: one column for the whole of each, where there is one.
(() => {
  // Each way is as near to its source as the neighbouring vertices and ways allow. Those for which there is no
  // column stay as they are: one of two that cross, and one that has to go round something.
  tg.graph.straighten = (layers, x, width, gap) => {
    let ways = longWays(layers);
    const wayOf = new Map(ways.flatMap((way) => way.bends.map((bend) => [bend, way])));
    let high = new Map();
    while (ways.length) {
      ways = fromTheLeft(ways);
      const low = lowest(ways);
      high = highest(ways);
      const worst = ways.reduce((most, way) => (low.get(way) - high.get(way) > low.get(most) - high.get(most) ? way : most));
      if (low.get(worst) <= high.get(worst)) break;
      ways = ways.filter((way) => way !== worst);
    }
    for (const way of ways) {
      // The ways on its left have been placed already.
      const at = Math.min(Math.max(x.get(way.source), lowest([way]).get(way)), high.get(way));
      for (const bend of way.bends) x.set(bend, at);
    }

    // Each after those that are left of it; without some of those that cross.
    function fromTheLeft(all) {
      const [ordered, waiting] = [[], new Set(all)];
      while (waiting.size) {
        const ready = [...waiting].filter((way) => !way.left.some((other) => waiting.has(wayOf.get(other))));
        ordered.push(...ready);
        for (const way of ready.length ? ready : [...waiting].slice(0, 1)) waiting.delete(way);
      }
      return ordered;
    }

    // The outermost position of each on a side, if those before it are as far out as possible.
    function lowest(ordered) {
      const found = new Map();
      for (const way of ordered) found.set(way, way.left.reduce((most, other) => Math.max(most, edge(other, 1, found) + gap), -Infinity));
      return found;
    }

    function highest(ordered) {
      const found = new Map();
      for (const way of ordered.slice().reverse()) found.set(way, way.right.reduce((least, other) => Math.min(least, edge(other, -1, found) - gap), Infinity));
      return found;
    }

    function edge(vertex, side, found) {
      const way = wayOf.get(vertex);
      return way ? found.get(way) ?? x.get(vertex) : x.get(vertex) + side * width(vertex) / 2;
    }
  };

  // `left` and `right` are the neighbours of the bends.
  function longWays({ segments, count, rows, rankOf }) {
    const onward = new Map(segments.filter(({ upper, lower }) => Math.min(upper, lower) >= count).map(({ upper, lower }) => [upper, lower]));
    return segments.filter(({ upper, lower }) => upper < count && lower >= count).map(({ upper, lower }) => {
      const bends = [lower];
      while (onward.has(bends[bends.length - 1])) bends.push(onward.get(bends[bends.length - 1]));
      const [left, right] = [[], []];
      for (const bend of bends) {
        const row = rows[rankOf.get(bend)];
        const place = row.indexOf(bend);
        left.push(...row.slice(Math.max(place - 1, 0), place));
        right.push(...row.slice(place + 1, place + 2));
      }
      return { source: upper, bends, left, right };
    });
  }
})();
