// Makes and drives every slider and the filters of the ledger. Pages work without it: a figure then
// shows its first frame, and the ledger all of its rows.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

function explore(figure) {
  const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const image = figure.querySelector("img");
  const sliders = data.values.map((steps) =>
    element("input", { type: "range", min: 0, max: steps.length - 1, step: 1 }),
  );
  sliders.forEach((slider, i) => (slider.value = data.start?.[i] ?? 0));
  const button = data.animate ? element("button", { type: "button", "aria-pressed": "false" }, "Play") : null;
  const caption = element("figcaption", { class: "explore-text", "aria-live": "polite" });
  const labelled = sliders.map((slider, i) =>
    element("label", {}, element("span", {}, data.labels[i]), slider, element("output")),
  );
  let timer = null;

  function show() {
    // Frames are stored with the last parameter moving fastest.
    let frame = 0;
    sliders.forEach((slider, i) => {
      const text = data.values[i][slider.value];
      frame = frame * data.values[i].length + Number(slider.value);
      slider.setAttribute("aria-valuetext", text);
      slider.parentElement.querySelector("output").textContent = text;
    });
    image.src = data.frames[frame];
    image.alt = data.alts[frame];
    caption.textContent = data.alts[frame];
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
    button.setAttribute("aria-pressed", "false");
    caption.setAttribute("aria-live", "polite");
  }

  function play() {
    const last = Number(sliders[0].max);
    // Someone who asked for less motion gets single steps instead of an animation.
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      sliders[0].value = (Number(sliders[0].value) + 1) % (last + 1);
      show();
      return;
    }
    if (Number(sliders[0].value) === last) sliders[0].value = 0;
    button.textContent = "Pause";
    button.setAttribute("aria-pressed", "true");
    caption.setAttribute("aria-live", "off");
    show();
    timer = setInterval(() => {
      sliders[0].value = Number(sliders[0].value) + 1;
      show();
      if (Number(sliders[0].value) === last) pause();
    }, 250);
  }

  sliders.forEach((slider) =>
    slider.addEventListener("input", () => {
      if (timer) pause();
      show();
    }),
  );
  if (button) button.addEventListener("click", () => (timer ? pause() : play()));
  figure.append(element("div", { class: "explore-controls" }, ...(button ? [button] : []), ...labelled), caption);
  show();

  // Frames are fetched when the figure comes near, so that a long page opens at once.
  new IntersectionObserver(
    (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      data.frames.forEach((source) => (new Image().src = source));
    },
    { rootMargin: "400px" },
  ).observe(figure);
}

function filterLedger(form) {
  const rows = [...document.querySelectorAll(".ledger-row")];
  const menus = [...form.querySelectorAll("select")];
  const update = () => {
    const wanted = menus.filter((menu) => menu.value).map((menu) => `${menu.name}-${menu.value}`);
    rows.forEach((row) => (row.hidden = !wanted.every((kind) => row.classList.contains(kind))));
    form.querySelector("output").textContent = `${rows.filter((row) => !row.hidden).length} shown`;
  };
  form.addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update();
}

// Faults of the theme that only show to screen readers: a logo outside every landmark, an arrow in
// the contents without a name, and roles that are not allowed on the entries of a bibliography.
function mendTheme() {
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "complementary");
  sidebar?.setAttribute("aria-label", "Course");
  document
    .querySelectorAll(".bd-links details > summary")
    .forEach((arrow) => arrow.setAttribute("aria-label", "Pages of this chapter"));
  document.querySelectorAll("div.citation[role]").forEach((entry) => entry.setAttribute("role", "listitem"));
}

// The excerpt below a result of the search: from the text, not from buttons and contents around it.
function mendSearch() {
  if (typeof Search === "undefined") return;
  const textOf = Search.htmlToText;
  Search.htmlToText = (page, anchor) => {
    const tree = new DOMParser().parseFromString(page, "text/html");
    const around = ".bd-header-article, #jb-print-docs-body, .prev-next-footer, .bd-sidebar-secondary";
    tree.querySelectorAll(around).forEach((part) => part.remove());
    return textOf(tree.documentElement.outerHTML, anchor);
  };
}

mendTheme();
document.addEventListener("DOMContentLoaded", mendSearch);
document.querySelectorAll("figure.explore").forEach(explore);
document.querySelectorAll("form.ledger-filter").forEach(filterLedger);
