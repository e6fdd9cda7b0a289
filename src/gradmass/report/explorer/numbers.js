// What a weight does at each solve rate: the sums of gradmass.masses, to 1e-9 (tests/browser).
//
// A weight is a table for one group size G: success[s] is the weight of a success in a group with s
// successes, failure[s] minus the weight of a failure, both for s from 0 to G.
"use strict";

const GRID = Float64Array.from({ length: 999 }, (_, i) => (i + 1) / 1000);
const CACHED = 12;

/** A function that remembers its last few results, by the text of its first argument. */
function remember(compute) {
  const known = new Map();
  return (first, ...rest) => {
    const key = JSON.stringify(first);
    if (!known.has(key)) {
      if (known.size >= CACHED) known.delete(known.keys().next().value);
      known.set(key, compute(first, ...rest));
    }
    return known.get(key);
  };
}

/** Logarithms of the binomial coefficients C(trials, 0) to C(trials, trials). */
const logChoose = remember((trials) => {
  const logs = new Float64Array(trials + 1);
  for (let s = 0; s < trials; s++) logs[s + 1] = logs[s] + Math.log((trials - s) / (s + 1));
  return logs;
});

/** Probability of 0 to `trials` successes, for each success rate in turn, in one flat array. */
function binomial(rates, trials) {
  const logs = logChoose(trials);
  const pmf = new Float64Array(rates.length * (trials + 1));
  rates.forEach((p, row) => {
    const from = row * (trials + 1);
    const logP = Math.log(p),
      logQ = Math.log1p(-p);
    let total = 0;
    for (let s = 0; s <= trials; s++) {
      // At p = 0 and p = 1 the other outcome is impossible: 0 times minus infinity is 0 here.
      const hits = s === 0 ? 0 : s * logP;
      const misses = s === trials ? 0 : (trials - s) * logQ;
      pmf[from + s] = Math.exp(logs[s] + hits + misses);
      total += pmf[from + s];
    }
    for (let s = 0; s <= trials; s++) pmf[from + s] /= total;
  });
  return pmf;
}

const onGrid = remember((trials) => binomial(GRID, trials));

function binomialOf(rates, trials) {
  return rates === GRID ? onGrid(trials) : binomial(rates, trials);
}

/** Masses, mean weights, slope of the objective and objective at each rate in (0, 1). */
function massesOf(table, rates = GRID, factor = 1) {
  const size = table.success.length - 1;
  const others = binomialOf(rates, size - 1);
  const names = ["p", "w_S", "w_F", "m_S", "m_F", "slope", "objective"];
  const found = Object.fromEntries(names.map((name) => [name, new Float64Array(rates.length)]));
  rates.forEach((p, row) => {
    let success = 0,
      failure = 0;
    for (let t = 0, at = row * size; t < size; t++, at++) {
      success += others[at] * table.success[t + 1];
      failure += others[at] * table.failure[t];
    }
    found.p[row] = p;
    found.w_S[row] = factor * success;
    found.w_F[row] = factor * failure;
    found.m_S[row] = factor * p * success;
    found.m_F[row] = factor * (1 - p) * failure;
    found.slope[row] = factor * (success + failure);
  });
  // The integral of Bin(t; G - 1, x) from 0 to p is the chance of more than t of G, over G.
  const all = binomialOf(rates, size);
  rates.forEach((_, row) => {
    let steps = 0,
      sum = 0;
    for (let s = 1, at = row * (size + 1) + 1; s <= size; s++, at++) {
      steps += table.success[s] + table.failure[s - 1];
      sum += all[at] * steps;
    }
    found.objective[row] = (factor * sum) / size;
  });
  return found;
}

/** Share of groups with 0 to G successes, and the mean solve rate of their problems. */
function overGroups(prior, size) {
  return prior.kind === "beta" ? betaGroups(prior, size) : measuredGroups(prior, size);
}

function betaGroups({ a, b }, size) {
  const share = new Float64Array(size + 1),
    rate = new Float64Array(size + 1);
  for (let s = 0; s < size; s++) {
    const ratio = ((size - s) / (s + 1)) * ((s + a) / (size - s - 1 + b));
    share[s + 1] = share[s] + Math.log(ratio);
  }
  const highest = share.reduce((x, y) => Math.max(x, y));
  let total = 0;
  for (let s = 0; s <= size; s++) total += share[s] = Math.exp(share[s] - highest);
  for (let s = 0; s <= size; s++) {
    share[s] /= total;
    rate[s] = (s + a) / (size + a + b);
  }
  return { share, rate };
}

function measuredGroups({ rates, shares }, size) {
  const share = new Float64Array(size + 1),
    rate = new Float64Array(size + 1);
  const pmf = binomial(rates, size);
  rates.forEach((p, row) => {
    for (let s = 0; s <= size; s++) {
      const chance = shares[row] * pmf[row * (size + 1) + s];
      share[s] += chance;
      rate[s] += chance * p;
    }
  });
  for (let s = 0; s <= size; s++) if (share[s] > 0) rate[s] /= share[s];
  return { share, rate };
}

/** Means over the groups of the problems. */
function meansOver(table, groups) {
  const size = table.success.length - 1;
  const sum = { m_S: 0, m_F: 0, m_S_p: 0, m_F_p: 0, useful: 0, absolute: 0, square: 0 };
  for (let s = 0; s <= size; s++) {
    const share = groups.share[s];
    const positive = (s / size) * table.success[s],
      negative = (1 - s / size) * table.failure[s];
    const absolute = Math.abs(positive) + Math.abs(negative);
    sum.m_S += share * positive;
    sum.m_F += share * negative;
    sum.m_S_p += share * positive * groups.rate[s];
    sum.m_F_p += share * negative * groups.rate[s];
    sum.useful += absolute > 0 ? share : 0;
    sum.absolute += share * absolute;
    sum.square += share * absolute * absolute;
  }
  sum.total = sum.m_S + sum.m_F;
  sum.effective = sum.square > 0 ? sum.absolute ** 2 / sum.square : 0;
  return sum;
}

function totalAtHalf(table) {
  const half = massesOf(table, [0.5]);
  return half.m_S[0] + half.m_F[0];
}

/** What to multiply a weight by so that its total mass equals GRPO's; null where no factor does. */
function equaliseFactor(table, grpo, equalise, groups) {
  if (equalise === "none") return 1;
  const total = (of) =>
    equalise === "mass_at_half" ? totalAtHalf(of) : meansOver(of, groups).total;
  const own = total(table),
    aim = total(grpo);
  return own > 0 && aim > 0 ? aim / own : null;
}

/** Where a weight stands on the three axes, as gradmass.masses.axes_of with a prior. */
function axesOf(table, grpo, groups, factor, masses) {
  const over = meansOver(table, groups);
  const ratio = (own, aim) => (aim > 0 ? (factor * own) / aim : null);
  const scale = ratio(over.total, meansOver(grpo, groups).total);
  return {
    peak_S: peakOf(masses.m_S),
    peak_F: peakOf(masses.m_F),
    centroid_S: centroid(masses.m_S, over.m_S, over.m_S_p),
    centroid_F: centroid(masses.m_F, over.m_F, over.m_F_p),
    scale_at_half: ratio(totalAtHalf(table), totalAtHalf(grpo)),
    scale_mean: scale,
    learning_rate_factor: scale !== null && scale > 0 ? 1 / scale : null,
    useful_groups: over.useful,
    effective_groups: over.effective,
  };
}

/** Rate at which a mass on the grid is largest, by a parabola through the largest three. */
function peakOf(mass) {
  let top = 0;
  mass.forEach((value, i) => {
    if (value > mass[top]) top = i;
  });
  if (!(mass[top] > 0)) return null;
  if (top === 0 || top === mass.length - 1) return Math.round(GRID[top]);
  const [before, here, after] = [mass[top - 1], mass[top], mass[top + 1]];
  if (Math.min(before, after) < 0.9 * here) return GRID[top]; // a jump
  const curvature = before - 2 * here + after;
  return GRID[top] + (curvature ? (before - after) / (2 * curvature) : 0) * (GRID[1] - GRID[0]);
}

/** Mean solve rate weighted by a mass; null where that is 0 or below 0 somewhere. */
function centroid(mass, mean, meanTimesP) {
  const lowest = mass.reduce((x, y) => Math.min(x, y)),
    highest = mass.reduce((x, y) => Math.max(x, y));
  return mean > 0 && lowest > -1e-9 * highest ? meanTimesP / mean : null;
}
