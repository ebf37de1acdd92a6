// The machine, the versions and the files that the figures are of.
(() => {
  tg.section({
    id: "environment", title: "Environment", part: "environment",
    draw(element, data) {
      const { target, peaks } = data;
      element.append(tg.facts([
        ["Created", data.created.replace("T", " "), `by torchgauge ${data.version}`],
        ["Target", target.name, [target.kind, target.format].filter(Boolean).join(", ")],
        target.files.length ? ["Files", "", [...target.files, target.file_count > target.files.length ? `and ${tg.format.exact(target.file_count - target.files.length)} more` : null].filter(Boolean).join(", ")] : null,
        ...target.metadata.map(({ name, value }) => [name.replaceAll("_", " "), "", value]),
        ["Python", data.python], ["PyTorch", data.torch], ["System", "", data.platform],
        ["Processor", data.cpu, data.cpu_cores ? `${tg.plural(data.cpu_cores, "core")}, ${tg.plural(data.threads, "thread")} for PyTorch` : ""],
        ["Memory", tg.isKnown(data.memory_bytes) ? tg.format.bytes(data.memory_bytes) : null],
        ["Device", data.accelerator ?? data.device, data.accelerator ? data.device : ""],
        ["Peaks", "", peaks ? peaksText(peaks) : "unknown for this device: no roofline"],
        ...data.settings.filter(({ value }) => tg.isKnown(value)).map(({ name, value }) => [name.replaceAll("_", " "), String(value)]),
        ...data.packages.map(({ name, version }) => [name, version]),
      ]));
    },
  });

  const peaksText = ({ flops_per_s: rates, bytes_per_s: bandwidth, source }) =>
    [...Object.entries(rates).map(([dtype, rate]) => `${dtype} ${tg.format.rate(rate, "FLOP")}`), bandwidth ? `memory ${tg.format.rate(bandwidth, "B")}` : null].filter(Boolean).join(", ") + `; ${source}`;
})();
