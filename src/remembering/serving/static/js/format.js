/** Numbers in words. */

export function percent(share) {
  if (share > 0 && share < 0.005) return "<1 %";
  if (share < 1 && share >= 0.995) return ">99 %";
  return `${Math.round(share * 100)} %`;
}

export function bytes(count) {
  if (count < 1000) return `${count} bytes`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = count / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function timeLeft(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 4) return "a few seconds left";
  if (seconds < 90) return `about ${Math.ceil(seconds / 5) * 5} seconds left`;
  return `about ${Math.round(seconds / 60)} minutes left`;
}

/** "a", "a and b", "a, b and c"; from the fourth on "a, b and 3 more". */
export function list(items, most = 3) {
  if (items.length <= 1) return items.join("");
  if (items.length <= most) return `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
  return `${items.slice(0, most - 1).join(", ")} and ${items.length - most + 1} more`;
}

/** What a p-value means for one picture. */
export function pValue(p, unknown) {
  const hundred = p * 100;
  const share = hundred < 1 ? "Fewer than 1 in 100" : `${unknown ? "Only about" : "About"} ${Math.round(hundred)} in 100`;
  return `${share} pictures of things I know look ${unknown ? "this" : "at least this"} unusual (p\u00a0=\u00a0${p.toPrecision(2)}).`;
}

/** Turn a message of the library into a sentence. */
export function sentence(text) {
  const trimmed = String(text).trim();
  if (!trimmed) return "";
  const first = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
