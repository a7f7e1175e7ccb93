"""How it looks: one sheet, with the colours of the light and the dark form at its top."""

from __future__ import annotations

CSS = """
:root {
  --ps-bg: #f4f6f8; --ps-card: #ffffff; --ps-line: #dde4ea; --ps-text: #14202b; --ps-dim: #52606d;
  --ps-accent: #0f766e; --ps-soft: #e6f2f1;
  --ps-good: #14653f; --ps-good-soft: #e1f3e9; --ps-notice: #7a4d00; --ps-notice-soft: #fdf0d5;
  --ps-bad: #a61b12; --ps-bad-soft: #fde7e5; --ps-code: #f1f4f7;
}
body.body--dark {
  --ps-bg: #0f151b; --ps-card: #171f27; --ps-line: #2a3540; --ps-text: #e4ebf1; --ps-dim: #9fadba;
  --ps-accent: #4fd1c5; --ps-soft: #143230;
  --ps-good: #79d8a6; --ps-good-soft: #12301f; --ps-notice: #f2c46d; --ps-notice-soft: #35280d;
  --ps-bad: #ff9d94; --ps-bad-soft: #3b1714; --ps-code: #10171e;
}
body { background: var(--ps-bg) !important; color: var(--ps-text);
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.ps-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
:focus-visible { outline: 3px solid var(--ps-accent) !important; outline-offset: 2px; }
.q-focus-helper { transition: none; }

.q-header.ps-header { background: var(--ps-card); color: var(--ps-text); box-shadow: none;
  border-bottom: 1px solid var(--ps-line); padding: 0 16px; height: 56px; gap: 8px;
  flex-wrap: nowrap; align-items: center; }
.ps-brand { font-weight: 700; font-size: 17px; letter-spacing: .01em; color: inherit !important;
  text-decoration: none !important; }
.ps-live { color: var(--ps-dim); font-size: 13px; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.q-drawer .q-drawer__content, .nicegui-drawer { padding: 0 !important; }
.q-drawer { background: var(--ps-card) !important; border-right: 1px solid var(--ps-line); }
.ps-nav { display: flex; flex-direction: column; gap: 2px; padding: 12px; width: 100%; }
.ps-nav a { display: flex; align-items: center; gap: 12px; padding: 9px 12px; border-radius: 8px;
  color: var(--ps-text) !important; text-decoration: none !important; font-size: 14.5px; }
.ps-nav a:hover { background: var(--ps-bg); }
.ps-nav a[aria-current] { background: var(--ps-soft); color: var(--ps-accent) !important;
  font-weight: 600; }
.ps-nav .q-icon { font-size: 20px; }
.ps-nav .ps-count { margin-left: auto; }

.nicegui-content { padding: 0 !important; width: 100%; }
.ps-main { width: 100%; max-width: 1280px; margin: 0 auto; padding: 24px; display: flex;
  flex-direction: column; gap: 20px; box-sizing: border-box; }
.ps-main:focus { outline: none !important; }
.ps-main h1 { font-size: 24px; line-height: 1.25; font-weight: 650; margin: 0; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
.ps-main h2, .q-dialog h2 { font-size: 16px; line-height: 1.3; font-weight: 650; margin: 0;
  letter-spacing: 0; overflow-wrap: anywhere; }
.ps-sub { color: var(--ps-dim); font-size: 14px; margin-top: 4px; overflow-wrap: anywhere; }
.ps-main a, .q-dialog a { color: var(--ps-accent); }
.ps-card, .q-dialog .q-card { background: var(--ps-card); border: 1px solid var(--ps-line);
  border-radius: 12px; padding: 16px 18px; box-shadow: none; box-sizing: border-box; width: 100%;
  min-width: 0; display: flex; flex-direction: column; gap: 12px; }
.q-dialog .q-card { max-width: min(720px, 94vw); width: 720px; padding: 20px; color: var(--ps-text); }
.q-dialog .q-card.ps-ask { width: 460px; }
.ps-tiles { display: grid; gap: 12px; width: 100%; margin: 0;
  grid-template-columns: repeat(var(--ps-tiles), minmax(0, 1fr)); }
.ps-tile { background: var(--ps-card); border: 1px solid var(--ps-line); border-radius: 12px;
  padding: 14px 16px; min-width: 0; }
.ps-tile dt { color: var(--ps-dim); font-size: 13px; }
.ps-tile dd { margin: 4px 0 0; font-size: 24px; font-weight: 600; line-height: 1.2;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.ps-tile[data-mood=bad] dd { color: var(--ps-bad); }
.ps-tile[data-mood=notice] dd { color: var(--ps-notice); }
.ps-two { display: grid; gap: 16px; grid-template-columns: repeat(2, minmax(0, 1fr)); width: 100%; }
.ps-card > .q-btn, .q-dialog .q-card > .q-btn { align-self: flex-start; }
.ps-row { display: flex; flex-wrap: wrap; gap: 10px; align-items: center; width: 100%; }
.ps-fields { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr));
  width: 100%; align-items: start; }
.ps-fields.ps-broad { grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); }
.ps-dim { color: var(--ps-dim); font-size: 14px; }
.ps-space { flex: 1; }

.ps-finding { display: flex; gap: 12px; align-items: flex-start; border-radius: 10px;
  padding: 12px 14px; width: 100%; box-sizing: border-box; }
.ps-finding .q-icon { font-size: 22px; flex: none; }
.ps-finding b, .ps-finding a { font-weight: 650; color: inherit !important; overflow-wrap: anywhere; }
.ps-finding div { overflow-wrap: anywhere; min-width: 0; }
[data-mood=good].ps-finding { background: var(--ps-good-soft); color: var(--ps-good); }
[data-mood=notice].ps-finding { background: var(--ps-notice-soft); color: var(--ps-notice); }
[data-mood=bad].ps-finding { background: var(--ps-bad-soft); color: var(--ps-bad); }
.ps-badge { display: inline-block; border-radius: 999px; padding: 1px 10px; font-size: 12.5px;
  font-weight: 600; line-height: 1.6; background: var(--ps-bg); color: var(--ps-dim);
  border: 1px solid var(--ps-line); white-space: nowrap; }
.ps-badge[data-mood=good] { background: var(--ps-good-soft); color: var(--ps-good); border-color: transparent; }
.ps-badge[data-mood=notice] { background: var(--ps-notice-soft); color: var(--ps-notice); border-color: transparent; }
.ps-badge[data-mood=bad] { background: var(--ps-bad-soft); color: var(--ps-bad); border-color: transparent; }

.ps-meter { width: 100%; height: 12px; border-radius: 999px; background: var(--ps-bg);
  border: 1px solid var(--ps-line); overflow: hidden; position: relative; }
.ps-meter > div { height: 100%; background: var(--ps-accent); transition: width .4s; }
.ps-meter[data-mood=notice] > div { background: #d08b00; }
.ps-meter[data-mood=bad] > div { background: #d3382c; }
.ps-chart { width: 100%; height: 220px; }

.ps-empty { text-align: center; padding: 28px 16px; color: var(--ps-dim); width: 100%;
  box-sizing: border-box; display: flex; flex-direction: column; align-items: center; gap: 6px; }
.ps-empty .q-icon { font-size: 34px; }
.ps-empty b { color: var(--ps-text); font-weight: 600; }
.ps-empty code { background: var(--ps-code); border: 1px solid var(--ps-line); border-radius: 6px;
  padding: 1px 6px; font-size: 13px; }
.ps-pre { margin: 0; background: var(--ps-code); border: 1px solid var(--ps-line); border-radius: 8px;
  padding: 12px; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 420px; overflow: auto; width: 100%;
  box-sizing: border-box; }
.ps-facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 16px; margin: 0;
  font-size: 14px; width: 100%; }
.ps-facts dt { color: var(--ps-dim); }
.ps-facts dd { margin: 0; overflow-wrap: anywhere; }

.ps-table.q-table__card { background: transparent; box-shadow: none; width: 100%; color: inherit; }
.ps-table .q-table th { color: var(--ps-dim); font-size: 13px; font-weight: 600; white-space: nowrap; }
.ps-table .q-table td { font-size: 14px; font-variant-numeric: tabular-nums; }
.ps-table .q-table th, .ps-table .q-table td { border-color: var(--ps-line) !important;
  padding: 8px 12px; }
.ps-table .q-table th { position: relative; }
.ps-table .q-table tbody td { height: 40px; }
.ps-table td.ps-wide { white-space: normal; overflow-wrap: anywhere; min-width: 160px; }
.ps-table td.ps-mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
.ps-table .q-table__bottom { border-color: var(--ps-line); color: var(--ps-dim); }
.q-field--outlined .q-field__control { border-radius: 8px; }
body.body--dark .q-field__native, body.body--dark .q-field__input { color: var(--ps-text); }
.q-btn { border-radius: 8px; text-transform: none; font-weight: 600; letter-spacing: 0; }
.q-btn.ps-main-action { background: #0f766e; color: #fff; }
.q-btn.ps-danger { background: #b42318; color: #fff; }
.q-btn.ps-plain { border: 1px solid var(--ps-line); color: var(--ps-text); }
.ps-plain::before, .ps-main-action::before, .ps-danger::before { box-shadow: none !important; }
.nicegui-skip-link { background: var(--ps-accent); color: #fff; border-radius: 0 0 8px 0; }

@media (max-width: 1199px) { .ps-tiles { grid-template-columns: repeat(min(3, var(--ps-tiles)), minmax(0, 1fr)); } }
@media (max-width: 800px) { .ps-two { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 599px) {
  .ps-main { padding: 16px 12px; gap: 14px; }
  .ps-card { padding: 14px; }
  .ps-tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .ps-tile { padding: 10px 12px; }
  .ps-tile dd { font-size: 19px; }
  .ps-fields { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .ps-fields.ps-broad { grid-template-columns: minmax(0, 1fr); }
  .ps-facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .ps-facts dd { margin-bottom: 8px; }
  .ps-table .q-table { display: block; }
  .ps-table thead { display: none; }
  .ps-table tbody { display: block; }
  .ps-table tbody tr { display: block; border: 1px solid var(--ps-line); border-radius: 10px;
    margin-bottom: 10px; padding: 6px 0; }
  .ps-table .q-table tbody td { display: flex; justify-content: space-between; gap: 16px;
    width: auto; height: auto; border: 0; padding: 5px 12px; text-align: right; white-space: normal;
    overflow-wrap: anywhere; min-width: 0; }
  .ps-table .q-table tbody td::before { content: attr(data-label); color: var(--ps-dim);
    text-align: left; flex: none; max-width: 45%; position: static; background: none; opacity: 1; }
  .ps-table .q-table tbody td:not([data-label])::before { display: none; }
  .ps-table td.ps-wide { min-width: 0; }
  .ps-table .q-table__bottom { justify-content: flex-start; }
}
@media (prefers-reduced-motion: reduce) { * { transition: none !important; animation: none !important; } }
"""
