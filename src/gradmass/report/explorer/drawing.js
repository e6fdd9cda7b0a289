// Small charts as SVG text: axes, lines, and the sizes and colours they share.
"use strict";

const DASHES = ["", "8 4", "2 3", "10 3 2 3", "5 2", "14 4", "1 3", "6 3 1 3 1 3"];
/** Slot of the palette by weight, as in reports; other names take the first that is free. */
const SLOTS = {
  fade: 0,
  grpo: 1,
  power: 2,
  asym_grpo_delta: 3,
  power_asym: 4,
  grpo_std: 5,
  reinforce: 6,
};

/** A colour and a dash for each weight shown; no colour twice. */
function looksOf(weights) {
  const taken = new Set();
  const slots = weights.map(({ name }) => {
    const slot = SLOTS[name];
    if (slot === undefined || taken.has(slot)) return null;
    taken.add(slot);
    return slot;
  });
  return slots.map((slot, row) => {
    for (let other = 7; slot === null; other--) {
      if (taken.has(other)) continue;
      taken.add(other);
      slot = other;
    }
    return { color: `var(--w${slot})`, dash: DASHES[row] };
  });
}

const MINUS = "\u2212";

/** Four digits, as gradmass masses prints them. */
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const rounded = Number((Math.round(value * 1e12) / 1e12).toPrecision(4)) + 0;
  return String(rounded).replace("-", MINUS);
}

const escaped = (text) =>
  String(text).replace(
    /[&<>"]/g,
    (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c],
  );

/** A linear map, or one of logarithms. */
function scaleOf([low, high], [from, to], isLog = false) {
  const at = isLog ? Math.log : (x) => x;
  const slope = (to - from) / (at(high) - at(low));
  return (x) => from + (at(x) - at(low)) * slope;
}

/** Round numbers across an interval. */
function ticksOf(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => power * factor >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

/** A line through points; values that are null break it. */
function pathOf(xs, ys, x, y) {
  let path = "",
    isDown = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) {
      isDown = false;
      continue;
    }
    path += `${isDown ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    isDown = true;
  }
  return path;
}

const curve = (path, { color, dash, width = 2.2, opacity = 1 }) =>
  `<path d="${path}" style="fill:none;stroke:${color};stroke-width:${width};stroke-dasharray:${dash || "none"};opacity:${opacity};stroke-linejoin:round"/>`;
const rule = (x1, y1, x2, y2, color = "var(--rule)", width = 1) =>
  `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" style="stroke:${color};stroke-width:${width}"/>`;
const words = (
  x,
  y,
  text,
  { anchor = "start", color = "var(--soft)", size = 12, weight = 400 } = {},
) =>
  `<text x="${x}" y="${y}" style="fill:${color};font-size:${size}px;text-anchor:${anchor};font-weight:${weight};paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round">${escaped(text)}</text>`;
const dot = (x, y, color, radius = 4.5) =>
  `<circle cx="${x}" cy="${y}" r="${radius}" style="fill:${color};stroke:var(--card);stroke-width:1.5"/>`;

/** A short line in a weight's colour and dash. */
const swatch = ({ color, dash }) =>
  `<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">${curve("M1 5L27 5", { color, dash, width: 3 })}</svg>`;

/** Widths of the places of drawings by id, read all at once: reading between writes is slow. */
const WIDTHS = {};

function measureWidths() {
  for (const host of document.querySelectorAll(".chart")) WIDTHS[host.id] = host.clientWidth;
}

/** A drawing as wide as its place, in pixels of the page. */
function draw(host, height, inner) {
  const width = WIDTHS[host.id];
  host.innerHTML =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" ` +
    `style="font-family:var(--sans);display:block;overflow:visible" aria-hidden="true">${inner}</svg>`;
}

/** Horizontal rules with their numbers, and numbers under the horizontal axis. */
function axes(box, { x, y, xTicks, yTicks, show = number }) {
  const across = yTicks.map(
    (tick) =>
      rule(box.left, y(tick), box.right, y(tick), tick === 0 ? "var(--axis)" : "var(--rule)") +
      words(box.left - 8, y(tick) + 4, show(tick), { anchor: "end" }),
  );
  const along = xTicks.map((tick) =>
    words(x(tick), box.bottom + 17, number(tick), { anchor: "middle" }),
  );
  return across.join("") + along.join("");
}

/** Save text as a file of its own. */
function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Save a drawing with the colours it has now. */
function saveSvg(host, name) {
  const style = getComputedStyle(document.documentElement);
  const text = host.innerHTML.replace(/var\((--[\w-]+)\)/g, (_, key) =>
    style.getPropertyValue(key).trim().replace(/"/g, "'"),
  );
  save(`${name}.svg`, text, "image/svg+xml");
}
