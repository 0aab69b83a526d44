// Draws the data embedded in the page into the elements of visualize.html.
"use strict";

window.onerror = (message, _, line) => { document.documentElement.dataset.error = `${message} (line ${line})`; };
const $ = id => document.getElementById(id), {model, texts} = JSON.parse($("data").textContent);
// Per color scheme: the colors of probabilities from `least` on and of the ink on them; from no attention to all of it;
// masked pixels; lines of labels.
const LIGHT = {
  scale: ["#ffffff", "#fdedc2", "#f8ca80", "#e5944b", "#b04c24", "#5f1f10"], inks: ["", "", "", "", "#fff", "#fff"],
  blue: [[255, 255, 255], [27, 79, 143], "#fff"], masked: 0xffedf0f0, grid: "#e4e6ea", axis: "#7d8694",
  lines: ["#1b4f8f", "#b04c24", "#23754a", "#76459c", "#a1274b", "#5d6600", "#006f7a", "#4a4a4a"]};
const DARK = {
  scale: ["#1d232c", "#3a3226", "#614622", "#94591f", "#d9782f", "#ffc08a"], inks: ["", "", "#fff", "#fff", "#14181f", "#14181f"],
  blue: [[29, 35, 44], [134, 181, 240], "#14181f"], masked: 0xff1f1914, grid: "#323945", axis: "#7d8694",
  lines: ["#86b5f0", "#f0955f", "#6cc596", "#c39be6", "#f08bab", "#c3cc55", "#5fc9d4", "#b8b8b8"]};
const MIN_SHARES = [.5, .2, .05, .01, .001, 0], darkMode = matchMedia("(prefers-color-scheme: dark)");
const DASHES = ["", "8 4", "2 4", "12 4 2 4", "5 2", "16 5", "2 2 8 2", "1 3"];
const state = {text: 0, sequence: 0, layer: 0, head: 0, token: 0};
let sequence, T, weights, cell, margin, colors, dots;

// Strings become text nodes, so texts are never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "line", "polyline", "text"].includes(tag);
  const element = document.createElementNS(`http://www.w3.org/${drawn ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const fill = (id, ...children) => $(id).replaceChildren(...children);
const upTo = n => [...Array(n).keys()];
const count = n => n.toLocaleString("en");
const signed = x => x.toFixed(3).replace("-", "−");
const short = (s, most) => [...s].length > most ? [...s].slice(0, most - 1).join("") + "…" : s;
const percent = p =>
  `${p >= .0995 ? Math.round(100 * p) : p >= 1e-5 || !p ? +(100 * p).toPrecision(2) : (100 * p).toExponential(0)}\u00a0%`;
const candidates = i => sequence.best[i].map(([token, p]) => `${token} ${percent(p)}`).join(",  ");
const table = rows => make("table", {}, ...rows.map(row => make("tr", {}, ...row.map(x => make("td", {}, x)))));
const dyed = (element, background, color) => {
  Object.assign(element.style, {background, color});
  return element;
};
const byProbability = (element, step) => dyed(element, colors.scale[step], colors.inks[step]);

// A token as nodes: SentencePiece's mark of a space is drawn small.
const spelled = token => !token.startsWith("▁") ? [token] : [make("i", {class: "mark"}, "▁"), token.slice(1)];
const plain = token => token.replace(/^▁/, "") || "_";

// Byte tokens that make a character: [character, index of the byte] by position.
function characters(tokens) {
  const found = new Map(), byte = token => /^<0x[0-9A-F]{2}>$/.test(token ?? "") ? parseInt(token.slice(3, 5), 16) : -1;
  for (let i = 0; i < tokens.length; i++) {
    const first = byte(tokens[i]), size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
    const bytes = tokens.slice(i, i + size).map(byte);
    if (!size || bytes.length < size || bytes.some(b => b < 0)) continue;
    try {
      const character = new TextDecoder("utf-8", {fatal: true}).decode(Uint8Array.from(bytes));
      if (/[\p{C}\p{Z}]/u.test(character)) continue;  // would not be seen
      upTo(size).forEach(n => found.set(i + n, [character, n, size]));
    } catch { /* not UTF-8: the bytes stay as they are */ }
  }
  return found;
}

// Attention weights are stored as bytes of their square root, which also gives the color.
const at = (layer, head, i, j) => weights[((layer * model.heads + head) * T * (T + 1) + i * (i + 1)) / 2 + j] / 255;
const blue = root => colors.blue[0].map((c, n) => Math.round(c + root * (colors.blue[1][n] - c)));
const shade = (element, root) => dyed(element, `rgb(${blue(root)})`, root > .6 ? colors.blue[2] : "");

function buttons(id) {
  const joined = characters(sequence.tokens);
  const made = sequence.tokens.map((token, i) => {
    const [character, n] = joined.get(i) ?? [];
    const shown = character === undefined ? spelled(token) : [n ? "·" : character];
    return make("button", {type: "button", "data-token": i, class: n ? "joined" : ""}, ...shown, make("small"));
  });
  for (const i of sequence.special) made[i].classList.add("special");
  fill(id, ...made.flatMap((button, i) => sequence.lines.includes(i) ? [button, make("br")] : [button]));
  return made;
}

function showText() {
  const {note, sequences} = texts[state.text];
  sequence = sequences[state.sequence];
  const {tokens, logp, rank, mean, perplexity, attention} = sequence;
  T = tokens.length;
  weights = attention && Uint8Array.from(atob(attention), c => c.charCodeAt(0));
  $("texts").value = `${state.text} ${state.sequence}`;
  $("note").hidden = !note;
  fill("note", `This text is ${note}.`);
  const summary = [[count(T), "tokens"]];
  if (T > 1) summary.push([signed(mean), `mean log-probability of ${count(T - 1)} tokens, in nats`],
    [count(+perplexity.toPrecision(4)), "perplexity per token"]);
  fill("summary", ...summary.map(([n, what]) => make("div", {class: "soft"}, make("b", {}, n), what)));
  const joined = characters(tokens);
  const named = i => {
    const [character, n, size] = joined.get(i) ?? [];
    return character === undefined ? tokens[i] : `${tokens[i]}, byte ${n + 1} of ${size} of ${character}`;
  };
  const rows = tokens.map((token, i) => i
    ? [i, token, signed(logp[i]), percent(Math.exp(logp[i])), count(rank[i]), candidates(i)]
    : [i, token, "not scored: no left context", "", "", ""]);
  fill("table", table([["", "token", "log-probability", "probability", "rank", "top candidates"], ...rows]));
  buttons("likelihood").forEach((button, i) => {
    const step = MIN_SHARES.findIndex(least => Math.exp(logp[i]) >= least), [, , ...numbers] = rows[i];
    if (i) byProbability(button, step); else button.classList.add("unscored");
    const names = ["log-probability", "probability", "rank", "top candidates"];
    button.ariaLabel = `${named(i)}: ${i ? numbers.map((x, n) => `${names[n]} ${x}`).join("; ") : numbers[0]}`;
  });
  $("none").hidden = !!weights;
  $("attention").hidden = !weights;
  if (weights) { buttons("looks"); showHeads(); }
  showToken(state.token);
  showClasses();
}

function showToken(i) {
  const {tokens, logp, rank, best} = sequence;
  const candidate = ([token, p]) => {
    const bar = make("span", {class: "bar"});
    bar.style.width = `${160 * p}px`;
    return [make("span", {}, ...spelled(token)), percent(p), bar];
  };
  fill("numbers", make("div", {}, make("p", {}, `Token ${i}: `, ...spelled(tokens[i])), i ? table([
    ["log-probability", signed(logp[i])], ["probability", percent(Math.exp(logp[i]))],
    ["rank", `${count(rank[i])} of ${count(model.choices)}`]]) : "Not scored: no left context."));
  if (i) $("numbers").append(make("div", {}, make("p", {}, "Top candidates at this position"),
    table(best[i].map(candidate))));
  for (const button of document.querySelectorAll(".tokens button")) {
    const j = +button.dataset.token, root = weights && j <= i ? at(state.layer, state.head, i, j) : 0;
    button.classList.toggle("chosen", j === i);
    button.tabIndex = j === state.token ? 0 : -1;
    if (button.parentNode.id === "likelihood") continue;
    shade(button, root).classList.toggle("later", j > i);
    button.lastChild.textContent = root >= .1 ? percent(root ** 2) : "";
    button.ariaLabel = `${tokens[j]}: ${j > i ? "to the right, masked" : percent(root ** 2)}`;
  }
  if (weights) showMap(i);
}

// A head as T x T pixels: rows are queries, columns are keys; keys to the right stay gray.
function picture(layer, head) {
  const canvas = make("canvas", {width: T, height: T}), image = new ImageData(T, T);
  const pixels = new Uint32Array(image.data.buffer).fill(colors.masked);
  let from = (layer * model.heads + head) * T * (T + 1) / 2;
  for (let i = 0; i < T; i++) for (let j = 0; j <= i; j++) pixels[i * T + j] = dots[weights[from++]];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function showHeads() {
  const size = model.heads > 6 ? 32 : 60;
  $("heads").style.gridTemplateColumns = `22px repeat(${model.heads}, ${size}px)`;
  fill("heads", make("span"), ...upTo(model.heads).map(head => make("span", {}, head)));
  for (const layer of upTo(model.layers)) $("heads").append(make("span", {}, layer), ...upTo(model.heads).map(head => {
    const small = make("canvas", {width: 2 * size, height: 2 * size}), pen = small.getContext("2d");
    const label = `layer ${layer}, head ${head}`;
    pen.imageSmoothingEnabled = T > 2 * size;
    pen.drawImage(picture(layer, head), 0, 0, 2 * size, 2 * size);
    return make("button", {type: "button", "data-head": `${layer} ${head}`, "aria-label": label}, small);
  }));
}

function showMap(i) {
  const {layer, head} = state, all = $("attention").clientWidth || 700, beside = all - $("heads").offsetWidth - 48;
  const room = Math.min(680, beside > 400 ? beside : all), map = $("map"), pen = map.getContext("2d");
  margin = (room - 90) / T >= 12 ? 90 : 0;  // for token labels, if rows are high enough
  cell = Math.min(26, Math.max(1, Math.floor((room - margin) / T)));
  const side = margin + T * cell, scale = window.devicePixelRatio || 1;
  [map.width, map.height, map.style.width] = [side * scale, side * scale, `${side}px`];
  pen.scale(scale, scale);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture(layer, head), margin, margin, T * cell, T * cell);
  pen.strokeStyle = pen.fillStyle = getComputedStyle(document.body).color;
  pen.strokeRect(margin + .5, margin + i * cell + .5, (i + 1) * cell - 1, cell - 1);
  pen.font = `${Math.min(12, cell - 1)}px system-ui, "DejaVu Sans", sans-serif`;
  const joined = characters(sequence.tokens);
  if (margin) for (const [angle, x, y] of [[0, 0, 1], [-Math.PI / 2, 1, 0]]) sequence.tokens.forEach((token, j) => {
    pen.save();
    pen.translate(x * (margin + (j + .75) * cell), y * (margin + (j + .75) * cell) + x * (margin - 6));
    pen.rotate(angle);
    const [character, n] = joined.get(j) ?? [plain(token), 0];
    pen.fillText(n ? "·" : short(character, 11), 0, 0, margin - 6);
    pen.restore();
  });
  map.ariaLabel = `attention of layer ${layer}, head ${head}: ${T} x ${T} tokens, one query per row`;
  fill("cell", "Rows are queries, columns are keys. Hover for a weight; click to select the token of a row.");
  [$("layer").value, $("head").value] = [layer, head];
  for (const button of $("heads").querySelectorAll("button"))
    button.classList.toggle("chosen", button.dataset.head === `${layer} ${head}`);
}

function showClasses() {
  const {classes} = texts[state.text];
  $("classes").hidden = !classes;
  if (!classes) return;
  const {labels, tokens, probabilities} = classes, n = probabilities.length, last = probabilities[n - 1];
  const [left, top, right] = [54, 12, 170], width = $("plot").clientWidth || 800, height = Math.max(260, 20 * labels.length);
  const step = (width - left - right) / Math.max(1, n - 1), x = i => left + i * step, y = p => top + (1 - p) * height;
  const ordered = p => upTo(labels.length).sort((a, b) => p[b] - p[a]);
  const describe = p => ordered(p).map(k => `${labels[k]}: ${percent(p[k])}`).join(", ");
  const label = `line plot; at the end ${describe(last)}`;
  const plot = make("svg", {width, height: height + 104, role: "img", "aria-label": label});
  for (const p of [0, .25, .5, .75, 1]) plot.append(
    make("line", {x1: left, x2: width - right, y1: y(p), y2: y(p), stroke: p ? colors.grid : colors.axis}),
    make("text", {x: left - 8, y: y(p) + 4, "text-anchor": "end"}, percent(p)));
  const low = y(0) + 18;
  for (let i = 0; i < n; i += Math.ceil(18 / step) || 1) plot.append(make("text",
    {"text-anchor": "end", transform: `translate(${x(i) + 4} ${low}) rotate(-55)`}, tokens ? short(plain(tokens[i]), 11) : i + 1));
  const guide = plot.appendChild(make("line", {y1: y(1), y2: y(0), stroke: colors.axis}));
  let lowest = -Infinity;  // labels at the ends of their lines, without overlap
  for (const k of ordered(last)) {
    const color = colors.lines[k % 8], points = probabilities.map((p, i) => `${x(i)},${y(p[k])}`).join(" ");
    lowest = Math.max(lowest + 17, y(last[k]) + 4);
    plot.append(
      make("polyline", {points, stroke: color, "stroke-dasharray": DASHES[k % 8], "data-label": labels[k]}),
      make("text", {x: width - right + 10, y: lowest, style: `fill: ${color}`}, `${short(labels[k], 14)}: ${percent(last[k])}`));
  }
  const point = i => {
    guide.setAttribute("transform", `translate(${x(i)} 0)`);
    fill("point", `After ${i + 1} of ${n} tokens${tokens ? `, up to ${tokens[i]}` : ""}: ${describe(probabilities[i])}`);
  };
  plot.onpointermove = event => point(Math.max(0, Math.min(n - 1, Math.round((event.offsetX - left) / step))));
  plot.onpointerleave = () => point(n - 1);
  fill("plot", plot);
  point(n - 1);
  const cut = tokens ? "its last column" : "every option";
  fill("grows", `Probability of each label of ${model.task} when ${cut} is cut after 1, 2, … tokens. `
    + "The right end shows the full text.");
  const rows = probabilities.map((p, i) => [i + 1, tokens ? tokens[i] : "", ...p.map(percent)]);
  fill("shares", table([["", "up to", ...labels], ...rows]));
}

function setColors() {
  colors = darkMode.matches ? DARK : LIGHT;
  dots = upTo(256).map(byte => blue(byte / 255).reduceRight((dot, c) => dot << 8 | c, 255));  // 0xAABBGGRR
  fill("scale", ...MIN_SHARES.map((least, i) =>
    byProbability(make("li", {}, least ? `at least ${percent(least)}` : `below ${percent(MIN_SHARES[i - 1])}`), i)));
  fill("shades", ...[0, .01, .05, .1, .25, .5, 1].map(share => shade(make("li", {}, percent(share)), Math.sqrt(share))));
}

// The URL fragment holds the selection, counted from 0, for links: #text=0&layer=1&head=2&token=5
function fromAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const pick = (name, size, otherwise) => {
    const n = parseInt(parameters.get(name));
    state[name] = n >= 0 && n < size ? n : otherwise;
  };
  pick("text", texts.length, 0);
  pick("sequence", texts[state.text].sequences.length, 0);
  pick("layer", model.layers, 0);
  pick("head", model.heads, 0);
  const {length} = texts[state.text].sequences[state.sequence].tokens;
  pick("token", length, length - 1);
  showText();
}

function choose(changes, show = () => showToken(state.token)) {
  Object.assign(state, changes);
  try { history.replaceState(null, "", `#${new URLSearchParams(state)}`); } catch { /* in a frame without a URL */ }
  show();
}

for (const strip of [$("likelihood"), $("looks")]) {
  let pointed = null;
  const over = token => { if (token !== pointed) showToken(token ?? state.token); pointed = token; };
  const onButton = action => event => { const b = event.target.closest("button"); if (b) action(+b.dataset.token); };
  strip.onpointerover = onButton(over);
  strip.onpointerleave = () => over(null);
  strip.onclick = onButton(token => choose({token}));
  strip.onkeydown = event => {
    const token = state.token + {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (token >= 0 && token < T) { choose({token}); strip.querySelectorAll("button")[token].focus(); }
  };
}
const position = event => [event.offsetY, event.offsetX].map(x => Math.min(T - 1, Math.floor((x - margin) / cell)));
$("map").onpointermove = event => {
  const [i, j] = position(event), name = n => `${sequence.tokens[n]} (token ${n})`;
  if (i >= 0 && j >= 0) fill("cell", `${name(i)} attends to ${name(j)}: ${j > i ? "to its right, masked"
    : percent(at(state.layer, state.head, i, j) ** 2)}`);
};
$("map").onclick = event => { const [token] = position(event); if (token >= 0) choose({token}); };
$("heads").onclick = event => {
  const [layer, head] = (event.target.closest("button")?.dataset.head ?? "").split(" ");
  if (head) choose({layer: +layer, head: +head});
};
for (const id of ["layer", "head"]) $(id).onchange = event => choose({[id]: +event.target.value});
$("texts").onchange = event => {
  const [text, number] = event.target.value.split(" ").map(Number);
  choose({text, sequence: number, token: texts[text].sequences[number].tokens.length - 1}, showText);
};
window.onhashchange = fromAddress;
window.onresize = () => { showToken(state.token); showClasses(); };

const asTask = model.task ? `, fine-tuned on ${model.task} (texts in the task's format)` : "";
fill("about", `${model.checkpoint}, step ${count(model.step)}${asTask}: `
  + `${count(model.parameters)} parameters, vocabulary ${count(model.vocabulary)}, context ${count(model.context)}`);
fill("texts", ...texts.flatMap(({text, sequences: {length}}, i) => upTo(length).map(j => make("option", {value: `${i} ${j}`},
  short(text, 70) + (length > 1 ? ` (sequence ${j + 1} of ${length})` : "")))));
for (const id of ["layer", "head"]) fill(id, ...upTo(model[`${id}s`]).map(n => make("option", {value: n}, n)));
darkMode.onchange = () => { setColors(); showText(); };
setColors();
fromAddress();
document.documentElement.dataset.ready = "yes";
