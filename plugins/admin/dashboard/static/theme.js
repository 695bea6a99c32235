// Runs before the page is drawn, so that it does not flash in the other colours.
"use strict";
document.documentElement.dataset.theme =
  localStorage.getItem("theme") ||
  (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.documentElement.classList.add("scripted");
