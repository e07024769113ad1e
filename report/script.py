"""What a page does: it says what the mark under the pointer or the focus is, and arrow keys go from mark to mark.

Without it every mark is still there to tab to, has its text for screen readers, and stands in the table.
"""

from __future__ import annotations

SCRIPT = """
"use strict";
const tip = document.getElementById("tip");
const room = 12;
function show(mark) {
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const at = mark.querySelector(".reach").getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(room, at.left + at.width / 2 - size.width / 2), innerWidth - size.width - room);
  const above = at.top - size.height - 4;
  tip.style.left = `${Math.max(room, left)}px`;
  tip.style.top = `${above > room ? above : at.bottom + 4}px`;
}
function hide() { tip.hidden = true; }
const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
for (const panel of document.querySelectorAll(".panels svg")) {
  const marks = [...panel.querySelectorAll(".mark")];
  marks.forEach((mark, place) => {
    if (place > 0) mark.tabIndex = -1;
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("blur", hide);
    mark.addEventListener("focus", () => {
      for (const other of marks) other.tabIndex = other === mark ? 0 : -1;
      show(mark);
    });
    mark.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      const next = marks[place + steps[event.key]];
      if (!(event.key in steps)) return;
      event.preventDefault();
      if (next) next.focus();
    });
  });
}
addEventListener("scroll", hide, { passive: true });
"""
