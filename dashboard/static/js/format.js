// Numbers as people read them, always with a unit. `null` (nothing measured yet) is "–".

const integer = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

export const NONE = "–";

export const count = (value) => (value == null ? NONE : integer.format(value));

export const compact = (value) =>
  value == null ? NONE : value < 10000 ? integer.format(value) : short.format(value);

export const percent = (ratio) => (ratio == null ? NONE : `${(100 * ratio).toFixed(1)} %`);

export function rate(value) {
  if (value == null) return NONE;
  return value < 100 ? value.toFixed(1) : integer.format(value);
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

// A short time: 850 µs, 12.3 ms, 4.56 s.
export function latency(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

// A long time: 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
export function duration(seconds) {
  if (seconds == null) return NONE;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const clockTime = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

export const words = (name) => name.replaceAll("_", " ");
