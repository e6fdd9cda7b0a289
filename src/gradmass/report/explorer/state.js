// What is shown, and the address that says so: #G=16&w=grpo&w=power:alpha=3&prior=beta:0.5,1.2
"use strict";

const PAGE = JSON.parse(document.getElementById("data").textContent);
const CARDS = Object.fromEntries(PAGE.weights.map((card) => [card.name, card]));
const TABLES = Object.fromEntries(PAGE.tables.map((table) => [table.label, table]));
const RUN = PAGE.run;
const MOST_WEIGHTS = 8;
const EQUALISE = ["none", "mass_at_half", "mean_mass"];
const THEMES = ["auto", "light", "dark"];
const FADE_RANGES = {
  alpha_max: range(1, 8, 0.05),
  delta_min: range(0.05, 1, 0.05),
  ema: range(0.005, 1, 0.005),
  entropy_form: choice("absolute", "relative"),
  alpha_schedule: choice("solve-rate", "entropy", "log-decay", "constant"),
  delta_schedule: choice("entropy", "log-decay", "constant"),
};

/** Let the sliders reach what the page was written with. */
function widen(controls, fields) {
  for (const [field, value] of Object.entries(fields ?? {})) {
    if (controls[field]?.kind !== "range") continue;
    controls[field].low = Math.min(controls[field].low, value);
    controls[field].high = Math.max(controls[field].high, value);
  }
}
for (const { name, fields } of PAGE.view)
  widen(name === "fade" ? FADE_RANGES : (FORMULAS[name]?.controls ?? {}), fields);
widen(FADE_RANGES, RUN.fade);

const defaultOf = (name, field) => CARDS[name].fields[field][0];
const controlsOf = (name) => FORMULAS[name]?.controls ?? {};

/** Every field of a weight: given, else its default, else where its slider starts. */
function fieldsOf({ name, fields }) {
  if (!CARDS[name]) return {};
  const names = Object.keys(CARDS[name].fields);
  return Object.fromEntries(
    names.map((field) => [
      field,
      fields[field] ?? defaultOf(name, field) ?? controlsOf(name)[field].start,
    ]),
  );
}

/** The weight with the fields that differ from their defaults, as the library labels it. */
function labelOf({ name, fields }) {
  if (name === "fade" || !CARDS[name]) return name;
  const all = fieldsOf({ name, fields });
  const changed = Object.entries(all).filter(([field, value]) => value !== defaultOf(name, field));
  return changed.length ? `${name}(${changed.map((pair) => pair.join("=")).join(", ")})` : name;
}

function firstState() {
  const fade = {};
  for (const field of [...Object.keys(FADE_RANGES), "target_entropy"])
    fade[field] = defaultOf("fade", field);
  Object.assign(fade, RUN.fade);
  const state = {
    size: 8,
    prior:
      RUN.is_example || !RUN.priors.length
        ? { kind: "beta", a: 0.5, b: 1.2 }
        : { kind: "run", index: 0 },
    equalise: "none",
    p: 0.3,
    weights: [],
    fade,
    at: RUN.step.length - 1,
    theme: "auto",
  };
  for (const { name, fields } of PAGE.view) {
    if (name === "fade") Object.assign(fade, fields);
    state.weights.push({ name, fields: name === "fade" ? {} : { ...fields } });
  }
  return state;
}

/** The distribution of solve rates that is chosen, with its numbers. */
function priorOf({ prior }) {
  return prior.kind === "beta" ? prior : { kind: "measured", ...RUN.priors[prior.index] };
}

/** Measured solve rates, one a problem, as gradmass masses --prior reads them. */
function ratesText({ rates, shares, num_problems }) {
  return rates.map((rate, i) => `${rate}\n`.repeat(Math.round(shares[i] * num_problems))).join("");
}

function priorText(prior) {
  return prior.kind === "beta" ? `beta:${prior.a},${prior.b}` : `run:${prior.index}`;
}

const specOf = ({ name, fields }) =>
  Object.keys(fields).length ? `${name}:${pairs(fields)}` : name;
const pairs = (fields) =>
  Object.entries(fields)
    .map(([key, value]) => `${key}=${value}`)
    .join(",");

/** The part of the address after #: what differs from the first view. */
function addressOf(state) {
  const first = firstState(),
    parts = [];
  const put = (key, value) =>
    parts.push(
      `${key}=${encodeURIComponent(value).replace(/%(3A|2C|3D|40)/g, decodeURIComponent)}`,
    );
  if (state.size !== first.size) put("G", state.size);
  if (state.weights.map(specOf).join() !== first.weights.map(specOf).join()) {
    if (!state.weights.length) put("w", "");
    for (const weight of state.weights) put("w", specOf(weight));
  }
  if (priorText(state.prior) !== priorText(first.prior)) put("prior", priorText(state.prior));
  if (state.equalise !== first.equalise) put("equalise", state.equalise);
  if (state.p !== first.p) put("p", state.p);
  const fade = Object.fromEntries(
    Object.entries(state.fade).filter(([key, value]) => value !== first.fade[key]),
  );
  if (Object.keys(fade).length) put("fade", pairs(fade));
  if (state.at !== first.at) put("at", state.at);
  if (state.theme !== first.theme) put("theme", state.theme);
  return parts.join("&");
}

/** The state an address asks for, and what of it was not understood. */
function readAddress(hash) {
  const state = firstState(),
    refused = [];
  const weights = [];
  for (const part of hash.replace(/^#/, "").split("&").filter(Boolean)) {
    const cut = part.indexOf("=");
    let text = part;
    try {
      text = decodeURIComponent(part);
      const key = part.slice(0, cut),
        value = decodeURIComponent(part.slice(cut + 1));
      if (key === "w" && weights.length < MOST_WEIGHTS) weights.push(...readWeight(value));
      else if (!READERS[key]?.(state, value)) refused.push(text);
    } catch (error) {
      if (!(error instanceof RangeError || error instanceof URIError)) throw error;
      refused.push(text);
    }
  }
  if (/(^|[#&])w=/.test(hash)) state.weights = weights;
  return { state, refused };
}

function readWeight(spec) {
  if (spec === "") return [];
  if (TABLES[spec]) return [{ name: spec, fields: {} }];
  const [, name, rest] = /^([^:]*):?(.*)$/s.exec(spec);
  if (!CARDS[name]) throw new RangeError(spec);
  return [{ name, fields: readFields(rest, controlsOf(name), Object.keys(CARDS[name].fields)) }];
}

/** `field=value,...`, each value within what its control can show; others are numbers. */
function readFields(text, controls, known) {
  const fields = {};
  for (const pair of text.split(",").filter(Boolean)) {
    const [key, value] = pair.split("=");
    if (!known.includes(key)) throw new RangeError(pair);
    fields[key] = readValue(value, controls[key]);
  }
  return fields;
}

function readValue(text, control) {
  if (control?.kind === "choice") {
    const found = control.options.find((option) => String(option) === text);
    if (found === undefined) throw new RangeError(text);
    return found;
  }
  return numberWithin(text, control ? control.low : 0, control ? control.high : Infinity);
}

function numberWithin(text, low, high) {
  const value = Number(text);
  if (text === "" || text === undefined || !(value >= low && value <= high) || value === Infinity) {
    throw new RangeError(text);
  }
  return value;
}

/** By key of the address: puts a value into the state, or answers false. */
const READERS = {
  G: (state, text) => {
    state.size = Number(text);
    if (PAGE.group_sizes.includes(state.size)) return true;
    state.size = firstState().size;
    return false;
  },
  prior: (state, text) => {
    const [kind, rest] = text.split(":");
    if (kind === "run" && RUN.priors[rest]) state.prior = { kind, index: Number(rest) };
    else if (kind === "beta") {
      const [a, b] = rest.split(",").map((part) => numberWithin(part, 0.1, 10));
      state.prior = { kind, a, b: numberWithin(b, 0.1, 10) };
    } else return false;
    return true;
  },
  equalise: (state, text) => EQUALISE.includes(text) && ((state.equalise = text), true),
  p: (state, text) => ((state.p = numberWithin(text, 0.01, 0.99)), true),
  fade: (state, text) => {
    const given = text.split(",").filter((pair) => pair !== "target_entropy=half-initial");
    const isHalf = given.length < text.split(",").length;
    const controls = { ...FADE_RANGES, target_entropy: range(0.001, 100, 0.001) };
    Object.assign(state.fade, readFields(given.join(","), controls, Object.keys(controls)));
    if (isHalf) state.fade.target_entropy = "half-initial";
    return true;
  },
  at: (state, text) => ((state.at = Math.round(numberWithin(text, 0, RUN.step.length - 1))), true),
  theme: (state, text) => THEMES.includes(text) && ((state.theme = text), true),
};
