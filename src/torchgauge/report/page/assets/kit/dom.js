"use strict";
// One global: everything of the page hangs on it. Data becomes text nodes and attributes, never markup.
const tg = {};

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  tg.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  tg.svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) setAttribute(element, name, value);
    append(element, children);
    return element;
  }

  function setAttribute(element, name, value) {
    if (value === null || value === undefined || value === false) return;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style" && typeof value === "object") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, String(setting));
    } else if (name.startsWith("on") || name === "href" && !String(value).startsWith("#")) {
      throw new Error(`'${name}' may not be set from data`);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }

  function append(element, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : String(child));
    }
  }

  // Like Element.append, but lists are flattened and null is skipped.
  tg.append = (element, ...children) => {
    append(element, children);
    return element;
  };

  tg.replace = (element, ...children) => {
    element.replaceChildren();
    append(element, children);
    return element;
  };

  tg.note = (text) => tg.el("p", { class: "note" }, text);
  tg.warn = (text) => tg.el("p", { class: "warning" }, text);
  tg.estimated = () => tg.el("span", { class: "estimated-mark" }, "estimated");

  // A name from a model: text of any direction and length, in its own isolate; the middle of a long one is left out.
  tg.name = (text, limit = 120) =>
    tg.el("bdi", { class: "name", title: text.length > limit ? tg.short(text, 1000) : null }, tg.short(text, limit));

  tg.short = (text, limit = 120) => {
    if (text.length <= limit) return text;
    const tail = Math.floor(limit / 3);
    // Not through the middle of a character beyond the first 65,536.
    return `${text.slice(0, limit - tail - 1).replace(/[\ud800-\udbff]$/, "")}…${text.slice(-tail).replace(/^[\udc00-\udfff]/, "")}`;
  };

  // A figure and its unit stay on one line.
  tg.tied = (text) => text.replace(/(\d) (?=\D)/g, "$1\u00a0");

  // The colour of a custom property as it is now ("accent"), or of a category (3). For canvas; CSS uses var().
  tg.color = (name) => {
    const property = typeof name === "number" ? `--c${name % 10}` : `--${name}`;
    return getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  };

  tg.button = (text, onClick, attributes = {}) =>
    tg.el("button", { type: "button", ...attributes, on: { click: onClick } }, text);

  // A labelled <select>; options are [{value, label}], onChange gets the value.
  tg.choice = (label, options, value, onChange) => {
    const select = tg.el("select", { on: { change: () => onChange(select.value) } },
      options.map((option) => tg.el("option", { value: option.value }, option.label)));
    select.value = value;
    return tg.el("label", { class: "choice" }, tg.el("span", {}, label), select);
  };

  tg.check = (label, checked, onChange) => {
    const box = tg.el("input", { type: "checkbox", on: { change: () => onChange(box.checked) } });
    box.checked = checked;
    return tg.el("label", { class: "check" }, box, tg.el("span", {}, label));
  };

  // A menu of check boxes behind a button: Escape and a click elsewhere close it.
  tg.menu = (label, checks) => {
    const menu = tg.el("details", { class: "menu" }, tg.el("summary", {}, label), tg.el("div", {}, checks));
    const close = () => { menu.open = false; };
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      close();
      menu.querySelector("summary").focus();
    });
    document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) close(); });
    return menu;
  };

  /* `wanted` holds the keys of the columns that are shown; `changed` is called when that changes. */
  tg.columnMenu = (all, wanted, changed) =>
    tg.menu("Columns", all.map((column) =>
      tg.check(column.title ?? column.label, wanted.has(column.key), (checked) => {
        if (checked) wanted.add(column.key);
        else wanted.delete(column.key);
        changed();
      })));

  // A search field: "/" anywhere in its section focuses it, Escape empties it.
  tg.search = (label, onChange) => {
    const field = tg.el("input", { type: "search", placeholder: label, "aria-label": label, spellcheck: "false" });
    field.addEventListener("input", () => onChange(field.value));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || field.value === "") return;
      field.value = "";
      onChange("");
    });
    return field;
  };

  // One of several buttons is pressed: [{value, label}].
  tg.toggle = (label, options, value, onChange) => {
    const buttons = options.map((option) => tg.button(option.label, () => press(option.value), { "data-value": option.value }));
    const press = (chosen, quietly) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
      if (!quietly) onChange(chosen);
    };
    press(value, true);
    return tg.el("div", { class: "toggle", role: "group", "aria-label": label }, buttons);
  };
})();
