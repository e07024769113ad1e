"""How a page looks: on paper, on a dark screen, on a small one."""

from __future__ import annotations

from .palette import DARK, LIGHT, Theme


def _colours(theme: Theme, line: str) -> str:
    return (
        f"--background:{theme.background};--text:{theme.text};--faint:{theme.faint_text};--rule:{theme.rule}}}"
        f".line,.label{{color:var(--{line})}}"
    )


STYLE = f"""
:root{{color-scheme:light dark;{_colours(LIGHT, "paper")}
@media (prefers-color-scheme:dark){{:root{{{_colours(DARK, "screen")}}}
body{{margin:0 auto;padding:2rem clamp(1rem,4vw,3rem);max-width:92rem;background:var(--background);color:var(--text);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
h1{{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem}}
h2{{font-size:1.1rem;margin:2.5rem 0 .75rem}}
.facts p{{margin:.1rem 0;color:var(--faint)}}
.legend{{display:flex;flex-wrap:wrap;gap:.3rem 1.5rem;margin:1.2rem 0;padding:0;list-style:none;color:var(--faint);
  font-size:13px}}
.legend li{{display:flex;align-items:center;gap:.4rem}}
.symbol{{width:16px;height:16px;color:var(--text);flex:none}}
.panels{{--even:calc((100% - (var(--columns) - 1)*1.5rem)/var(--columns));display:grid;gap:1.5rem;
  grid-template-columns:repeat(auto-fit,minmax(min(100%,max(25rem,var(--even))),1fr))}}
.panels svg{{display:block;width:100%;max-width:var(--widest);height:auto;overflow:visible}}
svg text{{font-size:12px;fill:var(--text);font-variant-numeric:tabular-nums}}
svg .heading{{font-size:14px;font-weight:600}}
svg .axis,svg .tick{{fill:var(--faint)}}
svg .note{{font-size:11px}}
svg .label text{{font-weight:600}}
svg path{{fill:none}}
.rule{{stroke:var(--rule)}}
.base{{stroke:var(--faint)}}
.compare{{stroke:var(--faint);stroke-dasharray:4 3}}
.stroke{{stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round;pointer-events:none}}
.leader{{stroke:currentColor;opacity:.6}}
.whisker{{stroke:currentColor;stroke-width:1.6}}
.dot{{fill:currentColor}}
svg .hollow{{fill:var(--background);stroke:currentColor;stroke-width:1.5}}
.cross{{stroke:currentColor;stroke-width:2}}
.reach{{fill:transparent}}
.mark{{cursor:default;outline:none}}
.mark:hover .reach,.mark:focus .reach{{fill:currentColor;fill-opacity:.22}}
.mark:focus-visible .reach{{stroke:currentColor;stroke-width:1.5}}
#tip{{position:fixed;z-index:1;padding:.45rem .7rem;border-radius:6px;background:var(--text);color:var(--background);
  font-size:13px;line-height:1.4;white-space:pre-line;pointer-events:none;max-width:22rem}}
.table{{overflow:auto;max-height:34rem;border:1px solid var(--rule);border-radius:6px}}
table{{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}}
th,td{{padding:.3rem .8rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}}
th{{position:sticky;top:0;background:var(--background);color:var(--faint);font-weight:600}}
.words{{text-align:left}}
@media print{{.table{{max-height:none}}}}
"""
