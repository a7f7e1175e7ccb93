"""The page that asks for the token. It is the only HTML that is written by hand."""

from __future__ import annotations

from html import escape

from penstock.dashboard.gate import safe_path

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in · Penstock</title>
<style>
  :root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
  body {{ margin: 0; min-height: 100vh; display: grid; place-items: center;
         background: light-dark(#f4f6f8, #10161c); color: light-dark(#16202a, #e6edf3); }}
  form {{ box-sizing: border-box; width: min(22rem, 100vw - 2rem); padding: 2rem; border-radius: 12px;
         background: light-dark(#fff, #18212a); border: 1px solid light-dark(#dde3e9, #2b3742); }}
  h1 {{ font-size: 1.25rem; margin: 0 0 1rem; }}
  label {{ display: block; margin-bottom: .35rem; font-size: .9rem; }}
  input, button {{ box-sizing: border-box; width: 100%; font: inherit; padding: .6rem .75rem;
         border-radius: 8px; border: 1px solid light-dark(#aab6c2, #465361); }}
  button {{ margin-top: 1rem; border: 0; background: #0f766e; color: #fff; cursor: pointer; }}
  :focus-visible {{ outline: 3px solid #5eead4; outline-offset: 2px; }}
  p {{ margin: 1rem 0 0; font-size: .9rem; }}
  .wrong {{ color: light-dark(#b42318, #fda29b); }}
</style>
</head>
<body>
<main>
<form method="post" action="/login">
  <h1>Penstock</h1>
  <label for="token">Token</label>
  <input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
  <input type="hidden" name="next" value="{place}">
  <button type="submit">Log in</button>
  {told}
</form>
</main>
</body>
</html>
"""
HINT = "<p>It is what the dashboard was started with (PENSTOCK_DASHBOARD_TOKEN).</p>"


def login_page(place: str, wrong: str = "") -> str:
    """The page; ``place`` is where to go on to."""
    told = f'<p class="wrong" role="alert">{escape(wrong)}</p>' if wrong else HINT
    return PAGE.format(place=escape(safe_path(place), quote=True), told=told)
