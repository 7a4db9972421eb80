// Pictures: which input's activations are shown, which slice of a scan; and which run of several.
"use strict";
for (const fieldset of document.querySelectorAll("fieldset.inputs")) fieldset.addEventListener("change", (event) => {
  for (const part of document.querySelectorAll(`[data-input-of="${fieldset.dataset.of}"]`)) part.hidden = part.dataset.input !== event.target.value;
});
for (const patient of document.querySelectorAll("[data-slices]")) {
  const input = patient.querySelector("input[type=range]"), output = patient.querySelector("output");
  const names = JSON.parse(patient.dataset.slices);
  const show = () => {
    patient.style.setProperty("--at", input.value);
    output.textContent = names[+input.value];
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", show);
  show();
}
const links = [...document.querySelectorAll("nav.top a")];
const chooser = document.querySelector("#choose-run");
if (chooser) {
  const show = () => {
    for (const article of document.querySelectorAll("article.run")) article.hidden = article.id !== chooser.value;
    for (const link of links) if (link.dataset.part) {
      link.href = `#${chooser.value}-${link.dataset.part}`;
      link.hidden = !document.getElementById(`${chooser.value}-${link.dataset.part}`);
    }
  };
  chooser.addEventListener("change", () => { show(); document.getElementById(chooser.value).scrollIntoView(); });
  for (const link of document.querySelectorAll("a[data-run-link]")) link.addEventListener("click", () => { chooser.value = link.dataset.runLink; show(); });
  show();
}
const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) {
    for (const link of links) link.getAttribute("href") === `#${target.id}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const part of document.querySelectorAll("section[id]")) watch.observe(part);
