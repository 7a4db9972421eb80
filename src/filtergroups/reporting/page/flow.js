// The learned architecture: bands as wide as their groups have kernels, which split and merge as routing does;
// below them, on the same layers, the plain stacked bars.
"use strict";
fg.each("flow", (root, run) => {
  const HEIGHT = 330, BARS = 130, BAR = 13, GAP = 7, TOP = 12, LABELS = 40;
  const drawing = root.querySelector(".drawing");
  const control = root.querySelector(".time");
  let at = run.steps.length - 1, shares = false;
  // Dead kernels are drawn as one more group at the bottom that reads nothing and that nobody reads.
  const groups = run.dead ? [...run.groups, { ...run.dead, dead: true, reads: [], readers: 1 }] : run.groups;
  const order = run.dead ? [...run.order, run.groups.length] : run.order;

  const kernelsOf = (layer, group) => run.sums[at][layer][group];
  const said = (value) => (Math.abs(value - Math.round(value)) < 0.05 ? String(Math.round(value)) : value.toFixed(1));
  const percent = (part, whole) => `${Math.round((100 * part) / whole)}%`;

  const draw = () => {
    const narrow = drawing.clientWidth < 480;
    const [LEFT, imageAt, labelsAt] = narrow ? [76, 22, 28] : [98, 26, 34];
    const longest = Math.max(...run.tasks.map((task) => fg.textWidth(task.name)));
    const right = Math.min(160, 34 + longest);
    const width = Math.max(drawing.clientWidth, LEFT + right + run.layers.length * (narrow ? 30 : 40));
    const step = (width - LEFT - right) / run.layers.length;
    const columnX = (layer) => LEFT + step * (layer + 0.5) - BAR / 2;
    const picture = fg.svg("svg", { width, height: TOP + HEIGHT + LABELS + BARS + 34, role: "group", "aria-label": root.dataset.alt });
    const defs = picture.appendChild(fg.svg("defs"));
    const hatching = `dead-${root.dataset.of}`;
    if (run.dead) defs.append(fg.svg("pattern", { id: hatching, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      fg.svg("rect", { width: 5, height: 5, class: "blank" }), fg.svg("rect", { width: 2, height: 5, class: "hatch" })));
    const fillOf = (group) => (groups[group].dead ? `url(#${hatching})` : groups[group].colour);
    const bands = picture.appendChild(fg.svg("g"));
    const nodes = picture.appendChild(fg.svg("g"));

    // Columns: the image, the layers, the heads. Each is a list of nodes from top to bottom.
    const most = Math.max(...run.layers.map((layer) => layer.kernels));
    const place = (sizes, total) => {
      const shown = sizes.filter((node) => node.size > 0.02);
      const room = HEIGHT - GAP * Math.max(groups.length - 1, run.tasks.length - 1);
      const scale = room / (shares ? total : most);
      let y = TOP + (HEIGHT - total * scale - GAP * (shown.length - 1)) / 2;
      for (const node of shown) { node.y = y; node.height = Math.max(node.size * scale, 0.75); y += node.height + GAP; }
      return shown;
    };
    const columns = run.layers.map((layer, l) => place(
      order.map((group) => ({ group, layer: l, size: kernelsOf(l, group), x: columnX(l), colour: groups[group].colour, fill: fillOf(group) })), layer.kernels));
    const last = columns.at(-1), first = columns[0];
    const image = place([{ image: true, size: run.layers[0].kernels, x: LEFT - imageAt, colour: "#8791A1" }], run.layers[0].kernels);
    const readsOf = (node) => (source) => source.image ? !groups[node.group].dead : groups[node.group].reads.includes(source.group);
    const headSize = (task) => last.reduce((sum, node) => sum + (run.tasks[task].groups.includes(node.group)
      ? node.size / groups[node.group].readers : 0), 0);
    const heads = place(run.tasks.map((task, index) => ({ task: index, size: headSize(index), x: width - right + 6, colour: task.colour })),
      run.layers.at(-1).kernels);

    // Between two columns: a source is divided among its readers by their sizes, a reader among its sources.
    const link = (sources, readers, reads) => {
      const pairs = [];
      for (const reader of readers) for (const source of sources) if (reads(reader)(source)) pairs.push({ source, reader });
      const portions = (side, other) => {
        for (const node of new Set(pairs.map((pair) => pair[side]))) {
          const own = pairs.filter((pair) => pair[side] === node);
          const total = own.reduce((sum, pair) => sum + pair[other].size, 0);
          own.sort((a, b) => a[other].y - b[other].y);
          let y = node.y;
          for (const pair of own) {
            const height = (node.height * pair[other].size) / total;
            pair[`${side}Y`] = y;
            pair[`${side}H`] = height;
            y += height;
          }
        }
      };
      portions("source", "reader");
      portions("reader", "source");
      for (const pair of pairs) band(pair);
    };
    const gradients = new Map();
    const gradient = (from, to) => {
      const key = `${from}${to}`;
      if (!gradients.has(key)) {
        const id = `flow-${root.dataset.of}-${gradients.size}`;
        gradients.set(key, id);
        defs.append(fg.svg("linearGradient", { id }, fg.svg("stop", { offset: "5%", "stop-color": from }), fg.svg("stop", { offset: "95%", "stop-color": to })));
      }
      return `url(#${gradients.get(key)})`;
    };
    const band = ({ source, reader, sourceY, sourceH, readerY, readerH }) => {
      const x0 = source.x + BAR, x1 = reader.x, middle = (x0 + x1) / 2;
      const path = `M${x0},${sourceY}C${middle},${sourceY} ${middle},${readerY} ${x1},${readerY}V${readerY + readerH}`
        + `C${middle},${readerY + readerH} ${middle},${sourceY + sourceH} ${x0},${sourceY + sourceH}Z`;
      // A gradient needs a height: a level band of one colour is filled plainly.
      const fill = source.colour === reader.colour ? source.colour : gradient(source.colour, reader.colour);
      const mark = bands.appendChild(fg.svg("path", { d: path, fill, class: "band" }));
      (source.marks ??= []).push(mark);
      (reader.marks ??= []).push(mark);
      const from = source.image ? "image" : groups[source.group].name;
      const to = reader.task != null ? `head of ${run.tasks[reader.task].name}` : groups[reader.group].name;
      mark.addEventListener("pointermove", (event) => {
        light([mark]);
        const what = source.image ? "the image" : `${said(source.size)} ${from} features of layer ${source.layer + 1}`;
        const who = reader.task != null ? `The head of ${run.tasks[reader.task].name} reads` : `${said(reader.size)} ${to} kernels of layer ${reader.layer + 1} read`;
        fg.tip.show(event.clientX, event.clientY, `${from} → ${to}`, [`${who} ${what}.`]);
      });
      mark.addEventListener("pointerleave", () => { light(null); fg.tip.hide(); });
    };
    const light = (marks) => {
      picture.classList.toggle("dimmed", marks !== null);
      for (const lit of picture.querySelectorAll(".lit")) lit.classList.remove("lit");
      for (const mark of marks || []) mark.classList.add("lit");
    };
    link(image, first, readsOf);
    for (let l = 1; l < columns.length; l++) link(columns[l - 1], columns[l], readsOf);
    link(last, heads, (head) => (source) => run.tasks[head.task].groups.includes(source.group));

    const node = (mark, shape, text) => {
      const made = nodes.appendChild(fg.svg("rect", { x: mark.x, y: mark.y, width: BAR, height: mark.height, rx: Math.min(3, mark.height / 2), fill: mark.fill || mark.colour, class: "node" }));
      fg.hint(made, text, () => light([made, ...(mark.marks || [])]), () => light(null));
      const [title, lines] = text();
      made.setAttribute("aria-label", `${title}: ${lines.map((line) => [].concat(line).join(" ")).join("; ")}`);
      return made;
    };
    const sharesOf = (l, group) => [["kernels", `${said(kernelsOf(l, group))} of ${run.layers[l].kernels}`], ["share of the layer", percent(kernelsOf(l, group), run.layers[l].kernels)]];
    const readsText = (l, mark) => {
      if (groups[mark.group].dead) return "no task depends on them";
      if (l === 0) return "reads the image";
      const sources = columns[l - 1].filter(readsOf(mark)).map((source) => `${said(source.size)} ${groups[source.group].name}`);
      return sources.length ? `reads ${sources.join(" + ")}` : "reads nothing of the layer before";
    };
    for (const [l, column] of columns.entries()) for (const mark of column) {
      node(mark, BAR, () => [`Layer ${l + 1} · ${groups[mark.group].name}`, [
        ...sharesOf(l, mark.group),
        readsText(l, mark),
        run.layers[l].name]]);
    }
    node(image[0], BAR, () => ["image", ["read by every group of the first layer"]]);
    nodes.append(text(LEFT - labelsAt, image[0].y + image[0].height / 2 + 4, "image", "end"));
    for (const head of heads) {
      const task = run.tasks[head.task];
      node(head, BAR, () => [`head of ${task.name}`, [`reads ${last.filter((source) => task.groups.includes(source.group)).map((source) => `${said(source.size)} ${groups[source.group].name}`).join(" + ")}`]]);
    }
    // Heads that lie close get their names apart from each other.
    let lowest = -Infinity;
    for (const head of heads) {
      const y = Math.max(head.y + head.height / 2 + 4, lowest + 15);
      lowest = y;
      nodes.append(text(head.x + BAR + 6, y, fg.clipped(run.tasks[head.task].name, right - BAR - 14), "start", "strong"));
    }

    const base = TOP + HEIGHT + LABELS;
    const every = Math.ceil(30 / step);
    for (const [l, layer] of run.layers.entries()) {
      if (l % every === 0) picture.append(text(columnX(l) + BAR / 2, TOP + HEIGHT + 20, String(l + 1), "middle", "strong"));
      let y = base + BARS;
      const wide = Math.min(46, step * 0.62);
      for (const group of [...order].reverse()) {
        const height = (BARS * kernelsOf(l, group)) / layer.kernels;
        if (height < 0.05) continue;
        y -= height;
        const bar = picture.appendChild(fg.svg("rect", { x: columnX(l) + BAR / 2 - wide / 2, y, width: wide, height: Math.max(height - 1, 0.5), fill: fillOf(group), class: "bar" }));
        const about = () => [`Layer ${l + 1} · ${groups[group].name}`, [...sharesOf(l, group), layer.name]];
        bar.addEventListener("pointermove", (event) => fg.tip.show(event.clientX, event.clientY, ...about()));
        bar.addEventListener("pointerleave", fg.tip.hide);
      }
      if (l % every === 0) picture.append(text(columnX(l) + BAR / 2, base + BARS + 18, String(layer.kernels), "middle"));
    }
    picture.append(text(LEFT - labelsAt, TOP + HEIGHT + 20, "layer", "end"), text(LEFT - labelsAt, base + BARS + 18, "kernels", "end"));
    for (const share of [0, 50, 100]) picture.append(text(LEFT - labelsAt, base + BARS - (BARS * share) / 100 + (share === 100 ? 10 : share ? 4 : 0), `${share}%`, "end"));
    const focused = drawing.querySelector(":focus") ? [...drawing.querySelectorAll("[tabindex]")].indexOf(document.activeElement) : -1;
    const scrolled = drawing.scrollLeft;
    drawing.replaceChildren(picture);
    drawing.scrollLeft = scrolled;
    if (focused >= 0) drawing.querySelectorAll("[tabindex]")[focused]?.focus();
  };
  const text = (x, y, content, anchor, kind) => fg.svg("text", { x, y, "text-anchor": anchor, class: kind }, content);

  for (const button of root.querySelectorAll(".choice button")) button.addEventListener("click", () => {
    shares = button.dataset.value === "share";
    for (const other of root.querySelectorAll(".choice button")) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
  if (control) fg.time(control, run, at, (index) => { at = index; if (drawing.clientWidth) draw(); });
  fg.whenResized(drawing, draw);
});
