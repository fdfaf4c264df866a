// Exercises that a reader can try in the page. Nothing is loaded before a button is pressed.
"use strict";
(() => {
  const here = document.currentScript.src;
  const workers = new Map(); // by lab: Python starts once for all exercises of a lab
  const boxes = (lab) => [...document.querySelectorAll(`.tl-try[data-lab="${lab}"]`)];

  const element = (tag, more = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), more);
    made.append(...children);
    return made;
  };

  const key = (box) => `threeloops try ${box.dataset.lab} ${box.dataset.exercise}`;
  const kept = (box) => { try { return localStorage.getItem(key(box)); } catch { return null; } };
  const keep = (box, text) => { try { localStorage.setItem(key(box), text); } catch { /* a private window */ } };

  const textOf = (box) => box.querySelector("textarea")?.value ?? kept(box) ?? box.dataset.starter;

  const refuse = (box, why) => {
    const number = box.dataset.lab.slice(0, 2);
    const note = element("p", { className: "tl-note", textContent: `Python cannot run in this page (${why}). ` });
    note.append("On your machine ", element("code", { textContent: `make lab LAB=${number}` }), " opens this exercise.");
    box.replaceChildren(note);
  };

  const rest = (box, text, state) => {
    box.querySelector("output").textContent = text;
    box.dataset.state = state;
    box.querySelector(".tl-run").disabled = state === "running";
    box.querySelector(".tl-stop").hidden = state !== "running";
  };

  const stop = (lab) => {
    workers.get(lab)?.terminate();
    workers.delete(lab);
    for (const box of boxes(lab)) if (box.dataset.state === "running") rest(box, "Stopped.", "stopped");
  };

  const take = (box, { ready, failed, passed, printed }) => {
    if (failed) {
      stop(box.dataset.lab);
      refuse(box, failed);
    } else if (!ready) rest(box, printed, passed ? "passed" : "failed");
    else if (box.dataset.state === "running") rest(box, "Checking…", "running");
  };

  const send = (box, more = {}) => {
    const { lab, exercise } = box.dataset;
    if (!workers.has(lab)) {
      const worker = new Worker(new URL("try_worker.js", here));
      worker.onmessage = ({ data }) => take(boxes(lab).find((one) => one.dataset.exercise === data.exercise), data);
      worker.onerror = (error) => take(box, { failed: error.message || "its worker did not start" });
      workers.set(lab, worker);
    }
    const pyodide = new URL(box.dataset.pyodide, here).href;
    workers.get(lab).postMessage({ exercise, pyodide, bundle: new URL(`try/${lab}.zip`, here).href, ...more });
  };

  const run = (box) => {
    rest(box, "Loading Python…", "running");
    send(box, { answers: Object.fromEntries(boxes(box.dataset.lab).map((one) => [one.dataset.exercise, textOf(one)])) });
  };

  const open = (box) => {
    const text = textOf(box);
    const area = element("textarea", { spellcheck: false, autocapitalize: "off", value: text });
    area.rows = text.split("\n").length + 3;
    area.setAttribute("aria-label", `Your code for ${box.dataset.exercise}`);
    area.addEventListener("input", () => keep(box, area.value));
    area.addEventListener("keydown", (pressed) => {
      if (pressed.key !== "Enter" || pressed.isComposing) return;
      pressed.preventDefault();
      if (pressed.ctrlKey || pressed.metaKey) { run(box); return; }
      const line = area.value.slice(0, area.selectionStart).split("\n").pop();
      const indent = line.match(/^ */)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
      area.setRangeText(`\n${indent}`, area.selectionStart, area.selectionEnd, "end");
      keep(box, area.value);
    });
    const check = element("button", { type: "button", className: "tl-button tl-run", textContent: "Run the checks" });
    check.addEventListener("click", () => run(box));
    const halt = element("button", { type: "button", className: "tl-button tl-stop", textContent: "Stop", hidden: true });
    halt.addEventListener("click", () => stop(box.dataset.lab));
    const reset = element("button", { type: "button", className: "tl-button", textContent: "Start over" });
    reset.addEventListener("click", () => { area.value = box.dataset.starter; keep(box, area.value); });
    box.replaceChildren(area, element("p", {}, check, " ", halt, " ", reset), element("output"));
    area.focus();
    send(box);
  };

  const offer = (box) => {
    if (location.protocol === "file:") { refuse(box, "it was opened from a file"); return; }
    if (!("Worker" in window && "WebAssembly" in window)) { refuse(box, "this browser has no WebAssembly"); return; }
    const host = new URL(box.dataset.pyodide, here).host;
    const from = host === location.host ? "" : ` It loads Python from ${host}.`;
    const button = element("button", { type: "button", className: "tl-button", textContent: "Try it here" });
    button.addEventListener("click", () => open(box));
    const note = ` Runs the visible checks in your browser, without an installation.${from}`;
    box.replaceChildren(button, element("span", { className: "tl-note", textContent: note }));
  };

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".tl-try").forEach(offer));
})();
