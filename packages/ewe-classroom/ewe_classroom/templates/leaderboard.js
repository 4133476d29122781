// A click on a head sorts the rows by its column. A second click on the same head sorts in the other order.
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => {
  const head = button.parentNode, body = document.querySelector("tbody");
  const column = [...head.parentNode.children].indexOf(head);
  const before = head.getAttribute("aria-sort");  // null if the rows are sorted by another column
  const up = before ? before === "descending" : head.dataset.first === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => row.children[column].dataset.value;
  // A missing value comes last in both orders. Numbers are compared as numbers, all others as text.
  const order = (a, b) => a === b ? 0 : a === "" ? 1 : b === "" ? -1 :
    (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b) * (up ? 1 : -1);
  body.append(...[...body.children].sort((a, b) => order(value(a), value(b))));  // moves the rows
}));
