// The picture of a prediction, then its sections, each with an entry in the menu.
(() => {
  tg.section({
    id: "chart",
    title: (title) => title,
    part: "picture",
    draw(element) {
      const picture = document.getElementById("picture").content.cloneNode(true);
      element.append(tg.el("div", { class: "scroll picture" }, picture));
    },
  });

  for (const [place, { title, blocks }] of (tg.part("sections") ?? []).entries()) {
    tg.section({ id: `section-${place}`, title, draw(element) { tg.drawBlocks(element, { title: "", blocks }); } });
  }
})();
