// Curves over training: small charts with a cross-hair.
"use strict";
fg.each("curves", (root, run) => {
  const lazy = fg.lazily();
  const HEIGHT = 190, LEFT = 52, RIGHT = 20, TOP = 10, BOTTOM = 30;

  const niceStep = (span, count) => {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= raw);
  };
  const ticksOf = (low, high, count) => {
    const step = niceStep(high - low, count), ticks = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) ticks.push(Math.abs(value) < step * 1e-6 ? 0 : value);
    return ticks;
  };
  const decades = (low, high) => {
    const ticks = [];
    for (let power = Math.ceil(low); power <= high; power++) ticks.push(power);
    const every = Math.ceil(ticks.length / 5);
    return ticks.filter((_, n) => n % every === 0);
  };
  const short = (step) => (step >= 10000 ? `${fg.number(step / 1000, 4)}k` : step.toLocaleString("en"));

  const chart = (card, about) => {
    const figure = card.appendChild(fg.element("div", { class: "chart" }));
    const series = about.series;
    const across = series.flatMap((one) => one.x), log = about.log;
    const height = (value) => (log ? Math.log10(Math.max(Math.abs(value), 1e-12)) : value);
    const values = series.flatMap((one) => one.y.filter((value) => value !== null).map(height));
    let low = Math.min(...values), high = Math.max(...values);
    if (high - low < 1e-9) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    const pad = (high - low) * 0.06;
    [low, high] = [low - pad, high + pad];
    if (!log && about.zero) low = 0;
    const start = 0, end = Math.max(...across, start + 1);

    const draw = () => {
      const width = figure.clientWidth;
      const toX = (step) => LEFT + ((step - start) / (end - start)) * (width - LEFT - RIGHT);
      const toY = (value) => TOP + (1 - (height(value) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
      const picture = fg.svg("svg", { width, height: HEIGHT, role: "img", tabindex: "0", "aria-label": `${about.title}: ${about.alt}` });
      const yTicks = log ? decades(low, high).map((power) => [10 ** power, fg.number(10 ** power)]) : ticksOf(low, high, 4).map((value) => [value, fg.number(value)]);
      for (const [value, label] of yTicks) {
        const y = toY(value);
        picture.append(fg.svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" }), fg.svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, label));
      }
      for (const step of ticksOf(start, end, Math.max(2, Math.min(5, width / 90)))) {
        picture.append(fg.svg("text", { x: toX(step), y: HEIGHT - 8, "text-anchor": "middle" }, short(step)));
      }
      for (const one of series) {
        let path = "", open = false;
        one.x.forEach((step, n) => {
          if (one.y[n] === null) { open = false; return; }
          path += `${open ? "L" : "M"}${toX(step).toFixed(1)},${toY(one.y[n]).toFixed(1)}`;
          open = true;
        });
        picture.append(fg.svg("path", { d: path, fill: "none", stroke: one.colour, "stroke-width": one.faint ? 1 : 2, opacity: one.faint ? 0.3 : 1, "stroke-linejoin": "round" }));
        if (one.dots || one.x.length === 1) one.x.forEach((step, n) => {
          if (one.y[n] !== null) picture.append(fg.svg("circle", { cx: toX(step), cy: toY(one.y[n]), r: 2.6, fill: one.colour }));
        });
      }
      const cross = picture.appendChild(fg.svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "axis", visibility: "hidden" }));
      const steps = [...new Set(series.flatMap((one) => (one.faint ? [] : one.x)))].sort((a, b) => a - b);
      let shown = -1;
      const tell = (n, y) => {
        shown = n;
        const step = steps[n], x = toX(step), place = picture.getBoundingClientRect();
        cross.setAttribute("x1", x);
        cross.setAttribute("x2", x);
        cross.setAttribute("visibility", "visible");
        const lines = series.filter((one) => !one.faint).flatMap((one) => {
          const at = one.x.indexOf(step);
          return at < 0 || one.y[at] === null ? [] : [[one.name, fg.number(one.y[at], 4)]];
        });
        fg.tip.show(place.left + x, y ?? place.top + HEIGHT / 2, `step ${step.toLocaleString("en")}`, lines.slice(0, 24));
      };
      picture.addEventListener("pointermove", (event) => {
        const x = event.clientX - picture.getBoundingClientRect().left;
        let best = 0;
        steps.forEach((step, n) => { if (Math.abs(toX(step) - x) < Math.abs(toX(steps[best]) - x)) best = n; });
        tell(best, event.clientY);
      });
      const hide = () => { cross.setAttribute("visibility", "hidden"); fg.tip.hide(); };
      picture.addEventListener("pointerleave", hide);
      picture.addEventListener("blur", hide);
      picture.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!move) return;
        event.preventDefault();
        tell(Math.max(0, Math.min(steps.length - 1, shown + move)));
      });
      figure.replaceChildren(picture);
    };
    lazy.add(card, draw);
  };
  const grid = root.querySelector(".small-multiples");
  for (const about of run.curves) {
    const named = about.series.filter((one) => !one.faint && one.name !== about.title);
    const legend = about.scale
      ? fg.element("div", { class: "scale" }, about.scale[0], fg.element("i", { style: `background:linear-gradient(to right,${about.scale[2].join(",")})` }), about.scale[1])
      : named.length > 1 ? fg.element("ul", { class: "legend" }, ...named.map((one) => fg.element("li", {}, fg.swatch(one.colour), one.name))) : null;
    const card = grid.appendChild(fg.element("div", { class: "card" }, fg.element("h4", {}, about.title), legend));
    chart(card, about);
  }
  fg.whenResized(grid, lazy.redraw);
});
