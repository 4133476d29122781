document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => {
  const head = button.parentNode, body = document.querySelector("tbody");
  const column = [...head.parentNode.children].indexOf(head);
  const before = head.getAttribute("aria-sort");
  const up = before ? before === "descending" : head.dataset.first === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => row.children[column].dataset.value;
  const order = (a, b) => a === b ? 0 : a === "" ? 1 : b === "" ? -1 :
    (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b) * (up ? 1 : -1);
  body.append(...[...body.children].sort((a, b) => order(value(a), value(b))));
}));
