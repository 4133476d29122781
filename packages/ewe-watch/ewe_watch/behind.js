// What stands behind the server: X-Switch's engines and the connections to databases, in rows below the workers.
//
// Each row shows when its engine or connection lives, and the scripts or statements that it runs. A line leads from
// the worker that asks to the row that runs the request; its length along the time is the wait in the queue.
// Their kinds are "engine" and "database" of ewe_explore/lanes.py. watch.js comes after this file.

function prepareBehind(trace) {
  const {lanes, requests, spans, queues} = trace.behind;
  trace.rowsBehind = [];
  lanes.forEach((lane, number) => {
    const row = trace.rowsBehind[lane.row] ??= {kind: lane.kind, lanes: [], spans: []};
    row.lanes.push(number);
    Object.assign(lane, {busy: 0, requests: []});
  });
  requests.forEach((each, number) => {
    Object.assign(each, {number, queued: 0, ran: 0, spans: []});
    if (each.lane >= 0) lanes[each.lane].requests.push(number);
    if (each.request >= 0) (trace.requests[each.request].behind ??= []).push(number);
  });
  for (let span = 0; span < spans.begin.length; span++) {
    const request = requests[spans.request[span]], length = spans.end[span] - spans.begin[span];
    request.spans.push(span);
    if (spans.state[span] === "queued") {
      request.queued += length;
    } else {
      request.ran += length;
      lanes[spans.lane[span]].busy += length;
      trace.rowsBehind[lanes[spans.lane[span]].row].spans.push(span);
    }
  }
  trace.sections = Object.keys(BEHIND).filter(kind => requests.some(each => each.kind === kind) || lanes.some(each => each.kind === kind))
    .map(kind => ({kind, rows: trace.rowsBehind.flatMap((row, number) => row.kind === kind ? [number] : []),
      most: queues[kind].queued.reduce((most, each) => Math.max(most, each), 0)}));
}

const isBehind = (trace, row) => row >= trace.lanes.length;
const rowOf = (trace, row) => isBehind(trace, row) ? trace.rowsBehind[row - trace.lanes.length] : trace.lanes[row];
const spansOf = (trace, row) => isBehind(trace, row) ? trace.behind.spans : trace.spans;
const rowCount = trace => trace.lanes.length + trace.rowsBehind.length;
const topOf = (layout, trace, row) => isBehind(trace, row) ? layout.tops[row - trace.lanes.length] : layout.top + row * layout.lane;

function layoutBehind(trace, layout) {
  layout.tops = [];
  layout.sections = [];
  let y = layout.bottom;
  for (const section of trace.sections) {
    const title = y + layout.font * (layout.bottom > layout.queue.top ? 1.2 : 0.8);
    const queue = {top: title + layout.font * 1.2, height: section.most ? Math.round(layout.font * 2.4) : 0};
    y = Math.round(queue.top + queue.height + layout.font * 0.4);
    for (const row of section.rows) {
      layout.tops[row] = y;
      y += layout.lane;
    }
    layout.sections.push({...section, title, queue});
  }
  layout.end = y;
}

function matchesBehind(trace, request) {
  const each = trace.behind.requests[request];
  const owner = trace.connections[each.connection];
  if (filter.connection && owner?.label !== filter.connection && owner?.name !== filter.connection) return false;
  if (filter.worker) {
    const asking = trace.requests[each.request];
    if (filter.worker !== `${trace.index}/b${each.lane}` && filter.worker !== `${trace.index}/${asking?.worker ?? "-"}`) return false;
  }
  return !filter.longer || (each.ended ?? trace.duration) - each.began >= filter.longer * 1e3;
}

// Whether a request of the server has asked this lane, for the filter
function asksLane(trace, request, lane) {
  return (trace.requests[request]?.behind ?? []).some(each => trace.behind.requests[each].lane === lane);
}

function drawTitles(pen, layout) {
  pen.font = `600 ${layout.font}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.fillStyle = colours.ink;
  for (const {kind, title} of layout.sections) pen.fillText(BEHIND[kind].title, 6, title, layout.width - 12);
  pen.font = `${layout.font}px system-ui, sans-serif`;
}

function drawBehind(pen, layout, trace) {
  const texts = [];
  for (const section of layout.sections) {
    const {kind, queue, most, rows} = section, names = BEHIND[kind];
    if (queue.height) {
      const counts = trace.behind.queues[kind];
      drawCounts(pen, stripOf(layout, trace, queue), counts, Math.max(most, 2), paintOf(pen, "queue"), colours.queue, []);
      pen.textAlign = "left";
      pen.fillStyle = colours.dim;
      pen.fillText(layout.width < 600 ? "queue" : names.queue, 6, queue.top + queue.height * 0.55, layout.gutter - layout.font * 2);
      pen.textAlign = "right";
      pen.fillText(String(Math.max(most, 2)), layout.gutter - 5, queue.top + layout.font * 0.4);
    }
    for (const row of rows) drawLives(pen, layout, trace, row);
  }
  drawAsking(pen, layout, trace, false);
  for (const {rows} of layout.sections) {
    for (const row of rows) texts.push(...drawWork(pen, layout, trace, row));
  }
  drawAsking(pen, layout, trace, true);
  for (const text of texts) writeBehind(pen, layout, trace, text);
}

// Draw the name of a row, and when its engines or connections live.
function drawLives(pen, layout, trace, row) {
  const {kind, lanes} = trace.rowsBehind[row], top = layout.tops[row];
  const height = Math.max(layout.lane - (layout.lane > 12 ? 4 : 1), 2);
  const first = trace.behind.lanes[lanes[0]];
  const several = lanes.length > 1 ? `${lanes.length} ${namesOf(kind)}` : "";
  const two = layout.lane > layout.font * 2.2 && layout.width >= 600;
  pen.textAlign = "left";
  pen.fillStyle = colours.ink;
  if (layout.lane >= layout.font) pen.fillText(several || first.name, 6, top + height * (two ? 0.28 : 0.5), layout.gutter - 8);
  pen.fillStyle = colours.dim;
  if (two) pen.fillText(several ? "one after the other" : first.detail, 6, top + height * 0.76, layout.gutter - 8);
  pen.fillStyle = colours.line;
  pen.fillRect(layout.gutter, top + height / 2, layout.right - layout.gutter, 1);
  for (const number of lanes) {
    const lane = trace.behind.lanes[number];
    drawLife(pen, layout, trace, lane, top, height);
  }
}

// Draw the life of a worker, an engine or a connection, with a dark edge where it begins and ends
function drawLife(pen, layout, trace, lane, top, height) {
  const from = clamp(xOf(layout, lane.began), layout.gutter, layout.right);
  const to = clamp(xOf(layout, lane.ended ?? trace.duration), layout.gutter, layout.right);
  pen.fillStyle = paintOf(pen, "free");
  pen.fillRect(from, top, Math.max(to - from, 1), height);
  pen.strokeStyle = colours.line;  // without colours, the ground alone is not seen
  pen.lineWidth = 1;
  pen.strokeRect(from + 0.5, top + 0.5, Math.max(to - from - 1, 0), height - 1);
  pen.fillStyle = colours.dim;
  for (const [at, x] of [[lane.began, from], [lane.ended, to]]) {
    if (at !== null && at >= view.from && at <= view.to) pen.fillRect(x - 1, top, 2, height);
  }
}

// Draw the work of a row; return the texts to write on it.
function drawWork(pen, layout, trace, row) {
  const {kind, spans} = trace.rowsBehind[row], top = layout.tops[row];
  const height = Math.max(layout.lane - (layout.lane > 12 ? 4 : 1), 2);
  const {begin, end, state, request} = trace.behind.spans;
  const faint = filtering(), texts = [];
  let column = -1;
  for (let index = firstAfter(trace, row + trace.lanes.length, view.from); index < spans.length; index++) {
    const span = spans[index];
    if (begin[span] >= Math.min(view.to, shownUntil())) break;
    const from = Math.max(xOf(layout, begin[span]), layout.gutter), to = Math.min(xOf(layout, end[span]), layout.edge);
    const narrow = to - from < 1.5;
    if (narrow && Math.floor(from) === column) continue;
    if (narrow) column = Math.floor(from);
    const shown = !faint || matchesBehind(trace, request[span]);
    pen.globalAlpha = shown ? state[span] === "left" ? 0.45 : 1 : 0.13;
    pen.fillStyle = paintOf(pen, kind, to - from);
    pen.fillRect(from, top, Math.max(to - from - (to - from > 6 ? 1 : 0), 1.5), height);
    if (shown && failedNow(trace.behind.requests[request[span]])) drawFailure(pen, from, Math.max(to - from, 3), top + height);
    pen.globalAlpha = 1;
    if (shown && to - from > layout.font * 2 && height > layout.font) texts.push({span, from, to, top, height, kind});
  }
  return texts;
}

// In a replay, a request has failed once it has ended
const failedNow = request => FAILED(request.outcome) && (request.ended ?? 0) <= shownUntil();
const namesOf = kind => kind === "engine" ? "engines" : "connections";

function shortText(request) {
  return request.kind === "engine" ? request.text.split("/").at(-1) : request.text;
}

function writeBehind(pen, layout, trace, {span, from, to, top, height, kind}) {
  const request = trace.behind.requests[trace.behind.spans.request[span]], room = to - from - 8;
  const left = trace.behind.spans.state[span] === "left" ? "its client has left: " : "";
  const asked = trace.connections[request.connection];
  const long = shortText(request) || request.what;
  const whole = [asked ? `${left}${long} (connection ${asked.label})` : "", left + long].find(each => each && pen.measureText(each).width <= room);
  let text = whole ?? "";
  for (let length = Math.min(long.length, Math.floor(room / (layout.font * 0.42))); !text && length > 3; length--) {
    if (pen.measureText(`${long.slice(0, length)}…`).width <= room) text = `${long.slice(0, length)}…`;
  }
  if (!text) return;
  writeOn(pen, left ? "" : kind, text, from + 4, top + height / 2 - (failedNow(request) ? 3 : 0), layout.font);
}

// Lines from the worker that asks, at the moment at which it asks, to the begin of the work
// strong: only those of the chosen span
function drawAsking(pen, layout, trace, strong) {
  const chosen = chosenBehind(trace);
  let drawn = 0;
  for (const each of trace.behind.requests) {
    const asking = trace.requests[each.request];
    if (each.took === null || each.lane < 0 || !asking || asking.worker < 0) continue;
    if (strong !== chosen.has(each.number)) continue;
    if (each.took < view.from || each.began > view.to || each.took > shownUntil() || (filtering() && !matchesBehind(trace, each.number))) continue;
    if (!strong && ++drawn > MOST_WAYS) continue;
    const from = xOf(layout, each.began), to = xOf(layout, each.took);
    const high = layout.top + (trace.workers[asking.worker].row + 1) * layout.lane - (layout.lane > 12 ? 4 : 1);
    const low = layout.tops[trace.behind.lanes[each.lane].row];
    pen.save();
    pen.beginPath();
    pen.rect(layout.gutter, 0, layout.right - layout.gutter, layout.end);
    pen.clip();
    pen.globalAlpha = strong ? 1 : 0.5;
    drawAsks(pen, from, high, to, low, strong ? colours.focus : colours[each.kind], strong ? 2.5 : 1);
    pen.restore();
  }
}

// The requests of engines and databases that belong to the chosen span
function chosenBehind(trace) {
  if (!selected || selected.trace !== trace) return new Set();
  if (isBehind(trace, selected.row)) return new Set([trace.behind.spans.request[selected.span]]);
  return new Set(trace.requests[trace.spans.request[selected.span]]?.behind ?? []);
}

function drawSelectedBehind(pen, layout, trace) {
  const {begin, end, lane} = trace.behind.spans;
  pen.strokeStyle = colours.focus;
  for (const request of chosenBehind(trace)) {
    for (const span of trace.behind.requests[request].spans) {
      if (lane[span] < 0 || end[span] < view.from || begin[span] > view.to) continue;
      const from = Math.max(xOf(layout, begin[span]), layout.gutter), to = Math.min(xOf(layout, end[span]), layout.right);
      pen.lineWidth = isBehind(trace, selected.row) && span === selected.span ? 3 : 1.5;
      pen.strokeRect(from, layout.tops[trace.behind.lanes[lane[span]].row], Math.max(to - from, 2), Math.max(layout.lane - 4, 3));
    }
  }
}

function wordsBehind(trace, span) {
  const {begin, end, state, request, lane, goes_on} = trace.behind.spans;
  const each = trace.behind.requests[request[span]], by = trace.behind.lanes[lane[span]], names = BEHIND[each.kind];
  const asked = trace.connections[each.connection], line = trace.requests[each.request]?.line;
  const failed = failedNow(each) ? `ended: ${each.outcome}` : each.outcome === "left" && (each.ended ?? 0) <= shownUntil() ? "its client had left" : "";
  return [`${by.name} (${by.detail})${state[span] === "left" ? ": its client has left, and it still runs" : ""}`, each.text,
    asked ? `for connection ${asked.label}${line ? `: ${line}` : ""}` : "",
    timesOf(begin[span], end[span], goes_on[span]),
    `in the queue for ${names.lives === "engine" ? "an engine" : "a connection"}: ${duration(each.queued)}`, failed,
    by.ended !== null && by.ended <= shownUntil() ? `the ${names.lives} ended at ${duration(by.ended)}: ${by.why}` : ""];
}

function sectionAt(picture, y) {
  return picture.layout.sections.find(({queue}) => queue.height && y >= queue.top && y <= queue.top + queue.height);
}

function waitingAt(trace, kind, micros) {
  const {begin, end, state, request} = trace.behind.spans, found = [];
  for (let span = 0; span < begin.length && begin[span] <= micros; span++) {
    const each = trace.behind.requests[request[span]];
    if (state[span] === "queued" && each.kind === kind && end[span] > micros) found.push(each);
  }
  const users = [...new Set(found.map(each => each.user))].slice(0, 8).join(", ");
  return [`${found.length} ${BEHIND[kind].asks} ${BEHIND[kind].queue}`, users ? `of ${users}` : "", `at ${duration(micros)}`];
}

function goToTime(trace, from, to, text) {
  const button = make("button", text);
  button.type = "button";
  button.title = "show it in the picture";
  button.addEventListener("click", () => {
    endReplay();
    byId(`trace${trace.index}`).scrollIntoView({block: "center"});
    show(from - (to - from) * 0.2 - 50, to + (to - from) * 0.2 + 50, true);
  });
  return button;
}

function tablesBehind(section, trace, name) {
  for (const {kind} of trace.sections) {
    const names = BEHIND[kind];
    const part = micros => `${duration(micros)} (${(100 * micros / Math.max(trace.duration, 1)).toFixed(0)} %)`;
    const lanes = trace.behind.lanes.map((each, number) => [each, number]).filter(([each, number]) => each.kind === kind
      && (!filter.worker || !filter.worker.startsWith(`${trace.index}/b`) || filter.worker === `${trace.index}/b${number}`));
    section.append(table(`${name}: ${names.table}`,
      [[names.lives, ""], ["", ""], ["begins at", "n"], ["ends at", "n"], ["why it ends", "wide"], [names.asks, "n"], ["runs", "n"]],
      lanes.map(([each]) => () => [each.name, each.detail, duration(each.began), each.ended === null ? "goes on" : duration(each.ended),
        each.why || "–", String(each.served), part(each.busy)]), `${name}: ${names.table}`));
    const requests = trace.behind.requests.filter(each => each.kind === kind && (!filtering() || matchesBehind(trace, each.number)));
    section.append(table(`${name}: ${names.asks}`,
      [["asked at", ""], ["connection", ""], ["account", ""], [names.of, ""], [names.text, "wide"], ["in the queue", "n"], ["runs", "n"], ["end", ""]],
      requests.map(each => () => [goToTime(trace, each.began, each.ended ?? trace.duration, duration(each.began)),
        trace.connections[each.connection]?.label ?? "–", each.user, each.what, each.text || "–", duration(each.queued), duration(each.ran),
        each.outcome || "goes on"]), `${name}: ${names.asks}`));
  }
}

function legendBehind() {
  const kinds = [...new Set(traces.flatMap(trace => trace.sections.map(section => section.kind)))];
  const items = kinds.map(kind => [kind, BEHIND[kind].runs]);
  if (traces.some(trace => trace.behind.requests.some(each => each.took !== null && FAILED(each.outcome)))) {
    items.push(failureSample(kinds[0]));
  }
  if (traces.some(trace => trace.behind.requests.some(each => each.request >= 0))) {
    items.push(asksSample(kinds[0]));
  }
  return items;
}

function optionsBehind(group, trace) {
  trace.behind.lanes.forEach((each, lane) => {
    const option = make("option", `${each.name}, ${each.detail}`);
    option.value = `${trace.index}/b${lane}`;
    group.append(option);
  });
}
