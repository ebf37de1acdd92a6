// The visible items: open modules with their contents, closed ones, ops, and the data between these.
(() => {
  // state: {open: Set of places, unfolded: Set of first members, shown: Map place -> [from, to] of what is in it}
  tg.graph.scene = (graph, state) => {
    const standIn = standIns(graph, state);
    const seen = { place: new Map(), step: new Map() };
    const root = item("place", 0, 1, null);
    seen.place.set(0, root);
    fill(root);
    const edges = new Map();
    drawLinks();
    drawEnds();
    return { root, edges: [...edges.values()], standIn, stepFor, itemOfPlace, itemOfStep: show, represented: representedBy(graph, standIn) };

    function item(kind, number, count, around) {
      return { kind, number, count, around, inside: [], key: `${kind}${number}` };
    }

    function fill(open) {
      if (!state.open.has(open.number)) return;
      const items = tg.graph.foldedItems(graph, state, open.number);
      const [from, to] = state.shown.get(open.number) ?? [0, graph.data.most];
      if (from > 0) hide("earlier", open, items.slice(0, from));
      for (const { place, step } of items.slice(from, to)) {
        const child = place === undefined ? item("step", step, 1, open) : item("place", place, isFolded(place) ? graph.runs.get(place).members.length : 1, open);
        open.inside.push(child);
        seen[child.kind].set(child.number, child);
        if (child.kind === "place") fill(child);
      }
      if (items.length > to) hide("more", open, items.slice(to));
    }

    function hide(kind, open, items) {
      const more = item(kind, open.number, items.length, open);
      open.inside.push(more);
      for (const { place, step } of items) seen[place === undefined ? "step" : "place"].set(place ?? step, more);
    }

    function isFolded(place) { return isInFoldedRun(graph, state, place); }

    function drawLinks() {
      const { source, ahead, tensor } = graph.data.links;
      for (let at = 0; at < source.length; at += 1) {
        const target = source[at] + ahead[at];
        if (isDrawn(source[at], target)) draw(show(source[at]), show(target), stepFor(source[at]), tensor[at]);
      }
    }

    function drawEnds() {
      if (!root.inside.length) return;
      const entering = graph.data.inputs.map(([, tensor, readers], number) => {
        const given = item("input", number, 1, root);
        for (const reader of readers) draw(given, show(reader), -1, tensor);
        return given;
      });
      root.inside.unshift(...entering);
      if (!graph.data.outputs.length) return;
      const output = item("output", 0, 1, root);
      root.inside.push(output);
      for (const [step, tensor] of graph.data.outputs) draw(show(step), output, stepFor(step), tensor);
    }

    function draw(source, target, step, tensor) {
      if (source === target) return;
      const key = `${source.key}>${target.key}`;
      if (!edges.has(key)) edges.set(key, { source, target, largest: new Map(), tensors: new Set() });
      const edge = edges.get(key);
      edge.tensors.add(tensor);
      // Several readers see one tensor in several shapes: it flows once.
      edge.largest.set(step, Math.max(edge.largest.get(step) ?? 0, graph.data.tensors[tensor][2]));
    }

    function show(step) {
      const drawn = stepFor(step);
      return seen.step.get(drawn) ?? itemOfPlace(graph.data.steps.place[drawn]);
    }

    function itemOfPlace(place) {
      let at = standIn[place];
      while (!seen.place.has(at)) at = graph.parent[at];
      return seen.place.get(at);
    }

    function stepFor(step) {
      const place = graph.data.steps.place[step];
      if (standIn[place] === place && graph.period[place] === graph.steps[place].length) return step;
      return graph.steps[standIn[place]][position(graph.steps[place], step) % graph.period[place]];
    }

    // Not from one block of a folded run to another, and of equal blocks only what is in the first.
    function isDrawn(source, target) {
      let [a, b] = [graph.data.steps.place[source], graph.data.steps.place[target]];
      let [belowA, belowB] = [-1, -1];
      while (a !== b) {
        if (graph.level[a] >= graph.level[b]) [belowA, a] = [a, graph.parent[a]];
        else [belowB, b] = [b, graph.parent[b]];
      }
      const isWithinRun = belowA >= 0 && belowB >= 0 && graph.firstOf[belowA] === graph.firstOf[belowB] && isFolded(belowA);
      return !isWithinRun && standIn[a] === a;
    }
  };

  function isInFoldedRun(graph, state, place) {
    const first = graph.firstOf[place];
    return graph.runs.has(first) && !state.unfolded.has(first);
  }

  // The items of a place, with the first of each folded run for all of it.
  tg.graph.foldedItems = (graph, state, place) =>
    graph.items(place).filter((item) => item.place === undefined || graph.firstOf[item.place] === item.place || !isInFoldedRun(graph, state, item.place));

  tg.graph.edgeBytes = (edge) => [...edge.largest.values()].reduce((sum, bytes) => sum + bytes, 0);

  function position(sorted, value) {
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // For each place the one that is drawn for it. Equal blocks number the places in them equally.
  function standIns(graph, state) {
    const drawn = [];
    for (let place = 0; place < graph.count; place += 1) {
      const parent = graph.parent[place];
      const like = parent < 0 ? place : drawn[parent] + place - parent;
      const first = isInFoldedRun(graph, state, like) ? graph.firstOf[like] : like;
      drawn.push(first === place ? place : drawn[first]);
    }
    return drawn;
  }

  function representedBy(graph, standIn) {
    const places = Array.from({ length: graph.count }, () => []);
    standIn.forEach((drawn, place) => places[drawn].push(place));
    return (place) => places[place];
  }
})();
