// The graph in the page's data: modules at their places in the run, steps (ops that are drawn), links between steps.
tg.graph = {};
(() => {
  const whole = (column, length) => (Array.isArray(column) ? column : "same" in column ? new Array(length).fill(column.same) : column.index.map((at) => column.table[at]));

  tg.graph.read = (data) => {
    const { row, parent } = data.places;
    const count = row.length;
    const call = whole(data.places.call, count);
    const calls = whole(data.places.calls, count);
    const turns = whole(data.places.turns, count);
    const steps = Array.from({ length: count }, () => []);
    const children = Array.from({ length: count }, () => []);
    const first = new Array(count).fill(Infinity);
    data.steps.place.forEach((place, step) => steps[place].push(step));
    for (let place = count - 1; place >= 0; place -= 1) {
      first[place] = Math.min(first[place], steps[place][0] ?? Infinity);
      if (parent[place] < 0) continue;
      children[parent[place]].unshift(place);
      first[parent[place]] = Math.min(first[parent[place]], first[place]);
    }
    const level = parent.map(() => 0);
    for (let place = 1; place < count; place += 1) level[place] = level[parent[place]] + 1;
    const period = steps.map((own, place) => data.places.period[place] ?? own.length);
    const graph = { data, count, row, parent, call, calls, turns, steps, children, first, level, period, ...runsOf(data, count) };
    graph.items = (place) => itemsOf(graph, place);
    graph.isClosed = (place) => !children[place].length && period[place] < 2;
    graph.path = (place) => tg.modules.get(row[place], "path");
    graph.type = (place) => tg.modules.get(row[place], "type") || "";
    graph.name = (place) => nameOf(graph, place);
    return graph;
  };

  // Equal blocks follow each other in the numbering: member n is n sizes after the first.
  function runsOf(data, count) {
    const size = new Array(count).fill(1);
    for (let place = count - 1; place > 0; place -= 1) size[data.places.parent[place]] += size[place];
    const firstOf = Array.from({ length: count }, (_, place) => place);
    const runs = new Map();
    for (const [first, length, name] of data.runs) {
      const members = Array.from({ length }, (_, at) => first + at * size[first]);
      runs.set(first, { members, name });
      for (const member of members) firstOf[member] = first;
    }
    return { size, firstOf, runs };
  }

  // The direct contents of a place, in the order of the run: {place} or {step}.
  function itemsOf(graph, place) {
    const places = graph.children[place].map((child) => ({ at: graph.first[child], place: child }));
    const own = graph.steps[place].slice(0, graph.period[place]).map((step) => ({ at: step, step }));
    return [...places, ...own].sort((a, b) => a.at - b.at || (a.place ?? 0) - (b.place ?? 0));
  }

  function nameOf(graph, place) {
    const path = graph.path(place);
    if (graph.parent[place] < 0) return graph.type(place) || "(model)";
    const around = graph.path(graph.parent[place]);
    return around === "" ? path : path.slice(around.length + 1);
  }
})();
