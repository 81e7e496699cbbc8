// The live chart and its table. Without the chart library only the table is shown.

import { clockTime, NONE, rate } from "./format.js";
import { VIEWS } from "./rates.js";
import { show, table } from "./table.js";

const TABLE_ROWS = 60;
const HEIGHT = 260;

const place = document.getElementById("chart");
const tablePlace = document.getElementById("chart-table");
const toggle = document.getElementById("chart-table-toggle");
const select = document.getElementById("chart-view");
const dark = matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  constructor(series) {
    this.series = series;
    this.library = null;
    this.plot = null;
    this.asTable = false;
  }

  async start(built) {
    if (built) {
      try {
        this.library = (await import("../vendor/uPlot.esm.js")).default;
      } catch {
        this.library = null;
      }
    }
    if (!this.library) {
      this.asTable = true;
      toggle.hidden = true;
    }
    select.addEventListener("change", () => this.rebuild());
    toggle.addEventListener("click", () => {
      this.asTable = !this.asTable;
      toggle.setAttribute("aria-pressed", String(this.asTable));
      toggle.textContent = this.asTable ? "Show as chart" : "Show as table";
      this.rebuild();
    });
    dark.addEventListener("change", () => this.rebuild());
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(place);
    this.rebuild();
  }

  get view() {
    return VIEWS[select.value];
  }

  size() {
    return { width: Math.max(200, place.clientWidth), height: HEIGHT };
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    place.hidden = this.asTable;
    tablePlace.hidden = !this.asTable;
    if (!this.asTable) {
      this.plot = new this.library(this.options(), this.series.columns(this.view), place);
    }
    this.draw();
  }

  draw() {
    if (this.asTable) this.drawTable();
    else this.plot?.setData(this.series.columns(this.view));
  }

  drawTable() {
    const view = this.view;
    const columns = this.series.columns(view);
    const rows = columns[0].map((_, i) => columns.map((c) => c[i])).slice(-TABLE_ROWS).reverse();
    const heads = view.series.map((s, i) => ({
      name: `${s.name} (${view.unit})`,
      number: true,
      cell: (row) => (row[i + 1] == null ? NONE : rate(row[i + 1])),
    }));
    const made = table([{ name: "Time", cell: (row) => clockTime(row[0]) }, ...heads], rows);
    show("chart-table", made);
  }

  options() {
    const view = this.view;
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const value = (_, v) => (v == null ? NONE : `${rate(v)} ${view.unit}`);
    return {
      ...this.size(),
      scales: { y: { range: view.range ?? ((_, __, max) => [0, max > 0 ? max * 1.1 : 1]) } },
      axes: [
        { ...axis, space: 90, values: (_, ticks) => ticks.map(clockTime) },
        { ...axis, size: 70, values: (_, ticks) => ticks.map((v) => v.toLocaleString("en")) },
      ],
      series: [
        { label: "Time", value: (_, v) => (v == null ? NONE : clockTime(v)) },
        ...view.series.map((s) => ({
          label: s.name,
          stroke: colour(s.colour),
          width: 2,
          value,
          spanGaps: true,
          points: { show: Boolean(s.dots), size: 4 },
        })),
      ],
    };
  }
}
