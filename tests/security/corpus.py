"""Names and texts that were made to do harm."""

MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
TEMPLATE = "{{document.title='broken'}}${document.title='broken'}"
"""For frameworks that run what stands in double braces."""
CONTROLS = "\x1b[2J\x1b]0;owned\x07\r\n[ERROR] forged\x00\x9b31m\u202e"
"""Clears a terminal, sets its title, begins a line of a log of its own, and turns text around."""
LABEL = '"} 1\nforged_total{a="b\\'
"""Ends a label of Prometheus, and begins a metric of its own."""

BAD_NAMES: list[object] = [
    "", ".", "..", "...", "../x", "../../etc/passwd", "..%2f..%2fx", "%2e%2e", "a/b", "/etc", "//x",
    "a/../b", "a\\b", "..\\x", "a\0b", "\0", "a\n", "a\r\nb", "a\tb", " a", "a ", "a b", "-a", "--help",
    ".a", "é", "e\u0301", "\uff21", "\uff41", "\u017f", "\u212a", "٣", "a\u202eb", "a\u200bb", "\ufeffa", "\ud800",
    "x" * 201, "x" * 300, "x" * 100_000, MARKUP, TEMPLATE, CONTROLS, LABEL, "a;id", "$(id)", "`id`",
    "|id", "a*", "a?", "[a]", "(a+)+$", "a:b", "a@b", "a,b", "'; DROP TABLE x; --", "a=b", "~", "~root",
    None, 5, 0, True, b"x", [], {}, object(),
]  # fmt: skip
"""None of them may name a topic, a group, a bus or a subscriber."""
