// Modules by path and type, then ops by name: [{label, note, place, step}], step undefined for a module.
tg.graph.matches = (graph, wanted, most) => {
  const found = [];
  for (let place = 1; place < graph.count && found.length < most; place += 1) {
    if (`${graph.path(place)} ${graph.type(place)}`.toLowerCase().includes(wanted)) found.push({ label: graph.path(place), note: graph.type(place), place });
  }
  const { op, place } = graph.data.steps;
  for (let step = 0; step < op.length && found.length < most; step += 1) {
    const name = tg.ops.get(op[step], "op");
    if (name.toLowerCase().includes(wanted)) found.push({ label: name, note: tg.ops.get(op[step], "module") || "the model itself", place: place[step], step });
  }
  return found;
};
