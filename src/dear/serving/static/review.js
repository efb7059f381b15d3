// The review: one image after the other gets an answer, by clicks or by keys. Text only becomes text nodes, never markup.

import { $, answer, el, errorNote, reasonOf, sendLabel } from "./shared.js";
import { breakable } from "./table.js";

const LEFT_OUT = "remove"; // what the server has for an image that is left out

let images = []; // those of the review, each with its card
let current = 0; // the number of the one that keys are for
let last = []; // the numbers of those that were answered here, the last one at the end

const busy = new Set(); // the numbers of images whose answer is on its way

// --- requests -------------------------------------------------------------

const post = (path, parameters) => fetch(`api/review/${path}?${new URLSearchParams(parameters)}`, { method: "POST" });

// Do some work for an image, and show what was said of all images by then.
async function change(number, work) {
  if (busy.has(number)) return false;
  busy.add(number);
  const { card, note } = images[number];
  card.classList.add("waits");
  note.replaceChildren();
  try {
    const done = await work(note);
    if (done) show(done.answers);
    return Boolean(done);
  } catch (error) {
    note.replaceChildren(errorNote(reasonOf(error)));
    return false;
  } finally {
    busy.delete(number);
    card.classList.remove("waits");
  }
}

async function say(number, label) {
  const send = (meant, isNew) => post("answer", { number, label: meant, new: isNew });
  const done = await change(number, (note) => sendLabel(label, send, note));
  if (!done) return;
  last.push(number);
  images[number].other.value = "";
  learn(label);
  $("undo").disabled = false;
  if (number === current) moveOn();
}

async function undo(number) {
  const done = await change(number, async () => (await answer(await post("undo", { number }))).json());
  if (!done) return;
  last.splice(last.lastIndexOf(number), last.includes(number) ? 1 : 0);
  $("undo").disabled = !last.length;
  select(number);
}

// --- what is shown ---------------------------------------------------------

const sure = ({ probability }) => probability === null ? "" : ` ${(100 * probability).toFixed(0)}%`;
const picture = (number) => `api/review/image?number=${number}`;

function makeCard(image, number) {
  const shown = [el("img", { src: picture(number), alt: `Image ${number + 1}: ${image.name}`, loading: "lazy" })];
  for (const twin of image.twin === null ? [] : [images[image.twin]])
    shown.push(el("p", { class: "name" }, "There twice: labeled ", el("b", {}, twin.label), ", ", ...breakable(twin.name)),
      el("img", { src: picture(image.twin), alt: `Nearly the same: ${twin.name}`, loading: "lazy" }));
  for (const one of shown) one.addEventListener("error", () => one.replaceWith(el("p", { class: "name" }, "This image can no longer be read.")));
  const about = el("p", { class: "doubt" }, "Label ", el("b", {}, image.label), el("br"),
    image.probability === null ? "the other is labeled " : "looks like ", el("b", {}, image.suggested), sure(image));
  const buttons = [["Keep", "K", "keep"], [image.suggested, "S", image.suggested], ["None of these", "N", "none of these"], ["Remove", "R", LEFT_OUT]].map(([text, key, label]) => {
    const made = el("button", { type: "button", "data-key": key.toLowerCase(), title: `Key ${key}` }, text);
    made.addEventListener("click", () => say(number, label));
    return made;
  });
  const other = el("input", { type: "text", list: "known", autocomplete: "off", spellcheck: "false", placeholder: "Other class", "aria-label": `Other class of ${image.name}` });
  const form = el("form", { class: "other" }, other, el("button", {}, "Save"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    other.blur();
    say(number, other.value);
  });
  const back = el("button", { type: "button", class: "back" }, "Undo");
  back.addEventListener("click", () => undo(number));
  const said = el("p", { class: "said" }), note = el("div");
  const answered = el("div", { class: "answered row", hidden: "" }, said, back);
  const card = el("li", {}, el("div", { class: "pictures" }, ...shown),
    el("div", {}, about, el("p", { class: "name" }, ...breakable(image.name)), el("div", { class: "row" }, ...buttons), form, note, answered));
  card.addEventListener("pointerdown", () => select(number, false));
  card.addEventListener("focusin", () => select(number, false));
  return Object.assign(image, { card, other, note, said, answered });
}

function show(answers) {
  images.forEach((image, number) => {
    const label = answers[number];
    image.answer = label;
    image.card.classList.toggle("done", label !== undefined);
    image.answered.hidden = label === undefined;
    image.said.textContent = label === undefined ? "" : label === LEFT_OUT ? "Left out" : label === image.label ? `Kept: ${label}` : `Now: ${label}`;
  });
  const open = images.filter((image) => image.answer === undefined).length;
  $("count").textContent = open ? `${open} of ${images.length} to look at.` : `All ${images.length} are answered. The next fit learns from them.`;
}

function learn(name) {
  const known = [...$("known").options].some((option) => option.value.toLowerCase() === name.toLowerCase());
  if (!known && images.some((image) => image.answer === name)) $("known").append(el("option", { value: name }));
}

// --- keys -----------------------------------------------------------------

function select(number, scroll = true) {
  images[current]?.card.removeAttribute("aria-current");
  current = Math.max(0, Math.min(number, images.length - 1));
  images[current]?.card.setAttribute("aria-current", "true");
  if (scroll) images[current]?.card.scrollIntoView({ block: "nearest" });
}

// To the next image without an answer, which may be before this one.
function moveOn() {
  const order = [...images.keys()].map((step) => (current + step) % images.length);
  const next = order.find((number) => images[number].answer === undefined);
  if (next !== undefined) select(next);
}

function press(event) {
  const typing = event.target.matches("input[type=text]");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !images.length) return undefined;
  const key = event.key.toLowerCase(), { card, other } = images[current];
  if (key === "arrowdown" || key === "arrowup") select(current + (key === "arrowdown" ? 1 : -1));
  else if (key === "u") $("undo").click();
  else if (key === "o") other.focus();
  else if (card.querySelector(`[data-key="${CSS.escape(key)}"]`)) card.querySelector(`[data-key="${CSS.escape(key)}"]`).click();
  else return undefined;
  return event.preventDefault();
}

// --- start ----------------------------------------------------------------

async function start() {
  const review = await (await answer(await fetch("api/review"))).json();
  images = review.images;
  $("images").replaceChildren(...images.map((image, number) => makeCard(image, number).card));
  $("known").replaceChildren(...review.classes.map((name) => el("option", { value: name })));
  const pairs = review.confused.map(({ classes: [first, second], taken, images: of }) =>
    el("li", {}, el("b", {}, first), " and ", el("b", {}, second), `: ${taken} of ${of} images are taken for the other class.`));
  $("confused").querySelector("ul").replaceChildren(...pairs);
  $("confused").hidden = !pairs.length;
  show(review.answers);
  if (!images.length) $("count").textContent = "There is nothing to look at.";
  select(0, false);
  const first = images.findIndex((image) => image.answer === undefined);
  if (first > 0) select(first);
  $("undo").addEventListener("click", () => { if (last.length) undo(last.at(-1)); });
  document.addEventListener("keydown", press);
}

start().catch((error) => $("about").replaceChildren(errorNote(`The page cannot start: ${reasonOf(error)}`)));
