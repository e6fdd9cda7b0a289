// The formulas of the weights for rewards of 0 and 1, and the sliders of their fields.
//
// A formula gets a group: n rollouts, s of them right, f wrong, r = s / n, q = f / n; and gives the
// weight of a success and minus the weight of a failure. It must equal the class of the same name
// in gradmass.weights, which is where names, defaults and meanings of fields come from.
"use strict";

const range = (low, high, step, start) => ({ kind: "range", low, high, step, start });
const choice = (...options) => ({ kind: "choice", options });

/** Chance that `draws` of `whole` items, drawn without replacement, all lie in `part`. */
function fallingRatio(part, whole, draws) {
  let chance = 1;
  for (let t = 0; t < draws; t++) {
    chance *= (whole > t && part > t ? part - t : 0) / (whole > t ? whole - t : 1);
  }
  return chance;
}

const orOne = (value) => (value > 0 ? value : 1);

function spread({ n, r, q }, { ddof, eps }, floor = 0) {
  const variance = n > ddof ? (n * r * q) / (n - ddof) : 0;
  return orOne(Math.max(Math.sqrt(variance), floor) + eps);
}

const powerAsym = ({ r, q }, alpha, delta) => {
  const hard = orOne(q) ** (alpha - 1);
  return [hard * q, (hard * r) / delta];
};

function looStd({ n, s, f, r, q }, { eps }) {
  const one = (centred, ownCount, otherCount) => {
    const fromOthers = (centred * n) / orOne(n - 1);
    const variance = (n * r * q - centred * fromOthers) / (n > 2 ? n - 2 : 1);
    const isSpread = ownCount > 1 && otherCount > 0 && variance > 0;
    return fromOthers / (isSpread ? Math.sqrt(variance) + eps : 1);
  };
  return [one(q, s, f), one(r, f, s)];
}

function tilted({ n, s, f }, beta) {
  const [success, failure] = beta > 0 ? [0, Math.expm1(-beta)] : [Math.expm1(beta), 0];
  const mean = (s * success + f * failure) / n;
  return [(success - mean) / (1 + mean), -(failure - mean) / (1 + mean)];
}

function quantile({ n, f }, { K, interpolation }) {
  const at = (rank) => (rank < f ? 0 : 1);
  if (interpolation === "paper") {
    let below = 0;
    for (let rank = 0; rank < n; rank++) below += (rank + 1) / n < K;
    return at(below);
  }
  const low = Math.floor(K * (n - 1));
  return at(low) + (K * (n - 1) - low) * (at(Math.min(low + 1, n - 1)) - at(low));
}

function betaDensity({ mean, variance }, r) {
  if (variance === 0) return 1;
  const size = ((mean * (1 - mean)) / variance - 1) / 3;
  const one = Math.max(1, 1 + size * mean),
    other = Math.max(1, 1 + size * (1 - mean));
  const logBeta = logGamma(one) + logGamma(other) - logGamma(one + other);
  return Math.exp(
    Math.max((one - 1) * Math.log(r) + (other - 1) * Math.log(1 - r) - logBeta, -Math.log(1e6)),
  );
}

/** log Gamma(x) for x of at least 1/2: Stirling's series, after a shift to where it is exact. */
function logGamma(x) {
  let shift = 0;
  for (; x < 12; x++) shift += Math.log(x);
  const y = 1 / (x * x);
  const series = (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x;
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series - shift;
}

const logistic = ({ low, high, midpoint, steepness }, rate) =>
  low + (high - low) * (0.5 - 0.5 * Math.tanh(0.5 * steepness * (rate - midpoint)));
const scaled = (factor, [success, failure]) => [factor * success, factor * failure];

/** By registered name: what the formula needs beside the group, and the sliders of its fields. */
const FORMULAS = {
  grpo: { of: ({ r, q }) => [q, r] },
  rloo: { of: ({ n, r, q }) => scaled(n / orOne(n - 1), [q, r]) },
  grpo_std: {
    controls: { ddof: choice(1, 0), std_floor: range(0, 0.5, 0.01) },
    of: (g, c) => scaled(1 / spread(g, c, c.std_floor), [g.q, g.r]),
  },
  grpo_loo_std: { of: looStd },
  power: { controls: { alpha: range(0.25, 8, 0.05) }, of: (g, c) => powerAsym(g, c.alpha, 1) },
  asym_grpo_delta: {
    controls: { delta: range(0.1, 4, 0.05) },
    of: (g, c) => powerAsym(g, 1, c.delta),
  },
  power_asym: {
    controls: { alpha: range(0.25, 8, 0.05, 2), delta: range(0.1, 4, 0.05, 0.5) },
    of: (g, c) => powerAsym(g, c.alpha, c.delta),
  },
  fade: { follows: true, of: (g, c) => powerAsym(g, c.alpha, c.delta) },
  sign_pure: {
    controls: { delta: range(0.1, 4, 0.05) },
    of: ({ n, s, f }, { delta }) => {
      if (n === 1) return [0, 0];
      const one = (p, isSuccess) => (isSuccess ? delta * (1 - p) : p) / (delta * (1 - p) + p);
      return [one((s - 1) / (n - 1), true), one(s / (n - 1), false)];
    },
  },
  power_unbiased: {
    controls: { alpha: range(1, 16, 1) },
    of: ({ n, f, r, q }, { alpha }) =>
      scaled((fallingRatio(f, n - 1, alpha) * n) / orOne(f), [q, r]),
    least: ({ alpha }) => alpha + 1,
  },
  maxrl: { of: ({ r, q }, { eps }) => scaled(1 / orOne(r + eps), [q, r]) },
  maxrl_conditional: { of: ({ s, f }) => [f / orOne(s), 1] },
  maclaurin: {
    controls: { T: range(1, 16, 1, 4) },
    of: ({ n, f }, { T }) => {
      let sum = 0;
      for (let t = 1; t < Math.min(T, n); t++) sum += fallingRatio(f - 1, n - 1, t);
      return [1, sum];
    },
  },
  one_sided: { of: ({ r, q }, { eps }) => scaled(1 / orOne(Math.sqrt(r) + eps), [q, r]) },
  rs_grpo: {
    controls: { beta: range(-6, 6, 0.1) },
    of: (g, { beta }) => (beta === 0 ? [g.q, g.r] : scaled(1 / beta, tilted(g, beta))),
  },
  entropic: {
    controls: { beta: range(0.1, 6, 0.1), leave_one_out: choice(false, true) },
    of: (g, { beta, leave_one_out }) => {
      if (!leave_one_out) return tilted(g, beta);
      const e = Math.exp(-beta),
        others = orOne(g.n - 1);
      return [1 / ((g.s - 1 + g.f * e) / others) - 1, -(e / ((g.s + (g.f - 1) * e) / others) - 1)];
    },
  },
  passk_tang: { of: ({ n, s }) => [s === 1 && n > 1 ? n : 0, 0] },
  grpo_passk: { of: ({ n, s }) => [s === 1 && n > 1 ? 1 : 0, 0] },
  passk_chen: {
    controls: { k: range(1, 32, 1, 4) },
    of: ({ n, f, r, q }, { k, eps }) => {
      const missed = fallingRatio(f, n, k);
      const share = f > 0 ? fallingRatio(f - 1, n - 1, k - 1) : 0;
      return scaled(share / orOne(Math.sqrt(missed * (1 - missed)) + eps), [q, r]);
    },
    least: ({ k }) => k,
  },
  pkpo_s: {
    controls: { k: range(1, 32, 1, 4) },
    of: ({ n, f }, { k }) => [k, -k * (1 - fallingRatio(f - 1, n - 1, k - 1))],
    least: ({ k }) => k,
  },
  pkpo_sloo: {
    controls: { k: range(1, 32, 1, 4) },
    of: ({ n, f }, { k }) => {
      const factor = n / orOne(n - 1);
      const failure =
        1 - fallingRatio(f - 1, n - 1, k - 1) - factor * (1 - fallingRatio(f - 1, n - 1, k));
      return [k * (1 - factor * (1 - fallingRatio(f, n - 1, k))), -k * failure];
    },
    least: ({ k }) => k + 1,
  },
  pkpo_sloo_minus_one: {
    controls: { k: range(2, 32, 1, 4) },
    of: ({ n, f }, { k }) => [k * fallingRatio(f, n - 1, k - 1), 0],
    least: ({ k }) => k,
  },
  reinforce: {
    controls: { signed: choice(false, true) },
    of: (g, { signed }) => [1, signed ? 1 : 0],
  },
  psr: { of: () => [1, 0] },
  nsr: { of: () => [0, 1] },
  w_reinforce: {
    controls: { success_weight: range(0.05, 2, 0.05) },
    of: (g, c) => [c.success_weight, 1],
  },
  asymre: {
    controls: { baseline_shift: range(-0.5, 0.5, 0.01) },
    of: ({ n, s, r, q }, { baseline_shift: d }) => {
      if (n === 1) return [0, 0];
      return s === 0 || s === n ? [-d, d] : [q - d, r + d];
    },
  },
  asym_grpo_power: {
    controls: { beta_pos: range(0, 2, 0.05), beta_neg: range(0, 2, 0.05) },
    of: ({ r, q }, c) => [(r / q) ** -c.beta_pos, (r / q) ** c.beta_neg],
  },
  qae: {
    controls: {
      K: range(0.05, 0.95, 0.05),
      interpolation: choice("paper", "linear"),
      ddof: choice(1, 0),
    },
    of: (g, c) => {
      const baseline = quantile(g, c);
      return scaled(1 / spread(g, c), [1 - baseline, baseline]);
    },
  },
  f_grpo: {
    controls: { gamma: range(0, 4, 0.05), ddof: choice(1, 0) },
    of: (g, c) => scaled(g.q ** c.gamma / spread(g, c), [g.q, g.r]),
  },
  mgpo: {
    controls: { sharpness: range(0, 20, 0.5), ddof: choice(1, 0) },
    of: (g, c) => {
      const divergence = Math.log(2) + g.r * Math.log(g.r) + g.q * Math.log(g.q);
      return scaled(Math.exp(-c.sharpness * divergence) / spread(g, c), [g.q, g.r]);
    },
  },
  grpo_lead: {
    controls: {
      low: range(0, 2, 0.05),
      high: range(0, 4, 0.05),
      midpoint: range(0, 1, 0.05),
      steepness: range(0, 40, 1),
      ddof: choice(1, 0),
    },
    of: (g, c) => {
      const scale = 1 / spread(g, c);
      return [scale * g.q * logistic(c, g.r), scale * g.r * logistic(c, g.q)];
    },
  },
  // These depend on the whole batch: one of infinitely many problems with the chosen solve rates.
  gpg: {
    controls: { f_norm: range(0.1, 4, 0.1) },
    of: (g, c, batch) => scaled(1 / orOne(batch.mean) / c.f_norm, [g.q, g.r]),
  },
  grpo_batch_std: {
    of: (g, { eps }, { mean }) => scaled(1 / orOne(Math.sqrt(mean * (1 - mean)) + eps), [g.q, g.r]),
  },
  reinforce_batch_baseline: { of: (g, c, { mean }) => [1 - mean, mean] },
  reinforce_plus_plus: {
    of: (g, { eps }, { mean }) =>
      scaled(1 / Math.sqrt(orOne(mean * (1 - mean) + eps)), [1 - mean, mean]),
  },
  reinforce_plus_plus_baseline: {
    of: (g, { eps }, { within }) =>
      g.s === 0 || g.f === 0 ? [0, 0] : scaled(1 / Math.sqrt(orOne(within + eps)), [g.q, g.r]),
  },
  bnpo: { of: (g, c, batch) => scaled(1 / betaDensity(batch, g.r), [g.q, g.r]) },
  a_grae: {
    controls: { alpha: range(0.1, 2, 0.05), ddof: choice(1, 0) },
    of: (g, c, { mean }) => {
      const root = Math.sqrt(g.r);
      const hard = (1 - mean) / orOne(1 - root + c.eps),
        easy = mean / orOne(root + c.eps);
      const factor = (hard + easy) / (2 * spread(g, c));
      return [factor * g.q * Math.min(1, mean / c.alpha), factor * g.r];
    },
  },
};

/** Solve rate of a batch of infinitely many groups, and the variance between and within groups. */
function batchOf(groups) {
  const size = groups.share.length - 1;
  let mean = 0,
    variance = 0,
    within = 0;
  groups.share.forEach((share, s) => {
    mean += (share * s) / size;
  });
  groups.share.forEach((share, s) => {
    variance += share * (s / size - mean) ** 2;
    within += share * (s / size) * (1 - s / size);
  });
  return { mean, variance, within };
}

/** The table of a weight for groups of one size; null where it takes no groups that small. */
function tableOf(name, fields, size, groups, isTiedZero) {
  const { of, least } = FORMULAS[name];
  if (least && size < least(fields)) return null;
  const table = { success: new Float64Array(size + 1), failure: new Float64Array(size + 1) };
  const batch = batchOf(groups);
  for (let s = 0; s <= size; s++) {
    if (isTiedZero && (s === 0 || s === size)) continue;
    const group = { n: size, s, f: size - s, r: s / size, q: (size - s) / size };
    const [success, failure] = of(group, fields, batch);
    table.success[s] = s > 0 ? success : 0;
    table.failure[s] = s < size ? failure : 0;
  }
  return table;
}
