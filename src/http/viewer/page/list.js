// Lists: of items that change, and of very many items.

/** Items that a long list shows at first, and adds when it is asked for more. */
const LIST_STEP = 60;

/** Fewer items need no search. */
const SEARCHED_FROM = 12;

/**
 * Makes the children of an element match a list. Unchanged items keep their element, with its focus, its
 * open details and its position. `make` gets an item and the element that it replaces.
 */
function sync(parent, items, key, make) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const print = JSON.stringify(item, (field, value) => (field.endsWith("_url") ? undefined : value));
    let child = old.get(name);
    old.delete(name);
    if (!child || child.print !== print) {
      const fresh = make(item, child);
      Object.assign(fresh, { print });
      fresh.dataset.key = name;
      if (child) {
        if (at === child) at = fresh;
        const held = ["summary", ".stop"].find((part) => child.querySelector(part) === document.activeElement);
        child.replaceWith(fresh);
        if (held) fresh.querySelector(held)?.focus();
      }
      child = fresh;
    }
    child.renew?.(item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const gone of old.values()) gone.remove();
}

/**
 * A list of which the first items are shown that match what is searched. `text` is what a search compares, and `show`
 * gets the items. `set` changes the items.
 */
function longList(noun, text, show) {
  let [items, limit] = [[], LIST_STEP];
  const search = el("input", { type: "search", className: "search", placeholder: `Search ${noun}`, ariaLabel: `Search ${noun}` });
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isFound = (item) => words.every((word) => text(item).toLowerCase().includes(word));
    const found = words.length ? items.filter(isFound) : items;
    show(found.slice(0, limit));
    const rest = found.length - limit;
    more.hidden = rest <= 0;
    more.textContent = `Show ${Math.min(rest, LIST_STEP)} more of ${rest} ${noun}`;
    none.hidden = found.length > 0 || !items.length;
    search.hidden = items.length < SEARCHED_FROM && !search.value;
  };
  const more = button("", { className: "quiet more", hidden: true }, () => {
    limit += LIST_STEP;
    draw();
  });
  const none = el("p", { className: "muted", hidden: true }, `No ${noun} match.`);
  search.addEventListener("input", () => {
    limit = LIST_STEP;
    draw();
  });
  const set = (newer) => {
    items = newer;
    draw();
  };
  return { search, more: el("div", {}, none, more), set };
}
