// The page: queries the API and shows the responses. Text only becomes text nodes, never markup.

import { AttributeMaps, coreHeads } from "./attributes.js";
import { Steering } from "./steering.js";
import { $, answer, el, errorNote, reasonOf, sendLabel } from "./shared.js";
import { PictureTable, breakable, dropped, percent } from "./table.js";

const PAUSE = 250; // milliseconds without input after which a control takes effect

let info; // what is served
let roles = []; // of the heads, if the bundle has them
let image = null; // the chosen file
let table; // of many pictures
let maps; // of attention by attribute
let steering; // the weights of the features
const asking = {}; // the running request of each panel

// --- requests -------------------------------------------------------------

// Send the image and show the response in a panel; a newer request replaces an older one.
async function ask(panel, path, parameters, fields, show) {
  asking[panel]?.abort();
  const mine = (asking[panel] = new AbortController());
  const place = $(panel);
  place.classList.add("waits");
  try {
    check(image);
    const form = new FormData();
    form.append("image", image);
    for (const [name, value] of Object.entries(fields)) form.append(name, value);
    const sent = { method: "POST", body: form, signal: mine.signal };
    const shown = await show(await answer(await fetch(`api/${path}?${new URLSearchParams(parameters)}`, sent)));
    if (asking[panel] === mine) place.replaceChildren(...shown);
  } catch (error) {
    if (mine.signal.aborted) return;
    place.replaceChildren(errorNote(reasonOf(error)));
  }
  if (asking[panel] === mine) place.classList.remove("waits");
}

function check(file) {
  const most = info.limits.upload;
  if (file.size > most * 2 ** 20) throw new Error(`the file is larger than ${most} MiB, the limit: choose a smaller one.`);
}

// --- classes --------------------------------------------------------------

// The classes asked for in place of the bundle's own, which are told above what they lead to.
function asked() {
  const others = $("others").value.trim();
  for (const line of document.querySelectorAll(".among")) {
    line.textContent = `Among these classes: ${others}${/(^|,)\s*\*/.test(others) ? ` (* is the ${info.classes.length} of the bundle)` : ""}.`;
    line.hidden = !others;
  }
  return others;
}

function classify() {
  const others = asked();
  if (!image) return;
  ask("result", "predict", { top: $("top").value, ...steering.parameters() }, others ? { classes: others } : {}, async (response) => {
    const { top, none_of_these: none, decision, decided_class: decided, unchanged } = await response.json();
    explain(top[0].evidence);
    $("correct").hidden = !info.corrections;
    $("label").value = none ? "none" : top[0].name;
    $("saved").hidden = true;
    $("meant").replaceChildren();
    const learned = ({ name }) => unchanged?.find((one) => one.name === name);
    const classes = top.map((one, rank) => candidate(one, rank, rank ? top[0] : top[1], none, learned(one)));
    const told = none ? [el("p", { class: "alert" }, `None of these; nearest: ${top[0].name}.`)] : [];
    if (decision) told.push(el("p", { class: "decision" }, decided ? `Decided: ${decided}.` : "This one goes to a person."));
    if (unchanged) told.push(el("p", { class: "unchanged" }, `With the weights as learned: ${unchanged.slice(0, 3).map((one) => `${one.name} ${percent(one.probability)}`).join(", ")}.`));
    return [...told, ...classes];
  });
}

// Keep what the image shows, in the corrections beside the data.
async function correct() {
  const file = image, form = new FormData();
  form.append("image", file);
  const send = (label, isNew) => fetch(`api/labels?${new URLSearchParams({ label, name: file.name, new: isNew })}`, { method: "POST", body: form });
  let told;
  try {
    $("saved").hidden = true;
    const saved = await sendLabel($("label").value, send, $("meant"));
    if (!saved || image !== file) return;
    $("label").value = saved.label === "remove" ? "none" : saved.label;
    told = `Saved: ${saved.label}.${saved.is_in_data ? "" : " This image is not among those of the data: its label counts once it lies there."}`;
  } catch (error) {
    told = reasonOf(error);
  }
  $("saved").textContent = told;
  $("saved").hidden = false;
}

function explain(evidence) {
  const features = Object.keys(evidence);
  $("said").hidden = features.length < 2;
  $("said").textContent = "In numbers, each feature adds to the score of a class, + for it and − against it; the difference to another class is what "
    + "decides between the two, and the bars show it; features of 0.00 are left out. " + features.map((name) => `“${name}”: ${info.explained[name]}.`).join(" ");
}

// What a feature that speaks for a class says of it, in words.
function reason(feature, name) {
  const alone = info.likenesses[feature];
  if (alone !== undefined)
    return `it looks like your photos of “${name}”${alone ? ` ${alone}` : ""}`;
  if (feature === "class") return `it fits the name “${name}”`;
  if (feature === "rep" || feature === "rest") return `“${feature}” speaks for it`;
  return `its ${feature} fits the name “${name}”`;
}

// Why one class has a higher score than another, in a sentence: what counts most, and what speaks against it.
function sentence(first, second) {
  const parts = Object.entries(first.evidence).map(([feature, value]) => [feature, value - second.evidence[feature]]);
  const most = Math.max(...parts.map(([, value]) => Math.abs(value))), strong = 0.25 * most;
  const pro = parts.filter(([, value]) => value > 0 && value >= strong).sort((a, b) => b[1] - a[1]);
  const con = parts.filter(([, value]) => value < 0 && -value >= strong).sort((a, b) => a[1] - b[1]);
  const little = parts.filter(([feature, value]) => feature === "class" && Math.abs(value) < strong);
  if (!pro.length) return `Rather “${first.name}” than “${second.name}” by very little.`;
  return `Rather “${first.name}” than “${second.name}”: ${pro.map(([feature]) => reason(feature, first.name)).join(", and ")}`
    + (con.length ? `; but ${con.map(([feature]) => reason(feature, second.name)).join(", and ")}` : "")
    + (little.length && parts.length > 1 ? "; the name adds little" : "") + ".";
}

// A class, expandable to why it is more or less likely than another class: in words, and behind a fold in numbers.
// With other weights, also in numbers by the weights as learned.
function candidate(one, rank, other, none, learned) {
  const between = (feature) => one.evidence[feature] - (other ? other.evidence[feature] : 0);
  const counted = Object.entries(one.evidence).filter(([feature, value]) => visible(value) || visible(between(feature)));
  const longest = Math.max(1e-9, ...counted.map(([feature]) => Math.abs(between(feature))));
  const rows = counted.map(([feature, value]) => el("tr", {},
    el("th", { scope: "row" }, feature),
    el("td", { class: "wide" }, signed(between(feature) / longest)),
    ...(other ? [el("td", { class: "n" }, number(between(feature)))] : []),
    el("td", { class: "n" }, number(value)),
    ...(learned ? [el("td", { class: "n" }, number(learned.evidence[feature]))] : [])));
  const heads = [["feature", ""], ["", ""], ...(other ? [[rank ? "vs. first" : "vs. second", "n", `how much more than to ${other.name}`]] : []),
    ["adds to the score", "n"], ...(learned ? [["as learned", "n"]] : [])];
  const table = el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map(([name, kind, title]) => el("th", { scope: "col", class: kind, ...(title ? { title } : {}) }, name)))),
    el("tbody", {}, ...rows),
    ...(rows.length > 1 ? [el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "sum"), el("td"),
      ...(other ? [el("td", { class: "n" }, number(one.logit - other.logit))] : []),
      el("td", { class: "n" }, number(one.logit)),
      ...(learned ? [el("td", { class: "n" }, number(learned.logit))] : [])))] : []));
  const numbers = el("details", { class: "numbers", ...(learned ? { open: "" } : {}) }, el("summary", {}, "In numbers"), table);
  const words = other ? [el("p", { class: "why" }, rank ? sentence(other, one) : sentence(one, other))] : [];
  return el("details", rank || none ? { class: "class" } : { class: "class", open: "" },
    el("summary", {}, el("span", { class: "name" }, one.name),
      el("span", {}, percent(one.probability)), bar(0, one.probability)),
    ...words, numbers);
}

const visible = (value) => Math.abs(value) >= 0.005; // does not round to 0.00
const number = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

function bar(from, to, kind = "") {
  const filled = el("span", { class: kind });
  filled.style.left = `${100 * from}%`;
  filled.style.width = `${100 * Math.max(0, to - from)}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, filled);
}

// From the middle: to the right for the class, to the left against it.
function signed(share) {
  const made = share < 0 ? bar(0.5 + share / 2, 0.5, "against") : bar(0.5, 0.5 + share / 2);
  made.classList.add("signed");
  return made;
}

// --- attention ------------------------------------------------------------

function look() {
  mark();
  if (!image || !$("looking").open) return;
  maps.show(image);
  const [layer, head] = [$("layer").value, $("head").value];
  const token = document.querySelector("#tokens input:checked").value;
  ask("attention", "attention", { layer, head, token, png: true }, {}, async (response) => {
    const share = 100 * Number(response.headers.get("Attention-On-Patches"));
    const said = `Layer ${layer}, head ${head}: ${share.toFixed(0)}% of the ${token} token's attention is on patches.`;
    const shown = el("img", { alt: said, src: URL.createObjectURL(await response.blob()) });
    shown.addEventListener("load", () => URL.revokeObjectURL(shown.src));
    return [el("figure", {}, shown, el("figcaption", {}, said))];
  });
}

function heads() {
  const layer = Number($("layer").value), chosen = Number($("head").value || 0);
  const named = (head) => {
    const known = roles.find((one) => one.layer === layer && one.head === head);
    return known ? `${head}: ${known.attribute || known.role}` : String(head);
  };
  $("head").replaceChildren(...Array.from({ length: info.heads }, (_, head) => el("option", { value: head }, named(head))));
  $("head").value = chosen;
}

// --- neighbors -----------------------------------------------------------

function neighbors() {
  const chosen = [...document.querySelectorAll("#mixture input")].filter((one) => Number(one.value));
  const parameters = {
    by: chosen.map((one) => one.name).join(","), weights: chosen.map((one) => one.value).join(","),
    count: $("count").value, thumbnails: true,
  };
  ask("neighbors", "neighbors", parameters, {}, async (response) => {
    const found = (await response.json()).neighbors;
    return found.length ? [el("div", { class: "tiles" }, ...found.map(tile))] : [el("p", {}, "There are no other images.")];
  });
}

function tile(one) {
  const by = Object.entries(one.by).map(([name, value]) => `${name} ${value.toFixed(2)}`);
  const label = one.label ? `${one.label === "remove" ? "of no class" : one.label} (corrected) ` : "";
  const caption = `${label}${one.score.toFixed(3)} ${one.path}` + (by.length > 1 ? ` (${by.join(", ")})` : "");
  const shown = one.thumbnail ? el("img", { alt: one.path, src: `data:image/png;base64,${one.thumbnail}` })
    : el("p", {}, "can no longer be read, was changed or is too large");
  return el("figure", {}, shown, el("figcaption", {}, caption));
}

function weight(feature, at) {
  const shown = el("output", {}, at ? "0" : "1");
  const slider = el("input", { type: "range", min: -1, max: 1, step: 0.1, name: feature, value: at ? 0 : 1 });
  slider.addEventListener("input", () => { shown.textContent = slider.value; later("near", neighbors); });
  return el("label", {}, `Weight of ${feature} `, shown, slider);
}

// --- head roles -----------------------------------------------------------

function drawRoles(table) {
  const layers = [...new Set(roles.map((one) => one.layer))].sort((a, b) => a - b);
  const columns = Array.from({ length: Math.max(...roles.map((one) => one.head)) + 1 }, (_, head) => head);
  const cell = (layer, head) => {
    const one = roles.find((role) => role.layer === layer && role.head === head);
    if (!one) return el("td");
    const kind = one.attribute ? ["core", `k${table.attributes.indexOf(one.attribute) % 7}`] : [];
    const said = one.attribute || { "other-specialized": "other", generalization: "general" }[one.role] || one.role;
    const made = el("button", { type: "button", class: kind.join(" "), "data-layer": layer, "data-head": head,
      "aria-pressed": "false", "aria-label": `Layer ${layer}, head ${head}: ${said}` }, said);
    made.addEventListener("click", () => choose(layer, head));
    return el("td", {}, made);
  };
  $("roles").replaceChildren(el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"),
      ...columns.map((head) => el("th", { scope: "col" }, `head ${head}`)))),
    el("tbody", {}, ...layers.map((layer) => el("tr", {},
      el("th", { scope: "row" }, String(layer)), ...columns.map((head) => cell(layer, head)))))));
}

function choose(layer, head) {
  $("layer").value = layer;
  heads();
  $("head").value = head;
  mark();
  if (!image) return;
  if ($("looking").open) look();
  else $("looking").open = true;
  $("look").scrollIntoView({ block: "nearest" });
}

function mark() {
  for (const one of document.querySelectorAll("#roles button"))
    one.setAttribute("aria-pressed", one.dataset.layer === $("layer").value && one.dataset.head === $("head").value);
}

// --- the image and event handlers ------------------------------------------

const waiting = {};
function later(what, work) {
  clearTimeout(waiting[what]);
  waiting[what] = setTimeout(work, PAUSE);
}

// One file is shown by itself, several as a table.
function takeAll(files) {
  if (files.length > 1) {
    document.querySelector("main").classList.add("busy");
    for (const id of ["look", "near", "said", "preview", "correct"]) $(id).hidden = true;
    asking.result?.abort();
    $("result").replaceChildren();
    image = null;
    table.show(files, asked());
  } else if (files.length) {
    table.close();
    take(files[0]);
  }
}

function take(file) {
  image = file;
  URL.revokeObjectURL($("preview").src.replace(/#$/, ""));
  $("preview").hidden = true;
  $("preview").src = URL.createObjectURL(file);
  for (const id of ["correct", "said"]) $(id).hidden = true; // of the picture before; a bad one has none
  document.querySelector("main").classList.add("busy");
  for (const id of [...(info.layers ? ["look"] : []), ...(info.index ? ["near"] : [])]) $(id).hidden = false;
  classify();
  look();
  if (info.index) neighbors();
}

// A picture that browsers cannot show, such as HEIC, as the server decodes it.
async function preview(file) {
  const form = new FormData();
  form.append("image", file);
  try {
    const shown = await (await answer(await fetch("api/preview", { method: "POST", body: form }))).blob();
    if (file === image) $("preview").src = `${URL.createObjectURL(shown)}#`;
  } catch { /* the panel of classes says what is wrong with it */ }
}

function listen() {
  $("file").addEventListener("change", () => { takeAll([...$("file").files]); $("file").value = ""; });
  $("preview").addEventListener("load", () => {
    $("preview").hidden = false;
    $("preview").classList.toggle("small", $("preview").naturalWidth < 100);
  });
  $("preview").addEventListener("error", () => { if (!$("preview").src.includes("#")) preview(image); });
  document.addEventListener("paste", (event) => takeAll([...event.clipboardData.files]));
  for (const kind of ["dragover", "dragleave", "drop"])
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") dropped(event.dataTransfer).then(takeAll);
    });
  $("asked").addEventListener("submit", (event) => {
    event.preventDefault();
    classify();
    table.again(asked());
  });
  $("correct").addEventListener("submit", (event) => {
    event.preventDefault();
    correct();
  });
  $("top").addEventListener("input", () => { $("top-shown").textContent = $("top").value; later("classes", classify); });
  $("count").addEventListener("input", () => { $("count-shown").textContent = $("count").value; later("near", neighbors); });
  $("layer").addEventListener("change", () => { heads(); look(); });
  $("looking").addEventListener("toggle", look);
  for (const id of ["head", "tokens"]) $(id).addEventListener("change", look);
}

async function start() {
  info = await (await answer(await fetch("api/info"))).json();
  const map = info.roles ? await (await answer(await fetch("api/roles"))).json() : { heads: [] };
  roles = map.heads;
  document.title = `${info.name} · dear`;
  $("name").textContent = info.name;
  $("about").textContent = `${info.method} on ${info.weights.model} (${info.weights.pretrained}), ${info.classes.length} classes`;
  $("caution").textContent = info.caution || "";
  $("caution").hidden = !info.caution;
  if (info.tested) {
    const { accuracy, interval, zero_shot, chance, images, split } = info.tested;
    const what = split === "cross-validation" ? "images, each left out of the fit in turn," : "test images";
    const range = `95%: ${percent(interval[0])} to ${percent(interval[1])}`;
    $("tested").textContent = `${percent(accuracy)} (${range}) of ${images.toLocaleString("en")} ${what} were classified correctly; `
      + (zero_shot === undefined ? "" : `zero-shot ${percent(zero_shot)}, `) + `chance ${percent(chance)}.`;
    $("tested").hidden = false;
  }
  $("operating").textContent = info.operating[0] || "";
  $("operating").hidden = !info.operating.length;
  $("review").hidden = !info.review;
  table = new PictureTable(info, { answer, el, choose: (file) => {
    take(file);
    $("image").scrollIntoView({ block: "nearest" });
  } });
  $("bounds").textContent = `Up to ${info.limits.upload} MiB and ${info.limits.megapixels} megapixels`;
  $("known").replaceChildren(...["none", ...info.classes].map((name) => el("option", { value: name })));
  $("others").placeholder = info.classes.slice(0, 3).join(", ");
  $("layer").replaceChildren(...Array.from({ length: info.layers }, (_, at) => el("option", { value: at + 1 }, String(at + 1))));
  $("layer").value = info.layers;
  heads();
  $("tokens").append(...["class", ...info.attributes].map((name, at) =>
    el("label", {}, el("input", { type: "radio", name: "token", value: name, ...(at ? {} : { checked: "" }) }), ` ${name}`)));
  maps = new AttributeMaps(coreHeads(roles, info.attributes), { answer, el });
  steering = new Steering(info.fusion, { el, changed: classify });
  $("mixture").replaceChildren(...(info.index?.features || []).map(weight));
  if (roles.length) {
    drawRoles(map);
    mark();
    $("head-roles").hidden = false;
  }
  listen();
}

start().catch((error) => {
  $("about").replaceChildren(errorNote(`The page cannot start: ${error.message}`));
});
