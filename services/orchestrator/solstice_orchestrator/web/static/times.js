// How times are said; the same as in words.py.

export function ago(seconds) {
  if (seconds < 45) return "just now";
  if (seconds >= 86400) return `${Math.floor(seconds / 86400)} d ago`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.max(1, Math.floor(seconds / 60))} min ago`;
}

export function duration(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  if (whole < 60) return seconds > 0 && seconds < 10 ? `${(Math.floor(seconds * 10) / 10).toFixed(1)} s` : `${whole} s`;
  const minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}
