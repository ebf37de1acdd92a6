// The module that is selected anywhere is shown everywhere.
(() => {
  const listeners = [];
  let selected = null;

  tg.selection = {
    get: () => selected,
    set(path, origin = null) {
      if (path === selected) return;
      selected = path;
      for (const listener of listeners) listener(path, origin);
    },
    // The listener gets the path (null: nothing) and the origin that `set` was given.
    on: (listener) => { listeners.push(listener); },
  };

  // After the colours change, what is painted on a canvas must be painted again.
  const painters = [];
  tg.onTheme = (listener) => { painters.push(listener); };
  tg.repaint = () => { for (const painter of painters) painter(); };
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", tg.repaint);
})();
