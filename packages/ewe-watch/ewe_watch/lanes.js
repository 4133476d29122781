// What both pages of ewe-watch share: the kinds of ewe_explore/lanes.py on a canvas, areas of numbers, what stands
// behind the server, and small helpers. page.py writes LANE_KINDS, the description of the kinds, before this file.

const TILE = 10;  // the side of a pattern's square, as in ewe_explore/lanes.py
const COLOURS = ["ink", "dim", "paper", "card", "line", "on-busy", "parked", "mark", "focus",
  ...LANE_KINDS.flatMap(kind => [kind.name, `${kind.name}-soft`])];
const STRONG_PLATES = ["busy", "engine", "database"];  // their strong colours are dark enough for letters
const byId = id => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
let colours = {};   // by name, for the scheme of now
let patterns = {};  // kind -> a tile with its pattern; none for a plain ground
const withoutMotion = matchMedia("(prefers-reduced-motion: reduce)");

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

// As duration() of moment.py: three digits, with bounds that are half a digit below 1, 10 and 100.
function duration(micros) {
  for (const [unit, size] of [["s", 1e6], ["ms", 1e3], ["µs", 1]]) {
    const value = micros / size;
    const decimals = size === 1 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    if (value >= 0.9995 || size === 1) return `${value.toFixed(decimals)} ${unit}`;
  }
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(COLOURS.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  patterns = Object.fromEntries(LANE_KINDS.filter(kind => kind.tile).map(kind => [kind.name, tileOf(kind)]));
}

function tileOf({name, tile, solid, filled}) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = TILE;
  const pen = canvas.getContext("2d"), strong = colours[name], soft = colours[`${name}-soft`];
  pen.fillStyle = solid ? strong : soft;
  pen.fillRect(0, 0, TILE, TILE);
  pen.fillStyle = pen.strokeStyle = solid ? soft : strong;
  pen.lineWidth = 2;
  const path = new Path2D(tile);
  if (filled) pen.fill(path); else pen.stroke(path);
  return canvas;
}

// The paint of a kind. A span that is narrower than half a tile shows its strong colour, since it shows no pattern.
function paintOf(pen, kind, width = TILE) {
  if (!patterns[kind]) return colours[kind === "free" ? "free-soft" : kind] || colours.dim;
  return width < TILE / 2 ? colours[kind] : pen.createPattern(patterns[kind], "repeat");
}

// Write a text on a span. On a pattern it stands on a plain plate: of the kind's strong colour, or of paper.
function writeOn(pen, kind, text, x, middle, size) {
  const strong = STRONG_PLATES.includes(kind);
  pen.fillStyle = strong ? colours[kind] : colours.paper;
  if (patterns[kind] || !strong) pen.fillRect(x - 3, middle - size * 0.7, pen.measureText(text).width + 6, size * 1.4);
  pen.fillStyle = strong ? colours["on-busy"] : colours.ink;
  pen.textAlign = "left";
  pen.fillText(text, x, middle + 1);
}

// Numbers over time as an area: the mean of each pixel. A peak that is shorter than a pixel is a faint column.
// strip: its left, right, top and height; `from` and `to`, the times at its sides; `until`, the time of the last number's end.
function drawCounts(pen, strip, {time, queued: counts}, most, fill, line, dash) {
  const {left: side, from, to: last, until} = strip, width = Math.ceil(strip.right - side);
  const xOfTime = at => clamp((at - from) / (last - from) * (strip.right - side), 0, width);
  const mean = new Float64Array(width + 1), high = new Float64Array(width + 1);
  for (let step = 0; step < time.length; step++) {
    const to = step + 1 < time.length ? time[step + 1] : until;
    if (!counts[step] || to <= from || time[step] >= last) continue;
    const left = xOfTime(time[step]), right = xOfTime(to);
    for (let x = Math.floor(left); x < right; x++) {
      mean[x] += counts[step] * (Math.min(right, x + 1) - Math.max(left, x));
      high[x] = Math.max(high[x], counts[step]);
    }
  }
  const y = value => strip.top + strip.height - value / most * strip.height;
  const column = (x, value) => pen.fillRect(side + x, y(value), 1, strip.top + strip.height - y(value));
  pen.fillStyle = line;
  pen.globalAlpha = 0.4;
  for (let x = 0; x < width; x++) {
    if (high[x] > mean[x] + 0.5) column(x, high[x]);
  }
  pen.globalAlpha = 1;
  pen.fillStyle = fill;
  for (let x = 0; x < width; x++) {
    if (mean[x]) column(x, mean[x]);
  }
  pen.strokeStyle = line;
  pen.lineWidth = 1.6;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(side, y(mean[0]));
  for (let x = 0; x < width; x++) {
    if (x && mean[x] !== mean[x - 1]) pen.lineTo(side + x, y(mean[x]));
    pen.lineTo(side + x + 1, y(mean[x]));
  }
  pen.stroke();
  pen.setLineDash([]);
}

// What stands behind the server, in rows below the workers: their names, and which ends of a script or a statement are
// failures.
const BEHIND = {
  engine: {system: "X-Switch", title: "X-Switch: engines", queue: "wait for an engine", runs: "an engine runs a script",
    lives: "engine", table: "engines", asks: "scripts", text: "script", of: "language"},
  database: {system: "database daemon", title: "database daemon: connections", queue: "wait for a connection", runs: "a database runs a statement",
    lives: "connection", table: "database connections", asks: "statements", text: "statement", of: "database"},
};
const FAILED = outcome => outcome !== "" && outcome !== "ok" && outcome !== "left";

// A line at the lower edge of a span. Its dashes and its light edge show it without colours, too.
function drawFailure(pen, from, width, bottom) {
  pen.fillStyle = colours.paper;
  pen.fillRect(from, bottom - 6, width, 6);
  pen.fillStyle = colours.client;
  for (let dash = 0; dash < width; dash += 8) pen.fillRect(from + dash, bottom - 4, Math.min(width - dash, 6), 4);
}

// A line from the worker that asks, at the moment at which it asks, to the begin of the work.
function drawAsks(pen, from, high, to, low, colour, width) {
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(from, high);
  pen.lineTo(to, low);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(to, low + 1);
  pen.lineTo(to - 3.5, low - 6);
  pen.lineTo(to + 3.5, low - 6);
  pen.fill();
}

// Items of the legend for both
const failureSample = kind => [pen => {
  pen.fillStyle = paintOf(pen, kind);
  pen.fillRect(0, 0, 30, 16);
  drawFailure(pen, 0, 30, 16);
}, "failed, or was ended"];
const asksSample = kind => [pen => drawAsks(pen, 6, 1, 25, 14, colours[kind], 1.5), "from the worker that asks"];

// Items of the legend: [name of a kind, or a function that draws with a pen, text]
function fillLegend(items) {
  byId("legend").replaceChildren(...items.map(([kind, text]) => {
    const item = make("li"), sample = document.createElement("canvas");
    sample.width = 60;
    sample.height = 32;
    const pen = sample.getContext("2d");
    pen.scale(2, 2);
    if (typeof kind === "function") {
      kind(pen);
    } else {
      pen.fillStyle = paintOf(pen, kind);
      pen.fillRect(0, 0, 30, 16);
    }
    item.append(sample, text);
    return item;
  }));
}

function whenColoursChange(again) {
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(query).addEventListener("change", () => { readColours(); again(); });
  }
}
