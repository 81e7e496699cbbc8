// Starts the overview page: polls, pauses, hands each document to the parts.

import { read } from "./api.js";
import { Chart } from "./chart.js";
import { clockTime } from "./format.js";
import { Series } from "./rates.js";
import { render, renderChanges } from "./render.js";
import { TuningForm } from "./tuning.js";

const POLL_MS = 2000;
const CHANGES_SHOWN = 20;

const live = document.getElementById("live");
const pauseButton = document.getElementById("pause");

const series = new Series();
const chart = new Chart(series);
const changed = async () => renderChanges(await read(`audit?limit=${CHANGES_SHOWN}`));
const tuning = new TuningForm(changed);
let paused = false;
let seen = null;  // generation of the changes shown

function status(kind, text) {
  live.className = `live ${kind}`;
  if (live.textContent !== text) live.textContent = text;
}

async function update() {
  const doc = await read("overview");
  if (paused) return;
  series.push(doc);
  render(doc, series);
  chart.draw();
  await tuning.follow(doc.generation);
  if (doc.generation !== seen) {
    seen = doc.generation;
    await changed();
  }
  live.title = `Last update ${clockTime(doc.time_seconds)}`;
  status("on", "Live");
}

async function poll() {
  try {
    if (!paused && !document.hidden) await update();
  } catch (error) {
    status("off", `No answer from the server: ${error.message}`);
  }
  setTimeout(poll, POLL_MS);
}

pauseButton.addEventListener("click", async () => {
  paused = !paused;
  pauseButton.setAttribute("aria-pressed", String(paused));
  pauseButton.textContent = paused ? "Resume" : "Pause";
  status(paused ? "paused" : "", paused ? "Paused" : "Connecting…");
  if (!paused) series.load(await read("history"));
});

async function start() {
  series.load(await read("history"));
  await chart.start(document.getElementById("main").dataset.charts === "yes");
  await tuning.start();
  await poll();
}

start().catch((error) => status("off", `The page could not start: ${error.message}`));
