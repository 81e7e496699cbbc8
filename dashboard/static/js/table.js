// Builds elements and tables from data. Text only ever becomes text, never markup.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// columns: [{name, cell: row => string | Node, number?}]
export function table(columns, rows, { empty = "Nothing yet.", total = null } = {}) {
  if (rows.length === 0) return element("p", { class: "empty" }, empty);
  const kind = (column) => (column.number ? { class: "number" } : {});
  const head = element("tr", {},
    ...columns.map((c) => element("th", { scope: "col", ...kind(c) }, c.name)));
  const body = rows.map((row) =>
    element("tr", {}, ...columns.map((c) => element("td", kind(c), c.cell(row)))));
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  if (total) {
    const cells = total.map((text, i) => element("td", kind(columns[i]), text));
    made.append(element("tfoot", {}, element("tr", {}, ...cells)));
  }
  return made;
}

// Replaces the content of `id`; a scrolled region keeps its place.
export function show(id, ...content) {
  const place = document.getElementById(id);
  const { scrollTop, scrollLeft } = place;
  place.replaceChildren(...content);
  place.scrollTop = scrollTop;
  place.scrollLeft = scrollLeft;
}
