"use strict";

// The page: sessions at the root, one session's files and runs at files/{session}/. It requests JSON,
// waits for changes, and updates only new parts, so that readers keep their place. This part has what all others use.

const one = /^(.*\/)files\/([^/]+)\/?$/.exec(location.pathname);
const root = one ? one[1] : location.pathname.replace(/[^/]*$/, "");
const WAIT_S = 25;
/** Time after the requested wait until a silent server counts as unreachable. */
const LATE_MS = 10_000;
/** Pauses between two requests; the longer one applies if there is always something new. */
const PAUSE_MS = 300;
const BUSY_PAUSE_MS = 2_000;
/** Pause between two requests for a list that does not say whether it has changed. */
const LIST_PAUSE_MS = 5_000;
/** If there are more variables, their list is folded. */
const OPEN_VARIABLES = 20;

const $ = (id) => document.getElementById(id);

/** An element, with properties, and children as nodes or text. Text never becomes markup. */
function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(element.dataset, value);
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const badge = (word) => el("span", { className: "badge", data: { is: word } }, word.replaceAll("_", " "));

function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB"];
  const power = bytes < 1000 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), 3);
  const number = bytes / 1000 ** power;
  return `${power === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[power]}`;
}

function duration(ms) {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });

function ago(date) {
  const seconds = Math.round((date - Date.now()) / 1000);
  if (seconds > -45) return "just now";
  if (seconds > -3600) return relative.format(Math.round(seconds / 60), "minute");
  if (seconds > -86_400) return relative.format(Math.round(seconds / 3600), "hour");
  return relative.format(Math.round(seconds / 86_400), "day");
}

function time(iso) {
  const date = new Date(iso);
  return el("time", { dateTime: iso, title: date.toLocaleString() }, ago(date));
}

/** The time until a moment to come. */
function until(iso) {
  const minutes = Math.max(0, Math.round((new Date(iso) - Date.now()) / 60_000));
  return minutes < 90 ? `${minutes} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}

setInterval(() => {
  for (const element of document.querySelectorAll("time")) element.textContent = ago(new Date(element.dateTime));
}, 20_000);

/** Announces a text. While the viewer is open, screen readers read only what is in it. */
const say = (text) => ($("news").textContent = $("viewer-news").textContent = text);
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

/** Makes marks visible that change the direction of reading, as they can disguise a name. */
const legible = (name) =>
  name.replace(/[\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069]/g, (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase()}⟩`);

/** A button that acts when it is pressed. */
function button(text, properties, act) {
  const made = el("button", properties, text);
  made.addEventListener("click", act);
  return made;
}
