// The payload and its column stores. A column is an array of values, {table, index} (equal values once), or {same}.
(() => {
  tg.payload = JSON.parse(document.getElementById("payload").textContent);
  tg.part = (name) => (name in tg.payload ? tg.payload[name] : null);

  function decode(column, length) {
    if (Array.isArray(column)) return column;
    if ("same" in column) return new Array(length).fill(column.same);
    return column.index.map((place) => column.table[place]);
  }

  tg.columns = (part) => {
    const { length, columns } = part || { length: 0, columns: {} };
    const decoded = new Map();
    const store = {
      length,
      keys: Object.keys(columns),
      has: (key) => key in columns,
      column(key) {
        if (!decoded.has(key)) decoded.set(key, key in columns ? decode(columns[key], length) : new Array(length).fill(null));
        return decoded.get(key);
      },
      get: (row, key) => store.column(key)[row],
      // Columns that the page derives from others.
      derive: (key, values) => { columns[key] = values; decoded.set(key, values); },
    };
    return store;
  };

  tg.modules = tg.columns(tg.part("modules"));
  tg.ops = tg.columns(tg.part("ops"));
  tg.figures = tg.part("figures") || [];
  tg.moduleFigures = tg.part("module_figures") || [];
  tg.opFigures = tg.part("op_figures") || [];
  tg.figure = (key) => tg.figures.find((figure) => figure.key === key);

  const rows = new Map();
  completeModules();
  completeOps();

  // The row of the module at a path; undefined where there is none.
  tg.rowOf = (path) => rows.get(path);

  // Rows come preorder with the row of their parent; paths and levels follow.
  function completeModules() {
    const { length } = tg.modules;
    const parents = tg.modules.column("parent");
    const names = tg.modules.column("name");
    const paths = new Array(length);
    const levels = new Array(length);
    const children = Array.from({ length }, () => []);
    for (let row = 0; row < length; row += 1) {
      const parent = parents[row];
      const above = parent === null ? "" : paths[parent];
      paths[row] = above === "" ? names[row] : `${above}.${names[row]}`;
      levels[row] = parent === null ? 0 : levels[parent] + 1;
      if (parent !== null) children[parent].push(row);
      rows.set(paths[row], row);
    }
    tg.modules.derive("path", paths);
    tg.modules.derive("level", levels);
    tg.modules.children = (row) => children[row];
  }

  function completeOps() {
    if (!tg.ops.has("module_row")) return;
    const paths = tg.modules.column("path");
    tg.ops.derive("module", tg.ops.column("module_row").map((row) => paths[row]));
  }
})();
