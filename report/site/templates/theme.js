try {
  const kept = localStorage.getItem("spectune-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch (error) { /* storage is closed to this page */ }
