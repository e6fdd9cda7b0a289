// FADE's controller, played over what a run has measured: gradmass.weights.schedules step by step.
//
// The run is a record. A controller in charge would have trained another policy, and have measured
// something else from the second step on: this shows how it reacts, not what would have happened.
"use strict";

const clip = (value, low, high) => Math.max(low, Math.min(high, value));

/** Moving averages, alpha and delta after each batch. Rates and entropies may be null. */
function playController(run, settings) {
  const { alpha_max, delta_min, ema, entropy_form, alpha_schedule, delta_schedule } = settings;
  const played = { solve_rate: [], entropy: [], alpha: [], delta: [], target: null };
  let solveRate = 0.5,
    entropy = null,
    initial = null;
  run.solve_rate.forEach((rate, i) => {
    if (rate !== null) solveRate = (1 - ema) * solveRate + ema * rate;
    const measured = run.entropy_nats[i];
    if (measured !== null) {
      const before = entropy === null ? measured : entropy;
      entropy = (1 - ema) * before + ema * measured;
      initial = initial === null ? before : initial;
    }
    const target =
      settings.target_entropy === "half-initial" ? initial / 2 : settings.target_entropy;
    const gone = Math.log1p(Math.min(run.step[i], run.num_steps)) / Math.log1p(run.num_steps);
    played.solve_rate.push(solveRate);
    played.entropy.push(entropy);
    played.alpha.push(
      alphaOf(alpha_schedule, { alpha_max, solveRate, entropy, initial, target, gone }),
    );
    played.delta.push(deltaOf(delta_schedule, entropy_form, { delta_min, entropy, target, gone }));
    played.target = entropy === null ? null : target;
  });
  return played;
}

function alphaOf(schedule, { alpha_max, solveRate, entropy, initial, target, gone }) {
  if (schedule === "constant") return 1;
  if (schedule === "log-decay") return alpha_max - (alpha_max - 1) * gone;
  if (schedule === "entropy") {
    if (entropy === null) return alpha_max;
    const share = initial > target ? clip((entropy - target) / (initial - target), 0, 1) : 0;
    return 1 + (alpha_max - 1) * share;
  }
  return solveRate <= 0 ? alpha_max : clip((1.5 * (1 - solveRate)) / solveRate, 1, alpha_max);
}

function deltaOf(schedule, form, { delta_min, entropy, target, gone }) {
  if (schedule === "constant") return 1;
  if (schedule === "log-decay") return 1 - (1 - delta_min) * gone;
  if (entropy === null) return 1;
  if (form === "absolute") return clip(1 + entropy - target, delta_min, 1);
  return target === 0 ? 1 : clip(entropy / target, delta_min, 1);
}
