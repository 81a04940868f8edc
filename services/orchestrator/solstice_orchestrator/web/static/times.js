// How durations and ages are written; the same as in solstice_common/values/times.py.

export function duration(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  if (whole < 60) return seconds > 0 && seconds < 10 ? `${(Math.floor(seconds * 10) / 10).toFixed(1)} s` : `${whole} s`;
  const minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}

export function age(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (whole >= size) return `${Math.floor(whole / size)} ${unit}`;
  }
  return `${whole} s`;
}

export function ago(seconds) {
  return seconds >= 1 ? `${age(seconds)} ago` : "just now";
}
