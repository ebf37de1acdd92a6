// The sections that no other section of the page shows.
tg.section({
  id: "more", title: "Details", part: "more",
  draw(element, sections) { for (const section of sections) tg.drawBlocks(element, section); },
});
