// The texts of units.py, to the character; a missing value is a dash.
(() => {
  const COUNTS = ["", "k", "M", "G", "T", "P", "E"];
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];
  const ABSENT = "–";

  const known = (form) => (value, ...rest) => (value === null || value === undefined ? ABSENT : form(value, ...rest));

  // Python rounds an exact tie to the even digit, toFixed to the larger one. A tie is a multiple of this power of 1/2.
  function fixed(value, digits) {
    const doubled = value * 2 * 10 ** digits;
    if (Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(doubled) % 2 === 1) {
      const lower = (doubled - 1) / 2;
      return ((lower % 2 === 0 ? lower : lower + 1) / 10 ** digits).toFixed(digits);
    }
    return value.toFixed(digits);
  }

  function scale(value, base, steps) {
    let power = 0;
    while (Math.abs(value) >= base * 0.9995 && power < steps - 1) {
      value /= base;
      power += 1;
    }
    return [value, power];
  }

  function threeDigits(value, whole) {
    if (whole && Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return fixed(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
  }

  // Python's "g": significant digits without trailing zeros, an exponent of two digits at least.
  function general(value, digits) {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
    if (value === 0) return "0";
    const [rounded, exponent] = value.toExponential(digits - 1).split("e");
    const power = Number(exponent);
    const decimals = digits - 1 - power;
    if (power >= -4 && power < digits) return trim(fixed(value, decimals));
    const mantissa = decimals < 0 ? evenMantissa(value, digits, power) : rounded;
    return `${trim(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }

  // Only large numbers can be ties: below 0.0001 none has so few digits.
  const evenMantissa = (value, digits, power) => (Number(fixed(value / 10 ** (power - digits + 1), 0)) / 10 ** (digits - 1)).toFixed(digits - 1);
  const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

  function count(value) {
    const [scaled, power] = scale(value, 1000, COUNTS.length);
    return `${threeDigits(scaled, power === 0)} ${COUNTS[power]}`.trimEnd();
  }

  function bytes(value) {
    const [scaled, power] = scale(value, 1024, BYTES.length);
    return `${threeDigits(scaled, power === 0)} ${BYTES[power]}`;
  }

  function seconds(value) {
    if (value === 0) return "0 s";
    for (const [unit, name] of TIMES) {
      if (Math.abs(value) >= unit) return `${threeDigits(value / unit, false)} ${name}`;
    }
    return `${general(value / 1e-9, 2)} ns`;
  }

  const prefixed = (unit) => (value) => {
    if (Math.abs(value) >= 1 || value === 0) {
      const [scaled, power] = scale(value, 1000, COUNTS.length);
      return `${threeDigits(scaled, value === 0)} ${COUNTS[power]}${unit}`;
    }
    for (const [size, prefix] of SMALL) {
      if (Math.abs(value) >= size * 0.9995) return `${threeDigits(value / size, false)} ${prefix}${unit}`;
    }
    return `${general(value, 2)} ${unit}`;
  };

  // "782 TFLOP/s", "4.20 TB/s", "85/s" without a unit.
  function rate(value, unit = "") {
    const text = count(value);
    const spaced = unit && !/[a-zA-Z]$/.test(text) ? `${text} ${unit}` : `${text}${unit}`;
    return `${spaced}/s`;
  }

  tg.format = {
    count: known(count),
    exact: known((value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",")),
    bytes: known(bytes),
    seconds: known(seconds),
    joules: known(prefixed("J")),
    watts: known(prefixed("W")),
    grams: known(prefixed("g")),
    percent: known((share) => `${fixed(share * 100, 1).replace(/^-(?=0\.0$)/, "")} %`),  // no minus before zero
    value: known((value) => general(value, 3)),
    decibels: known((value) => `${fixed(value, 1)} dB`),
    shape: known((sizes) => (sizes.length ? sizes.join("×") : "scalar")),
    rate: known(rate),
    text: known(String),
  };

  // The range of an estimate in a row of a store.
  tg.rangeText = (store, row, figure) => {
    const ends = (figure.range ?? []).map((key) => store.get(row, key));
    if (ends.length !== 2 || ends.some((value) => value === null || value === undefined)) return null;
    return `estimated, between ${ends.map((value) => tg.format[figure.form](value)).join(" and ")}`;
  };

  // An estimate never looks like a measurement: "≈ 1.2 mJ".
  tg.figureText = (figure, value) => {
    const text = tg.format[figure.form](value);
    return figure.kind === "estimated" && value !== null && value !== undefined ? `≈ ${text}` : text;
  };
})();
