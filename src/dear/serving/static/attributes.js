// Where the core head of each attribute attends, under the mask: from the class token and from the attribute's own.

// For each attribute the core head with the largest share of it, the last of equals.
export function coreHeads(roles, attributes) {
  const best = new Map();
  for (const head of roles) {
    const share = (of) => of.share?.[of.attribute] || 0;
    if (head.attribute && (!best.has(head.attribute) || share(head) >= share(best.get(head.attribute)))) best.set(head.attribute, head);
  }
  return attributes.filter((name) => best.has(name)).map((name) => best.get(name));
}

export class AttributeMaps {
  // `answer` checks a response; `el` makes elements.
  constructor(heads, { answer, el }) {
    Object.assign(this, { heads, answer, el, image: null, place: document.getElementById("attribute-maps") });
    document.getElementById("by-attribute").hidden = !heads.length;
  }

  // Show the maps of an image; a newer image replaces an older one.
  async show(image) {
    if (image === this.image) return;
    this.running?.abort();
    const mine = (this.running = new AbortController());
    this.image = image;
    const rows = this.heads.map(({ attribute, layer, head }) => {
      const tiles = ["class", attribute].map((token) => this.el("figure", {}, this.el("figcaption", {}, `${token} token`)));
      return { layer, head, tokens: ["class", attribute], tiles, line: this.el("div", { class: "attribute" },
        this.el("h3", {}, `${attribute} `, this.el("small", {}, `layer ${layer}, head ${head}`)), this.el("div", { class: "pair" }, ...tiles)) };
    });
    this.place.replaceChildren(...rows.map((row) => row.line));
    try {
      for (const { layer, head, tokens, tiles } of rows)
        for (const [at, token] of tokens.entries()) tiles[at].prepend(await this.map(image, layer, head, token, mine.signal));
    } catch (error) {
      if (mine.signal.aborted) return;
      this.image = null; // asked for again
      const lost = error instanceof TypeError; // raised by fetch
      this.place.replaceChildren(this.el("p", { class: "alert", role: "alert" }, lost ? "The server does not respond. Is it still running?" : error.message));
    }
  }

  async map(image, layer, head, token, signal) {
    const form = new FormData();
    form.append("image", image);
    const asked = new URLSearchParams({ layer, head, token, png: true });
    const response = await this.answer(await fetch(`api/attention?${asked}`, { method: "POST", body: form, signal }));
    const share = 100 * Number(response.headers.get("Attention-On-Patches"));
    const said = `Layer ${layer}, head ${head}: ${share.toFixed(0)}% of the ${token} token's attention is on patches.`;
    const shown = this.el("img", { alt: said, title: said, src: URL.createObjectURL(await response.blob()) });
    shown.addEventListener("load", () => URL.revokeObjectURL(shown.src));
    return shown;
  }
}
