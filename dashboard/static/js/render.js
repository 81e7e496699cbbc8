// One overview document onto the page.

import { bytes, compact, count, duration, latency, NONE, percent, rate, words } from "./format.js";
import { STATES } from "./rates.js";
import { element, show, table } from "./table.js";

const RATE_SECONDS = 10;

const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

function kpi(name, value, unit, detail) {
  return element("div", { class: "card kpi", role: "group", "aria-label": name },
    element("span", { class: "name" }, name),
    element("span", { class: "value" }, value, unit ? element("small", {}, unit) : ""),
    element("span", { class: "detail" }, detail));
}

function kpis(doc, series) {
  const { prefix, tokens, cells, latency: times, open_sessions: open } = doc;
  const used = cells.capacity - cells.states.free;
  const first = times.time_to_first_token;
  const minute = first.recent.count > 0 ? first.recent : first;
  const reused = tokens.prompt - prefix.hit_tokens;
  show("kpis",
    kpi("Prefix hit ratio", percent(prefix.hit_ratio), "",
      `last ${duration(prefix.recent.seconds)}: ${percent(prefix.recent.hit_ratio)}`),
    kpi("Generating", rate(series.rate("generated_tokens", RATE_SECONDS)), "tokens/s",
      `${compact(tokens.generated)} tokens since start`),
    kpi("Reading prompts", rate(series.rate("prompt_tokens", RATE_SECONDS)), "tokens/s",
      `${compact(tokens.prompt)} tokens, ${compact(reused)} not from the cache`),
    kpi("First token, median", latency(minute.p50_seconds), "",
      `95 % within ${latency(minute.p95_seconds)}`),
    kpi("Cells in use", percent(cells.capacity ? used / cells.capacity : null), "",
      `${count(used)} of ${count(cells.capacity)} cells`),
    kpi("Sessions", count(open.generating + open.prefilling), "running",
      `${count(doc.queue_length)} waiting of at most ${count(doc.limits.queue_length)}`));
}

function windowPool(pool) {
  const used = pool.cells_capacity - pool.cells_free;
  return ` Window of ${count(pool.window[1])}: ${count(used)} of ${count(pool.cells_capacity)} cells` +
    ` in use, ${count(pool.cells_resume)} of them by resume points only.`;
}

function stateSlots(states) {
  if (states.slots === 0) return "";
  return ` Recurrent states: ${count(states.slots_used)} of ${count(states.slots)} slots of` +
    ` ${bytes(states.bytes_per_slot)} in use, ${count(states.slots_resume)} of them by resume points.`;
}

function cellsByState(doc) {
  const { capacity, states } = doc.cells;
  const share = (n) => (capacity ? n / capacity : 0);
  const bar = STATES.map((state) => {
    const part = element("span", { class: `state-${state}`, title: `${state}: ${count(states[state])}` });
    part.style.width = `${100 * share(states[state])}%`;
    return part;
  });
  show("cells-bar", ...bar);
  const per = doc.bytes.per_cell;
  const columns = [
    { name: "State", cell: (s) => element("span", {}, element("span", { class: `swatch state-${s}` }), s) },
    { name: "Cells", number: true, cell: (s) => count(states[s]) },
    { name: "Share", number: true, cell: (s) => percent(share(states[s])) },
    { name: "KV bytes", number: true, cell: (s) => bytes(states[s] * per) },
  ];
  const all = sum(states);
  show("cells-table", table(columns, STATES, {
    total: ["all states", count(all), percent(share(all)), bytes(all * per)],
  }));
  document.getElementById("cells-total").textContent =
    `capacity ${count(capacity)} cells of ${bytes(per)}`;
  document.getElementById("cells-bytes").textContent =
    `Memory: ${bytes(doc.bytes.committed)} committed of ${bytes(doc.bytes.budget)} budget, ` +
    `${bytes(doc.bytes.reserved)} address space reserved.` +
    doc.pools.slice(1).map(windowPool).join("") + stateSlots(doc.states);
}

const factColumns = (unit) => [
  { name: "", cell: (row) => row[0] },
  { name: unit, number: true, cell: (row) => row[1] },
];

function facts(id, unit, rows) {
  show(id, table(factColumns(unit), rows));
}

const resumePoints = (points) => [
  ["resume points", count(points.count)],
  ["memory of resume points", `${bytes(points.bytes)} of ${bytes(points.bytes_budget)}`],
  ["resume points used by requests", count(points.used)],
  ["resume points dropped", count(points.dropped)],
];

function counters(doc) {
  const { prefix } = doc;
  const misses = Object.entries(prefix.miss_tokens)
    .map(([reason, n]) => [`miss: ${words(reason)}`, count(n)]);
  facts("prefix-table", "Tokens", [
    ["looked up", count(prefix.query_tokens)],
    ["hit (KV reused)", count(prefix.hit_tokens)],
    ...misses,
    [`last ${duration(prefix.recent.seconds)}: hit of looked up`,
      `${count(prefix.recent.hit_tokens)} of ${count(prefix.recent.query_tokens)}`],
  ]);
  const why = { watermark: "evicted: low free space (watermark)",
    demand: "evicted: a step needed room (demand)", request: "evicted: asked for (request)" };
  facts("evictions-table", "Cells or times", [
    ...Object.entries(doc.evicted_cells)
      .map(([reason, n]) => [why[reason] ?? reason, `${count(n)} cells`]),
    ["reclaim ticks", count(doc.reclaim.ticks)],
    ["reclaim runs that evicted", count(doc.reclaim.runs)],
    ...(doc.pools.length > 1 || doc.states.slots > 0 ? resumePoints(doc.resume_points) : []),
    ["plans that did not fit", count(doc.alloc_failures)],
    ["sessions preempted", count(doc.preempted)],
  ]);
  facts("requests-table", "Times", [
    ...Object.entries(doc.requests).map(([outcome, n]) => [`ended: ${outcome}`, count(n)]),
    ["engine steps", count(doc.steps)],
    ["between two tokens, median", latency(doc.latency.inter_token.recent.p50_seconds)],
    ["between two tokens, 95 % within", latency(doc.latency.inter_token.recent.p95_seconds)],
    ["up for", duration(doc.uptime_seconds)],
  ]);
}

const badge = (text) => element("span", { class: `badge ${text}` }, text);

const SESSION_COLUMNS = [
  { name: "Request", number: true, cell: (s) => String(s.request) },
  { name: "State", cell: (s) => badge(s.state) },
  { name: "Tenant", cell: (s) => s.tenant },
  { name: "Prompt tokens", number: true, cell: (s) => count(s.prompt_tokens) },
  { name: "From cache", number: true, cell: (s) => count(s.cached_tokens) },
  { name: "Computed", number: true, cell: (s) => count(s.computed_tokens) },
  { name: "Generated", number: true, cell: (s) => count(s.generated_tokens) },
  { name: "Age", number: true, cell: (s) => duration(s.age_seconds) },
];
const SESSIONS_SHOWN = 100;

function sessions(doc) {
  const rows = [...doc.sessions].sort((a, b) => b.age_seconds - a.age_seconds);
  const shown = rows.slice(0, SESSIONS_SHOWN);
  show("sessions-table", table(SESSION_COLUMNS, shown, { empty: "No session is open." }));
  document.getElementById("sessions-total").textContent =
    shown.length < doc.sessions_total
      ? `oldest ${count(shown.length)} of ${count(doc.sessions_total)} open`
      : `${count(doc.sessions_total)} open`;
}

const TENANT_COLUMNS = [
  { name: "Tenant", cell: (t) => t.tenant },
  { name: "Tokens looked up", number: true, cell: (t) => count(t.query_tokens) },
  { name: "Hit tokens", number: true, cell: (t) => count(t.hit_tokens) },
  { name: "Hit ratio", number: true, cell: (t) => percent(t.hit_ratio) },
];

export function render(doc, series) {
  kpis(doc, series);
  cellsByState(doc);
  counters(doc);
  sessions(doc);
  show("tenants-table", table(TENANT_COLUMNS, doc.tenants, { empty: "No requests yet." }));
}

const changes = (values) =>
  Object.entries(values).map(([name, value]) => `${name} = ${value}`).join(", ") || NONE;

const AUDIT_COLUMNS = [
  { name: "When", cell: (r) => new Date(r.time).toLocaleString() },
  { name: "Who", cell: (r) => (r.address ? `${r.who} (${r.address})` : r.who) },
  { name: "Action", cell: (r) => r.action },
  { name: "Before", cell: (r) => changes(r.before) },
  { name: "After", cell: (r) => changes(r.after) },
  { name: "Reason", cell: (r) => r.reason || NONE },
  { name: "Result", cell: (r) => badge(r.result) },
  { name: "Generation", number: true, cell: (r) => String(r.generation) },
];

export function renderChanges({ rows }) {
  show("changes-table", table(AUDIT_COLUMNS, rows, { empty: "No changes yet." }));
}
