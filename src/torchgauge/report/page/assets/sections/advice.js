// Advice: likely bugs, then the largest expected gain; options; what was verified, what was withdrawn, the plan.
(() => {
  tg.section({
    id: "advice", title: "Advice", part: "advice",
    draw(element, data) {
      const standing = data.rows.filter((row) => !row.is_withdrawn);
      const withdrawn = data.rows.filter((row) => row.is_withdrawn);
      if (data.plan) drawPlan(element, data.plan);
      if (standing.length) element.append(tg.el("ol", { class: "advice" }, standing.map((row) => tg.el("li", {}, piece(row)))));
      if (data.options.length) {
        element.append(tg.heading("Options: choices that every model has"),
          tg.el("ul", { class: "advice" }, data.options.map((row) => tg.el("li", {}, piece(row)))));
      }
      if (!withdrawn.length) return;
      element.append(tg.heading(data.withdrawn_title),
        tg.el("ul", { class: "advice withdrawn" }, withdrawn.map((row) => tg.el("li", {}, piece(row)))));
    },
  });

  function piece(row) {
    return [
      tg.el("h3", {}, row.recommendation),
      tg.el("p", { class: "where" }, placeButton(row), " ", tg.el("small", {}, row.rule)),
      tg.isKnown(row.low) ? gainBar(row) : tg.el("p", { class: "verdict refuted" }, row.gain),
      row.measured ? verdict(row) : null,
      row.evidence.length ? tg.el("p", { class: "faint" }, row.evidence.join(" · ")) : null,
      row.code ? codeBlock(row.code) : null,
      tg.el("p", { class: "caveats" }, [["Confidence", row.confidence], ["Risk", row.risk], ["Gain", row.how]]
        .filter(([, text]) => text).map(([name, text]) => tg.el("span", {}, tg.el("b", {}, name), ` ${text}`))),
      row.places.length > 1 ? placeList(row) : null,
    ];
  }

  function placeButton(row) {
    if (row.module === null) return tg.name(row.place, 120);
    return tg.button(tg.name(row.place, 120), () => tg.selection.set(row.module, "advice"), { class: "link", title: "Select the module everywhere" });
  }

  function placeList(row) {
    const more = row.place_count - row.places.length;
    return tg.el("details", {}, tg.el("summary", {}, tg.plural(row.place_count, "place")),
      tg.el("p", { class: "places" }, row.places.map((place, at) => [at ? ", " : null, tg.name(place, 100)]), more > 0 ? ` and ${tg.format.exact(more)} more` : null));
  }

  // From nothing to the whole: the expected range hatched as every estimate, what was measured a solid mark.
  function gainBar(row) {
    return tg.el("div", { class: "gain" },
      tg.el("div", { class: "gain-track", role: "img", "aria-label": `expected gain ${row.gain}` },
        tg.el("span", { class: "gain-range fill estimated", style: { left: percent(row.low), width: percent(Math.max(row.high - row.low, 0.004)), "--paint": "var(--accent)" } }),
        tg.isKnown(row.measured_gain) ? tg.el("span", { class: "gain-mark", style: { left: percent(row.measured_gain) } }) : null),
      tg.el("span", { class: "number" }, row.gain, tg.estimated()));
  }

  const percent = (share) => `${(Math.max(0, Math.min(share, 1)) * 100).toFixed(2)}%`;

  function verdict(row) {
    const kind = row.is_withdrawn ? "refuted" : row.is_verified ? "good" : "faint";
    return tg.el("p", { class: `verdict ${kind}` }, row.is_withdrawn && row.withdrawn_for ? `${row.withdrawn_for}; ${row.measured}` : row.measured);
  }

  function codeBlock(code) {
    const button = tg.button("Copy", () => copy(code, button), { class: "copy" });
    return tg.el("div", { class: "code" }, tg.el("pre", { tabindex: "0" }, code), button);
  }

  // A page opened from a file may be denied the clipboard: then the text is selected, for the reader to copy.
  async function copy(code, button) {
    const say = (text) => { button.textContent = text; setTimeout(() => { button.textContent = "Copy"; }, 1600); };
    try {
      await navigator.clipboard.writeText(code);
      say("Copied");
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
      say(document.execCommand("copy") ? "Copied" : "Selected");
    }
  }

  function drawPlan(element, plan) {
    element.append(tg.el("div", { class: "plan" }, tg.heading("Plan: best combination, measured"),
      tg.facts([["Gain", plan.gain], ["Output", "", plan.output], ["Made of", "", plan.rules.join(", ")]]), codeBlock(plan.code)));
  }
})();
