"use strict";
// Charts on a canvas: lines, dots and a heat map, sharp on any screen, in the colours of the page.

const COLORS = 8;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let n = Math.ceil(Math.log10(low) - 1e-9); n <= Math.log10(high) + 1e-9; n++) found.push(10 ** n);
  return found;
}

function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replace("-", "−").replace("e+", "e").replace(".0e", "e");
}

class Chart {
  // options: x and y (labels), logX, yRange, zeroX, circle (equal axes around the unit circle), dots, heat
  constructor(figure, options) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.options = options;
    this.lines = [];
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  set(lines, more = {}) {
    this.lines = lines;
    Object.assign(this.options, more);
    this.legend();
    this.draw();
  }

  legend() {
    const shown = this.lines.filter((line) => line.label);
    const wanted = shown.map((line) => `${line.color} ${line.label}`).join("\n") + (this.options.note || "");
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    const items = shown.map((line) => Object.assign(document.createElement("li"),
      { textContent: line.label, className: `c${line.color}` }));
    if (this.options.note) {
      items.push(Object.assign(document.createElement("li"), { textContent: this.options.note, className: "plain" }));
    }
    this.figure.querySelector("ul").replaceChildren(...items);
  }

  // The range of an axis stays while the values fit it well, so that they are seen to move.
  fit(axis, include) {
    let low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      for (const value of line[axis]) {
        if (value !== null && value < low) low = value;
        if (value !== null && value > high) high = value;
      }
    }
    if (low > high) [low, high] = [0, 1];
    if (include !== undefined) { low = Math.min(low, include); high = Math.max(high, include); }
    if (low === high) { low -= 0.5; high += 0.5; }
    const kept = this[`range_${axis}`], span = high - low;
    if (kept && low >= kept[0] && high <= kept[1] && span > 0.3 * (kept[1] - kept[0])) return kept;
    return (this[`range_${axis}`] = [low - 0.06 * span, high + 0.06 * span]);
  }

  draw() {
    const { canvas, options } = this, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = (this.pen = canvas.getContext("2d"));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    this.box = { left: options.heat ? this.labelWidth() : 52, right: width - 12, top: 10, bottom: height - 38 };
    if (options.heat) return this.drawHeat();
    let rangeX = options.xRange || this.fit("x", options.zeroX ? 0 : undefined);
    let rangeY = options.yRange || this.fit("y");
    if (options.circle) {
      const { left, right, top, bottom } = this.box, share = (right - left) / (bottom - top);
      rangeX = [-1.15 * share, 1.15 * share];
      rangeY = [-1.15, 1.15];
    }
    this.axes(rangeX, rangeY);
    if (options.circle) this.circle();
    this.clip();
    for (const line of options.dots ? [...this.lines].reverse() : this.lines) options.dots ? this.dots(line) : this.line(line);
    pen.restore();
  }

  axes(rangeX, rangeY) {
    const { pen, options } = this, { left, right, top, bottom } = this.box, bend = options.logX ? Math.log : (v) => v;
    const [x0, x1] = rangeX.map(bend), [y0, y1] = rangeY;
    this.px = (x) => left + ((bend(x) - x0) / (x1 - x0)) * (right - left);
    this.py = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - top);
    pen.strokeStyle = color("--line");
    pen.fillStyle = color("--quiet");
    pen.lineWidth = 1;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const x of options.logX ? logTicks(...rangeX) : ticks(...rangeX, (right - left) / 75)) {
      this.stroke([[this.px(x), top], [this.px(x), bottom]]);
      pen.fillText(number(x), this.px(x), bottom + 5);
    }
    pen.fillText(options.x, (left + right) / 2, bottom + 21);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const y of ticks(...rangeY, (bottom - top) / 30)) {
      this.stroke([[left, this.py(y)], [right, this.py(y)]]);
      pen.fillText(number(y), left - 5, this.py(y));
    }
    pen.save();
    pen.translate(9, (top + bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(options.y, 0, 0);
    pen.restore();
    pen.strokeStyle = color("--quiet");
    for (const [line, inside] of [[[[left, this.py(0)], [right, this.py(0)]], y0 < 0 && y1 > 0],
      [[[this.px(0), top], [this.px(0), bottom]], !options.logX && x0 < 0 && x1 > 0]]) {
      if (inside) this.stroke(line);
    }
  }

  circle() {
    const { pen } = this;
    pen.beginPath();
    pen.arc(this.px(0), this.py(0), this.px(1) - this.px(0), 0, 2 * Math.PI);
    pen.stroke();
  }

  clip() {
    const { pen } = this, { left, right, top, bottom } = this.box;
    pen.save();
    pen.beginPath();
    pen.rect(left, top - 4, right - left + 4, bottom - top + 8);
    pen.clip();
  }

  stroke(points) {
    this.pen.beginPath();
    points.forEach(([x, y], n) => (n ? this.pen.lineTo(x, y) : this.pen.moveTo(x, y)));
    this.pen.stroke();
  }

  // Long lines are drawn as the lowest and the highest value in each column of pixels.
  line({ x, y, color: index, width }) {
    const columns = Math.max(1, Math.round(this.box.right - this.box.left)), every = Math.ceil(x.length / (2 * columns));
    const points = [];
    for (let at = 0; at < x.length; at += every) {
      const block = y.slice(at, at + every).filter((value) => value !== null);
      if (!block.length) continue;
      const low = Math.min(...block), high = Math.max(...block);
      points.push([this.px(x[at]), this.py(low)]);
      if (high > low) points.push([this.px(x[at]), this.py(high)]);
    }
    this.pen.strokeStyle = color(`--c${index}`);
    this.pen.lineWidth = width || 1.5;
    this.pen.lineJoin = "round";
    this.stroke(points);
  }

  dots({ x, y, color: index }) {
    const { pen } = this;
    pen.fillStyle = color(`--c${index}`);
    x.forEach((value, n) => {
      if (value === null || y[n] === null) return;
      pen.beginPath();
      pen.arc(this.px(value), this.py(y[n]), 3, 0, 2 * Math.PI);
      pen.fill();
    });
  }

  labelWidth() {
    const widest = Math.max(0, ...this.options.rows.map((name) => this.pen.measureText(name).width));
    return Math.min(130, Math.max(40, widest + 28));
  }

  // Probabilities of classes: a row for each class, a column for each output.
  drawHeat() {
    const { pen, options } = this, { left, right, top, bottom } = this.box;
    const [line] = this.lines, rows = options.rows, [x0, x1] = options.xRange;
    const tall = (bottom - top) / rows.length;
    this.px = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
    const outputs = line ? line.outputs : [], places = line ? line.x : [];
    const every = Math.max(1, Math.floor(outputs.length / (right - left)));
    for (let at = 0; at < outputs.length; at += every) {
      const end = places[Math.min(at + every, outputs.length) - 1];
      const from = Math.round(this.px(at ? places[at - 1] : x0)), wide = Math.max(1, Math.round(this.px(end)) - from);
      outputs[at].forEach((value, row) => {
        if (!(value > 0.004)) return;
        pen.fillStyle = `rgba(${color("--heat")}, ${value})`;
        pen.fillRect(from, Math.round(top + row * tall), wide, Math.ceil(tall - 1));
      });
    }
    pen.strokeStyle = color("--line");
    pen.strokeRect(left, top, right - left, bottom - top);
    pen.fillStyle = color("--quiet");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const skip = Math.ceil(13 / tall);
    rows.forEach((name, row) => {
      if (row % skip === 0) pen.fillText(name, left - 5, top + (row + 0.5) * tall, left - 24);
    });
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const x of ticks(x0, x1, (right - left) / 75)) pen.fillText(number(x), this.px(x), bottom + 5);
    pen.fillText(options.x, (left + right) / 2, bottom + 21);
    pen.save();
    pen.translate(9, (top + bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textBaseline = "middle";
    pen.fillText(options.y, 0, 0);
    pen.restore();
  }
}
