"use strict";
// A number as a table writes it: "62 %", "x 5e+05", "0.31"; words sort behind numbers.
function key(cell) {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replace(/^x /, ""));
  if (Number.isNaN(number)) return [1, text];
  return [0, text.endsWith("%") ? number / 100 : number];
}
function compare(a, b) {
  return a[0] - b[0] || (a[0] ? a[1].localeCompare(b[1]) : a[1] - b[1]);
}
for (const section of document.querySelectorAll("section")) {
  const body = section.querySelector("tbody");
  if (!body) continue;
  const heads = [...section.querySelectorAll("th")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    const rows = [...body.rows].map(row => [key(row.cells[column]), row]);
    rows.sort((a, b) => sign * compare(a[0], b[0]));
    body.append(...rows.map(each => each[1]));
  }));
  const input = section.querySelector("input");
  const toggles = [...section.querySelectorAll(".toggle")];
  function filter() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = toggles.filter(each => each.getAttribute("aria-pressed") === "false").map(each => each.dataset.status);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = off.includes(row.dataset.status) || !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    section.querySelector(".count").textContent =
      shown === body.rows.length ? String(shown) : shown + " of " + body.rows.length;
  }
  if (input) input.addEventListener("input", filter);
  toggles.forEach(each => each.addEventListener("click", () => {
    each.setAttribute("aria-pressed", each.getAttribute("aria-pressed") === "false");
    filter();
  }));
}
// A page that is opened as a file may have no clipboard of its own.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser refuses");
  }
}
document.addEventListener("click", async event => {
  const button = event.target.closest(".copy");
  if (!button) return;
  let said = "copied";
  try {
    await copied(button.dataset.copy);
  } catch {
    said = "not copied";
  }
  button.textContent = said;
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});
