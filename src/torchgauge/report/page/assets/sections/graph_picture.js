// The scene as SVG. Everything that can be chosen is a button; arrow keys go to the nearest one in their direction.
(() => {
  const [STRIP, ARROW, HEADER] = [4, 7, 24];
  const ASIDE = 12; // a wire that turns by less leaves room for a text next to it
  const FONTS = { title: "12px", detail: "10.5px" };
  const pen = document.createElement("canvas").getContext("2d");
  const known = new Map();

  function textWidth(text, font) {
    const key = `${font}|${text}`;
    if (!known.has(key)) {
      pen.font = `${FONTS[font]} ${getComputedStyle(document.body).fontFamily}`;
      known.set(key, pen.measureText(text).width);
    }
    return known.get(key);
  }

  const detailOf = (label) => [label.kind, label.cost].filter(Boolean).join(" · ");

  tg.graph.sizeOf = (label, isOpen) => {
    const [title, detail] = [textWidth(label.title, "title"), textWidth(detailOf(label), "detail")];
    if (isOpen) return [title + detail + 44, HEADER];
    return [Math.max(Math.max(title, detail) + 24 + STRIP, 72), detail ? 40 : 26];
  };

  // From 1 for a kibibyte to 5 for a gibibyte: sizes differ by orders of magnitude.
  const wireWidth = (bytes) => Math.min(Math.max(Math.log2(Math.max(bytes, 1)) / 5 - 1, 1), 5);

  function way({ points, arrives, goesBack }) {
    let [[x, y], ...rest] = points;
    let text = `M${x.toFixed(1)},${y.toFixed(1)}`;
    rest.forEach(([toX, endY], place) => {
      // A wide line would show around the tip of its arrow.
      const toY = arrives && place === rest.length - 1 ? endY + (goesBack ? ARROW - 1 : 1 - ARROW) : endY;
      const middle = ((y + toY) / 2).toFixed(1);
      const isStraight = Math.abs(toX - x) < 0.5;
      text += isStraight ? `V${toY.toFixed(1)}` : `C${x.toFixed(1)},${middle} ${toX.toFixed(1)},${middle} ${toX.toFixed(1)},${toY.toFixed(1)}`;
      [x, y] = [isStraight ? x : toX, toY];
    });
    return text;
  }

  // options: {labelOf, fillOf, words, isOpenable, isEstimated, onChoose, onFocus}
  tg.graph.picture = (area, options) => {
    const root = tg.svg("svg", { class: options.isEstimated ? "graph is-estimated" : "graph", viewBox: `0 0 ${Math.ceil(area.width)} ${Math.ceil(area.height)}`, role: "group", "aria-label": "Computation graph" });
    const elements = new Map();
    const wires = [];
    const frames = area.boxes.filter(({ item }) => item.inside.length && item.around);
    root.append(tg.svg("g", {}, frames.map(frame)), tg.svg("g", {}, area.wires.map(wire)), tg.svg("g", {}, shapes()),
      tg.svg("g", {}, area.boxes.filter(({ item }) => !item.inside.length).map(node)), tg.svg("g", {}, frames.map(heading)));
    root.addEventListener("keydown", pressed);
    const boxes = new Map(area.boxes.map((box) => [box.item, box]));
    return { root, elements, boxes, mark };

    function frame(box) {
      return tg.svg("rect", { class: "graph-frame", ...place(box), rx: 6 });
    }

    function wire(piece) {
      const bytes = Math.max(...piece.edges.map(tg.graph.edgeBytes));
      const path = tg.svg("path", { class: piece.goesBack ? "graph-wire is-back" : "graph-wire", d: way(piece), "stroke-width": wireWidth(bytes).toFixed(1) });
      const [x, y] = piece.points[piece.points.length - 1];
      const base = piece.goesBack ? y + ARROW : y - ARROW;
      const head = piece.arrives ? tg.svg("path", { class: "graph-arrow", d: `M${x - 4.5},${base}H${x + 4.5}L${x},${y}Z` }) : null;
      const group = tg.svg("g", {}, path, head);
      tg.chart.tip.attach(group, () => wireTip(piece));
      wires.push({ group, edges: new Set(piece.edges) });
      return group;
    }

    function wireTip({ edges }) {
      const shown = edges.slice(0, 6).map((edge) => [`${options.labelOf(edge.source).title} → ${options.labelOf(edge.target).title}`, options.words.flowing(edge)]);
      return edges.length > 6 ? [...shown, `and ${edges.length - 6} more`] : shown;
    }

    // What something makes is written once, where it first leaves.
    function shapes() {
      const [leaving, arriving, written] = [new Map(), new Map(), new Map()];
      const add = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
      for (const { points, leaves, goesBack, edges: [{ source }] } of area.wires) {
        const end = points[points.length - 1];
        add(arriving, end.join(), points[0][0]);
        if (leaves && !goesBack) add(leaving, source, { start: points[0], end });
      }
      const places = [...leaving].map(([source, own]) => ({ start: own[0].start, ends: own.map(({ end }) => end), text: options.words.made(source) }));
      places.sort((a, b) => a.start[0] - b.start[0] || a.start[1] - b.start[1]);
      return places.map(({ start: [x, y], ends, text }) => {
        const width = textWidth(text, "detail");
        const isLeft = turnRight(x, ends, arriving) && x - 7 - width > (written.get(y) ?? 0);
        written.set(y, isLeft ? x : x + 7 + width);
        return text ? tg.svg("text", { class: "graph-shape", x: isLeft ? x - 7 : x + 7, y: y + 14, "text-anchor": isLeft ? "end" : null }, text) : null;
      });
    }

    // Whether the wires from here, or others to where they end, pass on the right only: the text goes on the left.
    function turnRight(x, ends, arriving) {
      const aside = ends.flatMap((end) => [end[0], ...arriving.get(end.join())]).map((other) => other - x);
      return Math.max(...aside) > 0.5 && Math.min(...aside) > -ASIDE;
    }

    function node(box) {
      const { item } = box;
      const label = options.labelOf(item);
      const [detail, isEnd] = [detailOf(label), item.kind === "input" || item.kind === "output"];
      const hasStrip = item.kind === "place" || item.kind === "step";
      const middle = box.x + box.width / 2 + (hasStrip ? STRIP / 2 : 0);
      const fill = options.fillOf(item);
      return button(item, "graph-node", [label.title, detail].filter(Boolean).join(", "),
        tg.svg("rect", { class: `graph-box is-${item.kind}${options.isOpenable(item) ? " is-openable" : ""}`, ...place(box), rx: isEnd ? box.height / 2 : 4, style: fill ? { fill } : null }),
        hasStrip ? strip(box) : null,
        tg.svg("text", { x: middle, y: box.y + (detail ? 17 : box.height / 2 + 4), "text-anchor": "middle" }, label.title),
        detail ? tg.svg("text", { class: "graph-detail", x: middle, y: box.y + 32, "text-anchor": "middle" }, detail) : null);
    }

    // What kinds of work are inside, by their share.
    function strip(box) {
      let y = box.y + 3;
      return options.words.shares(box.item).map(([category, share]) => {
        const height = share * (box.height - 6);
        const part = tg.svg("rect", { x: box.x + 4, y, width: STRIP, height, style: { fill: tg.categoryColor(category) } });
        y += height;
        return part;
      });
    }

    // The cost is on the right: data enter between the two.
    function heading(box) {
      const label = options.labelOf(box.item);
      return button(box.item, "graph-heading", [label.title, detailOf(label)].filter(Boolean).join(", "),
        tg.svg("rect", { class: "graph-grip", x: box.x, y: box.y, width: box.width, height: HEADER, rx: 6 }),
        tg.svg("text", { x: box.x + 10, y: box.y + 17 }, tg.svg("tspan", { class: "graph-sign" }, "− "), label.title,
          label.kind ? tg.svg("tspan", { class: "graph-detail", dx: 7 }, label.kind) : null),
        label.cost ? tg.svg("text", { class: "graph-detail", x: box.x + box.width - 10, y: box.y + 17, "text-anchor": "end" }, label.cost) : null);
    }

    function button(item, name, text, ...children) {
      const expanded = item.inside.length ? "true" : options.isOpenable(item) ? "false" : null;
      const group = tg.svg("g", {
        class: name, role: "button", tabindex: elements.size ? "-1" : "0", "aria-label": text, "aria-expanded": expanded, "data-key": item.key,
        on: { click: () => options.onChoose(item), focus: () => options.onFocus(item) },
      }, children);
      elements.set(item, group);
      return group;
    }

    function place({ x, y, width, height }) { return { x, y, width, height }; }

    function mark(item) {
      for (const [each, element] of elements) {
        element.classList.toggle("is-selected", each === item);
        element.setAttribute("tabindex", each === item || !item && each === elements.keys().next().value ? "0" : "-1");
      }
      for (const { group, edges } of wires) group.classList.toggle("is-near", [...edges].some(({ source, target }) => source === item || target === item));
    }

    function pressed(event) {
      const item = [...elements].find(([, element]) => element === event.target)?.[0];
      const direction = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
      if (!item || !direction && event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      if (!direction) options.onChoose(item);
      else elements.get(nearest(item, direction))?.focus();
    }

    function nearest(item, [dx, dy]) {
      const from = middleOf(item);
      let [best, found] = [Infinity, undefined];
      for (const other of elements.keys()) {
        const to = middleOf(other);
        const [ahead, aside] = dy ? [(to.y - from.y) * dy, Math.abs(to.x - from.x)] : [(to.x - from.x) * dx, Math.abs(to.y - from.y)];
        const cost = ahead + 2 * aside;
        if (other !== item && ahead > 1 && cost < best) [best, found] = [cost, other];
      }
      return found;
    }

    function middleOf(item) {
      const { x, y, width, height } = boxes.get(item);
      return { x: x + width / 2, y: y + (item.inside.length ? HEADER : height) / 2 };
    }
  };
})();
