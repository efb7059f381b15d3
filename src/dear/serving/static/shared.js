// What the pages share: making elements, checking answers, and asking what a label means that is no class.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const errorNote = (message) => el("p", { class: "alert", role: "alert" }, message);

// What went wrong with a request, in words; fetch raises a TypeError.
export const reasonOf = (error) => error instanceof TypeError ? "The server does not respond. Is it still running?" : error.message;

export async function answer(response) {
  if (response.status === 401) location.reload(); // the login form asks for the token
  if (response.ok) return response;
  const failure = await response.json().catch(() => ({}));
  const message = failure.error || `the server responded with status ${response.status}.`;
  throw Object.assign(new Error(message), failure);
}

// Send a label by `send(label, isNew)`. If it is no class, a person is asked in `place` what is meant, before it becomes
// one. What the server answers, or null for a person who thinks again.
export async function sendLabel(label, send, place) {
  place.replaceChildren();
  try {
    return await (await answer(await send(label, false))).json();
  } catch (error) {
    if (error.kind !== "new-class") throw error;
    const meant = await askWhatIsMeant(label, error.nearest, place);
    return meant === null ? null : await (await answer(await send(meant, meant === label))).json();
  }
}

// The class that is meant: the nearest, the label as a new one, or null.
function askWhatIsMeant(label, nearest, place) {
  return new Promise((resolve) => {
    const decide = (meant) => { place.replaceChildren(); resolve(meant); };
    const button = (text, meant) => {
      const made = el("button", { type: "button" }, text);
      made.addEventListener("click", () => decide(meant));
      return made;
    };
    const question = `“${label}” is no class.` + (nearest ? ` Did you mean “${nearest}”?` : " Shall it become one?");
    const buttons = [...(nearest ? [button(`Yes, ${nearest}`, nearest)] : []), button(`“${label}” is a new class`, label), button("Cancel", null)];
    place.replaceChildren(el("div", { class: "asked", role: "alertdialog", "aria-label": question }, el("p", {}, question), el("div", { class: "row" }, ...buttons)));
    place.firstChild.addEventListener("keydown", (event) => {
      event.stopPropagation(); // keys of the page
      if (event.key === "Escape") decide(null);
    });
    buttons[0].focus();
  });
}
