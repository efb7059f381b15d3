// A table of many pictures: they go to the server in batches, and each row gets its answer or its error.

const AT_ONCE = 8; // pictures in a request, so that the progress is seen
const MOST = 1000; // rows
const LOOK = 20000; // pictures of dropped folders
const BUSY = [429, 503]; // statuses of a server that asks to wait

export const percent = (share) => `${(100 * share).toFixed(1)}%`;

export class PictureTable {
  // `answer` checks a response; `el` makes elements; `choose` shows a file by itself.
  constructor(info, { answer, el, choose }) {
    Object.assign(this, { info, answer, el, choose });
    this.rows = [];
    this.panel = document.getElementById("many");
    this.part = (name) => this.panel.querySelector(`.${name}`);
    this.part("halt").addEventListener("click", () => this.running ? this.stop() : this.run());
    this.part("csv").addEventListener("click", () => this.download());
  }

  // Start anew with some files.
  show(files, classes) {
    this.stop();
    for (const row of this.rows) URL.revokeObjectURL(row.url);
    this.classes = classes;
    this.left = files.length - MOST;
    this.names = new Map();
    this.rows = [...files].slice(0, MOST).map((file) => this.row(file));
    this.part("rows").replaceChildren(...this.rows.map((row) => row.line));
    this.panel.hidden = false;
    this.run();
  }

  // Ask again for the same pictures, among other classes.
  again(classes) {
    if (!this.panel.hidden) this.show(this.rows.map((row) => row.file), classes);
  }

  close() {
    this.stop();
    this.panel.hidden = true;
  }

  // The path in a dropped folder, or the name; from the second on, equal names are numbered.
  named(file) {
    const name = file.path || file.webkitRelativePath || file.name, count = (this.names.get(name) || 0) + 1;
    this.names.set(name, count);
    return count > 1 ? `${name} (${count})` : name;
  }

  row(file) {
    const { el } = this, title = this.named(file);
    const url = URL.createObjectURL(file);
    const picture = el("img", { src: url, alt: "", loading: "lazy", width: 40, height: 40 });
    picture.addEventListener("error", () => picture.remove());
    const name = el("button", { type: "button", class: "link", title: "Show this picture by itself" }, picture, el("bdi", {}, ...breakable(title)));
    name.addEventListener("click", () => this.choose(file));
    const label = el("td"), probability = el("td", { class: "n" });
    const line = el("tr", {}, el("th", { scope: "row" }, name), label, probability);
    return { file, title, url, line, label, probability, result: null };
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.tell();
  }

  async run() {
    const mine = (this.running = new AbortController());
    this.note = "";
    this.tell();
    try {
      for (;;) {
        const batch = await this.next();
        if (mine.signal.aborted || !batch.length) break;
        const seconds = await this.send(batch, mine.signal);
        if (mine.signal.aborted) break;
        this.tell(seconds ? `The server asks to wait ${seconds} s.` : "");
        if (seconds) await pause(1000 * seconds, mine.signal);
      }
    } catch (error) {
      if (!mine.signal.aborted) this.note = error instanceof TypeError ? "The server does not respond. Is it still running?" : error.message;
    }
    if (this.running === mine) this.stop();
  }

  // The next rows without a result that fit into a request; those that cannot be sent get their error.
  async next() {
    const { upload, images } = this.info.limits, room = upload * 2 ** 20;
    const batch = [];
    let size = 0;
    for (const row of this.rows) {
      if (row.result) continue;
      if (row.file.size > room) this.put(row, { error: `the file is larger than ${upload} MiB, the limit.` });
      else if (!await readable(row.file)) this.put(row, { error: "the file cannot be read: is it a folder?" });
      else if (batch.length === Math.min(AT_ONCE, images) || size + row.file.size > room) break;
      else size += batch.push(row) && row.file.size;
    }
    return batch;
  }

  // Fill the rows of a batch; the seconds to wait if the server was too busy for some.
  async send(batch, signal) {
    const form = new FormData();
    for (const row of batch) form.append("image", row.file, "image");
    if (this.classes) form.append("classes", this.classes);
    const response = await fetch("api/batch?top=2", { method: "POST", body: form, signal });
    if (BUSY.includes(response.status)) return Number(response.headers.get("Retry-After")) || 2;
    const { results } = await (await this.answer(response)).json();
    let wait = 0;
    results.forEach((result, at) => {
      if (BUSY.includes(result.status)) wait = Math.max(wait, result.retry_after || 2);
      else this.put(batch[at], result);
    });
    return wait;
  }

  put(row, result) {
    row.result = result;
    if (result.error) { // failures come first, where they are seen
      const failed = this.part("rows").querySelectorAll(".failed");
      failed.length ? failed[failed.length - 1].after(row.line) : this.part("rows").prepend(row.line);
    }
    row.line.classList.toggle("failed", Boolean(result.error));
    row.label.textContent = result.error || said(result);
    row.label.colSpan = result.error ? 2 : 1;
    row.probability.hidden = Boolean(result.error);
    row.probability.textContent = result.error || result.none_of_these ? "" : percent(result.top[0].probability);
  }

  tell(waiting = "") {
    const done = this.rows.filter((row) => row.result).length, failed = this.rows.filter((row) => row.result?.error).length;
    const all = this.rows.length, ended = done === all;
    const beyond = this.left > 0 ? ` ${this.left.toLocaleString("en")} more images were left out: “dear predict” takes any number.` : "";
    this.part("progress").value = done;
    this.part("progress").max = all || 1;
    this.part("progress").hidden = ended;
    this.part("count").textContent = `${done} of ${all} images` + (failed ? `, ${failed} of them not classified` : "") + "." + beyond;
    this.part("note").textContent = this.note || waiting;
    this.part("note").classList.toggle("alert", Boolean(this.note));
    this.part("note").hidden = !(this.note || waiting);
    this.part("halt").textContent = this.running ? "Stop" : "Continue";
    this.part("halt").hidden = ended;
    this.part("csv").disabled = !done;
  }

  download() {
    const cells = ({ top }) => [0, 1].flatMap((rank) => top?.[rank] ? [top[rank].name, top[rank].probability.toFixed(6)] : ["", ""]);
    const done = this.rows.filter((row) => row.result), decides = done.some(({ result }) => result.decision);
    const decision = (result) => decides ? [result.decision || "", result.decided_class || ""] : [];
    const rows = done.map(({ title, result }) => [title, ...cells(result), result.none_of_these ? "yes" : "", result.top?.[0]?.name || "", "", ...decision(result), result.error || ""]);
    const columns = decides ? ["decision", "decided_class"] : [];
    const header = ["file", "class", "probability", "class_2", "probability_2", "none_of_these", "predicted", "checked", ...columns, "error"];
    // The mark at the beginning tells spreadsheets that it is UTF-8.
    const url = URL.createObjectURL(new Blob(["\ufeff" + csv([header, ...rows])], { type: "text/csv" }));
    this.el("a", { href: url, download: "predictions.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }
}

// What a picture shows, in a cell.
function said({ top, none_of_these: none, decision, decided_class: decided }) {
  if (none) return `None of these; nearest: ${top[0].name}`;
  if (decision) return decided ? `${decided}: decided` : `${top[0].name}? To a person`;
  return top[0].name;
}

// Text that lines break after / _ - or before a dot, if they must.
export const breakable = (text) => text.split(/(?<=[/_-])|(?=\.)/u).flatMap((part) => [part, document.createElement("wbr")]).slice(0, -1);

// Names of folders and files that systems leave beside photographs, as PASSED_OVER of dear/reading/files.py has them.
const PASSED_OVER = ["#recycle", "#snapshot", "$recycle.bin", "@eadir", "@recycle", "@tmp", "__macosx", "__pycache__", "desktop.ini", "lost+found", "system volume information", "thumbs.db"];
const isPassedOver = ({ name }) => name.startsWith(".") || PASSED_OVER.includes(name.toLowerCase());

// The files of what was dropped; of folders those that are pictures, each with its path.
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.());
  if (!entries.some((entry) => entry?.isDirectory)) return [...transfer.files];
  const files = [], waiting = entries.filter(Boolean);
  while (waiting.length && files.length <= LOOK) {
    const entry = waiting.shift();
    if (entry.isDirectory) waiting.push(...await children(entry.createReader()));
    else {
      const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
      if (file?.type.startsWith("image/")) files.push(Object.assign(file, { path: entry.fullPath.slice(1) }));
    }
  }
  return files;
}

// All entries of a folder, sorted; a reader gives some at a time.
async function children(reader) {
  const all = [];
  for (;;) {
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) return all.filter((entry) => !isPassedOver(entry)).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    all.push(...some);
  }
}

// Cells as CSV. Names come from outside: no cell is taken for a formula, and none contains a control character.
export function csv(rows) {
  const cell = (text) => {
    const plain = String(text).replace(/[\p{Cc}\p{Zl}\p{Zp}\u202a-\u202e\u2066-\u2069]/gu, " ");
    return `"${(/^\s*[=+\-@＝＋－＠]/.test(plain) ? "'" : "") + plain.replaceAll('"', '""')}"`;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

async function readable(file) {
  try {
    await file.slice(0, 1).arrayBuffer(); // of a folder this fails
    return true;
  } catch {
    return false;
  }
}

const pause = (milliseconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); });
});
