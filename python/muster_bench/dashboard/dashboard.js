"use strict";
// One page over /api: what runs, whether it gets better, where the time goes, what failed and why.
const $ = id => document.getElementById(id);
// Text that is HTML: html`...` alone makes it, and escapes what is put into it unless that is such text itself. Runs choose their names.
class Html { constructor(text) { this.text = text; } }
const esc = value => value instanceof Html ? value.text : Array.isArray(value) ? value.map(esc).join("") : String(value ?? "").replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const html = (parts, ...values) => new Html(parts.reduce((made, part, n) => made + esc(values[n - 1]) + part));
const draw = (part, made) => { part.innerHTML = esc(made); };
const path = id => id.split("/").map(encodeURIComponent).join("/");
const LABELS = {train_loss: "training loss", val_loss: "validation loss", val_accuracy: "validation accuracy", train_accuracy: "training accuracy",
  samples_per_second: "samples/s", computation_share: "computing", communication_share: "communicating", data_wait_share: "waiting for data",
  other_share: "the rest", batch_load: "loading", optimizer_step: "optimizer"};
const label = name => LABELS[name] ?? name.replaceAll("_", " ");
let runs = [], presets = [], chosen = "", shown = {}, log = {}, about = "";

function number(value, unit = "") {
  if (value == null || Number.isNaN(value)) return "";
  if (unit && value >= 0) {   // of an axis, or bytes
    const step = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : value >= 1e3 ? [1e3, "k"] : [1, ""];
    return `${+(value / step[0]).toPrecision(3)} ${step[1]}${unit}`.trim();
  }
  const size = Math.abs(value);
  return size >= 1000 ? Math.round(+value.toPrecision(4)).toLocaleString("en") : size && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}
const seconds = value => value == null ? "" : value < 1e-3 ? `${+(value * 1e6).toPrecision(3)} us` : value < 1 ? `${+(value * 1e3).toPrecision(3)} ms` : value < 100 ? `${+value.toPrecision(3)} s`
  : value < 6000 ? `${Math.round(value / 60)} min` : value < 172800 ? `${+(value / 3600).toPrecision(2)} h` : `${Math.round(value / 86400)} d`;
const ago = at => { const passed = Math.max(0, Date.now() / 1000 - at); return passed < 10 ? "now" : `${seconds(Math.round(passed))} ago`; };
const bad = row => !["ok", "running", "waiting", "stopped", "skipped"].includes(row.status);
const state = row => html`<span class="state ${bad(row) ? "bad" : row.status}">${row.status}</span>`;
const parameters = row => Object.entries(row.parameters).filter(([name]) => name !== "ranks").map(([name, value]) => `${name} ${value}`).join(", ");
const named = row => [row.experiment === "run" ? row.title : row.experiment, parameters(row), row.repeat > 1 ? `repeat ${row.repeat}` : ""].filter(Boolean).join(", ");

async function ask(url, options = {}) {
  const answer = await fetch(url, {cache: "no-cache", ...options});
  const value = answer.headers.get("Content-Type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw new Error(value.error ?? `status ${answer.status}`);
  return value;
}
const post = (url, body) => ask(url, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
function say(text) { $("said").textContent = text; clearTimeout(say.timer); say.timer = setTimeout(() => { $("said").textContent = ""; }, 6000); }

const table = (header, rows) => html`<div class="wide" tabindex="0"><table><thead><tr>${header.map(name => html`<th scope="col">${name}</th>`)}</tr></thead>
  <tbody>${rows.map(cells => html`<tr>${cells.map(cell => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`;

// A part of the page is drawn again where it has changed: what has the focus, is open or is selected stays.
function put(id, made) {
  let part = $(id);
  if (!part) { part = document.createElement("section"); part.id = id; $("main").append(part); }
  const text = esc(made);
  if (shown[id] !== text) { shown[id] = text; part.innerHTML = text; }
}
function clear(page) { if (clear.page !== page) { clear.page = page; shown = {}; log = {}; $("main").innerHTML = ""; scrollTo(0, 0); } }

// ---- pictures ----

function ticks(low, high, count = 4) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find(one => one * power >= rough) * power;
  const made = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) made.push(+at.toPrecision(12));
  return made;
}
const charts = {};
// lines: [{name, points: [[x, y], ...], color, dashed}]; a loss that falls by far is drawn over a logarithm.
function chart(title, lines, {unit = "", goal, across = "training time", zero = false} = {}) {
  lines = lines.filter(line => line.points.length > 1);
  const points = lines.flatMap(line => line.points), ys = points.map(point => point[1]).concat(goal == null ? [] : [goal]);
  if (!points.length) return "";
  const log10 = !zero && Math.min(...ys) > 0 && Math.max(...ys) / Math.min(...ys) > 30, scale = y => log10 ? Math.log10(y) : y;
  let [x0, x1] = [Math.min(...points.map(p => p[0])), Math.max(...points.map(p => p[0]))], [y0, y1] = [zero ? 0 : scale(Math.min(...ys)), scale(Math.max(...ys))];
  if (x1 <= x0) x1 = x0 + 1;
  if (y1 <= y0) y1 = y0 + (Math.abs(y0) || 1) * 0.1;
  const pad = zero ? 0 : (y1 - y0) * 0.06; y0 -= pad; y1 += pad || (y1 - y0) * 0.06;
  const W = 380, H = 200, L = 56, B = 24, X = x => L + (x - x0) / (x1 - x0) * (W - L - 8), Y = y => 8 + (y1 - scale(y)) / (y1 - y0) * (H - B - 8);
  const id = `${title} ${across}`; charts[id] = {lines, x0, x1, W, L, unit};
  const rows = (log10 ? ticks(y0, y1).map(y => 10 ** y) : ticks(y0, y1)).map(y => html`<line class="grid" x1="${L}" x2="${W - 8}" y1="${Y(y)}" y2="${Y(y)}"/>
    <text x="${L - 6}" y="${Y(y) + 4}" text-anchor="end">${number(log10 ? +y.toPrecision(2) : y, y >= 1e4 ? unit || " " : unit)}</text>`);
  const columns = ticks(x0, x1).map(x => html`<text x="${X(x)}" y="${H - 8}" text-anchor="${X(x) > W - 30 ? "end" : "middle"}">${seconds(x) || 0}</text>`);
  const drawn = lines.map((line, n) => html`<path class="line" style="stroke:var(--s${line.color ?? n % 8 + 1})" ${line.dashed ? html`stroke-dasharray="6 4"` : ""} d="M${line.points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L")}"/>`);
  const keys = lines.map((line, n) => html`<span class="key ${line.dashed ? "dashed" : ""}" style="--c:var(--s${line.color ?? n % 8 + 1})">${line.name} <span>${number(line.points.at(-1)[1], unit)}</span></span>`);
  const aim = goal == null ? "" : html`<line class="goal" x1="${L}" x2="${W - 8}" y1="${Y(goal)}" y2="${Y(goal)}"/><text x="${W - 8}" y="${Y(goal) - 4}" text-anchor="end">goal ${number(goal)}</text>`;
  const spoken = `${title} over the ${across}: ${lines.map(line => `${line.name} ${number(line.points.at(-1)[1], unit)}`).join(", ")}`;
  return html`<figure><figcaption><b>${title}</b>${keys}</figcaption><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${spoken}" data-chart="${id}">
    ${rows}${columns}${aim}${drawn}<line class="at" y1="8" y2="${H - B}" x1="-9" x2="-9"/></svg></figure>`;
}
addEventListener("pointermove", event => {   // what the lines are at the pointer
  const svg = event.target.closest?.("svg[data-chart]"), found = svg && charts[svg.dataset.chart];
  if (!found) return;
  const at = (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * found.W, x = found.x0 + (at - found.L) / (found.W - found.L - 8) * (found.x1 - found.x0);
  svg.querySelector(".at").setAttribute("transform", `translate(${Math.max(found.L, at) + 9})`);
  svg.parentElement.querySelectorAll(".key span").forEach((key, n) => {
    key.textContent = number(found.lines[n].points.reduce((best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best)[1], found.unit);
  });
});
const over = (run, name) => run.series.filter(row => row[name] != null && row.seconds != null).map(row => [row.seconds, row[name]]);
function curves(sides) {
  const two = sides.length > 1;   // then colours tell the runs apart, and dashes what is of the training set
  const of = (...names) => sides.flatMap(([side, run], n) => names.map(name => ({name: [side, label(name)].filter(Boolean).join(" "), points: over(run, name), color: two ? n + 1 : name.startsWith("val_") ? 2 : 1, dashed: two && name.startsWith("train_")})));
  const goal = name => sides[0][1].goals.find(one => one.metric === name)?.value;
  return [chart("Loss", of("train_loss", "val_loss"), {goal: goal("val_loss") ?? goal("train_loss")}), chart("Accuracy", of("train_accuracy", "val_accuracy"), {goal: goal("val_accuracy") ?? goal("train_accuracy")}),
    chart("Speed", of("samples_per_second"), {zero: true})];
}
function shareBar(found) {
  const parts = ["computation_share", "communication_share", "data_wait_share", "other_share"].filter(name => found[name] != null);
  const color = name => `--c:var(--s${{computation_share: 1, communication_share: 2, data_wait_share: 4}[name] ?? 8})`, percent = name => `${(100 * found[name]).toFixed(found[name] < 0.1 ? 1 : 0)} %`;
  return parts.length ? html`<div class="bar" role="img" aria-label="${parts.map(name => `${label(name)} ${percent(name)}`).join(", ")}">${parts.map(name => html`<i style="${color(name)};flex:${found[name]}"></i>`)}</div>
    <p class="soft">${parts.map((name, n) => html`${n ? " \u2002 " : ""}<span class="key" style="${color(name)}">${label(name)} ${percent(name)}</span>`)}</p>` : "";
}
function waterfall(trace) {
  const spans = trace.spans.slice(0, 400), ids = new Map(trace.spans.map(span => [span.id, span])), children = new Map(), rows = [];
  for (const span of spans) { const of = ids.has(span.parentId) && span.parentId !== span.id ? span.parentId : ""; children.set(of, [...(children.get(of) ?? []), span]); }
  const visit = (id, deep) => { for (const span of children.get(id) ?? []) if (!span.seen) { span.seen = true; rows.push([span, deep]); visit(span.id, deep + 1); } };
  visit("", 0);
  const services = trace.services, whole = trace.duration || 1;
  return html`<div class="fall">${rows.map(([span, deep]) => {
    const left = 100 * Math.max(0, span.timestamp - trace.timestamp) / whole, width = Math.min(100 - left, 100 * span.duration / whole), text = seconds(span.duration / 1e6);
    const title = `${span.localEndpoint.serviceName}: ${span.name}, ${text}${Object.entries(span.tags).map(([key, value]) => `\n${key} ${value}`).join("")}`;
    const service = span.localEndpoint.serviceName, color = `var(--s${services.indexOf(service) % 8 + 1})`;
    const place = width > 30 ? html`class="in" style="left:${left}%"` : left + width < 70 ? html`style="left:${left + width}%"` : html`style="right:${100 - left}%"`;
    return html`<span style="--deep:${deep}" title="${title}">${deep ? span.name : `${service} · ${span.name}`}</span>
      <div title="${title}"><i style="left:${left}%;width:${width}%;--c:${color}"></i><em ${place}>${text}</em></div>`;
  })}</div>${trace.count > spans.length ? html`<p class="soft">The first ${spans.length} of ${trace.count} spans.</p>` : ""}`;
}

// ---- the list ----

const kinds = {running: row => row.status === "running", failed: bad, ended: row => row.status === "ok"};
function drawList() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean), open = decodeURIComponent(location.hash);
  const counts = Object.entries(kinds).map(([name, is]) => [name, runs.filter(is).length]).filter(([name, count]) => count || chosen === name);
  put("counts", counts.map(([name, count]) => html`<button type="button" data-do="kind" data-kind="${name}" aria-pressed="${chosen === name}">${count} ${name}</button>`));
  const found = runs.filter(row => (!chosen || kinds[chosen](row)) && words.every(word => `${named(row)} ${row.title} ${row.id} ${row.status} ${row.ranks} ranks`.toLowerCase().includes(word)));
  put("list", found.length ? found.map(row => {
    const best = ["val_accuracy", "val_loss", "train_loss"].find(name => row.metrics[name] != null) ?? Object.keys(row.metrics)[0];
    const said = bad(row) ? row.why : [best && `${label(best)} ${number(row.metrics[best])}`, row.epoch && `epoch ${row.epoch}`, `${row.ranks} rank${row.ranks > 1 ? "s" : ""}`].filter(Boolean).join(" · ");
    return html`<li><a href="#/run/${path(row.id)}" ${open === `#/run/${row.id}` ? html`aria-current="page"` : ""}><span class="row"><b title="${named(row)}">${named(row)}</b>${state(row)}</span>
      <span class="row"><small title="${said}">${said}</small><small>${row.status === "ok" && row.seconds ? seconds(row.seconds) : ago(row.began)}</small></span></a></li>`;
  }) : html`<li class="soft">${runs.length ? "No run is like that." : "No runs yet."}</li>`);
}

// ---- a run ----

async function drawRun(id) {
  const run = await ask(`/api/runs/${path(id)}`), folder = path(run.folder), last = run.series.at(-1) ?? {}, live = run.status === "running";
  clear(`run ${id}`);
  put("head", html`<div class="head"><a class="back" href="#/">Runs</a><h1>${named(run)}</h1>${state(run)}
    ${live ? html`<button type="button" data-do="stop" data-folder="${run.folder}">Stop</button>` : run.status === "stopped" ? html`<button type="button" data-do="continue" data-folder="${run.folder}">Continue</button>` : ""}
    <select aria-label="Compare with" data-do="compare" data-id="${id}"><option value="">Compare with …</option>${runs.filter(row => row.id !== id && (row.epoch || row.status === "ok")).slice(0, 300).map(row =>
    html`<option value="${row.id}">${named(row)}, ${row.run.slice(-8)}</option>`)}</select></div>
    <p class="soft">${run.title === named(run) ? "" : `${run.title} · `}${run.id} · began ${new Date(1000 * run.began).toLocaleString()}</p>
    ${run.why ? html`<p class="why"><b>${run.status}</b>: ${run.why}</p>` : ""}`);
  const best = name => name in last ? number(last[name]) : "";
  const tiles = [["Accuracy", best("val_accuracy")], ["Training loss", best("train_loss")], ["Validation loss", best("val_loss")], ["Samples/s", run.results.samples_per_second ? number(run.results.samples_per_second) : best("samples_per_second")],
    ["Epoch", last.epoch], ["Trained", seconds(last.seconds)], ["Ranks", run.ranks], 
    ...run.goals.filter(goal => goal.metric).map(goal => [`To ${label(goal.metric).replace("validation ", "")} ${number(goal.value)}`, goal.reached == null ? "not yet" : seconds(goal.reached)])];
  put("tiles", html`<dl class="tiles">${tiles.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`);
  const posted = Object.entries(run.posted).map(([name, workers]) => chart(label(name), Object.entries(workers).map(([worker, points]) => ({name: `worker ${worker}`, points: points.map(([at, y]) => [at - run.began, y])})), {across: "time"}));
  put("curves", html`<div class="figures">${curves([["", run]])}${posted}</div>`);
  const phases = Object.entries(run.phases).filter(([, value]) => value > 0), most = Math.max(...phases.map(([, value]) => value));
  const shares = shareBar(run.shares);
  const where = (shares || phases.length) && html`${shares}${phases.length ? html`<details><summary>Phases, of the slowest rank</summary>
    <div class="times">${phases.map(([name, value]) => html`<span>${label(name)}</span><i style="width:${100 * value / most}%"></i><span>${seconds(value)}</span>`)}</div></details>` : ""}`;
  put("where", where ? html`<h2>Where the time goes</h2>${where}` : "");
  put("rows", run.rows.length ? html`<h2>Results</h2>${table(["row", "time"], run.rows.map(row => [row.row, seconds(row.metrics.seconds)]))}` : "");
  const lines = name => run.workers.map(worker => ({name: `rank ${worker.worker}`, points: worker[name].map(([at, y]) => [at - run.began, y])}));
  put("workers", run.workers.length ? html`<h2>Ranks</h2><div class="figures">${[["Processors", "cpu", ""], ["Memory", "memory", "B"], ["Network of its host", "network", "B/s"]].map(([title, name, unit]) =>
    chart(title, lines(name), {unit, across: "time", zero: true}))}</div>` : "");
  put("timeline", run.trace ? html`<h2>A step</h2><p><label>Number <input type="number" min="0" value="1" id="step" data-do="step" data-id="${id}"></label> <span class="soft" id="steps"></span></p><div id="fall"></div>` : "");
  if (run.trace && !log.step) { log.step = true; drawStep(id, 1); }
  put("log-head", html`<h2>Log</h2><label>Of <select data-do="worker"><option value="">the run</option>${run.workers.map(worker => html`<option value="${worker.worker}">rank ${worker.worker}</option>`)}</select></label>`);
  put("log-text", html`<pre id="log" class="wrap" tabindex="0" aria-label="Log"></pre>`);
  await follow(id, live);
  const results = await ask(`/api/runs/${folder}`);
  put("files", html`<h2>Files</h2><ul class="files">${[...results.files.map(file => [`${folder}/files/${path(file.path)}`, file]),
    ...run.files.filter(file => !file.path.includes("/workers/")).map(file => [`${path(id)}/files/${path(file.path)}`, file])].map(([to, file]) =>
    html`<li><a href="/api/runs/${to}"${file.path === "report.html" ? html` target="_blank" rel="noreferrer"` : " download"}>${file.path}</a> <span class="soft">${number(file.bytes, "B")}</span></li>`)}</ul>
    <details><summary>Command and settings</summary><pre class="wrap">${run.words.join(" ")}</pre><pre class="wrap">${Object.entries({...run.parameters, ...run.settings}).map(([name, value]) => `${name}  ${value}`).join("\n")}</pre></details>`);
}
async function follow(id, live) {
  if (log.ended && !live) return;
  const found = await ask(`/api/runs/${path(id)}/log?worker=${log.worker ?? ""}&offset=${log.next ?? -1}`).catch(error => ({text: log.next == null ? error.message : "", next: log.next}));
  const box = $("log"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30 || log.next == null;
  if (found.text) box.textContent = (box.textContent + found.text).slice(-500000);
  if (atEnd) box.scrollTop = box.scrollHeight;
  log.next = found.next; log.ended = !live;
}
async function drawStep(id, step) {
  try {
    const found = await ask(`/api/runs/${path(id)}/step?number=${step}`);
    $("steps").textContent = `of ${found.steps}; ${seconds(found.duration / 1e6)}`; draw($("fall"), waterfall(found));
  } catch (error) { $("fall").textContent = error.message; }
}

// ---- two runs, and traces ----

async function drawCompare(first, second) {
  const [found, one, two] = await Promise.all([ask(`/api/compare?first=${encodeURIComponent(first)}&second=${encodeURIComponent(second)}`), ask(`/api/runs/${path(first)}`), ask(`/api/runs/${path(second)}`)]);
  clear(`compare ${first} ${second}`);
  put("head", html`<div class="head"><a class="back" href="#/">Runs</a><h1>A and B</h1></div><p><b>A</b> <a href="#/run/${path(first)}">${named(one)}</a> ${state(one)} &ensp; <b>B</b> <a href="#/run/${path(second)}">${named(two)}</a> ${state(two)}</p>
    <p class="soft">Repetitions: ${found.repetitions.join(" and ")}. ${Math.min(...found.repetitions) < 5 ? "It takes five of each to tell a difference from noise." : ""}</p>`);
  put("curves", html`<div class="figures">${curves([["A", one], ["B", two]])}</div>`);
  const bars = [["A", one], ["B", two]].map(([side, run]) => shareBar(run.shares) ? html`<p><b>${side}</b></p>${shareBar(run.shares)}` : "");
  put("where", bars.some(Boolean) ? html`<h2>Where the time goes</h2>${bars}` : "");
  const color = {faster: "faster", better: "faster", slower: "slower", worse: "slower"};
  const main = [...Object.keys(LABELS), "time_to_goal_seconds", "train_seconds"], enough = found.rows.some(row => color[row.decision]);
  const measures = rows => table(["", "A", "B", "B / A", ...(enough ? ["decision"] : [])], rows.map(row => [label(row.measure), number(row.first), number(row.second),
    html`${row.ratio == null ? "" : row.ratio.toFixed(3)}${row.low == null || row.low === row.high ? "" : html`<small>${row.low.toFixed(3)} to ${row.high.toFixed(3)}</small>`}`,
    ...(enough ? [html`<span class="${color[row.decision] ?? ""}">${row.decision}</span>`] : [])]));
  put("table", html`<h2>Measures</h2>${measures(found.rows.filter(row => main.includes(row.measure)))}
    <details><summary>Others</summary>${measures(found.rows.filter(row => !main.includes(row.measure)))}</details>`);
}
async function drawTraces(id) {
  if (!id) {
    const {traces} = await ask("/api/traces");
    clear("traces");
    put("head", html`<div class="head"><a class="back" href="#/">Runs</a><h1>Traces</h1></div>`);
    put("table", traces.length ? table(["invocation", "services", "spans", "took", "when"], traces.map(trace => [html`<a href="#/trace/${trace.id}">${trace.name || trace.id}</a>`,
      trace.services.join(", "), trace.count, seconds(trace.duration / 1e6), ago(trace.timestamp / 1e6)]))
      : html`<p class="soft">No spans yet. Send Zipkin's v2 JSON to <code>${location.origin}/api/v2/spans</code>.</p>`);
    return;
  }
  const trace = await ask(`/api/traces/${encodeURIComponent(id)}`);
  clear(`trace ${id}`);
  put("head", html`<div class="head"><a class="back" href="#/traces">Traces</a><h1>${trace.name || id}</h1><span class="soft">${seconds(trace.duration / 1e6)}, ${trace.count} spans of ${trace.services.join(", ")}</span></div>`);
  put("fall-all", waterfall(trace));
}

async function drawWorkflows() {
  const {workflows} = await ask("/api/workflows");
  clear("workflows");
  put("head", html`<div class="head"><a class="back" href="#/">Runs</a><h1>Workflows</h1></div>`);
  put("table", workflows.length ? workflows.map(one => html`<h2>${one.name} <span class="soft">${one.folder}</span></h2>
    ${one.versions.length ? table(["version", "model", "accuracy"], one.versions.map(version => [
      html`<a href="/api/workflows/${path(one.folder)}/${path(version.model)}/${version.version}">${version.model}/${version.version}</a>`, version.name, number(version.accuracy)])) : ""}
    ${table(["step", "state", "accuracy", "took", "when"], one.steps.map(step => [step.step, html`${step.state}${step.why ? html` <span class="soft">${step.why}</span>` : ""}`,
      step.accuracy == null ? "" : number(step.accuracy), step.seconds == null ? "" : seconds(step.seconds), ago(step.at)]))}`)
    : html`<p class="soft">No workflow has results here: muster-flow run FILE --out DIR/NAME makes them.</p>`);
}

// ---- starting, and everything that is pressed ----

function drawForm() {
  const own = $("what").value === "", preset = presets.find(one => one.name === $("what").value);
  document.querySelectorAll("dialog .own").forEach(part => { part.hidden = !own; part.style.display = own ? "" : "none"; });
  $("about").hidden = own;
  for (const name of ["launcher", "processors"]) document.querySelector(`#start [name=${name}]`).disabled = preset?.division === "closed";
  if (preset) $("about").textContent = `${preset.title}. ${preset.division === "closed" ? "Closed: it runs as it is published, or with one of its numbers of workers" : "Workers"}: ${preset.ranks.join(", ")}.`;
  const launchers = [own ? ["local", "local: starts its ranks itself"] : ["", "as it says"], ["mpirun", "mpirun"], ["hosts", "hosts: a network on this machine"], ["srun", "srun: Slurm"]];
  draw($("launcher"), launchers.map(([value, text]) => html`<option value="${value}">${text}</option>`));
}
const actions = {
  "open-start": async () => {
    $("refused").textContent = "";
    if (!presets.length) presets = (await ask("/api/presets")).presets;
    draw($("what"), html`<option value="">a command of one's own</option>${presets.map(one => html`<option value="${one.name}">${one.name}</option>`)}`);
    drawForm(); $("start").showModal();
  },
  start: async () => {
    const form = new FormData(document.querySelector("#start form")), text = name => form.get(name)?.trim() ?? "", own = text("what") === "", body = own ? {command: text("command")} : {preset: text("what")};
    for (const name of ["ranks", "processors"]) if (text(name)) body[name] = Number(text(name));
    if (text("launcher")) body.launcher = text("launcher");
    if (own && text("name")) body.name = text("name");
    if (own && text("metric")) body.goal = {metric: text("metric"), value: Number(text("value"))};
    if (own && form.get("trace")) body.trace = true;
    try {
      const {folder} = await post("/api/runs", body);
      $("start").close(); say(`${folder} has been started`); actions.wanted = folder; await look();
    } catch (error) { $("refused").textContent = error.message; }
  },
  stop: async at => { at.disabled = true; await post(`/api/runs/${path(at.dataset.folder)}/stop`, {}); say("It is being stopped."); },
  continue: async at => { at.disabled = true; await post(`/api/runs/${path(at.dataset.folder)}/continue`, {}); say("It goes on."); },
  kind: at => { chosen = chosen === at.dataset.kind ? "" : at.dataset.kind; drawList(); },
  compare: at => { if (at.value) location.hash = `#/compare/${path(at.dataset.id)}/${path(at.value)}`; },
  worker: async at => { log = {...log, worker: at.value, next: null, ended: false}; $("log").textContent = ""; await look(); },
  step: at => drawStep(at.dataset.id, Number(at.value)),
};
const act = event => { const at = event.target.closest("[data-do]"); if (at && (event.type === "change") === at.matches("select, input")) Promise.resolve(actions[at.dataset.do](at)).catch(error => say(error.message)); };
addEventListener("click", act); addEventListener("change", act);
$("what").addEventListener("change", drawForm); $("filter").addEventListener("input", drawList);
$("start").addEventListener("keydown", event => { if (event.key === "Enter" && event.target.matches("input")) { event.preventDefault(); actions.start(); } });

async function look() {
  const turn = look.turn = (look.turn ?? 0) + 1;
  clearTimeout(look.timer);
  try {
    runs = (await ask("/api/runs")).runs;
    const fresh = actions.wanted && runs.find(row => row.folder === actions.wanted);
    if (fresh) { actions.wanted = ""; location.hash = `#/run/${path(fresh.id)}`; }
    const [, page, ...names] = location.hash.split("/").map(decodeURIComponent);
    document.body.classList.toggle("open", Boolean(page));
    document.title = `${runs.filter(kinds.running).length ? `${runs.filter(kinds.running).length} running · ` : ""}muster-bench`;
    drawList();
    if (page === "run") await drawRun(names.join("/"));
    else if (page === "compare") await drawCompare(names.slice(0, 2).join("/"), names.slice(2).join("/"));
    else if (page === "workflows") await drawWorkflows();
    else if (page === "traces" || page === "trace") await drawTraces(names[0]);
    else if (runs.length && matchMedia("(min-width: 50.01rem)").matches) await drawRun(runs[0].id);
    else { clear(""); put("head", html`<h1>No runs yet</h1><p>Start one here, or with <code>muster-bench run FILE --out DIR/NAME --watch</code>: folders of results in this one are shown.</p>`); }
  } catch (error) { say(error.message); }
  if (turn === look.turn) look.timer = setTimeout(look, document.hidden ? 10000 : runs.some(kinds.running) || actions.wanted ? 1000 : 3000);
}
addEventListener("hashchange", () => { look(); if (location.hash.length > 2) $("main").focus({preventScroll: true}); });
addEventListener("visibilitychange", look);
look();
