// A click on a column's head sorts its table, a second click the other way.
const value = (row, column) => {
  const cell = row.cells[column];
  const given = cell.dataset.sort;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? null : Number(given);
};
const compare = (a, b, sign) => {
  if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(value(a, column), value(b, column), sign));
      table.tBodies[0].append(...rows);
    });
  });
}
