// The pictures of weights: masses, objective, axes, and the tables of their numbers.
"use strict";

const DRAWN = Array.from({ length: 200 }, (_, i) => Math.min(i * 5, 998));
const byId = (id) => document.getElementById(id);

// By what is chosen, not by what that holds: a run may have many steps and problems.
const groupsOf = remember(([prior, size]) => overGroups(priorOf({ prior }), size));
const playRun = remember((fade) => playController(RUN, fade));

/** Everything there is to say of each weight shown, for one state of the page. */
function computeAll(state) {
  const prior = priorOf(state),
    groups = groupsOf([state.prior, state.size]);
  const grpo = tableOf("grpo", {}, state.size, groups, true);
  const played = playRun(state.fade);
  const looks = looksOf(state.weights);
  const entries = state.weights.map((weight, row) => {
    const fields =
      weight.name === "fade"
        ? { alpha: played.alpha[state.at], delta: played.delta[state.at] }
        : fieldsOf(weight);
    const entry = { ...looks[row], name: weight.name, label: labelOf(weight), fields, trouble: "" };
    const key = [weight.name, fields, state.size, state.prior, state.equalise];
    const known = computeOne(key, groups, grpo);
    if (known.trouble) return { ...entry, ...known };
    return { ...entry, ...known, at: massesOf(known.table, [state.p], known.factor) };
  });
  return { entries, prior, groups, grpo, played };
}

/** What holds of a weight at every p. */
const computeOne = remember(([name, fields, size, , equalise], groups, grpo) => {
  const table = tableFor(name, fields, size, groups);
  if (table === null) return { trouble: `takes no groups of ${size}` };
  const factor = equaliseFactor(table, grpo, equalise, groups);
  if (factor === null) return { trouble: "no factor gives it the mass of grpo" };
  const masses = massesOf(table, GRID, factor);
  return { table, factor, masses, axes: axesOf(table, grpo, groups, factor, masses) };
});

function tableFor(name, fields, size, groups) {
  if (!CARDS[name]) return TABLES[name].sizes[size] ?? null;
  return tableOf(name, fields, size, groups, CARDS[name].on_ties === "zero");
}

const alive = ({ entries }) => entries.filter((entry) => !entry.trouble);
const least = (values, start) => values.reduce((x, y) => Math.min(x, y), start);
const most = (values, start) => values.reduce((x, y) => Math.max(x, y), start);

function boxOf(host, height, bottom = 26) {
  return { left: 52, right: WIDTHS[host.id] - 10, top: 10, bottom: height - bottom };
}

/** Positive mass upwards, negative mass downwards, and the solve rates of the problems below. */
function drawMasses(found, state) {
  const host = byId("masses"),
    height = WIDTHS[host.id] < 560 ? 380 : 460;
  const box = boxOf(host, height, 78);
  const shown = alive(found);
  let high = 0.02,
    low = -0.02;
  for (const { masses } of shown) {
    high = Math.max(most(masses.m_S, high), -least(masses.m_F, -high));
    low = Math.min(least(masses.m_S, low), -most(masses.m_F, -low));
  }
  const x = scaleOf([0, 1], [box.left, box.right]);
  const y = scaleOf([low, high], [box.bottom - 18, box.top + 18]);
  const isNarrow = WIDTHS[host.id] < 560;
  const xs = DRAWN.map((i) => GRID[i]);
  const lines = shown.map((entry) => {
    const up = pathOf(
      xs,
      DRAWN.map((i) => entry.masses.m_S[i]),
      x,
      y,
    );
    const down = pathOf(
      xs,
      DRAWN.map((i) => -entry.masses.m_F[i]),
      x,
      y,
    );
    return curve(up, entry) + curve(down, entry);
  });
  const dots = shown.map(
    ({ at, color }) => dot(x(state.p), y(at.m_S[0]), color) + dot(x(state.p), y(-at.m_F[0]), color),
  );
  draw(
    host,
    height,
    axes(box, {
      x,
      y,
      xTicks: [0, 0.25, 0.5, 0.75, 1],
      yTicks: ticksOf(low, high, 8),
      show: (tick) => number(Math.abs(tick)),
    }) +
      words(
        box.right,
        box.top + 6,
        isNarrow ? "successes ▲ m_S" : "successes, pushed up by m_S ▲",
        { anchor: "end", weight: 600 },
      ) +
      words(
        box.right,
        box.bottom - 2,
        isNarrow ? "failures ▼ m_F" : "failures, pushed down by m_F ▼",
        { anchor: "end", weight: 600 },
      ) +
      lines.join("") +
      rule(x(state.p), box.top, x(state.p), height - 30, "var(--ink)") +
      dots.join("") +
      ridge(found.prior, x, box, height),
  );
}

/** How common each solve rate is: a smooth hill, or a bar for each twentieth. */
function ridge(prior, x, box, height) {
  const bins = new Array(20).fill(0),
    base = height - 20,
    tall = 28;
  if (prior.kind === "beta") {
    const { share } = overGroups(prior, 2000);
    share.forEach((value, s) => {
      bins[Math.min(19, Math.floor((20 * (s + 0.5)) / 2001))] += value;
    });
  } else {
    prior.rates.forEach((rate, i) => {
      bins[Math.min(19, Math.floor(20 * rate))] += prior.shares[i];
    });
  }
  const top = Math.max(...bins);
  const bars = bins.map((value, i) => {
    const tallness = (value / top) * tall,
      wide = x(1 / 20) - x(0) - 1.5;
    return `<rect x="${x(i / 20) + 0.75}" y="${base - tallness}" width="${wide}" height="${tallness}" style="fill:var(--hill)"/>`;
  });
  return (
    bars.join("") +
    words(box.left, height - 4, "hard problems") +
    words(
      (box.left + box.right) / 2,
      height - 4,
      box.right < 560 ? "solve rate p" : "solve rate p, and how common it is",
      { anchor: "middle" },
    ) +
    words(box.right, height - 4, "easy problems", { anchor: "end" })
  );
}

/** The objective, or its slope, over the solve rate. */
function drawObjective(found, state, id, key) {
  const host = byId(id),
    height = 250,
    box = boxOf(host, height);
  const shown = alive(found);
  // A slope that is infinite at an end would flatten the rest: its top is cut off.
  const values = shown
    .flatMap(({ masses }) => DRAWN.slice(2, -2).map((i) => masses[key][i]))
    .sort((a, b) => a - b);
  const cut =
    key === "slope" ? (values[Math.floor(values.length * 0.98)] ?? 1) : (values.at(-1) ?? 1);
  const high = Math.max(cut * 1.08, 0.1),
    low = Math.min(0, values[0] ?? 0);
  const x = scaleOf([0, 1], [box.left, box.right]),
    y = scaleOf([low, high], [box.bottom, box.top]);
  const xs = DRAWN.map((i) => GRID[i]);
  const lines = shown.map((entry) => {
    const ys = DRAWN.map((i) => (entry.masses[key][i] > high ? null : entry.masses[key][i]));
    return curve(pathOf(xs, ys, x, y), entry);
  });
  const dots = shown.map(({ at, color }) =>
    at[key][0] > high ? "" : dot(x(state.p), y(at[key][0]), color),
  );
  draw(
    host,
    height,
    axes(box, { x, y, xTicks: [0, 0.25, 0.5, 0.75, 1], yTicks: ticksOf(low, high, 5) }) +
      lines.join("") +
      rule(x(state.p), box.top, x(state.p), box.bottom, "var(--ink)") +
      dots.join(""),
  );
}

const LANE = 34;

/** One lane a weight: where a number lies between two words. */
function drawLanes(id, found, { domain, isLog = true, ticks, show, marks }) {
  const host = byId(id),
    { entries } = found,
    box = { left: 12, right: WIDTHS[host.id] - 12 };
  const height = entries.length * LANE + 30;
  const scale = scaleOf(domain, [box.left, box.right], isLog);
  const at = (value) => scale(clip(value, ...domain));
  const grid = ticks.map(
    (tick) =>
      rule(
        at(tick),
        6,
        at(tick),
        height - 24,
        tick === 1 && isLog ? "var(--axis)" : "var(--rule)",
      ) + words(at(tick), height - 8, show(tick), { anchor: "middle", size: 11 }),
  );
  const lanes = entries.map((entry, row) => {
    const y = row * LANE + 26;
    const name = words(box.left, y - 10, entry.label, { size: 11, color: "var(--ink)" });
    return name + rule(box.left, y, box.right, y) + (entry.trouble ? "" : marks(entry, at, y));
  });
  draw(host, height, grid.join("") + lanes.join(""));
}

const up = (x, y, color) =>
  `<path d="M${x - 6} ${y + 1}h12l-6 -10z" style="fill:${color};stroke:var(--card)"/>`;
const down = (x, y, color) =>
  `<path d="M${x - 6} ${y - 1}h12l-6 10z" style="fill:${color};stroke:var(--card)"/>`;
const octave = (value) => (value < 1 ? `1/${Math.round(1 / value)}` : String(value));

function drawAxes(found) {
  drawLanes("sign", found, {
    domain: [1 / 16, 16],
    ticks: [1 / 8, 1, 8],
    show: octave,
    marks: ({ at, color }, x, y) => {
      const [positive, negative] = [at.m_S[0], at.m_F[0]];
      if (positive <= 0 && negative <= 0) return "";
      return dot(x(negative <= 0 ? Infinity : Math.max(positive, 0) / negative || 0), y, color, 6);
    },
  });
  drawLanes("difficulty", found, {
    domain: [0, 1],
    isLog: false,
    ticks: [0, 0.5, 1],
    show: number,
    marks: ({ axes: { centroid_S, centroid_F }, color }, x, y) =>
      (centroid_S === null ? "" : up(x(centroid_S), y, color)) +
      (centroid_F === null ? "" : down(x(centroid_F), y, color)),
  });
  drawLanes("scale", found, {
    domain: [1 / 32, 32],
    ticks: [1 / 16, 1 / 4, 1, 4, 16],
    show: octave,
    marks: ({ axes: { scale_mean }, color }, x, y) =>
      scale_mean > 0 ? dot(x(scale_mean), y, color, 6) : "",
  });
}

const AT_P = {
  m_S: ({ at }) => at.m_S[0],
  m_F: ({ at }) => at.m_F[0],
  "m_S / m_F": ({ at }) => (at.m_F[0] ? at.m_S[0] / at.m_F[0] : null),
  "F′": ({ at }) => at.slope[0],
  F: ({ at }) => at.objective[0],
};
const OVER_PROBLEMS = {
  "peak S": "peak_S",
  "peak F": "peak_F",
  "centroid S": "centroid_S",
  "centroid F": "centroid_F",
  "scale at 1/2": "scale_at_half",
  scale: "scale_mean",
  "lr factor": "learning_rate_factor",
  "useful groups": "useful_groups",
  "effective groups": "effective_groups",
};

function fillTable(id, found, columns) {
  const head = Object.keys(columns)
    .map((name) => `<th scope="col">${name}</th>`)
    .join("");
  const rows = found.entries.map((entry) => {
    const name = `<th scope="row">${swatch(entry)} <span>${escaped(entry.label)}</span></th>`;
    if (entry.trouble)
      return `<tr>${name}<td colspan="${Object.keys(columns).length}" class="trouble">${escaped(entry.trouble)}</td></tr>`;
    const cells = Object.entries(columns).map(([key, read]) => {
      const value = typeof read === "string" ? entry.axes[read] : read(entry);
      return `<td data-key="${escaped(key)}">${number(value)}</td>`;
    });
    return `<tr>${name}${cells.join("")}</tr>`;
  });
  byId(id).innerHTML =
    `<thead><tr><th scope="col">weight</th>${head}</tr></thead><tbody>${rows.join("")}</tbody>`;
}

/** What to type for the same numbers. */
function commandOf(found, state) {
  const specs = found.entries.map(({ name, fields }, row) => {
    if (name === "fade") return `power_asym:alpha=${fields.alpha},delta=${fields.delta}`;
    return CARDS[name]
      ? specOf({ name, fields: givenFields(state.weights[row]) })
      : TABLES[name].spec;
  });
  const prior = state.prior.kind === "beta" ? priorText(state.prior) : "rates.txt";
  const equalise = state.equalise === "none" ? "" : ` --equalise ${state.equalise}`;
  return `gradmass masses ${specs.join(" ")} --group-size ${state.size} --p ${state.p} --prior ${prior}${equalise}`;
}

/** Fields to name: those given, and those without a default. */
function givenFields(weight) {
  const all = fieldsOf(weight);
  return Object.fromEntries(
    Object.entries(all).filter(([field, value]) => value !== defaultOf(weight.name, field)),
  );
}
