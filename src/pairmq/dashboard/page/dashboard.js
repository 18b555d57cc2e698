// Polls the status, shows it, and forwards an operator's actions.
import { $, area, clock, duration, drawn, grouped, keyed, make, mark, plural, say, span, STATES, timeline, whole } from "./parts.js";

const EVERY = 1000; // ms between two polls
const LONGEST = 8000; // ms, time limit of a response
const PAGE = 200; // entities that are shown at first
const HEADERS = { "x-pairmq-dashboard": "1", "content-type": "application/json" };
const WORDS = {
  hold: ["Hold", "Its sends go to the backlog, and no ping ends that, until it is marked healthy or failed over without a hold."],
  force_failover: ["Fail over", "Its sends go to the backlog until pings find the primary working, or until it is marked healthy."],
  mark_healthy: ["Mark healthy", "Its sends go to the primary immediately, and a hold ends."],
};

let limit = PAGE;
let last = null; // the last status
let asking = null;
let touched = -Infinity; // when the user last interacted with the table
let turns = 0;
let refused = false; // without the token polling stops

// Polling.

async function ask(path, options = {}) {
  const ending = new AbortController();
  const timer = setTimeout(() => ending.abort(), LONGEST);
  try {
    return await fetch(path, { ...options, signal: ending.signal, cache: "no-store" });
  } finally {
    clearTimeout(timer);
  }
}

async function look() {
  const turn = ++turns;
  const query = new URLSearchParams({ search: $("search").value, state: $("state").value, limit: String(limit) });
  let view;
  try {
    const answer = await ask(`api/status?${query}`);
    if (answer.status === 401) return mustSignIn();
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    view = await answer.json();
  } catch {
    if (turn === turns) lost();
    return;
  }
  if (turn !== turns) return; // a later poll has started
  last = view;
  live();
  show(view);
}

async function round() {
  clearTimeout(asking);
  try {
    if (!document.hidden && !refused) await look();
  } finally {
    clearTimeout(asking);
    asking = setTimeout(round, EVERY);
  }
}

function live() {
  delete document.body.dataset.stale;
  delete $("live").dataset.lost;
  delete $("live").dataset.quiet;
  say($("live"), "live");
}

function lost() {
  const since = last ? `stale since ${clock(last.at)}` : "";
  $("live").dataset.lost = "";
  document.body.dataset.stale = "";
  say($("live"), `no answer from the server${since ? `, ${since}` : ""}`);
  document.title = "! PairMQ";
}

// Showing.

function show(view) {
  $("main").hidden = false;
  document.body.toggleAttribute("data-looks", !view.sends);
  say($("pair"), view.pair);
  verdict(view);
  tiles(view);
  entities(view);
  backlog(view);
  events(view);
  const sign = $("sign");
  sign.hidden = view.access.read_only && !view.access.operator;
  say(sign, view.access.operator ? "Sign out" : "Sign in");
  sign.title = view.access.operator ? "" : "to hold, fail over and mark entities";
  say($("foot"), scope(view));
}

function scope(view) {
  const { host, pid, version } = view.process;
  const where = `process ${pid} on ${host} (PairMQ ${version})`;
  if (!view.sends) return `This is what ${where} sees of the two brokers since ${clock(view.since)}. It sends nothing: the states of entities are known to the programs that send.`;
  const does = view.syphon ? "sends and drains the backlog" : "sends";
  return `This is what ${where} sees since ${clock(view.since)}. States are those of its own pair, which ${does}; other programs have pairs of their own, and nothing that is done here reaches them.`;
}

function verdict(view) {
  const { by_state: states, held, shut, refusing } = view.entities;
  const out = view.backlog.in_use === null ? 0 : view.backlog.queues - view.backlog.in_use;
  const over = states["failed-over"], failing = states.failing, left = view.backlog.pending;
  const down = ["primary", "secondary"].filter((side) => view.brokers[side].answer && !view.brokers[side].answer.ok);
  const more = [];
  const { stranded, differences, unread } = view.agreement || { stranded: [], differences: [], unread: null };
  let tone = "good", sign = "✓", said;
  if (view.ended) {
    [tone, sign, said] = view.ended.fault ? ["bad", "✗", `The pair has faulted: ${view.ended.fault}`] : ["warn", "!", "The pair is closed."];
    more.push(`brokers and backlog are as it saw them before ${clock(view.ended.at)}`);
  } else if (over) {
    [tone, sign] = ["bad", "✗"];
    const [those, whose] = over === 1 ? ["1 entity is failed over", "its"] : [`${grouped(over)} entities are failed over`, "their"];
    if (view.backlog.takes !== false) said = `${those}: ${whose} sends go to the backlog.`;
    else said = `${those}, and ${down.includes("secondary") ? "the secondary does not respond" : "no backlog queue is in use"}: ${whose} sends fail.`;
    if (held) more.push(`${held} held by an operator`);
  } else if (down.length) {
    [tone, sign, said] = ["bad", "✗", `The ${down.join(" and the ")} ${down.length > 1 ? "do" : "does"} not respond.`];
  } else if (failing || shut) {
    [tone, sign] = ["warn", "!"];
    said = failing ? `${failing === 1 ? "1 entity fails" : `${grouped(failing)} entities fail`}; failover is near.` : `${shut === 1 ? "1 destination takes" : `${grouped(shut)} destinations take`} none of the syphon's messages.`;
  } else if (refusing) {
    [tone, sign, said] = ["bad", "✗", refusing === 1 ? "1 entity takes no messages." : `${grouped(refusing)} entities take no messages.`];
  } else if (out) {
    [tone, sign, said] = ["warn", "!", out === 1 ? "1 backlog queue is out of use." : `${grouped(out)} backlog queues are out of use.`];
  } else if (stranded.length) {
    [tone, sign, said] = ["bad", "✗", "Messages wait in queues that this pair does not read."];
  } else if (left || states.draining) {
    [tone, sign] = ["plain", "↩"];
    said = left ? "Messages wait in the backlog." : "The backlog is being counted.";
  } else {
    said = view.sends ? "All is well." : "Both brokers respond.";
    if (unread) [tone, sign, said] = ["warn", "!", "The settings of other processes of this pair are not known."];
    if (differences.length) [tone, sign, said] = ["warn", "!", "Processes of this pair have different settings."];
    const unasked = left === null || !view.agreement || !view.brokers.primary.answer || !view.brokers.secondary.answer;
    if (unasked) [tone, sign, said] = ["warn", "…", view.backlog.error ? "The backlog can't be counted." : "Checking the brokers."];
  }
  // What changes every second is here, not in the sentence that screen readers read aloud.
  if (left) more.push(`${plural(left, "message")} in the backlog`);
  if (view.drain.seconds_left !== null) more.push(`empty in about ${soon(view.drain.seconds_left)} at ${pace(view.drain.per_second)}`);
  if (down.length && over) more.push(`the ${down.join(" and the ")} ${down.length > 1 ? "do" : "does"} not respond`);
  more.push(...stranded.slice(0, 3), ...differences.slice(0, 3), unread);
  if (!more.filter(Boolean).length && tone === "good") more.push(left === 0 ? "The backlog is empty." : "");
  const box = $("verdict");
  mark(box, "tone", tone);
  say(box.querySelector(".mark"), sign);
  say(box.querySelector(".said"), said);
  const text = more.filter(Boolean).join("; ");
  say(box.querySelector(".more"), text && text[0].toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : "."));
  const title = `${sign} ${said} PairMQ`;
  if (document.title !== title) document.title = title;
}

const soon = (seconds) => span(Math.max(1, seconds));
const number = (perSecond) => (perSecond < 10 ? perSecond.toFixed(1) : grouped(perSecond));
const pace = (perSecond) => `${number(perSecond)} a second`;

function tiles(view) {
  const { backlog: found, drain } = view;
  const broker = (side) => {
    const { url, answer } = view.brokers[side];
    const name = side === "primary" ? "Primary" : "Secondary";
    if (!answer) return { name, value: "…", note: url, tone: "plain" };
    return { name, value: answer.ok ? "reachable" : "unavailable", note: answer.ok ? `${url} in ${duration(answer.seconds)}` : answer.error, tone: answer.ok ? "good" : "bad" };
  };
  const waiting = { name: "In the backlog", value: found.pending === null ? "?" : grouped(found.pending), note: "", tone: "plain" };
  if (found.pending) waiting.note = found.oldest === null ? "" : `the oldest for ${span(view.at - found.oldest)}`;
  else waiting.note = found.pending === 0 ? "nothing waits" : found.error || "not counted yet";
  if (found.error) waiting.tone = "bad";
  const moving = { name: "Drain", value: drain.per_second ? `${number(drain.per_second)}/s` : "–", note: "", tone: "plain" };
  if (drain.seconds_left !== null) moving.note = `about ${soon(drain.seconds_left)} left`;
  else if (found.pending) moving.note = view.syphon ? "nothing moves now" : "no syphon in this process";
  else moving.note = view.syphon ? `${grouped(drain.moved)} moved so far` : "no syphon in this process";
  if (found.pending && drain.peak) moving.part = 1 - found.pending / drain.peak;
  const out = found.in_use === null ? 0 : found.queues - found.in_use;
  const use = { name: "Queues in use", value: found.in_use === null ? grouped(found.queues) : `${found.in_use} of ${found.queues}`, note: "", tone: out ? (out === found.queues ? "bad" : "warn") : "plain" };
  if (found.in_use === null) use.note = "as asked for";
  else if (out) use.note = `${out} out after a failure`;
  else if (found.takes === false) [use.note, use.tone] = ["none can be reached: the secondary does not respond", "bad"];
  else use.note = found.takes ? "all work" : "not asked yet";
  const dead = { name: "Dead-lettered", value: found.dead_letter === null ? "?" : grouped(found.dead_letter), note: found.dead_letter ? "pairmq backlog peek --dead-letter shows them" : "", tone: found.dead_letter ? "warn" : "plain" };
  const all = [broker("primary"), broker("secondary"), waiting, moving, use, dead];
  if (view.outbox) all.push(outbox(view));
  keyed($("tiles"), all, (tile) => tile.name, newTile, (element, tile) => {
    mark(element, "tone", tile.tone);
    say(element.querySelector(".value"), tile.value);
    whole(element.querySelector(".note"), tile.note);
    const bar = element.querySelector("progress");
    bar.hidden = tile.part === undefined;
    if (tile.part !== undefined) bar.value = tile.part;
  });
}

/** What transactions have stored, and the syphon has not moved yet; one that works moves it in milliseconds. */
function outbox(view) {
  const found = view.outbox, age = found.oldest === null ? null : view.at - found.oldest;
  const tile = { name: "Outbox", value: found.pending === null ? (found.missing ? "0" : "?") : grouped(found.pending), note: "", tone: "plain" };
  const notes = [];
  if (found.error) [tile.tone, notes[0]] = ["bad", found.error];
  if (age !== null) notes.push(`the oldest for ${span(age)}`);
  if (found.per_second) notes.push(pace(found.per_second));
  else if (!found.pending && view.syphon) notes.push(`${grouped(found.moved)} moved so far`);
  if (found.dead_letter) notes.push(`${plural(found.dead_letter, "dead letter")}: pairmq backlog peek --outbox --dead-letter`);
  if (tile.tone === "plain" && (found.dead_letter || age > 60)) tile.tone = "warn";
  tile.note = notes.join(", ");
  return tile;
}

function newTile(tile) {
  const bar = make("progress", { max: 1, hidden: true });
  bar.setAttribute("aria-label", "part of the backlog that has left");
  return make("div", { className: "tile" }, make("dt", { textContent: tile.name }), make("dd", {}, make("div", { className: "value" }), bar, make("div", { className: "note" })));
}

function entities(view) {
  const table = $("entities");
  // The time before this process started is not known, and would only compress the rest.
  const from = Math.max(view.at - Number($("window").value), Math.min(view.since - 5, view.at - 60));
  table.toggleAttribute("data-acts", view.access.may_operate);
  say($("axis-from"), `${span(view.at - from)} ago`);
  // Rows must not move while a pointer is about to press a button.
  const frozen = performance.now() - touched < 5000;
  keyed(table.tBodies[0], view.entities.rows, (row) => `${row.kind} ${row.path}`, newRow, (element, row) => {
    const state = element.querySelector(".state");
    const [kind, word] = stateOf(row);
    state.className = `state ${kind}`;
    say(state, word);
    reasons(element.querySelector(".reasons"), row, view.at);
    timeline(element.querySelector(".line"), row, from, view.at);
    const buttons = element.querySelectorAll(".acts button");
    buttons[0].disabled = row.held && (row.syphon_held || !view.syphon);
    buttons[1].disabled = row.state === "failed-over" && !row.held;
    buttons[2].disabled = row.state === "healthy" || row.state === "draining";
  }, frozen);
  const { total, found, rows } = view.entities;
  const note = total === 0 ? (view.sends ? "This process has used no entity yet." : "No entity is given: --entity NAME probes one.") : found === 0 ? "No entity matches." : rows.length < found ? `${grouped(rows.length)} of ${grouped(found)} are shown, those in trouble first.` : "";
  say($("entities-more"), note);
  $("more").hidden = rows.length >= found || rows.length >= 1000;
}

function stateOf(row) {
  if (row.held) return ["held", "held"];
  if (row.state !== null) return [row.state, STATES[row.state]];
  if (row.probe) return row.probe.ok ? ["healthy", "accepts messages"] : ["failed-over", "accepts none"];
  return ["seen", "not used here"];
}

function newRow(row) {
  // The roles stay when the style makes blocks of the cells, on narrow screens.
  const name = make("th", { scope: "row", role: "rowheader" }, row.path);
  if (row.kind !== "queue") name.append(make("span", { className: "kind", textContent: row.kind }));
  const acts = make("td", { className: "acts", role: "cell" });
  for (const [word, [label]] of Object.entries(WORDS)) {
    const button = make("button", { type: "button", textContent: label });
    button.setAttribute("aria-label", `${label}: ${row.path}`);
    button.addEventListener("click", () => confirm(word, row));
    acts.append(button);
  }
  const state = make("td", { role: "cell" }, make("span", { className: "state" }), make("span", { className: "reasons" }));
  return make("tr", { role: "row" }, name, state, make("td", { className: "wide", role: "cell" }, drawn("svg", { class: "line", role: "img" })), acts);
}

function consumersLine({ lost, available }, now) {
  const sides = Object.keys(lost);
  const share = available < 1 ? `; they could read ${(100 * available).toFixed(2)} % of the time` : "";
  if (sides.length === 0) return ["", `its consumers read both brokers${share}`];
  const since = span(now - Math.max(...Object.values(lost)));
  if (sides.length > 1) return ["bad", `its consumers can read neither broker, for ${since}${share}`];
  const other = lost.primary ? "go on from its lane on the secondary" : "read the primary";
  return [lost.primary ? "" : "bad", `its consumers ${other}, without the ${sides[0]} for ${since}${share}`];
}

function reasons(element, row, now) {
  const lines = [];
  if (row.held) lines.push(["", `for ${span(now - row.since)}, by an operator; no pings${row.syphon_held ? "; the syphon delivers nothing to it" : ""}`]);
  else if (row.since !== null) lines.push(["", `for ${span(now - row.since)}: ${row.cause}`]);
  if (row.ping && !row.held) lines.push(["", row.ping.ok ? "the last ping succeeded" : `ping ${span(now - row.ping.at)} ago: ${row.ping.error}`]);
  if (row.shut !== null && row.state !== "failed-over") lines.push(["bad", `the syphon waits: ${row.shut}`]);
  if (row.consumers) lines.push(consumersLine(row.consumers, now));
  if (row.probe) lines.push([row.probe.ok ? "" : "bad", row.probe.ok ? `the probe was accepted in ${duration(row.probe.seconds)}` : `the probe was not accepted: ${row.probe.error}`]);
  keyed(element, lines.map((line, index) => [...line, String(index)]), (line) => line[2], () => make("span"), (child, [tone, text]) => {
    child.className = `why ${tone}`;
    whole(child, text);
  });
}

function backlog(view) {
  const { rows, queues, counted_at: at, depth } = view.backlog;
  say($("backlog-note"), at === null ? "" : `counted at ${clock(at)}`);
  keyed($("queues").tBodies[0], rows, (row) => row.name, () => {
    const cells = [1, 2, 3, 4].map(() => make("td", { className: "n", role: "cell" }));
    return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }), ...cells, make("td", { role: "cell" }));
  }, (element, row) => {
    const cells = element.children;
    const count = (number) => (number === null ? "" : grouped(number));
    say(cells[0], row.name);
    say(cells[1], row.scheduled ? `${count(row.active)} + ${count(row.scheduled)} scheduled` : count(row.active));
    say(cells[2], count(row.dead_letter));
    say(cells[3], row.oldest === null ? "" : span(view.at - row.oldest));
    say(cells[4], count(row.locked));
    cells[5].className = row.out || row.error ? "out" : "";
    say(cells[5], row.out ? `✗ out for ${span(view.at - row.out.since)}: ${row.out.error}` : row.error ? `✗ ${row.error}` : row.missing ? "missing" : view.sends ? "✓ in use" : "✓ there");
  });
  say($("queues-more"), rows.length && rows.length < queues ? `${grouped(queues - rows.length)} more queues hold less.` : "");
  $("depth").hidden = depth.length < 2;
  if (depth.length >= 2) {
    const most = area(document.querySelector(".area"), depth, view.at);
    const words = `since ${clock(depth[0][0])}, ${most ? `at most ${grouped(most)}` : "nothing waited"}; counted only while this page is looked at`;
    say($("depth-note"), words);
    document.querySelector(".depth").setAttribute("aria-label", `Messages in the backlog, ${words}`);
  }
}

const TONES = { good: "✓", plain: "·", warn: "!", bad: "✗" };

function events(view) {
  $("events-none").hidden = view.events.length > 0;
  const keyOf = (event) => `${event.at} ${event.subject} ${event.text}`;
  keyed($("events"), view.events, keyOf, (event) => {
    const words = make("span", { className: "words" }, make("strong", { textContent: event.subject }), ` ${event.text}`);
    const tone = make("span", { className: "tone", textContent: TONES[event.tone] });
    const item = make("li", {}, make("time"), tone, words);
    item.dataset.tone = event.tone;
    return item;
  }, (element, event) => {
    say(element.firstChild, clock(event.last_at));
    let times = element.querySelector(".times");
    if (event.count > 1 && !times) {
      times = make("span", { className: "times" });
      element.lastChild.append(times);
    }
    if (times) say(times, `${grouped(event.count)} times`);
  });
}

// Operators.

async function signIn(token) {
  const answer = await ask("api/session", { method: "POST", headers: HEADERS, body: JSON.stringify({ token }) });
  if (answer.ok) return "";
  return (await answer.json()).error;
}

function mustSignIn() {
  refused = true;
  last = null;
  $("main").hidden = true;
  $("live").dataset.quiet = "";
  $("sign").hidden = false;
  say($("sign"), "Sign in");
  say($("live"), "a token is required");
  if (!$("login").open) openLogin();
}

function openLogin() {
  say($("login-wrong"), "");
  $("token").value = "";
  $("login").showModal();
}

$("sign").addEventListener("click", async () => {
  if (last?.access.operator) {
    await ask("api/session", { method: "DELETE", headers: HEADERS });
    last = null;
    await round();
  } else {
    openLogin();
  }
});

$("login").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const wrong = await signIn($("token").value.trim());
    say($("login-wrong"), wrong);
    if (wrong) return;
  } catch {
    say($("login-wrong"), "the server does not respond");
    return;
  }
  $("login").close();
  refused = false;
  await round();
});
$("login-cancel").addEventListener("click", () => $("login").close());

let asked = null; // the action in the dialog

function confirm(word, row) {
  asked = { word, row };
  const [label, text] = WORDS[word];
  say($("ask-title"), `${label}: ${row.path}`);
  say($("ask-text"), text);
  $("ask-syphon").hidden = word !== "hold";
  $("ask-keep").checked = row.syphon_held;
  say($("ask-keep-text"), "Keep the pair's syphons from delivering to it too");
  say($("ask-scope"), "All processes of the pair follow, each at its next look at the secondary.");
  say($("ask-yes"), label);
  say($("ask-wrong"), "");
  $("ask").showModal();
}

$("ask").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { word, row } = asked;
  $("ask-yes").disabled = true;
  try {
    const body = JSON.stringify({ word, entity: row.path, kind: row.kind, syphon: word === "hold" && $("ask-keep").checked });
    const answer = await ask("api/operate", { method: "POST", headers: HEADERS, body });
    if (answer.ok) $("ask").close();
    else say($("ask-wrong"), (await answer.json()).error);
  } catch {
    say($("ask-wrong"), "the server does not respond: the outcome is unknown");
  } finally {
    $("ask-yes").disabled = false;
  }
  await round();
});
$("ask-no").addEventListener("click", () => $("ask").close());

// The rest.

const table = $("entities");
for (const sign of ["pointermove", "pointerdown", "focusin", "keydown"]) {
  table.addEventListener(sign, () => { touched = performance.now(); });
}
let typing = null;
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("tools").addEventListener("input", () => {
  limit = PAGE;
  clearTimeout(typing);
  typing = setTimeout(round, 150);
});
$("more").addEventListener("click", () => {
  limit = 1000;
  round();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });

async function start() {
  // The token comes after "#", which no browser sends; it is removed from the address and the history immediately.
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) {
    history.replaceState(null, "", location.pathname + location.search);
    await signIn(token).catch(() => {});
  }
  await round();
}

start();
