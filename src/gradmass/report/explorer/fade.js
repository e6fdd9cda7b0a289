// FADE's controller over a run: four charts and a playhead, and a target entropy to drag.
"use strict";

const MOST_DRAWN = 400;
const STEPS = RUN.step.map((step) => step + 1);
const DRAWN_STEPS =
  STEPS.length <= MOST_DRAWN
    ? STEPS.map((_, i) => i)
    : Array.from({ length: MOST_DRAWN }, (_, i) =>
        Math.round((i * (STEPS.length - 1)) / (MOST_DRAWN - 1)),
      );
const MEASURED_ENTROPY = RUN.entropy_nats.filter((value) => value !== null);
const HIGHEST_ENTROPY = MEASURED_ENTROPY.length ? most(MEASURED_ENTROPY, 0.01) * 1.1 : 1;
const CHART_HEIGHT = 190;

function drawSeries(id, state, domain, lines) {
  const host = byId(id),
    box = boxOf(host, CHART_HEIGHT);
  const last = STEPS.at(-1),
    first = STEPS[0];
  const x = scaleOf([first, last > first ? last : first + 1], [box.left, box.right]);
  const y = scaleOf(domain, [box.bottom, box.top]);
  const xs = DRAWN_STEPS.map((i) => STEPS[i]);
  const drawn = lines.map((line) =>
    curve(
      pathOf(
        xs,
        DRAWN_STEPS.map((i) => line.values[i]),
        x,
        y,
      ),
      line,
    ),
  );
  const tops = lines
    .filter((line) => line.values[state.at] !== null && line.marked)
    .map((line) => dot(x(STEPS[state.at]), y(line.values[state.at]), line.color));
  draw(
    host,
    CHART_HEIGHT,
    axes(box, {
      x,
      y,
      xTicks: ticksOf(first, last > first ? last : first + 1, 5),
      yTicks: ticksOf(...domain, 4),
    }) +
      drawn.join("") +
      rule(x(STEPS[state.at]), box.top, x(STEPS[state.at]), box.bottom, "var(--ink)") +
      tops.join(""),
  );
  return { x, y, box };
}

const RAW = { color: "var(--faint)", width: 1 };
const MAIN = { color: "var(--w0)", width: 2.4, marked: true };

/** FADE's total mass over the problems at some steps, as a multiple of GRPO's. */
function scaleAt(steps, { played, grpo, groups }) {
  const aim = meansOver(grpo, groups).total,
    size = grpo.success.length - 1;
  const scale = STEPS.map(() => null);
  for (const i of steps) {
    const fields = { alpha: played.alpha[i], delta: played.delta[i] };
    const total = meansOver(tableOf("fade", fields, size, groups, true), groups).total;
    scale[i] = aim > 0 ? total / aim : null;
  }
  return scale;
}

const scaleOfRun = remember((key, found) => scaleAt(DRAWN_STEPS, found));

function drawFade(found, state) {
  const { played } = found;
  const scale = [...scaleOfRun([state.fade, state.size, state.prior], found)];
  scale[state.at] = scaleAt([state.at], found)[state.at];
  const entropy = drawSeries(
    "fade-entropy",
    state,
    [0, HIGHEST_ENTROPY],
    [
      { ...RAW, values: RUN.entropy_nats },
      { ...MAIN, values: played.entropy },
    ],
  );
  drawSeries(
    "fade-solved",
    state,
    [0, 1],
    [
      { ...RAW, values: RUN.solve_rate },
      { ...MAIN, values: played.solve_rate },
    ],
  );
  drawSeries("fade-delta", state, [0, 1.1], [{ ...MAIN, values: played.delta }]);
  drawSeries(
    "fade-alpha",
    state,
    [0, Math.max(state.fade.alpha_max, 1) * 1.1],
    [{ ...MAIN, values: played.alpha }],
  );
  drawSeries(
    "fade-scale",
    state,
    [
      0,
      most(
        scale.filter((value) => value !== null),
        1,
      ) * 1.1,
    ],
    [{ ...MAIN, values: scale }],
  );
  placeTarget(entropy, played.target);
  const now = {
    step: STEPS[state.at],
    alpha: played.alpha[state.at],
    delta: played.delta[state.at],
    scale: scale[state.at],
    solved: played.solve_rate[state.at],
    entropy: played.entropy[state.at],
    target: played.target,
  };
  for (const [key, value] of Object.entries(now)) byId(`now-${key}`).textContent = number(value);
}

/** Where the handle of the target stands; kept at the edge of the chart where it is beyond. */
function placeTarget({ y, box }, target) {
  const handle = byId("target");
  handle.hidden = target === null;
  if (target === null) return;
  handle.style.top = `${y(clip(target, 0, HIGHEST_ENTROPY))}px`;
  handle.style.left = `${box.left}px`;
  handle.style.right = `calc(100% - ${box.right}px)`;
  handle.setAttribute("aria-valuenow", target.toPrecision(4));
  handle.setAttribute("aria-valuemax", HIGHEST_ENTROPY.toPrecision(4));
  handle.setAttribute("aria-valuetext", `${number(target)} nats`);
}

/** Drag the target, or move it by the arrow keys. */
function listenToTarget(change) {
  const handle = byId("target"),
    host = byId("fade-entropy");
  const lowest = HIGHEST_ENTROPY / 200;
  const set = (value) =>
    change((state) => {
      state.fade.target_entropy = Number(clip(value, lowest, HIGHEST_ENTROPY).toPrecision(3));
    });
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    handle.focus();
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const box = boxOf(host, CHART_HEIGHT),
      at = event.clientY - host.getBoundingClientRect().top;
    set(((box.bottom - at) / (box.bottom - box.top)) * HIGHEST_ENTROPY);
  });
  handle.addEventListener("keydown", (event) => {
    const steps = {
      ArrowUp: 1,
      ArrowRight: 1,
      ArrowDown: -1,
      ArrowLeft: -1,
      PageUp: 10,
      PageDown: -10,
    };
    if (event.key === "Home" || event.key === "End")
      set(event.key === "Home" ? lowest : HIGHEST_ENTROPY);
    else if (steps[event.key])
      set(
        Number(handle.getAttribute("aria-valuenow")) + (steps[event.key] * HIGHEST_ENTROPY) / 100,
      );
    else return;
    event.preventDefault();
  });
}

/** Move the playhead to the end of the run, at a speed that takes some seconds. */
function listenToPlay(change, current) {
  const button = byId("play");
  let frame = null;
  const stop = () => {
    cancelAnimationFrame(frame);
    frame = null;
    button.textContent = "▶ Play";
  };
  button.addEventListener("click", () => {
    if (frame !== null) return stop();
    const from = current().at < STEPS.length - 1 ? current().at : 0,
      start = performance.now();
    button.textContent = "❚❚ Pause";
    const move = (now) => {
      const at = Math.min(
        STEPS.length - 1,
        from + Math.floor(((now - start) / 8000) * STEPS.length),
      );
      change((state) => {
        state.at = Math.max(0, at);
      });
      if (at < STEPS.length - 1) frame = requestAnimationFrame(move);
      else stop();
    };
    frame = requestAnimationFrame(move);
  });
}
