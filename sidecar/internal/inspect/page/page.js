// Replaces the changing part of the page every few seconds.
"use strict";
new EventSource("/v1/live").onmessage = (event) => {
  const live = document.getElementById("live");
  // Not while somebody is about to press a button in it.
  if (!live.contains(document.activeElement)) live.innerHTML = event.data;
};
