// What a hand touches: weights with their sliders, the setting, the controller's parameters.
"use strict";

const PAPER = ["grpo", "power", "asym_grpo_delta", "power_asym", "fade", "reinforce"];

/** A labelled slider; `read` gives its value, `write` puts one into the state. */
function slider(label, { low, high, step }, title, value, write) {
  const box = document.createElement("label");
  box.className = "slider";
  box.title = title;
  box.innerHTML = `<span>${escaped(label)}</span><input type="range" min="${low}" max="${high}" step="${step}"><output></output>`;
  const [input, output] = [box.querySelector("input"), box.querySelector("output")];
  const show = (now) => {
    input.value = now;
    output.textContent = number(now);
  };
  show(value);
  input.addEventListener("input", () => {
    output.textContent = number(Number(input.value));
    write(Number(input.value));
  });
  return box;
}

function chooser(label, { options }, title, value, write) {
  const box = document.createElement("label");
  box.className = "slider";
  box.title = title;
  const listed = options.map((option, i) => `<option value="${i}">${escaped(option)}</option>`);
  box.innerHTML = `<span>${escaped(label)}</span><select>${listed.join("")}</select>`;
  const select = box.querySelector("select");
  select.value = options.indexOf(value);
  select.addEventListener("change", () => write(options[Number(select.value)]));
  return box;
}

const control = (label, spec, title, value, write) =>
  (spec.kind === "choice" ? chooser : slider)(label, spec, title, value, write);

function menu(selected) {
  const names = PAGE.weights.map((card) => card.name);
  const others = names.filter((name) => !PAPER.includes(name));
  const groups = [
    ["From the command line", Object.keys(TABLES)],
    ["The paper's", PAPER],
    ["Others", others],
  ];
  const option = (name) =>
    `<option value="${escaped(name)}"${name === selected ? " selected" : ""}>${escaped(name)}</option>`;
  return groups
    .filter(([, list]) => list.length)
    .map(([title, list]) => `<optgroup label="${title}">${list.map(option).join("")}</optgroup>`)
    .join("");
}

/** The rows of weights, made anew when a weight comes, goes or is exchanged. */
function buildWeights(state, change) {
  const list = byId("weights"),
    looks = looksOf(state.weights);
  list.replaceChildren(
    ...state.weights.map((weight, row) => {
      const item = document.createElement("li");
      item.innerHTML =
        `<div class="head">${swatch(looks[row])}<select aria-label="Weight ${row + 1}">${menu(weight.name)}</select>` +
        `<button type="button" class="remove" aria-label="Remove ${escaped(weight.name)}">×</button></div>` +
        `<p class="summary">${escaped(summaryOf(weight.name))}</p>`;
      item.querySelector("select").addEventListener("change", (event) =>
        change((next) => {
          next.weights[row] = { name: event.target.value, fields: {} };
        }, true),
      );
      item.querySelector(".remove").addEventListener("click", () => {
        change((next) => {
          next.weights.splice(row, 1);
        }, true);
        byId("add").focus();
      });
      const fields = fieldsOf(weight);
      for (const [field, spec] of Object.entries(controlsOf(weight.name))) {
        const title = CARDS[weight.name].fields[field][1];
        item.append(
          control(field, spec, title, fields[field], (value) =>
            change((next) => {
              next.weights[row].fields[field] = value;
            }),
          ),
        );
      }
      return item;
    }),
  );
  byId("add").disabled = state.weights.length >= MOST_WEIGHTS;
}

function summaryOf(name) {
  if (name === "fade")
    return "Alpha and delta where the playhead of the controller stands, further down.";
  const note =
    CARDS[name]?.scope === "batch"
      ? " Depends on the whole batch: one with these solve rates."
      : "";
  return (
    (CARDS[name]?.summary.replace(/``/g, "").replace(/`/g, "") ?? "Tabulated by the library.") +
    note
  );
}

/** The setting and the controller's parameters, made once for a state. */
function buildSetting(state, change) {
  const sizes = PAGE.group_sizes;
  const size = slider(
    "group size",
    { low: 0, high: sizes.length - 1, step: 1 },
    "Rollouts of a problem",
    0,
    (index) =>
      change((next) => {
        next.size = sizes[index];
        showSize(index);
      }),
  );
  const showSize = (index) => {
    size.querySelector("input").value = index;
    size.querySelector("input").setAttribute("aria-valuetext", `${sizes[index]} rollouts`);
    size.querySelector("output").textContent = sizes[index];
  };
  showSize(sizes.indexOf(state.size));
  size.id = "size";
  const named = [
    ["beta", "Beta(a, b)"],
    ...RUN.priors.map(({ label }, i) => [
      `run:${i}`,
      `${RUN.is_example ? "example" : "run"}: ${label}`,
    ]),
  ];
  const kind = state.prior.kind === "beta" ? "beta" : priorText(state.prior);
  const names = Object.fromEntries(named);
  const distribution = chooser(
    "solve rates",
    { options: named.map(([, text]) => text) },
    "Of the problems",
    names[kind],
    (text) =>
      change((next) => {
        const key = named.find(([, shown]) => shown === text)[0];
        next.prior =
          key === "beta"
            ? { kind: "beta", a: 1, b: 1 }
            : { kind: "run", index: Number(key.slice(4)) };
      }, true),
  );
  distribution.id = "prior";
  const beta =
    state.prior.kind !== "beta"
      ? []
      : ["a", "b"].map((name) =>
          slider(
            name,
            range(0.1, 10, 0.1),
            "Of the Beta distribution; 1 and 1 is uniform",
            state.prior[name],
            (value) =>
              change((next) => {
                next.prior[name] = value;
              }),
          ),
        );
  const equalise = chooser(
    "equal scale",
    { options: EQUALISE },
    "Give each weight GRPO's total mass, at p = 1/2 or on average over the problems",
    state.equalise,
    (value) =>
      change((next) => {
        next.equalise = value;
      }),
  );
  equalise.id = "equalise";
  byId("setting").replaceChildren(size, distribution, ...beta, equalise);
  byId("p").value = state.p;
  byId("at").max = STEPS.length - 1;
  byId("at").value = state.at;
  buildController(state, change);
}

function buildController(state, change) {
  const meanings = CARDS.fade.fields;
  const parts = Object.entries(FADE_RANGES).map(([field, spec]) =>
    control(field.replaceAll("_", " "), spec, meanings[field][1], state.fade[field], (value) =>
      change((next) => {
        next.fade[field] = value;
      }),
    ),
  );
  const half = document.createElement("label");
  half.className = "tick";
  half.innerHTML = `<input type="checkbox" id="half"> H* is half the first entropy`;
  half.querySelector("input").checked = state.fade.target_entropy === "half-initial";
  half.querySelector("input").addEventListener("change", (event) =>
    change((next, found) => {
      next.fade.target_entropy = event.target.checked
        ? "half-initial"
        : Number((found.played.target ?? 1).toPrecision(3));
    }),
  );
  byId("controller").replaceChildren(...parts, half);
}
