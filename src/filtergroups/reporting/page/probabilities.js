// Grouping probabilities: for three groups two triangles a layer (density, trajectories), for more a heat map.
"use strict";
fg.each("simplex", (root, run) => {
  const grid = root.querySelector(".small-multiples");
  const control = root.querySelector(".time");
  const lazy = fg.lazily();
  const MARGIN = 7, CELLS = 96;
  let at = run.learned;
  const [left, right, top] = run.corners; // groups at the corners

  const onTriangle = (width, height) => {
    const side = Math.min(width - 2 * MARGIN, (height - 2 * MARGIN) / 0.866), x0 = (width - side) / 2, y0 = (height + side * 0.866) / 2;
    return (p) => [x0 + side * (p(right) + p(top) / 2), y0 - side * 0.866 * p(top)];
  };
  const outline = (context, to) => {
    const corners = [left, right, top].map((group) => to((other) => +(other === group)));
    context.beginPath();
    for (const [x, y] of corners) context.lineTo(x, y);
    context.closePath();
    context.strokeStyle = fg.css("--faint");
    context.lineWidth = 1;
    context.stroke();
    corners.forEach(([x, y], n) => {
      context.beginPath();
      context.arc(x, y, 4, 0, 7);
      context.fillStyle = run.groups[[left, right, top][n]].colour;
      context.fill();
    });
  };
  const drawDensity = (canvas, layer) => {
    const [context, width, height] = fg.prepared(canvas);
    const to = onTriangle(width, height);
    // Points into cells, then a Gaussian across and one down.
    const wide = CELLS, high = Math.round((CELLS * height) / width);
    let cells = new Float32Array(wide * high);
    for (let k = 0; k < layer.kernels; k++) {
      const [x, y] = to((group) => run.probability(at, layer, k, group));
      const column = Math.min(wide - 1, Math.floor((x / width) * wide)), row = Math.min(high - 1, Math.floor((y / height) * high));
      cells[row * wide + column] += 1;
    }
    cells = blurred(blurred(cells, wide, high, 1, wide), high, wide, wide, 1);
    const peak = Math.max(...cells, 1e-9);
    const pixels = new ImageData(wide, high);
    for (let n = 0; n < cells.length; n++) {
      const share = (cells[n] / peak) ** 0.6;
      const [r, g, b] = run.ramp[Math.min(run.ramp.length - 1, Math.floor(share * run.ramp.length))];
      pixels.data.set([r, g, b, 255 * Math.min(1, share * 2)], 4 * n);
    }
    const small = new OffscreenCanvas(wide, high);
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.save();
    context.beginPath();
    for (const group of [left, right, top]) context.lineTo(...to((other) => +(other === group)));
    context.clip();
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, width, height);
    context.restore();
    context.globalAlpha = 0.75;
    context.fillStyle = fg.css("--ink");
    for (let k = 0; k < layer.kernels; k++) {
      const [x, y] = to((group) => run.probability(at, layer, k, group));
      context.fillRect(x - 0.75, y - 0.75, 1.5, 1.5);
    }
    context.globalAlpha = 1;
    outline(context, to);
  };
  const WEIGHTS = Array.from({ length: 17 }, (_, n) => Math.exp(-((n - 8) ** 2) / (2 * 2.8 ** 2)));
  const blurred = (cells, length, lines, step, stride) => {
    const made = new Float32Array(cells.length);
    for (let line = 0; line < lines; line++) for (let n = 0; n < length; n++) {
      const value = cells[line * stride + n * step];
      if (value) for (let tap = Math.max(-8, -n); tap <= Math.min(8, length - 1 - n); tap++) made[line * stride + (n + tap) * step] += value * WEIGHTS[tap + 8];
    }
    return made;
  };
  const drawTrajectories = (canvas, layer) => {
    const [context, width, height] = fg.prepared(canvas);
    const to = onTriangle(width, height);
    const every = Math.ceil(layer.kernels / 128); // more lines than that hide each other
    context.lineWidth = layer.kernels > 60 ? 0.8 : 1.2;
    context.globalAlpha = layer.kernels > 60 ? 0.6 : 1;
    const end = Math.min(at, run.learned);
    const path = (time, k) => to((group) => run.probability(time, layer, k, group));
    for (let time = 1; time <= end; time++) {
      context.strokeStyle = run.steep[Math.floor((run.steep.length - 1) * (time / Math.max(1, run.learned)))];
      context.beginPath();
      for (let k = 0; k < layer.kernels; k += every) {
        context.moveTo(...path(time - 1, k));
        context.lineTo(...path(time, k));
      }
      context.stroke();
    }
    context.globalAlpha = 1;
    for (let k = 0; k < layer.kernels; k += every) {
      let best = 0;
      for (let group = 1; group < run.groups.length; group++) if (run.probability(at, layer, k, group) > run.probability(at, layer, k, best)) best = group;
      context.beginPath();
      context.arc(...path(at, k), 2, 0, 7);
      context.fillStyle = run.groups[best].colour;
      context.fill();
    }
    outline(context, to);
  };
  const nearest = (canvas, layer, x, y) => {
    const to = onTriangle(canvas.clientWidth, canvas.clientHeight);
    let best = 0, least = Infinity;
    for (let k = 0; k < layer.kernels; k++) {
      const [px, py] = to((group) => run.probability(at, layer, k, group));
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) { least = far; best = k; }
    }
    return best;
  };
  const tell = (canvas, layer, l, kernel) => {
    const to = onTriangle(canvas.clientWidth, canvas.clientHeight), place = canvas.getBoundingClientRect();
    const [x, y] = to((group) => run.probability(at, layer, kernel, group));
    fg.tip.show(place.left + x, place.top + y, `Layer ${l + 1} · kernel ${kernel}`,
      run.groups.map((group, index) => [group.name, run.probability(at, layer, kernel, index).toFixed(2)]));
  };
  const triangle = (kind, layer, l) => {
    const canvas = fg.element("canvas", { tabindex: "0", role: "img", "aria-label": `${kind} of the grouping probabilities of layer ${l + 1}, ${layer.kernels} kernels; arrow keys go through the kernels` });
    let kernel = -1;
    canvas.addEventListener("pointermove", (event) => {
      const place = canvas.getBoundingClientRect();
      kernel = nearest(canvas, layer, event.clientX - place.left, event.clientY - place.top);
      tell(canvas, layer, l, kernel);
    });
    canvas.addEventListener("pointerleave", fg.tip.hide);
    canvas.addEventListener("blur", fg.tip.hide);
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      kernel = (kernel + move + layer.kernels) % layer.kernels;
      tell(canvas, layer, l, kernel);
    });
    const corner = (group) => fg.element("span", { class: "corner" }, run.groups[group].name);
    return [canvas, fg.element("div", { class: "triangle" }, fg.element("div", { class: "kind" }, kind), corner(top), canvas,
      fg.element("div", { class: "base" }, corner(left), corner(right)))];
  };
  run.layers.forEach((layer, l) => {
    const [density, one] = triangle("density", layer, l), [paths, two] = triangle("trajectories", layer, l);
    const card = grid.appendChild(fg.element("div", { class: "card" },
      fg.element("h4", {}, `Layer ${l + 1} · ${layer.kernels} kernels`), fg.element("div", { class: "pair" }, one, two)));
    lazy.add(card, () => { drawDensity(density, layer); drawTrajectories(paths, layer); });
  });
  if (control) fg.time(control, run, at, (index) => { at = index; lazy.redraw(); });
  fg.whenResized(grid, lazy.redraw);
});

fg.each("heat", (root, run) => {
  const grid = root.querySelector(".layers");
  const control = root.querySelector(".time");
  const lazy = fg.lazily();
  const ROW = 17, STRIP = 34;
  let at = run.learned;
  const rows = run.order;
  const colours = run.groups.map((group) => fg.channels(group.colour));
  const entropyOf = (layer, kernel) => {
    let sum = 0;
    for (let group = 0; group < run.groups.length; group++) {
      const p = run.probability(at, layer, kernel, group);
      if (p > 0) sum -= p * Math.log(p);
    }
    return sum;
  };
  run.layers.forEach((layer, l) => {
    // Sorted by the group that a kernel ended in, the certain ones first; the order stays while time moves.
    const ended = (kernel) => {
      let best = 0;
      rows.forEach((group, row) => { if (run.probability(run.learned, layer, kernel, group) > run.probability(run.learned, layer, kernel, rows[best])) best = row; });
      return [best, -run.probability(run.learned, layer, kernel, rows[best])];
    };
    const keys = Array.from({ length: layer.kernels }, (_, kernel) => [kernel, ...ended(kernel)]);
    const sorted = keys.sort((a, b) => a[1] - b[1] || a[2] - b[2] || a[0] - b[0]).map(([kernel]) => kernel);
    const canvas = fg.element("canvas", { style: `height:${rows.length * ROW + STRIP}px`, tabindex: "0", role: "img", "aria-label": `heat map of layer ${l + 1}: ${layer.kernels} kernels by ${rows.length} groups, and their entropy` });
    const names = fg.element("ol", {}, ...rows.map((group) => fg.element("li", { title: run.groups[group].name }, fg.swatch(run.groups[group].colour), run.groups[group].name)), fg.element("li", { class: "entropy" }, "entropy"));
    const card = grid.appendChild(fg.element("div", { class: "card" }, fg.element("h4", {}, `Layer ${l + 1} · ${layer.kernels} kernels`),
      fg.element("div", { class: "heat" }, names, canvas)));
    const draw = () => {
      const [context, width] = fg.prepared(canvas);
      const pixels = new ImageData(layer.kernels, rows.length);
      sorted.forEach((kernel, column) => rows.forEach((group, row) => {
        pixels.data.set([...colours[group], 255 * run.probability(at, layer, kernel, group)], 4 * (row * layer.kernels + column));
      }));
      const small = new OffscreenCanvas(layer.kernels, rows.length);
      small.getContext("2d").putImageData(pixels, 0, 0);
      context.imageSmoothingEnabled = false;
      context.fillStyle = fg.css("--wash");
      context.fillRect(0, 0, width, rows.length * ROW);
      context.drawImage(small, 0, 0, width, rows.length * ROW);
      context.fillStyle = fg.css("--soft");
      const most = Math.log(run.groups.length), wide = width / layer.kernels;
      sorted.forEach((kernel, column) => {
        const height = (entropyOf(layer, kernel) / most) * (STRIP - 8);
        context.fillRect(column * wide, rows.length * ROW + STRIP - height, Math.max(wide - (wide > 3 ? 0.5 : 0), 0.5), height);
      });
    };
    let shown = -1;
    const tell = (column, row) => {
      const kernel = sorted[column], place = canvas.getBoundingClientRect();
      const strongest = rows.map((group) => [run.probability(at, layer, kernel, group), group]).sort((a, b) => b[0] - a[0]).slice(0, 5);
      if (row >= 0 && row < rows.length && !strongest.some(([, group]) => group === rows[row])) strongest.push([run.probability(at, layer, kernel, rows[row]), rows[row]]);
      fg.tip.show(place.left + ((column + 0.5) / layer.kernels) * place.width, place.top + Math.max(0, row) * ROW, `Layer ${l + 1} · kernel ${kernel}`,
        [...strongest.map(([p, group]) => [run.groups[group].name, p.toFixed(2)]), ["entropy", `${entropyOf(layer, kernel).toFixed(2)} nats`]]);
    };
    canvas.addEventListener("pointermove", (event) => {
      const place = canvas.getBoundingClientRect();
      shown = Math.max(0, Math.min(layer.kernels - 1, Math.floor(((event.clientX - place.left) / place.width) * layer.kernels)));
      tell(shown, Math.floor((event.clientY - place.top) / ROW));
    });
    canvas.addEventListener("pointerleave", fg.tip.hide);
    canvas.addEventListener("blur", fg.tip.hide);
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      shown = (shown + move + layer.kernels) % layer.kernels;
      tell(shown, -1);
    });
    lazy.add(card, draw);
  });
  if (control) fg.time(control, run, at, (index) => { at = index; lazy.redraw(); });
  fg.whenResized(grid, lazy.redraw);
});
