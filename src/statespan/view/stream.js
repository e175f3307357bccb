"use strict";
// Streams a signal through the model: the page holds the signal, the server only the state of the stream.

const FRAMES = 25; // requests a second, at most
const BYTES = 120000; // of a request, about

const run = { samples: null, outputs: [], places: [], stream: null, playing: false, token: 0, active: 0 };
const plots = {};
let model, longest, uploaded = null, scale, frequency;

function drawSignal() {
  const { samples } = run, end = Math.max(2, samples.length), x = samples.map((_, at) => at + 1);
  const lines = samples[0].slice(0, COLORS).map((_, n) => (
    { x, y: samples.map((row) => row[n]), color: n, label: model.features > 1 ? `feature ${n + 1}` : "" }));
  plots.input.set(lines, { xRange: [1, end] });
}

function drawOutputs() {
  const { outputs, places } = run, xRange = [0, Math.max(2, run.samples.length)];
  if (model.classes) {
    plots.output.set([{ x: places, outputs, y: [], label: "" }], { heat: true, rows: model.names, xRange });
    return;
  }
  plots.output.set(model.names.slice(0, COLORS).map((label, n) => (
    { x: places, y: outputs.map((row) => row[n]), color: n, label })), { xRange });
}

function report() {
  const last = run.outputs[run.outputs.length - 1];
  if (!last) { by("readout").textContent = "–"; return; }
  let text;
  if (model.classes) {
    const best = last.indexOf(Math.max(...last));
    text = `${model.names[best]}, ${(100 * last[best]).toFixed(1)} %`;
  } else {
    text = last.slice(0, 3).map((value) => number(value ?? NaN)).join(", ") + (model.unit ? ` ${model.unit}` : "");
  }
  by("readout").textContent = `sample ${run.places[run.places.length - 1]}: ${text}`;
}

async function signal() {
  if (by("kind").value === "file") {
    if (!uploaded) throw new Error("Choose a WAV or CSV file first.");
    return uploaded;
  }
  const read = (id) => Number(by(id).value);
  return (await ask("api/signal", { kind: by("kind").value, length: read("samples"), frequency: frequency.value,
    amplitude: read("amplitude"), offset: read("offset") })).samples;
}

async function upload() {
  const [file] = by("file").files;
  uploaded = null;
  if (!file) return;
  try {
    const kind = file.name.toLowerCase().endsWith(".wav") ? "audio/wav" : "text/csv";
    const { samples, rate } = await ask("api/file", file, kind);
    uploaded = samples;
    if (rate && model.rate) scale.value = model.rate / rate;
    complain(null);
    await preview();
  } catch (error) {
    complain(error);
  }
}

function close() {
  const name = run.stream;
  run.stream = null;
  run.playing = false;
  if (name) {
    fetch("api/streams/close", { method: "POST", keepalive: true, headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ stream: name }) }).catch(() => {});
  }
}

function buttons() {
  by("start").textContent = run.stream ? "Restart" : "Start";
  by("pause").disabled = !run.stream;
  by("pause").textContent = run.stream && !run.playing ? "Go on" : "Pause";
}

async function preview() {
  close();
  const token = ++run.token;
  try {
    const samples = await signal();
    if (token !== run.token) return;
    Object.assign(run, { samples, outputs: [], places: [] });
    drawSignal();
    drawOutputs();
    report();
    complain(null);
  } catch (error) {
    complain(error);
  }
  buttons();
}

async function start() {
  close();
  const token = ++run.token;
  try {
    const samples = await signal();
    const { stream } = await ask("api/streams/open", { dt_scale: scale.value });
    if (token !== run.token) return;
    Object.assign(run, { samples, stream, outputs: [], places: [], playing: true });
    complain(null);
    drawSignal();
    drawOutputs();
    play(token, 0);
  } catch (error) {
    complain(error);
  }
  buttons();
}

async function play(token, at) {
  const every = Number(by("every").value), speed = Number(by("speed").value);
  const most = Math.min(longest.block, every * longest.outputs, Math.max(1, Math.floor(BYTES / (25 * model.features))));
  Object.assign(run, { at, active: token });
  while (run.playing && token === run.token && run.at < run.samples.length) {
    const began = performance.now(), wish = speed ? Math.ceil(speed / FRAMES) : 8 * every;
    const count = Math.min(most, Math.max(1, Math.round(wish / every)) * every);
    const block = run.samples.slice(run.at, run.at + count);
    try {
      const { outputs } = await ask("api/streams/push", { stream: run.stream, samples: block, every });
      if (token !== run.token) return;
      outputs.forEach((row, n) => {
        run.outputs.push(row);
        run.places.push(Math.min(run.at + (n + 1) * every, run.at + block.length));
      });
    } catch (error) {
      complain(error);
      close();
      break;
    }
    run.at += block.length;
    drawOutputs();
    report();
    const rest = (speed ? 1000 * block.length / speed : 0) - (performance.now() - began);
    await new Promise((resolve) => (rest > 0 ? setTimeout(resolve, rest) : requestAnimationFrame(resolve)));
  }
  if (token !== run.token) return;
  run.active = 0;
  if (run.at >= run.samples.length) close();
  buttons();
}

function pause() {
  run.playing = !run.playing;
  if (run.playing && !run.active) play(run.token, run.at); // a block may still be under way
  buttons();
}

function shape() {
  const kind = by("kind").value;
  by("row-file").hidden = kind !== "file";
  by("row-frequency").hidden = kind !== "sine" && kind !== "chirp";
  for (const label of document.querySelectorAll(".made")) label.hidden = kind === "file";
  if (kind !== "file" || uploaded) preview();
}

function beginStream(setup) {
  ({ model, longest } = setup);
  if (!model || model.reason) {
    by("obstacle").textContent = model ? model.reason
      : "Name a trained model to stream signals through it, such as: statespan view digits-s4d";
    return;
  }
  const shift = `${model.offset < 0 ? "+" : "−"} ${number(Math.abs(model.offset))}`;
  by("obstacle").textContent = (model.scaled
    ? `Samples x are scaled as the training data was: (x ${shift}) / ${number(model.amplitude)}.`
    : "Samples are not scaled: the model came without the scaling of its data.")
    + (model.rate ? ` The model was trained at ${model.rate} Hz.` : "");
  by("streaming").hidden = false;
  plots.input = new Chart(by("input"), { x: "sample", y: "value" });
  plots.output = new Chart(by("output"), { x: "sample", y: model.classes ? "class" : model.unit || "value" });
  by("output").querySelector("figcaption").textContent = model.classes ? "Outputs: probability of each class" : "Outputs";
  fill(by("kind"), [...setup.signals, "file"]);
  fill(by("every"), [1, 10, 100, 1000]);
  fill(by("speed"), [10, 50, 200, 1000, 0], (n) => n || "no limit");
  by("speed").value = 50;
  by("amplitude").value = Number(model.amplitude.toPrecision(3));
  by("offset").value = Number(model.offset.toPrecision(3));
  frequency = new Slider("frequency", [0.001, 0.5], 0.02, () => preview());
  scale = new Slider("stream_scale", setup.ranges.dt_scale, 1, () => {});
  by("kind").addEventListener("change", shape);
  by("file").addEventListener("change", upload);
  for (const name of ["amplitude", "offset", "samples"]) by(name).addEventListener("change", preview);
  by("start").addEventListener("click", start);
  by("pause").addEventListener("click", pause);
  addEventListener("pagehide", close);
  shape();
}
