// What is written on the things of a scene, and the figures they have.
(() => {
  const NAME = 30;
  const SHAPES = 4;

  tg.graph.words = (graph, scene) => {
    const represented = new Map(); // of a step: all that it is drawn for
    const isAbsent = (value) => value === null || value === undefined;

    function stepsOf(step) {
      if (!represented.size) {
        graph.data.steps.place.forEach((_, each) => {
          const drawn = scene.stepFor(each);
          if (!represented.has(drawn)) represented.set(drawn, []);
          represented.get(drawn).push(each);
        });
      }
      return represented.get(step);
    }

    const opOf = (step, key) => tg.ops.get(graph.data.steps.op[step], key);

    function stepsIn(place) {
      return graph.steps.slice(place, place + graph.size[place]).flat();
    }

    function sum(values) {
      const known = values.filter((value) => !isAbsent(value));
      return known.length ? known.reduce((total, value) => total + value, 0) : null;
    }

    // The figure of one place: of a module with several places in the run, that of the ops at this one.
    function figureOf(place, key) {
      if (graph.calls[place] > 1 && tg.ops.has(key)) return sum(stepsIn(place).map((step) => opOf(step, key)));
      return tg.modules.get(graph.row[place], key);
    }

    const one = (item, key) => (item.kind === "step" ? opOf(item.number, key) : item.kind === "place" ? figureOf(item.number, key) : null);

    // Of all that an item is drawn for: the blocks of a run, the turns of a loop.
    function all(item, key) {
      if (item.kind === "step") return sum(stepsOf(item.number).map((step) => opOf(step, key)));
      if (item.kind === "place") return sum(scene.represented(item.number).map((place) => figureOf(place, key)));
      return null;
    }

    const times = (item) => (item.kind === "step" ? stepsOf(item.number).length : item.kind === "place" ? scene.represented(item.number).length : 1);

    function title(item) {
      if (item.kind === "step") return opOf(item.number, "op").replace(/^aten::/, "");
      if (item.kind === "input") return graph.data.inputs[item.number][0];
      if (item.kind === "output") return "output";
      if (item.kind === "more" || item.kind === "earlier") return `… ${tg.format.exact(item.count)} ${item.kind}`;
      return item.count > 1 ? graph.runs.get(item.number).name : graph.name(item.number);
    }

    function kind(item) {
      if (item.kind === "input") return "input";
      return item.kind === "place" && graph.parent[item.number] >= 0 ? graph.type(item.number) : "";
    }

    function label(item, figure) {
      const count = item.kind === "place" && item.count > 1 ? ` ×${item.count}` : "";
      return { title: tg.short(title(item), NAME) + count, kind: tg.short(kind(item), NAME), cost: costText(item, figure) };
    }

    function costText(item, figure) {
      if (figure) return isAbsent(all(item, figure.key)) ? "" : tg.figureText(figure, all(item, figure.key));
      if (item.kind !== "place") return "";
      const place = item.number;
      if (graph.calls[place] > 1) return `call ${graph.call[place] + 1} of ${graph.calls[place]}`;
      const around = graph.parent[place] < 0 ? 1 : graph.turns[graph.parent[place]];
      return [graph.turns[place] > around ? `${graph.turns[place]} calls` : "", workText(item)].filter(Boolean).join(" · ");
    }

    function workText(item) {
      const [key, noun] = graph.data.steps.op.length ? ["macs", "MACs"] : ["params", "params"];
      const value = one(item, key);
      return value ? `${tg.format.count(value)} ${noun}${item.count > 1 ? " each" : ""}` : "";
    }

    // What is recorded of a module is its first call: elsewhere it may be given, and return, other shapes.
    function returned(place) {
      const row = graph.row[place];
      const [made, first] = [place, graph.row.indexOf(row)].map(lastMade);
      return (made === first ? tg.modules.get(row, "output_shapes") : made) ?? "";
    }

    function lastMade(place) {
      const last = stepsIn(place).reduce((most, step) => Math.max(most, step), -1);
      return last < 0 ? undefined : (opOf(last, "output_shapes") ?? "").split(", ")[0];
    }

    // The shape of what an item gives.
    function made(item) {
      if (item.kind === "step") return (opOf(item.number, "output_shapes") ?? "").split(", ")[0];
      if (item.kind === "input") return graph.data.tensors[graph.data.inputs[item.number][1]][0];
      if (item.kind !== "place") return "";
      const shapes = returned(item.number).split(", ");
      return shapes.length > 1 ? `${shapes[0]} +${shapes.length - 1}` : shapes[0];
    }

    function flowing(edge) {
      const texts = [...edge.tensors].map((tensor) => `${graph.data.tensors[tensor][0]} ${graph.data.tensors[tensor][1]}`);
      const more = texts.length > SHAPES ? `, +${texts.length - SHAPES}` : "";
      return `${texts.slice(0, SHAPES).join(", ")}${more}, ${tg.format.bytes(tg.graph.edgeBytes(edge))}`;
    }

    // The kinds of ops in an item by FLOPs, by number where none has any: [[kind, share], …], the largest first.
    function shares(item) {
      if (item.kind === "step") return [[opOf(item.number, "category"), 1]];
      if (item.kind !== "place") return [];
      const [work, numbers] = [new Map(), new Map()];
      for (const step of stepsIn(item.number)) {
        const category = opOf(step, "category");
        work.set(category, (work.get(category) ?? 0) + (opOf(step, "flops") ?? 0));
        numbers.set(category, (numbers.get(category) ?? 0) + 1);
      }
      const total = [...work.values()].reduce((sum, flops) => sum + flops, 0);
      const counted = [...(total ? work : numbers)].filter(([, value]) => value > 0);
      const whole = counted.reduce((sum, [, value]) => sum + value, 0);
      return counted.map(([category, value]) => [category, value / whole]).sort((a, b) => b[1] - a[1]);
    }

    return { label, title, kind, made, flowing, shares, one, all, times, opOf, stepsIn };
  };
})();
