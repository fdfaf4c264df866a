// Explorers without a kernel: their controls show pictures that were drawn beforehand. Plain JavaScript; nothing is
// loaded from another host. The pictures of an explorer lie inside it, or in a script beside this one, by its name.
"use strict";
(() => {
  if (window.threeLoops) {
    window.threeLoops.start();
    return;
  }
  const here = document.currentScript?.src || location.href;
  const waiting = new Map();

  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };

  const load = (explorer) => {
    const { name } = explorer.dataset;
    if (!waiting.has(name)) {
      const entry = {};
      waiting.set(name, entry);
      const inside = explorer.querySelector(":scope > script.tl-states");
      if (inside) {
        entry.ready = unpack(inside.textContent);
      } else {
        entry.ready = new Promise((done) => { entry.done = done; });
        const script = document.createElement("script");
        script.src = new URL(`explorers/${name}.js`, here).href;
        script.onerror = () => entry.done(null);
        document.head.append(script);
      }
    }
    return waiting.get(name).ready;
  };

  const say = (control) => {
    if (control.type !== "range") return;
    const text = JSON.parse(control.dataset.values)[control.value];
    control.setAttribute("aria-valuetext", text);
    control.nextElementSibling.value = text;
  };

  const bringToLife = (explorer) => {
    explorer.dataset.alive = "";
    explorer.querySelector(".tl-controls").parentElement.style.display = "";
    const controls = [...explorer.querySelectorAll(".tl-controls input, .tl-controls select")];
    const picture = explorer.querySelector(".tl-picture");
    let asked = 0;
    const show = async () => {
      const turn = ++asked;
      const states = await load(explorer);
      if (turn !== asked || !states) return;
      const key = controls.map((control) => control.value).join(",");
      const lines = states.pictures[key];
      explorer.querySelector(".tl-error")?.remove();
      if (lines) {
        picture.innerHTML = `<div class="tl-figure">${lines.map((at) => states.lines[at]).join("\n")}</div>`;
        explorer.dataset.shown = key;
      } else {
        const error = document.createElement("pre");
        error.className = "tl-error";
        error.textContent = states.errors[key] || "This page does not have this setting; the notebook does.";
        explorer.append(error);
      }
    };
    for (const control of controls) {
      control.value = control.dataset.start; // a browser keeps the last value over a reload
      control.addEventListener("focus", () => load(explorer));
      control.addEventListener("input", () => {
        if ("single" in explorer.dataset) {
          for (const other of controls) {
            if (other !== control && other.value !== other.dataset.start) {
              other.value = other.dataset.start;
              say(other);
            }
          }
        }
        say(control);
        show();
      });
    }
    explorer.addEventListener("pointerenter", () => load(explorer), { once: true });
  };

  window.threeLoops = {
    take: async (name, packed) => waiting.get(name).done(await unpack(packed)),
    start: () => document.querySelectorAll(".tl-explorer:not([data-alive])").forEach(bringToLife),
  };
  window.threeLoops.start();
  document.addEventListener("DOMContentLoaded", window.threeLoops.start);
})();
