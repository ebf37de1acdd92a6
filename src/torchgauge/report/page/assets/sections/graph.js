tg.section({
  id: "graph",
  title: "Graph",
  part: "graph",
  draw(element, data) {
    const [FOUND, AROUND, SMALLEST, LARGEST] = [12, 15, 0.08, 2.5];
    const graph = tg.graph.read(data);
    const state = { scale: 1, color: "category", chosen: null, ...start() };
    let [scene, words, area, picture] = [null, null, null, null];

    const view = tg.el("div", { class: "graph-view" });
    const aside = tg.el("aside", { class: "graph-details", "aria-label": "Details", "aria-live": "polite" });
    const [legend, results] = [tg.el("div", {}), tg.el("ul", { class: "graph-results", "aria-label": "Found" })];
    const caption = tg.el("figcaption", {});
    element.append(...notes(), controls(), results, tg.el("div", { class: "graph-area" }, tg.el("figure", {}, view, legend, caption), aside));
    rebuild();
    zoom(startingScale());
    view.scrollLeft = (view.scrollWidth - view.clientWidth) / 2;
    listen();

    function start() {
      return { open: new Set(data.open), unfolded: new Set(), shown: new Map(data.shown < data.most ? [[0, [0, data.shown]]] : []) };
    }

    function notes() {
      const found = [];
      if (!data.steps.op.length) found.push(tg.note("There is no code, so nothing runs: these modules are inferred from the names of the weights."));
      else if (!data.links.source.length && !data.inputs.length && !data.outputs.length) found.push(tg.note("The data flow between ops was not recorded: modules and ops are shown in the order of the run."));
      if (data.phases > 1) found.push(tg.note("The graph shows the forward pass."));
      return found;
    }

    function controls() {
      const figures = tg.figures.map((figure) => ({ value: figure.key, label: figure.kind === "estimated" ? `${figure.label} (estimated)` : figure.label }));
      const kinds = data.steps.op.length ? [{ value: "category", label: "kind of op" }] : [{ value: "category", label: "none" }];
      const search = tg.search("Find a module or op", find);
      search.addEventListener("keydown", (event) => { if (event.key === "Enter") results.querySelector("button")?.click(); });
      return tg.el("div", { class: "controls" }, search,
        tg.choice("Colour", [...kinds, ...figures], state.color, (value) => { state.color = value; rebuild(); }),
        tg.button("−", () => zoom(state.scale / 1.25), { "aria-label": "Smaller" }),
        tg.button("+", () => zoom(state.scale * 1.25), { "aria-label": "Larger" }),
        tg.button("Fit", () => zoom(fitting())),
        tg.button("Reset", () => { Object.assign(state, start()); rebuild(); zoom(startingScale()); }));
    }

    function isOpenable(item) {
      return isRest(item) || item.kind === "place" && !item.inside.length && !graph.isClosed(item.number);
    }

    function isRest(item) { return item.kind === "more" || item.kind === "earlier"; }

    function showMore(item) {
      const [from, to] = state.shown.get(item.number) ?? [0, data.most];
      state.shown.set(item.number, item.kind === "more" ? [from, to + data.most] : [Math.max(from - data.most, 0), to]);
    }

    // What is at `anchor` stays where the reader sees it.
    function rebuild(anchor) {
      const before = anchor && placeOnScreen(anchor.key);
      scene = tg.graph.scene(graph, state);
      words = tg.graph.words(graph, scene);
      const figure = tg.figure(state.color);
      const labels = new Map();
      const labelOf = (item) => {
        if (!labels.has(item)) labels.set(item, words.label(item, figure));
        return labels.get(item);
      };
      area = tg.graph.layout(scene, (item) => tg.graph.sizeOf(labelOf(item), item.inside.length > 0));
      picture = tg.graph.picture(area, { labelOf, fillOf: fills(figure), words, isOpenable, isEstimated: figure?.kind === "estimated", onChoose: choose, onFocus: focus });
      tg.replace(view, picture.root);
      zoom(state.scale);
      if (before) restore(anchor.key, before);
      describe(figure);
      showChosen();
    }

    function itemAt(key) {
      return [...picture.elements.keys()].find((item) => item.key === key);
    }

    function placeOnScreen(key) {
      const box = picture && picture.boxes.get(itemAt(key));
      return box && { x: box.x * state.scale - view.scrollLeft, y: box.y * state.scale - view.scrollTop };
    }

    function restore(key, { x, y }) {
      const box = picture.boxes.get(itemAt(key));
      if (!box) return;
      view.scrollLeft = box.x * state.scale - x;
      view.scrollTop = box.y * state.scale - y;
    }

    function fills(figure) {
      if (!figure) {
        tg.replace(legend);
        const kinds = new Set(area.boxes.filter(({ item }) => !item.inside.length).flatMap(({ item }) => words.shares(item).map(([kind]) => kind)));
        tg.chart.legend(legend, [...kinds].sort().map((label) => ({ label, color: tg.categoryColor(label) })));
        return () => null;
      }
      const leaves = area.boxes.filter(({ item }) => !item.inside.length).map(({ item }) => words.all(item, figure.key) ?? 0);
      const most = Math.max(...leaves, 0);
      tg.replace(legend, tg.el("ul", { class: "legend" }, tg.el("li", {}, "0", tg.el("span", { class: "graph-ramp" }), tg.figureText(figure, most), ` ${figure.label}`,
        figure.kind === "estimated" ? tg.estimated() : null)));
      // The root: otherwise all but the largest few look alike.
      return (item) => {
        const share = most > 0 ? Math.sqrt((words.all(item, figure.key) ?? 0) / most) : 0;
        return share > 0 ? `color-mix(in srgb, var(--accent) ${Math.round(share * 60)}%, var(--paper))` : null;
      };
    }

    function describe(figure) {
      const closed = area.boxes.filter(({ item }) => !item.inside.length).length;
      const strip = data.steps.op.length ? " The strip of a box: its kinds of work, by FLOPs." : "";
      const by = figure ? ` Darker: more ${figure.label}${figure.kind === "estimated" ? " (estimated)" : ""}, summed over everything in the box.` : strip;
      const flow = scene.edges.length ? ` ${tg.plural(scene.edges.length, "connection")}; wider lines carry more bytes, dashed lines lead back to a module that is called again.` : "";
      caption.textContent = `${tg.plural(closed, "box", "boxes")} of ${tg.plural(data.steps.op.length || graph.count, data.steps.op.length ? "op" : "module")}.${flow}${by}`;
    }

    function choose(item) {
      state.chosen = item.key;
      if (isRest(item)) showMore(item);
      else if (item.inside.length) state.open.delete(item.number);
      else if (isOpenable(item)) state.open.add(item.number);
      else { showChosen(); announce(item); return; }
      rebuild(item);
      announce(item);
      picture.elements.get(itemAt(item.key))?.focus({ preventScroll: true });
    }

    function focus(item) {
      if (state.chosen === item.key) return;
      state.chosen = item.key;
      showChosen();
      announce(item);
      bringIntoView(item);
    }

    function announce(item) {
      if (item.kind === "place") tg.selection.set(graph.path(item.number), "graph");
      if (item.kind === "step") tg.selection.set(words.opOf(item.number, "module"), "graph");
    }

    function showChosen() {
      const item = itemAt(state.chosen);
      picture.mark(item);
      tg.replace(aside, tg.graph.details(graph, scene, words, item, { toggle: choose, isOpenable, setFold, go }));
    }

    function setFold(first, isUnfolded) {
      if (isUnfolded) state.unfolded.add(first);
      else state.unfolded.delete(first);
      state.chosen = `place${first}`;
      rebuild();
      bringIntoView(itemAt(state.chosen));
    }

    function go(item) {
      picture.elements.get(item)?.focus({ preventScroll: true });
      bringIntoView(item);
    }

    function bringIntoView(item) {
      const box = item && picture.boxes.get(item);
      if (!box) return;
      const [x, y] = [(box.x + box.width / 2) * state.scale, (box.y + Math.min(box.height, 60) / 2) * state.scale];
      if (x < view.scrollLeft + 40 || x > view.scrollLeft + view.clientWidth - 40) view.scrollLeft = x - view.clientWidth / 2;
      if (y < view.scrollTop + 40 || y > view.scrollTop + view.clientHeight - 40) view.scrollTop = y - view.clientHeight / 2;
    }

    function reveal(place, step) {
      const drawn = scene.standIn[place];
      for (let at = step === undefined ? graph.parent[drawn] : drawn; at >= 0; at = graph.parent[at]) {
        if (!graph.isClosed(at)) state.open.add(at);
        const [position, [from, to]] = [positionIn(at, drawn, step), state.shown.get(at) ?? [0, data.most]];
        if (position < from || position >= to) state.shown.set(at, [Math.max(position - AROUND, 0), position + AROUND]);
      }
      rebuild();
      const item = step === undefined ? scene.itemOfPlace(place) : scene.itemOfStep(step);
      state.chosen = item.key;
      showChosen();
      go(item);
    }

    function positionIn(place, drawn, step) {
      const isIt = (item) => item.step === step && step !== undefined || item.place !== undefined && drawn >= item.place && drawn < item.place + graph.size[item.place];
      return tg.graph.foldedItems(graph, state, place).findIndex(isIt);
    }

    function find(text) {
      const wanted = text.trim().toLowerCase();
      const found = wanted ? tg.graph.matches(graph, wanted, FOUND) : [];
      tg.replace(results, found.map(({ label, note, place, step }) => tg.el("li", {},
        tg.button(tg.short(label, 80), () => reveal(place, step), { class: "graph-link" }), " ", tg.el("span", { class: "faint" }, note))),
      wanted && !found.length ? tg.el("li", { class: "faint" }, "Nothing has this name.") : null);
    }

    function fitting() {
      // The view is as high as the picture, up to its limit.
      const height = parseFloat(getComputedStyle(view).maxHeight) || view.clientHeight;
      return Math.min(view.clientWidth / area.width, height / area.height, 1);
    }

    function startingScale() {
      return Math.min(Math.max((view.clientWidth - 4) / area.width, 0.6), 1);
    }

    // The middle of the view stays.
    function zoom(scale) {
      const middle = [(view.scrollLeft + view.clientWidth / 2) / state.scale, (view.scrollTop + view.clientHeight / 2) / state.scale];
      const had = state.scale;
      state.scale = Math.min(Math.max(scale, SMALLEST), LARGEST);
      picture.root.setAttribute("width", Math.ceil(area.width * state.scale));
      picture.root.setAttribute("height", Math.ceil(area.height * state.scale));
      if (had === state.scale) return;
      view.scrollLeft = middle[0] * state.scale - view.clientWidth / 2;
      view.scrollTop = middle[1] * state.scale - view.clientHeight / 2;
    }

    function listen() {
      view.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        zoom(state.scale * Math.exp(-event.deltaY / 300));
      }, { passive: false });
      view.addEventListener("pointerdown", drag);
      view.addEventListener("keydown", (event) => {
        const change = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
        if (change && !event.ctrlKey && !event.metaKey) zoom(state.scale * change);
        else if (event.key === "0" && !event.ctrlKey && !event.metaKey) zoom(fitting());
        else if (event.key === "Escape") closeAround();
      });
      tg.selection.on((path, origin) => {
        const row = tg.rowOf(path);
        const place = origin === "graph" || row === undefined ? -1 : graph.row.indexOf(row);
        if (place < 0) return;
        state.chosen = scene.itemOfPlace(place).key;
        showChosen();
      });
    }

    function closeAround() {
      const around = itemAt(state.chosen)?.around;
      if (around?.around) choose(around);
    }

    // A mouse drags the picture; fingers scroll it.
    function drag(event) {
      if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest("[role=button]")) return;
      const from = [event.clientX + view.scrollLeft, event.clientY + view.scrollTop];
      const move = (now) => { [view.scrollLeft, view.scrollTop] = [from[0] - now.clientX, from[1] - now.clientY]; };
      view.setPointerCapture(event.pointerId);
      view.addEventListener("pointermove", move);
      view.addEventListener("pointerup", () => view.removeEventListener("pointermove", move), { once: true });
    }
  },
});
