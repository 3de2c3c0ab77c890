"use strict";
// Every table with class "rows" sorts by its column heads and filters by the words in its search field.
for (const table of document.querySelectorAll("table.rows")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent;
  heads.forEach((head, i) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric;
      const compare = (a, b) => {
        const [x, y] = [value(a, i), value(b, i)];
        if (x === "" || y === "") return (x === "") - (y === ""); // what is unknown stays last
        const order = numeric ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return down ? -order : order;
      };
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...body.rows].sort(compare));
    });
  });
  const tools = table.closest("section, details").querySelector(`[data-for="${table.id}"]`);
  if (!tools) continue;
  const field = tools.querySelector("input");
  const count = tools.querySelector("output");
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${body.rows.length}`;
  };
  field.addEventListener("input", filter);
  filter();
  const scroll = table.parentElement;
  const hint = () => (tools.querySelector(".hint").hidden = scroll.scrollWidth <= scroll.clientWidth + 1);
  new ResizeObserver(hint).observe(scroll); // a phone turns, a list opens
}
