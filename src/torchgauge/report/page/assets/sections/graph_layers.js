// Vertices in rows, each below what it reads (K. Sugiyama et al. 1981): rows, ways past them, few crossings.
// Vertices are numbered in the order of the run: an arc to a smaller number goes back up and is reversed.
(() => {
  const SWEEPS = 8;
  const [GRID, PAGE] = [6, 660]; // this many in a row, up to this width, still fit a page
  const WIDEST = 1e6;

  // arcs: [{tail, head, strand, tailX, headX}]; they get `way` and `goesBack`. Numbers from `count` on are bends.
  tg.graph.layers = (count, entries, exits, arcs, widths) => {
    const ranks = ranksOf(count, entries, exits, arcs, widths);
    const rows = Array.from({ length: ranks.reduce((most, rank) => Math.max(most, rank), -1) + 1 }, () => []);
    ranks.forEach((rank, vertex) => rows[rank].push(vertex));
    const layers = { count, rows, segments: segmentsOf(count, arcs, ranks, rows) };
    layers.above = neighbours(layers.segments, "lower", "upper");
    layers.below = neighbours(layers.segments, "upper", "lower");
    layers.rankOf = new Map(rows.flatMap((row, rank) => row.map((vertex) => [vertex, rank])));
    uncross(layers);
    return layers;
  };

  function ranksOf(count, entries, exits, arcs, widths) {
    const below = Array.from({ length: count }, () => []);
    const above = Array.from({ length: count }, () => []);
    for (const { tail, head } of arcs) {
      below[Math.min(tail, head)].push(Math.max(tail, head));
      above[Math.max(tail, head)].push(Math.min(tail, head));
    }
    const ranks = new Array(count).fill(0);
    const [top, end] = [Math.min(entries, 1), count - exits];
    for (let vertex = entries; vertex < end; vertex += 1) {
      ranks[vertex] = above[vertex].reduce((rank, upper) => Math.max(rank, ranks[upper] + 1), top);
    }
    for (let vertex = end - 1; vertex >= entries; vertex -= 1) {
      // A constant, which reads nothing, goes right above its first reader.
      const readers = below[vertex].filter((lower) => lower < end).map((lower) => ranks[lower]);
      if (readers.length && !above[vertex].length) ranks[vertex] = Math.max(Math.min(...readers) - 1, top);
    }
    rankLoose(ranks, above, below, entries, end, top, widths);
    let last = 0;
    for (let vertex = entries; vertex < end; vertex += 1) last = Math.max(last, ranks[vertex] + 1);
    ranks.fill(last, end);
    return ranks;
  }

  // Vertices without arcs go into a grid below the rest.
  function rankLoose(ranks, above, below, entries, end, top, widths) {
    const loose = [];
    let start = top;
    for (let vertex = entries; vertex < end; vertex += 1) {
      if (!above[vertex].length && !below[vertex].length) loose.push(vertex);
      else start = Math.max(start, ranks[vertex] + 1);
    }
    const columns = Math.min(Math.ceil(Math.sqrt(loose.length * 1.5)), GRID);
    let [rank, used, wide] = [start, 0, 0];
    for (const vertex of loose) {
      if (used === columns || used && wide + widths[vertex] > PAGE) [rank, used, wide] = [rank + 1, 0, 0];
      ranks[vertex] = rank;
      [used, wide] = [used + 1, wide + widths[vertex]];
    }
  }

  function segmentsOf(count, arcs, ranks, rows) {
    const bends = new Map();
    const segments = new Map();
    for (const arc of arcs) {
      arc.goesBack = arc.head < arc.tail;
      const [upper, lower] = arc.goesBack ? [arc.head, arc.tail] : [arc.tail, arc.head];
      const strand = arc.goesBack ? `${arc.strand}/${arc.tail}/${arc.head}` : `${arc.strand}/${arc.tail}`;
      const way = [upper];
      for (let rank = ranks[upper] + 1; rank < ranks[lower]; rank += 1) {
        const key = `${strand}@${rank}`;
        if (!bends.has(key)) {
          bends.set(key, count + bends.size);
          rows[rank].push(bends.get(key));
        }
        way.push(bends.get(key));
      }
      way.push(lower);
      const at = (vertex) => (vertex === arc.tail ? arc.tailX : vertex === arc.head ? arc.headX : 0);
      for (let place = 1; place < way.length; place += 1) {
        const segment = { upper: way[place - 1], lower: way[place], upperX: at(way[place - 1]), lowerX: at(way[place]) };
        segments.set(Object.values(segment).join(), segment);
      }
      arc.way = arc.goesBack ? way.slice().reverse() : way;
    }
    return [...segments.values()];
  }

  function neighbours(segments, side, other) {
    const found = new Map();
    for (const segment of segments) {
      if (!found.has(segment[side])) found.set(segment[side], []);
      found.get(segment[side]).push({ vertex: segment[other], segment });
    }
    return found;
  }

  // Sweep down and up, each row by the mean place of its neighbours in the last one; the best order seen stays.
  function uncross(layers) {
    const { rows } = layers;
    const copy = () => rows.map((row) => row.slice());
    let [best, order] = [crossings(layers), copy()];
    for (let sweep = 0; sweep < SWEEPS && best > 0; sweep += 1) {
      const goesDown = sweep % 2 === 0;
      const sides = goesDown ? layers.above : layers.below;
      const places = placesOf(rows);
      for (const row of goesDown ? rows.slice(1) : rows.slice(0, -1).reverse()) {
        const means = new Map(row.map((vertex) => [vertex, mean(sides.get(vertex), places, places.get(vertex))]));
        row.sort((a, b) => means.get(a) - means.get(b));
        row.forEach((vertex, place) => places.set(vertex, place));
      }
      const found = crossings(layers);
      if (found < best) [best, order] = [found, copy()];
    }
    layers.rows = order;
  }

  function mean(sides, places, otherwise) {
    if (!sides) return otherwise;
    return sides.reduce((sum, { vertex, segment }) => sum + places.get(vertex) + port(vertex, segment), 0) / sides.length;
  }

  // Where on a vertex a segment ends, as a part of a place: below one half for whatever fits a page.
  const port = (vertex, { upper, upperX, lowerX }) => (vertex === upper ? upperX : lowerX) / WIDEST;

  const placesOf = (rows) => new Map(rows.flatMap((row) => row.map((vertex, place) => [vertex, place])));

  function crossings({ rows, segments, rankOf }) {
    const places = placesOf(rows);
    const ends = rows.map(() => []);
    for (const segment of segments) {
      ends[rankOf.get(segment.upper)].push([segment.upper, segment.lower].map((vertex) => places.get(vertex) + port(vertex, segment)));
    }
    let total = 0;
    for (const pairs of ends) {
      pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      for (let later = 1; later < pairs.length; later += 1) {
        for (let earlier = 0; earlier < later; earlier += 1) total += pairs[earlier][1] > pairs[later][1] ? 1 : 0;
      }
    }
    return total;
  }
})();
