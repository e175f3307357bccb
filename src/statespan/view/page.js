"use strict";
// The knobs of a layer and its four charts. One request is under way at a time; the newest settings wait for it.

const by = (id) => document.getElementById(id);
const STEPS = 400; // of a slider

async function ask(address, content, kind = "application/json") {
  const body = kind === "application/json" ? JSON.stringify(content) : content;
  let answer;
  try {
    answer = await fetch(address, { method: "POST", headers: { "Content-Type": kind }, body });
  } catch {
    throw new Error("The server does not answer. Is statespan view still running?");
  }
  const result = await answer.json();
  if (!answer.ok) throw new Error(result.error);
  return result;
}

function complain(error) {
  by("problem").textContent = error ? error.message : "";
  by("problem").hidden = !error;
}

function fill(select, values, label = (value) => value) {
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => new Option(label(value), value)));
  for (const value of ["lin", chosen]) if (values.map(String).includes(value)) select.value = value;
}

// A slider over a range, logarithmic unless the range begins at 0.
class Slider {
  constructor(id, [low, high], start, changed) {
    Object.assign(this, { input: by(id), output: by(`out-${id}`), low, high, start });
    Object.assign(this.input, { min: 0, max: STEPS, step: 1 });
    this.input.addEventListener("input", () => { this.exact = null; this.show(); changed(); });
    this.value = start;
  }

  get value() {
    if (this.exact !== null) return this.exact; // as it was set, which may lie between two steps
    const share = Number(this.input.value) / STEPS;
    const raw = this.low > 0 ? this.low * (this.high / this.low) ** share : this.low + (this.high - this.low) * share;
    return Math.min(this.high, Math.max(this.low, Number(raw.toPrecision(3))));
  }

  set value(wanted) {
    const value = this.exact = Math.min(this.high, Math.max(this.low, wanted));
    const share = this.low > 0 ? Math.log(value / this.low) / Math.log(this.high / this.low)
      : (value - this.low) / (this.high - this.low);
    this.input.value = Math.round(share * STEPS);
    this.show();
  }

  show() {
    this.output.textContent = number(this.value);
  }
}

const charts = {
  kernels: new Chart(by("kernels"), { x: "sample", y: "kernel / its peak", yRange: [-1.1, 1.1] }),
  response: new Chart(by("response"), { x: "frequency, cycles per sample", y: "dB below the peak", logX: true,
    yRange: [-62, 3] }),
  plane: new Chart(by("plane"), { x: "Re A", y: "Im A", dots: true, zeroX: true }),
  circle: new Chart(by("circle"), { x: "Re Ā", y: "Im Ā", dots: true, circle: true }),
};
const sliders = {};
let setup, timer, busy = false, waiting = false;

function show(drawn) {
  const peak = (kernel) => Math.max(1e-30, ...kernel.map((value) => Math.abs(value ?? 0)));
  const label = (n) => `${drawn.unit} ${drawn.heads[n] + 1}: Δ = ${number(drawn.dt[n])}`;
  charts.kernels.set(drawn.kernels.map((kernel, n) => {
    const top = peak(kernel);
    return { x: kernel.map((_, at) => at), y: kernel.map((v) => v === null ? null : v / top), color: n, label: label(n) };
  }), { xRange: [0, drawn.kernels[0].length - 1] });
  charts.response.set(drawn.decibels.map((row, n) => (
    { x: drawn.frequency.slice(1), y: row.slice(1), color: n, label: label(n) }
  )), { xRange: [drawn.frequency[1], 0.5] });
  const dots = (groups) => groups.map((pairs, n) => (
    { x: pairs.map((pair) => pair[0]), y: pairs.map((pair) => pair[1]), color: n }));
  const of = drawn.unit === "mode" ? "all modes" : "colours are heads, as above";
  const part = drawn.low_rank ? "; of Λ, the diagonal part" : "";
  charts.plane.set(dots(drawn.A), { note: `${of}; one of each conjugate pair${part}` });
  charts.circle.set(dots(drawn.discrete), { note: `${of}; with the unit circle` });
  for (const [name, text] of [["kernels", "Convolution kernels of"], ["response", "Frequency responses of"],
    ["plane", "Eigenvalues of A of"], ["circle", "Eigenvalues of the discretized A of"]]) {
    by(name).querySelector("canvas").setAttribute("aria-label", `${text} ${drawn.name}`);
  }
  by("layer").dataset.shown = drawn.name; // for tests
}

function settings() {
  const source = by("source").value, chosen = { length: Number(by("length").value) };
  if (source.startsWith("part ")) {
    const head = by("head").value === "" ? null : Number(by("head").value);
    return { ...chosen, part: Number(source.slice(5)), head, dt_scale: sliders.dt_scale.value };
  }
  const { init, discretization } = setup.choices[source];
  Object.assign(chosen, { layer: source, d_state: Number(by("d_state").value), seed: Number(by("seed").value) });
  if (init.length) chosen.init = by("init").value;
  if (discretization.length) chosen.discretization = by("discretization").value;
  if (source === "lru") return { ...chosen, r_min: sliders.r_min.value, r_max: sliders.r_max.value };
  chosen.dt_min = sliders.dt_min.value;
  chosen.dt_max = by("single").checked ? chosen.dt_min : sliders.dt_max.value;
  if (setup.scaled.includes(source)) {
    Object.assign(chosen, { real_scale: sliders.real_scale.value, imag_scale: sliders.imag_scale.value });
  }
  return chosen;
}

async function update() {
  if (busy) { waiting = true; return; }
  busy = true;
  try {
    show(await ask("api/curves", settings()));
    complain(null);
  } catch (error) {
    complain(error);
  }
  busy = false;
  if (waiting) { waiting = false; update(); }
}

function arrange() {
  const source = by("source").value, isPart = source.startsWith("part ");
  by("fresh").hidden = isPart;
  by("trained").hidden = !isPart;
  if (isPart) {
    const heads = setup.model.parts[Number(source.slice(5))].heads;
    fill(by("head"), ["", ...Array(heads).keys()], (n) => n === "" ? "four, by Δ" : n + 1);
    return;
  }
  const { init, discretization } = setup.choices[source];
  fill(by("init"), init);
  fill(by("discretization"), discretization);
  by("init").parentElement.hidden = !init.length;
  by("discretization").parentElement.hidden = !discretization.length;
  const isLru = source === "lru", single = by("single").checked;
  for (const name of ["dt_min", "single"]) by(`row-${name}`).hidden = isLru;
  by("row-dt_max").hidden = isLru || single;
  by("name-dt_min").textContent = single ? "Δ" : "Smallest Δ";
  for (const name of ["r_min", "r_max"]) by(`row-${name}`).hidden = !isLru;
  for (const name of ["real_scale", "imag_scale"]) by(`row-${name}`).hidden = !setup.scaled.includes(source);
}

// Keep the smaller of two knobs below the larger: the one that is turned pushes the other.
function push(turned, other, isLow) {
  const low = sliders[isLow ? turned : other], high = sliders[isLow ? other : turned];
  if (low.value >= high.value) sliders[other].value = sliders[turned].value * (isLow ? 1.03 : 0.97);
}

async function begin() {
  try {
    setup = await ask("api/setup", {});
  } catch (error) {
    complain(error);
    return;
  }
  const { model, ranges } = setup;
  by("about").textContent = model ? `${model.name}: ${model.kind}, ${model.parts.length} SSM layers`
    : "untrained layers; statespan view MODEL adds a trained model";
  const sources = [...(model ? model.parts.map((_, n) => `part ${n}`) : []), ...Object.keys(setup.choices)];
  fill(by("source"), sources, (name) => name.startsWith("part ")
    ? `${model.name}, ${model.parts[Number(name.slice(5))].name}` : `untrained ${name.toUpperCase()}`);
  fill(by("d_state"), setup.states);
  fill(by("length"), [64, 128, 256, 512, 1024, 2048, setup.longest.kernel]);
  const starts = { dt_min: 0.001, dt_max: 0.1, real_scale: 1, imag_scale: 1, r_min: 0, r_max: 1, dt_scale: 1 };
  const pushes = { dt_min: ["dt_max", true], dt_max: ["dt_min", false], r_min: ["r_max", true], r_max: ["r_min", false] };
  for (const [name, start] of Object.entries(starts)) {
    sliders[name] = new Slider(name, ranges[name], start, () => {
      if (name in pushes && !(name === "dt_min" && by("single").checked)) push(name, ...pushes[name]);
      update();
    });
  }
  const reset = () => {
    for (const slider of Object.values(sliders)) slider.value = slider.start;
    by("d_state").value = 16; // smooth kernels to begin with; layers have 64 by default
    by("length").value = 512;
    by("seed").value = 0;
    by("single").checked = false;
    by("head").value = "";
    arrange();
    by("discretization").selectedIndex = 0;
    const inits = [...by("init").options].map((option) => option.value);
    by("init").selectedIndex = Math.max(0, inits.indexOf("lin"));
    update();
  };
  for (const name of ["source", "single"]) by(name).addEventListener("change", () => { arrange(); update(); });
  for (const name of ["init", "discretization", "d_state", "length", "head"]) by(name).addEventListener("change", update);
  by("seed").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(update, 150); });
  by("reset").addEventListener("click", reset);
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  arrange();
  reset();
  beginStream(setup);
}

addEventListener("DOMContentLoaded", begin);
