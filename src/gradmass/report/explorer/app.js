// The page: a state, a picture of it, and the address that says the same.
"use strict";

let state,
  found,
  saving = null;

/** Change the state and show it; `isRebuilt` where controls come or go. */
function change(edit, isRebuilt = false) {
  edit(state, found);
  if (isRebuilt) build();
  render();
  clearTimeout(saving);
  // Browsers refuse more than a hundred new addresses in half a minute.
  saving = setTimeout(() => history.replaceState(null, "", `#${addressOf(state)}`), 150);
}

function build() {
  buildWeights(state, change);
  buildSetting(state, change);
}

function render() {
  document.documentElement.dataset.theme = state.theme;
  found = computeAll(state);
  drawMasses(found, state);
  fillTable("at-p", found, AT_P);
  drawObjective(found, state, "objective", "objective");
  drawObjective(found, state, "slope", "slope");
  drawAxes(found);
  fillTable("over-problems", found, OVER_PROBLEMS);
  drawFade(found, state);
  byId("p").value = state.p;
  byId("p").setAttribute("aria-valuetext", `p = ${number(state.p)}`);
  byId("at").value = state.at;
  byId("at").setAttribute("aria-valuetext", `step ${STEPS[state.at]}`);
  byId("half").checked = state.fade.target_entropy === "half-initial";
  for (const place of document.querySelectorAll(".shown-p")) place.textContent = number(state.p);
  for (const place of document.querySelectorAll(".shown-size")) place.textContent = state.size;
  byId("command").textContent = commandOf(found, state);
  byId("save-rates").hidden = state.prior.kind === "beta";
  byId("theme").textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[state.theme];
  byId("masses-text").textContent = spoken(found);
}

/** The main picture in words, for those who do not see it. */
function spoken({ entries }) {
  return entries
    .map(({ label, trouble, at }) =>
      trouble
        ? `${label} ${trouble}.`
        : `${label}: m_S ${number(at.m_S[0])}, m_F ${number(at.m_F[0])}.`,
    )
    .join(" ");
}

function load() {
  const read = readAddress(location.hash);
  state = read.state;
  const notice = byId("notice");
  notice.hidden = !read.refused.length;
  notice.textContent = `Of the address this was not understood and left out: ${read.refused.join(", ")}`;
  build();
  render();
}

/** Follow a pointer that is pressed on a picture. */
function follow(id, set) {
  const host = byId(id);
  host.addEventListener("pointerdown", (event) => {
    host.setPointerCapture(event.pointerId);
    set(event.clientX - host.getBoundingClientRect().left, host);
  });
  host.addEventListener("pointermove", (event) => {
    if (host.hasPointerCapture(event.pointerId))
      set(event.clientX - host.getBoundingClientRect().left, host);
  });
}

function setP(left, host) {
  const box = boxOf(host, 0),
    share = (left - box.left) / (box.right - box.left);
  change((next) => {
    next.p = Number(clip(share, 0.01, 0.99).toFixed(2));
  });
}

function setStep(left, host) {
  const box = boxOf(host, 0),
    share = (left - box.left) / (box.right - box.left);
  change((next) => {
    next.at = Math.round(clip(share, 0, 1) * (STEPS.length - 1));
  });
}

function listen() {
  byId("run-label").textContent = RUN.label;
  byId("add").addEventListener("click", () => {
    const used = state.weights.map(({ name }) => name);
    const name = [...PAPER, ...Object.keys(FORMULAS)].find((other) => !used.includes(other));
    change((next) => {
      next.weights.push({ name, fields: {} });
    }, true);
    byId("weights").lastElementChild.querySelector("select").focus();
  });
  byId("p").addEventListener("input", (event) =>
    change((next) => {
      next.p = Number(event.target.value);
    }),
  );
  byId("at").addEventListener("input", (event) =>
    change((next) => {
      next.at = Number(event.target.value);
    }),
  );
  byId("theme").addEventListener("click", () =>
    change((next) => {
      next.theme = THEMES[(THEMES.indexOf(next.theme) + 1) % THEMES.length];
    }),
  );
  byId("share").addEventListener("click", () =>
    copy(location.href.split("#")[0] + `#${addressOf(state)}`, byId("share")),
  );
  byId("copy-command").addEventListener("click", () =>
    copy(byId("command").textContent, byId("copy-command")),
  );
  byId("save-rates").addEventListener("click", () =>
    save("rates.txt", ratesText(found.prior), "text/plain"),
  );
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => saveSvg(byId(button.dataset.save), button.dataset.save));
  }
  for (const id of ["masses", "objective", "slope"]) follow(id, setP);
  for (const id of ["fade-solved", "fade-delta", "fade-alpha", "fade-scale"]) follow(id, setStep);
  listenToTarget(change);
  listenToPlay(change, () => state);
  addEventListener("hashchange", load);
  new ResizeObserver(() => {
    measureWidths();
    render();
  }).observe(document.querySelector("main"));
}

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "✓ Copied";
  } catch {
    // No permission, as in some frames: show what to copy instead.
    prompt("Copy this:", text);
  }
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

measureWidths();
load();
listen();
