// Positions in a row: in line with the neighbours as far as the order and the room allow.
(() => {
  const ROUNDS = 6;
  // The line of vertices should be straight, then a long way past rows; where that forks off or joins it gives way.
  const [LINE, STRAIGHT_WAY, FORK, JOIN] = [4, 2, 1.5, 1];
  const STAYS = 0.1; // without neighbours on one side it stays where it is, if it can

  // The middle of each vertex and bend; the leftmost edge is at 0.
  tg.graph.columns = (layers, widths, gap) => {
    const x = new Map();
    const width = (vertex) => widths[vertex] ?? 0;
    const room = (row) => row.slice(1).map((vertex, place) => (width(row[place]) + width(vertex)) / 2 + gap);
    for (const row of layers.rows) {
      const offsets = sums(room(row));
      row.forEach((vertex, place) => x.set(vertex, offsets[place] - offsets[offsets.length - 1] / 2));
    }
    // A bend looks both ways: a long way that forks off turns once.
    const both = (vertex) => [...layers.above.get(vertex), ...layers.below.get(vertex)];
    for (let round = 0; round < ROUNDS; round += 1) {
      for (const [rows, sides] of [[layers.rows.slice().reverse(), layers.below], [layers.rows, layers.above]]) {
        for (const row of rows) {
          const wishes = row.map((vertex) => wish(vertex, x, vertex >= layers.count ? both(vertex) : sides.get(vertex), layers.count));
          settle(wishes, sums(room(row))).forEach((at, place) => x.set(row[place], at));
        }
      }
    }
    tg.graph.straighten(layers, x, width, gap);
    let left = Infinity;
    for (const [vertex, at] of x) left = Math.min(left, at - width(vertex) / 2);
    for (const [vertex, at] of x) x.set(vertex, at - left);
    return x;
  };

  // Positions in this order, with the least weighted sum of distances from the wishes: less the room they need,
  // positions only have to ascend, and blocks in the wrong order merge at their weighted median.
  function settle(wishes, offsets) {
    const blocks = [];
    wishes.forEach(([at, weight], place) => {
      let members = [[at - offsets[place], weight]];
      let middle = members[0][0];
      while (blocks.length && blocks[blocks.length - 1].middle > middle) {
        members = [...blocks.pop().members, ...members];
        middle = weightedMedian(members);
      }
      blocks.push({ middle, members });
    });
    return blocks.flatMap(({ middle, members }) => members.map(() => middle)).map((middle, place) => middle + offsets[place]);
  }

  // Where the weights of both sides balance; between two values that both do, their middle.
  function weightedMedian(wishes) {
    const ordered = wishes.slice().sort((a, b) => a[0] - b[0]);
    const half = ordered.reduce((sum, [, weight]) => sum + weight, 0) / 2;
    let seen = 0;
    for (let place = 0; place < ordered.length; place += 1) {
      seen += ordered[place][1];
      if (seen > half || place === ordered.length - 1) return ordered[place][0];
      if (seen === half) return (ordered[place][0] + ordered[place + 1][0]) / 2;
    }
    return 0;
  }

  function wish(vertex, x, sides, count) {
    if (!sides) return [x.get(vertex), STAYS];
    const wishes = sides.map(({ vertex: other, segment }) => [x.get(other) + shift(vertex, segment), weight(segment, count)]);
    return [weightedMedian(wishes), wishes.reduce((sum, [, each]) => sum + each, 0)];
  }

  const shift = (vertex, { lower, upperX, lowerX }) => (lower === vertex ? upperX - lowerX : lowerX - upperX);
  const weight = ({ upper, lower }, count) => [LINE, FORK, JOIN, STRAIGHT_WAY][2 * (upper >= count) + (lower >= count)];

  function sums(values) {
    const found = [0];
    for (const value of values) found.push(found[found.length - 1] + value);
    return found;
  }
})();
