"""The style sheet of the browser, which is in each page: light and dark, for a wide screen, a phone and paper."""

STYLE = """:root { --bar: #cfe3d3; --warn: #9a3412; --field: #fff }
@media (prefers-color-scheme: dark) { :root { --bar: #2b4a39; --warn: #fdba74; --field: #101412 } }
* { box-sizing: border-box }
html { font: 1rem/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { max-width: 90rem; margin: 0 auto; padding: 1rem 1.5rem 3rem }
a { color: var(--accent); text-decoration: none }
a:hover { text-decoration: underline; text-underline-offset: .15em }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
h1, h2 { font-weight: 650; line-height: 1.3; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: .4rem 0 .2rem } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem }
h1 small, h2 small { font-size: .95rem; font-weight: 400; color: var(--quiet); margin-left: .6rem;
  white-space: nowrap }
p { margin: .4rem 0; max-width: 60rem } .quiet, nav, summary { color: var(--quiet) }
.crumbs { font-size: .95rem; overflow-wrap: anywhere }
.links { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .6rem 0 }
.paging { font-variant-numeric: tabular-nums }
form { margin: .8rem 0 } fieldset { border: 0; margin: 0; padding: 0; min-width: 0 }
.filters { display: grid; gap: .4rem; justify-items: start }
.filter, .search { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; min-width: 0 }
input, select, textarea, button { font: inherit; color: inherit; background: var(--field);
  border: 1px solid var(--line); border-radius: .35rem; padding: .3rem .55rem; max-width: 100%; min-width: 0 }
.filter select { width: 11rem } .filter input { width: 14rem } .search input { width: 22.8rem }
button { background: var(--accent); color: var(--paper); border-color: var(--accent); cursor: pointer;
  font-weight: 600; padding: .3rem 1rem } button:hover { filter: brightness(1.1) }
button.danger { background: var(--warn); border-color: var(--warn) }
textarea { width: 100%; font: .9rem/1.5 ui-monospace, monospace; resize: vertical }
label { display: inline-flex; gap: .4rem; align-items: center }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; margin: .6rem 0; list-style: none }
.chips a, .chip { display: inline-block; background: var(--panel); border: 1px solid var(--line);
  border-radius: 1rem; padding: .1rem .7rem; font-size: .9rem; overflow-wrap: anywhere; color: var(--ink) }
.chips a::after { content: " ×"; color: var(--quiet) }
details { margin: .5rem 0 } summary { cursor: pointer; width: fit-content }
pre { margin: .5rem 0; padding: .7rem .9rem; background: var(--panel); border-radius: .35rem; overflow-x: auto;
  font: .85rem/1.55 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.facets { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: 1rem 0 }
.facet { flex: 1 1 15rem; max-width: 22rem; min-width: 0 } .facet h2 { margin: 0 0 .3rem; font-size: 1rem }
.facet ol { list-style: none; margin: 0; padding: 0; font-size: .9rem }
.facet li { display: flex; justify-content: space-between; gap: .8rem; padding: .1rem .4rem; margin: 1px 0;
  border-radius: .2rem; background: linear-gradient(var(--bar) 0 0) 0 / var(--share, 0%) 100% no-repeat }
.facet li > :first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--ink) }
.facet .on { font-weight: 650 } .facet span:last-child { font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto; margin: .6rem 0; border: 1px solid var(--line); border-radius: .35rem }
table { border-spacing: 0; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
tbody > tr:last-child > * { border-bottom: 0 } .fits { width: fit-content; max-width: 100% }
thead th { background: var(--panel); font-weight: 600; white-space: nowrap }
thead th a { color: inherit } thead small { display: block; font-weight: 400; color: var(--quiet) }
tbody th { font-weight: 600; white-space: nowrap; color: var(--quiet); width: 1% }
td { white-space: nowrap }
.w { white-space: normal; min-width: 16rem; max-width: 32rem; overflow-wrap: anywhere }
tbody tr:hover td { background: var(--panel) }
.n { text-align: right } i { color: var(--quiet); font-size: .9em }
td small { color: var(--quiet) } .text { white-space: pre-wrap; overflow-wrap: anywhere }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .8rem;
  padding: 0; list-style: none; margin: .6rem 0 }
.cards li { border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; background: var(--panel) }
.cards h2 { margin: 0; font-size: 1.05rem; display: flex; justify-content: space-between; gap: .6rem }
.cards h2 small { margin: 0; font-size: .9rem } .cards p { margin: .2rem 0 0; font-size: .9rem;
  color: var(--quiet); overflow-wrap: anywhere; display: -webkit-box; -webkit-line-clamp: 3;
  -webkit-box-orient: vertical; overflow: hidden }
.problem { border-left: 4px solid var(--warn); padding: .5rem .9rem; background: var(--panel); max-width: 60rem;
  overflow-wrap: anywhere; white-space: pre-wrap }
.form { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 38rem); gap: .5rem 1rem;
  align-items: baseline } .form .field { display: grid; gap: .2rem } .form input:not([type]) { width: 100% }
.form small { color: var(--quiet) }
@media (max-width: 36rem) { body { padding: .6rem .8rem 2rem } h1 small { display: block; margin: 0 }
  .filter, .search { width: 100% } .filter select { flex: 1 1 8rem; width: auto }
  .filter input, .search input { flex: 1 1 100%; width: 100% }
  .form { grid-template-columns: minmax(0, 1fr); gap: .15rem } .form .field { margin-bottom: .6rem }
  th, td { padding: .35rem .5rem } .facet { max-width: none } input, select, textarea { font-size: 16px } }
@media print { :root { --paper: #fff; --panel: #fff; --ink: #000; --quiet: #333; --line: #999; --accent: #000 }
  form, nav, .links, details { display: none } .scroll { border: 0 } tr { break-inside: avoid } }
"""
