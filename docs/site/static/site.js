// Predictions without a kernel. Plain JavaScript; nothing is loaded from another host.
"use strict";
(() => {
  // --- predictions ------------------------------------------------------------
  const prefix = "threeloops " + location.pathname.split("/").pop() + " ";
  const memory = new Map();
  const kept = {
    get: (event) => {
      try { return localStorage.getItem(prefix + event) ?? memory.get(event) ?? null; } catch { return memory.get(event) ?? null; }
    },
    set: (event, answer) => {
      memory.set(event, answer);
      try { localStorage.setItem(prefix + event, answer); } catch { /* a private window: for this visit only */ }
    },
    drop: (event) => {
      memory.delete(event);
      try { localStorage.removeItem(prefix + event); } catch { /* as above */ }
    },
  };
  const GIVEN_UP = "given up";

  const element = (tag, more = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), more);
    made.append(...children);
    return made;
  };

  const readNumber = (text) => {
    const plain = text.replace(/[,_\s]/g, "");
    return plain === "" ? NaN : Number(plain);
  };

  const significant = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });

  const verdict = (answer, found) => {
    if (typeof found === "string") return answer === found ? "As predicted." : `You said: ${answer}.`;
    const guess = Number(answer);
    if (guess === found) return "Exactly as predicted.";
    if (guess * found <= 0) return `Your guess is off by ${significant(Math.abs(guess - found))}.`;
    const factor = Math.max(guess / found, found / guess);
    const side = Math.abs(guess) > Math.abs(found) ? "too high" : "too low";
    const near = factor <= 1.25 ? "close" : factor <= 2 ? "within a factor of two" : "worth a second look";
    return `Your guess is ${significant(factor)}× ${side}: ${near}.`;
  };

  // The reader's own calibration, as at the end of a lab in the notebook.
  const calibrate = () => {
    const questions = [...document.querySelectorAll(".tl-question")];
    const pairs = questions.flatMap((question) => {
      const answer = kept.get(question.dataset.event);
      const output = outputs(question.dataset.event).find((one) => JSON.parse(one.dataset.found).found !== null);
      return answer === null || answer === GIVEN_UP || !output ? [] : [[answer, JSON.parse(output.dataset.found).found]];
    });
    const choices = pairs.filter(([, found]) => typeof found === "string");
    const ratios = pairs.filter(([answer, found]) => typeof found === "number" && answer * found > 0).map(([answer, found]) => answer / found);
    const parts = [`${pairs.length} of ${questions.length} questions answered`];
    if (choices.length) parts.push(`${choices.filter(([answer, found]) => answer === found).length} of ${choices.length} choices right`);
    if (ratios.length) parts.push(`${ratios.filter((ratio) => ratio <= 2 && ratio >= 0.5).length} of ${ratios.length} numbers within a factor of two`);
    for (const card of document.querySelectorAll(".tl-calibration")) {
      card.replaceChildren(element("b", { textContent: "Your predictions" }), ` · ${parts.join("; ")}`);
    }
  };

  const outputs = (event) => [...document.querySelectorAll(".tl-until")].filter((output) => output.dataset.event === event);

  const update = (question) => {
    const event = question.dataset.event;
    const asks = JSON.parse(question.dataset.asks);
    const answer = kept.get(event);
    const open = answer !== null;
    question.querySelector(".tl-form").hidden = open;
    const given = question.querySelector(".tl-given");
    given.hidden = !open;
    if (open) {
      const unit = asks.unit ? ` ${asks.unit}` : "";
      given.querySelector("b").textContent = answer === GIVEN_UP ? "No guess this time." : `Your prediction: ${answer}${unit}`;
    }
    let before = null;
    let judged = false;
    for (const output of outputs(event)) {
      output.classList.toggle("tl-open", open);
      output.parentElement.querySelectorAll(":scope > .tl-verdict, :scope > .tl-waits").forEach((old) => old.remove());
      const { found } = JSON.parse(output.dataset.found);
      if (open && !judged && found !== null && answer !== GIVEN_UP) {
        judged = true;
        output.before(element("p", { className: "tl-verdict", textContent: verdict(answer, found) }));
      }
      const cell = output.closest(".cell");
      if (!open && cell !== before) {
        const waits = element("p", { className: "tl-waits", textContent: `Folded until you have answered: ${asks.text.replace(/[`*]/g, "")}` });
        output.before(waits);
      }
      before = cell;
    }
    calibrate();
  };

  const ask = (question, number) => {
    const asks = JSON.parse(question.dataset.asks);
    const event = question.dataset.event;
    const name = `guess-${number}`;
    const entry = element("span", { className: "tl-entry" });
    const note = element("span", { className: "tl-note" });
    note.setAttribute("role", "status");
    const take = (answer) => { kept.set(event, answer); update(question); };
    const form = element("form", { className: "tl-form" });
    const giveUp = element("button", { type: "button", textContent: "Show me" });
    giveUp.addEventListener("click", () => take(GIVEN_UP));
    if (asks.options.length) {
      const choices = element("fieldset", {}, element("legend", { className: "tl-hidden", textContent: "Your guess" }));
      for (const option of asks.options) {
        choices.append(element("label", {}, element("input", { type: "radio", name, value: option }), ` ${option}`));
      }
      entry.append(choices);
    } else {
      const field = element("input", { type: "text", name, inputMode: "decimal", autocomplete: "off", placeholder: asks.axis ? `${asks.axis[0]} to ${asks.axis[1]}` : "a number, such as 0.25 or 3e9" });
      field.setAttribute("aria-label", `Your guess${asks.unit ? ` in ${asks.unit}` : ""}`);
      entry.append(field, asks.unit ? ` ${asks.unit}` : "");
    }
    form.append(entry, element("button", { type: "submit", textContent: "This is my guess" }), giveUp, note);
    form.addEventListener("submit", (submitted) => {
      submitted.preventDefault();
      const chosen = new FormData(form).get(name);
      if (asks.options.length) {
        if (chosen === null) note.textContent = "Choose one first.";
        else take(chosen);
      } else if (Number.isFinite(readNumber(chosen))) take(String(readNumber(chosen)));
      else note.textContent = "Type a number first, such as 0.25 or 3e9.";
    });
    const again = element("button", { type: "button", textContent: "Ask me again" });
    again.addEventListener("click", () => { kept.drop(event); update(question); });
    question.append(form, element("p", { className: "tl-given", hidden: true }, element("b"), " ", again));
    update(question);
  };

  // --- the theme's drawers ----------------------------------------------------
  // Furo opens them with labels of hidden checkboxes, which no keyboard reaches.
  const openByButton = (id, drawer, name) => {
    const state = document.getElementById(id);
    const buttons = [...document.querySelectorAll(`label[for="${id}"]:not(.overlay)`)].map((label) => {
      const button = element("button", { type: "button", className: label.className }, ...label.childNodes);
      button.setAttribute("aria-label", name);
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => state.click());
      label.replaceWith(button);
      return button;
    });
    state?.addEventListener("change", () => {
      buttons.forEach((button) => button.setAttribute("aria-expanded", String(state.checked)));
      if (state.checked) document.querySelector(`${drawer} a`)?.focus({ preventScroll: true });
    });
    document.addEventListener("keydown", (pressed) => {
      if (pressed.key !== "Escape" || !state?.checked) return;
      state.click();
      buttons.find((button) => button.checkVisibility())?.focus();
    });
  };

  // --- films ------------------------------------------------------------------
  // `make site` puts a still beside each of them.
  const stoppable = (film) => {
    const moving = film.src;
    const still = moving.replace(/\.gif$/, ".png");
    const button = element("button", { type: "button", className: "tl-button" });
    const show = (source) => {
      film.src = source;
      button.textContent = source === moving ? "Stop" : "Play";
    };
    button.addEventListener("click", () => show(film.src === moving ? still : moving));
    film.parentElement.classList.add("tl-film");
    film.parentElement.after(element("p", {}, button));
    show(matchMedia("(prefers-reduced-motion: reduce)").matches ? still : moving);
  };

  // --- what goes on to the right ----------------------------------------------
  // A phone shows no scroll bar, so the side on which something is cut off fades.
  const SCROLLED = ".tl-figure, .tl-film, .tl-text, .table-wrapper, .highlight pre, .output.text_html, p:has(> img[src*='_opening'])";
  const cue = (box) => box.classList.toggle("tl-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 4);
  const cueAll = () => document.querySelectorAll(SCROLLED).forEach(cue);
  const cueSoon = () => setTimeout(cueAll, 300);
  document.addEventListener("scroll", ({ target }) => target.matches?.(SCROLLED) && cue(target), { capture: true, passive: true });
  document.addEventListener("toggle", cueSoon, { capture: true });
  for (const event of ["input", "click"]) document.addEventListener(event, cueSoon);
  for (const event of ["load", "resize"]) addEventListener(event, cueAll);

  document.addEventListener("DOMContentLoaded", () => {
    openByButton("__navigation", ".sidebar-drawer", "Pages of this site");
    openByButton("__toc", ".toc-drawer", "On this page");
    document.querySelectorAll('article img[src$=".gif"]').forEach(stoppable);
    const questions = [...document.querySelectorAll(".tl-question")];
    questions.forEach(ask);
    calibrate();
    const asked = new Set(questions.map((question) => question.dataset.event));
    for (const output of document.querySelectorAll(".tl-until")) {
      if (!asked.has(output.dataset.event)) output.classList.add("tl-open"); // nothing on this page would open it
    }
  });
})();
