// What all figures use: the data, drawing, the tooltip, the slider over training time. Text only ever enters as text.
"use strict";
const fg = (() => {
  const runs = {};
  for (const script of document.querySelectorAll("script[data-run]")) runs[script.dataset.run] = JSON.parse(script.textContent);

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  for (const run of Object.values(runs)) {
    run.p = bytes(run.p || "");
    run.kernels = 0;
    for (const layer of run.layers) { layer.first = run.kernels; run.kernels += layer.kernels; }
    // The probability of a group for a kernel of a layer at a saved step.
    run.probability = (time, layer, kernel, group) =>
      run.p[(time * run.kernels + layer.first + kernel) * run.groups.length + group] / 255;
  }

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
    made.append(...children.filter((child) => child != null));
    return made;
  };
  const svg = (name, attributes = {}, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const number = (value, digits = 3) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace("-", "−").replace("e-", "e−");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(digits)).replace("-", "−");
  };
  const swatch = (colour) => element("span", { class: "swatch", style: `--c:${colour}` });

  const box = document.body.appendChild(element("div", { class: "tip", role: "status", hidden: "" }));
  const tip = {
    // lines: a title, then [name, value] pairs or plain texts
    show(x, y, title, lines) {
      box.replaceChildren(element("b", {}, title), ...lines.map((line) =>
        Array.isArray(line) ? element("span", {}, line[0], element("i", {}, line[1])) : element("span", {}, line)));
      box.hidden = false;
      const { width, height } = box.getBoundingClientRect();
      box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
      box.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
    },
    hide() { box.hidden = true; },
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hide(); });
  addEventListener("scroll", tip.hide, { passive: true });

  // A tooltip on a mark, by mouse, touch and keyboard.
  const hint = (mark, said, enter = () => {}, leave = () => {}) => {
    mark.setAttribute("tabindex", "0");
    mark.setAttribute("role", "img");
    const show = (x, y) => { const [title, lines] = said(); enter(); tip.show(x, y, title, lines); };
    mark.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
    mark.addEventListener("pointerleave", () => { leave(); tip.hide(); });
    mark.addEventListener("focus", () => {
      const place = mark.getBoundingClientRect();
      show(place.left + place.width / 2, place.top + place.height / 2);
    });
    mark.addEventListener("blur", () => { leave(); tip.hide(); });
  };

  // The slider over training time; `changed` is called with the index of a saved step.
  const time = (control, run, start, changed) => {
    const [input, output, play] = ["input", "output", "button"].map((name) => control.querySelector(name));
    input.max = run.steps.length - 1;
    input.value = start;
    const tell = () => {
      const at = +input.value;
      const fixed = run.fixedAt != null && at >= run.fixedAt;
      output.textContent = `step ${run.steps[at].toLocaleString("en")}${fixed ? " · fixed" : ""}`;
      input.setAttribute("aria-valuetext", output.textContent);
      changed(at);
    };
    input.addEventListener("input", tell);
    let timer = null;
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶"; play.setAttribute("aria-label", "play"); };
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (+input.value >= +input.max) input.value = 0;
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "pause");
      timer = setInterval(() => {
        if (+input.value >= +input.max) return stop();
        input.value = +input.value + 1;
        tell();
      }, Math.max(60, 4000 / run.steps.length));
    });
    tell();
  };

  // Draw what can be seen first, the rest when it comes into view or when there is time, and all of it to be printed.
  const lazily = () => {
    const drawers = new Map(), seen = new Set(), stale = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) { seen.delete(target); continue; }
        seen.add(target);
        if (stale.delete(target)) drawers.get(target)();
      }
    }, { rootMargin: "50px" });
    const next = () => { // what is hidden has no size to be drawn at: it waits until it is shown
      for (const target of stale) if (target.getBoundingClientRect().width) { stale.delete(target); drawers.get(target)(); return true; }
      return false;
    };
    const whenIdle = window.requestIdleCallback || ((call) => setTimeout(call, 50));
    const catchUp = () => whenIdle(() => { if (next()) catchUp(); });
    window.addEventListener("load", catchUp);
    window.addEventListener("beforeprint", () => { while (next()); });
    return {
      add(target, draw) { drawers.set(target, draw); stale.add(target); observer.observe(target); },
      redraw() { for (const [target, draw] of drawers) seen.has(target) ? draw() : stale.add(target); },
    };
  };

  // A canvas at the screen's resolution, cleared; sizes in CSS pixels.
  const prepared = (canvas) => {
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = Math.min(devicePixelRatio || 1, 2);
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return [context, width, height];
  };
  const ruler = document.createElement("canvas").getContext("2d");
  const textWidth = (text, font = "600 12.5px") => { ruler.font = `${font} ${css("--sans")}`; return ruler.measureText(text).width; };
  const clipped = (text, room) => {
    let kept = text;
    while (kept.length > 1 && textWidth(kept === text ? text : `${kept}…`) > room) kept = kept.slice(0, -1);
    return kept === text ? text : `${kept}…`;
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  // Redraw when the width or the theme changes.
  const whenResized = (target, draw) => {
    let last = 0;
    new ResizeObserver(() => {
      const width = target.clientWidth;
      if (width && width !== last) { last = width; draw(); }
    }).observe(target);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };
  const each = (kind, build) => {
    for (const root of document.querySelectorAll(`[data-figure="${kind}"]`)) build(root, runs[root.dataset.of]);
  };
  return { runs, element, svg, number, swatch, tip, hint, time, lazily, prepared, css, channels, textWidth, clipped, whenResized, each };
})();
