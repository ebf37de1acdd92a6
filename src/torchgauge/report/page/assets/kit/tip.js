// One tooltip for the whole page: for the pointer and for keyboard focus alike.
(() => {
  const box = tg.el("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
  document.body.append(box);

  // content: a text, or a list of lines, each a text or [name, value].
  function show(content, x, y) {
    const lines = (Array.isArray(content) ? content : [content]).filter((line) => line !== null && line !== undefined);
    tg.replace(box, lines.map(line));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 10) : y + 18}px`;
  }

  function line(content) {
    if (content instanceof Node) return tg.el("div", {}, content);
    if (!Array.isArray(content)) return tg.el("div", { class: "tip-text" }, tg.short(String(content), 300));
    return tg.el("div", { class: "tip-row" }, tg.el("span", {}, content[0]), tg.el("b", {}, tg.short(String(content[1]), 300)));
  }

  const hide = () => { box.hidden = true; };

  tg.chart = tg.chart || {};
  tg.chart.tip = {
    show,
    hide,
    // Show `content()` while the element is under the pointer or has the focus.
    attach(element, content) {
      element.addEventListener("pointermove", (event) => show(content(), event.clientX, event.clientY));
      element.addEventListener("pointerleave", hide);
      // A listener for the focus makes any SVG element a stop of the Tab key.
      if (!element.hasAttribute("tabindex")) return;
      element.setAttribute("aria-describedby", box.id);
      element.addEventListener("focus", () => {
        const { left, bottom } = element.getBoundingClientRect();
        show(content(), left, bottom - 12);
      });
      element.addEventListener("blur", hide);
    },
  };
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
