/** Numbers as people read them. */

/** Bytes in the largest unit that keeps the number above one. */
export function bytes(count) {
  if (count === null || count === undefined) return "unknown";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** A whole number with separators. */
export function whole(count) {
  return Math.round(count).toLocaleString("en");
}

/** A number with one decimal, or none where it is large. */
export function short(value) {
  return value >= 100 ? whole(value) : Number(value).toFixed(1);
}

/** Seconds as a person says them. */
export function seconds(value) {
  if (value < 60) return `${short(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

/** A share from 0 to 1 in percent. */
export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}
