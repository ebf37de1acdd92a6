tg.section({
  id: "map",
  title: "Map",
  part: "modules",
  draw(element) {
    const modules = tg.modules;
    if (!tg.figures.length) {
      element.append(tg.note("No module has a figure to size it by."));
      return;
    }
    const LEVELS = 6;
    const CRUMBS = 8;
    const tree = tg.groupedTree(modules);
    const state = { form: "icicle", size: startingSize(), color: startingColor(), focus: 0, cursor: 0, cells: [] };

    const crumbs = tg.el("div", { class: "crumbs", role: "navigation", "aria-label": "Position in the map" });
    const box = tg.el("div", { class: "map" });
    const legend = tg.el("div", {});
    const caption = tg.el("figcaption", {});
    const live = tg.el("p", { class: "note", role: "status" });
    element.append(controls(), crumbs, tg.el("figure", {}, box, legend, caption, live));
    const { canvas, size } = tg.canvas(box, "Map of the modules. Arrow keys move, Enter zooms in, Backspace zooms out.");
    drawCrumbs();
    listen();

    function startingSize() {
      return (tg.figure("macs") ?? tg.figure("params") ?? tg.figures[0]).key;
    }

    function startingColor() {
      return modules.column("type").some((type, row) => type && row > 0) ? "type" : startingSize();
    }

    function named(figure) {
      return figure.kind === "estimated" ? `${figure.label} (estimated)` : figure.label;
    }

    function controls() {
      const figures = tg.figures.map((figure) => ({ value: figure.key, label: named(figure) }));
      const set = (name) => (value) => { state[name] = value; paint(); };
      return tg.el("div", { class: "controls" },
        tg.toggle("Form", [{ value: "icicle", label: "Icicle" }, { value: "treemap", label: "Treemap" }], state.form, set("form")),
        tg.choice("Size", figures, state.size, set("size")),
        tg.choice("Colour", [{ value: "type", label: "type" }, ...figures], state.color, set("color")));
    }

    // Levels below a node, no further than can be shown.
    function depth(node, most = LEVELS) {
      if (most === 0) return 0;
      return tree.children(node).reduce((deepest, child) => Math.max(deepest, 1 + depth(child, most - 1)), 0);
    }

    function value(node, key = state.size) { return tree.value(node, key); }

    function cellsOf(width, height) {
      const shape = { children: tree.children, value };
      if (state.form === "treemap") return tg.partition.treemap(shape, state.focus, { width, height });
      const levels = Math.min(depth(state.focus) + 1, width < 500 ? 3 : LEVELS);
      const cells = tg.partition.icicle(shape, state.focus, { widths: levelWidths(levels, width), height });
      // Where the last levels are too thin to see, the others have their room.
      const seen = Math.max(...cells.map(({ level }) => level)) + 1;
      return seen === levels ? cells : tg.partition.icicle(shape, state.focus, { widths: levelWidths(seen, width), height });
    }

    function levelWidths(levels, width) {
      if (levels === 1) return [width];
      const first = Math.min(width / levels, 120);
      return [first, ...new Array(levels - 1).fill((width - first) / (levels - 1))];
    }

    function paint() {
      const { context, width, height } = size();
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
      state.cells = value(state.focus) > 0 ? cellsOf(width, height) : [];
      const colors = fills();
      tg.replace(legend, colors.legend);
      const line = tg.color("paper");
      const figure = tg.figure(state.size);
      for (const cell of state.cells) {
        tg.paintCell(context, cell, {
          fill: colors.fill(cell), line, label: nameOf(cell.row), detail: tg.figureText(figure, value(cell.row)), header: cell.header,
          estimated: isEstimated() && (state.form === "icicle" || !cell.header),
        });
      }
      mark(context);
      describe(figure);
    }

    function isEstimated() {
      return tg.figure(state.size).kind === "estimated" || tg.figure(state.color)?.kind === "estimated";
    }

    function nameOf(row) {
      return row === 0 ? modules.get(0, "type") || "(model)" : tree.name(row);
    }

    function pathOf(row) {
      return tree.isGroup(row) ? nameOf(row) : tree.path(row) || "(model)";
    }

    function fills() {
      if (state.color === "type") return tg.fills.byType(tree, state.cells, value);
      return tg.fills.byFigure(tg.figure(state.color), value(state.focus, state.color), (row) => value(row, state.color));
    }

    function mark(context) {
      const selected = state.cells.find(({ row }) => tg.selection.get() !== null && tree.path(row) === tg.selection.get());
      if (selected) tg.outline(context, selected, tg.color("ink"), 2.5);
      const cursor = state.cells.find(({ row }) => row === state.cursor);
      if (cursor && document.activeElement === canvas) tg.outline(context, cursor, tg.color("accent"), 3);
    }

    function drawCrumbs() {
      const chain = [];
      for (let row = state.focus; row !== null; row = tree.parent(row)) chain.unshift(row);
      const shown = chain.length > CRUMBS ? [chain[0], ...chain.slice(1 - CRUMBS)] : chain;
      tg.replace(crumbs, shown.map((row, place) => [
        place ? tg.el("span", {}, place === 1 && shown !== chain ? "› … ›" : "›") : null,
        row === state.focus ? tg.el("b", {}, tg.name(nameOf(row), 60)) : tg.button(tg.short(nameOf(row), 60), () => zoom(row)),
      ]));
    }

    function share(row) {
      const all = value(0);
      return all > 0 ? tg.format.percent(value(row) / all) : "–";
    }

    // Nothing for a leaf; siblings that share a tensor may have more than their parent.
    function ownValue(row) {
      const children = tree.children(row);
      return children.length ? value(row) - children.reduce((sum, child) => sum + value(child), 0) : 0;
    }

    function describe(figure) {
      const children = tg.sorted(tree.children(state.focus).filter((row) => value(row) > 0), (row) => value(row), true).slice(0, 4);
      const largest = children.map((row) => `${tg.short(nameOf(row), 40)} ${tg.figureText(figure, value(row))} (${share(row)})`).join(", ");
      const own = state.cells.some(({ row, hidden }) => !hidden && ownValue(row) > 0.01 * value(state.focus)) ? " The part of a module outside its children is left empty next to them." : "";
      const estimate = isEstimated() ? " Hatched: estimated, not measured." : "";
      caption.textContent = state.cells.length
        ? `Size: ${named(figure)}, ${tg.figureText(figure, value(state.focus))} in ${tg.short(nameOf(state.focus), 60)}.${largest ? ` Largest: ${largest}.` : ""}${own}${estimate} The table of modules has the same figures.`
        : `Nothing in ${tg.short(nameOf(state.focus), 60)} has ${named(figure)}.`;
    }

    function zoom(row) {
      state.focus = row;
      state.cursor = row;
      drawCrumbs();
      paint();
    }

    function out() {
      const parent = tree.parent(state.focus);
      if (parent !== null) zoom(parent);
    }

    function at(event) {
      const { left, top } = canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      return state.cells.filter((cell) => x >= cell.x && x < cell.x + cell.w && y >= cell.y && y < cell.y + cell.h)
        .sort((a, b) => b.level - a.level)[0];
    }

    function tipOf(row) {
      const lines = tg.figures.map((figure) => [named(figure), tg.figureText(figure, value(row, figure.key))]);
      return [pathOf(row), tree.type(row) || null, ...lines, [`of all ${named(tg.figure(state.size))}`, share(row)]];
    }

    function choose(row) {
      state.cursor = row;
      if (!tree.isGroup(row)) tg.selection.set(tree.path(row), "map");
      if (row === state.focus) out();
      else if (tree.children(row).length) zoom(row);
      else paint();
    }

    function listen() {
      canvas.addEventListener("pointermove", (event) => {
        const cell = at(event);
        if (cell) tg.chart.tip.show(tipOf(cell.row), event.clientX, event.clientY);
        else tg.chart.tip.hide();
      });
      canvas.addEventListener("pointerleave", tg.chart.tip.hide);
      canvas.addEventListener("click", (event) => { const cell = at(event); if (cell) choose(cell.row); });
      canvas.addEventListener("focus", paint);
      canvas.addEventListener("blur", paint);
      canvas.addEventListener("keydown", pressed);
      tg.selection.on(paint);
      tg.onTheme(paint);
      new ResizeObserver(paint).observe(box);
    }

    function sibling(step) {
      const parent = tree.parent(state.cursor);
      if (parent === null || state.cursor === state.focus) return undefined;
      const visible = tree.children(parent).filter((row) => state.cells.some((cell) => cell.row === row));
      return visible[visible.indexOf(state.cursor) + step];
    }

    function firstChild() {
      return tree.children(state.cursor).find((row) => state.cells.some((cell) => cell.row === row));
    }

    function pressed(event) {
      const moves = {
        ArrowDown: () => sibling(1), ArrowUp: () => sibling(-1), ArrowRight: firstChild,
        ArrowLeft: () => (state.cursor === state.focus ? undefined : tree.parent(state.cursor)),
      };
      if (event.key in moves) {
        const row = moves[event.key]();
        if (row !== undefined && row !== null) moveTo(row);
      } else if (event.key === "Enter") {
        if (state.cursor !== state.focus) choose(state.cursor);
      } else if (event.key === "Backspace" || event.key === "Escape") {
        out();
      } else {
        return;
      }
      event.preventDefault();
    }

    function moveTo(row) {
      state.cursor = row;
      const figure = tg.figure(state.size);
      live.textContent = `${tg.short(pathOf(row), 120)}: ${tg.figureText(figure, value(row))}, ${share(row)}`;
      paint();
    }
  },
});
