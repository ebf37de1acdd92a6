// What is known of the thing that is chosen.
(() => {
  // actions: {toggle(item), setFold(first, isUnfolded), go(item)}
  tg.graph.details = (graph, scene, words, item, actions) => {
    if (!item) return [tg.note("Select something in the graph: a click or Enter opens and closes a module.")];
    const isOp = item.kind === "step";
    return [
      tg.el("h3", {}, tg.name(words.label(item).title, 80)),
      item.kind === "place" ? tg.note(tg.name(graph.path(item.number) || "the model itself", 300)) : null,
      buttons(),
      item.kind === "place" || isOp ? tg.facts(isOp ? opFacts() : moduleFacts()) : null,
      item.kind === "place" || isOp ? figures() : null,
      neighbours("Reads", scene.edges.filter(({ target }) => target === item), "source"),
      neighbours("Read by", scene.edges.filter(({ source }) => source === item), "target"),
    ];

    function buttons() {
      const found = [];
      const isRun = item.kind === "place" && graph.runs.has(graph.firstOf[item.number]);
      if (item.inside.length && item.around) found.push(tg.button("Close", () => actions.toggle(item)));
      else if (actions.isOpenable(item)) found.push(tg.button(item.kind === "place" ? "Open" : "Show more", () => actions.toggle(item)));
      if (isRun) {
        const first = graph.firstOf[item.number];
        const count = graph.runs.get(first).members.length;
        found.push(tg.button(item.count > 1 ? `Show all ${count}` : `Show ${count} as one`, () => actions.setFold(first, item.count > 1)));
      }
      return found.length ? tg.el("p", { class: "graph-actions" }, found) : null;
    }

    function moduleFacts() {
      const { number } = item;
      const row = graph.row[number];
      const steps = words.stepsIn(number);
      return [
        ["Type", graph.type(number) ? tg.name(graph.type(number)) : null],
        ["Stands for", item.count > 1 ? `${item.count} equal blocks` : null],
        ["Call", graph.calls[number] > 1 ? `${graph.call[number] + 1} of ${graph.calls[number]}` : null],
        ["Calls", graph.turns[number] > 1 ? String(graph.turns[number]) : null],
        ["Inputs", tg.modules.get(row, "input_shapes")],
        ["Outputs", tg.modules.get(row, "output_shapes")],
        ["Ops", steps.length ? opNames(steps) : null],
      ];
    }

    function opNames(steps) {
      const counts = new Map();
      for (const step of steps) counts.set(words.opOf(step, "op"), (counts.get(words.opOf(step, "op")) ?? 0) + 1);
      const ranked = [...counts].sort((a, b) => b[1] - a[1]);
      const texts = ranked.slice(0, 6).map(([name, count]) => (count > 1 ? `${name} ×${count}` : name));
      return texts.join(", ") + (ranked.length > 6 ? `, ${ranked.length - 6} others` : "");
    }

    function opFacts() {
      const of = (key) => words.opOf(item.number, key);
      return [
        ["Op", tg.name(of("op"))],
        ["Module", tg.place(of("module"))],
        ["Kind", of("category")],
        ["Inputs", of("input_shapes")],
        ["Outputs", of("output_shapes")],
        ["Type", of("dtype")],
        ["Bound by", of("bound")],
        ["Source", of("source") ? tg.name(of("source")) : null],
        ["Cost", of("status") === "uncounted" ? "unknown: no formula for this op" : null],
      ];
    }

    // Parameters may be shared: of several modules they do not add up.
    function figures() {
      const times = words.times(item);
      const shown = tg.figures.filter(({ key }) => tg.isKnown(words.one(item, key)));
      if (!shown.length) return null;
      const isAdditive = ({ key }) => !key.startsWith("param");
      const columns = [
        { label: "", isText: true, cell: (figure) => [figure.label, figure.kind === "estimated" ? tg.estimated() : null] },
        { label: times > 1 ? "one" : "", cell: (figure) => tg.figureText(figure, words.one(item, figure.key)) },
        times > 1 ? { label: `all ${times}`, cell: (figure) => (isAdditive(figure) ? tg.figureText(figure, words.all(item, figure.key)) : "–") } : null,
      ];
      return tg.rowTable("Figures", columns.filter(Boolean), shown);
    }

    function neighbours(title, edges, side) {
      if (!edges.length) return null;
      const rows = edges.slice(0, 12).map((edge) => tg.el("li", {},
        tg.button(words.label(edge[side]).title, () => actions.go(edge[side]), { class: "graph-link" }), " ",
        tg.el("span", { class: "faint" }, words.flowing(edge))));
      const more = edges.length > 12 ? tg.el("li", { class: "faint" }, `and ${edges.length - 12} more`) : null;
      return [tg.el("h4", {}, title), tg.el("ul", { class: "plain" }, rows, more)];
    }
  };
})();
