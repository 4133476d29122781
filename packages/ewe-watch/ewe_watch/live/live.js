// The live page. It reads the changes (Server-Sent Events), keeps the last minute of them, and draws the lanes.
// All text of the server is shown by textContent: a trace holds the words of strangers.

const HISTORY_MS = 62000;   // of spans and samples
const MOST_SPANS = 6000;    // of a model
const MOST_BUFFERED = 2400; // changes that a paused picture keeps: two minutes
const AREA = 76;            // height of the picture of queue and parked connections
const LEAST_SCALE = 4;      // of an area: one connection is no full area
const STRIP = 44;           // height of the queue before the engines, or before the connections to databases
const FREE = 26;            // height of the line of threads that had no connection yet
const NARROW = 4;           // the least width of a span, if the row has room
const GREY_MS = 3000;       // how long the row of a worker that has ended keeps its height
const FEW_GREY_MS = 10000;  // the same with FEW rows, which have room
const FEW = 10;
const FOLDED = 4;           // its height afterwards, until its work has left the picture
const REAPED = "wait() called";  // the note of a process whose status its parent has read (live_story.py)
const NAMES = 2;            // of clients that wait, in the head of their area
const MOST_ASKS = 200;      // lines from workers that ask, in one picture
const CLIENT_WANTS = {request: "its request", bytes: "its bytes", close: "its close", room: "room to send"};
const OTHER_WANTS = {program: "a program", server: "a server", call: "a call that blocks"};
const FIGURES = [
  ["backlog", "backlog", "queue"], ["queued", "in the queue", "queue"], ["held", "workers occupied", "occupied"],
  ["parked", "parked", "parked"], ["answered", "responses", "busy"], ["refused", "refused", "client"],
  ["zombies", "zombies", "zombie"], ["left", "left by clients", "client"],
];
const LEGEND = [
  ["busy", "works"], ["blocked", "blocked: its page waits"], ["sends", "sends"], ["client", "held: its client is silent or slow"],
  ["other", "held: by a program or a call"], ["backlog", "in the kernel's backlog"], ["queue", "in the server's queue"],
  ["parked", "parked"],
];
const ZOMBIE = ["zombie", "zombie: it has ended, and its parent has not called wait()"];
const TITLES = {answered: "the median", waiting: "the longest wait",
  errors: "the status says that the request failed: 400 to 599, but 503 is a refusal", lost: "the connection ended without a response",
  "let go": "ended by the button"};
let models = [], paused = false, buffered = [], zombies = false, failures = false, behind = new Set(), seen = new Set(), scenes = [], lastDrawn = 0;
let lives = false;    // whether a picture has shown the end of a worker
let outside = false;  // whether a server of this page is seen from outside

// Places in a row of an engine or of a connection, and in a span of one (live/behind_rows.py)
const ASKED = 7, KIND = 8, OUTCOME = 8;

const kindOf = (state, want) =>
  state === "waits" ? (want in CLIENT_WANTS ? "client" : "other") : state === "busy" && want === "page" ? "blocked" : state;

// ---------------------------------------------------------------------------------------------------------------
// Buttons

async function press(action) {
  const status = byId("status");
  status.className = "";
  try {
    const answer = await fetch("do", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(action)});
    if (!answer.ok) {
      const reason = answer.status === 409 ? await answer.text() : `The button failed: ${answer.status}`;
      status.className = "wrong";
      status.textContent = reason;
    } else {
      status.textContent = "";
    }
    return answer.ok;
  } catch {
    status.className = "wrong";
    status.textContent = "ewe-watch does not answer: has it ended?";
    return false;
  }
}

function addSenders(kinds) {
  const buttons = [];
  for (const kind of kinds) {
    const button = make("button", kind.title);
    button.type = "button";
    button.dataset.send = kind.name;
    button.addEventListener("click", () => press({do: "send", kind: kind.name}));
    buttons.push(button);
    if (kind.name === "visitor") {
      const many = make("button", "fifty visitors");
      many.type = "button";
      many.dataset.send = "fifty";
      many.addEventListener("click", () => press({do: "send", kind: "visitor", count: 50}));
      buttons.push(many);
    }
  }
  byId("senders").replaceChildren(...buttons);
}

byId("let-go").addEventListener("click", () => press({do: "let-go"}));
byId("pace").addEventListener("change", () => press({do: "pace", factor: Number(byId("pace").value)}));
byId("next").addEventListener("click", () => press({do: "next"}));
byId("play").addEventListener("click", () => press({do: "play"}));
byId("skip").addEventListener("click", () => press({do: "skip"}));
byId("leave").addEventListener("click", () => press({do: "leave"}));
byId("start").addEventListener("click", async () => {
  const button = byId("start");
  button.disabled = true;
  if (await press({do: "scene", name: byId("scene-name").value})) {
    byId("scenes").open = false;
    byId("next").focus();
  }
  button.disabled = false;
});
byId("scene-name").addEventListener("change", tellScene);
byId("pause").addEventListener("click", () => pause(!paused));
byId("step").addEventListener("click", step);
addEventListener("keydown", event => {
  if (event.key === "Escape") {
    const open = event.target.closest("details[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
    return;
  }
  if (event.key === "s" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.matches("input, select")
    && !byId("skip").disabled) press({do: "skip"});  // also from the button "next", which has the focus
  if (event.target.matches("input, select, button, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " ") { event.preventDefault(); pause(!paused); }
  if (event.key === "." && paused) step();
});

function pause(wanted) {
  paused = wanted;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "go on" : "pause the picture";
  byId("step").disabled = !paused;
  if (!paused) {
    for (const change of buffered) take(change);
    buffered = [];
  }
  byId("status").textContent = paused ? "The picture is paused; the servers are not. Space: go on; . : one step." : "";
}

function step() {
  while (buffered.length) {
    const change = buffered.shift();
    const moves = change.models.some((each, index) => models[index] && each.events !== models[index].last?.events);
    take(change);
    if (moves) break;
  }
  draw();
}

// ---------------------------------------------------------------------------------------------------------------
// Models

function build(facts) {
  behind = new Set();
  failures = zombies = lives = false;
  seen = new Set(["busy"]);
  legend();
  outside = facts.some(each => each.unseen.length);
  const titles = titlesOf(facts);
  models = facts.map((each, index) => buildModel(each, index, titles[index]));
  byId("models").dataset.count = models.length;
  byId("models").replaceChildren(...models.map(model => model.card));
}

// The titles of the models: the name, and of several that have one name the options that differ.
function titlesOf(facts) {
  return facts.map(each => {
    const others = facts.filter(other => other !== each && other.model === each.model);
    const keys = new Set([each, ...others].flatMap(one => Object.keys(one.options)));
    const differing = [...keys].filter(key => others.some(other => other.options[key] !== each.options[key]));
    if (!differing.length) return each.label;
    const value = key => each.options[key] ?? each.parameters.find(parameter => parameter.key === key)?.default ?? "default";
    const named = key => key === "persistent" ? `keep-alive: ${value(key) === "true" ? "yes" : "no"}` : `${key}: ${value(key)}`;
    return [each.name, ...differing.map(named)].join(", ");
  });
}

function buildModel(facts, index, title) {
  const card = make("article", "", "model");
  card.dataset.model = index;
  const figures = make("dl", "", "figures"), values = {};
  for (const [name, title, tone] of FIGURES) {
    const box = make("div");
    box.dataset.tone = tone;
    box.hidden = name === "zombies" || (name === "left" && !outside);
    if (name === "left") box.title = "the client has closed the connection, and the server has not (CLOSE_WAIT)";
    values[name] = make("dd", "0");
    values[name].dataset.figure = name;
    box.append(make("dt", name === "held" && facts.worker_limit ? `${title} of ${facts.worker_limit.toLocaleString("en")}` : title), values[name]);
    figures.append(box);
  }
  const picture = make("div", "", "picture"), rows = make("ol"), canvas = make("canvas");
  rows.setAttribute("aria-label", `${facts.label}: workers, and what runs behind them`);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${facts.label}: the last seconds of each worker, and the queue above`);
  picture.append(rows, canvas);
  const table = make("table"), body = table.createTBody();
  const line = table.createTHead().insertRow();
  for (const [title, kind] of [["clients", ""], ["sent", "n"], ["answered, in", "n"], ["waiting, for", "n"],
    ["errors", "n"], ["refused", "n"], ["lost", "n"], ["let go", "n"]]) {
    const cell = make("th", title, kind);
    cell.scope = "col";
    cell.title = TITLES[title.split(",")[0]] ?? "";
    line.append(cell);
  }
  const box = make("div", "", "table");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `${facts.label}: what the clients saw`);
  box.append(table);
  const recent = make("ol", "", "recent");
  recent.setAttribute("aria-label", `${facts.label}: the clients that were served last, in this order`);
  const about = make("p", `${facts.description}; ${facts.port ? `http://127.0.0.1:${facts.port}/` : ""}`, "about");
  const cost = make("p", "", "cost"), recording = make("a", "the trace of this run");
  recording.href = `trace/${index}`;
  recording.download = "";
  card.append(make("h2", title), about);
  if (facts.hint) card.append(make("p", facts.hint, "hint"));
  card.append(figures, picture, cost, box, recent);
  if (facts.parameters.length) card.append(parameterForm(facts, index));
  card.append(recording);
  return {facts, card, values, rows, canvas, body, recent, cost, about, spans: [], lives: [], samples: [], now: 0, rowsNow: [], last: null};
}

function parameterForm(facts, index) {
  const details = make("details"), fields = make("div", "", "parameters"), inputs = [];
  for (const each of facts.parameters) {
    const label = make("label", each.key), input = make("input");
    input.value = each.value;
    input.placeholder = each.default;
    input.title = each.help;
    input.dataset.key = each.key;
    input.autocomplete = "off";
    inputs.push(input);
    label.append(input);
    fields.append(label);
  }
  const again = make("button", "start again with these");
  again.type = "button";
  again.dataset.change = index;
  again.addEventListener("click", () => press({do: "change", model: index,
    values: Object.fromEntries(inputs.map(input => [input.dataset.key, input.value.trim()]))}));
  details.append(make("summary", "parameters"), fields, again);
  return details;
}

function take(change) {
  if (change.all) {
    buffered = [];  // of the models before, whose places others have now
    addSenders(change.kinds);
    showPace(change.factor);
    offer(change.scenes);
    showScene(change.scene);
    build(change.all);
    return;
  }
  if (change.scene) { showScene(change.scene); return; }
  if (change.factor) { showPace(change.factor); return; }
  change.models.forEach((each, index) => models[index] && takeModel(models[index], each));
}

// Another page may have chosen the factor: the one on the projector shows what the laptop's has done.
function showPace(factor) {
  byId("pace").value = String(factor);
}

function takeModel(model, change) {
  model.now = change.now;
  model.at = performance.now();
  model.last = change;
  model.rowsNow = [...change.rows, ...change.behind.rows];
  // The first row of each kind: the spans count the rows of their own kind
  model.first = {engine: change.rows.length, database: change.rows.length + change.behind.rows.filter(row => row[KIND] === "engine").length};
  for (const span of change.spans) model.spans.push(span);
  for (const span of change.behind.spans) model.spans.push(span);
  model.livesNow = [...change.lives.now, ...change.behind.lives.now];
  for (const life of [...change.lives.past, ...change.behind.lives.past]) model.lives.push(life);
  if (change.lives.past.length && !lives) {
    lives = true;
    legend();
  }
  layOut(model);
  noteKinds(model, change);
  const kinds = model.lines.filter(line => line.queue && !behind.has(line.queue)).map(line => line.queue);
  const failed = change.behind.spans.some(span => FAILED(span[OUTCOME]));
  if (kinds.length || (failed && !failures)) {
    for (const kind of kinds) behind.add(kind);
    failures ||= failed;
    legend();
  }
  model.samples.push([change.now, change.backlog ?? 0, change.queued, change.parked, change.behind.queued]);
  const limit = change.now - HISTORY_MS;
  let old = Math.max(model.spans.length - MOST_SPANS, 0);
  while (old < model.spans.length && model.spans[old][2] < limit) old++;
  if (old > 200 || model.spans.length > MOST_SPANS) model.spans.splice(0, old);
  while (model.samples.length && model.samples[0][0] < limit) model.samples.shift();
  while (model.lives.length > MOST_SPANS || (model.lives.length && model.lives[0][2] < limit)) model.lives.shift();
  const numbers = {...change, zombies: change.cost.zombies ?? 0, backlog: change.backlog ?? "?", left: change.left ?? "?"};
  for (const name of model.facts.unseen) numbers[name] = "?";
  for (const [name] of FIGURES) {
    model.values[name].textContent = numbers[name].toLocaleString("en");
    model.values[name].parentElement.classList.toggle("some", numbers[name] > 0);
  }
  if (numbers.zombies && !zombies) {
    zombies = true;
    legend();
    for (const each of models) each.values.zombies.parentElement.hidden = false;  // in all, to compare them
  }
  showRows(model);
  showCost(model, change);
  showClients(model, change.clients);
  if (!change.alive && !model.gone) {
    model.gone = true;
    model.about.className = "ended";
    model.about.textContent = "This server has ended. Its parameters start it again.";
  }
}

// Note which kinds of spans the pictures have shown: the legend explains only those.
function noteKinds(model, change) {
  const before = seen.size;
  for (const span of [...change.spans, ...change.rows.map(row => [, , , row[2], row[4]])]) {
    if (span[3]) seen.add(kindOf(span[3], span[4]));
  }
  if (change.backlog) seen.add("backlog");
  if (change.queued) seen.add("queue");
  if (change.parked) seen.add("parked");
  if (seen.size !== before) legend();
}

const heightOf = count => count <= 10 ? 30 : count <= 20 ? 22 : 15;

// The lines of the picture from the top: the area of queue and parked connections, the workers, and for each kind of what
// stands behind the server its queue and its rows.
function layOut(model) {
  const {rowsNow} = model, ended = rowsNow.map((row, number) => endedFor(model, number));
  const shown = Number(byId("window").value) * 1000;
  const grey = ended.filter(time => time < FEW_GREY_MS).length <= FEW ? FEW_GREY_MS : GREY_MS;
  const height = heightOf(ended.filter(time => time < grey).length);
  model.lines = [{height: AREA}];
  let folded = 0, name = "", newest = -1;
  const tellFolded = () => {
    if (folded) model.lines.push({height: FREE, folded, name, last: lastClient(model, newest)});
    [folded, newest] = [0, -1];
  };
  rowsNow.forEach((row, number) => {
    if (row[KIND] && number === model.first[row[KIND]]) {
      tellFolded();
      model.lines.push({height: STRIP, queue: row[KIND]});
    }
    const past = ended[number] >= grey;
    if (past && (newest < 0 || ended[number] < ended[newest])) newest = number;
    if (past) [folded, name] = [folded + 1, row[KIND] ? BEHIND[row[KIND]].lives : row[0].replace(/ \d+$/, "")];
    model.lines.push({height: !past ? height : ended[number] < shown ? FOLDED : 0, row: number, past});
  });
  tellFolded();
  const free = freeThreads(model);
  if (free > 0) model.lines.push({height: FREE, free});
  model.tops = [];
  model.heights = [];
  const before = model.whole;
  model.whole = 0;
  for (const line of model.lines) {
    line.top = model.whole;
    model.whole += line.height;
    if (line.row !== undefined) [model.tops[line.row], model.heights[line.row]] = [line.top, line.height];
  }
  if (model.whole !== before) lastDrawn = 0;  // without motion, the canvas would fit its rows a second later
}

// The client that the worker of a row has served last; "" if its spans are forgotten.
const lastClient = ({spans}, number) => spans.findLast(span => span[0] === number && ["busy", "sends"].includes(span[3]))?.[5] ?? "";

// For how many milliseconds the worker of a row has ended, and its row has no other; -1: it lives, or nothing says so.
function endedFor({livesNow, rowsNow, now}, number) {
  const end = livesNow[number]?.[1] ?? null;
  return end === null || rowsNow[number][2] ? -1 : now - end;  // a zombie has a state
}

// How many threads of a pool had no connection yet, and so have no row. One is the thread that accepts.
function freeThreads({facts, last}) {
  const {threads, processes} = last.cost;
  return facts.model === "pool" && processes === 1 ? threads - 1 - last.rows.filter(row => row[0].startsWith("thread")).length - last.rowless : 0;
}

function showRows(model) {
  const {rows, lines} = model;
  while (rows.children.length < lines.length) {
    const item = make("li");
    item.append(make("b"), make("span"), make("i"));
    rows.append(item);
  }
  while (rows.children.length > lines.length) rows.lastChild.remove();
  lines.forEach((line, number) => {
    const item = rows.children[number];
    item.style.height = `${line.height}px`;
    if (line.row !== undefined) showRow(model, item, line);
    else if (line.free) showFree(item, `${line.free} more ${line.free === 1 ? "thread" : "threads"}: free`);
    else if (line.folded) showFree(item, `${line.folded} ended ${line.name}${line.folded === 1 ? "" : line.name.endsWith("s") ? "es" : "s"}: folded${line.last ? `; last ${line.last}` : ""}`);
    else if (line.queue) showQueueBehind(item, BEHIND[line.queue], model.last.behind.queued[line.queue]);
    else showQueue(model, item);
  });
}

function showQueue(model, item) {
  const {backlog, queued, parked, backlog_names: inBacklog, queued_names: inQueue} = model.last, texts = [], titles = [];
  const tell = (count, place, names) => {
    if (!count) return;
    texts.push(`${count} in the ${place}${namesOf(count, names, NAMES)}`);
    titles.push(`in the ${place}${namesOf(count, names, names.length)}`);
  };
  tell(backlog, "backlog", inBacklog);
  tell(queued, "queue", inQueue);
  showWaiting(item, texts.join("; ") || "the queue is empty", parked ? `${parked} parked` : "none parked");
  item.title = titles.join("; ");
}

// The first names of those who wait: `: silent 6, visitor 1 and 4 more`.
function namesOf(count, names, most) {
  const first = names.slice(0, count <= most + 1 ? most + 1 : most);
  const others = count - first.length;
  return first.length ? `: ${first.join(", ")}${others ? ` and ${others} more` : ""}` : "";
}

function showQueueBehind(item, {system, text, asks}, queued) {
  showWaiting(item, system, `${queued || "no"} ${queued === 1 ? `${text} waits` : `${asks} wait`}`);
}

function showWaiting(item, first, second) {
  item.className = "waiting";
  item.style.fontSize = item.title = item.dataset.state = item.dataset.behind = item.dataset.holds = "";
  item.children[0].textContent = first;
  item.children[1].textContent = second;
  item.children[2].textContent = "";
}

function showFree(item, text) {
  showWaiting(item, "", text);
  item.className = "more-free";
}

function showRow(model, item, {row: number, height, past}) {
  const [name, detail, state, since, want, label, line, , behind = ""] = model.rowsNow[number];
  const kind = kindOf(state, want);
  item.className = past ? "folded" : endedFor(model, number) >= 0 ? "past" : "";
  item.style.fontSize = height < 20 ? "11px" : "";
  item.classList.toggle("two-lines", height >= 30);
  item.dataset.state = state;
  item.dataset.behind = behind;
  item.dataset.holds = ["client", "other", "zombie", "blocked"].includes(kind) ? kind : "";
  item.title = `${name} (${detail}) ${behind && state ? "runs" : state === "waits" ? `waits for ${CLIENT_WANTS[want] ?? OTHER_WANTS[want] ?? want}` : kind === "blocked" ? "is blocked by its page" : state} ${line}`;
  item.children[0].textContent = name;
  item.children[1].textContent = state ? label
    : (want || "free") + (behind && FAILED(label) ? `; failed: ${label}` : "");  // the label is its last outcome
  item.children[2].textContent = state ? timeInState(model, since) : "";
}

// How long a state has lasted, at the moment that the picture shows: a picture without motion is up to a second old.
const timeInState = ({shownNow, now}, since) => shortDuration(Math.max((shownNow ?? now) - since, 0));

// Write the times of the rows again: they must fit the lengths in the picture.
function showTimes({rows, lines, rowsNow, ...model}) {
  lines.forEach(({row}, number) => {
    if (row !== undefined && rowsNow[row][2]) rows.children[number].children[2].textContent = timeInState(model, rowsNow[row][3]);
  });
}

// The time of a row of now, which changes while one reads it
const shortDuration = millis => millis < 1000 ? `${Math.round(millis)} ms` : `${(millis / 1000).toFixed(1)} s`;

function showCost(model, change) {
  const {cost} = change, parts = [];
  if (cost.memory !== undefined) {
    parts.push(`CPU ${cost.cpu.toFixed(0)} %`, `memory ${(cost.memory / 1048576).toFixed(1)} MB`,
      `${cost.threads} ${cost.threads === 1 ? "thread" : "threads"}`,
      `${cost.processes} ${cost.processes === 1 ? "process" : "processes"}${cost.zombies ? ` and ${cost.zombies} ${cost.zombies === 1 ? "zombie" : "zombies"}` : ""}`, `${cost.descriptors} descriptors`);
  }
  const [waited, longest] = change.from_backlog;
  if (waited) parts.push(`${waited} ${waited === 1 ? "connection" : "connections"} waited in the backlog, ${duration(1000 * longest)} at most`);
  if (change.programs > 0) parts.push(`${change.programs} ${change.programs === 1 ? "program" : "programs"}`);
  if (change.failed) parts.push(`${change.failed} ${change.failed === 1 ? "response" : "responses"} with an error status`);
  if (change.rowless) parts.push(`${change.rowless} occupied ${change.rowless === 1 ? "worker" : "workers"} without a row`);
  if (change.behind.hidden) parts.push(`${change.behind.hidden} engines or connections to databases without a row`);
  model.cost.textContent = parts.join(" · ");
  if (change.lost) model.cost.append(" · ", make("span", `${change.lost} events of the trace were lost`, "zombies"));
}

function showClients(model, clients) {
  const names = Object.keys(clients.kinds);
  while (model.body.rows.length < names.length) {
    const line = model.body.insertRow();
    for (let column = 0; column < 8; column++) line.insertCell().className = column ? "n" : "";
  }
  names.forEach((name, number) => {
    const kind = clients.kinds[name], line = model.body.rows[number];
    line.dataset.kind = name;
    const some = count => count ? String(count) : "–";
    const texts = [name, String(kind.sent), kind.answered ? `${kind.answered}, ${duration(1000 * kind.median)}` : "–",
      kind.waiting ? `${kind.waiting}, ${duration(1000 * kind.longest)}` : "–",
      some(kind.error), some(kind.refused), some(kind.lost), some(kind["let go"])];
    const flooded = name === "flood" ? Object.values(clients.flood).reduce((sum, one) => sum + one, 0) : 0;
    if (flooded) {
      texts[0] = `flood: ${flooded} requests`;
      texts[2] = clients.flood.answered ? `${clients.flood.answered}, ${duration(1000 * (kind.median ?? 0))}` : "–";
      texts[4] = some(clients.flood.error);
      texts[5] = some(clients.flood.refused);
      texts[6] = some(clients.flood.lost);
    }
    line.dataset.sent = kind.sent;
    line.dataset.answered = kind.answered;
    line.dataset.waiting = kind.waiting;
    texts.forEach((text, column) => { line.cells[column].textContent = text; });
  });
  // Twenty times a second: only what has changed
  const ends = clients.recent.map(([label, end, millis]) => `${label}: ${end}, ${duration(1000 * millis)}`);
  if (ends.join() === model.recentEnds) return;
  model.recentEnds = ends.join();
  model.recent.replaceChildren(...ends.map((text, number) => make("li", text, clients.recent[number][1] === "answered" ? "" : "not")));
}

function offer(offered) {
  byId("scenes").hidden = !offered.length;
  if (scenes.length) return;
  scenes = offered;
  byId("scene-name").replaceChildren(...scenes.map(({name, title}) => {
    const option = make("option", title);
    option.value = name;
    return option;
  }));
  tellScene();
}

function tellScene() {
  const scene = scenes.find(each => each.name === byId("scene-name").value);
  byId("scene-text").textContent = scene?.text ?? "";
  byId("scene-lacks").textContent = scene?.lacks ?? "";
}

function showScene(scene) {
  const box = byId("scene"), before = box.hidden;
  box.hidden = !scene?.title;
  if (box.hidden !== before) byId("by-hand").open = box.hidden;  // a scene sends its clients itself
  document.body.classList.toggle("with-scene", !box.hidden);
  if (box.hidden) {
    if (box.contains(document.activeElement)) byId("scenes").querySelector("summary").focus();
    return;
  }
  box.querySelector("h2").textContent = scene.title;
  box.querySelector(".story").textContent = scene.text;
  box.querySelector(".lacks").textContent = scene.lacks;
  box.querySelector(".steps").replaceChildren(...scene.steps.map((text, number) => {
    const item = make("li", text);
    const shown = number === scene.at - 1 && !scene.running;  // what the picture shows now
    if (scene.skipped.includes(number)) item.append(make("i", " (skipped)"));
    item.className = scene.failed && number === scene.at ? "failed" : shown ? "done shown" : number < scene.at ? "done"
      : number === scene.at ? scene.running ? "now shown" : "now" : "";
    if (item.classList.contains("shown")) item.setAttribute("aria-current", "step");
    return item;
  }));
  showStep(box.querySelector(".steps"));
  byId("next").disabled = byId("play").disabled = scene.at >= scene.steps.length || scene.running;
  const waits = scene.running && scene.at < scene.steps.length;
  const hadFocus = document.activeElement === byId("skip");
  byId("skip").disabled = !waits;
  byId("leave").disabled = scene.running;
  if (hadFocus && !waits) byId(scene.at < scene.steps.length ? "next" : "leave").focus();
  if (scene.failed) { byId("status").className = "wrong"; byId("status").textContent = scene.failed; }
}

// A long list of steps scrolls within its box: the step that is shown stands below the one before it.
function showStep(steps) {
  const now = steps.querySelector(".shown, .failed") ?? steps.firstChild;
  const above = now?.previousSibling ?? now;
  if (above) steps.scrollTop = above.offsetTop - steps.firstChild.offsetTop;
}

// ---------------------------------------------------------------------------------------------------------------
// The picture

function draw() {
  for (const model of models) drawModel(model);
}

function drawModel(model) {
  const {canvas, rowsNow, samples, tops, heights, whole} = model, scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (!width || !tops) return;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(whole * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(whole * scale);
    canvas.style.height = `${whole}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, whole);
  const span = Number(byId("window").value) * 1000;
  const now = model.now + (paused || withoutMotion.matches ? 0 : Math.min(performance.now() - (model.at ?? 0), 100));
  const x = time => width - (now - time) * width / span;
  model.shownNow = now;
  showTimes(model);
  drawWaiting(context, samples, x, width);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const asks = [];  // [the row of the worker that asks, when, the row of the work, its begin, kind]
  const shown = [];  // the arguments of drawSpan()
  const nextAt = [];  // of each row: where the span to the right begins
  for (const {queue, top} of model.lines) {
    if (queue) drawQueueBehind(context, samples, queue, {left: 0, right: width, top: top + 5, height: STRIP - 9, from: now - span, to: now, until: now});
  }
  rowsNow.forEach((row, number) => {
    const y = tops[number], height = heights[number];
    drawGround(context, model, number, x, width);
    nextAt[number] = width;
    if (row[2]) {
      shown.push([kindOf(row[2], row[4]), x(row[3]), width, y, height, row[5], width, width]);
      nextAt[number] = x(row[3]);
    }
    if (row[ASKED]) asks.push([...row[ASKED], number, row[3], row[KIND]]);
  });
  for (let index = model.spans.length - 1; index >= 0; index--) {
    const [number, begin, end, state, want, label, , asked, outcome = ""] = model.spans[index];
    const row = number + (model.first[state] ?? 0);
    if (end < now - span - 2000) break;  // they come in the order of their ends, but for a second or so
    if (end < now - span || row >= rowsNow.length) continue;
    const ends = nextAt[row] === width && rowsNow[row][4] === REAPED ? `${label}; wait()` : label;
    shown.push([kindOf(state, want), x(begin), x(end), tops[row], heights[row], ends, width, nextAt[row], FAILED(outcome)]);
    nextAt[row] = x(begin);
    if (asked) asks.push([...asked, row, begin, state]);
  }
  for (const [number, began, ended, kind] of model.lives) {
    const row = number + (model.first[kind] ?? 0);
    if (ended > now - span && heights[row]) drawLife(context, tops[row], heights[row], x(began), x(ended), true);
  }
  context.globalAlpha = 0.75;
  for (const [worker, when, row, begin, kind] of asks.slice(0, MOST_ASKS)) {
    drawAsks(context, x(when), tops[worker] + heights[worker] - 2, x(begin), tops[row] + 1, colours[kind], 1.5);
  }
  context.globalAlpha = 1;
  for (const span of shown) drawSpan(context, ...span);
  drawTime(context, span, width, whole);
}

function drawQueueBehind(context, samples, kind, strip) {
  const counts = {time: samples.map(sample => sample[0]), queued: samples.map(sample => sample[4][kind])};
  const most = Math.max(2, ...counts.queued);
  drawCounts(context, strip, counts, most, paintOf(context, "queue"), colours.queue, []);
  drawScale(context, strip.top + strip.height, strip.height - 2, most, strip.right);
}

// The ground of a row: grey while its worker lives, or all of it where the trace has no lives.
function drawGround(context, model, number, x, width) {
  const y = model.tops[number], height = model.heights[number];
  const [began, ended] = model.livesNow[number] ?? [null, null];
  if (!height) return;
  if (began === null) {
    context.fillStyle = paintOf(context, "free");
    context.fillRect(0, y + 2, width, height - 4);
    return;
  }
  context.fillStyle = colours.line;
  context.fillRect(0, y + height / 2, width, 1);
  if (ended === null) drawLife(context, y, height, x(began), width, false);  // the others are in model.lives
}

// A life, with a dark edge where it begins, and where it ends. from may be left of the picture.
function drawLife(context, y, height, from, to, hasEnded) {
  const left = Math.max(from, -2), inset = height > FOLDED ? 2 : 0.5, high = height - 2 * inset;
  context.fillStyle = paintOf(context, "free");
  context.fillRect(left, y + inset, Math.max(to - left, 1), high);
  context.fillStyle = colours.dim;
  context.fillRect(left, y + inset, 1.5, high);
  if (hasEnded) context.fillRect(to - 1.5, y + inset, 1.5, high);
}

// next: where the next span of the row begins. A span that is too narrow for its label has it behind it, if there is room.
function drawSpan(context, kind, from, to, y, height, label, width, next, failed = false) {
  if (!height) return;
  const left = Math.max(from, 0), wide = Math.max(to - left, Math.min(NARROW, next - left), 1.5);
  const inset = height > FOLDED ? 2 : 0.5;
  context.fillStyle = paintOf(context, kind, wide);
  context.fillRect(left, y + inset, wide, height - 2 * inset);
  if (failed) drawFailure(context, left, Math.max(wide, 3), y + height - 2);
  if (height < 18) return;
  const text = context.measureText(label).width;
  if (text + 10 > wide) {
    if (kind === "zombie" || left + wide + text + 10 > next) return;
    context.fillStyle = colours.ink;
    context.textAlign = "left";
    context.fillText(label, left + wide + 4, y + height / 2 + 1);
    return;
  }
  writeOn(context, kind, label, Math.min(left + 5, width - text - 6), y + height / 2, 12);
}

// The queue with the backlog on it, and below it the parked connections: each grows upwards from a line, up to its scale.
function drawWaiting(context, samples, x, width) {
  const half = AREA / 2, high = half - 16;  // the upper one stays below the labels of the time
  const mostOf = count => Math.max(LEAST_SCALE, ...samples.map(count));
  const outline = (count, base, most, begin) => {
    const y = value => base - value * high / most;
    let before = 0;
    context.beginPath();
    for (const sample of samples) {
      const at = x(sample[0]), value = count(sample);
      begin(at, y(before), y(value), before, value);
      before = value;
    }
    return y(before);
  };
  const area = (count, base, most, paint) => {
    if (!samples.length) return;
    const last = outline(count, base, most, (at, from, to) => { context.lineTo(at, from); context.lineTo(at, to); });
    context.lineTo(width, last);
    context.lineTo(width, base);
    context.lineTo(x(samples[0][0]), base);
    context.fillStyle = paint;
    context.fill();
  };
  // The line of a number that is not 0
  const border = (count, base, most, colour) => {
    const last = outline(count, base, most, (at, from, to, before, value) => {
      if (before) context.lineTo(at, from); else context.moveTo(at, from);
      if (before || value) context.lineTo(at, to);
    });
    if (last < base) context.lineTo(width, last);
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.setLineDash([4, 2]);
    context.stroke();
    context.setLineDash([]);
  };
  const waiting = sample => sample[1] + sample[2], parked = sample => sample[3];
  const mostWaiting = mostOf(waiting), mostParked = mostOf(parked), bottom = AREA - 1;
  area(waiting, half, mostWaiting, paintOf(context, "backlog"));
  area(sample => sample[2], half, mostWaiting, paintOf(context, "queue"));
  area(parked, bottom, mostParked, colours.card);
  border(parked, bottom, mostParked, colours.parked);
  drawScale(context, half, high, mostWaiting, width);
  drawScale(context, bottom, high, mostParked, width);
}

// The line of an area, and the number at which its scale ends.
function drawScale(context, base, high, most, width) {
  context.fillStyle = colours.line;
  context.fillRect(0, base - 0.5, width, 1);
  context.fillRect(0, base - high - 0.5, 6, 1);
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  const text = most.toLocaleString("en");
  context.fillStyle = colours.paper;
  context.fillRect(7, base - high - 5, context.measureText(text).width + 3, 10);
  context.fillStyle = colours.dim;
  context.fillText(text, 8, base - high + 0.5);
}

function drawTime(context, span, width, height) {
  context.fillStyle = colours.dim;
  context.textBaseline = "top";
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  // On a plate, since the area of a long queue reaches up to the text
  const write = (text, at) => {
    context.fillStyle = colours.paper;
    context.fillRect(at - 2, 0, context.measureText(text).width + 4, 14);
    context.fillStyle = colours.dim;
    context.fillText(text, at, 2);
  };
  write("now", width - 3 - context.measureText("now").width);
  const every = span > 30000 ? 10000 : span > 10000 ? 5000 : 1000;
  for (let back = every; back < span; back += every) {
    const at = width - back * width / span;
    context.globalAlpha = 0.25;
    context.fillRect(at, 0, 1, height);
    context.globalAlpha = 1;
    const text = `−${back / 1000} s`;
    const half = context.measureText(text).width / 2;
    if (span <= 10000 && back % 2000 || at + half > width - 32 || at < half) continue;
    write(text, at - half);
  }
}

function legend() {
  const dashed = pen => {
    pen.strokeStyle = colours.parked;
    pen.lineWidth = 1.5;
    pen.setLineDash([4, 2]);
    pen.strokeRect(1, 3, 28, 20);
  };
  const kinds = [...behind], items = [...LEGEND.filter(([kind]) => seen.has(kind)), ...(zombies ? [ZOMBIE] : []), ...kinds.map(kind => [kind, BEHIND[kind].runs])];
  if (kinds.length) items.push(asksSample(kinds[0]));
  if (failures) items.push(failureSample(kinds[0]));
  if (lives) items.push([pen => drawLife(pen, 0, 16, 4, 24, true), "a worker lives, from edge to edge"]);
  fillLegend(items.map(([name, text]) => [name === "parked" ? dashed : name, text]));
}

// ---------------------------------------------------------------------------------------------------------------
// Start

function frame(time) {
  if (!paused && time - lastDrawn >= (withoutMotion.matches ? 1000 : 33)) {
    lastDrawn = time;
    draw();
  }
  requestAnimationFrame(frame);
}

const changes = new EventSource("changes");
changes.addEventListener("message", event => {
  const change = JSON.parse(event.data);
  if (paused && change.models) {
    buffered.push(change);
    if (buffered.length > MOST_BUFFERED) take(buffered.shift());
  } else {
    take(change);
  }
});
changes.addEventListener("open", () => { byId("status").className = ""; byId("status").textContent = ""; });
changes.addEventListener("error", () => {
  byId("status").className = "wrong";
  byId("status").textContent = "ewe-watch does not answer: has it ended?";
});
whenColoursChange(() => { legend(); draw(); });
byId("window").addEventListener("change", draw);
readColours();
legend();
requestAnimationFrame(frame);
