// Live figures. The numbers come from live/<name>.js, which the build compiles from the package;
// this file draws them and listens. A page without script shows the picture that stands there.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const BUDGET = 5; // milliseconds of a frame that computing may take
  const READ = 150; // milliseconds for which a sentence stands at least
  const WIDER = [1, 2, 5, 10, 20, 50, 100]; // how many times as high as given axes may become
  const clamp = (v, a, b) => Math.min(Math.max(v, a), b);
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  function make(name, attributes = {}, ...children) {
    const svg = /^(svg|g|path|circle|line|text|rect|clipPath|defs)$/.test(name);
    const made = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  }

  function text(value) {
    if (typeof value === "string") return value;
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
    return String(Number(value.toPrecision(3))).replace(/-/g, "−");
  }

  // "σ_w" with its index below the line
  const indexed = (label) => label.split(/(_\w)/).map((part) => (part[0] === "_" ? make("sub", {}, part[1]) : part));

  const among = (panel) => (panel.layers.some((layer) => layer.kind === "dots") ? "rings" : "");

  // mulberry32, then Box and Muller: the same numbers as ntkcourse.live.normals
  function normals(seed, count) {
    let a = seed | 0;
    const uniform = () => {
      let t = (a = (a + 0x6d2b79f5) | 0);
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 2 ** 32;
    };
    return Float64Array.from({ length: count }, () => {
      const u = uniform(), v = uniform();
      return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
    });
  }

  function ticks(low, high, most) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(6)));
  }

  // One pair of axes in an SVG of the size that the page gives it
  class Panel {
    constructor(spec, id) {
      this.spec = spec;
      this.wider = 1;
      this.curves = spec.layers.filter((layer) => /^(lines?|band)$/.test(layer.kind) && spec.y[0] === -spec.y[1]);
      this.frame = make("g", { "aria-hidden": "true" });
      this.marks = make("g", { "clip-path": `url(#${id})`, "aria-hidden": "true" });
      // among particles a handle is a ring, and they are drawn over it: it hides none
      const rings = among(spec);
      this.handles = make("g", { class: rings });
      this.clip = make("rect");
      this.svg = make("svg", { role: "group", "aria-label": `${spec.labels[1]} over ${spec.labels[0]}` },
        make("defs", {}, make("clipPath", { id }, this.clip)), this.frame, ...(rings ? [this.handles, this.marks] : [this.marks, this.handles]));
      this.shapes = spec.layers.map((layer) => {
        // in tenths of a pixel: whole numbers are written and read fast
        const group = make("g", { class: `look-${layer.look} kind-${layer.kind}`, transform: "scale(0.1)" });
        this.marks.append(group);
        return group;
      });
    }
    layout() {
      const width = Math.max(this.svg.parentElement.clientWidth, 200), height = clamp(0.62 * width, 240, 360);
      const box = { left: 44, top: 10, right: width - 10, bottom: height - 44 };
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("height", height);
      Object.entries({ x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top })
        .forEach(([k, v]) => this.clip.setAttribute(k, v));
      const { x } = this.spec, y = this.spec.y.map((v) => this.wider * v);
      this.columns = {};
      this.drawn = []; // the results behind each layer: what is the same is not drawn again
      this.px = (v) => box.left + ((v - x[0]) / (x[1] - x[0])) * (box.right - box.left);
      this.py = (v) => box.bottom - ((v - y[0]) / (y[1] - y[0])) * (box.bottom - box.top);
      this.ux = (p) => clamp(x[0] + ((p - box.left) / (box.right - box.left)) * (x[1] - x[0]), ...x);
      this.uy = (p) => clamp(y[0] + ((box.bottom - p) / (box.bottom - box.top)) * (y[1] - y[0]), ...this.spec.y);
      const line = (x1, y1, x2, y2, kind) => make("line", { x1, y1, x2, y2, class: kind });
      const label = (at, anchor, ...words) => make("text", { ...at, "text-anchor": anchor }, ...words);
      const middle = (box.top + box.bottom) / 2;
      this.frame.replaceChildren(
        line(box.left, box.bottom, box.right, box.bottom, "axis"), line(box.left, box.top, box.left, box.bottom, "axis"),
        ...(y[0] < 0 && y[1] > 0 ? [line(box.left, this.py(0), box.right, this.py(0), "zero")] : []),
        ...ticks(...x, clamp((box.right - box.left) / 60, 3, 8)).flatMap((v) => [
          line(this.px(v), box.bottom, this.px(v), box.bottom + 5, "axis"),
          label({ x: this.px(v), y: box.bottom + 18 }, "middle", text(v))]),
        ...ticks(...y, clamp((box.bottom - box.top) / 36, 3, 7)).flatMap((v) => [
          line(box.left - 5, this.py(v), box.left, this.py(v), "axis"),
          label({ x: box.left - 8, y: this.py(v) + 4 }, "end", text(v))]),
        label({ x: (box.left + box.right) / 2, y: height - 8 }, "middle", this.spec.labels[0]),
        label({ x: 12, y: middle, transform: `rotate(-90 12 ${middle})` }, "middle", this.spec.labels[1]),
      );
    }
    // axes that curves would leave become higher, by a round factor, and lower again when all have room;
    // says whether they did
    fit(results, held) {
      const values = this.curves.flatMap((layer) => layer.of.map((name) => results[name] ?? []));
      const outside = (top) => {
        let count = 0, all = 0;
        for (const curve of values) {
          for (let k = 0; k < curve.length; k++) if (Math.abs(curve[k]) > top) count++;
          all += curve.length;
        }
        return count / (all || 1);
      };
      const room = (times) => (times >= this.wider ? 0.02 : held ? -1 : 0);
      const before = this.wider;
      this.wider = WIDER.find((times) => outside(times * this.spec.y[1]) <= room(times)) ?? WIDER.at(-1);
      return this.wider !== before;
    }
    // places in tenths of a pixel; far outside is as good as infinity
    across(x) {
      return Math.round(10 * this.px(x));
    }
    down(y) {
      return Math.round(10 * clamp(this.py(y), -2000, 2000));
    }
    // a path over equal steps of the panel, whose places across are written once
    over(ys, from = 0, count = ys.length) {
      const [a, b] = this.spec.x;
      const xs = (this.columns[count] ??= Array.from({ length: count }, (_, k) => `L${this.across(a + ((b - a) * k) / (count - 1))} `));
      let d = "";
      for (let k = 0; k < count; k++) d += xs[k] + this.down(ys[from + k]);
      return `M${d.slice(1)}`;
    }
    path(xs, ys) {
      let d = "";
      for (let k = 0; k < ys.length; k++) d += `L${this.across(xs[k])} ${this.down(ys[k])}`;
      return `M${d.slice(1)}`;
    }
    draw(results) {
      this.spec.layers.forEach((layer, k) => {
        const values = layer.of.map((name) => results[name]), drawn = this.drawn[k] ?? [];
        if (layer.kind === "handles" || !values.every((v) => v) || values.every((v, j) => v === drawn[j])) return;
        this[layer.kind](this.shapes[k], ...values);
        this.drawn[k] = values;
      });
    }
    pool(group, name, count) {
      while (group.childElementCount > count) group.lastChild.remove();
      while (group.childElementCount < count) group.append(make(name));
      return group.children;
    }
    line(group, a, b) {
      this.pool(group, "path", 1)[0].setAttribute("d", b ? this.path(a, b) : this.over(a));
    }
    lines(group, all) {
      const count = this.spec.layers[this.shapes.indexOf(group)].rows, size = all.length / count;
      const paths = this.pool(group, "path", count);
      for (let k = 0; k < count; k++) paths[k].setAttribute("d", this.over(all, k * size, size));
    }
    band(group, low, high) {
      let d = this.over(high);
      const xs = this.columns[low.length];
      for (let k = low.length - 1; k >= 0; k--) d += xs[k] + this.down(low[k]);
      this.pool(group, "path", 1)[0].setAttribute("d", `${d}Z`);
    }
    dots(group, places, sign) {
      // lines of no length with round ends: two or three elements instead of hundreds
      let full = "", open = "";
      for (let k = 0; k < places.length / 2; k++) {
        const dot = `M${this.across(places[2 * k])} ${this.down(places[2 * k + 1])}h0`;
        if (sign && sign[k] <= 0) open += dot;
        else full += dot;
      }
      const paths = this.pool(group, "path", 3);
      ["ring", "hole", "full"].forEach((kind, k) => paths[k].setAttribute("class", kind));
      [open, open, full].forEach((d, k) => paths[k].setAttribute("d", d || "M0 0"));
    }
    bars(group, values) {
      const bars = this.pool(group, "rect", values.length), base = this.py(Math.max(this.spec.y[0], 0));
      for (let k = 0; k < values.length; k++) {
        const left = this.px(k + 0.65), top = clamp(this.py(values[k]), -2000, 2000);
        Object.entries({ x: left, width: this.px(k + 1.35) - left, y: Math.min(top, base), height: Math.abs(base - top) })
          .forEach(([key, v]) => bars[k].setAttribute(key, Math.round(10 * v)));
      }
    }
  }

  // Data that the reader moves: drag, arrow keys, double click or button to add, Delete to remove
  class Data {
    constructor(panel, start, places, changed) {
      Object.assign(this, { panel, places, changed, held: null, last: null, fixed: start.length === 1 });
      this.points = start.map(([x, y]) => this.point(x, y));
      const { svg } = panel;
      const where = (event) => {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        return [panel.ux(p.x), panel.uy(p.y)];
      };
      svg.addEventListener("dblclick", (event) => this.add(...where(event)));
      svg.addEventListener("pointermove", (event) => {
        if (!this.held) return;
        [this.held.x, this.held.y] = where(event);
        this.show([this.held]);
        changed();
      });
      for (const kind of ["pointerup", "pointercancel"]) {
        svg.addEventListener(kind, () => {
          if (!this.held) return;
          this.held = null;
          changed();
        });
      }
    }
    point(x, y) {
      const mark = make("g", { class: "handle", tabindex: 0, role: "slider" },
        make("circle", { class: "reach", r: 22 }), make("circle", { class: "datum", r: 7 }));
      const point = { x, y, mark };
      mark.addEventListener("focus", () => (this.last = point));
      mark.addEventListener("dblclick", (event) => event.stopPropagation());
      mark.addEventListener("pointerdown", (event) => {
        this.held = point;
        this.panel.svg.setPointerCapture(event.pointerId);
        mark.focus({ preventScroll: true });
        event.preventDefault();
      });
      mark.addEventListener("keydown", (event) => this.key(event, point));
      this.panel.handles.append(mark);
      return point;
    }
    key(event, point) {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (move) {
        const { x, y } = this.panel.spec, size = event.shiftKey ? 0.05 : 0.01;
        point.x = clamp(point.x + move[0] * size * (x[1] - x[0]), ...x);
        point.y = clamp(point.y + move[1] * size * (y[1] - y[0]), ...y);
        this.show();
        this.changed();
      } else if (event.key === "Delete" || event.key === "Backspace") this.remove(point);
      else return;
      event.preventDefault();
    }
    add(x, y) {
      if (this.points.length === this.places || this.fixed) return;
      const point = this.point(x, y);
      this.points.push(point);
      this.show();
      point.mark.focus({ preventScroll: true });
      this.changed();
    }
    // the middle of the widest gap, so that a new point lies on no other
    gap() {
      const { x } = this.panel.spec, xs = [...x, ...this.points.map((p) => p.x)].sort((a, b) => a - b);
      const gaps = xs.slice(1).map((v, k) => v - xs[k]), widest = gaps.indexOf(Math.max(...gaps));
      return xs[widest] + gaps[widest] / 2;
    }
    remove(point = this.last ?? this.points.at(-1)) {
      if (!this.points.includes(point) || this.points.length === 1) return;
      this.points.splice(this.points.indexOf(point), 1);
      point.mark.remove();
      this.last = null;
      this.points.at(-1).mark.focus({ preventScroll: true });
      this.show();
      this.changed();
    }
    show(moved = this.points) {
      const labels = this.panel.spec.labels.map((l) => l.split(",")[0]);
      moved.forEach((point) => {
        const { x, y, mark } = point;
        const now = {
          transform: `translate(${this.panel.px(x)},${this.panel.py(y)})`,
          "aria-label": `point ${this.points.indexOf(point) + 1} of ${this.points.length}; arrow keys move it, Delete removes it`,
          "aria-valuemin": this.panel.spec.y[0], "aria-valuemax": this.panel.spec.y[1], "aria-valuenow": y.toFixed(2),
          "aria-valuetext": `${labels[0]} ${text(x)}, ${labels[1]} ${text(y)}`,
        };
        Object.entries(now).forEach(([key, value]) => { if (point.shown?.[key] !== value) mark.setAttribute(key, value); });
        point.shown = now;
      });
    }
    inputs() {
      const column = (f) => Float64Array.from({ length: this.places }, (_, k) => (k < this.points.length ? f(this.points[k]) : 0));
      return { x: column((p) => p.x), y: column((p) => p.y), mask: column(() => 1) };
    }
  }

  class Live {
    constructor(figure, number) {
      this.spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      Object.assign(this, { figure, seed: 1, results: {}, seen: {}, stepping: 0, looking: 0, owed: false, playing: false, dirty: true, chasing: false, asked: false });
      const { spec } = this;
      this.panels = spec.panels.map((panel, k) => new Panel(panel, `live-${number}-${k}`));
      const stage = make("div", { class: "live-stage" }, ...this.panels.map((p) => make("div", {}, p.svg)));
      const keys = spec.panels.flatMap((panel) => panel.layers.filter((layer) => layer.label).map((layer) =>
        make("span", { class: `live-key look-${layer.look} kind-${layer.kind} ${among(panel)}` }, layer.label + (layer.label === "data" ? ": drag it" : ""))));
      this.controls = Object.fromEntries(spec.controls.map((control) => [control.name, this.control(control)]));
      this.buttons = make("div", { class: "live-buttons" });
      this.caption = make("figcaption", { class: "live-text" }, "\u00a0");
      this.voice = make("div", { class: "live-voice", "aria-live": "polite" });
      if (spec.step || spec.time) this.play = this.button("Play", () => this.toggle());
      if (Object.keys(spec.random).length) this.button("New draw", () => { this.seed++; this.begin(); this.change(); });
      else if (spec.step) this.button("Start again", () => { this.begin(); this.change(); });
      const panel = this.panels.find((p) => p.spec.layers.some((layer) => layer.kind === "handles"));
      if (panel) {
        this.data = new Data(panel, spec.points, spec.places, () => this.change());
        // a single handle is a parameter, not data
        if (spec.points.length > 1) this.button("Add a point", () => this.data.add(this.data.gap(), (panel.spec.y[0] + panel.spec.y[1]) / 2));
        if (spec.points.length > 1) this.button("Remove a point", () => this.data.remove());
      }
      figure.setAttribute("role", "group");
      figure.setAttribute("aria-label", spec.title);
      figure.append(make("div", { class: "live-body" }, stage, make("div", { class: "live-keys" }, ...keys),
        make("div", { class: "live-controls" }, ...Object.values(this.controls).map((c) => c.element)),
        this.buttons, this.caption, this.voice));
      figure.classList.add("is-live");
      this.layout();
      new ResizeObserver(() => this.layout()).observe(stage);
    }
    layout() {
      if (!this.panels[0].svg.parentElement.clientWidth) return;
      this.panels.forEach((panel) => { panel.layout(); panel.draw(this.results); });
      this.data?.show();
    }
    draw() {
      this.panels.forEach((panel) => {
        if (panel.fit(this.results, this.data?.held)) {
          panel.layout();
          this.data?.show();
        }
        panel.draw(this.results);
      });
    }
    button(words, act) {
      const made = make("button", { type: "button" }, words);
      made.addEventListener("click", act);
      this.buttons.append(made);
      return made;
    }
    control(spec) {
      const values = spec.values.map((v) => (v === null ? Infinity : v));
      const output = make("output");
      const input = spec.slider
        ? make("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: spec.start })
        : make("select", {}, ...values.map((v, k) => make("option", { value: k }, text(v))));
      input.value = spec.start;
      const show = () => {
        if (!spec.slider) return;
        output.textContent = text(values[input.value]);
        input.setAttribute("aria-valuetext", output.textContent);
      };
      let before = spec.start;
      const control = { input, values, show, slider: spec.slider, value: () => values[input.value] };
      control.changed = () => {
        show();
        const later = spec.name === this.spec.time && Number(input.value) > before;
        before = Number(input.value);
        this.change(later);
      };
      input.addEventListener("input", () => { if (this.playing && spec.name === this.spec.time) this.toggle(); control.changed(); });
      show();
      control.element = make("label", { class: spec.slider ? "slider" : "choice" }, make("span", {}, ...indexed(spec.label)), input, ...(spec.slider ? [output] : []));
      return control;
    }
    // the programs have arrived
    begin() {
      const size = (shape) => shape.reduce((a, b) => a * b, 1), { random, zeros } = this.spec;
      const drawn = normals(this.seed, Object.values(random).map(size).reduce((a, b) => a + b, 0));
      let start = 0;
      this.state = {};
      for (const [name, shape] of Object.entries(random)) this.state[name] = drawn.slice(start, (start += size(shape)));
      for (const [name, shape] of Object.entries(zeros)) this.state[name] = shape.length ? new Float64Array(size(shape)) : 0;
    }
    start(programs) {
      this.programs = programs;
      this.begin();
      this.change();
    }
    // data, slider or choice changed; training only goes on if just the time grew
    change(later = false) {
      this.dirty = true;
      this.fresh = this.fresh || !later;
      this.changedAt = performance.now();
      this.ask();
    }
    ask() {
      if (this.asked || !this.programs) return;
      this.asked = true;
      requestAnimationFrame((now) => { this.asked = false; this.frame(now); });
    }
    inputs() {
      const sliders = Object.entries(this.controls).filter(([, c]) => c.slider).map(([name, c]) => [name, c.value()]);
      return { ...Object.fromEntries(sliders), ...this.data?.inputs() };
    }
    program(kind) {
      const words = Object.values(this.controls).filter((c) => !c.slider).map((c) => c.value());
      return this.programs[[kind, ...words].join("_")];
    }
    frame(now) {
      const begun = performance.now(), { spec } = this, inputs = this.inputs(), saw = this.dirty;
      if (this.dirty) {
        this.dirty = false;
        if (spec.see) Object.assign(this.results, (this.seen = this.program("see")(inputs)));
        if (spec.step && this.fresh && spec.restart) this.begin();
        this.fresh = this.owed = false;
        this.chasing = Boolean(spec.step && spec.time);
      }
      // while a point is in the hand, training waits: it would begin anew at each frame
      const waits = spec.time && this.data?.held;
      const looked = spec.step && !waits && this.advance(inputs, begun, saw);
      this.figure.classList.toggle("is-training", this.chasing);
      if (this.playing && spec.time) this.tick(now);
      if (saw || looked) {
        this.draw();
        this.speak();
      }
      this.took = performance.now() - begun;
      if (((this.chasing || this.owed) && !waits) || this.playing || this.dirty) this.ask();
    }
    // as many steps as there is time for (after a slow see none), then a look; a flow takes one step;
    // says whether there was a look: where one is slow, training takes turns with it. What a step and
    // a look will take is what they took before.
    advance(inputs, begun, saw) {
      const { spec } = this, step = this.program("step"), given = { ...inputs, ...this.seen };
      const quiet = still(), most = spec.time ? Infinity : !this.playing ? 0 : quiet ? 30 : 1;
      const slow = this.looking > BUDGET / 3;
      const late = (now) => now - begun + this.stepping + (slow ? 0 : this.looking) > BUDGET;
      let count = 0, now = performance.now();
      while (this.owed ? false : spec.time ? this.chasing && !((count || saw) && late(now)) : count < most) {
        const made = step({ ...given, ...this.state }), before = now;
        for (const name of Object.keys(this.state)) this.state[name] = made[name];
        this.chasing = made.left > 0;
        count++;
        now = performance.now();
        this.stepping = Math.max(now - before, 0.8 * this.stepping); // one quick step is no promise
      }
      if (spec.time && !this.owed) {
        this.owed = count > 0 && slow;
        if (!count || this.owed) return false;
      }
      this.owed = false;
      const start = performance.now();
      Object.assign(this.results, this.state, this.program("look")({ ...given, ...this.state }));
      this.looking = performance.now() - start;
      if (!spec.time && quiet && this.playing) this.toggle();
      return true;
    }
    tick(now) {
      const { input, changed } = this.controls[this.spec.time];
      if (now - (this.ticked ?? 0) < 90) return;
      this.ticked = now;
      if (Number(input.value) >= Number(input.max)) return this.toggle();
      input.value = Number(input.value) + (still() ? 8 : 1);
      changed();
      if (still()) this.toggle();
    }
    toggle() {
      this.playing = !this.playing;
      const slider = this.controls[this.spec.time];
      if (this.playing && slider && slider.input.value === slider.input.max) {
        slider.input.value = 0;
        slider.changed();
      }
      this.play.textContent = this.playing ? "Pause" : "Play";
      this.play.setAttribute("aria-pressed", String(this.playing));
      this.ask();
    }
    // the sentence below the figure, no faster than one reads; to screen readers only when things have
    // come to rest
    speak() {
      clearTimeout(this.pause);
      clearTimeout(this.silence);
      const wait = READ - (performance.now() - (this.spoken ?? -READ));
      if (wait > 0) this.pause = setTimeout(() => this.write(), wait);
      else this.write();
      this.silence = setTimeout(() => { if (!this.playing) this.voice.textContent = this.caption.textContent; }, 900);
    }
    write() {
      const known = { ...this.inputs(), ...this.results, n: this.data?.points.length };
      const sentence = this.spec.say.replace(/\{(\w+)\}/g, (_, name) => text(known[name] ?? NaN));
      if (this.caption.textContent !== sentence) this.caption.textContent = sentence;
      this.spoken = performance.now();
    }
  }

  const loading = {};
  function load(address) {
    return (loading[address] ??= new Promise((resolve, reject) => {
      const script = make("script", { src: address });
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
    }));
  }

  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
      near.unobserve(target);
      load(target.dataset.program).then(() => target.live.start(globalThis.ntkcourse[target.dataset.live]));
    }),
    { rootMargin: "600px" },
  );
  document.querySelectorAll("figure.live[data-program]").forEach((figure, number) => {
    figure.live = new Live(figure, number);
    near.observe(figure);
  });
})();
