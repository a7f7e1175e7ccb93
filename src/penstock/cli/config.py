"""``penstock config``: the settings in use, and where each of them comes from."""

from __future__ import annotations

import typer

from penstock.cli.options import Form, Output, Url

app = typer.Typer(help="The settings in use.", no_args_is_help=True)


@app.command("show")
def show(context: typer.Context, url: Url = None, output: Output = Form.TEXT) -> None:
    """Show every setting with its origin; secrets are masked."""
    from penstock.cli.output import show as show_rows
    from penstock.cli.output import tell
    from penstock.config import settings_in_use, unknown_variables

    before = context.find_root().params
    found = settings_in_use(before.get("config"), url=url or before.get("url"))
    plain = [one._asdict() for one in found]
    rows = [(one.name, str("" if one.value is None else one.value), one.origin) for one in found]
    show_rows(output, plain, ("setting", "value", "from"), rows, "")
    for name in unknown_variables():
        tell(f"{name} is in the environment, but is no setting")
