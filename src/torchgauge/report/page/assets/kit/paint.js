// Cells on a canvas: fills, labels that fit, hatching for estimates.
(() => {
  const LETTER = 6.4; // mean width at the size of the labels

  function channels(color) {
    const hex = color.replace("#", "");
    const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
  }

  // A colour between two hex ones.
  tg.mix = (from, to, share) => {
    const [first, second] = [channels(from), channels(to)];
    return `#${first.map((value, at) => Math.round(value + (second[at] - value) * share).toString(16).padStart(2, "0")).join("")}`;
  };

  tg.readable = (fill) => {
    const [red, green, blue] = channels(fill).map((value) => (value / 255) ** 2.2);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.28 ? "#14171b" : "#ffffff";
  };

  tg.canvas = (box, label) => {
    const canvas = tg.el("canvas", { tabindex: "0", role: "application", "aria-label": label });
    box.append(canvas);
    const size = () => {
      const { clientWidth: width, clientHeight: height } = box;
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      return { context, width, height };
    };
    return { canvas, size };
  };

  tg.paintCell = (context, cell, { fill, line, label, detail, estimated, header }) => {
    const { x, y, w, h } = cell;
    context.fillStyle = fill;
    context.fillRect(x, y, w, h);
    if (estimated) hatch(context, cell, tg.readable(fill));
    if (w > 3 && h > 3) {
      context.strokeStyle = line;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    const room = Math.floor((w - 10) / LETTER);
    if (h < 13 || room < 3) return;
    write(context, cell, { room, ink: tg.readable(fill), label, detail, top: header || h > 40 ? y + 13 : y + h / 2 + 4, backed: estimated ? fill : null });
  };

  function write(context, { x, w }, { room, ink, label, detail, top, backed }) {
    const name = fitting(context, label, room, w - 8);
    const used = context.measureText(`${name}  `).width;
    const text = detail && used + context.measureText(detail).width <= w - 8 ? detail : "";
    if (backed) {
      context.fillStyle = backed;
      context.fillRect(x + 2, top - 11, Math.min(w - 4, used + context.measureText(text).width + 4), 15);
    }
    context.direction = "ltr";
    context.fillStyle = ink;
    context.globalAlpha = 1;
    context.fillText(name, x + 5, top);
    if (!text) return;
    context.globalAlpha = 0.72;
    context.fillText(text, x + 5 + used, top);
    context.globalAlpha = 1;
  }

  function fitting(context, label, room, width) {
    let letters = Math.min(room + 4, label.length);
    while (letters > 3 && context.measureText(tg.short(label, letters)).width > width) letters -= 1;
    return tg.short(label, letters);
  }

  function hatch(context, { x, y, w, h }, ink) {
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.beginPath();
    for (let at = Math.ceil((x - h) / 7) * 7; at < x + w; at += 7) {
      context.moveTo(at, y + h);
      context.lineTo(at + h, y);
    }
    context.strokeStyle = ink;
    context.globalAlpha = 0.3;
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  tg.outline = (context, { x, y, w, h }, color, width) => {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(x + width / 2, y + width / 2, Math.max(w - width, 1), Math.max(h - width, 1));
  };
})();
