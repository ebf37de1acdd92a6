// Rectangles for a tree: an icicle (levels side by side) and a squarified treemap. What is too small to see is left out.
(() => {
  const THIN = 1.5; // pixels
  const HEADER = 17;
  const PAD = 2;

  // What a node divides among its children: siblings that share a tensor may have more than their parent.
  function whole(tree, row, children) {
    return Math.max(tree.value(row), children.reduce((sum, child) => sum + tree.value(child), 0));
  }

  // tree: {children(row), value(row)}; columns: the widths of the levels. Cells are {row, x, y, w, h, level, hidden};
  // `hidden`: has children, and none is shown.
  function icicle(tree, focus, { widths, height }) {
    const cells = [];
    const waiting = [{ row: focus, x: 0, y: 0, h: height, level: 0 }];
    while (waiting.length) {
      const cell = waiting.pop();
      const children = tree.children(cell.row);
      const width = widths[cell.level];
      const placed = { ...cell, w: width, hidden: children.length > 0 };
      cells.push(placed);
      if (cell.level === widths.length - 1) continue;
      const total = whole(tree, cell.row, children);
      let y = cell.y;
      for (const child of children) {
        const h = total > 0 ? (tree.value(child) / total) * cell.h : 0;
        if (h >= THIN) {
          waiting.push({ row: child, x: cell.x + width, y, h, level: cell.level + 1 });
          placed.hidden = false;
        }
        y += h;
      }
    }
    return cells;
  }

  function treemap(tree, focus, { width, height }) {
    const cells = [];
    const waiting = [{ row: focus, x: 0, y: 0, w: width, h: height, level: 0 }];
    while (waiting.length) {
      const cell = waiting.pop();
      const children = tree.children(cell.row);
      const inner = inside(cell);
      const isNested = children.length > 0 && inner.w > 8 && inner.h > 8;
      cells.push({ ...cell, header: isNested && inner.header, hidden: children.length > 0 && !isNested });
      if (!isNested) continue;
      const shown = children.filter((child) => tree.value(child) > 0).sort((a, b) => tree.value(b) - tree.value(a));
      const scale = (inner.w * inner.h) / whole(tree, cell.row, children);
      for (const box of squarify(shown, (child) => tree.value(child) * scale, inner)) {
        if (box.w >= THIN && box.h >= THIN) waiting.push({ ...box, level: cell.level + 1 });
      }
    }
    return cells;
  }

  function inside({ x, y, w, h }) {
    const header = w > 44 && h > 40;
    const top = header ? HEADER : PAD;
    return { header, x: x + PAD, y: y + top, w: w - 2 * PAD, h: h - top - PAD };
  }

  // Rows along the shorter side, each as square as it gets; areas come largest first.
  function squarify(rows, area, box) {
    const placed = [];
    let { x, y, w, h } = box;
    let from = 0;
    while (from < rows.length && w > 0 && h > 0) {
      const side = Math.min(w, h);
      let to = from;
      let sum = 0;
      let worst = Infinity;
      while (to < rows.length) {
        const next = sum + area(rows[to]);
        const ratio = worstRatio(area(rows[from]), area(rows[to]), next, side);
        if (ratio > worst) break;
        [sum, worst, to] = [next, ratio, to + 1];
      }
      const depth = sum / side;
      let along = 0;
      for (let place = from; place < to; place += 1) {
        const length = area(rows[place]) / depth;
        placed.push(w >= h ? { row: rows[place], x, y: y + along, w: depth, h: length } : { row: rows[place], x: x + along, y, w: length, h: depth });
        along += length;
      }
      if (w >= h) [x, w] = [x + depth, w - depth];
      else [y, h] = [y + depth, h - depth];
      from = to;
    }
    return placed;
  }

  function worstRatio(largest, smallest, sum, side) {
    const square = side * side;
    return Math.max((square * largest) / (sum * sum), (sum * sum) / (square * smallest));
  }

  tg.partition = { icicle, treemap };
})();
