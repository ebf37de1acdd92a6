// Coordinates: each open module is laid out separately, then placed as one box in the module around it.
// Data that enter or leave an open module pass its frame at one point, however many things inside read them.
(() => {
  const [ROW_GAP, COLUMN_GAP, PADDING, HEADER] = [34, 26, 16, 24];
  const BESIDE = 16; // offset of wires that go back up from those that go down
  const ENTRY = 26; // what enters passes the heading straight, then turns

  // size(item) gives [width, height] of a closed item, and the room that the heading of an open one needs.
  tg.graph.layout = (scene, size) => layOut(scene.root, trafficOf(scene), size);

  // Each edge in parts: out of the open modules around its source, across, into those around its target. What goes
  // back leaves and arrives at the frames: inside it would have to come from the wrong side.
  function trafficOf(scene) {
    const order = new Map();
    const walk = (item) => { order.set(item, order.size); item.inside.forEach(walk); };
    walk(scene.root);
    const traffic = new Map();
    const add = (room, tail, head, edge) => {
      if (!traffic.has(room)) traffic.set(room, new Map());
      const key = `${tail?.key}>${head?.key}:${edge.source.key}`;
      const found = traffic.get(room);
      if (!found.has(key)) found.set(key, { tail, head, made: edge.source, edges: [] });
      found.get(key).edges.push(edge);
    };
    for (const edge of scene.edges) {
      const [up, down] = [outwards(edge.source), outwards(edge.target)];
      while (up[up.length - 2] === down[down.length - 2]) { up.pop(); down.pop(); }
      const [tail, head] = [up[up.length - 2], down[down.length - 2]];
      add(up[up.length - 1], tail, head, edge);
      if (order.get(tail) > order.get(head)) continue;
      for (let at = 0; at < up.length - 2; at += 1) add(up[at + 1], up[at], null, edge);
      for (let at = 0; at < down.length - 2; at += 1) add(down[at + 1], null, down[at], edge);
    }
    return traffic;
  }

  function outwards(item) {
    const chain = [item];
    while (chain[chain.length - 1].around) chain.push(chain[chain.length - 1].around);
    return chain;
  }

  function layOut(item, traffic, size) {
    if (!item.inside.length) {
      const [width, height] = size(item);
      return { width, height, boxes: [{ item, x: 0, y: 0, width, height }], wires: [], entries: new Map(), exits: new Map() };
    }
    const inner = item.inside.map((child) => layOut(child, traffic, size));
    return room(item, inner, [...(traffic.get(item)?.values() ?? [])], size);
  }

  function numbered(values) {
    return new Map([...new Set(values)].map((value, place) => [value, place]));
  }

  function room(item, inner, flows, size) {
    const entering = numbered(flows.filter(({ tail }) => !tail).map(({ made }) => made));
    const leaving = numbered(flows.filter(({ head }) => !head).map(({ made }) => made));
    const numbers = new Map(item.inside.map((child, place) => [child, entering.size + place]));
    const firstExit = entering.size + inner.length;
    const count = firstExit + leaving.size;
    const innerOf = (vertex) => inner[vertex - entering.size];
    const arcs = flows.map(arcOf);
    const widths = Array.from({ length: count }, (_, vertex) => innerOf(vertex)?.width ?? 0);
    const layers = tg.graph.layers(count, entering.size, leaving.size, arcs, widths);
    const x = tg.graph.columns(layers, widths, COLUMN_GAP);
    const { rankOf } = layers;
    const bands = bandsOf();
    return area();

    function arcOf({ tail, head, made }) {
      const start = tail ? numbers.get(tail) : entering.get(made);
      const end = head ? numbers.get(head) : firstExit + leaving.get(made);
      const isBack = end < start;
      return {
        tail: start, head: end, strand: made.key,
        tailX: isBack ? BESIDE : port(start, made, "exits"), headX: isBack ? BESIDE : port(end, made, "entries"),
      };
    }

    function port(vertex, made, side) {
      const box = innerOf(vertex);
      return box?.[side].has(made) ? box[side].get(made) - box.width / 2 : 0;
    }

    function area() {
      let widest = 0;
      for (const [vertex, at] of x) widest = Math.max(widest, at + (innerOf(vertex)?.width ?? 0) / 2);
      const width = Math.max(widest, item.around ? size(item)[0] : 0) + 2 * PADDING;
      for (const [vertex, at] of x) x.set(vertex, at + (width - widest) / 2);
      const height = bands[bands.length - 1][1] + (leaving.size ? 0 : PADDING);
      const found = { width, height, boxes: [{ item, x: 0, y: 0, width, height }], wires: [] };
      inner.forEach((box, place) => absorb(found, box, x.get(entering.size + place) - box.width / 2, topOf(entering.size + place)));
      found.wires.push(...wires());
      found.entries = new Map([...entering].map(([made, place]) => [made, x.get(place)]));
      found.exits = new Map([...leaving].map(([made, place]) => [made, x.get(firstExit + place)]));
      return found;
    }

    // Upper and lower edge of each row; entries and exits lie on the frame.
    function bandsOf() {
      const found = [];
      let at = item.around ? HEADER + (entering.size ? ENTRY : PADDING / 2) : PADDING;
      layers.rows.forEach((row, rank) => {
        if (rank === 0 && entering.size) { found.push([0, 0]); return; }
        const height = Math.max(...row.map((vertex) => innerOf(vertex)?.height ?? 0));
        found.push([at, at + height]);
        at += height + ROW_GAP;
      });
      if (leaving.size) found[found.length - 1] = [at - 2 * ROW_GAP + HEADER, at - 2 * ROW_GAP + HEADER];
      return found;
    }

    function topOf(vertex) {
      const [upper, lower] = bands[rankOf.get(vertex)];
      if (vertex >= count) return upper;
      const free = lower - upper - (innerOf(vertex)?.height ?? 0);
      return isInput(vertex) ? upper + free : upper + free / 2;
    }

    function bottomOf(vertex) {
      const [upper, lower] = bands[rankOf.get(vertex)];
      return isInput(vertex) ? lower : upper + lower - topOf(vertex);
    }

    // An input is placed near its reader, also next to a module that takes a whole page.
    function isInput(vertex) { return item.inside[vertex - entering.size]?.kind === "input"; }

    // Arcs that share a piece of their way share its wire.
    function wires() {
      const found = new Map();
      arcs.forEach((arc, at) => {
        const { tail, head, made, edges } = flows[at];
        for (let place = 1; place < arc.way.length; place += 1) {
          const [a, b] = [arc.way[place - 1], arc.way[place]];
          const [aX, bX] = [a === arc.tail ? arc.tailX : 0, b === arc.head ? arc.headX : 0];
          const key = [a, b, aX, bX].join();
          if (!found.has(key)) {
            found.set(key, {
              points: points(a, b, x.get(a) + aX, x.get(b) + bX), edges: [], goesBack: arc.goesBack,
              leaves: tail === made && a === arc.tail, arrives: b === arc.head && Boolean(head) && (arc.goesBack || !head.inside.length),
            });
          }
          found.get(key).edges.push(...edges);
        }
      });
      return [...found.values()];
    }

    // Straight past the items of a row, bent only between the rows.
    function points(a, b, aX, bX) {
      const goesDown = rankOf.get(a) < rankOf.get(b);
      const [upper, lower, upperX, lowerX] = goesDown ? [a, b, aX, bX] : [b, a, bX, aX];
      const end = bands[rankOf.get(lower)];
      const turn = upper < entering.size ? HEADER : bands[rankOf.get(upper)][1];
      const all = [[upperX, bottomOf(upper)], [upperX, turn], [lowerX, end[0]], [lowerX, lower >= count ? end[1] : topOf(lower)]];
      const kept = all.filter(([px, py], place) => place === 0 || px !== all[place - 1][0] || py !== all[place - 1][1]);
      return goesDown ? kept : kept.reverse();
    }
  }

  function absorb(area, inner, dx, dy) {
    for (const box of inner.boxes) area.boxes.push({ ...box, x: box.x + dx, y: box.y + dy });
    for (const wire of inner.wires) area.wires.push({ ...wire, points: wire.points.map(([px, py]) => [px + dx, py + dy]) });
  }
})();
