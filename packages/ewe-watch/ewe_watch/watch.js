// The picture of traces: a canvas for each, all with one axis of time, and the same numbers as tables.
//
//   data ──prepare()──▶ traces ──draw()──▶ canvas            view: the shown time, in microseconds
//                          └─────fill tables                 filter: the chosen connection, worker and length
//
// A span narrower than a pixel is not drawn alone. The column of its pixel shows the part of the time that each
// kind of work has, and is high enough to be seen. 40,000 spans are drawn in a few milliseconds.
// Before this file come behind.js (X-Switch's engines and the connections to databases) and replay.js.

const KINDS = [
  {name: "busy", label: "computes for a connection"},
  {name: "sends", label: "sends the response"},
  {name: "client", label: "stands still: waits for its client"},
  {name: "other", label: "stands still: waits for a program, a server or a call"},
];
const BUSY = 0, SENDS = 1, CLIENT = 2, OTHER = 3;
const WANTS = {program: "a program", server: "another server", call: "a function call"};
// What a client does while a worker waits for it
const CLIENT_DOES = {request: "has sent no request yet", bytes: "has sent no more bytes yet",
  close: "has not closed yet", room: "has not read yet"};
const FEWEST_MICROS = 20;  // of the view: zooming in ends there
const ROWS_AT_ONCE = 100;  // of a table
const LEAST_OF_ROW = 0.4;  // the height of a span that is narrower than a pixel, so that it can be seen
const MOST_WAYS = 400;     // lines from the queue to the workers, in one picture

// ---------------------------------------------------------------------------------------------------------------
// Data

const traces = JSON.parse(byId("data").textContent).map(prepare);
const whole = Math.max(1, ...traces.map(trace => trace.duration)) * 1.01;
const view = {from: 0, to: whole};
// One scale for all traces, so that their areas can be compared
const mostQueued = Math.max(4, ...traces.map(trace => trace.mostWaiting));
const mostParked = Math.max(4, ...traces.map(trace => trace.mostParked));
const filter = {connection: "", worker: "", longer: 0};
let mark = null;      // the moment that is shown: {trace, moment}
let selected = null;  // the span under the pointer, or chosen by keys: {trace, row, span}

function prepare(trace, index) {
  trace.index = index;
  const {begin, end, state, connection, worker, want} = trace.spans;
  trace.kinds = state.map((each, span) =>
    each === "busy" ? BUSY : each === "sends" ? SENDS : want[span] in CLIENT_DOES ? CLIENT : OTHER);
  trace.lanes = Array.from({length: trace.rows}, () => ({spans: [], workers: []}));
  trace.workers.forEach((each, number) => {
    trace.lanes[each.row].workers.push(number);
    each.totals = [0, 0, 0, 0];
    each.served = new Set();
    each.requests = 0;
  });
  trace.connections.forEach(each => Object.assign(each, {waited: 0, queued: 0, parked: 0, spans: [], requests: [], on: new Set()}));
  trace.ways = [];  // how each connection came from the backlog and the queue to a worker
  const waiting = new Map();
  for (let span = 0; span < begin.length; span++) {
    const owner = trace.connections[connection[span]];
    owner.spans.push(span);
    if (state[span] === "backlog") {
      owner.waited += end[span] - begin[span];
      waiting.set(connection[span], {first: span, last: span});
    } else if (state[span] === "queued") {
      owner.queued += end[span] - begin[span];
      const before = waiting.get(connection[span]);
      if (before) before.last = span; else waiting.set(connection[span], {first: span, last: span});
    } else if (state[span] === "parked") {
      owner.parked += end[span] - begin[span];
    } else {
      const by = trace.workers[worker[span]];
      trace.lanes[by.row].spans.push(span);
      by.totals[trace.kinds[span]] += end[span] - begin[span];
      by.served.add(connection[span]);
      owner.on.add(worker[span]);
      if (waiting.has(connection[span])) {
        trace.ways.push({...waiting.get(connection[span]), row: by.row});
        waiting.delete(connection[span]);
      }
    }
  }
  trace.requests.forEach((each, number) => {
    trace.connections[each.connection].requests.push(number);
    if (each.worker >= 0) trace.workers[each.worker].requests++;
    each.end = each.last_byte ?? each.answered ?? trace.duration;
  });
  // The connections in the backlog stand above those in the queue
  trace.waiting = {time: trace.queue.time, queued: trace.queue.queued.map((each, step) => each + trace.queue.backlog[step])};
  trace.mostWaiting = trace.waiting.queued.reduce((most, each) => Math.max(most, each), 0);
  trace.mostBacklog = trace.queue.backlog.reduce((most, each) => Math.max(most, each), 0);
  trace.mostParked = trace.queue.parked.reduce((most, each) => Math.max(most, each), 0);
  prepareBehind(trace);
  return trace;
}

function matches(trace, span) {
  const owner = trace.connections[trace.spans.connection[span]];
  if (filter.connection && owner.label !== filter.connection && owner.name !== filter.connection) return false;
  const worker = trace.spans.worker[span];
  if (filter.worker.includes("/b")) {
    const lane = Number(filter.worker.split("/b")[1]);
    if (!filter.worker.startsWith(`${trace.index}/b`) || !asksLane(trace, trace.spans.request[span], lane)) return false;
  } else if (filter.worker) {
    // A span in the queue, or parked, belongs to the workers that the connection has had
    const [index, number] = filter.worker.split("/").map(Number);
    if (index !== trace.index || (worker >= 0 ? worker !== number : !owner.on.has(number))) return false;
  }
  if (filter.longer) {
    const request = trace.requests[trace.spans.request[span]];
    return request ? request.end - request.head >= filter.longer * 1e3 : false;
  }
  return true;
}
const filtering = () => Boolean(filter.connection || filter.worker || filter.longer);

function connectionMatches(trace, connection) {
  if (!filtering()) return true;
  return trace.connections[connection].spans.some(span => matches(trace, span));
}

// ---------------------------------------------------------------------------------------------------------------
// Legend

function legend() {
  const used = KINDS.filter((_, kind) => traces.some(trace => trace.kinds.some((each, span) =>
    each === kind && trace.spans.worker[span] >= 0)));
  const server = traces.some(trace => trace.connections.length);
  const items = [...used.map(kind => [kind.name, kind.label]), ["free", "free"]];
  const backlog = traces.some(trace => trace.mostBacklog);
  if (backlog) items.push(["backlog", "in the kernel's backlog, not accepted yet"]);
  if (server) items.push(["queue", "in the queue, without a worker"], [wayOfLegend, backlog ? "from there to a worker" : "from the queue to a worker"]);
  items.push(...legendBehind());
  if (traces.some(trace => trace.mostParked)) {
    items.push([pen => {
      pen.strokeStyle = colours.parked;
      pen.lineWidth = 1.5;
      pen.setLineDash([4, 2]);
      pen.strokeRect(1, 3, 28, 20);
    }, "parked: the client is waited for, without a worker"]);
  }
  fillLegend(items);
}

function wayOfLegend(pen) {
  pen.strokeStyle = pen.fillStyle = colours.queue;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(1, 2);
  pen.lineTo(25, 12.5);
  pen.stroke();
  pen.beginPath();
  pen.arc(25.5, 12.5, 3, 0, 7);
  pen.fill();
}

// ---------------------------------------------------------------------------------------------------------------
// Drawing

const pictures = traces.map(trace => {
  const figure = make("figure");
  figure.id = `trace${trace.index}`;
  const caption = make("figcaption");
  const counted = `${trace.events.toLocaleString("en")} events, ${trace.connections.length.toLocaleString("en")} connections`;
  caption.append(make("b", `${trace.model || trace.name}:`), " ", make("span", `${trace.description}  (${trace.name}: ${counted})`));
  figure.append(caption);
  if (trace.lost) {
    figure.append(make("p", `${trace.lost.toLocaleString("en")} events of this trace were lost: the picture has gaps.`, "warning"));
  }
  const scroll = make("div", "", "scroll");
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${trace.model || trace.name}: ${trace.lanes.length} rows of workers, ${trace.rowsBehind.length} of engines and connections to databases, and the queues over time. ` +
    "Arrow keys and n, p move; the tables below have the same numbers.");
  scroll.append(canvas);
  figure.append(scroll);
  byId("pictures").append(figure);
  const picture = {trace, canvas, layout: null};
  listen(picture);
  return picture;
});

// width, height: of the window or of the slide, in pixels
function layoutFor(trace, width, height) {
  const font = width < 600 ? 11 : width > 1500 ? 16 : 13;
  const gutter = width < 600 ? 74 : Math.round(font * 12);
  const lane = clamp(Math.floor(Math.max(300, height * (0.55 / pictures.length)) / Math.max(rowCount(trace), 1)), trace.rowsBehind.length ? Math.round(font * 1.5) : 5, Math.round(font * 2.7));
  const tall = trace.sections.length || pictures.length > 1 ? 5 : 7;
  const queue = {top: Math.round(font * 1.1), height: trace.connections.length ? Math.round(font * tall) : 0};
  const parked = {top: queue.top + queue.height + Math.round(font * 0.9), height: trace.mostParked ? Math.round(font * 2.6) : 0};
  const top = queue.height ? parked.top + (parked.height ? parked.height + Math.round(font * 0.9) : 0) : queue.top;
  const bottom = top + lane * trace.lanes.length;
  const layout = {width, font, gutter, right: width - 10, queue, parked, lane, top, bottom};
  layoutBehind(trace, layout);
  layout.height = layout.end + Math.round(font * 2.2);
  return layout;
}

function xOf(layout, micros) {
  return layout.gutter + (micros - view.from) / (view.to - view.from) * (layout.right - layout.gutter);
}
function timeAt(layout, x) {
  return view.from + (x - layout.gutter) / (layout.right - layout.gutter) * (view.to - view.from);
}

// The first span of a row that ends after this time
function firstAfter(trace, row, micros) {
  const {spans} = rowOf(trace, row), {end} = spansOf(trace, row);
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end[spans[middle]] > micros) high = middle; else low = middle + 1;
  }
  return low;
}

function draw(picture) {
  const {trace, canvas} = picture;
  const layout = picture.layout = layoutFor(trace, canvas.clientWidth, innerHeight);
  const scale = devicePixelRatio || 1;
  canvas.style.height = `${layout.height}px`;
  canvas.width = Math.round(layout.width * scale);
  canvas.height = Math.round(layout.height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  paint(pen, trace, layout);
}

function paint(pen, trace, layout) {
  pen.font = `${layout.font}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, layout.width, layout.height);
  drawAxis(pen, layout);
  layout.edge = clamp(xOf(layout, shownUntil()), layout.gutter, layout.right);
  pen.save();
  if (replay.at !== null) {  // what comes later is not shown
    pen.beginPath();
    pen.rect(0, 0, layout.edge, layout.height);
    pen.clip();
  }
  drawMark(pen, layout, trace);
  const brushes = KINDS.map(kind => paintOf(pen, kind.name));
  if (layout.queue.height) {
    const strip = stripOf(layout, trace, layout.queue);
    if (trace.mostBacklog) drawCounts(pen, strip, trace.waiting, mostQueued, paintOf(pen, "backlog"), colours.backlog, []);
    drawCounts(pen, strip, trace.queue, mostQueued, paintOf(pen, "queue"), colours.queue, []);
    const [name, detail] = trace.mostBacklog ? ["waiting", "in backlog or queue"] : ["queue", "waiting for a worker"];
    labels(pen, layout, layout.queue, name, detail, mostQueued);
  }
  if (layout.parked.height) {
    drawCounts(pen, stripOf(layout, trace, layout.parked), {time: trace.queue.time, queued: trace.queue.parked}, mostParked, colours.card, colours.parked, [4, 2]);
    labels(pen, layout, layout.parked, "parked", "need no worker now", mostParked);
  }
  const texts = trace.lanes.flatMap((lane, row) => drawLane(pen, layout, trace, row, brushes));
  drawWays(pen, layout, trace);
  drawBehind(pen, layout, trace);
  for (const {span, from, to, top, height} of texts) write(pen, layout, trace, span, from, to, top, height);
  drawRefusals(pen, layout, trace);
  drawSelected(pen, layout, trace);
  pen.restore();
  drawTitles(pen, layout);
  drawMoment(pen, layout);
}

function drawAxis(pen, layout) {
  const room = layout.font * 6;
  const most = Math.max(1, Math.floor((layout.right - layout.gutter) / room));
  const rough = (view.to - view.from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough);
  pen.textAlign = "center";
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = xOf(layout, at);
    pen.fillStyle = colours.line;
    pen.fillRect(x, layout.queue.top, 1, layout.end - layout.queue.top + 4);
    pen.fillStyle = colours.dim;
    const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
    const text = `${(at / 1e6).toFixed(digits)} s`;
    const half = pen.measureText(text).width / 2;
    pen.fillText(text, clamp(x, half + 2, layout.width - half - 2), layout.end + layout.font);
  }
}

function drawMark(pen, layout, trace) {
  if (!mark || mark.trace !== trace.index) return;
  const moment = trace.moments[mark.moment];
  const from = Math.max(xOf(layout, moment.begin), layout.gutter);
  const to = Math.min(xOf(layout, moment.end), layout.right);
  if (to < layout.gutter || from > layout.right) return;
  pen.fillStyle = colours.mark;
  pen.fillRect(from - 1, 0, Math.max(to - from, 2) + 1, layout.end);
}

const stripOf = (layout, trace, {top, height}) =>
  ({left: layout.gutter, right: layout.right, top, height, from: view.from, to: view.to, until: trace.duration});

function labels(pen, layout, strip, name, detail, most) {
  pen.textAlign = "left";
  pen.fillStyle = colours.ink;
  pen.font = `600 ${layout.font}px system-ui, sans-serif`;
  pen.fillText(name, 6, strip.top + layout.font * 0.5);
  pen.font = `${layout.font}px system-ui, sans-serif`;
  pen.fillStyle = colours.dim;
  if (layout.width >= 600) pen.fillText(detail, 6, strip.top + layout.font * 1.7);
  pen.textAlign = "right";
  pen.fillText(most.toLocaleString("en"), layout.gutter - 5, strip.top + 1);
  if (strip.height > layout.font * 2) pen.fillText("0", layout.gutter - 5, strip.top + strip.height - 1);
}

function nameOfLane(trace, row) {
  const {workers} = trace.lanes[row];
  if (workers.length === 1) return [trace.workers[workers[0]].name, trace.workers[workers[0]].detail];
  return [`${workers.length} workers`, "one after the other"];
}

// Draw a row; return the texts to write on its spans, above the lines that cross them.
function drawLane(pen, layout, trace, row, brushes) {
  const top = layout.top + row * layout.lane, height = Math.max(layout.lane - (layout.lane > 12 ? 4 : 1), 2);
  const lives = trace.lanes[row].workers.map(worker => trace.workers[worker]);
  if (lives.some(each => each.began === null)) {  // a life that is not in the trace
    pen.fillStyle = paintOf(pen, "free");
    pen.fillRect(layout.gutter, top, layout.right - layout.gutter, height);
  } else {
    pen.fillStyle = colours.line;
    pen.fillRect(layout.gutter, top + height / 2, layout.right - layout.gutter, 1);
    for (const each of lives) {
      if (each.began < view.to && (each.ended ?? trace.duration) > view.from) drawLife(pen, layout, trace, each, top, height);
    }
  }
  const every = Math.ceil(layout.font * 1.2 / layout.lane);
  if (row % every === 0) {
    const [name, detail] = nameOfLane(trace, row);
    const two = layout.lane > layout.font * 2.4 && layout.width >= 600;
    pen.textAlign = "left";
    pen.fillStyle = colours.ink;
    pen.fillText(name, 6, top + height * (two ? 0.28 : 0.5), layout.gutter - 8);
    pen.fillStyle = colours.dim;
    if (two) pen.fillText(detail, 6, top + height * 0.76, layout.gutter - 8);
  }
  const {spans} = trace.lanes[row];
  const {begin, end} = trace.spans;
  const faint = filtering(), texts = [];
  const column = new Float64Array(KINDS.length);  // the parts of the pixel that narrow spans share
  let at = -1;
  const flush = () => {
    if (at < 0) return;
    let low = top + height;
    const sum = column.reduce((all, each) => all + each, 0);
    for (let kind = 0; sum && kind < KINDS.length; kind++) {
      const part = column[kind] / sum * clamp(sum, LEAST_OF_ROW, 1) * height;
      pen.fillStyle = colours[KINDS[kind].name];
      pen.fillRect(at, low - part, 1, part);
      low -= part;
    }
    column.fill(0);
    at = -1;
  };
  for (let index = firstAfter(trace, row, view.from); index < spans.length; index++) {
    const span = spans[index];
    if (begin[span] >= Math.min(view.to, shownUntil())) break;
    const from = Math.max(xOf(layout, begin[span]), layout.gutter), to = Math.min(xOf(layout, end[span]), layout.edge);
    const shown = !faint || matches(trace, span);
    if (to - from < 1) {
      if (Math.floor(from) !== at) { flush(); at = Math.floor(from); }
      if (shown) column[trace.kinds[span]] += to - from;
      continue;
    }
    flush();
    pen.globalAlpha = shown ? 1 : 0.13;
    pen.fillStyle = to - from < TILE / 2 ? colours[KINDS[trace.kinds[span]].name] : brushes[trace.kinds[span]];
    pen.fillRect(from, top, to - from, height);
    pen.globalAlpha = 1;
    if (shown && to - from > layout.font * 2 && height > layout.font) texts.push({span, from, to, top, height});
  }
  flush();
  return texts;
}

function textsOf(trace, span) {
  const label = trace.connections[trace.spans.connection[span]].label;
  const line = trace.requests[trace.spans.request[span]]?.line ?? "";
  const want = WANTS[trace.spans.want[span]] ?? trace.spans.want[span];
  switch (trace.kinds[span]) {
    case BUSY: return line ? [`${line} (connection ${label})`, line, label] : [`connection ${label}`, label];
    case SENDS: return [`sends ${line} to connection ${label}`, `sends to ${label}`, label];
    case CLIENT: return [`stands still: connection ${label} ${CLIENT_DOES[trace.spans.want[span]]}`, `waits for connection ${label}`, `waits for ${label}`, label];
    default: return [`waits for ${want} (connection ${label})`, `waits for ${want}`, label];
  }
}

function write(pen, layout, trace, span, from, to, top, height) {
  const room = to - from - 8;
  const text = textsOf(trace, span).find(each => pen.measureText(each).width <= room);
  if (!text) return;
  writeOn(pen, KINDS[trace.kinds[span]].name, text, from + 4, top + height / 2, layout.font);
}

// Lines from the backlog and the queue to the workers, for waits that are wide enough to see
function drawWays(pen, layout, trace) {
  const {begin, end, connection} = trace.spans;
  const bottom = layout.queue.top + layout.queue.height;
  let drawn = 0;
  pen.strokeStyle = pen.fillStyle = colours.queue;
  for (const {first, last, row} of trace.ways) {
    if (end[last] < view.from || begin[first] > view.to || end[last] > shownUntil()) continue;
    const from = xOf(layout, begin[first]), to = xOf(layout, end[last]);
    const chosen = selected?.trace === trace && !isBehind(trace, selected.row) && connection[selected.span] === connection[first];
    if ((to - from < 6 && !chosen) || (filtering() && !connectionMatches(trace, connection[first]))) continue;
    if (++drawn > MOST_WAYS) break;
    const y = layout.top + (row + 0.5) * layout.lane - 2;
    pen.save();
    pen.beginPath();
    pen.rect(layout.gutter, 0, layout.right - layout.gutter, layout.bottom);
    pen.clip();
    pen.lineWidth = chosen ? 3 : 1.2;
    pen.beginPath();
    pen.moveTo(from, bottom);
    pen.lineTo(to, y);
    pen.stroke();
    pen.beginPath();
    pen.arc(to, y, chosen ? 4.5 : 3, 0, 7);
    pen.fill();
    pen.restore();
  }
}

function drawRefusals(pen, layout, trace) {
  pen.fillStyle = colours.client;
  pen.font = `700 ${layout.font}px system-ui, sans-serif`;
  pen.textAlign = "center";
  let last = -100;
  for (const {time} of trace.refusals) {
    const x = xOf(layout, time);
    if (x < layout.gutter || x > layout.right || x - last < 8) continue;
    pen.fillText("✕", x, layout.queue.top + layout.queue.height * 0.2);
    last = x;
  }
  pen.font = `${layout.font}px system-ui, sans-serif`;
}

function drawSelected(pen, layout, trace) {
  if (!selected || selected.trace !== trace) return;
  drawSelectedBehind(pen, layout, trace);
  const {connection} = trace.spans;
  if (isBehind(trace, selected.row)) {
    const owner = trace.connections[trace.behind.requests[trace.behind.spans.request[selected.span]].connection];
    outline(pen, layout, trace, owner?.spans ?? []);
    return;
  }
  outline(pen, layout, trace, trace.connections[connection[selected.span]].spans);
}

function outline(pen, layout, trace, spans) {
  const {begin, end} = trace.spans;
  pen.strokeStyle = colours.focus;
  for (const span of spans) {
    const by = trace.workers[trace.spans.worker[span]];
    if (!by || end[span] < view.from || begin[span] > view.to) continue;
    const from = Math.max(xOf(layout, begin[span]), layout.gutter), to = Math.min(xOf(layout, end[span]), layout.right);
    const chosen = !isBehind(trace, selected.row) && span === selected.span;
    if (to - from < 1 && !chosen) continue;
    pen.lineWidth = chosen ? 3 : 1.5;
    pen.strokeRect(from, layout.top + by.row * layout.lane, Math.max(to - from, 2), Math.max(layout.lane - 4, 3));
  }
}

let scheduled = false;
function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    pictures.forEach(draw);
    const zoomed = view.to - view.from < whole * 0.999;
    byId("shown").textContent = zoomed ? `shown: ${duration(view.from)} to ${duration(view.to)}` : "";
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Zoom and pan

let moving = 0;

function show(from, to, smooth = false) {
  const length = clamp(to - from, FEWEST_MICROS, whole);
  from = clamp(from, 0, whole - length);
  const goal = {from, to: from + length}, start = {...view}, number = ++moving;
  if (!smooth || withoutMotion.matches) {
    Object.assign(view, goal);
    redraw();
    return;
  }
  const began = performance.now();
  const step = now => {
    if (number !== moving) return;
    const part = clamp((now - began) / 220, 0, 1), eased = part * (2 - part);
    view.from = start.from + (goal.from - start.from) * eased;
    view.to = start.to + (goal.to - start.to) * eased;
    redraw();
    if (part < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function zoom(factor, at = (view.from + view.to) / 2, smooth = false) {
  show(at - (at - view.from) * factor, at + (view.to - at) * factor, smooth);
}
function pan(part, smooth = false) {
  const by = (view.to - view.from) * part;
  show(view.from + by, view.to + by, smooth);
}
const ACTIONS = {
  left: () => pan(-0.25, true), right: () => pan(0.25, true), in: () => zoom(0.5, undefined, true),
  out: () => zoom(2, undefined, true), whole: () => { mark = null; show(0, whole, true); },
};

function showMoment(trace, number) {
  const {begin, end} = traces[trace].moments[number];
  endReplay();
  const margin = Math.max((end - begin) * 0.25, whole / 200);
  mark = {trace, moment: number};
  show(begin - margin, end + margin, true);
}

function spanAt(picture, x, y) {
  const {trace, layout} = picture;
  let row = Math.floor((y - layout.top) / layout.lane);
  if (row >= trace.lanes.length) {
    const behind = layout.tops.findIndex(top => y >= top && y < top + layout.lane);
    row = behind < 0 ? -1 : behind + trace.lanes.length;
  }
  if (row < 0 || x < layout.gutter || timeAt(layout, x) > shownUntil()) return null;
  const {spans} = rowOf(trace, row), {begin, end} = spansOf(trace, row);
  const at = timeAt(layout, x), near = timeAt(layout, x + 3) - at;
  const index = firstAfter(trace, row, at - near);
  let best = null;
  for (let each = index; each < Math.min(index + 200, spans.length); each++) {
    const span = spans[each];
    if (begin[span] > at + near) break;
    if (best === null || end[span] - begin[span] > end[best] - begin[best]) best = span;
  }
  return best === null ? null : {trace, row, span: best};
}

function listen(picture) {
  const {canvas, trace} = picture;
  const fingers = new Map();
  canvas.addEventListener("wheel", event => {
    const out = event.deltaY > 0;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / canvas.clientWidth);
    } else if (!(out && view.to - view.from >= whole * 0.999)) {  // the page scrolls if all is shown
      event.preventDefault();
      zoom(1.0015 ** event.deltaY, timeAt(picture.layout, event.offsetX));
    }
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => {
    fingers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) {
      point(picture, event);
      return;
    }
    const {layout} = picture, width = layout.right - layout.gutter;
    const other = [...fingers].find(([id]) => id !== event.pointerId);
    if (other) {  // two fingers zoom
      const apart = Math.max(Math.abs(before - other[1]), 8), now = Math.max(Math.abs(event.offsetX - other[1]), 8);
      zoom(apart / now, timeAt(layout, (event.offsetX + other[1]) / 2));
    } else {
      pan((before - event.offsetX) / width);
    }
    fingers.set(event.pointerId, event.offsetX);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, event => {
      fingers.delete(event.pointerId);
      if (end === "pointerup" && event.pointerType === "touch") point(picture, event);
    });
  }
  canvas.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") select(null); });
  canvas.addEventListener("dblclick", event => zoom(0.25, timeAt(picture.layout, event.offsetX), true));
  canvas.addEventListener("focus", () => {
    if (!selected || selected.trace !== trace) choose(picture, 0, 0);
  });
  canvas.addEventListener("blur", () => select(null));
  canvas.addEventListener("keydown", event => keys(picture, event));
}

function keys(picture, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const {trace} = picture;
  const row = selected?.trace === trace ? selected.row : 0;
  const index = selected?.trace === trace ? rowOf(trace, row).spans.indexOf(selected.span) : -1;
  switch (event.key) {
    case "ArrowUp": choose(picture, row - 1, 0); break;
    case "ArrowDown": choose(picture, row + 1, 0); break;
    case "n": choose(picture, row, 1, index); break;
    case "p": choose(picture, row, -1, index); break;
    case "Escape":
      if (!selected) return;
      select(null);
      break;
    case "Enter":
      if (index >= 0) {  // the pointer may have chosen a span of another picture
        const {begin, end} = spansOf(trace, row), from = begin[selected.span], to = end[selected.span];
        show(from - (to - from), to + (to - from), true);
      }
      break;
    default: return;
  }
  event.preventDefault();
}

// Choose a span by keys: in another row the one nearest to the chosen one, else the next or previous one.
function choose(picture, row, by, index = -1) {
  const {trace} = picture;
  if (!rowCount(trace)) return;
  row = clamp(row, 0, rowCount(trace) - 1);
  const {spans} = rowOf(trace, row), {begin, end} = spansOf(trace, row);
  const middle = selected?.trace === trace ? spansOf(trace, selected.row).begin[selected.span] : view.from;
  const goal = index >= 0 ? index + by : firstAfter(trace, row, Math.max(middle, view.from));
  const span = spans[clamp(goal, 0, spans.length - 1)];
  if (span === undefined || begin[span] > shownUntil()) return;
  const length = view.to - view.from;
  if (begin[span] > view.to || end[span] < view.from) show(begin[span] - length / 4, begin[span] + length * 0.75);
  draw(picture);
  const x = clamp(xOf(picture.layout, begin[span]), picture.layout.gutter, picture.layout.right);
  const box = picture.canvas.getBoundingClientRect();
  select({trace, row, span}, box.left + x, box.top + topOf(picture.layout, trace, row) + picture.layout.lane);
}

document.addEventListener("keydown", event => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/INPUT|SELECT/.test(event.target.tagName)) return;
  if (replayKey(event)) {
    event.preventDefault();
    return;
  }
  if (event.key.startsWith("Arrow") && event.target.closest(".table")) return;  // they scroll a wide table
  const action = {"+": "in", "=": "in", "-": "out", "−": "out", "0": "whole", ArrowLeft: "left", ArrowRight: "right"}[event.key];
  if (!action) return;
  event.preventDefault();
  ACTIONS[action]();
});

// ---------------------------------------------------------------------------------------------------------------
// What is under the pointer

function point(picture, event) {
  const found = spanAt(picture, event.offsetX, event.offsetY);
  if (found) {
    select(found, event.clientX, event.clientY);
    return;
  }
  select(null);
  if (timeAt(picture.layout, event.offsetX) > shownUntil()) return;
  const {queue, gutter, parked} = picture.layout;
  const section = sectionAt(picture, event.offsetY);
  if (section && event.offsetX > gutter) {
    tip(waitingAt(picture.trace, section.kind, timeAt(picture.layout, event.offsetX)), event.clientX, event.clientY);
    return;
  }
  if (event.offsetX > gutter && event.offsetY < parked.top + parked.height) {
    const high = event.offsetY < queue.top + queue.height + 4, at = timeAt(picture.layout, event.offsetX);
    const lines = high && picture.trace.mostBacklog ? countsAt(picture.trace, at, "backlog").slice(0, 2) : [];
    tip([...lines, ...countsAt(picture.trace, at, high ? "queued" : "parked")], event.clientX, event.clientY);
  }
}

function countsAt(trace, micros, state) {
  const {begin, end, connection} = trace.spans;
  const found = [];
  for (let span = 0; span < begin.length && begin[span] <= micros; span++) {
    if (trace.spans.state[span] === state && end[span] > micros) found.push(trace.connections[connection[span]].label);
  }
  const what = {backlog: "in the kernel's backlog, not accepted yet", queued: "in the queue, without a worker",
    parked: "parked: their clients are waited for without a worker"}[state];
  const names = found.slice(0, 12).join(", ") + (found.length > 12 ? " …" : "");
  return [`${found.length} ${what}`, found.length ? `connections ${names}` : "", `at ${duration(micros)}`];
}

function select(found, x = 0, y = 0) {
  selected = found;
  if (found) tip((isBehind(found.trace, found.row) ? wordsBehind : words)(found.trace, found.span), x, y); else byId("tip").hidden = true;
  redraw();
}

function words(trace, span) {
  const {begin, end, goes_on} = trace.spans;
  const owner = trace.connections[trace.spans.connection[span]], by = trace.workers[trace.spans.worker[span]];
  const want = WANTS[trace.spans.want[span]] ?? trace.spans.want[span];
  const kind = trace.kinds[span];
  const does = kind === BUSY ? `computes for connection ${owner.label}` : kind === SENDS ? `sends to connection ${owner.label}`
    : kind === CLIENT ? `stands still: connection ${owner.label} ${CLIENT_DOES[trace.spans.want[span]]}` : `stands still for connection ${owner.label}: waits for ${want}`;
  const lines = [`${by.name} (${by.detail}) ${does}`];
  const request = trace.requests[trace.spans.request[span]];
  if (request) {
    lines.push(request.end > shownUntil() ? request.line : `${request.line}${request.status ? ` → ${request.status} ${request.feature}` : ""}; ` +
      `request and response: ${duration(request.end - request.head)}`);
  }
  lines.push(timesOf(begin[span], end[span], goes_on[span]));
  if (owner.waited) lines.push(`in the backlog before: ${duration(owner.waited)}`);
  if (replay.at === null) lines.push(`in the queue before and between: ${duration(owner.queued)}`);
  return lines;
}

// The times of a span. In a replay, the end of a span that goes on is not known yet.
function timesOf(begin, end, goesOn) {
  if (end > shownUntil()) return `since ${duration(begin)}, for ${duration(shownUntil() - begin)} up to now`;
  return `${duration(end - begin)}, from ${duration(begin)} to ${duration(end)}` + (goesOn ? ", the end of the trace" : "");
}

function tip(lines, x, y) {
  const box = byId("tip");
  box.replaceChildren(make("b", lines[0]), ...lines.slice(1).filter(Boolean).map(line => make("div", line)));
  box.hidden = false;
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${clamp(x + 14, 6, innerWidth - width - 6)}px`;
  box.style.top = `${y + 16 + height > innerHeight ? Math.max(y - height - 12, 4) : y + 16}px`;
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

function table(heading, columns, rows, label) {
  const part = make("div");
  const box = make("div", "", "table");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  const element = make("table");
  const head = element.createTHead().insertRow();
  for (const [name, kind] of columns) {
    const cell = make("th", name, kind);
    cell.scope = "col";
    head.append(cell);
  }
  const body = element.createTBody();
  let shown = 0;
  const more = make("button", "", "more");
  more.type = "button";
  const grow = () => {
    for (const row of rows.slice(shown, shown + ROWS_AT_ONCE)) {
      const line = body.insertRow();
      row().forEach((value, column) => {
        const cell = line.insertCell();
        if (columns[column][1]) cell.className = columns[column][1];
        cell.append(value);
      });
    }
    shown += ROWS_AT_ONCE;
    more.hidden = shown >= rows.length;
    more.textContent = `show ${Math.min(ROWS_AT_ONCE, rows.length - shown)} more of ${rows.length.toLocaleString("en")}`;
  };
  more.addEventListener("click", grow);
  grow();
  box.append(element);
  part.append(make("h3", heading), box, more);
  return part;
}

function goTo(trace, span, text) {
  const button = make("button", text);
  button.type = "button";
  button.title = "show it in the picture";
  button.addEventListener("click", () => {
    const spans = trace.connections[trace.spans.connection[span]].spans;
    const from = trace.spans.begin[spans[0]], to = trace.spans.end[spans.at(-1)];
    endReplay();
    byId(`trace${trace.index}`).scrollIntoView({block: "center"});
    show(from - (to - from) * 0.2, to + (to - from) * 0.2, true);
  });
  return button;
}

// The kernel counts ticks of 10 ms at most (TICK_S of story.py). null: the trace does not say it.
const inBacklog = micros => micros === null ? "unknown" : micros < 1e4 ? "< 10 ms" : duration(micros);

function connectionRow(trace, connection) {
  const each = trace.connections[connection];
  const lines = each.requests.slice(0, 4).map(number => {
    const request = trace.requests[number];
    return `${request.line} → ${request.status || "no response"} in ${duration(request.end - request.head)}`;
  });
  if (each.requests.length > 4) lines.push(`and ${each.requests.length - 4} more`);
  const first = each.first_byte === null ? "–" : each.accepted === null ? duration(each.first_byte) : duration(each.first_byte - each.arrived);
  const on = [...each.on].slice(0, 3).map(worker => trace.workers[worker].name).join(", ") + (each.on.size > 3 ? " …" : "");
  return [each.spans.length ? goTo(trace, each.spans[0], each.label) : each.label, each.address,
    each.accepted === null ? "before" : duration(each.accepted), inBacklog(each.backlog),
    duration(each.queued), on || "none", duration(each.parked),
    first, lines.join("; ") || "none", each.ended === null ? "goes on" : each.why];
}

function workerRow(trace, worker) {
  const each = trace.workers[worker];
  const part = micros => `${duration(micros)} (${(100 * micros / Math.max(trace.duration, 1)).toFixed(0)} %)`;
  const used = each.totals.reduce((sum, one) => sum + one, 0);
  return [each.name, each.detail, String(each.served.size), String(each.requests), ...each.totals.map(part),
    part(Math.max((each.ended ?? trace.duration) - (each.began ?? 0) - used, 0)),
    each.began === null ? "before" : duration(each.began), each.ended === null ? "goes on" : duration(each.ended)];
}

function fillTables() {
  const section = byId("tables");
  section.replaceChildren(section.firstElementChild);
  for (const trace of traces) {
    const name = trace.model || trace.name;
    const workers = trace.workers.map((_, worker) => worker)
      .filter(worker => !filter.worker || filter.worker.includes("/b") || `${trace.index}/${worker}` === filter.worker);
    section.append(table(`${name}: workers`,
      [["worker", ""], ["", ""], ["connections", "n"], ["requests", "n"], ["computes", "n"], ["sends", "n"],
        ["waits for its clients", "n"], ["waits for others", "n"], ["free", "n"],
        ["begins at", "n"], ["ends at", "n"]],
      workers.map(worker => () => workerRow(trace, worker)), `${name}: workers`));
    const connections = trace.connections.map((_, connection) => connection)
      .filter(connection => connectionMatches(trace, connection));
    section.append(table(`${name}: connections`,
      [["connection", ""], ["client", ""], ["accepted at", "n"], ["in the backlog", "n"], ["in the queue", "n"], ["worker", ""], ["parked", "n"],
        ["first byte after", "n"], ["requests", "wide"], ["end", ""]],
      connections.map(connection => () => connectionRow(trace, connection)), `${name}: connections`));
    tablesBehind(section, trace, name);
    if (trace.refusals.length) {
      section.append(table(`${name}: refused connections`, [["at", "n"], ["client, and the limit that was reached", "wide"]],
        trace.refusals.map(each => () => [duration(each.time), each.text]), `${name}: refused connections`));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Start

for (const trace of traces) {
  const group = make("optgroup");
  group.label = trace.model || trace.name;
  trace.workers.forEach((each, worker) => {
    const option = make("option", `${each.name}, ${each.detail}`);
    option.value = `${trace.index}/${worker}`;
    group.append(option);
  });
  optionsBehind(group, trace);
  byId("worker").append(group);
}
byId("filters").open = innerWidth >= 640;
for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", () => ACTIONS[button.dataset.do]());
}
for (const link of document.querySelectorAll("[data-moment]")) {
  link.addEventListener("click", () => showMoment(Number(link.dataset.trace), Number(link.dataset.moment)));
}
for (const name of ["connection", "worker", "longer"]) {
  byId(name).addEventListener("input", () => {
    const value = byId(name).value.trim();
    filter[name] = name === "longer" ? Math.max(Number(value) || 0, 0) : value;
    fillTables();
    redraw();
  });
}
listenToReplay();
whenColoursChange(() => { legend(); redraw(); });
addEventListener("resize", redraw);
readColours();
legend();
fillTables();
redraw();
