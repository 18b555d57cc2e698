// Drawing primitives. Text enters the page as text, never as markup.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

export function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Setting an unchanged text would make screen readers repeat it, and clear selections.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A text that may be truncated: the tooltip shows all of it.
export function whole(element, text) {
  say(element, text);
  if (element.title !== text) element.title = text;
}

export function mark(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}

const GROUPS = new Intl.NumberFormat("en", { useGrouping: true, maximumFractionDigits: 0 });
export const grouped = (number) => GROUPS.format(number).replaceAll(",", "\u202f");
export const plural = (number, word) => (number === 1 ? `1 ${word}` : `${grouped(number)} ${word}s`);

export function duration(seconds) {
  if (seconds < 0.001) return "less than 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// For running times: no flickering tenths.
export const span = (seconds) => (seconds < 60 ? `${Math.max(0, Math.floor(seconds))} s` : duration(seconds));

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
export function clock(at) {
  const date = new Date(at * 1000);
  const time = CLOCK.format(date);
  return date.toDateString() === new Date().toDateString() ? time : `${DAY.format(date)} ${time}`;
}

export const STATES = { healthy: "healthy", failing: "failing", "failed-over": "failed over", draining: "draining" };

// Heights and positions distinguish states without colours.
const SHAPES = { healthy: [8, 4], failing: [6, 8], "failed-over": [1, 18], draining: [5, 10] };

/** The states of one entity over time, as a plot that says the same in words. */
export function timeline(svg, row, from, now) {
  const rects = [drawn("rect", { class: "rail", x: "0", y: "9.5", width: "100%", height: "1" })];
  const spans = [];
  const changes = row.changes.length || row.state === null ? row.changes : [[from, row.state]];
  changes.forEach(([at, state], index) => {
    const end = index + 1 < changes.length ? changes[index + 1][0] : now;
    if (end <= from) return;
    const left = (Math.max(at, from) - from) / (now - from);
    const width = Math.max(0, (end - Math.max(at, from)) / (now - from));
    const [y, height] = SHAPES[state];
    const least = state === "healthy" ? width : Math.max(width, 0.003); // a short outage stays visible
    const x = Math.min(left, 1 - least);
    rects.push(drawn("rect", { class: state, x: percent(x), width: percent(least), y, height }));
    spans.push(`${STATES[state]} from ${at <= from ? "before" : clock(at)}`);
  });
  const words = spans.length ? `${row.path}: ${spans.slice(-8).join(", ")}` : `${row.path}: nothing is known`;
  svg.setAttribute("aria-label", words);
  svg.replaceChildren(...rects);
}

const percent = (part) => `${(100 * part).toFixed(3)}%`;

const GAP = 15; // s without a count: a gap in the data

/** The depth of the backlog over time; where it was not counted there is a gap. */
export function area(path, samples, now) {
  const most = Math.max(...samples.map(([, pending]) => pending));
  const from = samples[0][0];
  const length = Math.max(1, now - from);
  const x = (at) => (((at - from) / length) * 1000).toFixed(1);
  const y = (pending) => (100 - (96 * pending) / Math.max(most, 1)).toFixed(1);
  let way = "";
  samples.forEach(([at, pending], index) => {
    const [before, previous] = samples[index - 1] ?? [-Infinity, 0];
    // A count lasts until just after its instant, so that one between two gaps is visible.
    if (at - before <= GAP) way += `L${x(at)} ${y(previous)}L${x(at)} ${y(pending)}`;
    else way += `${index ? `L${x(before + 1)} ${y(previous)}L${x(before + 1)} 100Z` : ""}M${x(at)} 100L${x(at)} ${y(pending)}`;
  });
  const [at, pending] = samples[samples.length - 1];
  const until = now - at <= GAP ? now : at + 1;
  path.setAttribute("d", `${way}L${x(until)} ${y(pending)}L${x(until)} 100Z`);
  return most;
}

/** Keep the children of a list, one for each key, in order; moves only what must move. */
export function keyed(parent, things, keyOf, create, update, frozen = false) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(things.map(keyOf));
  for (const [key, child] of present) if (!wanted.has(key)) child.remove();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let before = parent.firstElementChild;
  for (const thing of things) {
    const key = keyOf(thing);
    let child = present.get(key);
    if (!child) {
      child = create(thing);
      child.dataset.key = key;
      parent.insertBefore(child, frozen ? null : before);
    } else if (child === before) {
      before = before.nextElementSibling;
    } else if (!frozen) {
      parent.insertBefore(child, before);
    }
    update(child, thing);
  }
  // A moved element loses the focus.
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}
