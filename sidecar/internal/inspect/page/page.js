// Replaces the changing part of the page every few seconds, and says when there is no answer.
"use strict";
const source = new EventSource("/v1/live");
const stale = document.getElementById("stale");
source.onmessage = (event) => {
  stale.hidden = true;
  const live = document.getElementById("live");
  // Not while somebody is about to press a button in it.
  if (!live.contains(document.activeElement)) live.innerHTML = event.data;
};
source.onerror = () => { stale.hidden = false; };
