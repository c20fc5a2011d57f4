/** Numbers for people. */

const WHOLE = new Intl.NumberFormat("en");

/** @param {number} value */
export function whole(value) {
  return WHOLE.format(Math.round(value));
}

/**
 * A number with about three digits.
 *
 * @param {number|null|undefined} value
 */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const text = size >= 1000 ? WHOLE.format(Math.round(size)) : size.toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** @param {number} bytes */
export function fileSize(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/**
 * A time in a video, as 1:02:03.45.
 *
 * @param {number} seconds
 * @param {number} [digits] After the decimal point.
 */
export function clock(seconds, digits = 2) {
  if (!Number.isFinite(seconds)) return "–";
  // Rounded first, so that 59.999 does not become 0:60.00.
  const rounded = Number(Math.max(0, seconds).toFixed(digits));
  const hours = Math.floor(rounded / 3600);
  const minutes = Math.floor((rounded % 3600) / 60);
  const rest = (rounded % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/**
 * A time that a person waits, as "3 min".
 *
 * @param {number|null|undefined} seconds
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** @param {number|null|undefined} share */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export function counted(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

/**
 * When something was made: the time if it was today, else the date.
 *
 * @param {number} seconds Unix time; 0 if unknown.
 */
export function moment(seconds) {
  if (!seconds) return "";
  const then = new Date(1000 * seconds);
  const today = then.toDateString() === new Date().toDateString();
  return today
    ? then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })
    : then.toLocaleDateString([], { day: "numeric", month: "short" });
}

/**
 * Text of a time as people type it ("90", "1:30", "1:02:03.5") in seconds; null if it is none.
 *
 * @param {string} text
 * @returns {number|null}
 */
export function readClock(text) {
  if (!/^\d+(:\d{1,2}){0,2}(\.\d+)?$/.test(text.trim())) return null;
  return text
    .trim()
    .split(":")
    .reduce((sum, part) => 60 * sum + Number(part), 0);
}
