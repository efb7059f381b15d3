// Sliders for the weights of the features: other weights than the learned ones, for one request.

const PAUSE = 250; // milliseconds without input after which a slider takes effect

export class Steering {
  // `learned` are the weights by feature, null for a method that has none; `el` makes elements; `changed` is
  // called after a change.
  constructor(learned, { el, changed }) {
    this.changed = changed;
    this.sliders = Object.entries(learned || {}).map(([name, value]) => el("input", { type: "range", min: 0, max: 1, step: "any", name, value }));
    const part = (id) => document.getElementById(id);
    part("weights").replaceChildren(...this.sliders.map((slider) => {
      const shown = el("output", {});
      slider.addEventListener("input", () => { this.tell(); clearTimeout(this.waiting); this.waiting = setTimeout(changed, PAUSE); });
      return el("label", {}, `${slider.name} `, shown, slider);
    }));
    part("alone").addEventListener("click", () => this.set((slider) => Number(slider.name === "class")));
    part("reset").addEventListener("click", () => this.set((slider) => slider.defaultValue));
    part("steer").hidden = !learned;
    this.tell();
  }

  // The weights as a parameter of the request; none while they are as learned.
  parameters() {
    if (this.sliders.every((one) => Math.abs(one.value - one.defaultValue) < 1e-6)) return {};
    return { fusion: this.sliders.map((one) => `${one.name}=${one.value}`).join(",") };
  }

  set(value) {
    for (const slider of this.sliders) slider.value = value(slider);
    this.tell();
    this.changed();
  }

  tell() {
    for (const slider of this.sliders) slider.previousElementSibling.textContent = Number(slider.value).toFixed(2);
  }
}
