// The form for live settings. It sends the generation it was filled from; if another
// change came first, it shows that change and keeps the edits.

import { ApiError, change, read } from "./api.js";
import { element, show } from "./table.js";

const body = document.getElementById("tuning-fields");
const form = document.getElementById("tuning-form");
const reason = document.getElementById("tuning-reason");
const apply = document.getElementById("tuning-apply");
const reset = document.getElementById("tuning-reset");

const say = (kind, ...text) =>
  show("tuning-message", element("p", { class: `notice ${kind}` }, ...text));

export class TuningForm {
  constructor(onChanged) {
    this.onChanged = onChanged;
    this.view = null;
    this.inputs = new Map();
  }

  async start() {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    reset.addEventListener("click", () => this.fill(this.view, false));
    this.fill(await read("tuning"), false);
  }

  // Another browser or program changed a setting: take it over, keep what is being edited.
  async follow(generation) {
    if (this.view && generation !== this.view.generation) this.fill(await read("tuning"), true);
  }

  edits() {
    return this.view.fields.filter((f) => this.inputs.get(f.name).value.trim() !== String(f.current));
  }

  fill(view, keepEdits) {
    const kept = keepEdits ? new Map(this.edits().map((f) => [f.name, this.inputs.get(f.name).value])) : new Map();
    this.view = view;
    this.inputs.clear();
    body.replaceChildren(...view.fields.map((field) => this.row(field, kept.get(field.name))));
    document.getElementById("tuning-generation").textContent = `generation ${view.generation}`;
    this.mark();
  }

  row(field, kept) {
    const id = `tuning-${field.name}`;
    const input = element("input", {
      id,
      name: field.name,
      inputmode: field.integer ? "numeric" : "decimal",
      autocomplete: "off",
      "aria-describedby": `${id}-what`,
    });
    input.value = kept ?? String(field.current);
    input.addEventListener("input", () => this.mark());
    this.inputs.set(field.name, input);
    const number = (text) => element("td", { class: "number" }, text);
    return element("tr", {},
      element("th", { scope: "row" }, element("label", { for: id }, field.name)),
      element("td", {}, input),
      element("td", {}, field.unit),
      number(String(field.current)),
      number(String(field.default)),
      number(`${field.minimum} … ${field.maximum}`),
      element("td", { class: "what", id: `${id}-what` }, field.description));
  }

  mark() {
    const edited = new Set(this.edits().map((f) => f.name));
    for (const [name, input] of this.inputs) {
      input.classList.toggle("edited", edited.has(name));
      input.removeAttribute("aria-invalid");
    }
    apply.disabled = reset.disabled = edited.size === 0;
  }

  async apply() {
    const values = {};
    for (const field of this.edits()) {
      const text = this.inputs.get(field.name).value.trim();
      const value = Number(text);
      if (text === "" || !Number.isFinite(value)) {
        this.refuse(field.name, `${field.name} = "${text}" is not a number.`);
        return;
      }
      values[field.name] = value;
    }
    apply.disabled = true;
    try {
      const view = await change("tuning", { generation: this.view.generation, values, reason: reason.value });
      this.fill(view, false);
      reason.value = "";
      if (view.applied) say("good", `Applied. Generation ${view.generation}.`);
      else say("", "Accepted. The engine takes it over after its current step.");
    } catch (error) {
      this.failed(error);
    }
    this.onChanged();
  }

  failed(error) {
    if (error instanceof ApiError && error.status === 412) {
      const others = error.detail.changes.map((row) => element("li", {},
        `${row.who}, ${new Date(row.time).toLocaleTimeString()}: ` +
        Object.entries(row.after).map(([k, v]) => `${k} ${row.before[k]} → ${v}`).join(", ")));
      this.fill(error.detail.current, true);
      say("bad", "Not applied: another change came first. Your edits are kept; check them and apply again.",
        element("ul", {}, ...others));
      return;
    }
    this.mark();
    if (error instanceof ApiError && error.detail.field) this.refuse(error.detail.field, error.message);
    else say("bad", error.message);
  }

  refuse(name, message) {
    const input = this.inputs.get(name);
    input?.setAttribute("aria-invalid", "true");
    input?.focus();
    say("bad", message);
  }
}
