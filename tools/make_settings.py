"""Makes ``docs/settings.md`` from the tables of settings. A test fails where it is not what they give."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.config import SETTABLE
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.known_options import KNOWN_UPSTREAM_NAMES
from cometmq.store_config.setting_effects import HARMLESS, REFUSALS, Condition
from cometmq.store_config.setting_names import OPTIONS, UPSTREAM_NAMES
from cometmq.store_config.setting_options import setting_text

ROOT = Path(__file__).resolve().parent.parent
PATH = "docs/settings.md"

_INTRODUCTION = """\
# Settings

Made from `src/cometmq/store_config/` and `src/cometmq/broker/config.py` by `make settings`; do not edit.

Every setting that a broker of RocketMQ 4.9 or 5.x knows, by upstream's name: it has its effect, some of its values are
refused at the start with the reason, or it is harmless, because what it tunes or switches on is not here or is fixed.
A broker names the harmless ones that it was given in one line when it starts. Where to give settings:
[operating](operating.md#settings).
"""

_DEFAULTS = """\
The defaults are upstream's; [three differ](operating.md#settings) in a CometMQ broker. Where none is given, it follows
from the machine or from another setting. Those with "yes" can be
[changed at run time](operating.md#settings-at-run-time), without a restart; a request with another one is refused.
"""


def document() -> str:
    """Return the page."""
    refused = {refusal.name for refusal in REFUSALS if not refusal.has_effect}
    lines = [*_INTRODUCTION.splitlines(), "", "## With an effect", "", *_DEFAULTS.splitlines(), ""]
    lines += ["| setting | default | at run time | meaning |", "|---|---|---|---|"]
    defaults = BrokerSettings()
    for field, option in sorted(OPTIONS.items(), key=lambda item: item[1].upstream_name.lower()):
        if option.upstream_name not in HARMLESS and option.upstream_name not in refused:
            spellings = ", ".join(f"`{name}`" for name in (option.upstream_name, *option.aliases))
            default = setting_text(getattr(defaults, field))
            shown = f"`{default}`" if default else ""
            lines.append(f"| {spellings} | {shown} | {'yes' if field in SETTABLE else ''} | {option.doc} |")
    lines += ["", "## Refused", "", "| setting | values | why, and what to do |", "|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.values}{_condition(one.only_with)} | {one.reason} |"
        for one in sorted(REFUSALS, key=lambda one: one.name.lower())
    ]
    lines += ["", "## Harmless", "", "| subject | settings |", "|---|---|"]
    subjects: dict[str, list[str]] = {}
    for name, subject in HARMLESS.items():
        subjects.setdefault(subject, []).append(name)
    for subject, names in subjects.items():
        lines.append(f"| {subject} | {', '.join(f'`{name}`' for name in sorted(names, key=str.lower))} |")
    return "\n".join(lines) + "\n"


def _condition(only_with: Condition | None) -> str:
    return "" if only_with is None else f", {only_with.text}"


def unclassified() -> set[str]:
    """Return upstream's names that are in no table."""
    return {
        name
        for name in KNOWN_UPSTREAM_NAMES
        if name not in UPSTREAM_NAMES and name not in HARMLESS and name not in {one.name for one in REFUSALS}
    }


if __name__ == "__main__":
    (ROOT / PATH).write_text(document(), "utf-8")
