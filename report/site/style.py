"""How the pages look: on paper, on a dark screen, on a phone."""

from __future__ import annotations

from .theme import DARK, LIGHT, SHADES, TINTS, ColourScheme


def _variables(scheme: ColourScheme) -> str:
    named = {
        "ground": scheme.background,
        "sheet": scheme.sheet,
        "text": scheme.text,
        "faint": scheme.faint,
        "rule": scheme.rule,
        "accent": scheme.accent,
        "warning": scheme.warning,
        "second": scheme.second,
        "third": scheme.third,
        **{f"tint-{step}": scheme.tint(step) for step in range(TINTS)},
        **{f"shade-{step}": scheme.shade(step) for step in range(SHADES)},
    }
    return ";".join(f"--{name}:{colour}" for name, colour in named.items())


_STEPS = "".join(f".tint-{step}{{background:var(--tint-{step})}}" for step in range(TINTS)) + "".join(
    f".shade-{step}{{color:var(--shade-{step})}}" for step in range(SHADES)
)

STYLE = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_variables(DARK)}}}}}
:root[data-theme=dark]{{color-scheme:dark;{_variables(DARK)}}}
:root[data-theme=light]{{color-scheme:light}}
{_STEPS}.shade-text{{color:var(--text)}}.shade-accent{{color:var(--accent)}}
*,*::before,*::after{{box-sizing:border-box}}
[hidden]{{display:none!important}}
html{{-webkit-text-size-adjust:100%;scroll-padding-top:1.5rem}}
body{{margin:0;background:var(--ground);color:var(--text);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans",Arial,sans-serif;
  font-variant-numeric:tabular-nums;overflow-wrap:break-word}}
.wide{{max-width:76rem;margin:0 auto;padding:0 clamp(1rem,4vw,3rem)}}
a{{color:var(--accent);text-decoration-thickness:1px;text-underline-offset:.18em}}
a:hover{{text-decoration-thickness:2px}}
:focus-visible{{outline:2px solid var(--accent);outline-offset:3px;border-radius:4px}}
.skip{{position:absolute;left:-100vw;top:.5rem;padding:.5rem 1rem;background:var(--text);color:var(--ground);
  z-index:3;
  border-radius:6px}}
.skip:focus{{left:1rem}}
.top{{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem 1.75rem;padding-top:1.4rem;padding-bottom:1.4rem}}
.mark-name{{display:inline-flex;align-items:center;gap:.55rem;font-weight:650;font-size:1.06rem;
  letter-spacing:-.015em;
  color:var(--text);text-decoration:none}}
.mark-name svg{{width:20px;height:20px;color:var(--accent)}}
.top nav{{display:flex;flex-wrap:wrap;gap:.15rem 1.35rem;flex:1}}
.top nav a{{color:var(--faint);text-decoration:none;padding:.2rem 0;border-bottom:2px solid transparent}}
.top nav a:hover{{color:var(--text)}}
.top nav a[aria-current]{{color:var(--text);border-color:var(--accent)}}
button{{font:inherit;font-size:.875rem;color:var(--text);background:var(--sheet);border:1px solid var(--rule);
  border-radius:999px;padding:.3rem .9rem;cursor:pointer}}
button:hover{{border-color:var(--faint)}}
main.wide{{padding-top:2.5rem;padding-bottom:5rem}}
main:focus{{outline:none}}
.eyebrow{{margin:0 0 .5rem;color:var(--faint);font-size:.875rem}}
h1,h2,h3{{text-wrap:balance;line-height:1.2;letter-spacing:-.015em}}
h1{{font-size:clamp(1.7rem,1.25rem + 1.7vw,2.35rem);font-weight:640;letter-spacing:-.022em;margin:0 0 .75rem}}
h2{{font-size:1.35rem;font-weight:620;margin:3.75rem 0 .5rem}}
h3{{font-size:1.05rem;font-weight:620;margin:2.25rem 0 .4rem}}
.lede{{font-size:1.1rem;color:var(--faint);max-width:46rem;margin:0 0 1rem;text-wrap:pretty}}
.note{{color:var(--faint);max-width:46rem;margin:.25rem 0 1.25rem;font-size:.95rem;text-wrap:pretty}}
.faint{{color:var(--faint)}}.warning{{color:var(--warning)}}.strong{{font-weight:620}}
.small{{font-size:.875rem}}
code{{font:.88em ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}}
.tiles{{display:flex;flex-wrap:wrap;gap:1.5rem 3.5rem;margin:2.25rem 0 0;padding:0;list-style:none}}
.tiles b{{display:block;font-size:2.1rem;line-height:1.15;font-weight:600;letter-spacing:-.03em}}
.tiles span{{color:var(--faint);font-size:.9rem}}
.tiles .is-warning b{{color:var(--warning)}}
.facts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,12.5rem),1fr));gap:1.25rem 2rem;
  margin:1.75rem 0 0}}
.facts div{{min-width:0}}
.facts dt{{color:var(--faint);font-size:.85rem}}
.facts dd{{margin:.1rem 0 0}}
.scroll{{position:relative;overflow-x:auto;margin:1rem 0 0;border-radius:8px}}
table{{border-collapse:collapse;width:100%;font-size:.925rem}}
caption{{text-align:left;color:var(--faint);font-size:.875rem;padding:0 0 .5rem}}
caption.unseen{{display:block;padding:0}}
th,td{{text-align:right;padding:.55rem .7rem;border-bottom:1px solid var(--rule);vertical-align:baseline}}
th:first-child,td:first-child{{padding-left:.15rem}}
th:last-child,td:last-child{{padding-right:.15rem}}
thead th{{color:var(--faint);font-weight:500;font-size:.85rem;vertical-align:bottom;line-height:1.3}}
tbody th{{font-weight:inherit}}
.words{{text-align:left}}
td,tbody th{{white-space:nowrap}}
.is-long{{white-space:normal;min-width:12rem}}
.facts .status{{white-space:normal}}
.beside{{display:block;color:var(--faint);font-size:.88em}}
.unseen{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}}
tbody tr:last-child>*{{border-bottom-color:transparent}}
.status{{display:inline-flex;align-items:baseline;gap:.4rem;white-space:nowrap}}
.status svg{{width:.72rem;height:.72rem;flex:none;align-self:center}}
.is-good svg{{color:var(--accent)}}.is-warning{{color:var(--warning)}}.is-open{{color:var(--faint)}}
.heat{{border-collapse:separate;border-spacing:5px;width:auto;min-width:min(100%,40rem)}}
.heat th,.heat td{{border:0;padding:.2rem .5rem;text-align:left;vertical-align:top}}
.heat tbody th{{padding:.9rem .6rem .9rem 0;color:var(--faint);font-weight:500;font-size:.85rem;white-space:nowrap;
  text-align:right}}
.heat td{{padding:0;border-radius:9px;min-width:8.6rem;white-space:normal}}
.heat td a{{display:block;padding:.75rem .85rem .8rem;color:inherit;text-decoration:none;border-radius:9px}}
.heat td a:hover{{box-shadow:inset 0 0 0 1.5px var(--accent)}}
.heat b{{display:block;font-size:1.42rem;line-height:1.2;font-weight:620;letter-spacing:-.025em}}
.heat span{{display:block;font-size:.8rem;line-height:1.4}}
.heat .status{{display:flex;margin-top:.15rem;color:inherit}}
.heat .is-warning svg{{color:var(--warning)}}
.heat .is-plain{{box-shadow:inset 0 0 0 1px var(--rule)}}
.panels{{display:grid;gap:2rem 2.5rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));
  margin:1.25rem 0 0}}
.panels.has-names{{grid-template-columns:repeat(auto-fill,minmax(min(100%,32rem),1fr))}}
.panels.is-single{{grid-template-columns:minmax(0,52rem)}}
.chart{{margin:0;min-width:0;overflow-x:auto;overflow-y:hidden}}
.has-names .chart svg{{min-width:33rem}}
.chart svg{{display:block;width:100%;height:auto}}
.chart svg text{{font-size:12.5px;fill:var(--text)}}
.has-names .chart svg text{{font-size:14px}}
.chart .heading{{font-size:14px;font-weight:620}}
.chart .quiet{{fill:var(--faint)}}
.chart .end{{font-weight:600}}
.chart path{{fill:none}}
.grid-line{{stroke:var(--rule)}}
.base{{stroke:var(--faint);opacity:.6}}
.compare{{stroke:var(--faint);stroke-dasharray:4 3}}
.stroke{{stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round;pointer-events:none}}
.stroke.is-bold{{stroke-width:2.6}}.stroke.is-thin{{stroke-width:1.4}}
.stroke.is-dashed{{stroke-dasharray:5 4}}
.stroke.is-padded{{stroke-width:1.4;stroke-dasharray:1.5 3.5;opacity:.9}}
.leader{{stroke:currentColor;opacity:.5}}
.whisker{{stroke:currentColor;stroke-width:1.5}}
.repeats{{stroke:currentColor;stroke-width:2.4;stroke-linecap:round;opacity:.32}}
.dot{{fill:currentColor}}
.hollow{{fill:var(--ground)!important;stroke:currentColor;stroke-width:1.5}}
.cross{{stroke:currentColor;stroke-width:2}}
.reach{{fill:transparent;stroke:none}}
.mark{{outline:none}}
.mark.is-told .reach,.mark:focus .reach{{fill:currentColor;fill-opacity:.2}}
.mark:focus-visible .reach{{stroke:currentColor;stroke-width:1.5}}
.crosshair{{stroke:var(--faint);stroke-dasharray:2 3}}
.legend{{display:flex;flex-wrap:wrap;gap:.35rem 1.5rem;margin:1rem 0 0;padding:0;list-style:none;color:var(--faint);
  font-size:.875rem}}
.legend li{{display:flex;align-items:center;gap:.45rem}}
.legend svg{{width:22px;height:16px;flex:none;color:var(--text)}}
.legend path{{fill:none}}
.controls{{display:flex;flex-wrap:wrap;gap:.75rem 2rem;margin:1.25rem 0 0;font-size:.875rem}}
.controls fieldset{{display:flex;flex-wrap:wrap;align-items:center;gap:.3rem;border:0;margin:0;padding:0;min-width:0}}
.controls legend{{float:left;padding:0;margin-right:.6rem;color:var(--faint)}}
.controls label{{position:relative;cursor:pointer}}
.controls input{{position:absolute;opacity:0;inset:0;margin:0;cursor:pointer}}
.controls span{{display:block;padding:.2rem .7rem;border:1px solid var(--rule);border-radius:999px;
  background:var(--sheet)}}
.controls label:hover span{{border-color:var(--faint)}}
.controls input:checked+span{{background:var(--accent);border-color:var(--accent);color:var(--ground)}}
.controls input:focus-visible+span{{outline:2px solid var(--accent);outline-offset:2px}}
details{{margin:1rem 0 0}}
summary{{cursor:pointer;color:var(--faint);font-size:.925rem}}
summary:hover{{color:var(--text)}}
.values .scroll{{max-height:30rem;overflow:auto}}
.values thead th{{position:sticky;top:0;background:var(--ground)}}
.cells details{{margin:0;border-top:1px solid var(--rule)}}
.cells details:last-child{{border-bottom:1px solid var(--rule)}}
.cells summary{{display:flex;flex-wrap:wrap;gap:.1rem 1.25rem;align-items:baseline;padding:.85rem .15rem;
  color:var(--text);
  font-size:1rem;list-style:none}}
.cells summary::-webkit-details-marker{{display:none}}
.cells summary::before{{content:"";width:.42rem;height:.42rem;border:solid var(--faint);border-width:0 1.6px 1.6px 0;
  transform:rotate(-45deg);align-self:center;margin-right:-.5rem;transition:transform .12s}}
.cells details[open] summary::before{{transform:rotate(45deg)}}
.cells summary .grow{{flex:1 1 12rem;min-width:0}}
.cells .where{{min-width:12.5rem;font-weight:600}}
.cells .inside{{padding:.25rem .15rem 2rem 1.15rem}}
.columns{{display:grid;gap:1.5rem 3rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}}
.bar{{display:block;width:100%;height:14px;border-radius:7px;overflow:hidden}}
.bar-verify{{fill:var(--accent)}}.bar-draft{{fill:var(--second)}}.bar-host{{fill:var(--third)}}
.parts{{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;margin:.6rem 0 0;padding:0;list-style:none;font-size:.9rem}}
.parts li{{display:flex;align-items:center;gap:.45rem}}
.parts svg{{width:.7rem;height:.7rem;flex:none}}
.reasons{{margin:.5rem 0 0;padding:0;list-style:none;font-size:.925rem}}
.reasons li{{padding:.16rem 0}}
.reasons .is-deeper{{padding-left:1.25rem;color:var(--faint)}}
.span{{display:inline-block;width:10rem;height:20px;margin:-.2rem 0;vertical-align:middle}}
.span .axis{{stroke:var(--rule);stroke-width:1}}
.span .one{{stroke:var(--faint);stroke-dasharray:2 2}}
.span .range{{stroke:var(--accent);stroke-width:5;stroke-linecap:round;opacity:.34}}
.span .said{{fill:var(--accent)}}
.span .seen{{fill:var(--text)}}
.rows{{margin:.5rem 0 0;padding:0;list-style:none}}
.rows li{{padding:.9rem 0;border-top:1px solid var(--rule)}}
.rows li:last-child{{border-bottom:1px solid var(--rule)}}
.setup{{display:grid;grid-template-columns:minmax(0,1.6fr) minmax(0,1fr) minmax(0,1fr);gap:.3rem 2rem;
  align-items:baseline}}
.setup .title{{font-size:1.06rem;font-weight:620}}
.timeline{{margin:.75rem 0 0;padding:0 0 0 1.1rem;list-style:none;border-left:2px solid var(--rule)}}
.timeline li{{position:relative;padding:.1rem 0 .75rem}}
.timeline li::before{{content:"";position:absolute;left:-1.46rem;top:.62rem;width:.6rem;height:.6rem;
  border-radius:50%;
  background:var(--accent);border:2px solid var(--ground)}}
progress{{appearance:none;width:6rem;max-width:100%;height:8px;border:0;border-radius:4px;background:var(--rule);
  overflow:hidden;
  vertical-align:middle}}
progress::-webkit-progress-bar{{background:var(--rule)}}
progress::-webkit-progress-value{{background:var(--accent)}}
progress::-moz-progress-bar{{background:var(--accent)}}
.section+.section{{margin-top:5.5rem;padding-top:3.5rem;border-top:1px solid var(--rule)}}
.contents{{columns:2 20rem;column-gap:3rem;margin:1rem 0 0;padding:0;list-style:none}}
.contents li{{padding:.15rem 0;break-inside:avoid}}
.foot{{color:var(--faint);font-size:.85rem;padding-top:1.5rem;padding-bottom:3rem;border-top:1px solid var(--rule)}}
.sign-in{{max-width:26rem;margin-bottom:2.5rem}}
.sign-in label{{display:block;margin:1.5rem 0 .4rem;font-weight:600}}
.sign-in input{{width:100%;font:inherit;padding:.6rem .8rem;border:1px solid var(--faint);border-radius:8px;
  background:var(--sheet);
  color:var(--text)}}
.sign-in button{{margin-top:1rem;background:var(--accent);border-color:var(--accent);color:var(--ground);
  font-size:1rem;
  padding:.5rem 1.4rem}}
#tip{{position:fixed;z-index:2;left:0;top:0;padding:.5rem .75rem;border-radius:8px;background:var(--text);
  color:var(--ground);
  font-size:.85rem;line-height:1.45;white-space:pre-line;pointer-events:none;max-width:min(22rem,92vw)}}
@media (max-width:46rem){{
.top nav{{order:3;flex-basis:100%}}.top button{{margin-left:auto}}
.facts{{grid-template-columns:repeat(auto-fill,minmax(min(100%,9.5rem),1fr));gap:1rem 1.25rem}}
.setup{{grid-template-columns:1fr}}
.tiles{{gap:1.25rem 2.25rem}}.tiles b{{font-size:1.75rem}}
h2{{margin-top:3rem}}
main.wide{{padding-top:1.25rem}}
.chart svg text{{font-size:15px}}.chart .heading{{font-size:15.5px}}
.cells .where{{min-width:100%}}.cells .inside{{padding-left:.15rem}}
.heat{{border-spacing:4px}}.heat td{{min-width:7.4rem}}
}}
@media (prefers-reduced-motion:no-preference){{html{{scroll-behavior:smooth}}}}
@media print{{
:root,:root[data-theme=dark]{{color-scheme:light;{_variables(LIGHT)};--ground:#fff}}
body{{font-size:10.5pt}}
table{{font-size:8.5pt}}td,tbody th,.status{{white-space:normal}}th,td{{padding:.3rem .4rem}}.is-long{{min-width:0}}
.heat{{border-spacing:3px;min-width:0;width:100%}}.heat td{{min-width:0}}.heat b{{font-size:12pt}}
.heat span{{font-size:7.5pt}}
.heat td a{{padding:.4rem}}.span{{width:5.5rem}}.has-names .chart svg{{min-width:0}}
h2{{margin-top:2rem;break-after:avoid}}
.top nav,.controls,.skip,button,.values{{display:none!important}}
.chart,.heat,tr,.setup,.columns>*{{break-inside:avoid}}
.section+.section{{break-before:page;border:0;margin:0;padding:0}}
.scroll{{overflow:visible}}
a{{color:inherit;text-decoration:none}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
}}
"""
