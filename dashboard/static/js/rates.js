// Turns rows of counters into series per second. The server sends counters only.

export const STATES = ["computing", "active", "pinned", "resume", "idle", "free"];

const KEEP_SECONDS = 900;
const MIN_SECONDS = 1;  // rates over less would be noise

export class Series {
  constructor() {
    this.rows = [];
  }

  // As GET /api/v1/history sends them.
  load({ fields, rows }) {
    this.rows = rows.map((row) => Object.fromEntries(fields.map((name, i) => [name, row[i]])));
  }

  // One document of GET /api/v1/overview.
  push(overview) {
    const row = {
      time: overview.time_seconds,
      query_tokens: overview.prefix.query_tokens,
      hit_tokens: overview.prefix.hit_tokens,
      prompt_tokens: overview.tokens.prompt,
      generated_tokens: overview.tokens.generated,
      steps: overview.steps,
    };
    for (const state of STATES) row[`cells_${state}`] = overview.cells.states[state];
    const last = this.rows.at(-1);
    if (last && row.time < last.time + MIN_SECONDS) return;
    if (last && row.steps < last.steps) this.rows = [];  // the engine started anew
    this.rows.push(row);
    this.rows = this.rows.filter((r) => r.time > row.time - KEEP_SECONDS);
  }

  // Tokens per second of a counter over about the last `seconds`; null with fewer than two rows.
  rate(counter, seconds) {
    const last = this.rows.at(-1);
    if (this.rows.length < 2) return null;
    const first = this.rows.findLast((r) => r.time <= last.time - seconds) ?? this.rows[0];
    return (last[counter] - first[counter]) / (last.time - first.time);
  }

  // [times, …one array per series], for a view of VIEWS.
  columns(view) {
    const from = view.pairs ? 1 : 0;
    const rows = this.rows.slice(from);
    const values = view.series.map(({ value }) =>
      rows.map((row, i) => value(row, view.pairs ? this.rows[i] : null)));
    return [rows.map((row) => row.time), ...values];
  }
}

const perSecond = (counter) => (now, before) =>
  Math.max(0, (now[counter] - before[counter]) / (now.time - before.time));

const hitRatio = (now, before) => {
  const asked = now.query_tokens - before.query_tokens;
  return asked > 0 ? (100 * (now.hit_tokens - before.hit_tokens)) / asked : null;
};

const overall = (now) => (now.query_tokens > 0 ? (100 * now.hit_tokens) / now.query_tokens : null);

// colour: a CSS variable of pykv.css. pairs: values need the row before.
export const VIEWS = {
  tokens: {
    unit: "tokens/s",
    pairs: true,
    series: [
      { name: "Prompt", colour: "--active", value: perSecond("prompt_tokens") },
      { name: "Generated", colour: "--computing", value: perSecond("generated_tokens") },
    ],
  },
  hits: {
    unit: "%",
    pairs: true,
    range: [0, 100],
    series: [
      { name: "Hit ratio between two samples", colour: "--active", value: hitRatio, dots: true },
      { name: "Since start", colour: "--pinned", value: overall },
    ],
  },
  cells: {
    unit: "cells",
    pairs: false,
    series: STATES.map((state) => ({
      name: state,
      colour: `--${state}`,
      value: (row) => row[`cells_${state}`],
    })),
  },
};
