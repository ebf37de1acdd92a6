// Sections: a heading, an entry in the navigation, drawn when they come near.
(() => {
  const main = document.getElementById("sections");
  const nav = document.getElementById("nav");
  const sections = new Map();

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target.id);
  }, { rootMargin: "400px 0px" });

  const current = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) mark(entry.target.id);
  }, { rootMargin: "-15% 0px -80% 0px" });

  // `part` may be left out for a section that needs none. `lead` is a sentence under the heading; `title` a text or made from the data.
  tg.section = ({ id, title: named, part, lead, draw: drawSection }) => {
    const data = part === undefined ? true : tg.part(part);
    if (data === null || data === undefined) return;
    const title = typeof named === "function" ? named(data) : named;
    const body = tg.el("div", { class: "body" });
    const element = tg.el("section", { id, class: "waiting", "aria-labelledby": `${id}-title` },
      tg.el("h2", { id: `${id}-title`, tabindex: "-1" }, title), lead ? tg.note(lead) : null, body);
    const link = tg.el("a", { href: `#${id}` }, title);
    nav.append(tg.el("li", {}, link));
    main.append(element);
    sections.set(id, { element, body, link, data, drawSection, drawn: false });
    link.addEventListener("click", (event) => { event.preventDefault(); tg.go(id); });
    near.observe(element);
    current.observe(element);
  };

  function draw(id) {
    const section = sections.get(id);
    if (!section || section.drawn) return;
    section.drawn = true;
    near.unobserve(section.element);
    try {
      section.drawSection(section.body, section.data, tg);
    } catch (error) {
      // One broken section must not take the page with it; the console has the whole error.
      console.error(error);
      tg.replace(section.body, tg.warn(`This section could not be drawn: ${error.message}`));
    }
    section.element.classList.remove("waiting");
  }

  function mark(id) {
    for (const [name, { link }] of sections) {
      if (name === id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const { link } = sections.get(id);
    // Only the bar scrolls, never the page.
    const bar = nav.parentElement;
    if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = link.offsetLeft - bar.clientWidth / 3;
  }

  // Show a section. It and all above it are drawn first: a section that is drawn later would move it.
  tg.go = (id) => {
    const section = sections.get(id);
    if (!section) return;
    for (const name of sections.keys()) {
      draw(name);
      if (name === id) break;
    }
    history.replaceState(null, "", `#${id}`);
    section.element.scrollIntoView({ block: "start" });
    document.getElementById(`${id}-title`).focus({ preventScroll: true });
    mark(id);
  };

  // Texts that the browser's own search finds, although no element shows them: `onFound(place)` brings them to the reader.
  const MOST_FINDABLE = 5000;
  tg.findable = (texts, onFound) => {
    const places = texts.slice(0, MOST_FINDABLE).map((text, place) => tg.el("div", { hidden: "until-found", "data-place": String(place) }, text));
    const box = tg.el("div", { class: "findable", "aria-hidden": "true" }, places);
    box.addEventListener("beforematch", ({ target }) => {
      setTimeout(() => target.setAttribute("hidden", "until-found"));
      onFound(Number(target.dataset.place));
    });
    document.body.append(box);
  };

  tg.drawAll = () => { for (const id of sections.keys()) draw(id); };
  // A table that is made while the page is being printed hears of it no other way.
  addEventListener("beforeprint", () => { tg.isPrinting = true; tg.drawAll(); });
  addEventListener("afterprint", () => { tg.isPrinting = false; });

  // A key in the section that the reader is in: "/" goes to its search field.
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const section = event.target.closest?.("section") ?? [...sections.values()].find(({ link }) => link.hasAttribute("aria-current"))?.element;
    const field = section?.querySelector("input[type=search]") ?? main.querySelector("input[type=search]");
    if (!field) return;
    event.preventDefault();
    field.focus();
  });

  tg.start = () => {
    const wanted = location.hash.slice(1);
    if (!sections.has(wanted)) return;
    // After a reload the browser would scroll to where the reader was, over sections that are not drawn yet.
    history.scrollRestoration = "manual";
    tg.go(wanted);
  };
  addEventListener("hashchange", tg.start);
})();
