// The replay of a trace, and its picture for a slide.
//
//   play, step, the slider ──go()──▶ replay.at, the moment ──▶ draw(): nothing stands to the right of the moment
//
// All traces of the page have one moment, and the view follows it. With reduced motion, the moment changes once a
// second, and the view changes by whole pages. watch.js comes after this file.

const STEADY = 0.8;      // the part of the view up to which the moment moves; then the view does
const STILL_MS = 1000;   // between two pictures with reduced motion
const SLIDE_WIDTH = 1920, SLIDE_HEIGHT = 1080, SLIDE_MARGIN = 24;
const replay = {at: null, playing: false, since: 0, number: 0};  // at: microseconds, null: all of the trace is shown
let changes = null;      // the times at which something changes, ascending

const shownUntil = () => replay.at ?? Infinity;
const lastMoment = () => Math.max(1, ...traces.map(trace => trace.duration));

function changeTimes() {
  if (!changes) {
    const times = new Set();
    for (const trace of traces) {
      for (const column of [trace.spans.begin, trace.spans.end, trace.behind.spans.begin, trace.behind.spans.end]) {
        for (const at of column) times.add(at);
      }
      for (const each of trace.refusals) times.add(each.time);
    }
    changes = Float64Array.from(times).sort();
  }
  return changes;
}

// Show the traces as they were at this moment.
function go(at) {
  replay.at = clamp(at, 0, lastMoment());
  const length = view.to - view.from, from = replay.at - view.from;
  if (length < whole * 0.999 && (from < 0 || from > length * STEADY)) {
    const part = from < 0 || withoutMotion.matches ? 0.1 : STEADY;
    show(replay.at - length * part, replay.at + length * (1 - part));
  }
  tellReplay();
  redraw();
}

function play(wanted) {
  replay.playing = wanted;
  const number = ++replay.number;
  tellReplay();
  if (!wanted) return;
  if (replay.at === null || replay.at >= lastMoment()) go(view.from < lastMoment() ? view.from : 0);
  replay.since = performance.now();
  const frame = now => {
    if (number !== replay.number) return;
    const passed = now - replay.since;
    if (passed >= (withoutMotion.matches ? STILL_MS : 1)) {
      replay.since = now;
      go(replay.at + Math.min(passed, STILL_MS) * 1e3 * Number(byId("speed").value));
      if (replay.at >= lastMoment()) play(false);
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

function stepReplay() {
  play(false);
  const from = replay.at ?? Math.max(view.from - 1, -1);
  go(changeTimes().find(each => each > from) ?? lastMoment());
}

function endReplay() {
  if (replay.at === null) return;
  const focused = document.activeElement === byId("end");
  replay.at = null;
  play(false);
  if (focused) byId("play").focus();  // a disabled button loses the focus
  redraw();
}

function tellReplay() {
  byId("play").textContent = replay.playing ? "pause" : "play";
  byId("end").disabled = replay.at === null;
  byId("at").value = String(Math.round(1000 * (replay.at ?? 0) / lastMoment()));
  byId("at").setAttribute("aria-valuetext", replay.at === null ? "no replay" : duration(replay.at));
  // A screen reader is told of the moment at which the replay stands still, and not of each one between
  byId("now").setAttribute("aria-live", replay.playing ? "off" : "polite");
  byId("now").textContent = replay.at === null ? "" : `at ${duration(replay.at)}: ${traces.map(stateNow).join("; ")}`;
}

// What a trace shows at the moment, in words
function stateNow(trace) {
  const {begin} = trace.spans, {time, backlog, queued, parked} = trace.queue;
  const occupied = trace.lanes.filter((lane, row) => begin[lane.spans[firstAfter(trace, row, replay.at)]] <= replay.at).length;
  let step = time.length - 1;
  while (step >= 0 && time[step] > replay.at) step--;
  const parts = [`${occupied} of ${trace.lanes.length} rows are occupied`, `${queued[step] ?? 0} in the queue`];
  if (trace.mostBacklog) parts.splice(1, 0, `${backlog[step] ?? 0} in the backlog`);
  if (trace.mostParked) parts.push(`${parked[step] ?? 0} parked`);
  return (traces.length > 1 ? `${trace.model || trace.name}: ` : "") + parts.join(", ");
}

function drawMoment(pen, layout) {
  if (replay.at === null || replay.at < view.from || replay.at > view.to) return;
  const x = xOf(layout, replay.at), text = duration(replay.at), y = layout.end + layout.font;
  const half = pen.measureText(text).width / 2 + 4, middle = clamp(x, half, layout.width - half);
  pen.fillStyle = colours.ink;
  pen.fillRect(x - 1, 0, 2, y);
  pen.fillRect(middle - half, y - layout.font * 0.7, 2 * half, layout.font * 1.4);
  pen.fillStyle = colours.paper;
  pen.textAlign = "center";
  pen.fillText(text, middle, y);
}

// Return whether a key belongs to the replay, and do what it says.
function replayKey(event) {
  if (event.key === "Escape" && replay.at !== null) endReplay();
  else if (event.key === ".") stepReplay();
  else if (event.key === " " && !event.target.closest("button, summary, a, .table")) play(!replay.playing);
  else return false;
  return true;
}

// Return a canvas with what the page shows now: headings, pictures and the legend, as wide as a slide.
function slide() {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  const width = SLIDE_WIDTH - 2 * SLIDE_MARGIN, heading = 40, line = 30;
  const layouts = traces.map(trace => layoutFor(trace, width, SLIDE_HEIGHT));
  const items = [...byId("legend").children];
  const places = [];
  const font = "18px system-ui, sans-serif";
  pen.font = font;
  let x = 0, row = 0;
  for (const item of items) {
    const wide = 40 + pen.measureText(item.textContent).width;
    if (x && x + wide > width) [x, row] = [0, row + 1];
    places.push([x, row]);
    x += wide + 24;
  }
  canvas.width = SLIDE_WIDTH;
  canvas.height = 2 * SLIDE_MARGIN + layouts.reduce((sum, layout) => sum + layout.height + heading, 0) + (row + 1) * line;
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.textBaseline = "middle";
  let y = SLIDE_MARGIN;
  traces.forEach((trace, index) => {
    pen.fillStyle = colours.ink;
    pen.textAlign = "left";
    pen.font = "600 22px system-ui, sans-serif";
    pen.fillText(trace.model ? `${trace.model}: ${trace.description}` : trace.name, SLIDE_MARGIN, y + heading / 2, width);
    pen.save();
    pen.translate(SLIDE_MARGIN, y + heading);
    paint(pen, trace, layouts[index]);
    pen.restore();
    y += heading + layouts[index].height;
  });
  pen.font = font;
  items.forEach((item, index) => {
    const left = SLIDE_MARGIN + places[index][0], middle = y + (places[index][1] + 0.5) * line;
    pen.drawImage(item.querySelector("canvas"), left, middle - 8, 30, 16);
    pen.fillStyle = colours.ink;
    pen.textAlign = "left";
    pen.fillText(item.textContent, left + 40, middle);
  });
  return canvas;
}

function saveSlide() {
  slide().toBlob(blob => {
    const link = make("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${traces.map(trace => trace.name).join("-")}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });
}

function listenToReplay() {
  byId("play").addEventListener("click", () => play(!replay.playing));
  byId("step").addEventListener("click", stepReplay);
  byId("end").addEventListener("click", endReplay);
  byId("save").addEventListener("click", saveSlide);
  byId("at").addEventListener("input", () => {
    const part = Number(byId("at").value) / 1000;  // play() moves the slider
    play(false);
    go(part * lastMoment());
  });
}
