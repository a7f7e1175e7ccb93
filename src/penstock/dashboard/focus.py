"""Keeps the keyboard where it is. A table is drawn anew whenever its rows change, and so is what had the focus."""

from __future__ import annotations

SCRIPT = """<script>
(() => {
  const tableOf = cell => cell.closest('.ps-table')?.getAttribute('aria-label')
  const target = cell => cell.hasAttribute('tabindex') ? cell : cell.querySelector('a, button')
  let last = null
  document.addEventListener('focusin', event => {
    const cell = event.target.closest('[data-cell]')
    last = cell && {element: event.target, name: cell.dataset.cell, table: tableOf(cell)}
  })
  // Who points at something else does not want it back.
  document.addEventListener('pointerdown', () => { last = null }, true)
  new MutationObserver(() => {
    if (!last || last.element.isConnected || document.activeElement !== document.body) return
    const cells = [...document.querySelectorAll('[data-cell]')]
    const cell = cells.find(one => one.dataset.cell === last.name && tableOf(one) === last.table)
    if (cell) target(cell)?.focus({preventScroll: true})
  }).observe(document, {childList: true, subtree: true})
})()
</script>"""
"""A cell says in ``data-cell`` which one it is: its row, and its column."""
